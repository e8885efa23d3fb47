/* gradients.h: the way of a unit's gradients from backward to the update, as data. placement.c chooses the
 * path and the place of each unit once. Private to engine/. */
#ifndef ZR_ENGINE_GRADIENTS_H
#define ZR_ENGINE_GRADIENTS_H

#include "zero/engine/engine.h"

/* How gradients become this rank's reduced shard, and what the update reads. */
typedef zr_result zr_gradient_call(struct zr_engine *engine, size_t unit);
struct zr_gradient_path {
    bool adds; /* backward adds to the gradients of the step's earlier micro-batches */
    /* Sets zr_unit_state.written: kept gradients, or a staging block that the gradients pass through. */
    zr_gradient_call *acquire;
    /* Calls after each gradient of a step but the last, and after the last one, up to NULL. */
    zr_gradient_call *const *each, *const *last;
    zr_gradient_call *share; /* sums the reduced gradients over the pipeline ranks that share the unit */
    /* Sets run->gradients, the input of the update; NULL: the reduced gradients / starts to gather it ahead;
     * NULL: nothing to gather. */
    zr_result (*find)(struct zr_engine_run *run, size_t unit);
    zr_result (*gather)(struct zr_engine_run *run, size_t unit);
};
/* One rank: gradients stay where backward writes them. */
extern const struct zr_gradient_path zr_path_alone;
/* Parameter servers: each gradient is pushed by itself, or their sum at the end of a step. */
extern const struct zr_gradient_path zr_path_pushed, zr_path_pushed_once;
/* Whole gradients, one per step or added in place: all-reduce, or reduce-scatter to this rank's shard. */
extern const struct zr_gradient_path zr_path_all_reduce, zr_path_scatter;
/* Whole gradients, added to separate sums: with one rank; to this rank's shard of sums; the same, and the
 * shards of sums are gathered after the last gradient, or when the update reads them. */
extern const struct zr_gradient_path zr_path_sum_alone, zr_path_sum, zr_path_sum_gather, zr_path_sum_used;
/* Staged gradients: reduce-scatter to this rank's shard; with one rank copied to the host and back; with one
 * rank added to sums on the host. */
extern const struct zr_gradient_path zr_path_staged, zr_path_copied, zr_path_added;

/* Where kept gradients are: a pool; a block that exists within a step, whole or a shard; the offload file.
 * NULL: nothing to do. */
struct zr_gradient_place {
    bool in_file;
    void *(*home)(const struct zr_engine *engine, size_t unit);  /* kept gradients; NULL: not yet in memory */
    zr_result (*acquire)(struct zr_engine *engine, size_t unit); /* before backward */
    zr_result (*reserve)(struct zr_engine *engine, size_t unit); /* before a reduction */
    zr_result (*put)(struct zr_engine *engine, size_t unit);     /* after a reduction */
    zr_result (*squares)(struct zr_engine *engine, size_t unit); /* for the norm, unless put() did it */
    /* In a pass over the units in order, before and after the update. */
    zr_result (*take)(struct zr_engine *engine, size_t unit);
    zr_result (*give)(struct zr_engine *engine, size_t unit);
    zr_result (*fetch)(struct zr_engine *engine, size_t unit); /* outside of a pass; until the next call */
};
static inline zr_result zr_gradient_do(zr_result (*call)(struct zr_engine *, size_t),
                                       struct zr_engine *engine, size_t unit)
{
    return call ? call(engine, unit) : ZR_OK;
}
extern const struct zr_gradient_place zr_gradients_none /* of a frozen unit */, zr_gradients_pooled,
    zr_gradients_of_step, zr_gradient_shards_of_step, zr_gradients_filed;
/* zr_unit_state.take_sums: allocates sums that exist within a step. */
zr_result zr_engine_take_sums(struct zr_engine *engine, size_t unit);

/* Sets a unit's kept gradients, and its reduced gradients: among them, or its sums if it has sums. */
void zr_engine_set_kept(struct zr_engine *engine, size_t unit, void *kept);
/* Frees gradients and sums of a unit that exist within a step only. */
void zr_engine_drop_gradients(struct zr_engine *engine, size_t unit);

/* Waits for a unit's reduction and frees its staging block, if any. */
zr_result zr_engine_end_reduction(struct zr_engine *engine, size_t unit);

/* Gradient shards in the offload file, from their reduction until the norm is known (gradient_file.c).
 *
 * The file has the units with one gradient per step (no accumulation, not tied), unless the update is
 * delayed. A shard is reduced into a slot on the host; there are as many slots as the store has buffers.
 * After the reduction the shard's squares are added to the norm, and the shard is written. The update reads
 * the shards in a pass over the units in order, with read-ahead. During a pass zr_unit_state.reduced may be
 * read between take and give of the unit. */

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
