/* rehearsal.c: records a step, places each block of a pass, and installs the places as a plan. Uses the
 * packer and alloc/plan/plan.h.
 *
 * Time is periodic: its points are the allocations of a pass. Those of the step's end follow the last pass. A
 * block that a pass leaves to the next one, such as a gradient that is being reduced, is live across the
 * boundary. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/plan/plan.h"
#include "defrag/trace/lifetimes.h"
#include "defrag/pack/pack_internal.h"

enum {
    PLACED_MAX = 1 << 19, /* allocations of a pass; each has a record of a hundred bytes */
    GRAIN_BYTES = 256,    /* alignment of blocks; higher alignments take extra bytes */
    PACK_WORK = 1 << 24   /* a tenth of a second, during which ranks wait */
};

struct time_point {
    struct zr_request request; /* with the effective alignment */
    uint32_t left; /* 1 + the time in the next pass at which it was freed; 0: freed in its own pass */
};

struct live {
    size_t block_offset_bytes; /* identifies the block in the arena */
    uint32_t time_point, pass;
    uint32_t next; /* 1 + the next one in its bucket or in the free list; 0: none */
};

struct zr_rehearsal {
    zr_arena *arena;           /* NULL: the observation has ended */
    struct zr_scratch scratch; /* owns all arrays */
    size_t granule_bytes;      /* of the arena */
    uint32_t time_points_max;
    struct time_point *time_points; /* [time_points_max] */
    struct live *live;              /* [2 time_points_max]: blocks of this pass, and of the previous one */
    size_t live_count, live_used;
    uint32_t live_free; /* 1 + first of the unused elements of live[0 .. live_used) */
    uint32_t *buckets;  /* [1 << buckets_bits]: 1 + the first live block of each offset's hash */
    unsigned buckets_bits;
    uint32_t passes_count;
    uint32_t pass_length; /* of every pass except the last */
    uint32_t now;         /* allocations so far in this pass */
    bool differs;
    struct zr_lifetimes lifetimes; /* of the time points, within their pass; later with places */
    size_t region_bytes;           /* address bytes of the places */
};

/* ---- Live blocks --------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct zr_rehearsal *rehearsal, size_t block_offset_bytes)
{
    uint64_t hash = block_offset_bytes * UINT64_C(0x9e3779b97f4a7c15);
    return &rehearsal->buckets[hash >> (64 - rehearsal->buckets_bits)];
}

/* The caller has checked that an element is free: see note_allocation(). */
static void add_live(struct zr_rehearsal *rehearsal, const struct live *live)
{
    uint32_t *bucket = bucket_of(rehearsal, live->block_offset_bytes);
    uint32_t place = rehearsal->live_free;
    if (place > 0)
        rehearsal->live_free = rehearsal->live[place - 1].next;
    else
        place = (uint32_t)++rehearsal->live_used;
    rehearsal->live[place - 1] = *live;
    rehearsal->live[place - 1].next = *bucket;
    *bucket = place;
    rehearsal->live_count++;
}

/* False: the block was allocated before the step. */
static bool remove_live(struct zr_rehearsal *rehearsal, size_t block_offset_bytes, struct live *out)
{
    uint32_t *link = bucket_of(rehearsal, block_offset_bytes), place;
    while ((place = *link) > 0 && rehearsal->live[place - 1].block_offset_bytes != block_offset_bytes)
        link = &rehearsal->live[place - 1].next;
    if (place == 0)
        return false;
    *out = rehearsal->live[place - 1];
    *link = out->next;
    rehearsal->live[place - 1].next = rehearsal->live_free;
    rehearsal->live_free = place;
    rehearsal->live_count--;
    return true;
}

/* ---- Recording ----------------------------------------------------------------------------------------- */

static bool is_same(const struct time_point *time_point, const struct zr_observation *what)
{
    const struct zr_request *request = &time_point->request;
    return request->bytes == what->request->bytes && request->tag == what->request->tag &&
           request->stream == what->request->stream && request->alignment == what->alignment;
}

