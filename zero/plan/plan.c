/* plan.c: the byte plan, by a rehearsal on the sim backend. */
#include "zero/plan/plan.h"

#include <string.h>

#include "alloc/plan/plan.h"
#include "zero/engine/meter.h"
#include "zero/engine/zerone.h"
#include "zero/engine/gradients.h"
#include "zero/engine/served.h"
#include "zero/step/trainer_state.h"
#include "zero/plan/timeline.h"

/* Rehearsed micro-batches of a step: the first, a middle one that represents all others, and the last.
 * With a clock two middle ones must take the same time; if they do not, twice as many are rehearsed. */
enum { MICRO_BATCHES_MAX = 3, MICRO_BATCHES_TIMED = 4 };

/* Maximum cost of a placement plan above best fit, accepted because the placement plan avoids all driver
 * calls in a step: granules between persistent and temporary blocks, or this fraction of the total. */
enum { PLACES_COST_GRANULES = 2, PLACES_COST_DIVISOR = 200 };

struct sent {
    uint64_t elements, bytes;
};

/* A rehearsal and its results. */
struct rehearsal {
    const struct zr_plan_request *request;
    unsigned step_micro_batches,
        micro_batches; /* micro-batches of a step / number of rehearsed micro-batches */
    zr_arena *arena;
    zr_arena *host_tier;  /* NULL: nothing is offloaded */
    size_t granule_bytes; /* of the arena */
    struct zr_mesh mesh;  /* its world belongs to the rehearsal */
    struct zr_trainer_state state;
    zr_rehearsal *places;                      /* placement plan to follow, or NULL */
    struct zr_plan_reservations *reservations; /* reservations to find in a separate step; NULL: not needed */
    zr_rehearsal **found_places;               /* NULL: not needed; *found_places NULL: none */
    struct sent sent_by_step;                  /* in the last step */
    struct sent sent_by_middle;                /* in that step's last micro-batch but one */
    uint64_t moved_by_step;                    /* bytes to and from the host tier in the last step */
    uint64_t moved_by_middle;
    uint64_t file_moved_by_step; /* bytes to and from the offload files */
    uint64_t file_moved_by_middle;
    bool repeats; /* with a clock: the last micro-batch but one takes the same time as the omitted ones */
};

static const struct zr_kernels *kernels_of(const struct zr_plan_request *request)
{
    return request->kernels ? zr_kernels_null_of(request->kernels) : zr_kernels_null();
}

/* Kernels for the host tier. */
static const struct zr_kernels *host_kernels_of(const struct zr_plan_request *request)
{
    return kernels_of(request)->host_visible ? NULL : zr_kernels_null();
}

static struct sent sent_since(const struct rehearsal *rehearsal, struct sent before)
{
    struct zr_comm_counters counters;
    zr_trainer_state_counters_get(&rehearsal->state, &counters);
    return (struct sent){counters.sent_elements - before.elements, counters.sent_bytes - before.bytes};
}

static struct sent sent(const struct rehearsal *rehearsal)
{
    return sent_since(rehearsal, (struct sent){0, 0});
}

static uint64_t moved_bytes(const struct rehearsal *rehearsal)
{
    return zr_trainer_state_moved_bytes(&rehearsal->state);
}

static struct zr_state_file_report file_report(const struct rehearsal *rehearsal)
{
    struct zr_state_file_report report;
    zr_engine_get_file_report(rehearsal->state.engine, &report);
    return report;
}

static unsigned left_out(const struct rehearsal *rehearsal)
{
    return rehearsal->step_micro_batches - rehearsal->micro_batches;
}

/* The last micro-batch but one represents the omitted ones if it takes the same time as the one before it. */
static zr_result end_timed_step(struct rehearsal *rehearsal, const struct zr_timeline_mark marks[3])
{
    struct zr_timeline *timeline = rehearsal->request->timeline;
    struct zr_timeline_repeat repeat = {.micro_batch = rehearsal->micro_batches - 2,
                                        .times = left_out(rehearsal),
                                        .begin = marks[1],
                                        .end = marks[2]};
    bool leaves_out = left_out(rehearsal) > 0;
    if (leaves_out)
        rehearsal->repeats = zr_timeline_repeats(&marks[0], &marks[1], &marks[2]);
    return zr_timeline_step_end(timeline, leaves_out && rehearsal->repeats ? &repeat : NULL);
}

static uint64_t allocations_of(const struct rehearsal *rehearsal)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(rehearsal->arena, &stats);
    return stats.allocations_count;
}

