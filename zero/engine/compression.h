/* compression.h: which of an engine's operations send packed numbers (zero/compress/), and those operations.
 * Private to engine/. */
#ifndef ZR_ENGINE_COMPRESSION_H
#define ZR_ENGINE_COMPRESSION_H

#include "zero/engine/engine.h"

/* Whether some operation sends packed numbers. */
bool zr_engine_packs(const struct zr_engine *engine);
/* Whether the device tier has masters separate from the parameters: in two bytes, and if parameters arrive
 * packed. */
bool zr_engine_keeps_exact_masters(const struct zr_engine *engine);

/* Allocates the staging block, whose size placement.c must have decided. Does nothing if nothing is packed.
 */
zr_result zr_engine_compression_open(struct zr_engine *engine);
/* After all operations have ended. */
void zr_engine_compression_close(struct zr_engine *engine);

/* Gather a unit's shards of parameters / sum the ranks' gradients to this rank's shard, packed or as they
 * are; the ticket is the unit's parameter_ticket or reduce_ticket. */
zr_result zr_engine_gather_shards(struct zr_engine *engine, size_t unit, const struct zr_all_gather *gather);
/* Adds the signs of what the owners have changed to a unit's parameters on all ranks, see onebit.h. */
zr_result zr_engine_send_difference(struct zr_engine *engine, size_t unit);
zr_result zr_engine_sum_shards(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum);

#endif
