/* check.c: checks every invariant of an arena's records against the extents and the mappings. Uses space.c.
 * Takes time linear in the number of extents: for tests and ZR_CONF=check:2. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/supply.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/plan/executor.h"

struct sums {
    size_t live_bytes, requested_bytes, blocks_count;
    size_t free_extents_count[ZR_ZONE_COUNT];
    size_t pending_bytes; /* in free extents with an owner */
    size_t by_tag_bytes[ZR_TAG_COUNT];
    size_t end_bytes; /* where the next extent must begin */
};

#define corrupt(...) zr_fail(ZR_ERR_CORRUPT, __VA_ARGS__)

static zr_result check_block(struct zr_arena *arena, const struct zr_extent *extent, struct sums *sums)
{
    bool freed;
    struct zr_extent copy;
    if (zr_block_exact(arena, extent->offset_bytes, &freed) != extent)
        return corrupt("the block at %zu is not in the index", extent->offset_bytes);
    if (zr_block_before(arena, zr_extent_end(extent) - 1, &copy) != extent ||
        copy.offset_bytes != extent->offset_bytes || copy.bytes != extent->bytes)
        return corrupt("the index does not find the last byte of the block at %zu", extent->offset_bytes);
    if (extent->tag >= ZR_TAG_COUNT ||
        zr_extent_requested_bytes(extent) + arena->canary_bytes > extent->bytes)
        return corrupt("the block at %zu has a bad tag (%u) or size", extent->offset_bytes, extent->tag);
    sums->live_bytes += extent->bytes;
    sums->requested_bytes += zr_extent_requested_bytes(extent);
    sums->by_tag_bytes[extent->tag] += extent->bytes;
    sums->blocks_count++;
    return ZR_OK;
}

static zr_result check_free_extent(const struct zr_arena *arena, const struct zr_extent *gap,
                                   struct sums *sums)
{
    const struct zr_zone *zone = &arena->zones[gap->zone];
    bool tail = zr_extent_end(gap) == zone->end_bytes && gap->owner == 0;
    if (gap->offset_bytes < zone->first_bytes || zr_extent_end(gap) > zone->end_bytes)
        return corrupt("the free extent at %zu lies outside its zone", gap->offset_bytes);
    if (gap->bin != (tail ? 0 : zr_bins_index(gap->bytes)) || tail != (zone->tail == gap))
        return corrupt("the free extent at %zu of %zu bytes is in bin %u, not %u", gap->offset_bytes,
                       gap->bytes, gap->bin, tail ? 0 : zr_bins_index(gap->bytes));
    if (gap->tag != 0)
        return corrupt("the free extent at %zu has a tag", gap->offset_bytes);
    if (gap->next && gap->next->kind == ZR_EXTENT_FREE && gap->next->zone == gap->zone &&
        gap->next->owner == gap->owner)
        return corrupt("two free extents of one zone are adjacent at %zu", zr_extent_end(gap));
    if (gap->owner > arena->streams_count)
        return corrupt("the free extent at %zu belongs to stream number %u of %u", gap->offset_bytes,
                       gap->owner, arena->streams_count);
    if (gap->owner)
        sums->pending_bytes += gap->bytes;
    else
        sums->free_extents_count[gap->zone] += !tail;
    return ZR_OK;
}

static zr_result check_extent(struct zr_arena *arena, const struct zr_extent *extent, struct sums *sums)
{
    if (extent->offset_bytes != sums->end_bytes || extent->bytes == 0 || extent->bytes % ZR_UNIT_BYTES != 0)
        return corrupt("the extent at %zu of %zu bytes does not follow the one that ends at %zu",
                       extent->offset_bytes, extent->bytes, sums->end_bytes);
    if (extent->next ? extent->next->previous != extent : false)
        return corrupt("the extent after %zu does not point back", extent->offset_bytes);
    sums->end_bytes += extent->bytes;
    if (extent->kind == ZR_EXTENT_FREE)
        return check_free_extent(arena, extent, sums);
    size_t first = extent->offset_bytes / arena->granule_bytes;
    size_t end = (zr_extent_end(extent) - 1) / arena->granule_bytes + 1;
    bool kept = extent->kind == ZR_EXTENT_KEPT;
    if ((kept || extent->kind == ZR_EXTENT_BLOCK) && !zr_granules_all_mapped(arena->granules, first, end))
        return corrupt("the block at %zu lies on a granule that is not mapped", extent->offset_bytes);
    return extent->kind == ZR_EXTENT_BLOCK ? check_block(arena, extent, sums) : ZR_OK;
}

