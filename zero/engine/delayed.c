/* delayed.c: the delayed update. See update.h. */
#include "zero/engine/actions.h"

#include <stdatomic.h>
#include <string.h>

#include "zero/comm/copies.h"
#include "zero/engine/gradients.h"
#include "zero/engine/offload.h"

/* ---- In the thread of the update ----------------------------------------------------------------------- */

/* Buffer of a unit's new parameters until the end of the step. */
static struct zr_numbers updated_parameters(const struct zr_engine *engine, size_t unit)
{
    size_t at = engine->layout.units[unit].shard_offset;
    return zr_numbers_at((struct zr_numbers){engine->delayed.parameters, engine->options.precision}, at);
}

/* The window is the buffer of the whole shard. */
static zr_result open_buffer(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                             struct zr_window *out)
{
    (void)owned;
    out->values = updated_parameters(engine, unit);
    out->stale = true;
    return ZR_OK;
}

static zr_result close_buffer(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                              const struct zr_window *window)
{
    (void)unit, (void)owned;
    zr_comm_clock_update(engine->delayed.clock, window->count);
    return ZR_OK;
}

static zr_result take(struct zr_engine_run *run, size_t unit)
{
    const struct zr_delayed_unit *delayed = &run->engine->delayed.units[unit];
    run->gradients = delayed->gradients;
    run->prepared = delayed->prepared;
    run->prepared.memory = NULL; /* freed by the step's thread */
    run->open = open_buffer;
    run->close = close_buffer;
    zr_result result = zr_engine_take_owned(run->engine, unit, &run->owned);
    return result == ZR_OK ? zr_comm_wait(run->engine->copies, delayed->copied)
                           : result; /* of the last update */
}

/* Uses the store directly, because the tickets of a unit's copies belong to the step's thread. */
static zr_result give(struct zr_engine_run *run, size_t unit)
{
    return zr_state_store_give(&run->engine->state_tier->store, unit, run->changed);
}

static const struct zr_update_way behind = {take, give};

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
    struct zr_engine_run run = {.engine = engine, .way = &behind, .update = engine->delayed.update};
    uint64_t start_ns = zr_os_now_ns(), before_ns = behind_ns(engine);
    zr_result result = engine->delayed.run(&run, &engine->delayed.actions);
    /* The order matters, because a report subtracts the second number from the first. */
    atomic_fetch_add(&engine->delayed.busy_ns, zr_os_now_ns() - start_ns);
    atomic_fetch_add(&engine->delayed.behind_ns, behind_ns(engine) - before_ns);
    return result;
}

/* ---- In the thread of the step ------------------------------------------------------------------------- */

static void drop_prepared(struct zr_prepared *prepared)
{
    zr_drop(prepared->arena, &prepared->memory);
    *prepared = (struct zr_prepared){0};
}

void zr_engine_delayed_forget(struct zr_engine *engine)
{
    engine->delayed.pending = false;
    for (size_t u = 0; engine->delayed.units && u < engine->layout.units_count; u++)
        drop_prepared(&engine->delayed.units[u].prepared);
}

void zr_engine_delayed_keep(struct zr_engine *engine, size_t unit, struct zr_prepared *prepared)
{
    struct zr_prepared *kept = &engine->delayed.units[unit].prepared;
    drop_prepared(kept); /* of a step that failed */
    *kept = *prepared;
    *prepared = (struct zr_prepared){0};
}

static void drop_delayed(struct zr_engine *engine, size_t unit)
{
    zr_drop(engine->state_tier->arena, &engine->units[unit].delayed_sum_shard);
    zr_drop(engine->state_tier->arena, &engine->units[unit].delayed_gradients);
}

