/* bins.c: bins of treaps. Uses extent.h and tree.h. */
#include "alloc/core/bins.h"

#include "alloc/base/tree.h"

/* ---- Trees --------------------------------------------------------------------------------------------- */

static inline uint64_t priority(const void *extent)
{
    return (((const struct zr_extent *)extent)->offset_bytes >> ZR_UNIT_SHIFT) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline bool before(const void *one, const void *other)
{
    const struct zr_extent *a = one, *b = other;
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->offset_bytes < b->offset_bytes;
}

static const struct zr_tree_order by_size = {offsetof(struct zr_extent, children), before, priority};

void zr_bins_tree_insert(struct zr_extent **root, struct zr_extent *extent)
{
    zr_tree_insert(by_size, root, extent);
}

void zr_bins_tree_remove(struct zr_extent **root, struct zr_extent *extent)
{
    zr_tree_remove(by_size, root, extent);
}

/* ---- Bins ---------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) void move_between_trees(struct zr_bins *holes, struct zr_extent *extent,
                                                         size_t offset_bytes, size_t bytes)
{
    zr_bins_remove(holes, extent);
    extent->offset_bytes = offset_bytes;
    extent->bytes = bytes;
    zr_bins_add(holes, extent);
}

void zr_bins_move(struct zr_bins *holes, struct zr_extent *extent, size_t offset_bytes, size_t bytes)
{
    size_t from = extent->bin, to = zr_bins_index(bytes);
    if (!zr_bins_alone(holes, extent) || (to != from && holes->bins[to])) {
        move_between_trees(holes, extent, offset_bytes, bytes);
        return;
    }
    extent->offset_bytes = offset_bytes;
    extent->bytes = bytes;
    if (to == from)
        return;
    extent->bin = to;
    holes->bins[from] = NULL;
    holes->bins[to] = extent;
    holes->words[from / 64] &= ~(UINT64_C(1) << (from % 64));
    holes->words[to / 64] |= UINT64_C(1) << (to % 64);
    /* Within one word the summary does not change. This is the common case. */
    if (from / 64 != to / 64) {
        holes->summary |= UINT64_C(1) << (to / 64);
        if (!holes->words[from / 64])
            holes->summary &= ~(UINT64_C(1) << (from / 64));
    }
}

static struct zr_extent *last_in(struct zr_extent *extent)
{
    while (extent->children[1])
        extent = extent->children[1];
    return extent;
}

/* The last bin before `bin` that has extents; ZR_BINS_COUNT if none. */
static unsigned previous_bin(const struct zr_bins *holes, unsigned bin)
{
    unsigned word = bin / 64;
    uint64_t bits = word < ZR_BINS_WORDS ? holes->words[word] & ((UINT64_C(1) << (bin % 64)) - 1) : 0;
    if (!bits) {
        uint64_t below = holes->summary & ((UINT64_C(1) << word) - 1);
        if (!below)
            return ZR_BINS_COUNT;
        word = 63u - (unsigned)__builtin_clzll(below);
        bits = holes->words[word];
    }
    return word * 64 + 63u - (unsigned)__builtin_clzll(bits);
}

struct zr_extent *zr_bins_largest(const struct zr_bins *holes)
{
    unsigned bin = previous_bin(holes, ZR_BINS_COUNT);
    return bin < ZR_BINS_COUNT ? last_in(holes->bins[bin]) : NULL;
}

struct zr_extent *zr_bins_larger(const struct zr_bins *holes, const struct zr_extent *extent)
{
    unsigned bin = (unsigned)extent->bin;
    struct zr_extent *node = holes->bins[bin], *found = NULL;
    while (node) {
        if (before(extent, node)) {
            found = node;
            node = node->children[0];
        } else {
            node = node->children[1];
        }
    }
    if (found)
        return found;
    bin = zr_bins_next(holes, bin + 1);
    return bin < ZR_BINS_COUNT ? zr_bins_tree_best(holes->bins[bin], 0) : NULL;
}

struct zr_extent *zr_bins_smaller(const struct zr_bins *holes, const struct zr_extent *extent)
{
    unsigned bin = (unsigned)extent->bin;
    struct zr_extent *node = holes->bins[bin], *found = NULL;
    while (node) {
        if (before(node, extent)) {
            found = node;
            node = node->children[1];
        } else {
            node = node->children[0];
        }
    }
    if (found)
        return found;
    bin = previous_bin(holes, bin);
    return bin < ZR_BINS_COUNT ? last_in(holes->bins[bin]) : NULL;
}
