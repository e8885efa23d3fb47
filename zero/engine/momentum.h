/* momentum.h: AdamW and LAMB with one bit per number at stage 0: 1-bit Adam
 * (https://arxiv.org/abs/2102.02888); lamb.c has LAMB's trust ratios. Private to engine/.
 *
 * The first warmup_steps steps are the optimizer's. Then the variance stays as it is, and in each step a rank
 *   moves the momentum, which is the same on all ranks, by its own gradients;
 *   sends the signs of momentum + error to the owner of each shard, and keeps what they do not say as the
 *   error of its next momentum (errors.h);
 *   averages its shard, adds its error as an owner, and sends the signs of that to all ranks;
 *   updates its parameters with the momentum that these signs give, the same on all ranks.
 * A number whose variance is exactly 0 had no gradient in the warm-up, and an update would divide by
 * epsilon: its momentum and errors remain 0, as those of padding do. Gradients of a step are added in place.
 * Their norm is the root of the mean of the ranks' squares, as no rank has their sum. With zerone.h some of
 * these steps are local: they move and apply this rank's momentum. */
#ifndef ZR_ENGINE_MOMENTUM_H
#define ZR_ENGINE_MOMENTUM_H

#include "zero/engine/errors.h"

/* Whether ranks send momentum in this step, at stage 0, or are local. */
static inline bool zr_engine_sends_momentum(const struct zr_engine *engine)
{
    return engine->exchanges_momentum && zr_engine_feeds_errors(engine);
}

/* Whether an update is the first of the two below, which moves momentum. */
static inline bool zr_engine_moves_only(const struct zr_engine *engine, const struct zr_engine_update *update)
{
    return zr_engine_sends_momentum(engine) && !update->keeps_momentum;
}

/* In place of ZR_ACTION_UPDATE: moves the momentum of the taken unit and starts to exchange it, or in a local
 * step updates the unit / with
 * ZR_ACTION_PUBLISH, one unit later: waits for it and updates the unit. They do nothing in other steps.
 * Called by the thread that runs the list, on all ranks for the same units in the same order; the masters do
 * not change in between. Errors as of the kernels and of zr_comm_all_gather(). */
zr_result zr_engine_momentum_send(struct zr_engine_run *run, size_t unit);
zr_result zr_engine_momentum_apply(struct zr_engine_run *run, size_t unit);
/* After a load of engine->local, buffers and, in place of masters and anchors, anchors and masters. From the
 * same number of ranks: continues local steps. From `former` other ones, whose buffers were added: averages
 * the buffers and ends the local steps in full precision, from the masters. */
zr_result zr_engine_local_resume(struct zr_engine *engine, uint64_t former);

#endif
