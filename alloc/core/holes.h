/* holes.h: free spans by size, for exact best fit. Private to alloc/.
 *
 * Bins of growing width, each a treap ordered by (size, offset); a bitmap finds the next bin that has any. Up
 * to 64 KiB every size has its own bin, above that a bin spans a sixteenth of its power of two, so that a
 * tree rarely has more than a few nodes and never costs more than the logarithm of them. What is found
 * depends on sizes and offsets only. Every size that can be asked for has a bin. The arena's lock covers
 * every call. */
#ifndef ZR_HOLES_H
#define ZR_HOLES_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/core/span.h"

enum { ZR_HOLES_BINS = 256 + 16 * 48, ZR_HOLES_WORDS = ZR_HOLES_BINS / 64 };

struct zr_holes {
    uint64_t summary; /* bit w: words[w] is not zero */
    uint64_t words[ZR_HOLES_WORDS];
    struct zr_span *bins[ZR_HOLES_BINS];
};

/* Where several sizes or spans share a bin. The bin's other spans stay in it. */
void zr_holes_tree_insert(struct zr_span **root, struct zr_span *span);
void zr_holes_tree_remove(struct zr_span **root, struct zr_span *span);
/* The largest size, the highest offset among equals; NULL if empty. */
struct zr_span *zr_holes_largest(const struct zr_holes *holes);
/* The next larger in that order, NULL after the largest. */
struct zr_span *zr_holes_larger(const struct zr_holes *holes, const struct zr_span *span);
/* The next smaller in that order, NULL after the smallest. */
struct zr_span *zr_holes_smaller(const struct zr_holes *holes, const struct zr_span *span);

/* ---- Best fit ------------------------------------------------------------------------------------------ */

static inline unsigned zr_holes_bin(size_t bytes)
{
    size_t units = bytes >> ZR_UNIT_SHIFT;
    if (units < 256)
        return (unsigned)units;
    /* The four bits below the highest one count on from what that one makes. */
    unsigned power = (unsigned)__builtin_clzl(units) ^ 63u;
    return 256 - 16 + (power - 8) * 16 + (unsigned)(units >> (power - 4));
}

/* The first bin from `bin` on that has spans; ZR_HOLES_BINS if none. */
static inline unsigned zr_holes_next_bin(const struct zr_holes *holes, unsigned bin)
{
    if (bin >= ZR_HOLES_BINS)
        return ZR_HOLES_BINS;
    unsigned word = bin / 64;
    uint64_t bits = holes->words[word] & (~UINT64_C(0) << (bin % 64));
    if (!bits) {
        uint64_t above = word + 1 < 64 ? holes->summary & (~UINT64_C(0) << (word + 1)) : 0;
        if (!above)
            return ZR_HOLES_BINS;
        word = (unsigned)__builtin_ctzll(above);
        bits = holes->words[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

/* The smallest size of at least `bytes` in the tree, the lowest offset among equals; NULL if there is none.
 */
static inline struct zr_span *zr_holes_tree_best(struct zr_span *node, size_t bytes)
{
    struct zr_span *best = NULL;
    while (node) {
        if (node->bytes >= bytes) {
            best = node;
            node = node->children[0];
        } else {
            node = node->children[1];
        }
    }
    return best;
}

/* The smallest size of at least `bytes`, the lowest offset among equals; NULL if there is none. */
static inline struct zr_span *zr_holes_best(const struct zr_holes *holes, size_t bytes)
{
    unsigned bin = zr_holes_bin(bytes);
    struct zr_span *best = zr_holes_tree_best(holes->bins[bin], bytes);
    if (best)
        return best;
    bin = zr_holes_next_bin(holes, bin + 1);
    return bin < ZR_HOLES_BINS ? zr_holes_tree_best(holes->bins[bin], 0) : NULL;
}

/* ---- Filing -------------------------------------------------------------------------------------------- */

/* Files the span under its size, a multiple of 256 above 0. */
static inline void zr_holes_add(struct zr_holes *holes, struct zr_span *span)
{
    unsigned bin = zr_holes_bin(span->bytes);
    span->bin = bin;
    if (__builtin_expect(holes->bins[bin] != NULL, 0)) {
        zr_holes_tree_insert(&holes->bins[bin], span);
        return;
    }
    span->children[0] = span->children[1] = NULL;
    holes->bins[bin] = span;
    holes->words[bin / 64] |= UINT64_C(1) << (bin % 64);
    holes->summary |= UINT64_C(1) << (bin / 64);
}

static inline bool zr_holes_alone(const struct zr_holes *holes, const struct zr_span *span)
{
    return holes->bins[span->bin] == span && !span->children[0] && !span->children[1];
}

static inline void zr_holes_remove(struct zr_holes *holes, struct zr_span *span)
{
    size_t bin = span->bin;
    if (__builtin_expect(!zr_holes_alone(holes, span), 0)) {
        zr_holes_tree_remove(&holes->bins[bin], span);
    } else {
        holes->bins[bin] = NULL;
        holes->words[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (!holes->words[bin / 64])
            holes->summary &= ~(UINT64_C(1) << (bin / 64));
    }
    span->bin = 0;
}

/* Moves a filed span to a new place and size. The same as remove, change, add; cheaper where it is alone in
 * its bin and none is where it comes to. */
void zr_holes_move(struct zr_holes *holes, struct zr_span *span, size_t offset_bytes, size_t bytes);

#endif
