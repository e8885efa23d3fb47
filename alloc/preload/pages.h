/* pages.h: discards, moves and restores pages of private anonymous memory for large.c. Private to
 * alloc/preload/. Addresses and sizes are multiples of a page. */
#ifndef ZR_PAGES_H
#define ZR_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* Frees the memory of the pages; they read as zeros afterwards. With `remap` a new mapping replaces the
 * pages, so that moved pages merge with the neighbouring mapping. False: the call failed, and nothing
 * changed. */
bool zr_pages_discard(char *address, size_t bytes, bool remap);

struct zr_pages_move {
    char *from;
    size_t bytes;
    char *to;
    size_t to_bytes; /* at least `bytes`; the remainder reads as zeros */
};
enum zr_pages_moved {
    ZR_PAGES_MOVED,  /* the old addresses are unmapped until zr_pages_restore() */
    ZR_PAGES_STAYED, /* the move failed; the new place reads as zeros now */
    ZR_PAGES_LOST    /* the move failed, and another mapping has the new place's addresses */
};
/* Moves pages; the new place's previous contents are lost in any case. */
enum zr_pages_moved zr_pages_move(const struct zr_pages_move *move);
/* Maps the addresses of moved pages again. False: another thread's mapping has taken the addresses. */
bool zr_pages_restore(char *address, size_t bytes);

#endif
