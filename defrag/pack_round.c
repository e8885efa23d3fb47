/* pack_round.c: a placement of exact sizes, made one of rounded sizes. Stands on zr_defrag.h alone.
 *
 * The packer finds denser placements of the sizes as they are than of sizes rounded to the grain of an arena.
 * Rounded afterwards, in order of their offsets, each buffer lies on the highest of those that were below it
 * and share time with it: no two overlap, because their order is kept, and the height grows by less than a
 * grain for each buffer in a pile. */
#include "alloc/error.h"
#include "defrag/scratch.h"
#include "alloc/sort.h"
#include "defrag/zr_defrag.h"

/* Heights over time: a tree whose leaves are moments. */
struct skyline {
    uint64_t *whole;   /* by node: at least this high, all over it */
    uint64_t *highest; /* by node: the highest anywhere in it */
    size_t leaves;     /* a power of two */
};

struct stretch {
    size_t first, end;
};

static uint64_t highest_in(const struct skyline *sky, size_t node, struct stretch of, struct stretch asked)
{
    if (asked.end <= of.first || of.end <= asked.first)
        return 0;
    if (asked.first <= of.first && of.end <= asked.end)
        return sky->highest[node];
    size_t middle = of.first + (of.end - of.first) / 2;
    uint64_t low = highest_in(sky, 2 * node, (struct stretch){of.first, middle}, asked);
    uint64_t high = highest_in(sky, 2 * node + 1, (struct stretch){middle, of.end}, asked);
    uint64_t below = low > high ? low : high;
    return below > sky->whole[node] ? below : sky->whole[node];
}

static void raise_in(struct skyline *sky, size_t node, struct stretch of, struct stretch asked,
                     uint64_t height)
{
    if (asked.end <= of.first || of.end <= asked.first)
        return;
    if (sky->highest[node] < height)
        sky->highest[node] = height;
    if (asked.first <= of.first && of.end <= asked.end) {
        if (sky->whole[node] < height)
            sky->whole[node] = height;
        return;
    }
    size_t middle = of.first + (of.end - of.first) / 2;
    raise_in(sky, 2 * node, (struct stretch){of.first, middle}, asked, height);
    raise_in(sky, 2 * node + 1, (struct stretch){middle, of.end}, asked, height);
}

static void pile_up(struct zr_lifetimes *lifetimes, const struct zr_sort_pair *order, struct skyline *sky,
                    uint64_t grain_bytes, uint64_t *height_bytes)
{
    const struct stretch all = {0, sky->leaves};
    *height_bytes = 0;
    for (size_t i = 0; i < lifetimes->count; i++) {
        struct zr_buffer *buffer = &lifetimes->buffers[order[i].value];
        struct stretch life = {buffer->lower, buffer->upper};
        buffer->bytes = (buffer->bytes + grain_bytes - 1) / grain_bytes * grain_bytes;
        if (buffer->bytes == 0 || life.first >= life.end)
            continue;
        buffer->offset_bytes = highest_in(sky, 1, all, life);
        uint64_t top = buffer->offset_bytes + buffer->bytes;
        raise_in(sky, 1, all, life, top);
        *height_bytes = top > *height_bytes ? top : *height_bytes;
    }
}

zr_result zr_pack_round(struct zr_lifetimes *lifetimes, uint64_t grain_bytes, uint64_t *height_bytes)
{
    if (!lifetimes || !height_bytes || grain_bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "rounding a placement needs its lifetimes and a grain");
    struct zr_scratch scratch = {.arena = lifetimes->host_arena};
    struct skyline sky = {.leaves = 1};
    for (size_t i = 0; i < lifetimes->count; i++)
        while (sky.leaves < lifetimes->buffers[i].upper && sky.leaves < (size_t)1 << 32)
            sky.leaves *= 2;
    struct zr_sort_pair *order = zr_scratch_take(&scratch, lifetimes->count, sizeof *order);
    struct zr_sort_pair *spare = zr_scratch_take(&scratch, lifetimes->count, sizeof *spare);
    sky.whole = zr_scratch_take(&scratch, 2 * sky.leaves, sizeof *sky.whole);
    sky.highest = zr_scratch_take(&scratch, 2 * sky.leaves, sizeof *sky.highest);
    zr_result result = scratch.result;
    if (result == ZR_OK) {
        for (size_t i = 0; i < lifetimes->count; i++)
            order[i] = (struct zr_sort_pair){lifetimes->buffers[i].offset_bytes, (uint32_t)i};
        zr_sort_pairs(order, spare, lifetimes->count);
        pile_up(lifetimes, order, &sky, grain_bytes, height_bytes);
    }
    zr_scratch_end(&scratch);
    return result;
}