static unsigned note_allocation(void *state, const struct zr_observation *what)
{
    struct zr_rehearsal *rehearsal = state;
    uint32_t at = rehearsal->now++;

    if (rehearsal->passes_count == 0 || rehearsal->differs)
        return ZR_OBSERVER_NOTHING;
    if (rehearsal->live_count == 2 * (size_t)rehearsal->time_points_max || at == rehearsal->time_points_max) {
        rehearsal->differs = true;
        return ZR_OBSERVER_NOTHING;
    }
    if (at == rehearsal->lifetimes.count) {
        rehearsal->time_points[at].request = *what->request;
        rehearsal->time_points[at].request.alignment = what->alignment;
        rehearsal->lifetimes.buffers[at] =
            (struct zr_buffer){.id = at, .lower = at, .upper = (uint64_t)at + 1, .bytes = what->bytes};
        rehearsal->lifetimes.count++;
    }
    rehearsal->differs |= !is_same(&rehearsal->time_points[at], what);
    add_live(rehearsal, &(struct live){.block_offset_bytes = what->offset_bytes,
                                       .time_point = at,
                                       .pass = rehearsal->passes_count});
    return ZR_OBSERVER_NOTHING;
}

static void note_free(void *state, size_t offset_bytes, size_t live_bytes)
{
    struct zr_rehearsal *rehearsal = state;
    struct live gone;

    (void)live_bytes;
    if (rehearsal->differs || !remove_live(rehearsal, offset_bytes, &gone))
        return; /* allocated before the step, or the observation has ended */
    struct time_point *time_point = &rehearsal->time_points[gone.time_point];
    struct zr_buffer *buffer = &rehearsal->lifetimes.buffers[gone.time_point];
    if (gone.pass == rehearsal->passes_count && rehearsal->now > buffer->upper)
        buffer->upper = rehearsal->now;
    if (gone.pass + 1 == rehearsal->passes_count && rehearsal->now >= time_point->left)
        time_point->left = rehearsal->now + 1;
    rehearsal->differs |= gone.pass + 1 < rehearsal->passes_count;
}

static unsigned note_pass_of_plan(void *state, const struct zr_pass *pass)
{
    (void)state;
    (void)pass;
    return ZR_OBSERVER_NOTHING;
}

static const struct zr_observer observer = {
    .allocated = note_allocation, .freed = note_free, .passed = note_pass_of_plan};

zr_result zr_rehearsal_create(zr_rehearsal **out, zr_arena *arena, size_t allocations_max,
                              zr_arena *host_arena)
{
    if (!out || !arena || !host_arena)
        return zr_fail(ZR_ERR_INVALID,
                       "a rehearsal requires an arena to watch, an arena for records, and an output pointer");
    struct zr_scratch scratch = {.arena = host_arena};
    size_t count_max = allocations_max < PLACED_MAX ? allocations_max : PLACED_MAX;
    struct zr_rehearsal *rehearsal = zr_scratch_take(&scratch, 1, sizeof *rehearsal);
    struct time_point *time_points = zr_scratch_take(&scratch, count_max, sizeof *time_points);
    struct live *live = zr_scratch_take(&scratch, 2 * count_max, sizeof *live);
    struct zr_buffer *buffers = zr_scratch_take(&scratch, count_max, sizeof *buffers);
    unsigned buckets_bits = 1;
    while (((size_t)1 << buckets_bits) < count_max)
        buckets_bits++;
    uint32_t *buckets = zr_scratch_take(&scratch, (size_t)1 << buckets_bits, sizeof *buckets);
    zr_result result = scratch.result;
    if (result == ZR_OK) {
        memset(buckets, 0, sizeof *buckets << buckets_bits);
        *rehearsal = (struct zr_rehearsal){.arena = arena,
                                           .scratch = scratch,
                                           .granule_bytes = zr_arena_plan_rules(arena).granule_bytes,
                                           .time_points_max = (uint32_t)count_max,
                                           .time_points = time_points,
                                           .live = live,
                                           .buckets = buckets,
                                           .buckets_bits = buckets_bits,
                                           .lifetimes = {.buffers = buffers, .host_arena = host_arena}};
        result = zr_arena_observe(arena, &observer, rehearsal);
    }
    if (result != ZR_OK)
        zr_scratch_end(&scratch);
    *out = result == ZR_OK ? rehearsal : NULL;
    return result;
}

void zr_rehearsal_pass(zr_rehearsal *rehearsal)
{
    zr_arena_hold(rehearsal->arena);
    if (rehearsal->passes_count == 1)
        rehearsal->pass_length = rehearsal->now;
    rehearsal->differs |= rehearsal->passes_count > 1 && rehearsal->now != rehearsal->pass_length;
    rehearsal->passes_count++;
    rehearsal->now = 0;
    zr_arena_unhold(rehearsal->arena);
}

