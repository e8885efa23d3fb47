/* pack_round.c: converts a placement of exact sizes to one of rounded sizes. Uses pack_skyline.c and
 * lifetimes.c.
 *
 * The packer finds denser placements for exact sizes than for sizes rounded to an arena's grain. Rounding
 * keeps the order of offsets: each buffer moves onto the highest of the buffers that were below it and
 * overlap it in time. No two overlap, because their order is kept, and the height grows by less than a grain
 * for each buffer of a stack. */
#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "defrag/pack/pack_internal.h"
#include "defrag/trace/lifetimes.h"

static void pile_up(struct zr_lifetimes *lifetimes, const struct zr_sort_pair *order, struct zr_skyline *sky,
                    uint64_t grain_bytes, uint64_t *height_bytes)
{
    *height_bytes = 0;
    for (size_t i = 0; i < lifetimes->count; i++) {
        struct zr_buffer *buffer = &lifetimes->buffers[order[i].value];
        buffer->bytes = (buffer->bytes + grain_bytes - 1) / grain_bytes * grain_bytes;
        if (buffer->bytes == 0 || buffer->lower >= buffer->upper)
            continue;
        buffer->offset_bytes = zr_skyline_highest(sky, buffer->lower, buffer->upper);
        uint64_t top = buffer->offset_bytes + buffer->bytes;
        zr_skyline_raise(sky, buffer->lower, buffer->upper, top);
        *height_bytes = top > *height_bytes ? top : *height_bytes;
    }
}

zr_result zr_pack_round(struct zr_lifetimes *lifetimes, uint64_t grain_bytes, uint64_t *height_bytes)
{
    if (!lifetimes || !height_bytes || grain_bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "rounding a placement requires its lifetimes and a grain");
    struct zr_scratch scratch = {.arena = lifetimes->host_arena};
    struct zr_skyline sky;
    zr_result result = zr_pack_check_alignment(lifetimes, grain_bytes);
    if (result == ZR_OK) /* rejects invalid times */
        result = zr_lifetimes_measure(lifetimes);
    if (result != ZR_OK)
        return result;
    uint64_t points_count = lifetimes->period;
    for (size_t i = 0; lifetimes->period == 0 && i < lifetimes->count; i++)
        points_count =
            lifetimes->buffers[i].upper > points_count ? lifetimes->buffers[i].upper : points_count;
    if (points_count >> 32 != 0)
        return zr_fail(ZR_ERR_INVALID, "rounding requires times below 2^32, not %llu",
                       (unsigned long long)points_count);
    struct zr_sort_pair *order = zr_scratch_take(&scratch, lifetimes->count, sizeof *order);
    struct zr_sort_pair *spare = zr_scratch_take(&scratch, lifetimes->count, sizeof *spare);
    result = zr_skyline_make(&sky, points_count, &scratch);
    if (result == ZR_OK) {
        for (size_t i = 0; i < lifetimes->count; i++)
            order[i] = (struct zr_sort_pair){lifetimes->buffers[i].offset_bytes, (uint32_t)i};
        zr_sort_pairs(order, spare, lifetimes->count);
        pile_up(lifetimes, order, &sky, grain_bytes, height_bytes);
    }
    zr_scratch_end(&scratch);
    return result;
}
