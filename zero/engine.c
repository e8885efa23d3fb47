/* engine.c: the life of a stage engine: its persistent memory, the first values, and access to units. */
#include "zero/engine.h"

#include <string.h>

static zr_result take_pools(struct zr_engine *engine)
{
    zr_arena *arena = engine->options.arena;
    size_t pool = engine->layout.pool_elements;
    size_t states = engine->options.stage == 0 ? pool : engine->layout.shards_elements;
    zr_result result = zr_take(arena, ZR_TAG_PARAM, pool, sizeof(float), (void **)&engine->parameters);
    if (result == ZR_OK)
        result = zr_take(arena, ZR_TAG_GRAD, pool, sizeof(float), (void **)&engine->gradients);
    if (result == ZR_OK)
        result = zr_take(arena, ZR_TAG_OPTIMIZER, states, sizeof(float), (void **)&engine->momentum);
    if (result == ZR_OK)
        result = zr_take(arena, ZR_TAG_OPTIMIZER, states, sizeof(float), (void **)&engine->variance);
    return result;
}

/* Every value depends on the seed and the global index alone; padding is zero for ever. */
static void initialise(struct zr_engine *engine)
{
    const struct zr_kernels *kernels = engine->options.kernels;
    struct zr_kernel_context *context = engine->options.context;
    size_t pool = engine->layout.pool_elements;
    size_t states = engine->options.stage == 0 ? pool : engine->layout.shards_elements;

    kernels->fill(context, pool, 0, engine->parameters);
    kernels->fill(context, pool, 0, engine->gradients);
    kernels->fill(context, states, 0, engine->momentum);
    kernels->fill(context, states, 0, engine->variance);
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        for (size_t i = 0; i < unit->parameters_count; i++) {
            const struct zr_layout_parameter *p = &engine->layout.parameters[unit->first_parameter + i];
            float *values = engine->parameters + unit->pool_offset + p->offset;
            if (p->parameter.init_deviation == 0)
                kernels->fill(context, p->elements, p->parameter.init_mean, values);
            else
                kernels->init_normal(context, p->elements, engine->options.seed, p->global_index,
                                     p->parameter.init_mean, p->parameter.init_deviation, values);
        }
    }
}

static size_t count_segments(const struct zr_engine *engine)
{
    size_t count = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        for (size_t i = 0; i < unit->parameters_count; i++) {
            struct zr_overlap overlap;
            count += zr_layout_overlap(&engine->layout.parameters[unit->first_parameter + i],
                                       engine->rank * unit->shard_elements,
                                       (engine->rank + 1) * unit->shard_elements, &overlap);
        }
    }
    return count;
}

zr_result zr_engine_create(zr_engine **out, const struct zr_engine_options *options)
{
    struct zr_engine *engine;
    zr_result result;

    *out = NULL;
    if (!options->arena || !options->host_arena || !options->kernels || !options->context || !options->comm)
        return zr_fail(ZR_ERR_INVALID,
                       "an engine needs arenas, kernels, a kernel context and a communicator");
    if (options->stage > 1)
        return zr_fail(ZR_ERR_INVALID, "stage %u is not there; this engine has stages 0 and 1",
                       options->stage);
    result = zr_take(options->host_arena, ZR_TAG_OTHER, 1, sizeof *engine, (void **)&engine);
    if (result != ZR_OK)
        return result;
    memset(engine, 0, sizeof *engine);
    engine->options = *options;
    engine->rank = zr_comm_rank(options->comm);
    engine->world = zr_comm_world(options->comm);
    engine->dry = options->kernels == zr_kernels_null();

    result = zr_layout_make(&engine->layout, &options->list, engine->world, options->host_arena);
    if (result != ZR_OK)
        goto unwind;
    engine->options.list = (struct zr_parameter_list){0}; /* the caller's arrays end here */
    result = zr_take(options->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *engine->units,
                     (void **)&engine->units);
    if (result != ZR_OK)
        goto unwind;
    memset(engine->units, 0, engine->layout.units_count * sizeof *engine->units);
    result = take_pools(engine);
    if (result != ZR_OK)
        goto unwind;
    engine->segments_count = count_segments(engine);
    initialise(engine);
    result = zr_engine_verify_replicas(engine);
    if (result != ZR_OK)
        goto unwind;
    *out = engine;
    return ZR_OK;

unwind:
    zr_engine_destroy(engine);
    return result;
}

void zr_engine_destroy(zr_engine *engine)
{
    if (!engine)
        return;
    zr_arena *arena = engine->options.arena, *host_arena = engine->options.host_arena;
    if (engine->units) {
        zr_engine_settle(
            engine); /* a lost peer has ended the communicator's work too: nothing still writes */
        for (size_t u = 0; u < engine->layout.units_count; u++)
            zr_drop(arena, &engine->units[u].sum_shard);
    }
    zr_drop(arena, &engine->variance);
    zr_drop(arena, &engine->momentum);
    zr_drop(arena, &engine->gradients);
    zr_drop(arena, &engine->parameters);
    zr_drop(host_arena, &engine->units);
    if (engine->layout.units)
        zr_layout_end(&engine->layout);
    zr_drop(host_arena, &engine);
}

zr_result zr_engine_gather(zr_engine *engine, unsigned unit, const float **base)
{
    zr_assert(unit < engine->layout.units_count);
    zr_result result = zr_comm_wait(engine->options.comm, engine->units[unit].gather_ticket);
    if (result != ZR_OK)
        return result;
    engine->units[unit].gather_ticket = 0;
    *base = engine->parameters + engine->layout.units[unit].pool_offset;
    return ZR_OK;
}

void zr_engine_release(zr_engine *engine, unsigned unit)
{
    zr_assert(unit < engine->layout.units_count); /* stages 0 and 1 keep all parameters where they are */
}

size_t zr_engine_offset(const zr_engine *engine, size_t parameter)
{
    zr_assert(parameter < engine->layout.parameters_count);
    return engine->layout.parameters[parameter].offset;
}

uint64_t zr_engine_steps_done(const zr_engine *engine)
{
    return engine->steps_done;
}

uint64_t zr_engine_elements(const zr_engine *engine)
{
    return engine->layout.elements;
}

uint64_t zr_engine_padded_elements(const zr_engine *engine)
{
    return engine->layout.pool_elements;
}
