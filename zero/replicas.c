/* replicas.c: whole replicas from their owners' parts, proofs that all ranks agree, and the pieces of the
 * model that this rank owns, for checkpoints. */
#include "zero/engine.h"

#include <inttypes.h>

zr_result zr_engine_spread(struct zr_engine *engine, size_t unit, float *pool, zr_ticket *ticket)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    float *whole = pool + u->pool_offset;
    return zr_comm_all_gather(engine->options.comm,
                              &(struct zr_all_gather){.source = whole + engine->rank * u->shard_elements,
                                                      .destination = whole,
                                                      .shard_bytes = u->shard_elements * sizeof(float)},
                              ticket);
}

const struct zr_layout_parameter *zr_engine_parameter_at(const struct zr_engine *engine, size_t unit,
                                                         size_t element)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &engine->layout.parameters[u->first_parameter + i];
        if (element >= p->offset && element - p->offset < p->elements)
            return p;
    }
    return NULL;
}

zr_result zr_engine_settle(zr_engine *engine)
{
    zr_result first = ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_unit_state *state = &engine->units[u];
        zr_result reduced = zr_comm_wait(engine->options.comm, state->reduce_ticket);
        zr_result gathered = zr_comm_wait(engine->options.comm, state->gather_ticket);
        state->reduce_ticket = state->gather_ticket = 0;
        if (first == ZR_OK)
            first = reduced != ZR_OK ? reduced : gathered;
    }
    return first;
}

zr_result zr_engine_publish(zr_engine *engine, uint64_t steps_done)
{
    engine->steps_done = steps_done;
    if (engine->world == 1)
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        zr_ticket ticket;
        zr_result result = zr_engine_spread(engine, u, engine->parameters, &ticket);
        if (result == ZR_OK && engine->options.stage == 0)
            result = zr_engine_spread(engine, u, engine->momentum, &ticket);
        if (result == ZR_OK && engine->options.stage == 0)
            result = zr_engine_spread(engine, u, engine->variance, &ticket);
        if (result != ZR_OK)
            return result;
        engine->units[u].gather_ticket = ticket; /* operations end in order, so the last stands for all */
    }
    zr_result result = zr_engine_settle(engine);
    return result != ZR_OK ? result : zr_engine_verify_replicas(engine);
}

zr_result zr_engine_verify_replicas(zr_engine *engine)
{
    uint64_t mine, all[ZR_COMM_MAX_WORLD];
    zr_result result;

    if (engine->dry || engine->world == 1)
        return ZR_OK;
    result = zr_engine_settle(engine);
    if (result != ZR_OK)
        return result;
    mine = engine->options.kernels->checksum(
        engine->options.context, engine->layout.pool_elements * sizeof(float), engine->parameters);
    mine ^= engine->layout.elements * UINT64_C(0x9e3779b97f4a7c15) ^ engine->steps_done;
    result = zr_comm_exchange(engine->options.comm, &mine, sizeof mine, all);
    if (result != ZR_OK)
        return result;
    for (unsigned r = 1; r < engine->world; r++)
        if (all[r] != all[0])
            return zr_fail(ZR_ERR_CORRUPT,
                           "rank %u does not hold the same parameters as rank 0 (checksum %016" PRIx64
                           ", not %016" PRIx64 "): the ranks differ in arguments, build or processor",
                           r, all[r], all[0]);
    return ZR_OK;
}

zr_result zr_engine_verify_finite(zr_engine *engine)
{
    zr_result result = zr_engine_settle(engine);
    if (result != ZR_OK || engine->dry)
        return result;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        size_t at = engine->options.kernels->find_nonfinite(engine->options.context, unit->padded_elements,
                                                            engine->parameters + unit->pool_offset);
        if (at == unit->padded_elements)
            continue;
        const struct zr_layout_parameter *p = zr_engine_parameter_at(engine, u, at);
        return zr_fail(ZR_ERR_CORRUPT, "parameter %s is not finite at element %zu after %" PRIu64 " steps",
                       p ? p->parameter.name : "padding", p ? at - p->offset : at, engine->steps_done);
    }
    return ZR_OK;
}

size_t zr_engine_segments_count(const zr_engine *engine)
{
    return engine->segments_count;
}

void zr_engine_segment(const zr_engine *engine, size_t index, struct zr_shard_segment *out)
{
    zr_assert(index < engine->segments_count);
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        size_t from = engine->rank * unit->shard_elements, to = from + unit->shard_elements;
        struct zr_owned owned = zr_engine_owned(engine, u);
        for (size_t i = 0; i < unit->parameters_count; i++) {
            struct zr_overlap part;
            if (!zr_layout_overlap(&engine->layout.parameters[unit->first_parameter + i], from, to, &part) ||
                index-- > 0)
                continue;
            *out = (struct zr_shard_segment){
                .global_index = part.global_index,
                .count = part.count,
                .parameter = engine->parameters + unit->pool_offset + part.offset,
                .momentum = owned.momentum + (part.offset - owned.from),
                .variance = owned.variance + (part.offset - owned.from),
            };
            return;
        }
    }
}
