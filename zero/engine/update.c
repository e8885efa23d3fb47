/* update.c: see update.h. */
#include "zero/engine/meter.h"
#include "zero/engine/momentum.h"
#include "zero/engine/onebit.h"
#include "zero/engine/update.h"
#include "zero/engine/zerone.h"

#include <string.h>

#include "zero/engine/actions.h"
#include "zero/engine/kept.h"
#include "zero/engine/offload.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/served.h"

struct zr_numbers zr_numbers_at(struct zr_numbers numbers, size_t index)
{
    return (struct zr_numbers){(char *)numbers.at + index * zr_precision_bytes(numbers.precision),
                               numbers.precision};
}

/* ---- The rank's part of a unit ------------------------------------------------------------------------- */

/* A frozen unit has parameters only. */
static zr_result take_frozen(struct zr_engine *engine, size_t unit, struct zr_owned *out)
{
    zr_result result = engine->units[unit].parameters->take(engine, unit, &out->parameters.at);
    out->master = zr_engine_is_low_precision(engine) ? NULL : out->parameters.at;
    return result;
}

static zr_result take_state(struct zr_engine *engine, size_t unit, struct zr_owned *out)
{
    struct zr_state_view view = {0};
    zr_result result = zr_served_await(engine);
    if (result == ZR_OK)
        result = zr_state_store_take(&engine->units[unit].tier->store, unit, &view);
    out->master = engine->units[unit].tier->masters ? view.master : out->parameters.at;
    memcpy(out->slots, view.slots, sizeof out->slots);
    return result;
}

/* In fp32 parameters are copied from the masters, whose memory the next unit may reuse. */
static zr_result give_state(struct zr_engine *engine, size_t unit, bool changed)
{
    zr_result copied = zr_engine_is_low_precision(engine) ? ZR_OK : zr_engine_await_masters(engine, unit);
    zr_result result = zr_state_store_give(&engine->units[unit].tier->store, unit, changed);
    return copied == ZR_OK ? result : copied;
}

zr_result zr_engine_find_owned(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    if (zr_engine_is_frozen(engine, unit)) {
        state->take = state->parameters->take ? take_frozen : NULL;
        state->give = state->parameters->give;
        state->owned.master = zr_engine_is_low_precision(engine) ? NULL : state->owned.parameters.at;
        return ZR_OK;
    }
    if (state->tier->store.table->random)
        return take_state(engine, unit, &state->owned);
    state->take = take_state;
    state->give = give_state;
    return ZR_OK;
}

zr_result zr_engine_take_owned(struct zr_engine *engine, size_t unit, struct zr_owned *out)
{
    const struct zr_unit_state *state = &engine->units[unit];
    *out = state->owned;
    return state->take ? state->take(engine, unit, out) : ZR_OK;
}

zr_result zr_engine_give_owned(struct zr_engine *engine, size_t unit, bool changed)
{
    const struct zr_unit_state *state = &engine->units[unit];
    return state->give ? state->give(engine, unit, changed) : ZR_OK;
}

void *zr_owned_slot(const struct zr_engine *engine, const struct zr_layout_parameter *tensor,
                    const struct zr_owned *owned, unsigned slot, size_t skip)
{
    const struct zr_optimizer *optimizer = engine->layout.units[tensor->parameter.unit].optimizer;
    if (slot >= optimizer->slots_count || !owned->slots[slot] || !tensor->has_slot[slot])
        return NULL;
    char *first = (char *)owned->slots[slot] + tensor->slots_at[slot];
    size_t before = owned->from + skip - tensor->owned_from;
    return before == 0 || optimizer->slots[slot].whole
               ? first
               : first + zr_slot_state_bytes(&optimizer->slots[slot], before);
}

/* Opens the window of parameters that begins at `from`. */
static zr_result open_window(struct zr_engine *engine, size_t unit, const struct zr_owned *owned, size_t from,
                             struct zr_window *out)
{
    *out = (struct zr_window){.from = from, .count = owned->to - owned->from - from};
    return engine->units[unit].parameters->open(engine, unit, owned, out);
}

