/* compression.c: see compression.h. */
#include "zero/engine/compression.h"

#include <math.h>
#include <string.h>

#include "zero/comm/calls.h"
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#include "zero/engine/errors.h"
#include "zero/engine/low_rank.h"
#include "zero/engine/meter.h"
#include "zero/engine/onebit.h"
#include "zero/engine/served.h"

/* ---- What is packed ------------------------------------------------------------------------------------ */

bool zr_engine_packs_kind(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    return engine->world > 1 && engine->options.compression.kinds[kind].on;
}

/* The packing of gradients, and of onebit's differences of parameters. */
static enum zr_packing packing_of(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    return zr_engine_is_onebit(engine) ? ZR_PACKING_ONEBIT : engine->options.compression.kinds[kind].packing;
}

bool zr_engine_keeps_replicas(const struct zr_engine *engine)
{
    return (zr_engine_is_onebit(engine) && !engine->exchanges_momentum) ||
           (zr_engine_packs_kind(engine, ZR_COMPRESSED_PARAMETERS) &&
            engine->options.compression.kinds[ZR_COMPRESSED_PARAMETERS].differences);
}

bool zr_engine_sends_differences(const struct zr_engine *engine)
{
    return zr_engine_is_onebit(engine)
               ? zr_engine_sends_signs(engine)
               : zr_engine_keeps_replicas(engine) && !zr_meter_ended(engine, ZR_COMPRESSED_PARAMETERS);
}

/* The packing of gradients between nodes. */
static enum zr_packing packing_between(const struct zr_engine *engine)
{
    enum zr_packing between = engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].between;
    return between == ZR_PACKING_ONEBIT ? packing_of(engine, ZR_COMPRESSED_GRADIENTS) : between;
}

bool zr_engine_packs(const struct zr_engine *engine)
{
    return zr_engine_packs_kind(engine, ZR_COMPRESSED_PARAMETERS) ||
           zr_engine_packs_kind(engine, ZR_COMPRESSED_GRADIENTS);
}

bool zr_engine_keeps_exact_masters(const struct zr_engine *engine)
{
    return zr_engine_is_low_precision(engine) || zr_engine_packs_kind(engine, ZR_COMPRESSED_PARAMETERS) ||
           (zr_engine_is_onebit(engine) && !engine->exchanges_momentum) || zr_engine_is_served(engine);
}

static unsigned node_ranks(const struct zr_engine *engine)
{
    unsigned ranks = engine->options.compression.node_ranks;
    return ranks > 0 && ranks < engine->world ? ranks : engine->world;
}

static unsigned nodes(const struct zr_engine *engine)
{
    return engine->world / node_ranks(engine);
}

/* Whether a unit's gradients are sent by their method now. */
static bool is_compressed(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].packs_gradients && !zr_meter_ended(engine, ZR_COMPRESSED_GRADIENTS) &&
           (!zr_engine_keeps_errors(engine) || zr_engine_feeds_errors(engine));
}

/* Whether gradients travel within a node first. */
static bool hops(const struct zr_engine *engine)
{
    return zr_engine_sends_by(engine, ZR_METHOD_PACKED) && nodes(engine) > 1 && node_ranks(engine) > 1;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Whether a unit's gradients go through a compressor. */
static bool packs(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].packs_gradients &&
           (zr_engine_sends_by(engine, ZR_METHOD_PACKED) || zr_engine_is_onebit(engine));
}

static zr_result open_group(struct zr_engine *engine, zr_comm **out, const char *name, unsigned first,
                            unsigned stride, unsigned count)
{
    unsigned *ranks;
    zr_result result =
        zr_take(engine->options.host_arena, ZR_TAG_OTHER, count, sizeof *ranks, (void **)&ranks);
    for (unsigned i = 0; i < count && result == ZR_OK; i++)
        ranks[i] = first + i * stride;
    if (result == ZR_OK)
        result = zr_comm_split(out, engine->options.comm, ranks, count, 0);
    zr_drop(engine->options.host_arena, &ranks);
    if (result == ZR_OK)
        zr_calls_name(*out, name);
    return result;
}

