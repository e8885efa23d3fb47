/* holes.c: bins of treaps. Stands on span.h alone.
 *
 * A treap's shape follows from its nodes' priorities, here a hash of their offsets, whatever the order in
 * which they came: no rebalancing to write and nothing random. */
#include "alloc/core/holes.h"

#include "alloc/base/error.h"

/* ---- Trees --------------------------------------------------------------------------------------------- */

static inline uint64_t priority(const struct zr_span *span)
{
    return (span->offset_bytes >> ZR_UNIT_SHIFT) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline bool before(const struct zr_span *a, const struct zr_span *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->offset_bytes < b->offset_bytes;
}

void zr_holes_tree_insert(struct zr_span **root, struct zr_span *span)
{
    uint64_t own = priority(span);
    while (*root && priority(*root) > own)
        root = &(*root)->children[before(*root, span)];
    /* Split what hangs here into the nodes before and after the new one. */
    struct zr_span *rest = *root, **smaller = &span->children[0], **larger = &span->children[1];
    *root = span;
    while (rest) {
        if (before(rest, span)) {
            *smaller = rest;
            smaller = &rest->children[1];
            rest = *smaller;
        } else {
            *larger = rest;
            larger = &rest->children[0];
            rest = *larger;
        }
    }
    *smaller = *larger = NULL;
}

void zr_holes_tree_remove(struct zr_span **root, struct zr_span *span)
{
    while (*root != span) {
        zr_assert(*root != NULL);
        root = &(*root)->children[before(*root, span)];
    }
    struct zr_span *smaller = span->children[0], *larger = span->children[1];
    while (smaller && larger) {
        if (priority(smaller) > priority(larger)) {
            *root = smaller;
            root = &smaller->children[1];
            smaller = *root;
        } else {
            *root = larger;
            root = &larger->children[0];
            larger = *root;
        }
    }
    *root = smaller ? smaller : larger;
}

/* ---- Bins ---------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) void move_between_trees(struct zr_holes *holes, struct zr_span *span,
                                                         size_t offset_bytes, size_t bytes)
{
    zr_holes_remove(holes, span);
    span->offset_bytes = offset_bytes;
    span->bytes = bytes;
    zr_holes_add(holes, span);
}

void zr_holes_move(struct zr_holes *holes, struct zr_span *span, size_t offset_bytes, size_t bytes)
{
    size_t from = span->bin, to = zr_holes_bin(bytes);
    if (!zr_holes_alone(holes, span) || (to != from && holes->bins[to])) {
        move_between_trees(holes, span, offset_bytes, bytes);
        return;
    }
    span->offset_bytes = offset_bytes;
    span->bytes = bytes;
    if (to == from)
        return;
    span->bin = to;
    holes->bins[from] = NULL;
    holes->bins[to] = span;
    holes->words[from / 64] &= ~(UINT64_C(1) << (from % 64));
    holes->words[to / 64] |= UINT64_C(1) << (to % 64);
    /* In one word, as mostly, nothing changes for the summary. */
    if (from / 64 != to / 64) {
        holes->summary |= UINT64_C(1) << (to / 64);
        if (!holes->words[from / 64])
            holes->summary &= ~(UINT64_C(1) << (from / 64));
    }
}

static struct zr_span *last_in(struct zr_span *span)
{
    while (span->children[1])
        span = span->children[1];
    return span;
}

/* The last bin before `bin` that has spans; ZR_HOLES_BINS if none. */
static unsigned previous_bin(const struct zr_holes *holes, unsigned bin)
{
    unsigned word = bin / 64;
    uint64_t bits = word < ZR_HOLES_WORDS ? holes->words[word] & ((UINT64_C(1) << (bin % 64)) - 1) : 0;
    if (!bits) {
        uint64_t below = holes->summary & ((UINT64_C(1) << word) - 1);
        if (!below)
            return ZR_HOLES_BINS;
        word = 63u - (unsigned)__builtin_clzll(below);
        bits = holes->words[word];
    }
    return word * 64 + 63u - (unsigned)__builtin_clzll(bits);
}

struct zr_span *zr_holes_largest(const struct zr_holes *holes)
{
    unsigned bin = previous_bin(holes, ZR_HOLES_BINS);
    return bin < ZR_HOLES_BINS ? last_in(holes->bins[bin]) : NULL;
}

struct zr_span *zr_holes_larger(const struct zr_holes *holes, const struct zr_span *span)
{
    unsigned bin = (unsigned)span->bin;
    struct zr_span *node = holes->bins[bin], *found = NULL;
    while (node) {
        if (before(span, node)) {
            found = node;
            node = node->children[0];
        } else {
            node = node->children[1];
        }
    }
    if (found)
        return found;
    bin = zr_holes_next_bin(holes, bin + 1);
    return bin < ZR_HOLES_BINS ? zr_holes_tree_best(holes->bins[bin], 0) : NULL;
}

struct zr_span *zr_holes_smaller(const struct zr_holes *holes, const struct zr_span *span)
{
    unsigned bin = (unsigned)span->bin;
    struct zr_span *node = holes->bins[bin], *found = NULL;
    while (node) {
        if (before(node, span)) {
            found = node;
            node = node->children[1];
        } else {
            node = node->children[0];
        }
    }
    if (found)
        return found;
    bin = previous_bin(holes, bin);
    return bin < ZR_HOLES_BINS ? last_in(holes->bins[bin]) : NULL;
}
