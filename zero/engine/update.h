/* update.h: the update of a unit's masters, momentum and variance by AdamW or SGD: at the end of a step
 * (actions.c), during the next step (delayed.c) or before the norm is known (speculate.c). Private to
 * zero/.
 */
#ifndef ZR_ENGINE_UPDATE_H
#define ZR_ENGINE_UPDATE_H

#include "zero/engine/engine.h"

/* When the stores are open: sets zr_unit_state.owned, as far as it is in memory. */
zr_result zr_engine_find_owned(struct zr_engine *engine, size_t unit);
/* Take and give this rank's part of a unit: see state_store.h. */
zr_result zr_engine_take_owned(struct zr_engine *engine, size_t unit, struct zr_owned *out);
zr_result zr_engine_give_owned(struct zr_engine *engine, size_t unit, bool changed);
/* Rounds this rank's masters to its parameters; does nothing in fp32. */
zr_result zr_engine_round_masters(struct zr_engine *engine, size_t unit);

/* Publishes new masters of a unit: rounds them and starts the all-gather of what peers keep of them. */
zr_result zr_engine_publish_masters(struct zr_engine *engine, size_t unit);

/* average.c: starts the moving average, or the anchor, of a part of `owned` with the parameters' values; does
 * nothing if there is neither. */
zr_result zr_engine_start_average(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                                  struct zr_overlap part);

/* Arguments of the next update; `gradient_scale` contains loss scale and clipping. */
struct zr_engine_update zr_engine_update_of(const struct zr_engine *engine, float rate, float gradient_scale);
/* Kernels and context that update a unit. */
struct zr_compute zr_engine_updater(const struct zr_engine *engine, size_t unit,
                                    const struct zr_engine_update *update);

/* ---- The delayed update -------------------------------------------------------------------------------- */

/* As in ZeRO-Offload: while a step computes, a thread updates masters with the gradients of the previous
 * step, and the new parameters are published at the end of the step. A step therefore computes with
 * parameters that do not contain the previous step's gradients.
 *
 * Gradient shards are double-buffered: the step fills one buffer while the update reads the other. The update
 * writes new parameters to a separate host buffer, from which they are copied to where steps read them. The
 * last copies overlap with the next forward; the next update waits for a unit's copy before it overwrites the
 * buffer. */

void zr_engine_delayed_close(struct zr_engine *engine);
/* Keeps what was prepared for a unit's next update, which owns it / frees it. */
void zr_engine_delayed_keep(struct zr_engine *engine, size_t unit, struct zr_prepared *prepared);
/* Starts an update with the gradients of the step that ends. No update may be pending. */
zr_result zr_engine_delayed_start(struct zr_engine *engine, const struct zr_engine_update *update);
/* After zr_engine_delayed_await(): the update is not published. */
void zr_engine_delayed_forget(struct zr_engine *engine);
/* Waits for the update's thread, if it runs. */
zr_result zr_engine_delayed_await(struct zr_engine *engine);
/* Copies the new parameters to where they are kept, on all ranks; does nothing if no update is pending.
 * Collective; no unit may be in use. */
zr_result zr_engine_delayed_publish(struct zr_engine *engine);
/* Starts to copy one unit's new parameters to where they are kept. */
zr_result zr_engine_delayed_put(struct zr_engine *engine, size_t unit);

/* ---- versions.c ----------------------------------------------------------------------------------------
 *
 * Earlier versions of the parameters, for asynchronous pipelines. The newest version is in the parameters'
 * own place, where updates, saves and evaluations find it. Before an update changes it, a copy replaces the
 * oldest of the stashed versions, whose last reader has run. Only whole parameters on the device have
 * versions, so a rank's copy needs no communication. */

/* Allocates options.stashed_versions pools, tag param; zr_engine_destroy() frees them. */
zr_result zr_engine_versions_open(struct zr_engine *engine);
/* ZR_ACTION_STASH: replaces the oldest version by the newest. Waits for gathers of new parameters. */
zr_result zr_engine_versions_stash(struct zr_engine *engine);
/* Between steps, with a drained pipeline: makes all versions the newest. */
zr_result zr_engine_versions_restart(struct zr_engine *engine);
/* A unit's parameters `age` updates ago, at most options.stashed_versions; `newest`: those that
 * zr_engine_gather() has returned. Valid until the next ZR_ACTION_STASH. */
const void *zr_engine_version(const struct zr_engine *engine, const void *newest, unsigned age);

#endif