static zr_result open_thread(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_compute compute = engine->state_tier->compute;
    struct zr_delayed *delayed = &engine->delayed;
    const struct zr_state_tier *tier = engine->state_tier;
    zr_result result = zr_take(o->offload.host, ZR_TAG_GRAD, tier->gradients ? tier->gradients_elements : 0,
                               engine->gradient_bytes, (void **)&delayed->other_gradients);
    if (result == ZR_OK && tier->sums)
        result = zr_take(o->offload.host, ZR_TAG_GRAD, tier->sums_elements, sizeof(float),
                         (void **)&delayed->other_sums);
    if (result == ZR_OK && delayed->other_gradients)
        result = compute.kernels->clear(
            compute.context,
            &(struct zr_clear){tier->gradients_elements * engine->gradient_bytes, delayed->other_gradients});
    if (result == ZR_OK)
        result = zr_take(o->offload.host, ZR_TAG_PARAM, engine->layout.shards_elements,
                         engine->parameter_bytes, (void **)&delayed->parameters);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *delayed->units,
                         (void **)&delayed->units);
    if (result == ZR_OK)
        memset(delayed->units, 0, engine->layout.units_count * sizeof *delayed->units);
    return result != ZR_OK ? result
                           : zr_copies_create(&delayed->worker,
                                              &(struct zr_comm_options){.arena = o->arena,
                                                                        .host_arena = o->host_arena,
                                                                        .kernels = compute.kernels,
                                                                        .bucket_bytes = ZR_COMM_LINE_BYTES},
                                              compute.context);
}

/* What an update needs of all ranks is prepared in the step's thread, in a pass of its own, because one
 * thread of a rank communicates. */
zr_result zr_engine_delay(struct zr_engine *engine, struct zr_actions *list)
{
    /* The thread reads the gradients, and the next step writes others: nothing is cleared. */
    static const struct zr_action_transform
        of_thread = {.drops = true,
                     .rules = {{ZR_ACTION_OPEN, {ZR_ACTION_OPEN}},
                               {ZR_ACTION_TAKE, {ZR_ACTION_TAKE}},
                               {ZR_ACTION_UPDATE, {ZR_ACTION_UPDATE}},
                               {ZR_ACTION_GIVE, {ZR_ACTION_GIVE}},
                               {ZR_ACTION_CLOSE, {ZR_ACTION_CLOSE}}}},
        of_publishing = {.drops = true,
                         .rules = {{ZR_ACTION_READERS, {ZR_ACTION_READERS}},
                                   {ZR_ACTION_GIVE, {ZR_ACTION_PUT}},
                                   {ZR_ACTION_PUBLISH, {ZR_ACTION_PUBLISH}}}},
        of_step = {.rules = {{ZR_ACTION_NORM, {ZR_ACTION_NORM, ZR_ACTION_LAND}},
                             {ZR_ACTION_PREPARE, {ZR_ACTION_PREPARE, ZR_ACTION_KEEP}},
                             {ZR_ACTION_UPDATE},
                             {ZR_ACTION_CLEAR},
                             {ZR_ACTION_PUBLISH},
                             {ZR_ACTION_COUNT, {ZR_ACTION_HAND_OVER, ZR_ACTION_COUNT}}}},
        of_no_pass = {.rules = {{ZR_ACTION_OPEN}, {ZR_ACTION_TAKE}, {ZR_ACTION_GIVE}, {ZR_ACTION_CLOSE}}};
    struct zr_actions *actions = &engine->delayed.actions, *publishing = &engine->delayed.publishing;
    bool prepares = false;
    for (size_t i = 0; i < list->count; i++)
        prepares |= list->actions[i].kind == ZR_ACTION_PREPARE;
    actions->host_arena = publishing->host_arena = list->host_arena;
    zr_actions_derive(actions, list, &of_thread);
    zr_actions_derive(publishing, list, &of_publishing);
    zr_actions_change(list, &of_step);
    if (!prepares)
        zr_actions_change(list, &of_no_pass);
    zr_result result = actions->result != ZR_OK ? actions->result : publishing->result;
    return result == ZR_OK ? open_thread(engine) : result;
}

void zr_engine_delayed_close(struct zr_engine *engine)
{
    struct zr_delayed *delayed = &engine->delayed;
    if (delayed->worker)
        zr_comm_destroy(delayed->worker); /* waits for its operations */
    delayed->worker = NULL;
    for (size_t u = 0; engine->units && u < engine->layout.units_count; u++)
        drop_delayed(engine, u);
    zr_engine_delayed_forget(engine);
    zr_drop(engine->options.offload.host, &delayed->parameters);
    zr_drop(engine->options.offload.host, &delayed->other_sums);
    zr_drop(engine->options.offload.host, &delayed->other_gradients);
    zr_drop(engine->options.host_arena, &delayed->units);
    zr_actions_drop(&delayed->publishing);
    zr_actions_drop(&delayed->actions);
}

