/* onebit.h: AdamW and LAMB with one bit per number, at stage 1; momentum.h has stage 0, lamb.c LAMB's trust
 * ratios. Private to engine/.
 *
 * The first warmup_steps steps are the optimizer's. Then the variance stays as it is, and
 *   to the owner of a shard   go the signs of gradient + error, with a scale for each block; the sender keeps
 *                             what they do not say as the error of its next gradient (errors.h);
 *   from the owner            go the signs of master - parameter. All ranks, the owner too, add them to their
 *                             parameters, which are therefore the same on every rank. What the signs do not
 *                             say is in the next difference, so the owner needs no error of its own.
 * Source: 1-bit Adam (https://arxiv.org/abs/2102.02888), which compresses the momentum of whole parameters;
 * with sharded state the owner has the momentum, and the gradient is compressed instead. */
#ifndef ZR_ENGINE_ONEBIT_H
#define ZR_ENGINE_ONEBIT_H

#include "zero/engine/errors.h"

/* Whether the engine sends signs in some steps (zerone.h, too) / in this step, or is local. */
static inline bool zr_engine_is_onebit(const struct zr_engine *engine)
{
    return zr_engine_sends_by(engine, ZR_METHOD_ONEBIT) || zr_engine_sends_by(engine, ZR_METHOD_ZERONE);
}
static inline bool zr_engine_sends_signs(const struct zr_engine *engine)
{
    return zr_engine_is_onebit(engine) && zr_engine_feeds_errors(engine);
}

/* In the first step that sends signs after one that moves the variance, before its updates: raises small
 * variances, because signs move numbers without gradients, too, and a variance near zero would make these
 * moves large. Does nothing in other steps. */
zr_result zr_engine_onebit_settle(struct zr_engine *engine);

#endif
