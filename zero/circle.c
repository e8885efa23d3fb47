/* circle.c: several ways to place the blocks of a circle; the one that comes out lowest counts.
 *
 * From both ends: what is alive for long lies at the bottom, longest first, each block on the highest of
 * those that it meets. In a step of training these are nested (what a layer keeps for backward outlives that
 * of every later layer), so that no gaps arise between them. What is alive for a few moments hangs from the
 * ceiling, at the highest gap that is free in its time; each meets few others, so a search among its
 * neighbours in time finds it. The ceiling is as low as the fullest moment allows. Where to divide, and in
 * which order to hang, is tried out.
 *
 * From the bottom, in one of several orders, each block at the lowest gap that is free in its time. Every
 * block is compared with every other. */
#include "zero/circle.h"

#include <string.h>

#include "alloc/sort.h"
#include "zero/take.h"

enum {
    COMPARED_MOST = 1 << 13, /* blocks of which every one is compared with every other: of more it shows */
    SHORT_MOST = 256,        /* moments of a block that hangs from the ceiling */
    GRAIN_BYTES = 256
};

/* The highest block so far at each moment, as a tree over the moments: node n's children are 2n and 2n + 1.
 */
struct contour {
    size_t leaves_count;
    size_t *top;   /* [2 leaves_count]: the highest below the node */
    size_t *cover; /* [2 leaves_count]: the highest that lies over the whole node */
};

/* A block that has its place, for the many that are compared with it: moments [from, to), of which those from
 * the circle's count on are the next pass's. */
struct placed {
    uint32_t from, to;
    size_t offset_bytes, end_bytes;
};

struct placing {
    struct zr_circle *circle;
    size_t granule_bytes;
    struct zr_sort_pair *pairs, *spare; /* [count] */
    size_t *live_bytes;                 /* [count]: at each moment */
    size_t *best_offsets;               /* [count]: of the lowest way so far */
    struct contour contour;
    struct placed *placed; /* [count], by rising offset; NULL where not every block is compared */
};

static size_t align_up(size_t bytes, size_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What is live at each moment. */
static void measure(struct placing *placing)
{
    struct zr_circle *circle = placing->circle;
    size_t count = circle->count, live = 0;
    size_t *gone = placing->best_offsets; /* bytes that are not live any more; scratch so far */

    memset(gone, 0, count * sizeof *gone);
    for (size_t i = 0; i < count; i++) {
        size_t to = i + circle->blocks[i].moments;
        gone[to % count] += circle->blocks[i].bytes;
        live += to >= count ? circle->blocks[i].bytes : 0; /* from the pass before, if only until now */
    }
    circle->live_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        live += circle->blocks[i].bytes - gone[i];
        placing->live_bytes[i] = live;
        circle->live_bytes = larger(live, circle->live_bytes);
    }
}

/* The most that is live beside a block. */
static size_t heat(const struct placing *placing, size_t at)
{
    size_t most = 0;
    for (size_t left = placing->circle->blocks[at].moments; left > 0; left--) {
        most = larger(placing->live_bytes[at], most);
        at = at + 1 == placing->circle->count ? 0 : at + 1;
    }
    return most;
}

enum order { BY_DURATION, BY_SIZE, BY_AREA, BY_HEAT, ORDERS };

/* Large keys come first. */
static uint64_t key_of(const struct placing *placing, enum order order, size_t at)
{
    const struct zr_circle_block *block = &placing->circle->blocks[at];
    switch (order) {
    case BY_DURATION:
        return ((uint64_t)block->moments << 40) + block->bytes / GRAIN_BYTES;
    case BY_SIZE:
        return ((uint64_t)block->bytes / GRAIN_BYTES << 16) + block->moments;
    case BY_AREA:
        return (uint64_t)block->bytes / GRAIN_BYTES * block->moments;
    default:
        return ((uint64_t)(heat(placing, at) / GRAIN_BYTES) << 16) + block->moments;
    }
}

/* The blocks in an order, as values of the pairs. */
static void sort(struct placing *placing, enum order order)
{
    for (size_t i = 0; i < placing->circle->count; i++)
        placing->pairs[i] = (struct zr_sort_pair){UINT64_MAX - key_of(placing, order, i), (uint32_t)i};
    zr_sort_pairs(placing->pairs, placing->spare, placing->circle->count);
}

static bool is_low_enough(const struct placing *placing)
{
    size_t granule = placing->granule_bytes;
    return placing->circle->region_bytes != SIZE_MAX &&
           align_up(placing->circle->region_bytes, granule) == align_up(placing->circle->live_bytes, granule);
}

/* Keeps the places that were just found, if they are the lowest so far. */
static void keep_lowest(struct placing *placing, size_t height)
{
    struct zr_circle *circle = placing->circle;
    if (height >= circle->region_bytes)
        return;
    circle->region_bytes = height;
    for (size_t i = 0; i < circle->count; i++)
        placing->best_offsets[i] = circle->blocks[i].offset_bytes;
}

/* ---- From both ends: what lives long ------------------------------------------------------------------- */