static zr_result open_nodes(struct zr_engine *engine)
{
    struct zr_compression_state *state = &engine->compression;
    unsigned in_node = node_ranks(engine), place = engine->rank % in_node;
    zr_result result = ZR_OK;
    if (hops(engine) || engine->keeps_secondary)
        result = open_group(engine, &state->node, "node", engine->rank - place, 1, in_node);
    if (result == ZR_OK && hops(engine))
        result = open_group(engine, &state->across, "across", place, in_node, nodes(engine));
    if (result == ZR_OK && engine->options.compression.check_steps > 0 &&
        zr_engine_packs_kind(engine, ZR_COMPRESSED_GRADIENTS))
        result = open_group(engine, &engine->meter.comm, "check", 0, 1, engine->world);
    if (result == ZR_OK && hops(engine))
        zr_comm_follow(state->across, state->node); /* see hop() */
    return result;
}

static zr_result open_compressor(struct zr_engine *engine, struct zr_compressor *out, zr_comm *comm,
                                 size_t staging_bytes)
{
    const struct zr_engine_options *o = &engine->options;
    return staging_bytes == 0
               ? ZR_OK
               : zr_compressor_init(out, &(struct zr_compressor_options){.comm = comm,
                                                                         .arena = o->arena,
                                                                         .host_arena = o->host_arena,
                                                                         .kernels = o->kernels,
                                                                         .context = o->context,
                                                                         .staging_bytes = staging_bytes});
}

/* Numbers of each shard of a unit that are sent as the largest: the share of the step or, with `most`, of any
 * step. During a warm-up it falls from a quarter (Deep Gradient Compression). */
static size_t largest_count(const struct zr_engine *engine, size_t unit, bool most)
{
    const double first = 0.25,
                 last = (double)engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].parameter;
    double share = last;
    if (last < first && (most ? engine->options.compression.warmup_steps > 0 : zr_engine_warms_up(engine)))
        share = most ? first
                     : first * pow(last / first, (double)engine->steps_done /
                                                     (double)engine->options.compression.warmup_steps);
    size_t shard = engine->layout.units[unit].shard_elements, count = (size_t)ceil(share * (double)shard);
    return count < shard ? count : shard;
}

/* The staging block of sums of largest numbers, and the velocity of SGD with momentum, which the optimizer
 * then leaves out. */
static zr_result open_largest(struct zr_engine *engine)
{
    struct zr_engine_options *o = &engine->options;
    struct zr_compression_state *state = &engine->compression;
    size_t staging = 0, elements = engine->layout.pool_elements;
    if (!zr_engine_sends_by(engine, ZR_METHOD_LARGEST))
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        size_t bytes = zr_largest_staging_bytes(engine->layout.units[u].shard_elements,
                                                largest_count(engine, u, true), engine->world, o->stage == 0);
        staging = !zr_engine_is_frozen(engine, u) ? larger(staging, bytes) : staging;
    }
    zr_result result =
        zr_largest_init(&state->largest, &(struct zr_largest_options){.comm = o->comm,
                                                                      .arena = o->arena,
                                                                      .kernels = o->kernels,
                                                                      .context = o->context,
                                                                      .staging_bytes = staging});
    if (result != ZR_OK || o->optimizer.kind != ZR_OPTIMIZER_SGD || o->optimizer.momentum_factor <= 0)
        return result;
    state->momentum = o->optimizer.momentum_factor;
    o->optimizer.momentum_factor = 0;
    result =
        zr_take(o->arena, ZR_TAG_OPTIMIZER, elements, sizeof *state->velocity, (void **)&state->velocity);
    return result == ZR_OK
               ? o->kernels->clear(o->context,
                                   &(struct zr_clear){elements * sizeof *state->velocity, state->velocity})
               : result;
}

