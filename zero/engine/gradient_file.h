/* gradient_file.h: gradient shards in the offload file, from their reduction until the norm is known. Private
 * to engine/.
 *
 * The file has the units with one gradient per step (no accumulation, not tied), unless the update is
 * delayed. A shard is reduced into a slot on the host; there are as many slots as the store has buffers.
 * After the reduction the shard's squares are added to the norm, and the shard is written. The update reads
 * the shards in a pass over the units in order, with read-ahead. During a pass zr_unit_state.reduced may be
 * read between take and give of the unit. */
#ifndef ZR_ENGINE_GRADIENT_FILE_H
#define ZR_ENGINE_GRADIENT_FILE_H

#include "zero/engine/engine.h"

/* Allocates the slots and sets engine->gradient_file.bytes, before the store is opened. Does nothing without
 * units in the file. */
zr_result zr_engine_gradient_file_open(struct zr_engine *engine);
/* After the store is closed, which waits for transfers. */
void zr_engine_gradient_file_close(struct zr_engine *engine);

/* A pass over the units in the file, in order: begin, zr_gradient_place.take and give of each unit, then end,
 * also after a failure. Units that have been updated are skipped. */
zr_result zr_engine_gradients_begin(struct zr_engine *engine);
zr_result zr_engine_gradients_end(struct zr_engine *engine);

#endif
