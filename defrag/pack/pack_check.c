/* pack_check.c: checks a placement independently of the packer; the two share only the sort. Uses the arena
 * and sort.h.
 *
 * A sweep through time keeps the set of live buffers in order of offset. While these are disjoint, a new
 * buffer overlaps one of them only if it overlaps its neighbour below or above. */
#include <inttypes.h>

#include "alloc/base/error.h"
#include "defrag/trace/vector.h"
#include "alloc/base/sort.h"
#include "defrag/zr_defrag.h"

/* A set of numbers below 2^30 as a tree of 64-bit words: level 0 has one bit per number, each higher level
 * one bit per nonzero word. */
#define LEVELS 5
struct rank_set {
    uint64_t *words[LEVELS];
};

static void set_take(struct rank_set *set, struct zr_scratch *scratch, size_t count)
{
    for (int level = 0; level < LEVELS; level++) {
        count = count / 64 + 1;
        set->words[level] = zr_scratch_take(scratch, count, sizeof(uint64_t));
    }
}

static void set_add(struct rank_set *set, size_t rank)
{
    for (int level = 0; level < LEVELS; level++, rank /= 64)
        set->words[level][rank / 64] |= UINT64_C(1) << rank % 64;
}

static void set_remove(struct rank_set *set, size_t rank)
{
    for (int level = 0; level < LEVELS; level++, rank /= 64) {
        set->words[level][rank / 64] &= ~(UINT64_C(1) << rank % 64);
        if (set->words[level][rank / 64])
            return;
    }
}

/* Finds the nearest member below or above `rank`, which is not a member. False: the set has no member there.
 */
static bool set_below(const struct rank_set *set, size_t rank, size_t *out)
{
    for (int level = 0; level < LEVELS; level++, rank /= 64) {
        uint64_t under = set->words[level][rank / 64] & ((UINT64_C(1) << rank % 64) - 1);
        if (!under)
            continue;
        rank = rank / 64 * 64 + 63 - (size_t)__builtin_clzll(under);
        while (level-- > 0)
            rank = rank * 64 + 63 - (size_t)__builtin_clzll(set->words[level][rank]);
        *out = rank;
        return true;
    }
    return false;
}

static bool set_above(const struct rank_set *set, size_t rank, size_t *out)
{
    for (int level = 0; level < LEVELS; level++, rank /= 64) {
        uint64_t over = set->words[level][rank / 64] & (~UINT64_C(0) << 1 << rank % 64);
        if (!over)
            continue;
        rank = rank / 64 * 64 + (size_t)__builtin_ctzll(over);
        while (level-- > 0)
            rank = rank * 64 + (size_t)__builtin_ctzll(set->words[level][rank]);
        *out = rank;
        return true;
    }
    return false;
}

static zr_result overlap(const struct zr_buffer *a, const struct zr_buffer *b)
{
    return zr_fail(ZR_ERR_CORRUPT,
                   "buffer %" PRIu64 " (alive %" PRIu64 " to %" PRIu64 ", bytes %" PRIu64 " to %" PRIu64
                   ") overlaps buffer %" PRIu64 " (alive %" PRIu64 " to %" PRIu64 ", bytes %" PRIu64
                   " to %" PRIu64 ")",
                   a->id, a->lower, a->upper, a->offset_bytes, a->offset_bytes + a->bytes, b->id, b->lower,
                   b->upper, b->offset_bytes, b->offset_bytes + b->bytes);
}

static zr_result check_heights(const struct zr_lifetimes *lifetimes, uint64_t height_bytes)
{
    for (size_t i = 0; i < lifetimes->count; i++) {
        const struct zr_buffer *buffer = &lifetimes->buffers[i];
        if (lifetimes->period > 0 && buffer->upper > buffer->lower &&
            (buffer->lower >= lifetimes->period || buffer->upper - buffer->lower > lifetimes->period))
            return zr_fail(ZR_ERR_INVALID, "buffer %" PRIu64 " overlaps itself in a period of %" PRIu64,
                           buffer->id, lifetimes->period);
        if (buffer->bytes > height_bytes || buffer->offset_bytes > height_bytes - buffer->bytes)
            return zr_fail(ZR_ERR_CORRUPT,
                           "buffer %" PRIu64 " at offset %" PRIu64 " with %" PRIu64
                           " bytes ends above %" PRIu64,
                           buffer->id, buffer->offset_bytes, buffer->bytes, height_bytes);
    }
    return ZR_OK;
}

