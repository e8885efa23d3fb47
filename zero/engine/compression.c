/* compression.c: see compression.h. */
#include "zero/engine/compression.h"

#include "zero/engine/onebit.h"

#include <string.h>

/* Whether what a rank sends of a kind is packed. */
static bool packs(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    return engine->world > 1 && engine->options.compression.kinds[kind].on;
}

/* A frozen unit that is kept whole has no masters and would lose its only exact values. */
static bool packs_parameters(const struct zr_engine *engine, size_t unit)
{
    return packs(engine, ZR_COMPRESSED_PARAMETERS) && !zr_engine_is_onebit(engine) &&
           !(engine->units[unit].resident && zr_engine_is_frozen(engine, unit));
}

static bool packs_gradients(const struct zr_engine *engine, size_t unit)
{
    return packs(engine, ZR_COMPRESSED_GRADIENTS) && engine->units[unit].steps > 0;
}

bool zr_engine_packs(const struct zr_engine *engine)
{
    return packs(engine, ZR_COMPRESSED_PARAMETERS) || packs(engine, ZR_COMPRESSED_GRADIENTS);
}

bool zr_engine_keeps_exact_masters(const struct zr_engine *engine)
{
    return zr_engine_is_low_precision(engine) || packs(engine, ZR_COMPRESSED_PARAMETERS);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

zr_result zr_engine_compression_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    const struct zr_compression *how = &o->compression;
    size_t staging_bytes = 0;
    if (!zr_engine_packs(engine))
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        size_t shard = engine->layout.units[u].shard_elements;
        if (packs_parameters(engine, u) || zr_engine_is_onebit(engine))
            staging_bytes =
                larger(staging_bytes, zr_compressed_gather_bytes(how->kinds[ZR_COMPRESSED_PARAMETERS].packing,
                                                                 shard, engine->world));
        if (packs_gradients(engine, u))
            staging_bytes =
                larger(staging_bytes, zr_compressed_sum_bytes(how->kinds[ZR_COMPRESSED_GRADIENTS].packing,
                                                              shard, engine->world));
    }
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, ZR_COMPRESSED_KINDS * engine->layout.units_count,
                               sizeof *engine->compressed, (void **)&engine->compressed);
    if (result != ZR_OK)
        return result;
    memset(engine->compressed, 0,
           ZR_COMPRESSED_KINDS * engine->layout.units_count * sizeof *engine->compressed);
    result = zr_engine_onebit_open(engine);
    if (result != ZR_OK)
        return result;
    return zr_compressor_init(&engine->compressor,
                              &(struct zr_compressor_options){.comm = o->comm,
                                                              .arena = o->arena,
                                                              .host_arena = o->host_arena,
                                                              .kernels = o->kernels,
                                                              .context = o->context,
                                                              .staging_bytes = staging_bytes});
}

void zr_engine_compression_close(struct zr_engine *engine)
{
    zr_compressor_fini(&engine->compressor);
    zr_engine_onebit_close(engine);
    zr_drop(engine->options.host_arena, &engine->compressed);
}

static struct zr_compressed *operation(struct zr_engine *engine, size_t unit, enum zr_compressed_kind kind)
{
    struct zr_compressed *op = &engine->compressed[ZR_COMPRESSED_KINDS * unit + kind];
    *op = (struct zr_compressed){.packing = engine->options.compression.kinds[kind].packing,
                                 .shard_elements = engine->layout.units[unit].shard_elements,
                                 .scale = 1};
    return op;
}

zr_result zr_engine_gather_shards(struct zr_engine *engine, size_t unit, const struct zr_all_gather *gather)
{
    enum zr_precision precision = engine->options.precision;
    zr_ticket *ticket = &engine->units[unit].parameter_ticket;
    if (!packs_parameters(engine, unit))
        return zr_comm_all_gather(engine->options.comm, gather, ticket);
    zr_result result = zr_comm_wait(engine->options.comm, *ticket); /* it uses the same operation */
    if (result != ZR_OK)
        return result;
    struct zr_compressed *op = operation(engine, unit, ZR_COMPRESSED_PARAMETERS);
    op->from = (struct zr_numbers){(void *)(uintptr_t)gather->source, precision};
    op->to = (struct zr_numbers){gather->destination, precision};
    op->label = gather->label;
    op->host_bytes = gather->host_bytes;
    op->first = gather->before;
    return zr_compressed_gather(&engine->compressor, op, ticket);
}

zr_result zr_engine_send_difference(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result = zr_comm_wait(engine->options.comm, state->parameter_ticket);
    if (result != ZR_OK)
        return result;
    struct zr_compressed *op = operation(engine, unit, ZR_COMPRESSED_PARAMETERS);
    op->from = (struct zr_numbers){state->owned.master, ZR_PRECISION_FP32};
    op->minus = state->owned.parameters;
    op->to = (struct zr_numbers){state->whole, engine->options.precision};
    op->accumulate = true;
    op->label = ZR_ENGINE_LABEL(unit, ZR_LABEL_PARAMETERS);
    return zr_compressed_gather(&engine->compressor, op, &state->parameter_ticket);
}

zr_result zr_engine_sum_shards(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum)
{
    enum zr_precision precision = engine->options.precision;
    zr_ticket *ticket = &engine->units[unit].reduce_ticket;
    const bool signs = zr_engine_sends_signs(engine);
    if (!packs_gradients(engine, unit) || (zr_engine_is_onebit(engine) && !signs))
        return zr_comm_reduce_scatter(engine->options.comm, sum, ticket);
    struct zr_compressed *op = operation(engine, unit, ZR_COMPRESSED_GRADIENTS);
    op->from = (struct zr_numbers){(void *)(uintptr_t)sum->source, precision};
    op->to = (struct zr_numbers){sum->destination, sum->wide ? ZR_PRECISION_FP32 : precision};
    op->error = signs ? zr_engine_errors(engine, unit) : NULL;
    op->scale = sum->scale;
    op->accumulate = sum->accumulate;
    op->label = sum->label;
    op->host_bytes = sum->host_bytes;
    return zr_compressed_sum(&engine->compressor, op, ticket);
}
