/* speculate_file.c: speculative updates of state in a file: see speculate.h. */
#include "zero/engine/speculate.h"

#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/engine/offload.h"

static void *new_parameters(const struct zr_engine *engine, size_t unit)
{
    return (char *)engine->speculation.parameters +
           engine->layout.units[unit].shard_offset * engine->parameter_bytes;
}

static bool parameters_wait(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].parameters == &zr_parameters_filed;
}

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
    for (size_t u = units; u-- > 0;)
        if (zr_state_file_is_twice(&engine->state_tier->store, u))
            speculation->order[speculation->units_count++] = (unsigned)u;
    return o->offload.parameters_file && speculation->units_count > 0
               ? zr_take(o->offload.host, ZR_TAG_PARAM, engine->layout.shards_elements,
                         engine->parameter_bytes, &speculation->parameters)
               : ZR_OK;
}

/* Starts to read ahead now, so the disk works during forward. */
static zr_result begin_reads(struct zr_engine *engine)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->disordered && speculation->seen_count == speculation->units_count)
        memcpy(speculation->order, speculation->seen, speculation->units_count * sizeof *speculation->order);
    for (size_t u = 0; u < engine->layout.units_count; u++)
        speculation->units[u].ended = false;
    speculation->seen_count = 0;
    speculation->disordered = false;
    return zr_state_file_begin_ahead(&engine->state_tier->store, speculation->order,
                                     speculation->units_count);
}

/* Whether the unit's state is read next. If not, the other units of the step wait for the norm. */
static bool is_next(struct zr_engine *engine, size_t unit)
{
    struct zr_speculation *speculation = &engine->speculation;
    if (speculation->units[unit].ended) /* the unit has ended before, and was not updated */
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
    if (!zr_state_file_is_twice(&engine->state_tier->store, unit) || !is_next(engine, unit))
        return false;
    if (!state->parameters->on_host) /* the update writes them from the host */
        engine->moved_bytes += (state->owned_to - state->owned_from) * engine->parameter_bytes;
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

/* If the update is not repeated, restores the parameters from the state's current place. */
static zr_result undo_filed(struct zr_engine *engine, size_t unit, bool repeats)
{
    return repeats || parameters_wait(engine, unit) ? ZR_OK : zr_engine_round_masters(engine, unit);
}

static zr_result publish_filed(struct zr_engine *engine, size_t unit)
{
    return parameters_wait(engine, unit)
               ? engine->units[unit].parameters->put(engine, unit, new_parameters(engine, unit))
               : ZR_OK;
}

static void end_filed(struct zr_engine *engine)
{
    zr_state_file_end_ahead(&engine->state_tier->store);
}

/* ---- In the thread of the update ----------------------------------------------------------------------- */

static zr_result fetch_ahead(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_unit_state *state = &engine->units[unit];
    struct zr_state_view view;
    zr_result result = zr_state_file_take_ahead(&engine->state_tier->store, unit, &view);
    run->owned = (struct zr_owned){
        .from = state->owned_from,
        .to = state->owned_to,
        .parameters = {parameters_wait(engine, unit) ? new_parameters(engine, unit) : state->shard,
                       engine->options.precision},
        .master = view.master};
    memcpy(run->owned.slots, view.slots, sizeof view.slots);
    return result;
}

/* New parameters are written to their place, or to memory if their place is a file. */
static zr_result open_ahead(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                            struct zr_window *out)
{
    (void)unit;
    out->stale = zr_engine_is_low_precision(engine);
    if (out->stale)
        out->values = owned->parameters;
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

static zr_result store_ahead(struct zr_engine_run *run, size_t unit)
{
    (void)unit;
    return run->changed ? zr_state_file_give_ahead(&run->engine->state_tier->store) : ZR_OK;
}

static const struct zr_update_way ahead = {fetch_ahead, open_ahead, close_ahead, store_ahead};
const struct zr_speculation_kind zr_speculation_filed = {.way = &ahead,
                                                         .before_norm = true,
                                                         .open = open_order,
                                                         .arm = begin_reads,
                                                         .begins = begins_filed,
                                                         .await = await_filed,
                                                         .keep = keep_filed,
                                                         .undo = undo_filed,
                                                         .publish = publish_filed,
                                                         .end = end_filed};
