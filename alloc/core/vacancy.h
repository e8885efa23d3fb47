/* spill.h: memory under live blocks, for whoever keeps its contents elsewhere for a while. Private to the
 * project.
 *
 * A block stays where it is and live; what is under whole handles of it goes back to the backend, and comes
 * again at the same addresses with contents that the caller has kept. Meanwhile the addresses have no access:
 * nobody may touch the blocks. Statistics count the memory as reserved. Handles that are not movable, mapped
 * twice, under a plan's region or under a block of another tag stay, as does all of an arena that has map
 * callbacks or stripes. */
#ifndef ZR_SPILL_H
#define ZR_SPILL_H

#include "alloc/zr.h"

/* Whole handles' addresses. */
struct zr_vacancy {
    char *memory;
    size_t bytes;
};

/* The first such part at or behind `from` (NULL: the arena's begin) that has blocks of `order` alone, of
 * which the one that comes first in the order has tag `order[which]`. False: there is none. Any thread. */
bool zr_vacancy_find(zr_arena *arena, const zr_tag *order, unsigned order_count, unsigned which,
                     const char *from, struct zr_vacancy *out);
/* Its memory goes. The caller has its contents, and nobody uses it. ZR_ERR_UNAVAILABLE: the backend keeps
 * what it has. */
zr_result zr_vacate(zr_arena *arena, const struct zr_vacancy *part);
/* It comes again, contents undefined. ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: as of an allocation. */
zr_result zr_occupy(zr_arena *arena, const struct zr_vacancy *part);

#endif
