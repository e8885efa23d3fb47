/* pack_skyline.c: the height so far at each point in time. Uses scratch.c.
 *
 * A tree over the points in time: the children of node n are 2n and 2n + 1, and the leaf of point m is
 * `leaves` + m. */
#include "defrag/pack/pack_internal.h"

#include <string.h>

zr_result zr_skyline_make(struct zr_skyline *out, size_t points_count, struct zr_scratch *scratch)
{
    *out = (struct zr_skyline){.points_count = points_count, .leaves = 1};
    while (out->leaves < points_count)
        out->leaves *= 2;
    out->highest = zr_scratch_take(scratch, 2 * out->leaves, sizeof *out->highest);
    out->whole = zr_scratch_take(scratch, 2 * out->leaves, sizeof *out->whole);
    return scratch->result;
}

void zr_skyline_clear(struct zr_skyline *sky)
{
    memset(sky->highest, 0, 2 * sky->leaves * sizeof *sky->highest);
    memset(sky->whole, 0, 2 * sky->leaves * sizeof *sky->whole);
}

static inline uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t zr_skyline_highest(const struct zr_skyline *sky, size_t first, size_t end)
{
    if (end > sky->points_count)
        return larger(zr_skyline_highest(sky, first, sky->points_count),
                      zr_skyline_highest(sky, 0, end - sky->points_count));
    size_t low = first + sky->leaves, high = end - 1 + sky->leaves;
    uint64_t max = 0;
    for (size_t node = low / 2; node > 0; node /= 2)
        max = larger(sky->whole[node], max);
    for (size_t node = high / 2; node > 0; node /= 2)
        max = larger(sky->whole[node], max);
    for (high++; low < high; low /= 2, high /= 2) {
        max = low & 1 ? larger(sky->highest[low++], max) : max;
        max = high & 1 ? larger(sky->highest[--high], max) : max;
    }
    return max;
}

static void raise_whole(struct zr_skyline *sky, size_t node, uint64_t height)
{
    sky->whole[node] = larger(sky->whole[node], height);
    sky->highest[node] = larger(sky->highest[node], height);
}

void zr_skyline_raise(struct zr_skyline *sky, size_t first, size_t end, uint64_t height)
{
    if (end > sky->points_count) {
        zr_skyline_raise(sky, 0, end - sky->points_count, height);
        end = sky->points_count;
    }
    size_t begin = first + sky->leaves, last = end - 1 + sky->leaves;
    for (size_t low = begin, high = last + 1; low < high; low /= 2, high /= 2) {
        if (low & 1)
            raise_whole(sky, low++, height);
        if (high & 1)
            raise_whole(sky, --high, height);
    }
    for (size_t node = begin / 2; node > 0; node /= 2)
        sky->highest[node] = larger(sky->highest[node], height);
    for (size_t node = last / 2; node > 0; node /= 2)
        sky->highest[node] = larger(sky->highest[node], height);
}
