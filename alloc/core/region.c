/* region.c: addresses of an arena that are reserved for a plan. Uses space.c. */
#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/event_ring.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

#include "alloc/base/error.h"

/* Blocks of a plan are not recorded, so events before this point say nothing about the region's addresses. */
static void forget_events(struct zr_arena *arena)
{
    arena->recorder.first = zr_recorder_count(&arena->recorder);
}

zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_extent **out)
{
    struct zr_need need = {zr_round_up(bytes, arena->granule_bytes), arena->granule_bytes};
    *out = NULL;
    /* The second record is for the release of the region. */
    if (!zr_slab_reserve(&arena->extents, ZR_CARVE_EXTENTS))
        return ZR_ERR_HOST_MEMORY;
    zr_arena_flush_size_cache(arena);
    struct zr_place place = zr_space_find(arena, need, 0);
    if (!place.gap)
        return zr_fail(ZR_ERR_ADDRESSES, "arena \"%s\" has no %zu consecutive addresses for a plan",
                       arena->name, need.bytes);
    struct zr_extent *region =
        zr_space_carve(arena, place.gap, (struct zr_bounds){place.offset_bytes, need.bytes});
    region->kind = ZR_EXTENT_REGION;
    region->slack_bytes = 0;
    forget_events(arena);
    *out = region;
    return ZR_OK;
}

void zr_region_release(struct zr_arena *arena, struct zr_extent *region)
{
    zr_space_free(arena, region);
    forget_events(arena);
}

/* Moves the granules under a region to the cache. False: some remain, for example a run of granules that
 * extends beyond the region. */
static bool clear(struct zr_arena *arena, const struct zr_extent *region)
{
    size_t granule = arena->granule_bytes, bytes;
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    struct zr_bounds extent = {region->offset_bytes, region->bytes};
    zr_unmap(arena, extent, extent.bytes, &list, &bytes);
    while ((handle = zr_handle_list_pop(&list)))
        zr_granule_cache_put(&arena->granule_cache, handle);
    size_t end = zr_extent_end(region) / granule;
    return zr_granules_next(arena->granules, region->offset_bytes / granule, end, true) == end;
}

/* Carves at the end of a zone, where no granule was ever mapped. */
static struct zr_extent *carve_unused(struct zr_arena *arena, size_t bytes)
{
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        struct zr_extent *tail = arena->zones[i].tail;
        if (!tail || !zr_slab_reserve(&arena->extents, ZR_CARVE_EXTENTS))
            continue;
        size_t at = zr_round_up(tail->offset_bytes, arena->granule_bytes);
        if (at < arena->zones[i].mapped_end * arena->granule_bytes)
            at = arena->zones[i].mapped_end * arena->granule_bytes;
        if (at < zr_extent_end(tail) && zr_extent_end(tail) - at >= bytes)
            return zr_space_carve(arena, tail, (struct zr_bounds){at, bytes});
    }
    return NULL;
}

zr_result zr_region_reserve_unused(struct zr_arena *arena, size_t bytes, struct zr_extent **out)
{
    *out = carve_unused(arena, zr_round_up(bytes, arena->granule_bytes));
    if (!*out)
        return zr_region_reserve_clear(arena, bytes, out);
    (*out)->kind = ZR_EXTENT_REGION;
    (*out)->slack_bytes = 0;
    forget_events(arena);
    return ZR_OK;
}

zr_result zr_region_reserve_clear(struct zr_arena *arena, size_t bytes, struct zr_extent **out)
{
    zr_result result = zr_region_reserve(arena, bytes, out);
    if (result != ZR_OK || clear(arena, *out))
        return result;
    bytes = (*out)->bytes;
    zr_region_release(arena, *out);
    *out = carve_unused(arena, bytes);
    if (!*out)
        return zr_fail(ZR_ERR_ADDRESSES, "arena \"%s\" has no %zu consecutive unmapped addresses",
                       arena->name, bytes);
    (*out)->kind = ZR_EXTENT_REGION;
    (*out)->slack_bytes = 0;
    forget_events(arena);
    return ZR_OK;
}
