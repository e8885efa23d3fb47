/* pack_edge.c: a lower bound for an item that crosses from one section of time into the next. Uses
 * pack_internal.h.
 *
 * Below the lowest item that both sections contain, the left section has only items that end at the edge, and
 * the right section has only items that begin there. Each section has a limited amount of empty space. So
 * both must reach the same height by sums of few sizes. In full sections few heights are possible. */
#include <string.h>

#include "defrag/pack/pack_internal.h"

struct sums {
    uint32_t count;
    uint64_t sum[1 << ZR_EDGE_ITEMS]; /* ascending, without duplicates */
};

/* Computes all sums of subsets of the sizes. */
static void add_up(const struct zr_edge_side *side, struct sums *out)
{
    out->count = 1;
    out->sum[0] = 0;
    for (uint32_t k = 0; k < side->count; k++) {
        struct sums old = *out;
        out->count = 0;
        for (uint32_t without = 0, with = 0; with < old.count;) {
            uint64_t a = without < old.count ? old.sum[without] : UINT64_MAX;
            uint64_t b = old.sum[with] + side->units[k];
            without += a <= b;
            with += b <= a;
            out->sum[out->count++] = a < b ? a : b;
        }
    }
}

uint64_t zr_edge_meeting(const struct zr_edge_side *left, const struct zr_edge_side *right)
{
    struct sums left_sums, right_sums;
    add_up(left, &left_sums);
    add_up(right, &right_sums);
    for (uint32_t l = 0, r = 0; l < left_sums.count && r < right_sums.count;) {
        uint64_t a = left->level + left_sums.sum[l], b = right->level + right_sums.sum[r];
        if (a <= b && b - a <= left->slack)
            return b;
        if (b <= a && a - b <= right->slack)
            return a;
        l += a < b;
        r += b < a;
    }
    return UINT64_MAX;
}