/* Staging blocks of the size of the largest operation. */
static zr_result open_compressors(struct zr_engine *engine)
{
    struct zr_compression_state *state = &engine->compression;
    enum zr_packing parameters = packing_of(engine, ZR_COMPRESSED_PARAMETERS),
                    gradients = packing_of(engine, ZR_COMPRESSED_GRADIENTS);
    size_t all = 0, within = 0, between = 0, sums = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        size_t shard = engine->layout.units[u].shard_elements;
        if (engine->units[u].packs_parameters || zr_engine_is_onebit(engine))
            all = larger(all, zr_compressed_gather_bytes(parameters, shard, engine->world));
        if (packs(engine, u) && !hops(engine))
            all = larger(all, zr_compressed_sum_bytes(gradients, shard, 1, engine->world));
        if (packs(engine, u) && hops(engine)) {
            within = larger(within, zr_compressed_sum_bytes(gradients, nodes(engine) * shard, nodes(engine),
                                                            node_ranks(engine)));
            between =
                larger(between, zr_compressed_sum_bytes(packing_between(engine), shard, 1, nodes(engine)));
            sums = larger(sums, nodes(engine) * shard);
        }
    }
    zr_result result = open_compressor(engine, &state->all, engine->options.comm, all);
    if (result == ZR_OK)
        result = open_compressor(engine, &state->within, state->node, within);
    if (result == ZR_OK)
        result = open_compressor(engine, &state->between, state->across, between);
    return result == ZR_OK
               ? zr_take(engine->options.arena, ZR_TAG_COMM, sums, sizeof(float), (void **)&state->sums)
               : result;
}

static zr_result open_secondary(struct zr_engine *engine)
{
    struct zr_compression_state *state = &engine->compression;
    size_t bytes = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        if (engine->units[u].keeps_secondary) {
            state->units[u].secondary_bytes =
                engine->layout.units[u].padded_elements / node_ranks(engine) * engine->parameter_bytes;
            bytes += state->units[u].secondary_bytes;
        }
    zr_result result = zr_take(engine->options.arena, ZR_TAG_PARAM, bytes, 1, &state->secondary);
    char *at = state->secondary;
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++) {
        state->units[u].secondary = state->units[u].secondary_bytes > 0 ? at : NULL;
        at += state->units[u].secondary_bytes;
    }
    return result;
}

zr_result zr_engine_compression_open(struct zr_engine *engine)
{
    struct zr_compression_state *state = &engine->compression;
    size_t count = engine->layout.units_count;
    if (!zr_engine_packs(engine) && !engine->keeps_secondary)
        return ZR_OK;
    zr_result result = zr_take(engine->options.host_arena, ZR_TAG_OTHER, count, sizeof *state->units,
                               (void **)&state->units);
    if (result != ZR_OK)
        return result;
    memset(state->units, 0, count * sizeof *state->units);
    for (size_t u = 0; u < count; u++) {
        state->units[u].engine = engine;
        state->units[u].nonfinite = SIZE_MAX;
    }
    result = open_nodes(engine);
    if (result == ZR_OK)
        result = zr_engine_errors_open(engine);
    if (result == ZR_OK)
        result = zr_engine_low_rank_open(engine);
    if (result == ZR_OK)
        result = open_largest(engine);
    if (result == ZR_OK)
        result = open_compressors(engine);
    if (result == ZR_OK)
        result = zr_meter_open(engine);
    return result == ZR_OK ? open_secondary(engine) : result;
}

void zr_engine_compression_close(struct zr_engine *engine)
{
    struct zr_compression_state *state = &engine->compression;
    zr_drop(engine->options.arena, &state->secondary);
    zr_meter_close(engine);
    zr_drop(engine->options.arena, &state->sums);
    zr_drop(engine->options.arena, &state->velocity);
    zr_largest_fini(&state->largest);
    zr_engine_low_rank_close(engine);
    zr_engine_errors_close(engine);
    zr_compressor_fini(&state->between);
    zr_compressor_fini(&state->within);
    zr_compressor_fini(&state->all);
    zr_comm_destroy(state->across);
    zr_comm_destroy(state->node);
    state->across = state->node = NULL;
    zr_drop(engine->options.host_arena, &state->units);
}

/* ---- Parameters ---------------------------------------------------------------------------------------- */

/* The end of a gather over all ranks. */
static zr_result keep_secondary(void *state, struct zr_kernel_context *stream)
{
    struct zr_unit_compression *unit = state;
    const struct zr_engine *engine = unit->engine;
    const char *own = unit->whole + engine->rank % node_ranks(engine) * unit->secondary_bytes;
    if (stream)
        return engine->options.kernels->copy_bytes(
            stream,
            &(struct zr_copy_bytes){.bytes = unit->secondary_bytes, .from = own, .to = unit->secondary});
    if (!engine->simulated)
        memcpy(unit->secondary, own, unit->secondary_bytes);
    return ZR_OK;
}

