/* bins.h: free extents by size, for exact best fit. Private to alloc/.
 *
 * Each bin is a treap ordered by (size, offset); a bitmap finds the next bin that has extents. Up to 64 KiB
 * each size has its own bin. Above, a bin covers a sixteenth of a power of two, so a tree rarely has more
 * than a few nodes, and a search takes at most the logarithm of their number. The result of a search depends
 * on sizes and offsets only. Every size that a program can request has a bin. The arena's lock covers every
 * call. */
#ifndef ZR_BINS_H
#define ZR_BINS_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/core/extent.h"

enum { ZR_BINS_COUNT = 256 + 16 * 48, ZR_BINS_WORDS = ZR_BINS_COUNT / 64 };

struct zr_bins {
    uint64_t summary; /* bit w: words[w] is not zero */
    uint64_t words[ZR_BINS_WORDS];
    struct zr_extent *bins[ZR_BINS_COUNT];
};

/* Insertion and removal where several extents share a bin. The other extents stay in the bin. */
void zr_bins_tree_insert(struct zr_extent **root, struct zr_extent *extent);
void zr_bins_tree_remove(struct zr_extent **root, struct zr_extent *extent);
/* The extent of the largest size, with the highest offset among equals; NULL if there is none. */
struct zr_extent *zr_bins_largest(const struct zr_bins *holes);
/* The next larger extent in that order; NULL after the largest. */
struct zr_extent *zr_bins_larger(const struct zr_bins *holes, const struct zr_extent *extent);
/* The next smaller extent in that order; NULL after the smallest. */
struct zr_extent *zr_bins_smaller(const struct zr_bins *holes, const struct zr_extent *extent);

/* ---- Best fit ------------------------------------------------------------------------------------------ */

static inline unsigned zr_bins_index(size_t bytes)
{
    size_t units = bytes >> ZR_UNIT_SHIFT;
    if (units < 256)
        return (unsigned)units;
    /* The four bits below the highest bit select one of the 16 bins of its power of two. */
    unsigned power = (unsigned)__builtin_clzl(units) ^ 63u;
    return 256 - 16 + (power - 8) * 16 + (unsigned)(units >> (power - 4));
}

/* The first bin from `bin` on that has extents; ZR_BINS_COUNT if none. */
static inline unsigned zr_bins_next(const struct zr_bins *holes, unsigned bin)
{
    if (bin >= ZR_BINS_COUNT)
        return ZR_BINS_COUNT;
    unsigned word = bin / 64;
    uint64_t bits = holes->words[word] & (~UINT64_C(0) << (bin % 64));
    if (!bits) {
        uint64_t above = word + 1 < 64 ? holes->summary & (~UINT64_C(0) << (word + 1)) : 0;
        if (!above)
            return ZR_BINS_COUNT;
        word = (unsigned)__builtin_ctzll(above);
        bits = holes->words[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

/* The smallest extent of at least `bytes` in the tree, with the lowest offset among equals; NULL if there is
 * none. */
static inline struct zr_extent *zr_bins_tree_best(struct zr_extent *node, size_t bytes)
{
    struct zr_extent *best = NULL;
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

/* The smallest extent of at least `bytes`, with the lowest offset among equals; NULL if there is none. */
static inline struct zr_extent *zr_bins_best(const struct zr_bins *holes, size_t bytes)
{
    unsigned bin = zr_bins_index(bytes);
    struct zr_extent *best = zr_bins_tree_best(holes->bins[bin], bytes);
    if (best)
        return best;
    bin = zr_bins_next(holes, bin + 1);
    return bin < ZR_BINS_COUNT ? zr_bins_tree_best(holes->bins[bin], 0) : NULL;
}

/* ---- Filing -------------------------------------------------------------------------------------------- */

/* Adds the extent to the bin of its size, a multiple of 256 above 0. */
static inline void zr_bins_add(struct zr_bins *holes, struct zr_extent *extent)
{
    unsigned bin = zr_bins_index(extent->bytes);
    extent->bin = bin;
    if (__builtin_expect(holes->bins[bin] != NULL, 0)) {
        zr_bins_tree_insert(&holes->bins[bin], extent);
        return;
    }
    extent->children[0] = extent->children[1] = NULL;
    holes->bins[bin] = extent;
    holes->words[bin / 64] |= UINT64_C(1) << (bin % 64);
    holes->summary |= UINT64_C(1) << (bin / 64);
}

static inline bool zr_bins_alone(const struct zr_bins *holes, const struct zr_extent *extent)
{
    return holes->bins[extent->bin] == extent && !extent->children[0] && !extent->children[1];
}

static inline void zr_bins_remove(struct zr_bins *holes, struct zr_extent *extent)
{
    size_t bin = extent->bin;
    if (__builtin_expect(!zr_bins_alone(holes, extent), 0)) {
        zr_bins_tree_remove(&holes->bins[bin], extent);
    } else {
        holes->bins[bin] = NULL;
        holes->words[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (!holes->words[bin / 64])
            holes->summary &= ~(UINT64_C(1) << (bin / 64));
    }
    extent->bin = 0;
}

/* Moves an extent of the bins to a new place and size. Does the same as remove, change and add, at less cost
 * if the extent is the only one in its bin and the new bin is empty. */
void zr_bins_move(struct zr_bins *holes, struct zr_extent *extent, size_t offset_bytes, size_t bytes);

#endif
