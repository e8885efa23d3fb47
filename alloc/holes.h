/* holes.h: free spans by size, for exact best fit. Private to alloc/.
 *
 * Bins of growing width, each a treap ordered by (key, offset); a bitmap finds the next bin that has any. Up
 * to 64 KiB every size has its own bin, above that a bin spans a sixteenth of its power of two, so that a
 * tree rarely has more than a few nodes and never costs more than the logarithm of them. What is found
 * depends on sizes and offsets only. The arena's lock covers every call. */
#ifndef ZR_HOLES_H
#define ZR_HOLES_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/span.h"

enum { ZR_HOLES_BINS = 256 + 16 * 40, ZR_HOLES_WORDS = ZR_HOLES_BINS / 64 };

struct zr_holes {
    uint64_t summary; /* bit w: words[w] is not zero */
    uint64_t words[ZR_HOLES_WORDS];
    struct zr_span *bins[ZR_HOLES_BINS];
};

/* Files the span under `key_bytes`, a multiple of 256 above 0; span->key_bytes keeps it. */
void zr_holes_add(struct zr_holes *holes, struct zr_span *span, size_t key_bytes);
/* Moves a filed span to a new place and size. The same as remove, change, add; cheaper where it is alone in
 * its bin and stays there, as the large hole that small blocks are cut from does. */
void zr_holes_move(struct zr_holes *holes, struct zr_span *span, size_t offset_bytes, size_t bytes);
void zr_holes_remove(struct zr_holes *holes, struct zr_span *span);
/* The smallest key of at least `bytes`, the lowest offset among equals; NULL if there is none. */
struct zr_span *zr_holes_best(const struct zr_holes *holes, size_t bytes);
/* The largest key, the highest offset among equals; NULL if empty. */
struct zr_span *zr_holes_largest(const struct zr_holes *holes);
/* The next larger in that order, NULL after the largest. */
struct zr_span *zr_holes_larger(const struct zr_holes *holes, const struct zr_span *span);
/* The next smaller in that order, NULL after the smallest. */
struct zr_span *zr_holes_smaller(const struct zr_holes *holes, const struct zr_span *span);

#endif
