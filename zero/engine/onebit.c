/* onebit.c: see onebit.h. */
#include "zero/engine/onebit.h"

#include "zero/engine/optimizer.h"
#include "zero/engine/update.h"
#include "zero/engine/warmup.h"
#include "zero/engine/zerone.h"

enum { MOMENTUM, VARIANCE }; /* slots of AdamW and LAMB */

static double mean(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return n ? sum / (double)n : 0;
}

/* The signs of a number without gradients alternate, +s, -s, with s the root of the block's mean square, and
 * its momentum becomes s (1 - beta1) / (1 + beta1). With at least the square of this as variance the number
 * moves by no more than the learning rate. A block without variance, as of tokens that the warm-up has not
 * seen, has that of the whole shard, and a shard without variance `other`. */
static void raise(float *variance, size_t n, double beta1, double other)
{
    const double share = (1 - beta1) / (1 + beta1), of_shard = mean(variance, n),
                 all = of_shard > 0 ? of_shard : other;
    for (size_t first = 0; first < n; first += ZR_PACK_BLOCK) {
        size_t count = n - first < ZR_PACK_BLOCK ? n - first : ZR_PACK_BLOCK;
        double of_block = mean(variance + first, count);
        float least = (float)(share * share * (of_block > 0 ? of_block : all));
        for (size_t i = first; i < first + count; i++)
            variance[i] = variance[i] > least ? variance[i] : least;
    }
}

/* At stage 0 the signs are those of the momentum, and a number without gradients moves by the root of the
 * block's mean square of momenta. `factor`: of momentum and variance that are not corrected yet. Numbers
 * without variance are masked. */
static void raise_to_momentum(float *variance, const float *momentum, size_t n, double factor)
{
    for (size_t first = 0; first < n; first += ZR_PACK_BLOCK) {
        size_t count = n - first < ZR_PACK_BLOCK ? n - first : ZR_PACK_BLOCK;
        double squares = 0;
        for (size_t i = first; i < first + count; i++)
            squares += (double)momentum[i] * (double)momentum[i];
        float least = (float)(factor * squares / (double)count);
        for (size_t i = first; i < first + count; i++)
            variance[i] = variance[i] > 0 && variance[i] < least ? least : variance[i];
    }
}

/* With zerone the first signs are sent early. */
static double factor_of(const struct zr_engine *engine)
{
    const struct zr_optimizer_options *o = &engine->options.optimizer;
    float now[2], variance[2];
    if (!zr_engine_is_zerone(engine))
        return 1;
    engine->optimizer->corrections(o, (double)engine->steps_done, now);
    engine->optimizer->corrections(o, (double)zr_engine_variance_updates(engine), variance);
    return (double)variance[1] / ((double)now[0] * (double)now[0]);
}

/* Raises the variances of a unit. The host works on a copy if it cannot access tensors. `all`: of the rank's
 * shards. */
static zr_result raise_unit(struct zr_engine *engine, size_t unit, const struct zr_variances *all)
{
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    size_t n = result == ZR_OK ? owned.to - owned.from : 0;
    float *variance = all->host ? all->host : owned.slots[VARIANCE];
    if (all->host && n > 0)
        result = zr_engine_copy(engine, variance, owned.slots[VARIANCE], n * sizeof *variance);
    if (n > 0 && result == ZR_OK && engine->exchanges_momentum) /* on the host */
        raise_to_momentum(variance, owned.slots[MOMENTUM], n, factor_of(engine));
    else if (n > 0 && result == ZR_OK)
        raise(variance, n, (double)engine->options.optimizer.beta1, all->sum / all->count);
    if (all->host && n > 0 && result == ZR_OK)
        result = zr_engine_copy(engine, owned.slots[VARIANCE], variance, n * sizeof *variance);
    if (n > 0 && result == ZR_OK && engine->optimizer->trust)
        result = zr_engine_copy(engine, owned.slots[ZR_LAMB_FRESH], variance, n * sizeof *variance);
    zr_result given = zr_engine_give_owned(engine, unit, true);
    return result == ZR_OK ? given : result;
}

zr_result zr_engine_onebit_settle(struct zr_engine *engine)
{
    struct zr_variances all;
    if (engine->simulated || !zr_engine_sends_signs(engine) ||
        !(zr_engine_is_zerone(engine) ? zr_engine_was_full(engine)
                                      : engine->steps_done == zr_engine_warmup_steps(engine)))
        return ZR_OK;
    zr_result result = zr_variances_sum(&all, engine);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        if (!zr_engine_is_frozen(engine, u))
            result = raise_unit(engine, u, &all);
    zr_variances_drop(&all, engine);
    return result;
}