/* The current step. */
struct step {
    struct rehearsal *rehearsal;
    zr_rehearsal *watch;                       /* records its allocations; NULL: none */
    struct zr_plan_reservations *reservations; /* reservations of the last micro-batch; NULL: not needed */
    struct zr_timeline_mark marks[3];          /* at the last three starts of micro-batches */
    struct sent begun;                         /* at the last start of a micro-batch */
    uint64_t moved, file_moved;                /* bytes moved at that start */
    uint64_t allocated;                        /* number of allocations at that start */
    zr_result reserved;                        /* result of recording reservations */
};

static void note_reservation(struct step *step, const struct zr_action *action, bool done)
{
    const struct zr_actions *list = &step->rehearsal->state.trainer->step;
    size_t place = zr_plan_reservations_place(list, action);
    if (done)
        zr_plan_reservations_note(step->reservations, step->rehearsal->arena, place);
    else if (action->kind == ZR_ACTION_LOAD && action->micro_batch + 1 == step->rehearsal->micro_batches)
        step->reserved = zr_plan_reservations_begin(step->reservations, step->rehearsal->arena, place + 1);
}

/* Called by the executor. */
static void observe(void *state, const struct zr_action *action, bool done)
{
    struct step *step = state;
    struct rehearsal *rehearsal = step->rehearsal;
    struct zr_timeline *timeline = rehearsal->request->timeline;
    if (action->begins && !done) {
        if (timeline) {
            step->marks[0] = step->marks[1];
            step->marks[1] = step->marks[2];
            step->marks[2] = zr_timeline_mark_now(timeline);
        }
        if (step->watch)
            zr_rehearsal_pass(step->watch);
        if (action->micro_batch + 1 == rehearsal->micro_batches) {
            rehearsal->sent_by_middle = sent_since(rehearsal, step->begun);
            rehearsal->moved_by_middle = moved_bytes(rehearsal) - step->moved;
            rehearsal->file_moved_by_middle = file_report(rehearsal).moved_bytes - step->file_moved;
        }
        step->begun = sent(rehearsal);
        step->moved = moved_bytes(rehearsal);
        step->file_moved = file_report(rehearsal).moved_bytes;
        step->allocated = allocations_of(rehearsal);
    }
    if (timeline)
        zr_timeline_action(timeline, action, done);
    if (step->reservations)
        note_reservation(step, action, done);
}

static zr_result load_nothing(void *state, unsigned micro_batch)
{
    (void)state;
    (void)micro_batch;
    return ZR_OK;
}

static zr_result rate_zero(void *state, double loss, float *rate)
{
    (void)state;
    (void)loss;
    *rate = 0;
    return ZR_OK;
}

/* Rehearses a step. *last_pass: number of allocations of the last micro-batch and the step's end. */
static zr_result rehearse_step(struct rehearsal *rehearsal, zr_rehearsal *watch,
                               struct zr_plan_reservations *reservations, uint64_t *last_pass)
{
    zr_trainer *trainer = rehearsal->state.trainer;
    struct zr_timeline *timeline = rehearsal->request->timeline;
    struct sent before = sent(rehearsal);
    uint64_t moved = moved_bytes(rehearsal), file_moved = file_report(rehearsal).moved_bytes;
    struct step step = {.rehearsal = rehearsal,
                        .watch = watch,
                        .reservations = reservations,
                        .begun = before,
                        .moved = moved,
                        .file_moved = file_moved};
    struct zr_step_report report;

    if (timeline) {
        timeline->model = trainer->model;
        timeline->cut = trainer->pipelined ? &trainer->cut : NULL;
        zr_timeline_step_begin(timeline);
    }
    trainer->observe = observe;
    trainer->observe_state = &step;
    zr_result result = zr_engine_speculate(zr_trainer_engine(trainer), 0);
    if (result == ZR_OK)
        result = zr_trainer_step(trainer, &(struct zr_step_calls){.load = load_nothing, .update = rate_zero},
                                 &report);
    trainer->observe = NULL;
    result = result == ZR_OK ? step.reserved : result;
    if (result == ZR_OK && timeline)
        result = end_timed_step(rehearsal, step.marks);
    rehearsal->sent_by_step = sent_since(rehearsal, before);
    rehearsal->moved_by_step = moved_bytes(rehearsal) - moved;
    rehearsal->file_moved_by_step = file_report(rehearsal).moved_bytes - file_moved;
    *last_pass = allocations_of(rehearsal) - step.allocated;
    return result;
}

