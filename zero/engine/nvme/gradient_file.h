/* gradient_file.h: shards of gradients that wait for the norm in the offload file, beside the state that they
 * update. Private to engine/.
 *
 * Of an engine with an offload file: units that have one gradient in a step (no accumulation, not tied), but
 * for a delayed update. A shard is reduced into one of the slots on the host, as many as the store has
 * buffers; when its reduction has ended its squares are counted for the norm, and it is written. The update
 * reads all of them in a pass over the units in order that reads ahead. Between take and give of a pass,
 * zr_engine_shard_gradients() is in memory.
 */
#ifndef ZR_ENGINE_GRADIENT_FILE_H
#define ZR_ENGINE_GRADIENT_FILE_H

#include "zero/engine/engine.h"

/* Slots, and bytes of the file that engine->gradient_file.bytes then says; before the store opens. Nothing
 * where no unit is filed. */
zr_result zr_engine_gradient_file_open(struct zr_engine *engine);
/* After the store, which ends what is under way. */
void zr_engine_gradient_file_close(struct zr_engine *engine);

/* Of a unit that is not filed these do nothing. A slot for a reduction that is about to start: */
zr_result zr_engine_gradient_slot(struct zr_engine *engine, size_t unit);
/* It has ended: counts the unit's squares, and starts to write it. */
zr_result zr_engine_gradient_write(struct zr_engine *engine, size_t unit);
/* Reads one by itself, outside of a pass; good until the next. */
zr_result zr_engine_gradient_fetch(struct zr_engine *engine, size_t unit);

/* begin, take and give of each unit in order, end: also after a failure. Those of units that have their
 * update are not read. */
zr_result zr_engine_gradients_begin(struct zr_engine *engine);
zr_result zr_engine_gradients_take(struct zr_engine *engine, size_t unit);
zr_result zr_engine_gradients_give(struct zr_engine *engine, size_t unit);
zr_result zr_engine_gradients_end(struct zr_engine *engine);

#endif
