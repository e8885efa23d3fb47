/* repeat.c: records a step, and gives each block of a pass a place.
 *
 * Time is a circle: an allocation of a pass is a moment, and after those of a pass come the ones of the
 * step's end. A block that a pass leaves to the next one (gradients on their way to their owners) is alive
 * across the beginning of the circle. Places are taken lowest first, in several orders of the blocks; the
 * order that comes out lowest is kept. All of it depends on the sizes and lifetimes alone, so that the ranks
 * of a run, and a rehearsal, have the same places. */
#include "zero/repeat.h"

#include <string.h>

#include "alloc/plan.h"
#include "alloc/sort.h"
#include "zero/take.h"

/* Every block is compared with every other: of more the time would show. */
enum { PLACED_MOST = 1 << 13, GRAIN_BYTES = 256 };

struct moment {
    struct zr_request request; /* alignment as it is kept */
    size_t bytes;              /* with rounding */
    size_t held;               /* moments to its free, within its pass and the step's end */
    size_t left_until;         /* the moment of the next pass at which it was freed */
    bool leaves;               /* it was, once at least */
    size_t offset_bytes;       /* of its place */
};

struct live {
    size_t block_offset_bytes; /* its name in the arena */
    uint32_t moment, pass;
};

struct zr_repeat {
    zr_arena *arena, *host_arena; /* arena NULL: the watch is over */
    size_t most;
    struct moment *moments; /* [most] */
    size_t moments_count;
    struct live *live; /* [most], in the order of allocation */
    size_t live_count;
    uint32_t passes_count;
    size_t pass_length, now; /* of every pass but the last; allocations of the present one */
    bool differs;
    size_t region_bytes, live_bytes;
};

/* ---- Recording -----------------------------------------------------------------------------------------
 */

static bool is_same(const struct moment *moment, const struct zr_observation *what)
{
    const struct zr_request *request = &moment->request;
    return request->bytes == what->request->bytes && request->tag == what->request->tag &&
           request->stream == what->request->stream && request->alignment == what->alignment;
}

static unsigned note_allocation(void *state, const struct zr_observation *what)
{
    struct zr_repeat *repeat = state;
    size_t at = repeat->now++;

    if (repeat->passes_count == 0 || repeat->differs)
        return ZR_OBSERVER_NOTHING;
    if (repeat->live_count == repeat->most || at == repeat->most) {
        repeat->differs = true;
        return ZR_OBSERVER_NOTHING;
    }
    if (at == repeat->moments_count) {
        repeat->moments[at] = (struct moment){.request = *what->request, .bytes = what->bytes};
        repeat->moments[at].request.alignment = what->alignment;
        repeat->moments_count++;
    }
    repeat->differs |= !is_same(&repeat->moments[at], what);
    repeat->live[repeat->live_count++] =
        (struct live){what->offset_bytes, (uint32_t)at, repeat->passes_count};
    return ZR_OBSERVER_NOTHING;
}

static void note_free(void *state, size_t offset_bytes, size_t live_bytes)
{
    struct zr_repeat *repeat = state;
    size_t at = repeat->differs ? 0 : repeat->live_count;

    (void)live_bytes;
    while (at > 0 && repeat->live[at - 1].block_offset_bytes != offset_bytes)
        at--;
    if (at-- == 0)
        return; /* from before the step, or nobody asks any more */
    struct live gone = repeat->live[at];
    struct moment *moment = &repeat->moments[gone.moment];
    memmove(&repeat->live[at], &repeat->live[at + 1], (--repeat->live_count - at) * sizeof *repeat->live);
    if (gone.pass == repeat->passes_count) {
        size_t held = repeat->now - gone.moment;
        moment->held = held > moment->held ? held : moment->held;
    } else if (gone.pass + 1 == repeat->passes_count) {
        moment->leaves = true;
        moment->left_until = repeat->now > moment->left_until ? repeat->now : moment->left_until;
    } else {
        repeat->differs = true;
    }
}

static unsigned note_pass_of_plan(void *state, const struct zr_pass *pass)
{
    (void)state;
    (void)pass;
    return ZR_OBSERVER_NOTHING;
}

static const struct zr_observer observer = {
    .allocated = note_allocation, .freed = note_free, .passed = note_pass_of_plan};

zr_result zr_repeat_create(zr_repeat **out, zr_arena *arena, size_t allocations_most, zr_arena *host_arena)
{
    struct zr_repeat *repeat;
    zr_result result = zr_take(host_arena, ZR_TAG_OTHER, 1, sizeof *repeat, (void **)&repeat);

    *out = NULL;
    if (result != ZR_OK)
        return result;
    *repeat = (struct zr_repeat){.host_arena = host_arena,
                                 .most = allocations_most < PLACED_MOST ? allocations_most : PLACED_MOST};
    result =
        zr_take(host_arena, ZR_TAG_OTHER, repeat->most, sizeof *repeat->moments, (void **)&repeat->moments);
    if (result == ZR_OK)
        result =
            zr_take(host_arena, ZR_TAG_OTHER, repeat->most, sizeof *repeat->live, (void **)&repeat->live);
    if (result == ZR_OK)
        result = zr_arena_observe(arena, &observer, repeat);
    if (result != ZR_OK) {
        zr_repeat_destroy(repeat);
        return result;
    }
    repeat->arena = arena;
    *out = repeat;
    return ZR_OK;
}