/* A placement plan is optional: if no addresses are left for the placement plan, the byte plan is made
 * without one. Running out of memory is an error, because it may affect only one rank, and all ranks must get
 * the same plan. */
static zr_result ignore_missing_addresses(zr_result result)
{
    return result == ZR_ERR_ADDRESSES ? ZR_OK : result;
}

/* Steps that follow a step of an asynchronous pipeline which fills it, or finds it filled. */
static void expect_more(const struct rehearsal *rehearsal)
{
    zr_trainer_expect_steps(rehearsal->state.trainer, rehearsal->request->stages.ranks);
}

/* Ends the steps that were expected. Their figures are not those of a step. */
static zr_result drain(struct rehearsal *rehearsal)
{
    zr_trainer *trainer = rehearsal->state.trainer;
    const struct zr_step_calls calls = {.load = load_nothing, .update = rate_zero};
    struct zr_step_report report;
    zr_result result = ZR_OK;
    while (result == ZR_OK && trainer->flow.following > 0)
        result = zr_trainer_step(trainer, &calls, &report);
    return result;
}

/* Rehearses two steps. The second step starts in the state in which every later step starts. */
static zr_result rehearse_steps(struct rehearsal *rehearsal)
{
    uint64_t last_pass;
    zr_rehearsal *watch = NULL;
    bool found = false;
    expect_more(rehearsal);
    zr_result result = rehearse_step(rehearsal, NULL, NULL, &last_pass);

    if (result == ZR_OK && rehearsal->found_places)
        result = ignore_missing_addresses(
            zr_rehearsal_create(&watch, rehearsal->arena, last_pass, rehearsal->request->host_arena));
    expect_more(rehearsal);
    if (result == ZR_OK)
        result = rehearse_step(rehearsal, watch, NULL, &last_pass);
    if (result == ZR_OK && watch) {
        zr_result placed = zr_rehearsal_place(watch, &found);
        found &= placed == ZR_OK;
        result = ignore_missing_addresses(placed);
    }
    if (found)
        *rehearsal->found_places = watch;
    else
        zr_rehearsal_destroy(watch);
    return result == ZR_OK ? drain(rehearsal) : result;
}

static void observe_evaluation(void *state, const struct zr_action *action, bool done)
{
    struct rehearsal *rehearsal = state;
    (void)action;
    if (done)
        zr_plan_reservations_note_after(rehearsal->reservations, rehearsal->arena);
}

/* Finds the reservations. Runs after all measurements, because it trims idle memory after each action, which
 * a step without other runs does not do. */
static zr_result rehearse_reservations(struct rehearsal *rehearsal)
{
    zr_trainer *trainer = rehearsal->state.trainer;
    uint64_t last_pass;
    double loss;
    zr_result result = rehearse_step(rehearsal, NULL, rehearsal->reservations, &last_pass);
    trainer->observe = observe_evaluation;
    trainer->observe_state = rehearsal;
    if (result == ZR_OK)
        result = zr_trainer_evaluate(trainer, trainer->model->rows, &loss);
    trainer->observe = NULL;
    if (result == ZR_OK)
        zr_plan_reservations_close(rehearsal->reservations);
    return result;
}

/* Starts recording the maximum of each tag. */
static zr_result note_reached(zr_arena *arena)
{
    struct zr_tag_limits none = {.total_bytes = SIZE_MAX};
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        none.by_tag_bytes[tag] = SIZE_MAX;
    return zr_arena_set_tag_limits(arena, &none);
}

static void note_whole(struct zr_byte_plan *out, const struct zr_engine *engine)
{
    if (engine->world == 1)
        return;
    if (engine->options.stage >= 2 && engine->units[0].kept_elements > engine->layout.units[0].shard_elements)
        out->whole_gradients =
            engine->layout.pool_elements < out->elements ? engine->layout.pool_elements : out->elements;
    for (size_t u = 0; u < engine->layout.units_count && engine->options.stage == 3; u++)
        if (engine->units[u].resident)
            out->whole_parameters += engine->layout.units[u].padded_elements;
    if (out->whole_parameters > out->elements) /* whole_parameters includes padding */
        out->whole_parameters = out->elements;
}

