/* reduce.c: gradients on their way to their owners.
 *
 * A unit with one contribution is reduced in place: at stage 1 each rank ends with its own shard of the sums,
 * at stage 0 everyone with all of them. A unit with several (the tied embedding) sums its shard aside, since
 * the place where the gradients are written is needed again; at stage 0 the shards are spread after the last.
 */
#include "zero/engine.h"

zr_result zr_engine_gradients(zr_engine *engine, unsigned unit, float **base, bool *accumulate)
{
    zr_assert(unit < engine->layout.units_count);
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_comm_wait(engine->options.comm, state->reduce_ticket);
    if (result != ZR_OK)
        return result;
    state->reduce_ticket = 0;
    *base = engine->gradients + engine->layout.units[unit].pool_offset;
    *accumulate = engine->world == 1 && state->rounds_done > 0; /* alone, the rounds add up where they are */
    return ZR_OK;
}

static zr_result reduce_once(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    float *gradients = engine->gradients + u->pool_offset;
    float scale = 1.0f / (float)engine->world;
    zr_ticket *ticket = &engine->units[unit].reduce_ticket;

    if (engine->options.stage == 0)
        return zr_comm_all_reduce(
            engine->options.comm,
            &(struct zr_all_reduce){.buffer = gradients, .shard_elements = u->shard_elements, .scale = scale},
            ticket);
    return zr_comm_reduce_scatter(
        engine->options.comm,
        &(struct zr_reduce_scatter){.source = gradients,
                                    .destination = gradients + engine->rank * u->shard_elements,
                                    .shard_elements = u->shard_elements,
                                    .scale = scale},
        ticket);
}

static zr_result reduce_round(struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    struct zr_unit_state *state = &engine->units[unit];
    float *gradients = engine->gradients + u->pool_offset;
    zr_result result;

    if (!state->sum_shard) {
        result = zr_take(engine->options.arena, ZR_TAG_GRAD, u->shard_elements, sizeof(float),
                         (void **)&state->sum_shard);
        if (result != ZR_OK)
            return result;
    }
    result = zr_comm_reduce_scatter(engine->options.comm,
                                    &(struct zr_reduce_scatter){.source = gradients,
                                                                .destination = state->sum_shard,
                                                                .shard_elements = u->shard_elements,
                                                                .scale = 1.0f / (float)engine->world,
                                                                .accumulate = state->rounds_done > 0},
                                    &state->reduce_ticket);
    if (result != ZR_OK || engine->options.stage != 0 || state->rounds_done + 1 < u->unit.contributions)
        return result;
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = state->sum_shard,
                                                      .destination = gradients,
                                                      .shard_bytes = u->shard_elements * sizeof(float)},
                              &state->reduce_ticket);
}

zr_result zr_engine_reduce(zr_engine *engine, unsigned unit)
{
    zr_assert(unit < engine->layout.units_count);
    struct zr_unit_state *state = &engine->units[unit];
    unsigned contributions = engine->layout.units[unit].unit.contributions;
    zr_result result = ZR_OK;

    if (state->rounds_done >= contributions)
        return zr_fail(ZR_ERR_INVALID,
                       "unit %s was handed over %u times in one step; it has %u contributions",
                       engine->layout.units[unit].unit.name, state->rounds_done + 1, contributions);
    if (engine->world > 1)
        result = contributions == 1 ? reduce_once(engine, unit) : reduce_round(engine, unit);
    if (result == ZR_OK)
        state->rounds_done++;
    return result;
}
