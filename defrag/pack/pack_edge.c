/* pack_edge.c: how low an item can lie that crosses from one section of time into the next. Stands on
 * pack_internal.h.
 *
 * Below the lowest item that both sections hold, the left one has only items that end at the edge between
 * them, the right one only such as begin there, and each as much empty space as it can spare. So both must
 * come to the same height out of sums of few sizes. Where sections are full, these are few heights. */
#include <string.h>

#include "defrag/pack/pack_internal.h"

struct sums {
    uint32_t count;
    uint64_t sum[1 << ZR_EDGE_ITEMS]; /* rising, each once */
};

/* All sums of some of the sizes. */
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
