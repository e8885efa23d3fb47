/* pack_fit.c: places items one after the other, each in the lowest or the tightest gap among the items that
 * overlap it in time. Uses pack_internal.h and sort.h.
 *
 * The placed items lie in tiles of 256, in order of offset. A placement scans all of them: with the lifetimes
 * of a training step most neighbours have to be read in any case, and sixteen are compared at once. */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "alloc/base/error.h"
#include "defrag/pack/pack_internal.h"
#include "alloc/base/sort.h"

#define TILE_FILL (ZR_FIT_TILE * 3 / 4) /* fill of new tiles, which leaves space for insertions */

zr_result zr_fit_make(struct zr_fit *out, const struct zr_pack_problem *problem, struct zr_scratch *scratch)
{
    size_t count = problem->count;
    *out = (struct zr_fit){.problem = problem};
    /* Every split leaves two tiles at least half full, and so does the initial filling, except for the last
     * tile. */
    out->tiles_count = (uint32_t)((count + problem->crossing_count) / (ZR_FIT_TILE / 2) + 2);
    out->order = zr_scratch_take(scratch, count, sizeof *out->order);
    out->rank = zr_scratch_take(scratch, count, sizeof *out->rank);
    out->offset = zr_scratch_take(scratch, count, sizeof *out->offset);
    out->sorted = zr_scratch_take(scratch, count, sizeof *out->sorted);
    out->tiles = zr_scratch_take(scratch, out->tiles_count, sizeof *out->tiles);
    out->row = zr_scratch_take(scratch, out->tiles_count, sizeof *out->row);
    out->pairs = zr_scratch_take(scratch, 2 * count, sizeof *out->pairs);
    out->keys = zr_scratch_take(scratch, count, sizeof *out->keys);
    return scratch->result;
}

/* ---- The placed items ---------------------------------------------------------------------------------- */

/* The sections of an item on one side of the boundary. */
struct part {
    uint32_t item, first, last;
};

static struct part before(const struct zr_fit *fit, uint32_t item)
{
    return (struct part){item, fit->problem->first[item], zr_pack_last(fit->problem, item)};
}

static struct part behind(const struct zr_fit *fit, uint32_t item)
{
    return (struct part){item, 0, zr_pack_around(fit->problem, item)};
}

static void tile_put(struct zr_fit_tile *tile, uint32_t at, struct part part)
{
    tile->first[at] = part.first;
    tile->last[at] = part.last;
    tile->item[at] = part.item;
}

static void append(struct zr_fit *fit, struct part part)
{
    struct zr_fit_tile *tile = &fit->tiles[fit->row[fit->row_count - 1]];
    if (tile->used == TILE_FILL) {
        fit->row[fit->row_count] = fit->row_count;
        tile = &fit->tiles[fit->row_count++];
        tile->used = 0;
    }
    tile_put(tile, tile->used++, part);
}

/* Rebuilds the tiles from the items of fit->sorted that precede `from` in the order. */
static void refill(struct zr_fit *fit, uint32_t from)
{
    uint32_t left = from;
    fit->row_count = 1;
    fit->row[0] = 0;
    fit->tiles[0].used = 0;
    for (uint32_t k = 0; left > 0; k++) {
        uint32_t item = fit->sorted[k];
        if (fit->rank[item] >= from)
            continue;
        append(fit, before(fit, item));
        if (behind(fit, item).last > 0)
            append(fit, behind(fit, item));
        left--;
    }
}

void zr_fit_sort(struct zr_fit *fit)
{
    uint32_t k = 0;
    for (uint32_t r = 0; r < fit->row_count; r++) {
        const struct zr_fit_tile *tile = &fit->tiles[fit->row[r]];
        for (uint32_t at = 0; at < tile->used; at++)
            if (tile->first[at] ==
                fit->problem->first[tile->item[at]]) /* skips the part after the boundary */
                fit->sorted[k++] = tile->item[at];
    }
}

