/* share.h: the memory under a live block, for modules above alloc/: its segments in the backend's files, and
 * removing the memory for an owner that saves the contents. Private to the project. */
#ifndef ZR_SHARE_H
#define ZR_SHARE_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* As zr_block_export(). Without `exports` the granules keep their class; the caller uses the segments only
 * while the block is live. */
ZR_PRIVATE_API zr_result zr_block_segments(zr_arena *arena, const void *block, bool exports,
                                           struct zr_segment *segments, size_t *count, size_t *lead_bytes);

/* ---- Vacant memory (vacancy.c) ------------------------------------------------------------------------- */

/* Removes and restores the memory under live blocks, for an owner that saves the contents elsewhere.
 *
 * A block stays live and keeps its address. The memory of whole handles under the block returns to the
 * backend and is later restored at the same addresses. In between, the addresses have no access, and
 * statistics count the memory as reserved. These handles are never vacated: handles that are not movable,
 * that are mapped twice, that lie under a plan's region or under a block of another tag, and all handles of
 * an arena with map callbacks or stripes. Any thread. */

/* The addresses of one whole handle. */
struct zr_vacancy {
    char *memory;
    size_t bytes;
};

/* Finds the first handle from `from` on (NULL: the start of the arena) that lies under blocks with tags of
 * `order` only, and under a block with the tag order[which] but none with an earlier tag. False: there is
 * none. */
bool zr_vacancy_find(zr_arena *arena, const zr_tag *order, unsigned order_count, unsigned which,
                     const char *from, struct zr_vacancy *out);
/* Returns the memory to the backend. The caller has saved the contents, and nothing uses the memory.
 * ZR_ERR_UNAVAILABLE: the backend keeps the memory. */
zr_result zr_vacate(zr_arena *arena, const struct zr_vacancy *part);
/* Maps memory at the part again; its contents are undefined. ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: as for an
 * allocation. */
zr_result zr_occupy(zr_arena *arena, const struct zr_vacancy *part);

#endif