static void note(struct zr_byte_plan *out, const struct rehearsal *rehearsal,
                 const struct zr_arena_stats *stats)
{
    out->elements = zr_engine_elements(rehearsal->state.engine);
    note_whole(out, rehearsal->state.engine);
    out->sent_elements_per_step =
        rehearsal->sent_by_step.elements + left_out(rehearsal) * rehearsal->sent_by_middle.elements;
    out->sent_bytes_per_step =
        rehearsal->sent_by_step.bytes + left_out(rehearsal) * rehearsal->sent_by_middle.bytes;
    if (zr_engine_is_zerone(rehearsal->state.engine))
        out->full_sent_bytes = out->sent_elements_per_step * rehearsal->state.engine->gradient_bytes;
    zr_outer_get_report(rehearsal->state.engine, &out->outer);
    out->snapshot_bytes = rehearsal->state.engine->snapshot.image.bytes;
    out->backup_bytes = rehearsal->state.engine->kept.backup.image.bytes;
    out->check_sent_bytes = zr_meter_bytes(rehearsal->state.engine);
    out->host_moved_bytes_per_step =
        rehearsal->moved_by_step + left_out(rehearsal) * rehearsal->moved_by_middle;
    out->nvme_bytes = file_report(rehearsal).file_bytes;
    out->nvme_parameter_bytes = rehearsal->state.engine->parameter_file.bytes;
    out->nvme_moved_bytes_per_step =
        rehearsal->file_moved_by_step + left_out(rehearsal) * rehearsal->file_moved_by_middle;
    out->peak_bytes = stats->peak_live_bytes;
    out->peak_reserved_bytes = stats->peak_reserved_bytes;
    memcpy(out->peak_by_tag_bytes, stats->peak_by_tag_bytes, sizeof out->peak_by_tag_bytes);
    memcpy(out->persistent_by_tag_bytes, stats->live_by_tag_bytes, sizeof out->persistent_by_tag_bytes);
}

static zr_result note_host_tier(struct zr_byte_plan *out, zr_arena *tier)
{
    struct zr_arena_stats stats;
    zr_result result = zr_arena_get_stats(tier, &stats);
    if (result != ZR_OK)
        return result;
    out->host_bytes = stats.peak_live_bytes;
    out->host_reserved_bytes = stats.peak_reserved_bytes;
    memcpy(out->host_peak_by_tag_bytes, stats.peak_by_tag_bytes, sizeof out->host_peak_by_tag_bytes);
    memcpy(out->host_persistent_by_tag_bytes, stats.live_by_tag_bytes,
           sizeof out->host_persistent_by_tag_bytes);
    return zr_arena_get_high_water(tier, &out->host_tag_limits);
}

static zr_result rehearse(struct zr_byte_plan *out, struct rehearsal *rehearsal)
{
    const struct zr_plan_request *request = rehearsal->request;
    struct zr_arena_stats stats;
    struct zr_checkpoint_policy policy = request->checkpoints;
    double loss;
    struct zr_outer outer = request->outer;
    policy.host = request->offloads_checkpoints ? rehearsal->host_tier : NULL;
    if (outer.period > 0 && outer.period / outer.fragments == 2) /* the second step would synchronise */
        outer.period *= 2;
    zr_result result = zr_trainer_state_open(
        &rehearsal->state,
        &(struct zr_trainer_state_options){
            .arena = rehearsal->arena,
            .host_arena = request->host_arena,
            .kernels = kernels_of(request),
            .host_kernels = host_kernels_of(request),
            .isa = request->isa,
            .parallel = {.threads = request->threads},
            .mesh = &rehearsal->mesh,
            .shape = request->shape,
            .stages = &request->stages,
            .stage = request->stage,
            .micro_batches = rehearsal->micro_batches,
            .reduce = request->reduce,
            .compression = request->compression,
            .measures_squares = request->measures_squares,
            .shares_parameters = request->shares_parameters,
            .root_owns = request->root_owns,
            .kept = request->keeps_state ? &(struct zr_kept_memory){.take = NULL} : NULL,
            .snapshots = request->snapshots,
            .outer = outer,
            .servers = {.on = request->served},
            .differs = request->differs,
            .precision = request->precision,
            .optimizer = request->optimizer,
            .checkpoints = policy,
            .offload = {.host = rehearsal->host_tier,
                        .optimizer = request->offloads_optimizer,
                        .parameters = request->offloads_parameters,
                        .delayed = request->delays_update,
                        .resident_share = request->resident_share,
                        .speculative_bytes = request->speculative_bytes,
                        .file = request->offload_file.folder ? &request->offload_file : NULL,
                        .parameters_file =
                            request->parameters_file.folder ? &request->parameters_file : NULL},
            .clock = request->timeline ? &request->timeline->clock : NULL});
    if (result != ZR_OK)
        return result;
    if (rehearsal->places)
        result = zr_rehearsal_install(rehearsal->places, rehearsal->arena);
    if (result == ZR_OK)
        result = rehearse_steps(rehearsal);
    if (result == ZR_OK)
        result = zr_trainer_evaluate(rehearsal->state.trainer, rehearsal->state.trainer->model->rows, &loss);
    if (result == ZR_OK)
        result = zr_served_touch(rehearsal->state.engine);
    if (result == ZR_OK)
        result = zr_arena_get_stats(rehearsal->arena, &stats);
    if (result == ZR_OK)
        result = zr_arena_get_high_water(rehearsal->arena, &out->tag_limits);
    if (result == ZR_OK)
        note(out, rehearsal, &stats);
    if (result == ZR_OK && rehearsal->host_tier)
        result = note_host_tier(out, rehearsal->host_tier);
    if (result == ZR_OK && rehearsal->reservations)
        result = rehearse_reservations(rehearsal);
    zr_trainer_state_close(&rehearsal->state);
    return result;
}

