/* momentum.c: see momentum.h. */
#include "zero/engine/momentum.h"

#include "zero/engine/actions.h"
#include "zero/engine/compression.h"
#include "zero/engine/errors.h"
#include "zero/engine/onebit.h"
#include "zero/engine/parameter_tier.h"
#include "zero/engine/zerone.h"

enum { MOMENTUM, VARIANCE }; /* slots of AdamW */

/* Zeroes numbers without variance. */
static void mask(float *numbers, const float *variance, size_t n)
{
    for (size_t i = 0; i < n; i++)
        numbers[i] = variance[i] > 0 ? numbers[i] : 0;
}

/* The owner packs its average after the exchange before, because a communicator runs one operation at a
 * time, in order. */
static zr_result exchange(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    struct zr_unit_compression *own = &engine->compression.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    size_t shard = engine->layout.units[unit].shard_elements;
    const struct zr_numbers all = {state->owned.slots[MOMENTUM], ZR_PRECISION_FP32},
                            mine = zr_numbers_at(all, engine->rank * shard);
    own->sum = (struct zr_compressed){.packing = ZR_PACKING_ONEBIT,
                                      .shard_elements = shard,
                                      .from = all,
                                      .to = mine,
                                      .error = zr_engine_errors(engine, unit),
                                      .scale = 1.0f / (float)engine->world,
                                      .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)};
    own->gather = (struct zr_compressed){.packing = ZR_PACKING_ONEBIT,
                                         .shard_elements = shard,
                                         .from = mine,
                                         .to = all,
                                         .error = zr_engine_owner_errors(engine, unit),
                                         .scale = 1,
                                         .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_PARAMETERS)};
    zr_engine_local_mean(run, unit);
    state->gathers = engine->options.comm;
    zr_result result = zr_compressed_sum(&engine->compression.all, &own->sum, &state->reduce_ticket);
    return result == ZR_OK
               ? zr_compressed_gather(&engine->compression.all, &own->gather, &state->parameter_ticket)
               : result;
}

/* Updates a unit with the momentum in its slot. */
static zr_result update_by_momentum(struct zr_engine_run *run, size_t unit)
{
    const struct zr_unit_state *state = &run->engine->units[unit];
    run->owned = state->owned;
    run->gradients =
        (struct zr_numbers){state->owned.slots[MOMENTUM], ZR_PRECISION_FP32}; /* finite, and has no weight */
    run->open = state->parameters->open;
    run->close = state->parameters->close;
    run->update.keeps_momentum = true;
    zr_result result =
        run->engine->layout.units[unit].optimizer->sum ? zr_engine_sum_tensors(run, unit) : ZR_OK;
    if (result == ZR_OK)
        result = zr_engine_update_unit(run, unit);
    zr_engine_drop_prepared(run);
    run->update.keeps_momentum = false;
    return result;
}

zr_result zr_engine_momentum_send(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_engine_update update = run->update;
    run->update.rate = 0; /* masters stay as they are */
    run->open = NULL;
    run->close = NULL;
    /* Of an optimizer that prepares sums, ZR_ACTION_PREPARE has moved it. */
    zr_result result = engine->layout.units[unit].optimizer->sum ? ZR_OK : zr_engine_update_unit(run, unit);
    run->update = update;
    if (result == ZR_OK && !engine->simulated)
        mask(run->owned.slots[MOMENTUM], run->owned.slots[VARIANCE], zr_unit_owned(&engine->units[unit]));
    if (result != ZR_OK || !zr_engine_is_local(engine))
        return result == ZR_OK ? exchange(run, unit) : result;
    zr_engine_local_keep(run, unit);
    return update_by_momentum(run, unit);
}

/* Waits for the exchange and updates the unit. */
static zr_result receive(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_engine_update update = run->update;
    const struct zr_unit_state *state = &engine->units[unit];
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    float *const *slots = (float *const *)state->owned.slots;
    zr_result summed = zr_engine_await_sum(engine, unit), result = zr_engine_await_shards(engine, unit);
    if (summed != ZR_OK || result != ZR_OK)
        return summed != ZR_OK ? summed : result;
    if (!engine->simulated) {
        mask(slots[MOMENTUM], slots[VARIANCE], u->padded_elements);
        mask(zr_engine_errors(engine, unit), slots[VARIANCE], u->padded_elements);
        mask(zr_engine_owner_errors(engine, unit), slots[VARIANCE] + engine->rank * u->shard_elements,
             u->shard_elements);
        zr_engine_local_return(engine, unit);
    }
    zr_engine_local_span(run, &run->update);
    result = update_by_momentum(run, unit);
    run->update = update;
    return result;
}

zr_result zr_engine_momentum_apply(struct zr_engine_run *run, size_t unit)
{
    const struct zr_engine *engine = run->engine;
    return zr_engine_sends_momentum(engine) && !zr_engine_is_local(engine) ? receive(run, unit) : ZR_OK;
}

zr_result zr_engine_end_local_steps(zr_engine *engine)
{
    zr_result result = zr_engine_check_call(engine, __func__, engine);
    if (result != ZR_OK || engine->local.count == 0)
        return result;
    struct zr_engine_run run = {.engine = engine, .update = zr_engine_update_of(engine, 0, 1)};
    result = zr_engine_check_between_steps(engine, __func__);
    if (result == ZR_OK)
        result = zr_engine_check_unused(engine, __func__);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++) {
        if (engine->units[u].steps == 0)
            continue;
        result = exchange(&run, u);
        if (result == ZR_OK)
            result = receive(&run, u);
    }
    engine->local = (struct zr_local_steps){0};
    return result;
}

/* The update of a unit with the mean momentum of `former` ranks' local steps. */
static zr_result resume_unit(struct zr_engine_run *run, size_t unit, uint64_t former)
{
    struct zr_engine *engine = run->engine;
    const struct zr_owned *owned = &engine->units[unit].owned;
    size_t n = owned->to - owned->from;
    float *buffer = zr_engine_buffer(engine, unit);
    for (size_t i = 0; i < n; i++)
        buffer[i] /= (float)former;
    zr_engine_local_mean(run, unit);
    zr_engine_local_span(run, &run->update);
    return update_by_momentum(run, unit);
}

zr_result zr_engine_local_resume(struct zr_engine *engine, uint64_t former)
{
    const struct zr_engine_update update = zr_engine_update_of(engine, 0, 1);
    struct zr_engine_run run = {.engine = engine};
    const bool continues = former == engine->world;
    zr_result result = ZR_OK;
    if (continues)
        zr_engine_local_swap(engine);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++) {
        run.update = update;
        if (engine->units[u].steps > 0)
            result = continues ? zr_engine_round_masters(engine, u) : resume_unit(&run, u, former);
    }
    if (!continues)
        engine->local = (struct zr_local_steps){0};
    return result;
}
