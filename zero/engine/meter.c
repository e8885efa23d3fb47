/* meter.c: see meter.h. */
#include "zero/engine/meter.h"

#include <float.h>
#include <math.h>

#include "zero/comm/mesh.h"
#include "zero/engine/compression.h"
#include "zero/engine/errors.h"
#include "zero/engine/onebit.h"

const char *zr_compressed_kind_name(enum zr_compressed_kind kind)
{
    static const char *const names[ZR_COMPRESSED_KINDS] = {
        [ZR_COMPRESSED_PARAMETERS] = "parameters", [ZR_COMPRESSED_GRADIENTS] = "gradients"};
    return names[kind];
}

/* Whether a unit sends the kind packed. */
static bool packs(const struct zr_engine *engine, size_t unit, enum zr_compressed_kind kind)
{
    const struct zr_unit_state *state = &engine->units[unit];
    if (kind == ZR_COMPRESSED_GRADIENTS)
        return state->packs_gradients;
    return state->packs_parameters || (zr_engine_sends_signs(engine) && state->packs_gradients);
}

/* Whether the current step has checks. */
static bool is_due(const struct zr_engine *engine)
{
    uint64_t every = engine->options.compression.check_steps;
    return every > 0 && engine->world > 1 && (engine->steps_done + 1) % every == 0;
}

/* The unit whose turn it is; ZR_NO_UNIT: no unit sends the kind packed. */
static size_t unit_in_turn(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    size_t count = engine->layout.units_count, packed = 0, turn;
    for (size_t u = 0; u < count; u++)
        packed += packs(engine, u, kind);
    if (packed == 0)
        return ZR_NO_UNIT;
    turn = (size_t)(engine->steps_done / engine->options.compression.check_steps % packed);
    for (size_t u = 0; u < count; u++)
        if (packs(engine, u, kind) && turn-- == 0)
            return u;
    return ZR_NO_UNIT;
}

static size_t largest_shard(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    size_t most = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        size_t shard = engine->layout.units[u].shard_elements;
        bool counts = kind == ZR_COMPRESSED_GRADIENTS || zr_engine_is_onebit(engine)
                          ? engine->units[u].packs_gradients
                          : engine->units[u].packs_parameters;
        most = counts && shard > most ? shard : most;
    }
    return most;
}

uint64_t zr_meter_bytes(const struct zr_engine *engine)
{
    if (engine->options.compression.check_steps == 0)
        return 0;
    return (uint64_t)largest_shard(engine, ZR_COMPRESSED_GRADIENTS) * engine->gradient_bytes *
           (engine->world - 1);
}

zr_result zr_meter_open(struct zr_engine *engine)
{
    zr_result result = ZR_OK;
    bool checks = engine->options.compression.check_steps > 0;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && checks && result == ZR_OK; kind++)
        result = zr_take(engine->options.arena, ZR_TAG_COMM, largest_shard(engine, kind), sizeof(float),
                         (void **)&engine->meter.checks[kind].truth);
    return result;
}

void zr_meter_close(struct zr_engine *engine)
{
    for (unsigned kind = ZR_COMPRESSED_KINDS; kind-- > 0;)
        zr_drop(engine->options.arena, &engine->meter.checks[kind].truth);
    zr_comm_destroy(engine->meter.comm);
    engine->meter.comm = NULL;
}

struct zr_compressed_check *zr_meter_begin(struct zr_engine *engine, size_t unit,
                                           enum zr_compressed_kind kind)
{
    if (!is_due(engine) || unit_in_turn(engine, kind) != unit)
        return NULL;
    engine->meter.begun[kind] = true;
    return &engine->meter.checks[kind];
}

zr_result zr_meter_begin_sum(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum)
{
    struct zr_meter *meter = &engine->meter;
    struct zr_reduce_scatter exact = *sum;
    zr_ticket ticket;
    if (engine->simulated || sum->accumulate || !zr_meter_begin(engine, unit, ZR_COMPRESSED_GRADIENTS))
        return ZR_OK;
    exact.destination = meter->checks[ZR_COMPRESSED_GRADIENTS].truth;
    exact.wide = engine->options.precision != ZR_PRECISION_FP32;
    exact.host_bytes = 0;
    exact.label = ZR_COMM_LABEL_NONE;
    meter->sum =
        (struct zr_numbers){sum->destination, sum->wide ? ZR_PRECISION_FP32 : engine->options.precision};
    meter->sum_unit = unit;
    zr_result result = zr_comm_reduce_scatter(meter->comm, &exact, &ticket);
    return result == ZR_OK ? zr_comm_wait(meter->comm, ticket) : result;
}