void zr_repeat_pass(zr_repeat *repeat)
{
    zr_arena_hold(repeat->arena);
    if (repeat->passes_count == 1)
        repeat->pass_length = repeat->now;
    repeat->differs |= repeat->passes_count > 1 && repeat->now != repeat->pass_length;
    repeat->passes_count++;
    repeat->now = 0;
    zr_arena_unhold(repeat->arena);
}

/* ---- Places --------------------------------------------------------------------------------------------
 */

/* The moments of a block, from its own on around the circle. */
static size_t duration(const struct zr_repeat *repeat, size_t at)
{
    const struct moment *moment = &repeat->moments[at];
    size_t held = moment->held;
    if (moment->leaves)
        held = repeat->moments_count - at + moment->left_until;
    return held > 0 ? held : 1;
}

/* A block that has its place, for the many that are compared with it: moments [from, to), of which those from
 * the circle's count on are the next pass's. */
struct placed {
    uint32_t from, to;
    size_t offset_bytes, end_bytes;
};

static inline bool meet(const struct placed *a, const struct placed *b, uint32_t count)
{
    return (a->from < b->to && b->from < a->to) || (a->to > count && b->from < a->to - count) ||
           (b->to > count && a->from < b->to - count);
}

enum order { BY_DURATION, BY_SIZE, BY_AREA, BY_HEAT, ORDERS };

/* Arrays of a placement, each of one element per moment. */
struct placing {
    struct zr_sort_pair *pairs, *spare;
    struct placed *placed; /* by rising offset */
    size_t *live_bytes;    /* at each moment */
    size_t *best_offsets;  /* of the lowest order so far */
};

/* What is live at each moment; returns the most. */
static size_t measure(struct zr_repeat *repeat, struct placing *placing)
{
    size_t count = repeat->moments_count, live = 0, most = 0;
    size_t *gone = placing->best_offsets; /* bytes that are not live any more; scratch so far */

    memset(gone, 0, count * sizeof *gone);
    for (size_t i = 0; i < count; i++) {
        size_t to = i + duration(repeat, i);
        gone[to % count] += repeat->moments[i].bytes;
        live += to >= count ? repeat->moments[i].bytes : 0; /* from the pass before, if only until now */
    }
    for (size_t i = 0; i < count; i++) {
        live += repeat->moments[i].bytes - gone[i];
        placing->live_bytes[i] = live;
        most = live > most ? live : most;
    }
    return most;
}

/* The most that is live beside a block. */
static size_t heat(const struct zr_repeat *repeat, const struct placing *placing, size_t at)
{
    size_t most = 0;
    for (size_t left = duration(repeat, at); left > 0; left--) {
        most = placing->live_bytes[at] > most ? placing->live_bytes[at] : most;
        at = at + 1 == repeat->moments_count ? 0 : at + 1;
    }
    return most;
}

/* Large keys come first. */
static uint64_t key_of(const struct zr_repeat *repeat, const struct placing *placing, enum order order,
                       size_t at)
{
    size_t bytes = repeat->moments[at].bytes, moments = duration(repeat, at);
    switch (order) {
    case BY_DURATION:
        return ((uint64_t)moments << 40) + bytes / GRAIN_BYTES;
    case BY_SIZE:
        return ((uint64_t)bytes / GRAIN_BYTES << 16) + moments;
    case BY_AREA:
        return (uint64_t)bytes / GRAIN_BYTES * moments;
    default:
        return ((uint64_t)(heat(repeat, placing, at) / GRAIN_BYTES) << 16) + moments;
    }
}

/* The lowest place for a block beside those that are placed; enters it among them. */
static size_t place_block(struct zr_repeat *repeat, struct placing *placing, size_t placed_count, size_t at)
{
    struct moment *moment = &repeat->moments[at];
    struct placed *placed = placing->placed,
                  block = {.from = (uint32_t)at, .to = (uint32_t)(at + duration(repeat, at))};
    size_t alignment = moment->request.alignment, offset = 0, rank = placed_count;
    uint32_t count = (uint32_t)repeat->moments_count;

    for (size_t i = 0; i < placed_count; i++) {
        if (placed[i].end_bytes <= offset || !meet(&block, &placed[i], count))
            continue;
        if (placed[i].offset_bytes >= offset + moment->bytes)
            break;
        offset = (placed[i].end_bytes + alignment - 1) / alignment * alignment;
    }
    while (rank > 0 && placed[rank - 1].offset_bytes > offset)
        rank--;
    memmove(&placed[rank + 1], &placed[rank], (placed_count - rank) * sizeof *placed);
    block.offset_bytes = moment->offset_bytes = offset;
    block.end_bytes = offset + moment->bytes;
    placed[rank] = block;
    return block.end_bytes;
}

