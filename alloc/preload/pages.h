/* pages.h: pages of private anonymous memory that change hands: the system's calls behind large.c. Private to
 * alloc/preload/. Addresses and sizes are of whole pages. */
#ifndef ZR_PAGES_H
#define ZR_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* Gives the memory under the addresses back; they read as zeros. `remap`: as one new mapping, so that pages
 * that were moved there join their neighbours again. False: the system refused, and nothing was done. */
bool zr_pages_discard(char *address, size_t bytes, bool remap);

struct zr_pages_move {
    char *from;
    size_t bytes;
    char *to;
    size_t to_bytes; /* at least `bytes`; the rest reads as zeros */
};
enum zr_pages_moved {
    ZR_PAGES_MOVED,  /* the old addresses are unmapped until zr_pages_restore() */
    ZR_PAGES_STAYED, /* the system refused; what was at the new place reads as zeros now */
    ZR_PAGES_LOST    /* refused, and the addresses of the new place are another mapping's now */
};
/* Whatever was at the new place goes. */
enum zr_pages_moved zr_pages_move(const struct zr_pages_move *move);
/* Reserves and maps the addresses again. False: another thread's mapping has taken them meanwhile. */
bool zr_pages_restore(char *address, size_t bytes);

#endif
