/* policy_arena.c: zr's arena on the `sim` backend, as programs use it. Uses alloc/zr.h. */
#include "alloc/base/error.h"
#include "alloc/plan/plan.h"
#include "defrag/learn/learner.h"
#include "defrag/replay/model.h"

/* Above any number of a real thread. */
#define TRACE_THREADS UINT32_C(0x80000000)

struct arena_model {
    struct zr_policy_model model; /* first */
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    uint32_t thread;  /* the caller's own number; the caller acts for all threads of the trace */
    uint32_t speaker; /* the trace's thread that the caller acts for now */
};

static void arena_end(struct zr_policy_model *model)
{
    struct arena_model *own = (struct arena_model *)model;
    zr_thread_become(own->thread);
    zr_learner_destroy(own->learner);
    if (own->arena)
        zr_arena_destroy(own->arena, NULL);
    if (own->backend)
        zr_backend_destroy(own->backend);
}

static zr_result arena_begin(struct zr_policy_model *model)
{
    struct arena_model *own = (struct arena_model *)model;
    const struct zr_model_options *options = &model->options;
    own->thread = zr_thread_number();
    zr_result result = zr_backend_sim_create(
        &own->backend, &(struct zr_sim_options){.granule_bytes = options->granule_bytes,
                                                .capacity_bytes = options->capacity_bytes});
    if (result == ZR_OK)
        result = zr_arena_create(&own->arena,
                                 &(struct zr_arena_options){.backend = own->backend, .name = "replay"});
    if (result == ZR_OK)
        result = zr_learner_create(&own->learner, &(struct zr_learner_options){.arena = own->arena});
    if (result == ZR_OK && !options->no_wait)
        zr_learner_hold(own->learner);
    return result;
}

static zr_result arena_alloc(struct zr_policy_model *model, const struct zr_event *event, void **out)
{
    struct arena_model *own = (struct arena_model *)model;
    if (__builtin_expect(own->speaker != TRACE_THREADS + event->thread, 0)) {
        own->speaker = TRACE_THREADS + event->thread;
        zr_thread_become(own->speaker);
    }
    return zr_arena_alloc(
        own->arena,
        &(struct zr_request){.bytes = event->bytes, .tag = (zr_tag)event->tag, .stream = event->stream}, out);
}

static zr_result arena_free(struct zr_policy_model *model, void *handle)
{
    return zr_arena_free(((struct arena_model *)model)->arena, handle);
}

static void arena_wait(struct zr_policy_model *model)
{
    zr_learner_wait(((struct arena_model *)model)->learner);
}

static void arena_reset_peak(struct zr_policy_model *model)
{
    zr_arena_reset_peaks(((struct arena_model *)model)->arena);
}

static void arena_measure(struct zr_policy_model *model)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(((struct arena_model *)model)->arena, &stats);
    model->reserved_bytes = stats.reserved_bytes;
    model->peak_reserved_bytes = stats.peak_reserved_bytes;
    model->driver_calls = stats.backend_calls_count;
}

const struct zr_model_ops zr_model_arena = {.bytes = sizeof(struct arena_model),
                                            .begin = arena_begin,
                                            .end = arena_end,
                                            .alloc = arena_alloc,
                                            .free = arena_free,
                                            .wait = arena_wait,
                                            .reset_peak = arena_reset_peak,
                                            .measure = arena_measure};
