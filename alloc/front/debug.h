/* debug.h: hooks of each block where one is on (arena->debug). Private to alloc/. lock: arena->lock */
#ifndef ZR_FRONT_DEBUG_H
#define ZR_FRONT_DEBUG_H

#include "alloc/core/arena.h"

/* The block has come, or is about to go: ZR_ERR_CORRUPT, with words, if it was written past its end. */
void zr_debug_new(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_debug_freed(struct zr_arena *arena, const struct zr_extent *block);

#endif
