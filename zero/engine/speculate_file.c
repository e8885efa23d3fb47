/* speculate_file.c: speculative updates of state in a file: see speculate.h. */
#include "zero/engine/speculate.h"

#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/engine/offload.h"

/* The store has chosen the units with two places. */
static zr_result open_order(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_speculation *speculation = &engine->speculation;
    size_t units = engine->layout.units_count;
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, 2 * units, sizeof *speculation->order,
                               (void **)&speculation->order);
    if (result != ZR_OK)
        return result;
    speculation->seen = speculation->order + units;
    for (size_t u = 0; u < units; u++)
        speculation->units[u].ended = true; /* the units of `order` begin with each step */
    speculation->units_count = zr_state_file_order(&engine->state_tier->store, speculation->order);
    if (o->offload.parameters_file && speculation->units_count > 0)
        result = zr_take(o->offload.host, ZR_TAG_PARAM, engine->layout.shards_elements,
                         engine->parameter_bytes, &speculation->parameters);
    for (size_t u = 0; u < units && result == ZR_OK; u++) {
        size_t at = engine->layout.units[u].shard_offset * engine->parameter_bytes;
        void *shard = engine->units[u].owned.parameters.at;
        speculation->units[u].parameters = shard ? shard : (char *)speculation->parameters + at;
    }
    return result;
}

/* Starts to read ahead now, so the disk works during forward. */
static zr_result begin_reads(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->disordered && speculation->seen_count == speculation->units_count)
        memcpy(speculation->order, speculation->seen, speculation->units_count * sizeof *speculation->order);
    for (unsigned i = 0; i < speculation->units_count; i++)
        speculation->units[speculation->order[i]].ended = false;
    speculation->seen_count = 0;
    speculation->disordered = false;
    return zr_state_file_begin_ahead(&engine->state_tier->store, speculation->order,
                                     speculation->units_count);
}

/* Whether the unit's state is read next. If not, the other units of the step wait for the norm. */
static bool is_next(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->units[unit].ended) /* has no second place, or has ended before and was not updated */
        return false;
    unsigned place = speculation->seen_count++;
    speculation->units[unit].ended = true;
    speculation->seen[place] = (unsigned)unit;
    speculation->disordered |= speculation->order[place] != unit;
    return !speculation->disordered && zr_state_file_runs_ahead(&engine->state_tier->store);
}

static bool begins_filed(struct zr_engine *engine, size_t unit)
{
    const struct zr_unit_state *state = &engine->units[unit];
    if (!is_next(engine, unit))
        return false;
    /* The update writes parameters of the device from the host. */
    engine->moved_bytes += !state->parameters->on_host * zr_unit_owned(state) * engine->parameter_bytes;
    return true;
}

static zr_result await_filed(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    uint64_t start_ns = zr_os_now_ns();
    zr_state_file_wait_ahead(&engine->state_tier->store, unit);
    zr_result result = zr_comm_wait(speculation->worker, speculation->units[unit].ticket);
    speculation->waited_ns += zr_os_now_ns() - start_ns;
    return result;
}

static void keep_filed(struct zr_engine *engine, size_t unit)
{
    zr_state_file_keep_ahead(&engine->state_tier->store, unit);
}

/* Restores the parameters from the state's current place. */
static zr_result cancel_filed(struct zr_engine *engine, size_t unit)
{
    return zr_gradient_do(engine->units[unit].parameters->restore, engine, unit);
}

static zr_result publish_filed(struct zr_engine *engine, size_t unit)
{
    const struct zr_parameter_tier *tier = engine->units[unit].parameters;
    return tier->confirm ? tier->confirm(engine, unit, engine->speculation.units[unit].parameters) : ZR_OK;
}

static void end_filed(struct zr_engine *engine)
{
    zr_state_file_end_ahead(&engine->state_tier->store);
}

/* ---- In the thread of the update ----------------------------------------------------------------------- */

/* New parameters are written to their place, or to memory if their place is a file. */
static zr_result open_ahead(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                            struct zr_window *out)
{
    (void)unit;
    if (zr_engine_is_low_precision(engine)) {
        out->values = owned->parameters;
        out->stale = true;
    }
    return ZR_OK;
}

static zr_result close_ahead(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                             const struct zr_window *window)
{
    (void)unit;
    if (!window->values.at && !engine->simulated)
        memcpy(owned->parameters.at, owned->master, window->count * sizeof(float));
    return ZR_OK;
}

static zr_result take_ahead(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_state_view view;
    zr_result result = zr_state_file_take_ahead(&engine->state_tier->store, unit, &view);
    run->open = open_ahead;
    run->close = close_ahead;
    run->owned = engine->units[unit].owned;
    run->owned.parameters.at = engine->speculation.units[unit].parameters;
    run->owned.master = view.master;
    memcpy(run->owned.slots, view.slots, sizeof view.slots);
    return result;
}

static zr_result give_ahead(struct zr_engine_run *run, size_t unit)
{
    (void)unit;
    return run->changed ? zr_state_file_give_ahead(&run->engine->state_tier->store) : ZR_OK;
}

/* The norm uses the gradients' slots, so it waits for the updates. */
static const struct zr_action_transform of_step = {
    .rules = {{ZR_ACTION_NORM, {ZR_ACTION_AWAIT, ZR_ACTION_NORM, ZR_ACTION_UNDO}},
              {ZR_ACTION_UPDATE, {ZR_ACTION_CONFIRM}}}};
static const struct zr_update_way ahead = {take_ahead, give_ahead};
const struct zr_speculation_kind zr_speculation_filed = {.way = &ahead,
                                                         .step = &of_step,
                                                         .open = open_order,
                                                         .arm = begin_reads,
                                                         .begins = begins_filed,
                                                         .await = await_filed,
                                                         .keep = keep_filed,
                                                         .cancel = cancel_filed,
                                                         .publish = publish_filed,
                                                         .end = end_filed};