zr_result zr_meter_end_sum(struct zr_engine *engine, size_t unit)
{
    struct zr_meter *meter = &engine->meter;
    const struct zr_arrived arrived = {engine->options.kernels, engine->options.context, meter->sum,
                                       engine->layout.units[unit].shard_elements};
    if (!meter->sum.at || meter->sum_unit != unit)
        return ZR_OK;
    meter->sum.at = NULL;
    return zr_compressed_compare(&meter->checks[ZR_COMPRESSED_GRADIENTS], &arrived);
}

/* Replaces the errors by the largest of a communicator's ranks; NULL: none. */
static zr_result agree(zr_comm *comm, double error[ZR_COMPRESSED_KINDS])
{
    double all[ZR_MAX_WORLD][ZR_COMPRESSED_KINDS];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, error, sizeof *all, all);
    for (unsigned r = 0; r < zr_comm_world(comm) && result == ZR_OK; r++)
        for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
            error[kind] = fmax(error[kind], all[r][kind]); /* a NaN loses against a number */
    return result;
}

/* The relative error of each kind, over all ranks; negative: not measured. */
static zr_result measure(struct zr_engine *engine, double error[ZR_COMPRESSED_KINDS])
{
    double all[ZR_MAX_WORLD][ZR_COMPRESSED_KINDS][2], mine[ZR_COMPRESSED_KINDS][2] = {{0}};
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        if (engine->meter.begun[kind]) {
            mine[kind][0] = engine->meter.checks[kind].error_squares;
            mine[kind][1] = engine->meter.checks[kind].true_squares;
        }
    zr_result result = zr_comm_host_all_gather(engine->options.comm, mine, sizeof mine, all);
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && result == ZR_OK; kind++) {
        double of_errors = 0, of_truth = 0;
        for (unsigned r = 0; r < engine->world; r++) {
            of_errors += all[r][kind][0];
            of_truth += all[r][kind][1];
        }
        error[kind] = !(of_truth > 0 && of_truth <= DBL_MAX) ? -1
                      : of_errors <= DBL_MAX                 ? sqrt(of_errors / of_truth)
                                                             : INFINITY;
    }
    if (result == ZR_OK)
        result = agree(engine->options.tensor, error);
    return result == ZR_OK ? agree(engine->options.pipeline, error) : result;
}

zr_result zr_meter_end(struct zr_engine *engine)
{
    struct zr_meter *meter = &engine->meter;
    const struct zr_compression *how = &engine->options.compression;
    double error[ZR_COMPRESSED_KINDS];
    size_t unit;
    zr_result result = ZR_OK;
    if (engine->simulated || !is_due(engine) || !zr_engine_packs(engine))
        return ZR_OK;
    if (meter->begun[ZR_COMPRESSED_PARAMETERS]) {
        unit = unit_in_turn(engine, ZR_COMPRESSED_PARAMETERS);
        result = zr_engine_await_shards(engine, unit);
    }
    if (result == ZR_OK)
        result = measure(engine, error);
    if (result != ZR_OK)
        return result;
    meter->last.steps = engine->steps_done + 1;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        meter->begun[kind] = false;
        meter->last.error[kind] = error[kind] < 0 ? NAN : error[kind];
        if (how->tolerance > 0 && error[kind] > how->tolerance && !zr_meter_ended(engine, kind))
            meter->last.full_since[kind] = meter->last.steps;
    }
    zr_meter_resume(engine, meter->last.full_since);
    return ZR_OK;
}

void zr_meter_resume(struct zr_engine *engine, const uint64_t full_since[ZR_COMPRESSED_KINDS])
{
    uint64_t *mine = engine->meter.last.full_since;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        mine[kind] = zr_engine_packs_kind(engine, kind) || zr_engine_is_onebit(engine) ? full_since[kind] : 0;
    if (zr_engine_is_onebit(engine)) /* one algorithm for both */
        for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
            mine[kind] = mine[kind] > 0 ? mine[kind] : mine[!kind];
}

void zr_engine_get_compression_check(const zr_engine *engine, struct zr_compression_check *out)
{
    struct zr_comm_counters sums = {0};
    *out = engine ? engine->meter.last : (struct zr_compression_check){0};
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && out->steps == 0; kind++)
        out->error[kind] = NAN;
    if (engine)
        zr_comm_counters_add(engine->meter.comm, &sums);
    out->sent_bytes = sums.sent_bytes;
    out->warmup_steps = engine ? engine->warmup.steps : 0;
    out->variance_ratio = engine ? engine->warmup.ratio : 0;
}
