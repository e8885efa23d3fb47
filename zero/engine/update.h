/* update.h: the masters, momentum and variance that this rank updates of a unit, and their update by AdamW or
 * SGD: at the end of a step (optimizer.c), behind the next one (late.c) or before the norm is known
 * (speculate.c). Private to engine/. */
#ifndef ZR_ENGINE_UPDATE_H
#define ZR_ENGINE_UPDATE_H

#include "zero/engine/engine.h"

/* Belongs to the caller until it is given back: see state_store.h. */
zr_result zr_engine_take_owned(struct zr_engine *engine, size_t unit, struct zr_owned *out);
zr_result zr_engine_give_owned(struct zr_engine *engine, size_t unit, bool changed);
/* Rounds this rank's masters into its parameters; nothing to do in fp32. */
zr_result zr_engine_round_masters(struct zr_engine *engine, size_t unit);

/* What the next update has for all parameters; `gradient_scale` undoes the loss scale and clips. */
struct zr_engine_update zr_engine_update_of(const struct zr_engine *engine, float rate, float gradient_scale);
/* All that this rank owns of a unit, window by window. `gradients` are those of its first element on. */
zr_result zr_engine_update_unit(struct zr_engine *engine, size_t unit, struct zr_numbers gradients,
                                const struct zr_engine_update *update);
/* The window's part; see offload.h. */
struct zr_window;
zr_result zr_engine_update_window(struct zr_engine *engine, size_t unit, struct zr_numbers gradients,
                                  const struct zr_engine_update *update, const struct zr_owned *owned,
                                  const struct zr_window *window);

#endif
