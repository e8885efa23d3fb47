/* engine.h: the engine's inside, shared by the files that make it up (engine.c, reduce.c, optimizer.c,
 * replicas.c). */
#ifndef ZR_ENGINE_H
#define ZR_ENGINE_H

#include "zero/layout.h"
#include "zero/take.h"
#include "zero/zr_zero.h"

struct zr_unit_state {
    zr_ticket gather_ticket; /* the parameters of this unit are being spread */
    zr_ticket reduce_ticket; /* its gradients are being reduced */
    unsigned rounds_done;    /* contributions handed over in this step */
    float *sum_shard;        /* sum of several contributions, this rank's part; only within a step */
};

struct zr_engine {
    struct zr_engine_options options;
    struct zr_layout layout;
    struct zr_unit_state *units; /* [layout.units_count] */
    float *parameters;           /* [layout.pool_elements] */
    float *gradients;            /* [layout.pool_elements] */
    float *momentum, *variance;  /* stage 0: [pool_elements], stage 1: [shards_elements] */
    uint64_t steps_done;
    size_t segments_count; /* of this rank, see zr_engine_segment() */
    unsigned rank, world;
    bool dry; /* null kernels: nothing may be read */
};

/* This rank's part of a unit's parameters. */
static inline float *zr_engine_shard(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    return engine->parameters + u->pool_offset + engine->rank * u->shard_elements;
}

/* Where the reduced gradients of this rank's shard lie when all rounds are done. */
static inline float *zr_engine_shard_gradients(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    if (engine->units[unit].sum_shard)
        return engine->units[unit].sum_shard;
    return engine->gradients + u->pool_offset + engine->rank * u->shard_elements;
}

/* Optimizer state is kept for these elements of a unit: all at stage 0, this rank's shard at stage 1. */
struct zr_owned {
    size_t from, to;            /* elements of the unit */
    float *momentum, *variance; /* of element `from` */
};
static inline struct zr_owned zr_engine_owned(const struct zr_engine *engine, size_t unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    if (engine->options.stage == 0)
        return (struct zr_owned){0, u->padded_elements, engine->momentum + u->pool_offset,
                                 engine->variance + u->pool_offset};
    return (struct zr_owned){engine->rank * u->shard_elements, (engine->rank + 1) * u->shard_elements,
                             engine->momentum + u->shard_offset, engine->variance + u->shard_offset};
}

/* Starts to spread this rank's part of a pool's unit to all ranks, in place. */
zr_result zr_engine_spread(struct zr_engine *engine, size_t unit, float *pool, zr_ticket *ticket);

/* The parameter that holds element `element` of a unit, NULL for padding. */
const struct zr_layout_parameter *zr_engine_parameter_at(const struct zr_engine *engine, size_t unit,
                                                         size_t element);

#endif
