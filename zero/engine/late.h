/* late.h: the delayed update (ZeRO-Offload): while a step computes, a thread updates masters with the
 * gradients of the previous step, and the new parameters are published at the end of the step. A step
 * therefore computes with parameters that do not contain the previous step's gradients. Private to engine/.
 *
 * Gradient shards are double-buffered: the step fills one buffer while the update reads the other. The update
 * writes new parameters to a separate host buffer, from which they are copied to where steps read them. The
 * last copies overlap with the next forward; the next update waits for a unit's copy before it overwrites the
 * buffer. */
#ifndef ZR_ENGINE_LATE_H
#define ZR_ENGINE_LATE_H

#include "zero/engine/engine.h"

zr_result zr_engine_late_open(struct zr_engine *engine);
void zr_engine_late_close(struct zr_engine *engine);
/* Starts an update with the gradients of the step that ends. No update may be pending. */
zr_result zr_engine_late_start(struct zr_engine *engine, const struct zr_engine_update *update);
/* Waits for the update's thread, if it runs. */
zr_result zr_engine_late_await(struct zr_engine *engine);
/* Copies the new parameters to where they are kept, on all ranks; does nothing if no update is pending.
 * Collective; no unit may be in use. */
zr_result zr_engine_late_publish(struct zr_engine *engine);

#endif
