/* late.h: the delayed update (ZeRO-Offload): while a step computes, a thread of its own updates masters by
 * the gradients of the step before, and the parameters follow when the step ends. So a step computes with
 * parameters that have not seen the gradients of the step before it. Private to engine/.
 *
 * Shards of gradients have two places by turns: one is filled by the step, one is read by the update, which
 * writes new parameters into a place of their own on the host. From there they are copied to where steps read
 * them; the copies of the last units go on while the next forward begins, and the next update overwrites a
 * unit's when its copy has ended. */
#ifndef ZR_ENGINE_LATE_H
#define ZR_ENGINE_LATE_H

#include "zero/engine/engine.h"

zr_result zr_engine_late_open(struct zr_engine *engine);
void zr_engine_late_close(struct zr_engine *engine);
/* The end of a step, when its gradients are found good: they become those of the update that starts now. None
 * is pending. */
zr_result zr_engine_late_start(struct zr_engine *engine, const struct zr_engine_update *update);
/* Waits for the update, if one is under way. */
zr_result zr_engine_late_await(struct zr_engine *engine);
/* Its parameters come to all that keep them; nobody uses any. Collective. Of none that is pending it does
 * nothing. */
zr_result zr_engine_late_publish(struct zr_engine *engine);

#endif
