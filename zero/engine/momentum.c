/* momentum.c: see momentum.h. */
#include "zero/engine/momentum.h"

#include "zero/engine/actions.h"
#include "zero/engine/compression.h"
#include "zero/engine/errors.h"
#include "zero/engine/onebit.h"
#include "zero/engine/parameter_tier.h"

enum { MOMENTUM, VARIANCE }; /* slots of AdamW */

/* Zeroes numbers without variance. */
static void mask(float *numbers, const float *variance, size_t n)
{
    for (size_t i = 0; i < n; i++)
        numbers[i] = variance[i] > 0 ? numbers[i] : 0;
}

/* The owner packs its average after the exchange before, because a communicator runs one operation at a
 * time, in order. */
static zr_result exchange(struct zr_engine *engine, size_t unit)
{
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
    state->gathers = engine->options.comm;
    zr_result result = zr_compressed_sum(&engine->compression.all, &own->sum, &state->reduce_ticket);
    return result == ZR_OK
               ? zr_compressed_gather(&engine->compression.all, &own->gather, &state->parameter_ticket)
               : result;
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
    return result == ZR_OK ? exchange(engine, unit) : result;
}

zr_result zr_engine_momentum_apply(struct zr_engine_run *run, size_t unit)
{
    struct zr_engine *engine = run->engine;
    const struct zr_unit_state *state = &engine->units[unit];
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    float *const *slots = (float *const *)state->owned.slots;
    if (!zr_engine_sends_momentum(engine))
        return ZR_OK;
    zr_result summed = zr_engine_await_sum(engine, unit), result = zr_engine_await_shards(engine, unit);
    if (summed != ZR_OK || result != ZR_OK)
        return summed != ZR_OK ? summed : result;
    if (!engine->simulated) {
        mask(slots[MOMENTUM], slots[VARIANCE], u->padded_elements);
        mask(zr_engine_errors(engine, unit), slots[VARIANCE], u->padded_elements);
        mask(zr_engine_owner_errors(engine, unit), slots[VARIANCE] + engine->rank * u->shard_elements,
             u->shard_elements);
    }
    run->owned = state->owned;
    run->gradients = (struct zr_numbers){slots[MOMENTUM], ZR_PRECISION_FP32}; /* finite, and has no weight */
    run->open = state->parameters->open;
    run->close = state->parameters->close;
    run->update.keeps_momentum = true;
    if (u->optimizer->sum)
        result = zr_engine_sum_tensors(run, unit);
    if (result == ZR_OK)
        result = zr_engine_update_unit(run, unit);
    zr_engine_drop_prepared(run);
    run->update.keeps_momentum = false;
    return result;
}
