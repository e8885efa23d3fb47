/* vacancy.h: the memory under live blocks leaves and returns, for an owner that keeps its contents elsewhere
 * meanwhile. Private to the project.
 *
 * A block stays live and keeps its address. The memory under whole handles of it goes back to the backend and
 * returns at the same addresses. In between the addresses have no access, and statistics count the memory as
 * reserved. Never vacated are handles that are not movable, mapped twice, under a plan's region or under a
 * block of another tag, and any handle of an arena with map callbacks or stripes. Any thread. */
#ifndef ZR_VACANCY_H
#define ZR_VACANCY_H

#include "alloc/zr.h"

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
