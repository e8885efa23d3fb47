/* space.h: addresses: free extents, best fit, carving and merging. Private to alloc/.
 *
 * The caller has reserved the extent records, so nothing here fails, except to reserve addresses for a plan.
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
/* Records that the current operation may have reserved and not used yet: code that takes extent records in
 * its middle leaves this many. */
enum { ZR_PROMISED_EXTENTS = 2 * ZR_CARVE_EXTENTS };

/* What the search is for. */
struct zr_need {
    size_t bytes, alignment;
};

/* Where a block would go. */
struct zr_place {
    struct zr_extent *gap; /* NULL: nowhere */
    size_t offset_bytes;
    size_t missing; /* granules to map */
};

/* Divides the range into zones, a free extent over each. */
void zr_space_init(struct zr_arena *arena);
/* The place that best fit gives the need, for a stream's number (0: one that owns nothing). */
struct zr_place zr_space_find(const struct zr_arena *arena, struct zr_need need, unsigned owner);
/* Makes a part of a free extent into a block, its fields but the place undefined. */
struct zr_extent *zr_space_carve(struct zr_arena *arena, struct zr_extent *gap, struct zr_bounds part);
/* Carves the block from the low end of the best fit, the usual place, if that is mapped, has no owner and
 * exceeds the need by at most `excess_bytes`. NULL: *place is what zr_space_find() returns. */
struct zr_extent *zr_space_take(struct zr_arena *arena, struct zr_need need, unsigned owner,
                                size_t excess_bytes, struct zr_place *place);
/* Makes the block's space a free extent of block->owner and merges it with its neighbours; the record is the
 * free extent's, or goes back. */
void zr_space_free(struct zr_arena *arena, struct zr_extent *block);
/* The free extent beside an extent that it would merge with, NULL if there is none. */
static inline struct zr_extent *zr_free_extent_beside(const struct zr_extent *extent,
                                                      struct zr_extent *neighbour)
{
    return neighbour && neighbour->marks.word == zr_extent_marks_as(extent, ZR_EXTENT_FREE).word ? neighbour
                                                                                                 : NULL;
}

/* A free extent with an owner becomes anybody's. */
void zr_space_disown(struct zr_arena *arena, struct zr_extent *gap);
/* Free bytes that have an owner, deferred blocks included. */
size_t zr_space_pending_bytes(const struct zr_arena *arena);

/* The granules that lie whole in a free extent, as numbers, without those that were never mapped. */
struct zr_stretch zr_free_extent_granules(const struct zr_arena *arena, const struct zr_extent *gap);
/* The free extents without an owner from the largest on: those in the bins of all zones after the open ends.
 * Start with NULL; ends with NULL. A free extent without a whole granule ends the walk. */
struct zr_extent *zr_space_next_free(const struct zr_arena *arena, const struct zr_extent *gap);
/* Mapped granules that lie whole in free extents: what could be mapped elsewhere. Walks the free extents, or
 * as many of them as make `max_bytes`. */
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
