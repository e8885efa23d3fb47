/* repeat.c: records a step, and has each block of a pass placed (circle.h).
 *
 * Time is a circle: an allocation of a pass is a moment, and after those of a pass come the ones of the
 * step's end. A block that a pass leaves to the next one (gradients on their way to their owners) is alive
 * across the beginning of the circle. */
#include "zero/repeat.h"

#include <string.h>

#include "alloc/plan.h"
#include "zero/circle.h"
#include "zero/take.h"

/* Allocations of a pass: records of a hundred bytes each are kept while it is watched. */
enum { PLACED_MOST = 1 << 19 };

struct moment {
    struct zr_request request; /* alignment as it is kept */
    size_t bytes;              /* with rounding */
    size_t held;               /* moments to its free, within its pass and the step's end */
    size_t left_until;         /* the moment of the next pass at which it was freed */
    bool leaves;               /* it was, once at least */
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
    struct live *live; /* [2 most], in the order of allocation: of a pass, and left by the one before */
    size_t live_count;
    uint32_t passes_count;
    size_t pass_length, now; /* of every pass but the last; allocations of the present one */
    bool differs;
    struct zr_circle circle; /* of the moments, with their places */
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
    if (repeat->live_count == 2 * repeat->most || at == repeat->most) {
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
            zr_take(host_arena, ZR_TAG_OTHER, 2 * repeat->most, sizeof *repeat->live, (void **)&repeat->live);
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
    size_t granule_bytes = zr_arena_plan_rules(repeat->arena).granule_bytes;
    struct zr_circle *circle = &repeat->circle;
    zr_result result;

    zr_arena_observe(repeat->arena, NULL, NULL);
    repeat->arena = NULL;
    zr_drop(repeat->host_arena, &repeat->live);
    *found = can_be_placed(repeat);
    if (!*found)
        return ZR_OK;
    circle->count = repeat->moments_count;
    result = zr_take(repeat->host_arena, ZR_TAG_OTHER, circle->count, sizeof *circle->blocks,
                     (void **)&circle->blocks);
    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < circle->count; i++)
        circle->blocks[i] = (struct zr_circle_block){.bytes = repeat->moments[i].bytes,
                                                     .alignment = repeat->moments[i].request.alignment,
                                                     .moments = (uint32_t)duration(repeat, i)};
    return zr_circle_place(circle, granule_bytes, repeat->host_arena);
}

size_t zr_repeat_region_bytes(const zr_repeat *repeat)
{
    return repeat->circle.region_bytes;
}

size_t zr_repeat_live_bytes(const zr_repeat *repeat)
{
    return repeat->circle.live_bytes;
}

/* ---- Following -----------------------------------------------------------------------------------------
 */

zr_result zr_repeat_install(const zr_repeat *repeat, zr_arena *arena)
{
    const struct zr_circle *circle = &repeat->circle;
    size_t count = circle->count;
    struct zr_plan_lane lane = {.count = count, .any = true};
    struct zr_plan_step *steps;
    zr_result result = zr_take(repeat->host_arena, ZR_TAG_OTHER, count, sizeof *steps, (void **)&steps);

    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < count; i++)
        steps[i] = (struct zr_plan_step){.request = repeat->moments[i].request,
                                         .thread = zr_thread_number(),
                                         .offset_bytes = circle->blocks[i].offset_bytes,
                                         .alive_count = circle->blocks[i].moments};
    result = zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                            .steps_count = count,
                                                            .lanes = &lane,
                                                            .lanes_count = 1,
                                                            .region_bytes = circle->region_bytes});
    zr_drop(repeat->host_arena, &steps);
    return result;
}

void zr_repeat_destroy(zr_repeat *repeat)
{
    if (!repeat)
        return;
    if (repeat->arena)
        zr_arena_observe(repeat->arena, NULL, NULL);
    zr_drop(repeat->host_arena, &repeat->circle.blocks);
    zr_drop(repeat->host_arena, &repeat->live);
    zr_drop(repeat->host_arena, &repeat->moments);
    zr_drop(repeat->host_arena, &repeat);
}