static zr_result check_planned(struct zr_arena *arena, struct sums *sums)
{
    zr_result result = zr_executor_check(arena);
    for (const struct zr_extent *block = NULL;
         result == ZR_OK && (block = zr_executor_next_block(arena, block));)
        result = check_block(arena, block, sums);
    return result;
}

static bool is_deferred(const struct zr_arena *arena, size_t offset_bytes)
{
    const struct zr_extent *extent = arena->first;
    while (extent && zr_extent_end(extent) <= offset_bytes)
        extent = extent->next;
    return extent && extent->kind == ZR_EXTENT_DEFERRED;
}

/* Compares the bitmap and the counters with the backend's mappings. */
static zr_result check_granules(const struct zr_arena *arena)
{
    size_t granule = arena->granule_bytes, end = arena->range->bytes / granule, mapped_bytes = 0, count = 0;
    size_t unmovable_bytes = 0; /* an alias counts at each of its addresses */
    for (size_t at = zr_granules_next(arena->granules, 0, end, true); at < end;
         at = zr_granules_next(arena->granules, at, end, true)) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * granule);
        if (!mapping || mapping->offset_bytes != at * granule)
            return corrupt("the granule at %zu is mapped contrary to the counters", at * granule);
        bool good = mapping->access && mapping->notified;
        bool excused =
            !good && (is_deferred(arena, at * granule) || zr_executor_must_remap(arena, at * granule));
        if (!mapping->access && !excused)
            return corrupt("the granule at %zu is mapped without access", at * granule);
        if (!mapping->notified && !excused)
            return corrupt("the granule at %zu is mapped without a call of the map callbacks", at * granule);
        size_t after = at + mapping->handle->bytes / granule;
        if (after > end || !zr_granules_all_mapped(arena->granules, at, after))
            return corrupt("the run of granules at %zu is partly mapped", at * granule);
        mapped_bytes += mapping->handle->bytes;
        unmovable_bytes += zr_is_movable(mapping) ? 0 : mapping->handle->bytes;
        count++;
        at = after;
    }
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        size_t zone_end = arena->zones[i].end_bytes / granule;
        if (arena->zones[i].mapped_end < zone_end &&
            zr_granules_next(arena->granules, arena->zones[i].mapped_end, zone_end, true) < zone_end)
            return corrupt("a granule is mapped beyond the end of zone %u", i);
    }
    if (count != arena->range->mappings_count || mapped_bytes != arena->mapped_bytes + arena->alias_bytes)
        return corrupt("%zu bytes are mapped in %zu mappings; the counters have %zu in %zu", mapped_bytes,
                       count, arena->mapped_bytes + arena->alias_bytes, arena->range->mappings_count);
    if (unmovable_bytes < arena->unmovable_bytes ||
        (arena->alias_bytes == 0 && unmovable_bytes != arena->unmovable_bytes))
        return corrupt("%zu bytes are not movable; the counter has %zu", unmovable_bytes,
                       arena->unmovable_bytes);
    return ZR_OK;
}

