/* space.h: addresses: free extents, best fit, carving and merging. Private to alloc/.
 *
 * The caller has reserved the extent records, so nothing here fails, except reserving addresses for a plan.
 * lock: arena->lock */
#ifndef ZR_CORE_SPACE_H
#define ZR_CORE_SPACE_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"

static inline size_t zr_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

static inline size_t zr_round_down(size_t bytes, size_t unit)
{
    return bytes & ~(unit - 1);
}

enum { ZR_CARVE_EXTENTS = 2 };
/* Records that the current operation may have reserved and not used yet. Code that takes extent records
 * within another operation leaves this many. */
enum { ZR_PROMISED_EXTENTS = 2 * ZR_CARVE_EXTENTS };

/* What a search looks for. */
struct zr_need {
    size_t bytes, alignment;
};

/* A place for a block. */
struct zr_place {
    struct zr_extent *gap; /* NULL: there is no place */
    size_t offset_bytes;
    size_t missing; /* granules to map */
};

/* Divides the range into zones, each with one free extent. */
void zr_space_init(struct zr_arena *arena);
/* The best fit for the need. `owner`: the number of the request's stream; 0: the stream owns no free extents.
 */
struct zr_place zr_space_find(const struct zr_arena *arena, struct zr_need need, unsigned owner);
/* Turns a part of a free extent into a block. All fields except the place are undefined. */
struct zr_extent *zr_space_carve(struct zr_arena *arena, struct zr_extent *gap, struct zr_bounds part);
/* Carves the block from the low end of the best fit if that place is mapped, has no owner and exceeds the
 * need by at most `excess_bytes`, which is the common case. NULL: *place is the result of zr_space_find(). */
struct zr_extent *zr_space_take(struct zr_arena *arena, struct zr_need need, unsigned owner,
                                size_t excess_bytes, struct zr_place *place);
/* Turns the place, from `from` or a later extent on, into a block if all of it is free, mapped, in one zone
 * and without an owner but `owner`. NULL: it is not. The fields are undefined as for zr_space_carve(). */
struct zr_extent *zr_space_take_at(struct zr_arena *arena, struct zr_extent *from, struct zr_bounds place,
                                   unsigned owner);
/* Turns the block into a free extent of block->owner and merges it with its neighbours. The record becomes
 * the free extent's, or is freed. */
void zr_space_free(struct zr_arena *arena, struct zr_extent *block);
/* The neighbour if it is a free extent that the extent would merge with; else NULL. */
static inline struct zr_extent *zr_free_extent_beside(const struct zr_extent *extent,
                                                      struct zr_extent *neighbour)
{
    return neighbour && neighbour->marks.word == zr_extent_marks_as(extent, ZR_EXTENT_FREE).word ? neighbour
                                                                                                 : NULL;
}

/* Removes the owner of a free extent, so that every stream may use it. */
void zr_space_disown(struct zr_arena *arena, struct zr_extent *gap);
/* Free bytes that have an owner, and bytes of deferred blocks. */
size_t zr_space_pending_bytes(const struct zr_arena *arena);

/* The whole granules within a free extent, without those that were never mapped. */
struct zr_granule_range zr_free_extent_granules(const struct zr_arena *arena, const struct zr_extent *gap);
/* Iterates over free extents without an owner: the open ends, then by zone from the largest on. Start with
 * NULL; NULL ends the iteration. Extents smaller than a granule are skipped. */
struct zr_extent *zr_space_next_free(const struct zr_arena *arena, const struct zr_extent *gap);
/* Bytes of whole mapped granules in free extents, which could be mapped elsewhere. The second function stops
 * at `max_bytes`. */
size_t zr_space_idle_bytes(const struct zr_arena *arena);
size_t zr_space_idle_up_to(const struct zr_arena *arena, size_t max_bytes);

/* ---- Addresses reserved for a plan --------------------------------------------------------------------- */

/* The caller holds both locks of the arena. */

/* Reserves whole granules of addresses. ZR_ERR_ADDRESSES: too few consecutive addresses. */
zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* As zr_region_reserve(), at addresses without mappings. */
zr_result zr_region_reserve_clear(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* As zr_region_reserve(), at addresses that were never mapped if any are left, so that no unmap is needed. */
zr_result zr_region_reserve_unused(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* Turns the region into a free extent with its mappings. Cannot fail. */
void zr_region_release(struct zr_arena *arena, struct zr_extent *region);

#endif
