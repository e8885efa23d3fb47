/* supply.h: physical memory: cache, stealing, the driver. Private to alloc/. Both locks of the arena, unless
 * a declaration says otherwise. */
#ifndef ZR_CORE_SUPPLY_H
#define ZR_CORE_SUPPLY_H

#include "alloc/core/arena.h"

/* Maps every granule that the extent touches and that is not mapped: from the cache, stolen from free
 * extents, or from the driver. The extent must lie in no free extent. A failure leaves the arena's counters
 * as they were, but for granules of free extents that may be in the cache now, and *stuck (may be NULL): what
 * the driver mapped and will not unmap again. */
zr_result zr_map(struct zr_arena *arena, struct zr_bounds extent, struct zr_bounds *stuck);
/* Unmaps whatever is mapped in the extent (whole granules, in use by nobody), the handles going to the list.
 * Handles that stick out of the extent stay. Stops at `most` bytes; *bytes gets how many. */
zr_result zr_unmap(struct zr_arena *arena, struct zr_bounds extent, size_t most, struct zr_handle_list *list,
                   size_t *bytes);
/* Gives back cache and whole granules of free extents until `keep_bytes` of them are left; returns what was
 * released.
 */
size_t zr_trim(struct zr_arena *arena, size_t keep_bytes);
/* A handle that is mapped nowhere, or lives for its mappings, goes to the driver. Both locks. */
void zr_handle_destroy(struct zr_arena *arena, struct zr_handle *handle);
/* Single granules for what maps them itself (lend.c, a plan's pages), from the cache, from free extents, from
 * the driver: reserved by the arena, and with the serial of the request under way. The caller counts them as
 * mapped or lent. Both locks. ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_gather(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* Gathered by the request under way, and not used after all. */
void zr_granules_put_back(struct zr_arena *arena, struct zr_handle_list *list);
/* Up to `bytes` of idle handles out of the arena's counters, for another stripe; if it has them
 * only in longer runs, one of those goes to the driver instead. Returns the bytes of either. */
size_t zr_idle_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* They come into the arena's cache. */
void zr_idle_add(struct zr_arena *arena, struct zr_handle_list *list);
/* Gives back everything, before the arena ends. ZR_ERR_UNAVAILABLE: the driver kept some of it, and the range
 * with it (arena->range is NULL then). */
zr_result zr_release_all(struct zr_arena *arena);

#endif