/* ---- Places -------------------------------------------------------------------------------------------- */

/* Extends blocks that a pass leaves to the next one across the boundary. False: a block lives longer than a
 * period. */
static bool extend_left(struct zr_rehearsal *rehearsal)
{
    uint64_t period = rehearsal->lifetimes.period = rehearsal->lifetimes.count;
    for (size_t i = 0; i < period; i++) {
        if (rehearsal->time_points[i].left > 0)
            rehearsal->lifetimes.buffers[i].upper = period + rehearsal->time_points[i].left - 1;
        if (rehearsal->lifetimes.buffers[i].upper > i + period)
            return false;
    }
    return true;
}

/* Packs to the lower bound in whole granules, within the work. */
static zr_result pack(struct zr_rehearsal *rehearsal)
{
    struct zr_lifetimes *lifetimes = &rehearsal->lifetimes;
    size_t granule = rehearsal->granule_bytes;
    struct zr_pack_report report;
    zr_result result = zr_lifetimes_measure(lifetimes);
    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < lifetimes->count; i++)
        lifetimes->buffers[i].bytes += rehearsal->time_points[i].request.alignment - GRAIN_BYTES;
    const struct zr_pack_options options = {.capacity_bytes = (lifetimes->lower_bound_bytes + granule - 1) /
                                                              granule * granule,
                                            .alignment_bytes = GRAIN_BYTES,
                                            .work = PACK_WORK};
    const struct zr_pack_here here = {.stack_bytes = ZR_PACK_STACK_BYTES, .no_search = true};
    result = zr_pack_in(lifetimes, &options, &here, &report);
    rehearsal->region_bytes = report.height_bytes;
    return result;
}

zr_result zr_rehearsal_place(zr_rehearsal *rehearsal, bool *found)
{
    if (!rehearsal || !found || !rehearsal->arena)
        return zr_fail(
            ZR_ERR_INVALID,
            "zr_rehearsal_place() requires a rehearsal that has no places yet, and an output pointer");
    zr_arena_observe(rehearsal->arena, NULL, NULL);
    rehearsal->arena = NULL;
    *found = !rehearsal->differs && rehearsal->live_count == 0 && rehearsal->lifetimes.count > 0 &&
             extend_left(rehearsal);
    return *found ? pack(rehearsal) : ZR_OK;
}

/* ---- Installing ---------------------------------------------------------------------------------------- */

zr_result zr_rehearsal_install(const zr_rehearsal *rehearsal, zr_arena *arena)
{
    if (!rehearsal || !arena || rehearsal->region_bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "the rehearsal has no places to install");
    struct zr_scratch scratch = {.arena = rehearsal->scratch.arena};
    size_t count = rehearsal->lifetimes.count;
    struct zr_plan_sequence sequence = {.count = count, .any = true};
    struct zr_plan_step *steps = zr_scratch_take(&scratch, count, sizeof *steps);
    zr_result result = scratch.result;

    for (size_t i = 0; result == ZR_OK && i < count; i++) {
        const struct zr_buffer *buffer = &rehearsal->lifetimes.buffers[i];
        size_t alignment = rehearsal->time_points[i].request.alignment;
        steps[i] = (struct zr_plan_step){.request = rehearsal->time_points[i].request,
                                         .thread = zr_thread_number(),
                                         .offset_bytes =
                                             (buffer->offset_bytes + alignment - 1) / alignment * alignment,
                                         .alive_count = (uint32_t)(buffer->upper - buffer->lower)};
    }
    if (result == ZR_OK)
        result = zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                                .steps_count = count,
                                                                .sequences = &sequence,
                                                                .sequences_count = 1,
                                                                .region_bytes = rehearsal->region_bytes});
    zr_scratch_end(&scratch);
    return result;
}

void zr_rehearsal_rewind(zr_arena *arena)
{
    zr_arena_rewind_plan(arena);
}

void zr_rehearsal_destroy(zr_rehearsal *rehearsal)
{
    if (!rehearsal)
        return;
    if (rehearsal->arena)
        zr_arena_observe(rehearsal->arena, NULL, NULL);
    struct zr_scratch scratch = rehearsal->scratch;
    zr_scratch_end(&scratch);
}
