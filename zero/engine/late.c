/* late.c: the delayed update. See update.h. */
#include "zero/engine/update.h"

#include <stdatomic.h>

#include "zero/comm/copies.h"
#include "zero/engine/offload.h"

/* ---- In the thread of the update ----------------------------------------------------------------------- */

/* Buffer of a unit's new parameters until the end of the step. */
static struct zr_numbers updated_parameters(const struct zr_engine *engine, size_t unit)
{
    size_t at = engine->layout.units[unit].shard_offset;
    return zr_numbers_at((struct zr_numbers){engine->late.parameters, engine->options.precision}, at);
}

static zr_result update_unit(struct zr_engine *engine, size_t unit)
{
    const struct zr_late_unit *late = &engine->late.units[unit];
    struct zr_owned owned;
    struct zr_window window = {.values = updated_parameters(engine, unit)};
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    window.count = owned.to - owned.from;
    if (result == ZR_OK) /* the previous update's copy */
        result = zr_comm_wait(engine->copies, late->copied);
    if (result == ZR_OK)
        result =
            zr_engine_update_window(engine, unit, late->gradients, &engine->late.update, &owned, &window);
    zr_comm_clock_update(engine->late.clock, window.count);
    /* Uses the store directly, because the tickets of a unit's copies belong to the step's thread. */
    zr_result given = zr_state_store_give(&engine->state_tier->store, unit, true);
    return result == ZR_OK ? given : result;
}

/* Time that the update's thread has waited for the store's file; it is the only other thread that waits. */
static uint64_t behind_ns(const struct zr_engine *engine)
{
    struct zr_state_file_report file;
    zr_state_store_get_report(&engine->state_tier->store, &file);
    return file.waited_behind_ns;
}

static zr_result update_all(void *state, struct zr_kernel_context *none)
{
    struct zr_engine *engine = state;
    (void)none;
    uint64_t start_ns = zr_os_now_ns(), before_ns = behind_ns(engine);
    zr_result result = zr_state_store_begin(&engine->state_tier->store);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = update_unit(engine, u);
    zr_result ended = zr_state_store_end(&engine->state_tier->store);
    /* The order matters, because a report subtracts the second number from the first. */
    atomic_fetch_add(&engine->late.busy_ns, zr_os_now_ns() - start_ns);
    atomic_fetch_add(&engine->late.behind_ns, behind_ns(engine) - before_ns);
    return result == ZR_OK ? ended : result;
}

/* ---- In the thread of the step ------------------------------------------------------------------------- */

static void drop_late(struct zr_engine *engine, size_t unit)
{
    zr_drop(engine->state_tier->arena, &engine->units[unit].late_sum_shard);
    zr_drop(engine->state_tier->arena, &engine->units[unit].late_gradients);
}

zr_result zr_engine_late_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_compute compute = zr_engine_compute(engine, o->offload.host);
    struct zr_late *late = &engine->late;
    const struct zr_state_tier *tier = engine->state_tier;
    if (!o->offload.delayed)
        return ZR_OK;
    zr_result result = zr_take(o->offload.host, ZR_TAG_GRAD, tier->gradients ? tier->gradients_elements : 0,
                               engine->gradient_bytes, (void **)&late->other_gradients);
    if (result == ZR_OK && tier->sums)
        result = zr_take(o->offload.host, ZR_TAG_GRAD, tier->sums_elements, sizeof(float),
                         (void **)&late->other_sums);
    if (result == ZR_OK && late->other_gradients)
        result = compute.kernels->clear(
            compute.context,
            &(struct zr_clear){tier->gradients_elements * engine->gradient_bytes, late->other_gradients});
    if (result == ZR_OK)
        result = zr_take(o->offload.host, ZR_TAG_PARAM, engine->layout.shards_elements,
                         engine->parameter_bytes, (void **)&late->parameters);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *late->units,
                         (void **)&late->units);
    return result != ZR_OK ? result
                           : zr_copies_create(&late->worker,
                                              &(struct zr_comm_options){.arena = o->arena,
                                                                        .host_arena = o->host_arena,
                                                                        .kernels = compute.kernels,
                                                                        .bucket_bytes = ZR_COMM_LINE_BYTES},
                                              compute.context);
}

void zr_engine_late_close(struct zr_engine *engine)
{
    struct zr_late *late = &engine->late;
    if (late->worker)
        zr_comm_destroy(late->worker); /* waits for its operations */
    late->worker = NULL;
    for (size_t u = 0; engine->units && u < engine->layout.units_count; u++)
        drop_late(engine, u);
    if (engine->options.offload.host) {
        zr_drop(engine->options.offload.host, &late->parameters);
        zr_drop(engine->options.offload.host, &late->other_sums);
        zr_drop(engine->options.offload.host, &late->other_gradients);
    }
    zr_drop(engine->options.host_arena, &late->units);
}

