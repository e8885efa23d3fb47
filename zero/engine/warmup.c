/* warmup.c: see warmup.h. */
#include "zero/engine/warmup.h"

#include <math.h>

#include "zero/engine/errors.h"
#include "zero/engine/meter.h"
#include "zero/engine/update.h"

enum { VARIANCE = 1, /* slot of AdamW */ CHECKS_PER_WINDOW = 4 };

uint64_t zr_warmup_window(float beta2)
{
    return (uint64_t)ceil(1 / (1 - (double)beta2 + 0x1p-25));
}

/* ---- Sums of variances --------------------------------------------------------------------------------- */

/* Adds the part of a unit's shard that this rank has. */
static zr_result add_shard(struct zr_variances *to, struct zr_engine *engine, size_t unit)
{
    struct zr_owned owned;
    const size_t shard = engine->layout.units[unit].shard_elements;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    if (result == ZR_OK) {
        size_t first = engine->rank * shard, end = first + shard;
        first = first > owned.from ? first : owned.from;
        end = end < owned.to ? end : owned.to;
        size_t n = end > first ? end - first : 0;
        const float *variance = (const float *)owned.slots[VARIANCE] + (n ? first - owned.from : 0);
        if (to->host && n > 0) {
            result = zr_engine_copy(engine, to->host, variance, n * sizeof *variance);
            variance = to->host;
        }
        for (size_t i = 0; i < n && result == ZR_OK; i++)
            to->sum += (double)variance[i];
        to->count += (double)n;
    }
    zr_result given = zr_engine_give_owned(engine, unit, false);
    return result == ZR_OK ? given : result;
}

zr_result zr_variances_sum(struct zr_variances *out, struct zr_engine *engine)
{
    size_t most = 0, units = engine->layout.units_count;
    *out = (struct zr_variances){.host = NULL};
    for (size_t u = 0; engine->host_invisible && u < units; u++) {
        size_t shard = engine->layout.units[u].shard_elements;
        most = shard > most ? shard : most;
    }
    zr_result result =
        zr_take(engine->options.host_arena, ZR_TAG_OTHER, most, sizeof *out->host, (void **)&out->host);
    for (size_t u = 0; u < units && result == ZR_OK; u++)
        if (!zr_engine_is_frozen(engine, u))
            result = add_shard(out, engine, u);
    return result;
}

void zr_variances_drop(struct zr_variances *variances, const struct zr_engine *engine)
{
    zr_drop(engine->options.host_arena, &variances->host);
}

/* The sum over all ranks, divided by 1 - beta2^t. */
static zr_result sum_of_all(struct zr_engine *engine, double *out)
{
    struct zr_variances mine;
    double all[ZR_MAX_WORLD], sum = 0, steps = (double)(engine->steps_done + 1);
    zr_result result = zr_variances_sum(&mine, engine);
    zr_variances_drop(&mine, engine);
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(engine->options.comm, &mine.sum, sizeof mine.sum, all);
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++)
        sum += all[r];
    *out = sum / (1 - pow((double)engine->options.optimizer.beta2, steps));
    return result;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

zr_result zr_warmup_check(struct zr_engine *engine)
{
    struct zr_warmup *warmup = &engine->warmup;
    const struct zr_compression *how = &engine->options.compression;
    const uint64_t window = zr_warmup_window(engine->options.optimizer.beta2),
                   every = window < CHECKS_PER_WINDOW ? 1 : window / CHECKS_PER_WINDOW,
                   before = (window + every - 1) / every * every, done = engine->steps_done + 1;
    double sum;
    if (how->settle_ratio == 0 || !zr_engine_warms_up(engine) ||
        zr_meter_ended(engine, ZR_COMPRESSED_GRADIENTS) || done % every != 0)
        return ZR_OK;
    zr_result result = sum_of_all(engine, &sum);
    if (result != ZR_OK)
        return result;
    const struct zr_warmup_sum *old = &warmup->sums[(done - before) / every % ZR_WARMUP_SUMS];
    warmup->ratio = done > before && old->steps == done - before && old->sum > 0 ? sum / old->sum : 0;
    warmup->sums[done / every % ZR_WARMUP_SUMS] = (struct zr_warmup_sum){done, sum};
    warmup->ended = done >= how->warmup_steps && warmup->ratio >= how->settle_ratio &&
                    warmup->ratio * how->settle_ratio <= 1;
    warmup->steps = warmup->ended ? done : 0;
    return ZR_OK;
}

struct zr_warmup zr_warmup_get(const struct zr_engine *engine)
{
    const struct zr_compression *how = &engine->options.compression;
    return how->settle_ratio > 0 ? engine->warmup
                                 : (struct zr_warmup){.ended = engine->steps_done >= how->warmup_steps,
                                                      .steps = how->warmup_steps};
}

void zr_warmup_resume(struct zr_engine *engine, const struct zr_warmup *saved)
{
    engine->warmup =
        engine->options.compression.settle_ratio > 0 ? *saved : (struct zr_warmup){.ended = false};
}
