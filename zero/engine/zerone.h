/* zerone.h: 0/1 Adam (https://arxiv.org/abs/2202.06009): AdamW at stage 0 whose ranks take local steps.
 * Private to zero/. A step is one of three kinds, by its number:
 *
 *   full    The ranks' gradients are averaged in full precision, and all ranks make the same step of AdamW.
 *           Only these steps move the variance. Their interval is 1, and doubles after every
 *           zerone.variance_updates of them. From step warmup_steps on there are none.
 *   sent    Each rank moves the momentum by its own gradients. The ranks exchange the mean of their momenta
 *           since the last sent step, weighted by the rates, as signs with errors (momentum.h). All ranks
 *           go back to the parameters of the last sent step, the anchor, and make one step of AdamW from
 *           there, with the exchanged momentum and the sum of the rates.
 *   local   Each rank moves the momentum and its parameters by its own gradients, and sends nothing.
 *
 * Before step warmup_steps every step that is not full is sent. From there on one of every 1, 2, 4, .. steps
 * is sent: the interval doubles every zerone.local_steps steps, up to zerone.interval_max.
 *
 * The paper exchanges the sum of rate times momentum; the mean has the same signs, and its errors keep their
 * meaning when the rate changes. In the paper a full step also exchanges signs. */
#ifndef ZR_ENGINE_ZERONE_H
#define ZR_ENGINE_ZERONE_H

#include "zero/engine/errors.h"

struct zr_engine_run;
struct zr_engine_update;

/* How many of the first `steps` steps are of each kind. */
struct zr_zerone_counts {
    uint64_t full, sent, local;
};
struct zr_zerone_counts zr_zerone_counts(const struct zr_compression *how, uint64_t steps);

static inline bool zr_engine_is_zerone(const struct zr_engine *engine)
{
    return zr_engine_sends_by(engine, ZR_METHOD_ZERONE);
}
/* Whether the current step is full / local, or the step before it full. A plan is of sent steps. */
bool zr_engine_is_full(const struct zr_engine *engine);
bool zr_engine_is_local(const struct zr_engine *engine);
bool zr_engine_was_full(const struct zr_engine *engine);
/* Full steps up to the current one: the number of updates of the variance. */
uint64_t zr_engine_variance_updates(const struct zr_engine *engine);

/* For momentum.c, between local steps; each does nothing if no local step with a rate has run. Keep the
 * anchor and add this step's momentum to the buffer / put the mean of this step's momentum and the buffer in
 * the momentum's place / go back to the anchor. `span`: sets the update's rate and correction to those of all
 * steps since the last sent one. */
void zr_engine_local_keep(const struct zr_engine_run *run, size_t unit);
void zr_engine_local_mean(const struct zr_engine_run *run, size_t unit);
void zr_engine_local_return(const struct zr_engine *engine, size_t unit);
void zr_engine_local_span(const struct zr_engine_run *run, struct zr_engine_update *update);
/* For checkpoints: this rank's parameters of the last sent step / weighted sums of its momenta since then,
 * [padded_elements]; valid if engine->local.count is above 0. `swap` exchanges masters and anchors of all
 * units, and does nothing without local steps. */
float *zr_engine_anchor(const struct zr_engine *engine, size_t unit);
float *zr_engine_buffer(const struct zr_engine *engine, size_t unit);
void zr_engine_local_swap(const struct zr_engine *engine);
/* At the end of a step. */
void zr_engine_local_count(const struct zr_engine_run *run);

#endif