zr_result zr_engine_round_masters(struct zr_engine *engine, size_t unit)
{
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    struct zr_owned owned;
    struct zr_window window = {.count = 0};
    if (!engine->units[unit].tier->masters || zr_engine_is_frozen(engine, unit))
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    for (size_t at = 0; result == ZR_OK && at < owned.to - owned.from; at += window.count) {
        result = open_window(engine, unit, &owned, at, &window);
        if (result == ZR_OK && window.values.at)
            result = compute.kernels->convert(
                compute.context, &(struct zr_convert){.n = window.count,
                                                      .from = {owned.master + at, ZR_PRECISION_FP32},
                                                      .to = window.values});
        if (result == ZR_OK && engine->units[unit].parameters->close)
            result = engine->units[unit].parameters->close(engine, unit, &owned, &window);
    }
    zr_result given = zr_engine_give_owned(engine, unit, false);
    return result == ZR_OK ? given : result;
}

/* ---- The update ---------------------------------------------------------------------------------------- */

struct zr_engine_update zr_engine_update_of(const struct zr_engine *engine, float rate, float gradient_scale)
{
    const struct zr_optimizer_options *o = &engine->options.optimizer;
    const bool keeps_variance = zr_engine_sends_signs(engine), zerone = zr_engine_is_zerone(engine),
               stopped = zerone || (zr_engine_is_onebit(engine) && !zr_engine_warms_up(engine));
    float corrections[2], last[2];
    engine->optimizer->corrections(o, (double)(engine->steps_done + 1), corrections);
    uint64_t settled = zerone ? zr_engine_variance_updates(engine) : zr_engine_warmup_steps(engine);
    if (zr_engine_is_onebit(engine) && zr_meter_ended(engine, ZR_COMPRESSED_GRADIENTS)) /* it goes on */
        settled += engine->steps_done + 1 - engine->meter.last.full_since[ZR_COMPRESSED_GRADIENTS];
    engine->optimizer->corrections(o, (double)settled, last);
    return (struct zr_engine_update){.rate = rate,
                                     .gradient_scale = gradient_scale,
                                     .correction1 = corrections[0],
                                     .correction2 = stopped ? last[1] : corrections[1],
                                     .fresh_correction = corrections[1],
                                     .keeps_variance = keeps_variance};
}

struct zr_compute zr_engine_updater(const struct zr_engine *engine, size_t unit,
                                    const struct zr_engine_update *update)
{
    struct zr_compute compute = engine->units[unit].tier->compute;
    if (update->context)
        compute.context = update->context;
    return compute;
}

/* Zeroes padding in [from, to) of a window that is copied whole. */
static zr_result clear_between(struct zr_engine *engine, struct zr_compute compute,
                               const struct zr_window *window, size_t from, size_t to)
{
    if (to <= from || !window->stale)
        return ZR_OK;
    return compute.kernels->clear(
        compute.context,
        &(struct zr_clear){(to - from) * engine->parameter_bytes, zr_numbers_at(window->values, from).at});
}