/* One rehearsal with its own communicators. */
static zr_result rehearse_on_mesh(struct zr_byte_plan *out, struct rehearsal *rehearsal)
{
    const struct zr_plan_request *request = rehearsal->request;
    unsigned tensor = (unsigned)zr_shape_tensor(&request->shape),
             context = (unsigned)zr_shape_context(&request->shape),
             pipeline = request->stages.ranks > 1 ? request->stages.ranks : 1;
    unsigned groups = request->groups > 1 ? request->groups : 1;
    struct zr_mesh_shape shape = {request->world / tensor / pipeline / context / groups,
                                  tensor,
                                  pipeline,
                                  context,
                                  groups,
                                  request->served || request->differs,
                                  request->snapshots,
                                  request->backs_up};
    zr_comm *world;
    size_t bucket_bytes;
    zr_result result =
        zr_trainer_state_bucket_bytes(&(struct zr_bucket_request){.shape = &request->shape,
                                                                  .precision = request->precision,
                                                                  .data = zr_mesh_shards(shape),
                                                                  .cap_bytes = request->bucket_bytes,
                                                                  .optimizer = request->optimizer.kind},
                                      request->host_arena, &bucket_bytes);
    if (result == ZR_OK)
        result = zr_comm_null_create(
            &world,
            &(struct zr_comm_options){.arena = rehearsal->arena,
                                      .host_arena = request->host_arena,
                                      .kernels = kernels_of(request),
                                      .bucket_bytes = zr_mesh_world_bucket_bytes(shape, bucket_bytes)},
            request->rank, request->world);
    if (result != ZR_OK)
        return result;
    if (request->timeline)
        result = zr_comm_null_set_clock(world, &request->timeline->clock);
    if (result == ZR_OK)
        result = zr_mesh_open(&rehearsal->mesh, world, shape, bucket_bytes);
    if (result == ZR_OK) {
        result = rehearse(out, rehearsal);
        zr_mesh_close(&rehearsal->mesh);
    }
    zr_result closed = zr_comm_destroy(world);
    return result == ZR_OK ? closed : result;
}

/* One rehearsal with its own arena. */
static zr_result rehearse_alone(struct zr_byte_plan *out, struct rehearsal *rehearsal)
{
    const struct zr_plan_request *request = rehearsal->request;
    zr_backend *backend = NULL;
    zr_result result;

    memset(out, 0, sizeof *out);
    rehearsal->arena = rehearsal->host_tier = NULL;
    result =
        zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = request->granule_bytes});
    if (result != ZR_OK)
        return result;
    result =
        zr_arena_create(&rehearsal->arena, &(struct zr_arena_options){.backend = backend, .name = "plan"});
    if (result == ZR_OK)
        result = note_reached(rehearsal->arena);
    if (result == ZR_OK && request->trace)
        result = zr_trace_start(rehearsal->arena, request->trace);
    if (result == ZR_OK && (request->offloads_checkpoints || request->offloads_optimizer)) {
        result = zr_arena_create(&rehearsal->host_tier,
                                 &(struct zr_arena_options){.backend = backend, .name = "plan of the host"});
        if (result == ZR_OK)
            result = note_reached(rehearsal->host_tier);
    }
    if (result != ZR_OK)
        goto unwind;
    rehearsal->granule_bytes = zr_arena_plan_rules(rehearsal->arena).granule_bytes;
    result = rehearse_on_mesh(out, rehearsal);
    if (request->trace) {
        zr_result traced = zr_trace_stop(rehearsal->arena);
        result = result == ZR_OK ? traced : result;
    }

