/* warmup.h: the warm-up of a method of compression, whose steps send gradients as they are: a number of
 * steps, or with settle_ratio until the variance of AdamW has settled. Private to zero/.
 *
 * A few times in each window of 1 / (1 - beta2) steps, all ranks sum the variances of all shards, in rank
 * order and without the bias of their start at 0. The warm-up ends with the first sum, from warmup_steps on,
 * whose ratio to the sum of a window ago is between settle_ratio and its inverse: the criterion of 1-bit Adam
 * (https://arxiv.org/abs/2102.02888). Skipped steps do not count. A checkpoint has the sums and the end. */
#ifndef ZR_ENGINE_WARMUP_H
#define ZR_ENGINE_WARMUP_H

#include "zero/engine/engine.h"

/* Steps after which a variance has forgotten how it began: 1 / (1 - beta2), rounded up. As a float beta2 is
 * up to 2^-25 below the number that was given. */
uint64_t zr_warmup_window(float beta2);
/* At the end of a step, before it counts: sums and compares if both are due. Collective. */
zr_result zr_warmup_check(struct zr_engine *engine);
/* What a checkpoint has of the warm-up; without settle_ratio: whether it has ended. / As after a load, before
 * parameters are gathered: continues from there. */
struct zr_warmup zr_warmup_get(const struct zr_engine *engine);
void zr_warmup_resume(struct zr_engine *engine, const struct zr_warmup *saved);

/* The variances of this rank's shards. */
struct zr_variances {
    float *host;       /* for a shard's copy, [largest shard]; NULL: the host can access tensors */
    double sum, count; /* of all units that are not frozen, with their padding */
};
/* Sums the shards / frees `host`, also after an error. */
zr_result zr_variances_sum(struct zr_variances *out, struct zr_engine *engine);
void zr_variances_drop(struct zr_variances *variances, const struct zr_engine *engine);

#endif