/* With a simulated clock, the update runs in the caller's thread, and its time counts for the step only when
 * the step waits for the update's end. */
static zr_result run(struct zr_late *late)
{
    struct zr_comm_clock *clock = late->clock;
    double waited = clock ? clock->waited_seconds : 0, disk = clock ? clock->nvme_waited_seconds : 0,
           host = clock ? clock->host_waited_seconds : 0;
    zr_result result = zr_copies_run(late->worker, &late->task, &late->ticket);
    if (clock) {
        clock->update_idle_seconds = zr_comm_clock_now(clock);
        clock->waited_seconds = waited;
        clock->nvme_waited_seconds = disk;
        clock->host_waited_seconds = host;
    }
    return result;
}

zr_result zr_engine_late_start(struct zr_engine *engine, const struct zr_engine_update *update)
{
    struct zr_late *late = &engine->late;
    struct zr_state_tier *tier = engine->state_tier;
    char *gradients = tier->gradients;
    float *sums = tier->sums;
    zr_assert(!late->pending);
    /* The update's thread overwrites the source of earlier copies and cannot wait for streams, so wait here.
     */
    for (size_t u = 0; u < engine->layout.units_count && engine->apart; u++) {
        zr_result copied = zr_engine_await_masters(engine, u);
        if (copied != ZR_OK)
            return copied;
    }
    /* A copy of the context: the update uses only its constant fields. */
    late->context = *zr_engine_compute(engine, engine->options.offload.host).context;
    late->context.parallel = (struct zr_parallel){.threads = 1};
    late->context.flops = NULL;
    late->update = *update;
    late->update.context = &late->context;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        late->units[u] = (struct zr_late_unit){zr_engine_shard_gradients(engine, u),
                                               engine->apart ? 0 : state->parameter_copy};
        drop_late(engine, u);
        state->late_sum_shard = state->sum_shard;
        state->late_gradients = state->gradients;
        state->sum_shard = NULL;
        state->gradients = NULL;
        state->accumulated = 0;
    }
    tier->gradients = late->other_gradients;
    late->other_gradients = gradients;
    tier->sums = late->other_sums;
    late->other_sums = sums;
    late->pending = true;
    late->task = (struct zr_copies_task){.run = update_all, .state = engine};
    zr_result result = run(late);
    if (result == ZR_OK)
        engine->steps_done++;
    return result;
}

zr_result zr_engine_late_await(struct zr_engine *engine)
{
    struct zr_late *late = &engine->late;
    uint64_t start_ns = zr_os_now_ns();
    zr_result result = late->ticket > 0 ? zr_comm_wait(late->worker, late->ticket) : ZR_OK;
    if (late->ticket > 0 && engine->options.offload.file)
        late->waited_ns += zr_os_now_ns() - start_ns;
    if (late->pending && late->clock && engine->options.offload.file)
        zr_comm_clock_wait_disk(late->clock, late->clock->update_idle_seconds);
    else if (late->pending && late->clock)
        zr_comm_clock_wait_until(late->clock, late->clock->update_idle_seconds);
    if (result == ZR_OK) /* a failed update keeps its ticket, so later calls fail too */
        late->ticket = 0;
    return result;
}

zr_result zr_engine_late_publish(struct zr_engine *engine)
{
    size_t count = engine->layout.units_count;
    zr_result result = zr_engine_late_await(engine);
    if (result != ZR_OK || !engine->late.pending)
        return result;
    engine->late.pending = false;
    result = engine->options.stage == 3 ? zr_comm_synchronize(engine->options.comm) : ZR_OK;
    for (size_t u = 0; u <= count && result == ZR_OK; u++) {
        if (u < count)
            result = engine->units[u].parameters->put(engine, u, updated_parameters(engine, u).at);
        if (result == ZR_OK && u > 0 && engine->world > 1 && engine->units[u - 1].resident)
            result = zr_engine_all_gather_parameters(engine, u - 1);
    }
    return result;
}

zr_result zr_engine_catch_up(struct zr_engine *engine)
{
    if (!engine->late.pending)
        return ZR_OK;
    zr_result result = zr_engine_check_unused(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_drop_gathered(engine);
    if (result == ZR_OK)
        result = zr_engine_drain(engine);
    if (result == ZR_OK)
        result = zr_engine_late_publish(engine);
    return result == ZR_OK ? zr_engine_synchronize(engine) : result;
}