struct zr_optimizer_call zr_engine_update_call(const struct zr_engine_run *run, size_t unit, size_t index,
                                               const struct zr_overlap *part)
{
    const struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + index];
    const struct zr_engine_update *update = &run->update;
    const struct zr_compute compute = zr_engine_updater(engine, unit, update);
    const struct zr_optimizer_options *o = &engine->options.optimizer;
    const struct zr_parameter_group *group = &o->groups[p->parameter.group];
    const size_t skip = part->offset - run->owned.from;
    struct zr_optimizer_call call = {.options = o,
                                     .kernels = compute.kernels,
                                     .context = compute.context,
                                     .rate = (update->rates ? 1 : update->rate) * group->rate_factor,
                                     .weight_decay = o->weight_decay * group->decay_factor,
                                     .gradient_scale = update->gradient_scale,
                                     .correction1 = update->correction1,
                                     .correction2 = update->correction2,
                                     .keeps_variance = update->keeps_variance,
                                     .keeps_momentum = update->keeps_momentum,
                                     .fresh_correction = update->fresh_correction,
                                     .weight = update->weight,
                                     .rates = update->rates,
                                     .n = part->count,
                                     .gradient = zr_numbers_at(run->gradients, skip),
                                     .master = run->owned.master + skip,
                                     .tensor = &p->parameter,
                                     .first = part->offset - p->offset};
    if (p->needs_whole && run->prepared.directions)
        call.direction = run->prepared.directions + skip;
    if (p->needs_whole && run->prepared.squares)
        call.sums =
            (struct zr_tensor_sums){run->prepared.row_means + index, run->prepared.squares + 2 * index,
                                    engine->world, 2 * u->parameters_count};
    if (u->optimizer->trust && run->prepared.squares)
        call.trust = run->prepared.row_means + index;
    if (run->before[unit % 2] && !zr_engine_moves_only(engine, update))
        call.before = run->before[unit % 2] + skip;
    for (unsigned s = 0; s < u->optimizer->slots_count - u->optimizer->kept_count; s++)
        call.slots[s] = zr_owned_slot(engine, p, &run->owned, s, skip);
    return call;
}

/* Updates one window of this rank's part of a unit. */
static zr_result update_window(struct zr_engine_run *run, size_t unit, const struct zr_window *window)
{
    struct zr_engine *engine = run->engine;
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_owned *owned = &run->owned;
    struct zr_compute compute = zr_engine_updater(engine, unit, &run->update);
    const struct zr_optimizer *optimizer = u->optimizer;
    const float decay = engine->options.optimizer.average_decay;
    size_t from = owned->from + window->from, to = from + window->count, done = 0;
    zr_result result = ZR_OK;

    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        size_t first = p->owned_from > from ? p->owned_from : from, end = p->owned_to < to ? p->owned_to : to;
        if (first >= end)
            continue;
        size_t at = first - from;
        struct zr_optimizer_call call =
            zr_engine_update_call(run, unit, i, &(struct zr_overlap){.offset = first, .count = end - first});
        const unsigned used = optimizer->slots_count - optimizer->kept_count;
        float *average = optimizer->kept_count == ZR_KEEPS_AVERAGE
                             ? zr_owned_slot(engine, p, owned, used, first - owned->from)
                             : NULL;
        if (window->values.at)
            call.parameter = zr_numbers_at(window->values, at);
        result = clear_between(engine, compute, window, done, at);
        if (result == ZR_OK)
            result = optimizer->update(&call);
        if (result == ZR_OK && average)
            result = compute.kernels->average(compute.context, &(struct zr_average){.n = call.n,
                                                                                    .decay = decay,
                                                                                    .weight = call.weight,
                                                                                    .average = average,
                                                                                    .master = call.master});
        done = end - from;
    }
    return result == ZR_OK ? clear_between(engine, compute, window, done, window->count) : result;
}

zr_result zr_engine_update_unit(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_window window = {.count = 0};
    size_t count = run->owned.to - run->owned.from;
    zr_result result = ZR_OK;
    size_t max = zr_engine_kept_window(engine);
    run->changed = true;
    for (size_t at = zr_engine_kept_begin(engine, unit); result == ZR_OK && at < count; at += window.count) {
        window = (struct zr_window){.from = at, .count = max > 0 && count - at > max ? max : count - at};
        if (run->open)
            result = run->open(engine, unit, &run->owned, &window);
        if (result == ZR_OK)
            result = zr_engine_kept_log(run, unit, at, window.count);
        if (result == ZR_OK)
            result = update_window(run, unit, &window);
        if (result == ZR_OK && run->close)
            result = run->close(engine, unit, &run->owned, &window);
        if (result == ZR_OK)
            zr_engine_kept_note(engine, unit, at + window.count);
    }
    return result;
}

zr_result zr_engine_update_taking(struct zr_engine_run *run, size_t unit)
{
    zr_result result = run->way->take(run, unit);
    if (result == ZR_OK)
        result = zr_engine_update_unit(run, unit);
    zr_result given = run->way->give(run, unit);
    return result == ZR_OK ? given : result;
}