zr_result zr_engine_gather_shards(struct zr_engine *engine, size_t unit, const struct zr_all_gather *gather)
{
    enum zr_precision precision = engine->options.precision;
    struct zr_unit_state *state = &engine->units[unit];
    struct zr_unit_compression *own = engine->compression.units ? &engine->compression.units[unit] : NULL;
    struct zr_all_gather plain = *gather;
    state->gathers = engine->options.comm;
    if (own && own->secondary) {
        own->keep = (struct zr_comm_work){keep_secondary, own};
        own->whole = gather->destination;
        own->has_secondary = true;
        plain.last = &own->keep;
    }
    /* After a load replicas are rounded masters. */
    if (!state->packs_parameters || zr_engine_keeps_replicas(engine) ||
        zr_meter_ended(engine, ZR_COMPRESSED_PARAMETERS))
        return zr_comm_all_gather(engine->options.comm, &plain, &state->parameter_ticket);
    zr_result result = zr_comm_wait(engine->options.comm, state->parameter_ticket); /* it uses own->gather */
    if (result != ZR_OK)
        return result;
    own->gather = (struct zr_compressed){.packing = packing_of(engine, ZR_COMPRESSED_PARAMETERS),
                                         .shard_elements = engine->layout.units[unit].shard_elements,
                                         .from = {(void *)(uintptr_t)gather->source, precision},
                                         .to = {gather->destination, precision},
                                         .scale = 1,
                                         .check = zr_meter_begin(engine, unit, ZR_COMPRESSED_PARAMETERS),
                                         .label = gather->label,
                                         .host_bytes = gather->host_bytes,
                                         .before = gather->before,
                                         .last = plain.last};
    return zr_compressed_gather(&engine->compression.all, &own->gather, &state->parameter_ticket);
}

zr_result zr_engine_send_difference(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    struct zr_compressed *op = &engine->compression.units[unit].gather;
    zr_result result = zr_engine_await_shards(engine, unit); /* it uses the same operation */
    if (result != ZR_OK)
        return result;
    state->gathers = engine->options.comm;
    *op = (struct zr_compressed){.packing = packing_of(engine, ZR_COMPRESSED_PARAMETERS),
                                 .shard_elements = engine->layout.units[unit].shard_elements,
                                 .from = {state->owned.master, ZR_PRECISION_FP32},
                                 .minus = state->owned.parameters,
                                 .to = {state->whole, engine->options.precision},
                                 .accumulate = true,
                                 .scale = 1,
                                 .check = zr_meter_begin(engine, unit, ZR_COMPRESSED_PARAMETERS),
                                 .label = ZR_ENGINE_LABEL((unsigned)unit, ZR_LABEL_PARAMETERS)};
    return zr_compressed_gather(&engine->compression.all, op, &state->parameter_ticket);
}

zr_result zr_engine_await_shards(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    zr_result result =
        zr_comm_wait(state->gathers ? state->gathers : engine->options.comm, state->parameter_ticket);
    if (result == ZR_OK)
        state->parameter_ticket = 0;
    return result;
}

bool zr_engine_has_secondary(const struct zr_engine *engine, size_t unit)
{
    return engine->compression.units && engine->compression.units[unit].has_secondary;
}

zr_result zr_engine_gather_secondary(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    const struct zr_unit_compression *own = &engine->compression.units[unit];
    state->gathers = engine->compression.node;
    return zr_comm_all_gather(
        engine->compression.node,
        &(struct zr_all_gather){.source = own->secondary,
                                .destination = state->gathered,
                                .shard_bytes = own->secondary_bytes,
                                .label = ZR_ENGINE_LABEL((unsigned)unit, ZR_LABEL_PARAMETERS),
                                .type = engine->comm_type},
        &state->parameter_ticket);
}

