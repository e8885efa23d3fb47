/* errors.c: see errors.h. */
#include "zero/engine/errors.h"

#include "zero/engine/meter.h"
#include "zero/engine/zerone.h"

bool zr_engine_keeps_errors(const struct zr_engine *engine)
{
    return engine->world > 1 && engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].on &&
           !zr_engine_sends_by(engine, ZR_METHOD_PACKED);
}

uint64_t zr_engine_warmup_steps(const struct zr_engine *engine)
{
    const struct zr_compression *how = &engine->options.compression;
    return how->settle_ratio == 0 ? how->warmup_steps
           : engine->warmup.ended ? engine->warmup.steps
                                  : UINT64_MAX;
}

bool zr_engine_warms_up(const struct zr_engine *engine)
{
    if (zr_engine_is_zerone(engine))
        return zr_engine_is_full(engine) || zr_engine_is_local(engine);
    return zr_engine_keeps_errors(engine) && !engine->simulated &&
           engine->steps_done < zr_engine_warmup_steps(engine);
}

uint64_t zr_engine_errors_first(const struct zr_engine *engine)
{
    const struct zr_compression *how = &engine->options.compression;
    if (zr_engine_is_zerone(engine) && how->zerone.variance_updates < how->warmup_steps)
        return how->zerone.variance_updates;
    /* The warm-up of largest numbers sends more of them. */
    return zr_engine_sends_by(engine, ZR_METHOD_LARGEST) ? 0 : zr_engine_warmup_steps(engine);
}

bool zr_engine_feeds_errors(const struct zr_engine *engine)
{
    return zr_engine_keeps_errors(engine) && !zr_meter_ended(engine, ZR_COMPRESSED_GRADIENTS) &&
           (engine->simulated || engine->steps_done >= zr_engine_errors_first(engine)) &&
           !zr_engine_is_full(engine);
}

zr_result zr_engine_errors_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    if (!zr_engine_keeps_errors(engine))
        return ZR_OK;
    const size_t owned = engine->exchanges_momentum ? engine->layout.shards_elements : 0,
                 count = engine->layout.pool_elements + owned;
    zr_result result =
        zr_take(o->arena, ZR_TAG_OPTIMIZER, count, sizeof *engine->errors, (void **)&engine->errors);
    if (result == ZR_OK && zr_engine_is_zerone(engine))
        result = zr_take(o->arena, ZR_TAG_OPTIMIZER, 2 * engine->layout.pool_elements,
                         sizeof *engine->anchors, (void **)&engine->anchors);
    return result != ZR_OK ? result
                           : o->kernels->clear(o->context, &(struct zr_clear){count * sizeof *engine->errors,
                                                                              engine->errors});
}

void zr_engine_errors_close(struct zr_engine *engine)
{
    zr_drop(engine->options.arena, &engine->anchors);
    zr_drop(engine->options.arena, &engine->errors);
}

float *zr_engine_errors(const struct zr_engine *engine, size_t unit)
{
    return engine->errors + engine->layout.units[unit].pool_offset;
}

float *zr_engine_owner_errors(const struct zr_engine *engine, size_t unit)
{
    return engine->errors + engine->layout.pool_elements + engine->layout.units[unit].shard_offset;
}