static size_t place_in_order(struct zr_repeat *repeat, struct placing *placing, enum order order)
{
    size_t count = repeat->moments_count, height = 0;
    for (size_t i = 0; i < count; i++)
        placing->pairs[i] =
            (struct zr_sort_pair){UINT64_MAX - key_of(repeat, placing, order, i), (uint32_t)i};
    zr_sort_pairs(placing->pairs, placing->spare, count);
    for (size_t i = 0; i < count; i++) {
        size_t end = place_block(repeat, placing, i, placing->pairs[i].value);
        height = end > height ? end : height;
    }
    return height;
}

static void place_all(struct zr_repeat *repeat, struct placing *placing, size_t granule)
{
    size_t count = repeat->moments_count, lowest = SIZE_MAX;
    repeat->live_bytes = measure(repeat, placing);
    for (enum order order = 0; order < ORDERS; order++) {
        size_t height = place_in_order(repeat, placing, order);
        if (height >= lowest)
            continue;
        lowest = height;
        for (size_t i = 0; i < count; i++)
            placing->best_offsets[i] = repeat->moments[i].offset_bytes;
        if ((lowest + granule - 1) / granule == (repeat->live_bytes + granule - 1) / granule)
            break; /* lower would be no granule less */
    }
    for (size_t i = 0; i < count; i++)
        repeat->moments[i].offset_bytes = placing->best_offsets[i];
    repeat->region_bytes = lowest;
}

static bool can_be_placed(const struct zr_repeat *repeat)
{
    if (repeat->differs || repeat->live_count > 0 || repeat->moments_count == 0)
        return false;
    for (size_t i = 0; i < repeat->moments_count; i++)
        if (duration(repeat, i) > repeat->moments_count)
            return false;
    return true;
}

zr_result zr_repeat_place(zr_repeat *repeat, bool *found)
{
    size_t count = repeat->moments_count, granule = zr_arena_plan_rules(repeat->arena).granule_bytes;
    zr_arena *host = repeat->host_arena;
    struct placing placing = {0};

    zr_arena_observe(repeat->arena, NULL, NULL);
    repeat->arena = NULL;
    *found = can_be_placed(repeat);
    if (!*found)
        return ZR_OK;
    zr_result result = zr_take(host, ZR_TAG_OTHER, count, sizeof *placing.pairs, (void **)&placing.pairs);
    if (result == ZR_OK)
        result = zr_take(host, ZR_TAG_OTHER, count, sizeof *placing.spare, (void **)&placing.spare);
    if (result == ZR_OK)
        result = zr_take(host, ZR_TAG_OTHER, count, sizeof *placing.placed, (void **)&placing.placed);
    if (result == ZR_OK)
        result = zr_take(host, ZR_TAG_OTHER, count, sizeof *placing.live_bytes, (void **)&placing.live_bytes);
    if (result == ZR_OK)
        result =
            zr_take(host, ZR_TAG_OTHER, count, sizeof *placing.best_offsets, (void **)&placing.best_offsets);
    if (result == ZR_OK)
        place_all(repeat, &placing, granule);
    zr_drop(host, &placing.best_offsets);
    zr_drop(host, &placing.live_bytes);
    zr_drop(host, &placing.placed);
    zr_drop(host, &placing.spare);
    zr_drop(host, &placing.pairs);
    return result;
}

size_t zr_repeat_region_bytes(const zr_repeat *repeat)
{
    return repeat->region_bytes;
}

size_t zr_repeat_live_bytes(const zr_repeat *repeat)
{
    return repeat->live_bytes;
}

/* ---- Following -----------------------------------------------------------------------------------------
 */

zr_result zr_repeat_install(const zr_repeat *repeat, zr_arena *arena)
{
    size_t count = repeat->moments_count;
    struct zr_plan_lane lane = {.count = count, .any = true};
    struct zr_plan_step *steps;
    zr_result result = zr_take(repeat->host_arena, ZR_TAG_OTHER, count, sizeof *steps, (void **)&steps);

    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < count; i++)
        steps[i] = (struct zr_plan_step){.request = repeat->moments[i].request,
                                         .thread = zr_thread_number(),
                                         .offset_bytes = repeat->moments[i].offset_bytes,
                                         .alive_count = (uint32_t)duration(repeat, i)};
    result = zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                            .steps_count = count,
                                                            .lanes = &lane,
                                                            .lanes_count = 1,
                                                            .region_bytes = repeat->region_bytes});
    zr_drop(repeat->host_arena, &steps);
    return result;
}

void zr_repeat_destroy(zr_repeat *repeat)
{
    if (!repeat)
        return;
    if (repeat->arena)
        zr_arena_observe(repeat->arena, NULL, NULL);
    zr_drop(repeat->host_arena, &repeat->live);
    zr_drop(repeat->host_arena, &repeat->moments);
    zr_drop(repeat->host_arena, &repeat);
}
