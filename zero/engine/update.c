/* update.c: see update.h. */
#include "zero/engine/update.h"

#include <string.h>

#include "zero/engine/actions.h"
#include "zero/engine/offload.h"
#include "zero/engine/parameter_tier.h"

struct zr_numbers zr_numbers_at(struct zr_numbers numbers, size_t index)
{
    return (struct zr_numbers){(char *)numbers.at + index * zr_precision_bytes(numbers.precision),
                               numbers.precision};
}

/* ---- The rank's part of a unit ------------------------------------------------------------------------- */

/* A frozen unit has parameters only. */
static zr_result take_frozen(struct zr_engine *engine, size_t unit, struct zr_owned *out)
{
    const struct zr_unit_state *state = &engine->units[unit];
    void *shard = state->shard;
    zr_result result = state->parameters->take ? state->parameters->take(engine, unit, &shard) : ZR_OK;
    *out = (struct zr_owned){.from = state->owned_from,
                             .to = state->owned_to,
                             .parameters = {shard, engine->options.precision},
                             .master = zr_engine_is_low_precision(engine) ? NULL : shard};
    return result;
}

static zr_result give_frozen(struct zr_engine *engine, size_t unit, bool changed)
{
    const struct zr_parameter_tier *tier = engine->units[unit].parameters;
    return tier->give ? tier->give(engine, unit, changed) : ZR_OK;
}

zr_result zr_engine_take_owned(struct zr_engine *engine, size_t unit, struct zr_owned *out)
{
    const struct zr_unit_state *state = &engine->units[unit];
    struct zr_state_tier *tier = state->tier;
    struct zr_state_view view = {0};
    if (zr_engine_is_frozen(engine, unit))
        return take_frozen(engine, unit, out);
    /* Device-resident units are taken here too, which keeps the pass in order. */
    zr_result result = zr_state_store_take(&tier->store, unit, &view);
    *out = (struct zr_owned){
        .from = state->owned_from,
        .to = state->owned_to,
        .parameters = {state->shard, engine->options.precision},
        .master = tier->masters ? view.master : state->shard,
    };
    memcpy(out->slots, view.slots, sizeof out->slots);
    return result;
}

void *zr_owned_slot(const struct zr_engine *engine, const struct zr_layout_parameter *tensor,
                    const struct zr_owned *owned, unsigned slot, size_t skip)
{
    size_t unit = tensor->parameter.unit;
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    if (slot >= optimizer->slots_count || !owned->slots[slot] || !tensor->has_slot[slot])
        return NULL;
    bool whole = optimizer->slots[slot].whole;
    size_t covered = skip;
    if (whole)
        covered = zr_layout_covered(&engine->layout, unit, slot, 0, tensor->offset);
    else if (optimizer->slots[slot].covers)
        covered = zr_layout_covered(&engine->layout, unit, slot, owned->from, owned->from + skip);
    return (char *)owned->slots[slot] + zr_slot_state_bytes(&optimizer->slots[slot], covered);
}

zr_result zr_engine_give_owned(struct zr_engine *engine, size_t unit, bool changed)
{
    /* In fp32 parameters are copied from the masters, whose memory the next unit may reuse. */
    struct zr_state_store *store = &engine->units[unit].tier->store;
    if (zr_engine_is_frozen(engine, unit))
        return give_frozen(engine, unit, changed);
    bool read_still = !store->table->random && !zr_engine_is_low_precision(engine);
    zr_result copied = read_still ? zr_engine_await_masters(engine, unit) : ZR_OK;
    zr_result result = zr_state_store_give(store, unit, changed);
    return copied == ZR_OK ? result : copied;
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
        if (result == ZR_OK)
            result = engine->units[unit].parameters->close(engine, unit, &owned, &window);
    }
    zr_result given = zr_engine_give_owned(engine, unit, false);
    return result == ZR_OK ? given : result;
}

/* ---- The update ---------------------------------------------------------------------------------------- */

struct zr_engine_update zr_engine_update_of(const struct zr_engine *engine, float rate, float gradient_scale)
{
    float corrections[2];
    engine->optimizer->corrections(&engine->options.optimizer, (double)(engine->steps_done + 1), corrections);
    return (struct zr_engine_update){.rate = rate,
                                     .gradient_scale = gradient_scale,
                                     .correction1 = corrections[0],
                                     .correction2 = corrections[1]};
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

zr_result zr_engine_update_window(struct zr_engine *engine, size_t unit, struct zr_numbers gradients,
                                  const struct zr_prepared *prepared, const struct zr_engine_update *update,
                                  const struct zr_owned *owned, const struct zr_window *window)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_compute compute = zr_engine_updater(engine, unit, update);
    const struct zr_optimizer *optimizer = u->optimizer;
    const struct zr_optimizer_options *o = &engine->options.optimizer;
    size_t from = owned->from + window->from, done = 0;
    zr_result result = ZR_OK;

    for (size_t i = 0; i < u->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        struct zr_overlap overlap;
        if (!zr_layout_overlap(p, from, from + window->count, &overlap))
            continue;
        size_t skip = overlap.offset - owned->from, at = overlap.offset - from;
        const struct zr_parameter_group *group = &o->groups[p->parameter.group];
        struct zr_optimizer_call call = {.options = o,
                                         .kernels = compute.kernels,
                                         .context = compute.context,
                                         .rate = (update->rates ? 1 : update->rate) * group->rate_factor,
                                         .weight_decay = o->weight_decay * group->decay_factor,
                                         .gradient_scale = update->gradient_scale,
                                         .correction1 = update->correction1,
                                         .correction2 = update->correction2,
                                         .weight = update->weight,
                                         .rates = update->rates,
                                         .n = overlap.count,
                                         .gradient = zr_numbers_at(gradients, skip),
                                         .master = owned->master + skip,
                                         .tensor = &p->parameter,
                                         .first = overlap.offset - p->offset};
        if (p->needs_whole && prepared->directions)
            call.direction = prepared->directions + skip;
        if (p->needs_whole && prepared->squares)
            call.sums = (struct zr_tensor_sums){prepared->row_means + i, prepared->squares + 2 * i,
                                                engine->world, 2 * u->parameters_count};
        for (unsigned s = 0; s < optimizer->slots_count; s++)
            call.slots[s] = zr_owned_slot(engine, p, owned, s, skip);
        if (window->values.at)
            call.parameter = zr_numbers_at(window->values, at);
        result = clear_between(engine, compute, window, done, at);
        if (result == ZR_OK)
            result = optimizer->update(&call);
        done = at + overlap.count;
    }
    return result == ZR_OK ? clear_between(engine, compute, window, done, window->count) : result;
}

zr_result zr_engine_update_unit(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_window window = {.count = 0};
    size_t count = run->owned.to - run->owned.from;
    zr_result result = ZR_OK;
    run->changed = true;
    for (size_t at = 0; result == ZR_OK && at < count; at += window.count) {
        window = (struct zr_window){.from = at, .count = count - at};
        if (run->open)
            result = run->open(engine, unit, &run->owned, &window);
        if (result == ZR_OK)
            result = zr_engine_update_window(engine, unit, run->gradients, &run->prepared, &run->update,
                                             &run->owned, &window);
        if (result == ZR_OK && run->close)
            result = run->close(engine, unit, &run->owned, &window);
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