/* The events of the sweep: births and deaths in order of time, and each buffer's rank by offset. */
struct sweep {
    size_t ends_count;
    struct zr_sort_pair *by_offset, *ends, *spare;
    uint32_t *rank; /* by buffer */
    struct rank_set live;
};

/* Adds the birth and death of a buffer; two of each if it is alive across the boundary of a period. */
static void add_ends(struct sweep *sweep, const struct zr_lifetimes *lifetimes, uint32_t number, bool born)
{
    const struct zr_buffer *buffer = &lifetimes->buffers[number];
    uint64_t period = lifetimes->period, time = born ? buffer->lower : buffer->upper;
    if (period > 0 && buffer->upper > period) {
        sweep->ends[sweep->ends_count++] =
            (struct zr_sort_pair){born ? 0 : buffer->upper - period, number << 1 | born};
        time = born ? time : period;
    }
    sweep->ends[sweep->ends_count++] = (struct zr_sort_pair){time, number << 1 | born};
}

static void order_sweep(struct sweep *sweep, const struct zr_lifetimes *lifetimes)
{
    size_t n = 0;
    for (size_t i = 0; i < lifetimes->count; i++)
        if (lifetimes->buffers[i].bytes > 0 && lifetimes->buffers[i].lower < lifetimes->buffers[i].upper)
            sweep->by_offset[n++] = (struct zr_sort_pair){lifetimes->buffers[i].offset_bytes, (uint32_t)i};
    zr_sort_pairs(sweep->by_offset, sweep->spare, n);
    for (size_t r = 0; r < n; r++)
        sweep->rank[sweep->by_offset[r].value] = (uint32_t)r;
    /* At equal times deaths precede births: lifetimes are half open. */
    for (size_t r = 0; r < n; r++)
        add_ends(sweep, lifetimes, sweep->by_offset[r].value, false);
    for (size_t r = 0; r < n; r++)
        add_ends(sweep, lifetimes, sweep->by_offset[r].value, true);
    zr_sort_pairs(sweep->ends, sweep->spare, sweep->ends_count);
}

static zr_result run_sweep(struct sweep *sweep, const struct zr_lifetimes *lifetimes)
{
    for (size_t e = 0; e < sweep->ends_count; e++) {
        const struct zr_buffer *buffer = &lifetimes->buffers[sweep->ends[e].value >> 1];
        size_t rank = sweep->rank[sweep->ends[e].value >> 1], other;
        if (!(sweep->ends[e].value & 1)) {
            set_remove(&sweep->live, rank);
            continue;
        }
        if (set_below(&sweep->live, rank, &other)) {
            const struct zr_buffer *below = &lifetimes->buffers[sweep->by_offset[other].value];
            if (below->offset_bytes + below->bytes > buffer->offset_bytes)
                return overlap(below, buffer);
        }
        if (set_above(&sweep->live, rank, &other)) {
            const struct zr_buffer *above = &lifetimes->buffers[sweep->by_offset[other].value];
            if (buffer->offset_bytes + buffer->bytes > above->offset_bytes)
                return overlap(buffer, above);
        }
        set_add(&sweep->live, rank);
    }
    return ZR_OK;
}

zr_result zr_pack_check(const struct zr_lifetimes *lifetimes, uint64_t height_bytes)
{
    struct zr_scratch scratch = {.arena = lifetimes->host_arena};
    struct sweep sweep = {0};
    size_t count = lifetimes->count, ends = (lifetimes->period ? 4 : 2) * count;

    if (count >= (size_t)1 << 30)
        return zr_fail(ZR_ERR_INVALID, "%zu buffers exceed the checker's limit of 2^30 - 1", count);
    zr_result result = check_heights(lifetimes, height_bytes);
    if (result)
        return result;
    sweep.by_offset = zr_scratch_take(&scratch, count, sizeof *sweep.by_offset);
    sweep.ends = zr_scratch_take(&scratch, ends, sizeof *sweep.ends);
    sweep.spare = zr_scratch_take(&scratch, ends, sizeof *sweep.spare);
    sweep.rank = zr_scratch_take(&scratch, count, sizeof *sweep.rank);
    set_take(&sweep.live, &scratch, count);
    result = scratch.result;
    if (result)
        goto unwind;
    order_sweep(&sweep, lifetimes);
    result = run_sweep(&sweep, lifetimes);
unwind:
    zr_scratch_end(&scratch);
    return result;
}
