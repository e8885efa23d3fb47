/* share.h: the memory of a live block, for modules above alloc/: as segments of the backend's files, and
 * leaving while its owner keeps the contents. Private to the project. */
#ifndef ZR_SHARE_H
#define ZR_SHARE_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* zr_block_export(), or without `exports` only what it describes: the granules keep their class. For readers
 * that use the segments while the block is live and at no other time. */
ZR_PRIVATE_API zr_result zr_block_segments(zr_arena *arena, const void *block, bool exports,
                                           struct zr_segment *segments, size_t *count, size_t *lead_bytes);

/* ---- Vacant memory (vacancy.c) ------------------------------------------------------------------------- */

/* The memory under live blocks leaves and returns, for an owner that keeps its contents elsewhere meanwhile.
 *
 * A block stays live and keeps its address. The memory under whole handles of it goes back to the backend and
 * returns at the same addresses. In between the addresses have no access, and statistics count the memory as
 * reserved. Never vacated are handles that are not movable, mapped twice, under a plan's region or under a
 * block of another tag, and any handle of an arena with map callbacks or stripes. Any thread. */

/* The addresses of one whole handle. */
struct zr_vacancy {
    char *memory;
    size_t bytes;
};

/* Finds the first handle at or behind `from` (NULL: the arena's begin) that lies only under blocks with tags
 * of `order`, and whose tag that comes first in `order` is order[which]. False: there is none. */
bool zr_vacancy_find(zr_arena *arena, const zr_tag *order, unsigned order_count, unsigned which,
                     const char *from, struct zr_vacancy *out);
/* Returns the memory to the backend; the caller has saved its contents and nothing uses it.
 * ZR_ERR_UNAVAILABLE: the backend keeps it. */
zr_result zr_vacate(zr_arena *arena, const struct zr_vacancy *part);
/* Maps memory there again, contents undefined. ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: as of an allocation. */
zr_result zr_occupy(zr_arena *arena, const struct zr_vacancy *part);

#endif