/* With a simulated clock, the update runs in the caller's thread, and its time counts for the step only when
 * the step waits for the update's end. */
static zr_result run(struct zr_delayed *delayed)
{
    struct zr_comm_clock *clock = delayed->clock;
    double waited = clock ? clock->waited_seconds : 0, disk = clock ? clock->nvme_waited_seconds : 0,
           host = clock ? clock->host_waited_seconds : 0;
    zr_result result = zr_copies_run(delayed->worker, &delayed->task, &delayed->ticket);
    if (clock) {
        clock->update_idle_seconds = zr_comm_clock_now(clock);
        clock->waited_seconds = waited;
        clock->nvme_waited_seconds = disk;
        clock->host_waited_seconds = host;
    }
    return result;
}

zr_result zr_engine_delayed_start(struct zr_engine *engine, const struct zr_engine_update *update)
{
    struct zr_delayed *delayed = &engine->delayed;
    struct zr_state_tier *tier = engine->state_tier;
    char *gradients = tier->gradients;
    float *sums = tier->sums;
    zr_assert(!delayed->pending);
    /* The update's thread overwrites the source of earlier copies and cannot wait for streams, so wait here.
     */
    for (size_t u = 0; u < engine->layout.units_count && engine->host_invisible; u++) {
        zr_result copied = zr_engine_await_masters(engine, u);
        if (copied != ZR_OK)
            return copied;
    }
    /* A copy of the context: the update uses only its constant fields. */
    delayed->context = *engine->state_tier->compute.context;
    delayed->context.parallel = (struct zr_parallel){.threads = 1};
    delayed->context.flops = NULL;
    delayed->update = *update;
    delayed->update.context = &delayed->context;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        delayed->units[u].gradients = state->reduced;
        delayed->units[u].copied = engine->host_invisible ? 0 : state->parameter_copy;
        drop_delayed(engine, u);
        state->delayed_sum_shard = state->sum_shard;
        state->delayed_gradients = state->gradients;
        state->sum_shard = NULL;
        state->gradients = NULL;
        state->accumulated = 0;
    }
    tier->gradients = delayed->other_gradients;
    delayed->other_gradients = gradients;
    tier->sums = delayed->other_sums;
    delayed->other_sums = sums;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        zr_engine_drop_gradients(engine, u); /* finds the gradients of the next step */
    delayed->pending = true;
    delayed->task = (struct zr_copies_task){.run = update_all, .state = engine};
    return run(delayed);
}

zr_result zr_engine_delayed_await(struct zr_engine *engine)
{
    struct zr_delayed *delayed = &engine->delayed;
    const struct zr_state_store_table *table = engine->state_tier->store.table;
    uint64_t start_ns = zr_os_now_ns();
    zr_result result = delayed->ticket > 0 ? zr_comm_wait(delayed->worker, delayed->ticket) : ZR_OK;
    if (delayed->ticket > 0 && table->waited)
        table->waited(&engine->state_tier->store, zr_os_now_ns() - start_ns);
    if (delayed->pending && delayed->clock)
        table->wait_by_clock(delayed->clock, delayed->clock->update_idle_seconds);
    if (result == ZR_OK) /* a failed update keeps its ticket, so later calls fail too */
        delayed->ticket = 0;
    return result;
}

zr_result zr_engine_delayed_put(struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].parameters->put(engine, unit, updated_parameters(engine, unit).at);
}

zr_result zr_engine_delayed_publish(struct zr_engine *engine)
{
    struct zr_engine_run run = {.engine = engine};
    zr_result result = zr_engine_delayed_await(engine);
    if (result != ZR_OK || !engine->delayed.pending)
        return result;
    zr_engine_delayed_forget(engine);
    return engine->delayed.run(&run, &engine->delayed.publishing);
}

zr_result zr_engine_catch_up(struct zr_engine *engine)
{
    if (!engine->delayed.pending)
        return ZR_OK;
    zr_result result = zr_engine_check_unused(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_drop_parameters(engine);
    if (result == ZR_OK)
        result = zr_engine_drain(engine);
    if (result == ZR_OK)
        result = zr_engine_delayed_publish(engine);
    return result == ZR_OK ? zr_engine_synchronize(engine) : result;
}