void zr_engine_forget_secondary(struct zr_engine *engine)
{
    for (size_t u = 0; engine->compression.secondary && u < engine->layout.units_count; u++)
        engine->compression.units[u].has_secondary = false;
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

/* The second hop, after the first one; on a GPU the node's stream waits. A plan's communicators run
 * operations when they are submitted, and zr_engine_await_sum() waits for the second one on their clock. */
static zr_result hop(void *state, struct zr_kernel_context *stream)
{
    struct zr_unit_compression *unit = state;
    struct zr_compression_state *compression = &unit->engine->compression;
    (void)stream;
    zr_result result = zr_compressed_sum(&compression->between, &unit->second, &unit->second_ticket);
    return result == ZR_OK && !unit->engine->simulated
               ? zr_comm_wait(compression->across, unit->second_ticket)
               : result;
}

/* Fills in the two hops of unit->sum. */
static void divide(struct zr_engine *engine, struct zr_unit_compression *unit)
{
    unit->hop = (struct zr_comm_work){hop, unit};
    unit->second = unit->sum;
    unit->second.packing = packing_between(engine);
    unit->second.nonfinite = NULL;
    unit->second.from = (struct zr_numbers){engine->compression.sums, ZR_PRECISION_FP32};
    unit->sum.pieces = nodes(engine);
    unit->sum.shard_elements *= nodes(engine);
    unit->sum.to = unit->second.from;
    unit->sum.scale = 1;
    unit->sum.accumulate = false;
    unit->sum.host_bytes = 0; /* the second hop goes to the host */
    unit->sum.last = &unit->hop;
}

/* The first gradients in full precision after packed ones take what these have not sent. */
static zr_result add_errors(struct zr_engine *engine, size_t unit)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_unit_compression *own = &engine->compression.units[unit];
    size_t n = engine->layout.units[unit].padded_elements;
    float values[ZR_PACK_BLOCK];
    zr_result result = ZR_OK;
    if (!engine->errors || own->has_no_errors || !zr_meter_ended(engine, ZR_COMPRESSED_GRADIENTS))
        return ZR_OK;
    float *errors = zr_engine_errors(engine, unit);
    for (size_t at = 0, count; at < n && result == ZR_OK; at += count) {
        count = n - at < ZR_PACK_BLOCK ? n - at : ZR_PACK_BLOCK;
        struct zr_numbers own_numbers =
            zr_numbers_at((struct zr_numbers){engine->units[unit].written, o->precision}, at);
        struct zr_convert widen = {count, own_numbers, {values, ZR_PRECISION_FP32}},
                          narrow = {count, {values, ZR_PRECISION_FP32}, own_numbers};
        result = o->kernels->convert(o->context, &widen);
        for (size_t i = 0; i < count && result == ZR_OK; i++)
            values[i] += errors[at + i];
        if (result == ZR_OK)
            result = o->kernels->convert(o->context, &narrow);
    }
    own->has_no_errors = true;
    return result == ZR_OK ? o->kernels->clear(o->context, &(struct zr_clear){n * sizeof *errors, errors})
                           : result;
}

/* A sum of a unit's gradients by a method that is no packing; from, count: the part of it at `to`. */
static zr_result sum_by_method(struct zr_engine *engine, size_t unit, const struct zr_low_rank_sum *sum)
{
    struct zr_largest_sum *op = &engine->compression.units[unit].largest;
    const struct zr_engine_options *o = &engine->options;
    const size_t shard = engine->layout.units[unit].shard_elements;
    if (zr_engine_sends_by(engine, ZR_METHOD_LOW_RANK))
        return zr_engine_low_rank_begin(engine, unit, sum);
    *op = (struct zr_largest_sum){.shard_elements = shard,
                                  .count = largest_count(engine, unit, false),
                                  .from = {(void *)(uintptr_t)sum->source, o->precision},
                                  .error = zr_engine_errors(engine, unit),
                                  .momentum = engine->compression.momentum,
                                  .clip = (double)o->optimizer.clip / sqrt((double)engine->world),
                                  .to = sum->to,
                                  .to_all = sum->count > shard,
                                  .scale = 1.0f / (float)engine->world,
                                  .accumulate = sum->accumulate,
                                  .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)};
    if (engine->compression.velocity)
        op->velocity = engine->compression.velocity + engine->layout.units[unit].pool_offset;
    return zr_largest_begin(&engine->compression.largest, op, &engine->units[unit].reduce_ticket);
}

