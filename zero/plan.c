/* plan.c: the byte plan, by a rehearsal on the sim backend. */
#include "zero/plan.h"

#include <string.h>

#include "zero/replica.h"
#include "zero/take.h"
#include "zero/timeline.h"

/* Steps that are rehearsed: the second starts as every later one does. */
enum { PLAN_STEPS = 2 };

static zr_result rehearse_step(struct zr_replica *replica, unsigned micro_batches)
{
    struct zr_timeline *timeline = replica->options.timeline;
    struct zr_step_report report;
    double loss;
    zr_result result = ZR_OK;

    if (timeline)
        zr_timeline_step_begin(timeline);
    for (unsigned m = 0; result == ZR_OK && m < micro_batches; m++) {
        if (timeline)
            timeline->micro_batch = m;
        result = zr_gpt_train(replica->model, &loss);
    }
    if (result == ZR_OK)
        result = zr_engine_step(replica->engine, 0, &report);
    if (result == ZR_OK && timeline)
        result = zr_timeline_step_end(timeline);
    return result;
}

static zr_result rehearse(struct zr_plan *out, const struct zr_plan_request *request, zr_arena *arena,
                          zr_comm *comm)
{
    struct zr_replica replica;
    struct zr_comm_counters before = {0}, after;
    struct zr_arena_stats stats;
    unsigned micro_batches = request->micro_batches ? request->micro_batches : 1;
    double loss;
    zr_result result =
        zr_replica_open(&replica, &(struct zr_replica_options){.arena = arena,
                                                               .host_arena = request->host_arena,
                                                               .kernels = zr_kernels_null(),
                                                               .isa = request->isa,
                                                               .parallel = {.threads = request->threads},
                                                               .comm = comm,
                                                               .shape = request->shape,
                                                               .stage = request->stage,
                                                               .micro_batches = request->micro_batches,
                                                               .reduce = request->reduce,
                                                               .precision = request->precision,
                                                               .optimizer = request->optimizer,
                                                               .timeline = request->timeline});
    if (result != ZR_OK)
        return result;
    for (int step = 0; result == ZR_OK && step < PLAN_STEPS; step++) {
        zr_comm_counters_get(comm, &before);
        result = rehearse_step(&replica, micro_batches);
    }
    zr_comm_counters_get(comm, &after);
    if (result == ZR_OK)
        result = zr_gpt_evaluate(replica.model, request->shape.batch, &loss);
    if (result == ZR_OK)
        result = zr_arena_get_stats(arena, &stats);
    if (result == ZR_OK) {
        out->elements = zr_engine_elements(replica.engine);
        out->sent_elements_per_step = after.sent_elements - before.sent_elements;
        out->peak_bytes = stats.peak_live_bytes;
        out->peak_reserved_bytes = stats.peak_reserved_bytes;
        memcpy(out->peak_by_tag_bytes, stats.peak_by_tag_bytes, sizeof out->peak_by_tag_bytes);
        memcpy(out->persistent_by_tag_bytes, stats.live_by_tag_bytes, sizeof out->persistent_by_tag_bytes);
    }
    zr_replica_close(&replica);
    return result;
}

zr_result zr_plan_make(struct zr_plan *out, const struct zr_plan_request *request)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    zr_result result;

    memset(out, 0, sizeof *out);
    out->stage = request->stage;
    result =
        zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = request->granule_bytes});
    if (result != ZR_OK)
        return result;
    result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "plan"});
    if (result != ZR_OK)
        goto unwind;
    size_t bucket_bytes;
    result = zr_replica_bucket_bytes(&(struct zr_bucket_request){.shape = &request->shape,
                                                                 .precision = request->precision,
                                                                 .world = request->world,
                                                                 .cap_bytes = request->bucket_bytes},
                                     request->host_arena, &bucket_bytes);
    if (result != ZR_OK)
        goto unwind;
    result = zr_comm_null_create(&comm,
                                 &(struct zr_comm_options){.arena = arena,
                                                           .host_arena = request->host_arena,
                                                           .kernels = zr_kernels_null(),
                                                           .bucket_bytes = bucket_bytes},
                                 request->rank, request->world);
    if (result != ZR_OK)
        goto unwind;
    if (request->timeline)
        zr_comm_null_set_clock(comm, &request->timeline->clock);
    result = rehearse(out, request, arena, comm);
    zr_result closed = zr_comm_destroy(comm);
    if (result == ZR_OK)
        result = closed;

unwind:
    if (arena) {
        size_t leaked = 0;
        zr_arena_destroy(arena, &leaked);
        if (result == ZR_OK && leaked)
            result = zr_fail(ZR_ERR_CORRUPT, "the rehearsal of the plan left %zu bytes behind", leaked);
    }
    zr_backend_destroy(backend);
    return result;
}

zr_result zr_plan_place(struct zr_plan *out, const struct zr_plan_request *request)
{
    struct zr_plan_request lower = *request;
    struct zr_plan plan;
    zr_result result = zr_plan_make(out, request);
    while (result == ZR_OK && request->world > 1 && lower.stage-- > 0) {
        result = zr_plan_make(&plan, &lower);
        if (result == ZR_OK && plan.peak_reserved_bytes < out->peak_reserved_bytes)
            *out = plan;
    }
    return result;
}
