/* circle.h: places for blocks whose time is a circle: every pass asks for them anew in the same order. Block
 * i begins at moment i and is alive for so many moments, around the end of the circle if it stays that long.
 * All depends on sizes and lifetimes alone, so that the ranks of a run, and a rehearsal, have the same
 * places. Private to zero/. */
#ifndef ZR_CIRCLE_H
#define ZR_CIRCLE_H

#include "alloc/zr.h"

struct zr_circle_block {
    size_t bytes, alignment;
    size_t offset_bytes; /* found */
    uint32_t moments;    /* 1 to the circle's count */
};

struct zr_circle {
    struct zr_circle_block *blocks; /* [count], of the caller */
    size_t count;                   /* above 0 */
    size_t live_bytes;              /* found: the most that is alive at a time */
    size_t region_bytes;            /* found: the end of the highest block */
};

/* Gives each block a place that no other has while it is alive. The work is count x log count, and for
 * circles of some thousand blocks, where that does not come down to the live bytes' own granules, count x
 * count. Scratch of some hundred bytes a block comes from the arena and goes back to it. */
zr_result zr_circle_place(struct zr_circle *circle, size_t granule_bytes, zr_arena *host_arena);

#endif
