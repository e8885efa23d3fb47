/* lend.h: whole granules for contiguous pools and rings. Private to alloc/. */
#ifndef ZR_FRONT_LEND_H
#define ZR_FRONT_LEND_H

#include "alloc/core/arena.h"

/* Whole granules for a range that is not the arena's own, as single-granule handles: from the cache, from
 * free extents, from the driver; they count as reserved by the arena. Take the locks themselves.
 * ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list);
/* Drops granules that are still mapped and that streams may still use: they leave the counters and are never
 * reused. Empties the list; returns the bytes. */
size_t zr_granules_abandon(struct zr_arena *arena, struct zr_handle_list *list);

#endif