/* The highest in [from, to), which is not empty. */
static size_t contour_top(const struct contour *contour, size_t from, size_t to)
{
    size_t low = from + contour->leaves_count, high = to - 1 + contour->leaves_count, most = 0;
    for (size_t node = low / 2; node > 0; node /= 2)
        most = larger(contour->cover[node], most);
    for (size_t node = high / 2; node > 0; node /= 2)
        most = larger(contour->cover[node], most);
    for (high++; low < high; low /= 2, high /= 2) {
        most = low & 1 ? larger(contour->top[low++], most) : most;
        most = high & 1 ? larger(contour->top[--high], most) : most;
    }
    return most;
}

/* To `end`, which is above all in [from, to). */
static void contour_raise(struct contour *contour, size_t from, size_t to, size_t end)
{
    size_t first = from + contour->leaves_count, last = to - 1 + contour->leaves_count;
    for (size_t low = first, high = last + 1; low < high; low /= 2, high /= 2) {
        if (low & 1) {
            contour->top[low] = contour->cover[low] = end;
            low++;
        }
        if (high & 1) {
            high--;
            contour->top[high] = contour->cover[high] = end;
        }
    }
    for (size_t node = first / 2; node > 0; node /= 2)
        contour->top[node] = larger(contour->top[node], end);
    for (size_t node = last / 2; node > 0; node /= 2)
        contour->top[node] = larger(contour->top[node], end);
}

/* Puts a block on the highest of those that it meets. */
static void lay(struct placing *placing, size_t at)
{
    struct zr_circle_block *block = &placing->circle->blocks[at];
    struct contour *contour = &placing->contour;
    size_t count = placing->circle->count, to = at + block->moments;
    size_t around = to > count ? to - count : 0; /* moments of the next pass */
    size_t top = contour_top(contour, at, to - around);

    if (around > 0)
        top = larger(contour_top(contour, 0, around), top);
    block->offset_bytes = align_up(top, block->alignment);
    contour_raise(contour, at, to - around, block->offset_bytes + block->bytes);
    if (around > 0)
        contour_raise(contour, 0, around, block->offset_bytes + block->bytes);
}

/* ---- From both ends: what lives short ------------------------------------------------------------------ */

/* Until the ceiling is known, offset_bytes of a block that hangs is its lower end, from the ceiling down. */
struct stretch {
    size_t begin_bytes, end_bytes;
};

/* Those that hang already and meet the block: they begin within its time, or before it and are still there.
 */
static size_t find_met(const struct placing *placing, size_t at, size_t short_most,
                       struct stretch met[2 * SHORT_MOST])
{
    const struct zr_circle *circle = placing->circle;
    size_t moments = circle->blocks[at].moments, count = circle->count, met_count = 0;
    size_t before = short_most < count - moments ? short_most : count - moments;
    size_t other = at >= before ? at - before : at + count - before;

    for (size_t i = 0; i < before + moments; i++, other = other + 1 == count ? 0 : other + 1) {
        const struct zr_circle_block *block = &circle->blocks[other];
        if (block->moments > short_most || block->offset_bytes == SIZE_MAX ||
            (i < before && block->moments <= before - i))
            continue;
        met[met_count++] = (struct stretch){block->offset_bytes - block->bytes, block->offset_bytes};
    }
    return met_count;
}

/* Hangs a block at the highest gap that is free in its time. */
static void hang(struct placing *placing, size_t at, size_t short_most)
{
    struct stretch met[2 * SHORT_MOST];
    struct zr_circle_block *block = &placing->circle->blocks[at];
    size_t met_count = find_met(placing, at, short_most, met);
    size_t end = align_up(block->bytes, block->alignment);

    /* Until all of them in a row are clear of it. */
    for (size_t i = 0, clear = 0; clear < met_count; i = i + 1 == met_count ? 0 : i + 1) {
        clear++;
        if (met[i].begin_bytes < end && end - block->bytes < met[i].end_bytes) {
            end = align_up(met[i].end_bytes + block->bytes, block->alignment);
            clear = 0;
        }
    }
    block->offset_bytes = end;
}

/* Lowers the ceiling until the blocks from both ends meet at the fullest moment; returns its height. */
static size_t close_up(struct placing *placing, size_t short_most)
{
    struct zr_circle *circle = placing->circle;
    struct contour *contour = &placing->contour;
    size_t count = circle->count, height = contour->top[1], coarsest = 1;

    for (size_t i = 0; i < count; i++)
        coarsest = larger(circle->blocks[i].alignment, coarsest);
    for (size_t i = 0; i < count; i++) {
        const struct zr_circle_block *block = &circle->blocks[i];
        size_t to = i + block->moments, around = to > count ? to - count : 0;
        if (block->moments > short_most)
            continue;
        size_t top = contour_top(contour, i, to - around);
        if (around > 0)
            top = larger(contour_top(contour, 0, around), top);
        height = larger(top + block->offset_bytes, height);
    }
    height = align_up(height, coarsest);
    for (size_t i = 0; i < count; i++)
        if (circle->blocks[i].moments <= short_most)
            circle->blocks[i].offset_bytes = height - circle->blocks[i].offset_bytes;
    return height;
}

