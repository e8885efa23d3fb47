/* follow.h: the arena's side of following a plan. Private to alloc/; plan.h is what the other rooms see.
 *
 * All of it under the arena's lock unless a function says otherwise. */
#ifndef ZR_FOLLOW_H
#define ZR_FOLLOW_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/plan/plan.h"

/* The planned place for the request, mapped, taken and found by its address: an extent of kind
 * ZR_EXTENT_PLANNED that the caller counts. NULL: the request takes the dynamic path. */
struct zr_extent *zr_follow_alloc(struct zr_arena *arena, const struct zr_request *request,
                                  struct zr_need need);
/* A planned block that is no longer found, nor counted. */
void zr_follow_free(struct zr_arena *arena, struct zr_extent *block);
/* Replaced plans may have no live block any more (follow->gone): their regions become free space. Both locks.
 */
void zr_follow_retire_gone(struct zr_arena *arena);

/* The block of any kind that begins at the offset, NULL if none does; *freed says that one did before. */
struct zr_extent *zr_block_exact(const struct zr_arena *arena, size_t offset_bytes, bool *freed);
/* The block that may hold the offset, NULL if there is none: the caller looks whether it reaches that far, in
 * the copy (zr_extent_read()). Any thread inside a read section of the index, or with the lock, without which
 * the block itself may be another by now. */
struct zr_extent *zr_block_before(const struct zr_arena *arena, size_t offset_bytes, struct zr_extent *copy);
/* zr_arena_commit_plan(), with both locks. */
void zr_follow_commit(struct zr_arena *arena);
/* Other streams use the block. */
void zr_follow_note_use(struct zr_extent *block);

/* Tells the observer. True: call zr_follow_work() once the lock is open. */
bool zr_follow_note_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_extent *block,
                          size_t alignment);
void zr_follow_note_free(struct zr_arena *arena, struct zr_extent *block);
/* Without the lock. */
void zr_follow_work(struct zr_arena *arena);

/* Unmaps granules of regions that no block uses, into the cache; returns the bytes. The plan maps them again
 * when it needs them. */
size_t zr_follow_give_back(struct zr_arena *arena);
/* Before so many bytes are asked of the driver, for a place that has others mapped: first what regions of
 * replaced plans do not use; then, where a dynamic block would lead beyond what the arena may hold, what the
 * plan does not use just now. */
void zr_follow_spare(struct zr_arena *arena, size_t missing_bytes, size_t mapped_bytes, bool dynamic);
/* What it would give back. */
size_t zr_follow_idle_bytes(struct zr_arena *arena);
/* The live planned block after this one, NULL at the end; NULL gives the first. In no order. */
struct zr_extent *zr_follow_next_block(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_follow_check(struct zr_arena *arena);
/* True in a region where a granule may have been mapped for a step, got no access or was not notified, and
 * was kept by the driver all the same. The next step on it tries anew. */
bool zr_follow_owes(const struct zr_arena *arena, size_t offset_bytes);
/* Before the arena ends; nothing is unmapped. */
void zr_follow_end(struct zr_arena *arena);

#endif
