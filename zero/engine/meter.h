/* meter.h: measures what packing loses, and ends the packing of a kind that loses too much. Private to
 * engine/.
 *
 * In every check_steps-th step each kind is measured on one unit, in turn. Gradients: the first sum of the
 * unit in the step is also made exactly, by a communicator of the meter's own. Parameters: each rank compares
 * its shard before packing with the same shard unpacked. The squares of all ranks are added in rank order, so
 * all ranks have the same error and come to the same decision at the same step; ranks of tensor and pipeline
 * parallelism agree on the largest error. A checkpoint has the decisions (zero/checkpoint/state.c). */
#ifndef ZR_ENGINE_METER_H
#define ZR_ENGINE_METER_H

#include "zero/engine/engine.h"

/* Allocates the shards; nothing without check_steps / frees them and the communicator, which
 * zr_engine_compression_open() creates. */
zr_result zr_meter_open(struct zr_engine *engine);
void zr_meter_close(struct zr_engine *engine);

/* Whether a kind is sent in full precision since an error exceeded the tolerance. */
static inline bool zr_meter_ended(const struct zr_engine *engine, enum zr_compressed_kind kind)
{
    return engine->meter.last.full_since[kind] > 0;
}

/* The check of an operation that is about to be submitted; NULL: it is not measured. */
struct zr_compressed_check *zr_meter_begin(struct zr_engine *engine, size_t unit,
                                           enum zr_compressed_kind kind);
/* Before a compressed sum of gradients, which may overwrite them: makes the exact sum if a check is due /
 * compares both after the sum. */
zr_result zr_meter_begin_sum(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum);
zr_result zr_meter_end_sum(struct zr_engine *engine, size_t unit);
/* At the end of a step, before it counts: reads the checks and decides. Collective in a step with checks. */
zr_result zr_meter_end(struct zr_engine *engine);
/* Ends the packing of the kinds with a step other than 0, as after a load. */
void zr_meter_resume(struct zr_engine *engine, const uint64_t full_since[ZR_COMPRESSED_KINDS]);
/* "parameters", .. */
const char *zr_compressed_kind_name(enum zr_compressed_kind kind);
/* The largest unit's bytes of an exact sum, sent by a rank. */
uint64_t zr_meter_bytes(const struct zr_engine *engine);

#endif
