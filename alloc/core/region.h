/* region.h: addresses for a plan. Private to alloc/. Both locks of the arena. */
#ifndef ZR_CORE_REGION_H
#define ZR_CORE_REGION_H

#include "alloc/core/arena.h"

/* Reserves addresses only, whole granules; ZR_ERR_ADDRESSES: the arena has not that many in a row. */
zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The same with nothing mapped there. */
zr_result zr_region_reserve_clear(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The same where nothing was mapped before, if there are such addresses: nothing has to be unmapped. */
zr_result zr_region_reserve_unused(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The region becomes a free extent, whatever is mapped in it. Needs no memory. */
void zr_region_release(struct zr_arena *arena, struct zr_extent *region);

#endif
