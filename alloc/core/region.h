/* region.h: addresses reserved for a plan. Private to alloc/. The caller holds both locks of the arena. */
#ifndef ZR_CORE_REGION_H
#define ZR_CORE_REGION_H

#include "alloc/core/arena.h"

/* Reserves whole granules of addresses. ZR_ERR_ADDRESSES: too few consecutive addresses. */
zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* As zr_region_reserve(), at addresses without mappings. */
zr_result zr_region_reserve_clear(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* As zr_region_reserve(), at addresses that were never mapped if any are left, so that no unmap is needed. */
zr_result zr_region_reserve_unused(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* Turns the region into a free extent with its mappings. Cannot fail. */
void zr_region_release(struct zr_arena *arena, struct zr_extent *region);

#endif