unwind:
    if (rehearsal->host_tier)
        zr_arena_destroy(rehearsal->host_tier, NULL);
    if (rehearsal->arena) {
        size_t leaked = 0;
        zr_arena_destroy(rehearsal->arena, &leaked);
        if (result == ZR_OK && leaked)
            result = zr_fail(ZR_ERR_CORRUPT, "the rehearsal of the plan left %zu bytes behind", leaked);
    }
    zr_backend_destroy(backend);
    return result;
}

/* Rehearses with a clock: rehearses more micro-batches until one takes the same time as the one before it. */
static zr_result rehearse_timed(struct zr_byte_plan *out, struct rehearsal *rehearsal)
{
    struct zr_timeline *timeline = rehearsal->request->timeline;
    const struct zr_comm_clock start = timeline->clock;
    zr_result result = ZR_OK;

    rehearsal->repeats = rehearsal->request->walks_all || rehearsal->request->stages.ranks > 1;
    rehearsal->micro_batches = rehearsal->repeats ? rehearsal->step_micro_batches : MICRO_BATCHES_TIMED;
    for (bool again = true; result == ZR_OK && again; rehearsal->micro_batches *= 2) {
        if (rehearsal->micro_batches >= rehearsal->step_micro_batches) {
            rehearsal->micro_batches = rehearsal->step_micro_batches;
            rehearsal->repeats = true; /* no micro-batch is omitted */
        }
        timeline->clock = start;
        result = rehearse_alone(out, rehearsal);
        again = !rehearsal->repeats;
    }
    return result;
}

bool zr_plan_prefers_places(size_t placed_bytes, size_t plain_bytes, size_t granule_bytes)
{
    size_t more_bytes = plain_bytes / PLACES_COST_DIVISOR;
    if (more_bytes < PLACES_COST_GRANULES * granule_bytes)
        more_bytes = PLACES_COST_GRANULES * granule_bytes;
    return placed_bytes <= plain_bytes + more_bytes;
}

/* Rehearses again with the placement plan, as the run will. Sets *places to NULL if no addresses are left for
 * the placement plan, or if it costs too much. */
static zr_result rehearse_placed(struct zr_byte_plan *out, struct rehearsal *rehearsal, zr_rehearsal **places)
{
    struct zr_byte_plan placed;
    rehearsal->places = *places;
    rehearsal->reservations = rehearsal->request->reservations;
    zr_result result = rehearse_alone(&placed, rehearsal);
    if (result == ZR_OK && zr_plan_prefers_places(placed.peak_reserved_bytes, out->peak_reserved_bytes,
                                                  rehearsal->granule_bytes)) {
        *out = placed;
        return ZR_OK;
    }
    if (rehearsal->reservations) /* incomplete if memory has run out */
        zr_plan_reservations_end(rehearsal->reservations);
    if (result != ZR_OK && result != ZR_ERR_ADDRESSES)
        return result;
    zr_rehearsal_destroy(*places);
    *places = NULL;
    return ZR_OK;
}

zr_result zr_plan_make(struct zr_byte_plan *out, const struct zr_plan_request *request)
{
    zr_rehearsal *places = NULL;
    struct rehearsal rehearsal = {.request = request,
                                  .step_micro_batches = request->micro_batches ? request->micro_batches : 1};
    zr_result result;

    rehearsal.micro_batches = rehearsal.step_micro_batches;
    if (rehearsal.step_micro_batches > MICRO_BATCHES_MAX && !request->walks_all && request->stages.ranks <= 1)
        rehearsal.micro_batches = MICRO_BATCHES_MAX;
    rehearsal.found_places = request->live_only ? NULL : &places;
    if (request->timeline) {
        rehearsal.found_places = NULL;
        result = rehearse_timed(out, &rehearsal);
    } else {
        result = rehearse_alone(out, &rehearsal);
    }
    rehearsal.found_places = NULL;
    if (result == ZR_OK && places)
        result = rehearse_placed(out, &rehearsal, &places);
    if (request->places)
        *request->places = result == ZR_OK ? places : NULL;
    if (!request->places || result != ZR_OK)
        zr_rehearsal_destroy(places);
    return result;
}
