/* executor.h: the plan executor's calls for the arena. Private to alloc/; plan.h is the interface for other
 * modules.
 *
 * The caller holds the arena's lock unless a declaration says otherwise. */
#ifndef ZR_EXECUTOR_H
#define ZR_EXECUTOR_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/plan/plan.h"

/* Allocates the request at its planned place: an extent of kind ZR_EXTENT_PLANNED, or a dynamic block in a
 * gap, mapped and indexed, which the caller counts. NULL: the request takes the dynamic path. */
struct zr_extent *zr_executor_alloc(struct zr_arena *arena, const struct zr_request *request,
                                    struct zr_need need);
/* Frees a planned block, which was removed from the index and the counters. */
void zr_executor_free(struct zr_arena *arena, struct zr_extent *block);
/* Frees the regions of replaced plans without live blocks (executor->gone). Both locks. */
void zr_executor_retire_gone(struct zr_arena *arena);

/* The block of any kind that begins at the offset, NULL if none. *freed is set if a block that began there
 * was freed. */
struct zr_extent *zr_block_exact(const struct zr_arena *arena, size_t offset_bytes, bool *freed);
/* The last block at or before the offset, NULL if none. The caller checks in the copy (zr_extent_read())
 * whether the block contains the offset. Any thread in a read section of the index, or with the lock. Without
 * the lock, the block may have been reused since. */
struct zr_extent *zr_block_before(const struct zr_arena *arena, size_t offset_bytes, struct zr_extent *copy);
/* zr_arena_commit_plan(), with both locks. */
void zr_executor_commit(struct zr_arena *arena);
/* Records that other streams use the block. */
void zr_executor_note_use(struct zr_extent *block);

/* Notifies the observer. True: call zr_executor_work() after the lock is released. */
bool zr_executor_note_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_extent *block,
                            size_t alignment);
void zr_executor_note_free(struct zr_arena *arena, struct zr_extent *block);
/* Without the lock. */
void zr_executor_work(struct zr_arena *arena);

/* Moves unused granules of regions to the cache; returns the bytes. The plan maps them again on demand. */
size_t zr_executor_give_back(struct zr_arena *arena);
/* Frees granules before `missing_bytes` are requested from the driver for a place with mapped_bytes. Unused
 * granules of replaced plans' regions go first. If a dynamic block would exceed the bytes allowed beside the
 * plan, unused granules of the current plan follow. */
void zr_executor_spare(struct zr_arena *arena, size_t missing_bytes, size_t mapped_bytes, bool dynamic);
/* The bytes that zr_executor_give_back() would move now. */
size_t zr_executor_idle_bytes(struct zr_arena *arena);
/* Iterates over live planned blocks in no order. NULL begins the iteration and ends it. */
struct zr_extent *zr_executor_next_block(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_executor_check(struct zr_arena *arena);
/* Whether the offset lies in a region where, after a failed step, a granule may be mapped without access or
 * notification. The next step at such a granule maps it again. */
bool zr_executor_must_remap(const struct zr_arena *arena, size_t offset_bytes);
/* Frees the executor's records before the arena is destroyed; unmaps nothing. */
void zr_executor_end(struct zr_arena *arena);

#endif