/* Splits a full tile in two. */
static void split_tile(struct zr_fit *fit, uint32_t place)
{
    struct zr_fit_tile *tile = &fit->tiles[fit->row[place]], *other = &fit->tiles[fit->row_count];
    uint32_t half = ZR_FIT_TILE / 2;
    zr_assert(fit->row_count < fit->tiles_count);
    memcpy(other->first, tile->first + half, half * sizeof *tile->first);
    memcpy(other->last, tile->last + half, half * sizeof *tile->last);
    memcpy(other->item, tile->item + half, half * sizeof *tile->item);
    tile->used = other->used = half;
    memmove(fit->row + place + 2, fit->row + place + 1, (fit->row_count - place - 1) * sizeof *fit->row);
    fit->row[place + 1] = fit->row_count++;
}

/* Inserts an item, whose offset is set, after all items that are no higher. */
static void insert(struct zr_fit *fit, struct part part)
{
    uint64_t offset = fit->offset[part.item];
    uint32_t low = 0, high = fit->row_count - 1;
    while (low < high) { /* finds the last tile that begins no higher */
        uint32_t middle = (low + high + 1) / 2;
        if (fit->offset[fit->tiles[fit->row[middle]].item[0]] <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    if (fit->tiles[fit->row[low]].used == ZR_FIT_TILE) {
        split_tile(fit, low);
        low += fit->offset[fit->tiles[fit->row[low + 1]].item[0]] <= offset;
    }
    struct zr_fit_tile *tile = &fit->tiles[fit->row[low]];
    uint32_t at = 0, end = tile->used;
    while (at < end) {
        uint32_t middle = (at + end) / 2;
        if (fit->offset[tile->item[middle]] <= offset)
            at = middle + 1;
        else
            end = middle;
    }
    uint32_t above = tile->used - at;
    memmove(tile->first + at + 1, tile->first + at, above * sizeof *tile->first);
    memmove(tile->last + at + 1, tile->last + at, above * sizeof *tile->last);
    memmove(tile->item + at + 1, tile->item + at, above * sizeof *tile->item);
    tile_put(tile, at, part);
    tile->used++;
}

/* ---- Placing ------------------------------------------------------------------------------------------- */

/* A bit mask of the 16 items from `at` on: those that share a section with [first, last). */
static inline uint32_t neighbours(const struct zr_fit_tile *tile, uint32_t at, uint32_t first, uint32_t last)
{
#if defined(__SSE2__)
    /* Section numbers are below 2^30, so signed comparisons are correct. */
    __m128i begin = _mm_set1_epi32((int)first), end = _mm_set1_epi32((int)last), hits[4];
    for (int k = 0; k < 4; k++) {
        __m128i firsts = _mm_loadu_si128((const __m128i *)(tile->first + at) + k);
        __m128i lasts = _mm_loadu_si128((const __m128i *)(tile->last + at) + k);
        hits[k] = _mm_and_si128(_mm_cmplt_epi32(firsts, end), _mm_cmpgt_epi32(lasts, begin));
    }
    __m128i low = _mm_packs_epi32(hits[0], hits[1]), high = _mm_packs_epi32(hits[2], hits[3]);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
#else
    uint32_t bits = 0;
    for (uint32_t k = 0; k < 16; k++)
        bits |= (uint32_t)(tile->first[at + k] < last && tile->last[at + k] > first) << k;
    return bits;
#endif
}

/* Finds an offset for `item`. ZR_FIT_FAILED: no offset lets it end within `limit`. Adds the steps to *work.
 */
static uint64_t find_gap(const struct zr_fit *fit, uint32_t item, uint64_t limit, uint64_t *work)
{
    const struct zr_pack_problem *problem = fit->problem;
    struct part own = before(fit, item), around = behind(fit, item);
    uint64_t units = problem->units[item], top = 0, best = ZR_FIT_FAILED, best_gap = UINT64_MAX, steps = 0;

    for (uint32_t r = 0; r < fit->row_count; r++) {
        const struct zr_fit_tile *tile = &fit->tiles[fit->row[r]];
        for (uint32_t at = 0; at < tile->used; at += 16, steps++) {
            uint32_t bits = neighbours(tile, at, own.first, own.last);
            if (around.last > 0)
                bits |= neighbours(tile, at, 0, around.last);
            if (tile->used - at < 16)
                bits &= (UINT32_C(1) << (tile->used - at)) - 1;
            for (; bits; bits &= bits - 1, steps++) {
                uint32_t other = tile->item[at + (uint32_t)__builtin_ctz(bits)];
                uint64_t offset = fit->offset[other], end = offset + problem->units[other];
                if (offset >= top + units && offset - top < best_gap) {
                    best = top;
                    best_gap = offset - top;
                    if (!fit->tightest)
                        goto end;
                }
                top = end > top ? end : top;
            }
            if (top + units > limit) /* no higher place is within the limit */
                goto end;
        }
    }
    if (best == ZR_FIT_FAILED && top + units <= limit)
        best = top;
end:
    *work += steps + 1;
    return best;
}

uint64_t zr_fit_run(struct zr_fit *fit, uint32_t from, uint64_t limit, struct zr_pack_budget *budget)
{
    const struct zr_pack_problem *problem = fit->problem;
    uint64_t height = 0, work = from;

    for (uint32_t k = 0; k < from; k++) {
        uint64_t end = fit->offset[fit->order[k]] + problem->units[fit->order[k]];
        height = end > height ? end : height;
    }
    if (height > limit)
        return ZR_FIT_FAILED;
    refill(fit, from);
    for (uint32_t k = from; k < problem->count; k++) {
        uint32_t item = fit->order[k];
        if (k % 256 == 255) {
            zr_pack_spend(budget, work);
            work = 0;
            if (zr_pack_time_up(budget))
                return ZR_FIT_FAILED;
        }
        fit->offset[item] = find_gap(fit, item, limit, &work);
        if (fit->offset[item] == ZR_FIT_FAILED) {
            height = ZR_FIT_FAILED;
            break;
        }
        insert(fit, before(fit, item));
        if (behind(fit, item).last > 0)
            insert(fit, behind(fit, item));
        uint64_t end = fit->offset[item] + problem->units[item];
        height = end > height ? end : height;
    }
    zr_pack_spend(budget, work);
    return height;
}

/* ---- Orders -------------------------------------------------------------------------------------------- */

void zr_pack_sort_falling(uint32_t *order, uint32_t count, const uint64_t *key, struct zr_sort_pair *pairs)
{
    for (uint32_t k = 0; k < count; k++)
        pairs[k] = (struct zr_sort_pair){~key[order[k]], order[k]};
    zr_sort_pairs(pairs, pairs + count, count);
    for (uint32_t k = 0; k < count; k++)
        order[k] = pairs[k].value;
}

void zr_fit_order(struct zr_fit *fit, enum zr_fit_key key)
{
    const struct zr_pack_problem *problem = fit->problem;
    uint32_t count = problem->count;

    for (uint32_t i = 0; i < count; i++) {
        fit->order[i] = i;
        double area = (double)problem->units[i] * (double)problem->duration[i];
        fit->keys[i] = key == ZR_FIT_BY_AREA ? (area < 1.8e19 ? (uint64_t)area : UINT64_MAX)
                       : key == ZR_FIT_BY_SIZE_THEN_DURATION
                           ? 63 - (uint64_t)__builtin_clzll(problem->units[i])
                           : problem->hottest[i];
    }
    bool by_duration =
        key == ZR_FIT_BY_DURATION || key == ZR_FIT_BY_SIZE_THEN_DURATION || key == ZR_FIT_BY_HEAT;
    zr_pack_sort_falling(fit->order, count, problem->units, fit->pairs); /* decides ties of the keys below */
    if (by_duration)
        zr_pack_sort_falling(fit->order, count, problem->duration, fit->pairs);
    if (key != ZR_FIT_BY_SIZE && key != ZR_FIT_BY_DURATION)
        zr_pack_sort_falling(fit->order, count, fit->keys, fit->pairs);
    for (uint32_t k = 0; k < count; k++)
        fit->rank[fit->order[k]] = k;
}