static size_t place_from_both_ends(struct placing *placing, size_t short_most, enum order order)
{
    struct zr_circle *circle = placing->circle;
    struct contour *contour = &placing->contour;

    memset(contour->top, 0, 2 * contour->leaves_count * sizeof *contour->top);
    memset(contour->cover, 0, 2 * contour->leaves_count * sizeof *contour->cover);
    for (size_t i = 0; i < circle->count; i++)
        circle->blocks[i].offset_bytes = SIZE_MAX;
    sort(placing, BY_DURATION);
    for (size_t i = 0; i < circle->count && circle->blocks[placing->pairs[i].value].moments > short_most; i++)
        lay(placing, placing->pairs[i].value);
    sort(placing, order);
    for (size_t i = 0; i < circle->count; i++)
        if (circle->blocks[placing->pairs[i].value].moments <= short_most)
            hang(placing, placing->pairs[i].value, short_most);
    return close_up(placing, short_most);
}

/* ---- From the bottom ------------------------------------------------------------------------------------
 */

static inline bool meet(const struct placed *a, const struct placed *b, uint32_t count)
{
    return (a->from < b->to && b->from < a->to) || (a->to > count && b->from < a->to - count) ||
           (b->to > count && a->from < b->to - count);
}

/* The lowest place for a block beside those that are placed; enters it among them. */
static size_t place_block(struct placing *placing, size_t placed_count, size_t at)
{
    struct zr_circle_block *block = &placing->circle->blocks[at];
    struct placed *placed = placing->placed,
                  entry = {.from = (uint32_t)at, .to = (uint32_t)at + block->moments};
    size_t offset = 0, rank = placed_count;
    uint32_t count = (uint32_t)placing->circle->count;

    for (size_t i = 0; i < placed_count; i++) {
        if (placed[i].end_bytes <= offset || !meet(&entry, &placed[i], count))
            continue;
        if (placed[i].offset_bytes >= offset + block->bytes)
            break;
        offset = align_up(placed[i].end_bytes, block->alignment);
    }
    while (rank > 0 && placed[rank - 1].offset_bytes > offset)
        rank--;
    memmove(&placed[rank + 1], &placed[rank], (placed_count - rank) * sizeof *placed);
    entry.offset_bytes = block->offset_bytes = offset;
    entry.end_bytes = offset + block->bytes;
    placed[rank] = entry;
    return entry.end_bytes;
}

static size_t place_from_below(struct placing *placing, enum order order)
{
    size_t height = 0;
    sort(placing, order);
    for (size_t i = 0; i < placing->circle->count; i++)
        height = larger(place_block(placing, i, placing->pairs[i].value), height);
    return height;
}

/* ---- All ways ------------------------------------------------------------------------------------------ */

/* Ends with the first way that is low enough: lower would be no granule less. */
static void place_all(struct placing *placing)
{
    static const enum order hung[] = {BY_SIZE, BY_DURATION};
    struct zr_circle *circle = placing->circle;

    measure(placing);
    circle->region_bytes = SIZE_MAX;
    for (size_t most = SHORT_MOST; !is_low_enough(placing) && most >= 8; most /= 4)
        for (size_t i = 0; !is_low_enough(placing) && i < sizeof hung / sizeof *hung; i++)
            keep_lowest(placing, place_from_both_ends(placing, most, hung[i]));
    for (enum order order = 0; !is_low_enough(placing) && placing->placed && order < ORDERS; order++)
        keep_lowest(placing, place_from_below(placing, order));
    for (size_t i = 0; i < circle->count; i++)
        circle->blocks[i].offset_bytes = placing->best_offsets[i];
}

zr_result zr_circle_place(struct zr_circle *circle, size_t granule_bytes, zr_arena *host_arena)
{
    size_t count = circle->count, leaves_count = 1;
    struct placing placing = {.circle = circle, .granule_bytes = granule_bytes};
    zr_result result = ZR_OK;

    while (leaves_count < count)
        leaves_count *= 2;
    placing.contour.leaves_count = leaves_count;
    const struct {
        void *array; /* a pointer's place */
        size_t count, bytes;
    } arrays[] = {{&placing.pairs, count, sizeof *placing.pairs},
                  {&placing.spare, count, sizeof *placing.spare},
                  {&placing.live_bytes, count, sizeof *placing.live_bytes},
                  {&placing.best_offsets, count, sizeof *placing.best_offsets},
                  {&placing.contour.top, 2 * leaves_count, sizeof *placing.contour.top},
                  {&placing.contour.cover, 2 * leaves_count, sizeof *placing.contour.cover},
                  {&placing.placed, count <= COMPARED_MOST ? count : 0, sizeof *placing.placed}};
    enum { ARRAYS = sizeof arrays / sizeof *arrays };
    for (unsigned i = 0; result == ZR_OK && i < ARRAYS; i++)
        result = zr_take(host_arena, ZR_TAG_OTHER, arrays[i].count, arrays[i].bytes, arrays[i].array);
    if (result == ZR_OK)
        place_all(&placing);
    for (unsigned i = ARRAYS; i-- > 0;)
        zr_drop(host_arena, arrays[i].array);
    return result;
}
