/* versions.c: see update.h. */
#include "zero/engine/update.h"

zr_result zr_engine_versions_open(struct zr_engine *engine)
{
    struct zr_versions *versions = &engine->versions;
    versions->pool_bytes = engine->tiers[0].parameters_elements * engine->parameter_bytes;
    return zr_take(engine->options.arena, ZR_TAG_PARAM, engine->options.stashed_versions,
                   versions->pool_bytes, (void **)&versions->pool);
}

zr_result zr_engine_versions_stash(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_versions *versions = &engine->versions;
    zr_result result = ZR_OK;
    if (!versions->pool)
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = zr_engine_await_gather(engine, u);
    if (result == ZR_OK)
        result = o->kernels->copy_bytes(
            o->context,
            &(struct zr_copy_bytes){.bytes = versions->pool_bytes,
                                    .from = engine->tiers[0].parameters,
                                    .waits = engine->state_tier->offloaded, /* the copies of an update are not
                                                                               ordered after the stream */
                                    .to = versions->pool + versions->oldest * versions->pool_bytes});
    versions->oldest = (versions->oldest + 1) % o->stashed_versions;
    return result;
}

zr_result zr_engine_versions_restart(struct zr_engine *engine)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < engine->options.stashed_versions && result == ZR_OK; i++)
        result = zr_engine_versions_stash(engine);
    return result;
}

const void *zr_engine_version(const struct zr_engine *engine, const void *newest, unsigned age)
{
    const struct zr_versions *versions = &engine->versions;
    const unsigned count = engine->options.stashed_versions;
    if (age == 0)
        return newest;
    return versions->pool + (versions->oldest + count - age) % count * versions->pool_bytes +
           ((const char *)newest - engine->tiers[0].parameters);
}
