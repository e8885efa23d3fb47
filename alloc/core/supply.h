/* supply.h: physical memory: cache, stealing, the driver. Private to alloc/. The caller holds both locks of
 * the arena, unless a declaration says otherwise. */
#ifndef ZR_CORE_SUPPLY_H
#define ZR_CORE_SUPPLY_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"

/* Maps every unmapped granule of the extent, with handles from the cache, from free extents or from the
 * driver. No part of the extent may be in a free extent. After a failure the counters are unchanged, except
 * that granules of free extents may have moved to the cache. *stuck (may be NULL) gets the part that the
 * driver mapped and then failed to unmap. */
zr_result zr_map(struct zr_arena *arena, struct zr_bounds extent, struct zr_bounds *stuck);
/* Unmaps up to `max_bytes` of unused whole granules in the extent and adds their handles to the list.
 * Handles that extend beyond the extent stay. *bytes gets the bytes unmapped. */
zr_result zr_unmap(struct zr_arena *arena, struct zr_bounds extent, size_t max_bytes,
                   struct zr_handle_list *list, size_t *bytes);
/* Returns cached granules and whole granules of free extents to the driver until `keep_bytes` remain; returns
 * the bytes released. */
size_t zr_trim(struct zr_arena *arena, size_t keep_bytes);
/* Destroys a handle that is not mapped, or that the driver failed to unmap. */
void zr_handle_destroy(struct zr_arena *arena, struct zr_handle *handle);
/* Gathers single granules for a caller that maps them itself (lend.c, a plan's pages), from the cache, free
 * extents or the driver. They count as reserved and have the current request's serial; the caller counts them
 * as mapped or lent. ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_gather(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* Returns unused handles that the current request gathered. */
void zr_granules_put_back(struct zr_arena *arena, struct zr_handle_list *list);
/* Removes up to `bytes` of idle handles from the arena, for another stripe. If only longer handles are idle,
 * one of them is returned to the driver instead. Returns the bytes removed. */
size_t zr_idle_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* Adds handles of another stripe to the arena's cache. */
void zr_idle_add(struct zr_arena *arena, struct zr_handle_list *list);
/* Releases all memory before the arena is destroyed. ZR_ERR_UNAVAILABLE: the driver kept some memory and the
 * range (arena->range is NULL then). */
zr_result zr_release_all(struct zr_arena *arena);

/* ---- Which granules may move --------------------------------------------------------------------------- */

/* Whether the granules of a mapping may be unmapped while its addresses are free. */
static inline bool zr_is_movable(const struct zr_mapping *mapping)
{
    return mapping->handle->granule_class == ZR_GRANULE_MOVABLE;
}

/* Sets the class of a handle that is mapped in the arena. */
void zr_handle_set_class(struct zr_arena *arena, struct zr_handle *handle,
                         enum zr_granule_class granule_class);
/* Bytes of granules [first, end) whose class is not movable. */
size_t zr_unmovable_bytes(const struct zr_arena *arena, struct zr_granule_range where);

#endif