static zr_result check_granule_cache(const struct zr_arena *arena)
{
    size_t bytes = 0;
    for (unsigned size = 0; size < ZR_GRANULE_CACHE_SIZES; size++)
        for (const struct zr_handle *handle = arena->granule_cache.sizes[size].first; handle;
             handle = handle->next)
            bytes += handle->bytes;
    if (bytes != arena->granule_cache.bytes ||
        arena->reserved_bytes != arena->mapped_bytes + arena->lent_bytes + bytes)
        return corrupt(
            "%zu reserved bytes differ from %zu mapped, %zu lent and %zu in cache (the counter has %zu)",
            arena->reserved_bytes, arena->mapped_bytes, arena->lent_bytes, arena->granule_cache.bytes, bytes);
    return ZR_OK;
}

static zr_result check_bins(const struct zr_bins *holes, size_t want_count)
{
    size_t count = 0;
    for (const struct zr_extent *extent = zr_bins_largest(holes); extent;
         extent = zr_bins_smaller(holes, extent))
        count++;
    if (count != want_count)
        return corrupt("%zu free extents are in bins; %zu exist", count, want_count);
    return ZR_OK;
}

/* Entries of contiguous pools count like blocks. */
static void add_pools(const struct zr_arena *arena, struct sums *sums)
{
    struct zr_pool_counters pools;
    zr_arena_pool_counters(arena, &pools);
    sums->live_bytes += pools.live_bytes;
    sums->requested_bytes += pools.requested_bytes;
    sums->blocks_count += pools.entries_count;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        sums->by_tag_bytes[tag] += pools.live_by_tag_bytes[tag];
}

zr_result zr_check_arena(struct zr_arena *arena)
{
    struct sums sums = {0};
    zr_arena_flush_size_cache(arena);
    for (const struct zr_extent *extent = arena->first; extent; extent = extent->next) {
        zr_result result = check_extent(arena, extent, &sums);
        if (result != ZR_OK)
            return result;
    }
    add_pools(arena, &sums);
    zr_result result = check_planned(arena, &sums);
    if (result != ZR_OK)
        return result;
    if (sums.end_bytes != arena->range->bytes)
        return corrupt("the extents end at %zu, the range at %zu", sums.end_bytes, arena->range->bytes);
    if (sums.live_bytes != arena->live_bytes || sums.requested_bytes != arena->requested_bytes ||
        sums.blocks_count != arena->blocks_count)
        return corrupt("%zu bytes in %zu blocks are live; the counters have %zu in %zu", sums.live_bytes,
                       sums.blocks_count, arena->live_bytes, arena->blocks_count);
    if (memcmp(sums.by_tag_bytes, arena->live_by_tag_bytes, sizeof sums.by_tag_bytes) != 0)
        return corrupt("the counters per tag differ from the blocks");
    for (unsigned tag = 0; arena->bounded && tag < ZR_TAG_COUNT; tag++)
        if (arena->live_by_tag_bytes[tag] > arena->high_water.by_tag_bytes[tag])
            return corrupt("%zu bytes of %s are live; the recorded peak is %zu",
                           arena->live_by_tag_bytes[tag], zr_tag_name((zr_tag)tag),
                           arena->high_water.by_tag_bytes[tag]);
    if (sums.pending_bytes + arena->deferred_bytes != zr_space_pending_bytes(arena))
        return corrupt("%zu bytes are pending; the counter has %zu",
                       sums.pending_bytes + arena->deferred_bytes, zr_space_pending_bytes(arena));
    result = check_granules(arena);
    if (result == ZR_OK)
        result = check_granule_cache(arena);
    for (unsigned i = 0; result == ZR_OK && i < ZR_ZONE_COUNT; i++)
        result = check_bins(&arena->zones[i].gaps, sums.free_extents_count[i]);
    return result;
}

zr_result zr_arena_check(zr_arena *arena)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_check: arena is NULL");
    zr_result result = ZR_OK;
    unsigned count = 1 + atomic_load(&arena->stripes_count);
    for (unsigned i = 0; i < count && result == ZR_OK; i++) {
        struct zr_arena *stripe = i ? arena->stripes[i - 1] : arena;
        zr_arena_acquire(stripe);
        result = zr_check_arena(stripe);
        zr_arena_release(stripe);
    }
    return result;
}