/* Before a sum: measures it if that is due, or adds what earlier sums have not sent. */
static zr_result prepare_sum(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum)
{
    return !engine->units[unit].packs_gradients ? ZR_OK
           : is_compressed(engine, unit)        ? zr_meter_begin_sum(engine, unit, sum)
                                                : add_errors(engine, unit);
}

zr_result zr_engine_sum_whole(struct zr_engine *engine, size_t unit, const struct zr_all_reduce *sum)
{
    size_t own = engine->rank * sum->shard_elements * engine->gradient_bytes;
    zr_result result = prepare_sum(engine, unit,
                                   &(struct zr_reduce_scatter){.source = sum->buffer,
                                                               .destination = (char *)sum->buffer + own,
                                                               .shard_elements = sum->shard_elements,
                                                               .scale = sum->scale,
                                                               .type = sum->type});
    if (result != ZR_OK)
        return result;
    if (!is_compressed(engine, unit))
        return zr_comm_all_reduce(engine->options.comm, sum, &engine->units[unit].reduce_ticket);
    return sum_by_method(engine, unit,
                         &(struct zr_low_rank_sum){.source = sum->buffer,
                                                   .to = {sum->buffer, engine->options.precision},
                                                   .count = engine->layout.units[unit].padded_elements});
}

zr_result zr_engine_sum_shards(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum)
{
    enum zr_precision precision = engine->options.precision;
    struct zr_unit_state *state = &engine->units[unit];
    struct zr_unit_compression *own = engine->compression.units ? &engine->compression.units[unit] : NULL;
    const struct zr_numbers to = {sum->destination, sum->wide ? ZR_PRECISION_FP32 : precision};
    const bool feeds = zr_engine_feeds_errors(engine);
    zr_result result = prepare_sum(engine, unit, sum);
    if (result != ZR_OK)
        return result;
    if (!is_compressed(engine, unit))
        return zr_comm_reduce_scatter(engine->options.comm, sum, &state->reduce_ticket);
    if (!packs(engine, unit))
        return sum_by_method(engine, unit,
                             &(struct zr_low_rank_sum){.source = sum->source,
                                                       .to = to,
                                                       .from = engine->rank * sum->shard_elements,
                                                       .count = sum->shard_elements,
                                                       .accumulate = sum->accumulate});
    if (state->accumulated == 0)
        own->nonfinite = SIZE_MAX;
    own->sum = (struct zr_compressed){.packing = packing_of(engine, ZR_COMPRESSED_GRADIENTS),
                                      .shard_elements = sum->shard_elements,
                                      .from = {(void *)(uintptr_t)sum->source, precision},
                                      .to = to,
                                      .error = feeds ? zr_engine_errors(engine, unit) : NULL,
                                      .nonfinite = engine->host_invisible ? NULL : &own->nonfinite,
                                      .scale = sum->scale,
                                      .accumulate = sum->accumulate,
                                      .label = sum->label,
                                      .host_bytes = sum->host_bytes};
    if (hops(engine))
        divide(engine, own);
    return zr_compressed_sum(hops(engine) ? &engine->compression.within : &engine->compression.all, &own->sum,
                             &state->reduce_ticket);
}

size_t zr_engine_packed_nonfinite(const struct zr_engine *engine, size_t unit)
{
    return engine->units[unit].packs_gradients ? engine->compression.units[unit].nonfinite : SIZE_MAX;
}

zr_result zr_engine_await_sum(struct zr_engine *engine, size_t unit)
{
    struct zr_unit_state *state = &engine->units[unit];
    bool in_hops = hops(engine) && is_compressed(engine, unit);
    zr_result result = zr_engine_low_rank_end(engine, unit);
    if (result == ZR_OK)
        result =
            zr_comm_wait(in_hops ? engine->compression.node : engine->options.comm, state->reduce_ticket);
    if (result == ZR_OK && in_hops && state->reduce_ticket > 0)
        result = zr_comm_wait(engine->compression.across, engine->compression.units[unit].second_ticket);
    if (result == ZR_OK)
        result = zr_meter_end_sum(engine, unit);
    if (result == ZR_OK)
        state->reduce_ticket = 0;
    return result;
}

void zr_engine_count_nodes(const struct zr_engine *engine, struct zr_comm_counters *sum)
{
    zr_comm_counters_add(engine->compression.node, sum);
    zr_comm_counters_add(engine->compression.across, sum);
}
