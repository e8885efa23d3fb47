/* region.c: addresses of an arena set apart for a plan. Stands on space.c. */
#include "alloc/arena_internal.h"

#include "alloc/error.h"

zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_span **out)
{
    struct zr_need need = {zr_round_up(bytes, arena->granule_bytes), arena->granule_bytes};
    *out = NULL;
    /* One more: for giving it back. */
    if (!zr_pool_reserve(&arena->spans, ZR_CARVE_SPANS))
        return ZR_ERR_HOST_MEMORY;
    zr_arena_settle(arena);
    struct zr_place place = zr_space_find(arena, need, 0);
    if (!place.gap)
        return zr_fail(ZR_ERR_ADDRESSES, "arena \"%s\" has no %zu addresses in a row for a plan", arena->name,
                       need.bytes);
    struct zr_span *region =
        zr_space_carve(arena, place.gap, (struct zr_extent){place.offset_bytes, need.bytes});
    region->kind = ZR_SPAN_REGION;
    region->requested_bytes = 0;
    *out = region;
    return ZR_OK;
}

void zr_region_release(struct zr_arena *arena, struct zr_span *region)
{
    /* No reader finds a region: its record can be the gap at once. */
    if (!zr_space_free(arena, region, region))
        zr_pool_give(&arena->spans, region);
}
