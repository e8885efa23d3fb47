/* update.h: the update of a unit's masters, momentum and variance by AdamW or SGD: at the end of a step
 * (optimizer.c), during the next step (late.c) or before the norm is known (speculate.c). Private to engine/.
 */
#ifndef ZR_ENGINE_UPDATE_H
#define ZR_ENGINE_UPDATE_H

#include "zero/engine/engine.h"

/* Take and give this rank's part of a unit: see state_store.h. */
zr_result zr_engine_take_owned(struct zr_engine *engine, size_t unit, struct zr_owned *out);
zr_result zr_engine_give_owned(struct zr_engine *engine, size_t unit, bool changed);
/* Rounds this rank's masters to its parameters; does nothing in fp32. */
zr_result zr_engine_round_masters(struct zr_engine *engine, size_t unit);

/* Arguments of the next update; `gradient_scale` contains loss scale and clipping. */
struct zr_engine_update zr_engine_update_of(const struct zr_engine *engine, float rate, float gradient_scale);
/* Updates this rank's part of a unit, window by window. `gradients` begin with the part's first element. */
zr_result zr_engine_update_unit(struct zr_engine *engine, size_t unit, struct zr_numbers gradients,
                                const struct zr_engine_update *update);
/* Updates one window; see offload.h. */
struct zr_window;
zr_result zr_engine_update_window(struct zr_engine *engine, size_t unit, struct zr_numbers gradients,
                                  const struct zr_engine_update *update, const struct zr_owned *owned,
                                  const struct zr_window *window);

#endif
