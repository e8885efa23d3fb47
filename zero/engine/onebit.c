/* onebit.c: see onebit.h. */
#include "zero/engine/onebit.h"

#include "zero/engine/optimizer.h"
#include "zero/engine/update.h"

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
 * block's mean square of momenta. Numbers without variance are masked. */
static void raise_to_momentum(float *variance, const float *momentum, size_t n)
{
    for (size_t first = 0; first < n; first += ZR_PACK_BLOCK) {
        size_t count = n - first < ZR_PACK_BLOCK ? n - first : ZR_PACK_BLOCK;
        double squares = 0;
        for (size_t i = first; i < first + count; i++)
            squares += (double)momentum[i] * (double)momentum[i];
        float least = (float)(squares / (double)count);
        for (size_t i = first; i < first + count; i++)
            variance[i] = variance[i] > 0 && variance[i] < least ? least : variance[i];
    }
}

static zr_result copy(const struct zr_engine *engine, void *to, const void *from, size_t bytes)
{
    return engine->options.kernels->copy_bytes(
        engine->options.context,
        &(struct zr_copy_bytes){.bytes = bytes, .from = from, .to = to, .waits = true});
}

/* Measures or raises the variances of all units. The host works on a copy of a shard in `host` if it cannot
 * access tensors. */
static zr_result settle(struct zr_engine *engine, float *host)
{
    zr_result result = ZR_OK;
    double sum = 0, count = 0;
    for (size_t i = 0; i < 2 * engine->layout.units_count && result == ZR_OK; i++) {
        size_t u = i % engine->layout.units_count;
        const bool raises = i >= engine->layout.units_count; /* the last call: every unit is measured */
        struct zr_owned owned;
        if (zr_engine_is_frozen(engine, u))
            continue;
        result = zr_engine_take_owned(engine, u, &owned);
        size_t n = result == ZR_OK ? owned.to - owned.from : 0;
        float *variance = host ? host : owned.slots[VARIANCE];
        if (host && n > 0)
            result = copy(engine, host, owned.slots[VARIANCE], n * sizeof *host);
        if (raises && n > 0 && result == ZR_OK) {
            if (engine->exchanges_momentum) /* on the host */
                raise_to_momentum(variance, owned.slots[MOMENTUM], n);
            else
                raise(variance, n, (double)engine->options.optimizer.beta1, sum / count);
            if (host)
                result = copy(engine, owned.slots[VARIANCE], host, n * sizeof *host);
            if (engine->optimizer->trust)
                result = copy(engine, owned.slots[ZR_LAMB_FRESH], variance, n * sizeof *variance);
        } else if (n > 0 && result == ZR_OK) {
            sum += mean(variance, n) * (double)n;
            count += (double)n;
        }
        zr_result given = zr_engine_give_owned(engine, u, raises);
        result = result == ZR_OK ? given : result;
    }
    return result;
}

zr_result zr_engine_onebit_settle(struct zr_engine *engine)
{
    float *host = NULL;
    zr_result result = ZR_OK;
    size_t most = 0;
    if (engine->simulated || !zr_engine_sends_signs(engine) ||
        engine->steps_done != engine->options.compression.warmup_steps)
        return ZR_OK;
    for (size_t u = 0; engine->host_invisible && u < engine->layout.units_count; u++) {
        size_t shard = engine->layout.units[u].shard_elements;
        most = shard > most ? shard : most;
    }
    result = zr_take(engine->options.host_arena, ZR_TAG_OTHER, most, sizeof *host, (void **)&host);
    if (result == ZR_OK)
        result = settle(engine, host);
    zr_drop(engine->options.host_arena, &host);
    return result;
}
