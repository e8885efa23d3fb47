/* unplanned.c: repeats of a sequence with additional one-time allocations. Uses scratch.c. */
#include "defrag/replay/unplanned.h"

#include <string.h>

#include "alloc/base/error.h"

#define NO_EVENT UINT32_MAX
/* Limit of the sum of all allocations, so that the sum with unplanned ones cannot overflow. */
#define BYTES_MAX (UINT64_C(1) << 62)

/* splitmix64: any seed is good, including consecutive ones. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static zr_result check(struct zr_unplanned *unplanned)
{
    const struct zr_sequence *base = unplanned->base;
    uint64_t all_bytes = 0;
    if (unplanned->percent > 100)
        return zr_fail(ZR_ERR_INVALID, "%u %% of unplanned allocations exceed the maximum of 100",
                       unplanned->percent);
    for (size_t i = 0; i < base->events_count; i++) {
        const struct zr_event *event = &base->events[i];
        if (event->kind != ZR_EVENT_MARK && event->block >= base->blocks_count)
            return zr_fail(ZR_ERR_INVALID, "event %zu of the sequence names an unknown block", i);
        if (event->kind != ZR_EVENT_ALLOC)
            continue;
        unplanned->allocations_count++;
        if (event->bytes > BYTES_MAX - all_bytes)
            return zr_fail(ZR_ERR_INVALID,
                           "a sequence of more than 2^62 bytes leaves no room for unplanned allocations");
        all_bytes += event->bytes;
    }
    unplanned->events_max = base->events_count + 2 * unplanned->allocations_count;
    if (unplanned->events_max >= UINT32_MAX / 2)
        return zr_fail(ZR_ERR_INVALID, "a sequence of %zu events is too long for unplanned allocations",
                       base->events_count);
    unplanned->blocks_max = base->blocks_count + (uint32_t)unplanned->allocations_count;
    return ZR_OK;
}

/* Notes the base's allocations and lifetimes, from which unplanned allocations are drawn. The events are not
 * validated yet. */
static void note_allocations(struct zr_unplanned *unplanned, uint32_t *number_of)
{
    const struct zr_sequence *base = unplanned->base;
    uint32_t count = 0;
    for (uint32_t i = 0; i < base->events_count; i++) {
        const struct zr_event *event = &base->events[i];
        if (event->kind == ZR_EVENT_ALLOC) {
            number_of[event->block] = count;
            unplanned->events[count] = i;
            unplanned->lives[count++] = (uint32_t)base->events_count - i;
        } else if (event->kind == ZR_EVENT_FREE && count > 0) {
            uint32_t number = number_of[event->block];
            unplanned->lives[number] = i - unplanned->events[number];
        }
    }
}

zr_result zr_unplanned_begin(struct zr_unplanned *out, const struct zr_sequence *base, unsigned percent,
                             uint64_t seed)
{
    *out = (struct zr_unplanned){.base = base,
                                 .percent = percent,
                                 .seed = seed,
                                 .scratch.arena = base->host_arena,
                                 .events_max = base->events_count,
                                 .blocks_max = base->blocks_count,
                                 .repeat = *base};
    if (percent == 0)
        return ZR_OK;
    zr_result result = check(out);
    if (result != ZR_OK)
        return result;
    struct zr_scratch *scratch = &out->scratch;
    uint32_t *number_of = zr_scratch_take(scratch, base->blocks_count, sizeof *number_of);
    out->events = zr_scratch_take(scratch, out->allocations_count, sizeof *out->events);
    out->lives = zr_scratch_take(scratch, out->allocations_count, sizeof *out->lives);
    out->due = zr_scratch_take(scratch, base->events_count + 1, sizeof *out->due);
    out->next = zr_scratch_take(scratch, out->allocations_count, sizeof *out->next);
    out->repeat.events = zr_scratch_take(scratch, out->events_max, sizeof *out->repeat.events);
    if (scratch->result == ZR_OK)
        note_allocations(out, number_of);
    return scratch->result;
}

void zr_unplanned_end(struct zr_unplanned *unplanned)
{
    zr_scratch_end(&unplanned->scratch);
    *unplanned = (struct zr_unplanned){0};
}

/* ---- A repeat ------------------------------------------------------------------------------------------ */

/* A repeat in progress. */
struct making {
    struct zr_unplanned *unplanned;
    uint64_t state;
    size_t passed;  /* events of the base */
    uint32_t count; /* of unplanned allocations; their blocks' numbers follow those of the base */
    uint64_t live_bytes;
};

static void emit(struct making *making, const struct zr_event *event)
{
    struct zr_sequence *out = &making->unplanned->repeat;
    out->events[out->events_count++] = *event;
    if (event->kind == ZR_EVENT_ALLOC)
        making->live_bytes += event->bytes;
    else if (event->kind == ZR_EVENT_FREE)
        making->live_bytes -= event->bytes;
    if (making->live_bytes > out->lower_bound_bytes)
        out->lower_bound_bytes = making->live_bytes;
}

static void add_behind(struct making *making, const struct zr_event *event)
{
    struct zr_unplanned *unplanned = making->unplanned;
    if (draw(&making->state) % 100 >= unplanned->percent)
        return;
    uint64_t like = draw(&making->state) % unplanned->allocations_count;
    size_t until = making->passed + unplanned->lives[draw(&making->state) % unplanned->allocations_count];
    struct zr_event other = unplanned->base->events[unplanned->events[like]];
    uint32_t number = making->count++;
    other.thread = event->thread;
    other.stream = event->stream;
    other.block = unplanned->base->blocks_count + number;
    emit(making, &other);
    if (until > unplanned->base->events_count)
        return; /* live at the end */
    unplanned->next[number] = unplanned->due[until];
    unplanned->due[until] = (uint32_t)(unplanned->repeat.events_count - 1);
}

/* Frees the unplanned blocks whose lifetime ends after that many events. `due` lists their events. */
static void free_due(struct making *making)
{
    struct zr_unplanned *unplanned = making->unplanned;
    for (uint32_t at = unplanned->due[making->passed]; at != NO_EVENT;) {
        struct zr_event event = unplanned->repeat.events[at];
        at = unplanned->next[event.block - unplanned->base->blocks_count];
        event.kind = ZR_EVENT_FREE;
        emit(making, &event);
    }
}

const struct zr_sequence *zr_unplanned_make(struct zr_unplanned *unplanned, unsigned repeat)
{
    const struct zr_sequence *base = unplanned->base;
    struct making making = {.unplanned = unplanned, .state = unplanned->seed ^ (uint64_t)(repeat + 1) << 32};
    if (unplanned->percent == 0)
        return base;
    memset(unplanned->due, 0xff, (base->events_count + 1) * sizeof *unplanned->due); /* NO_EVENT */
    unplanned->repeat.events_count = 0;
    unplanned->repeat.lower_bound_bytes = 0;
    for (size_t i = 0; i < base->events_count; i++) {
        making.passed++;
        emit(&making, &base->events[i]);
        if (base->events[i].kind == ZR_EVENT_ALLOC)
            add_behind(&making, &base->events[i]);
        free_due(&making);
    }
    unplanned->repeat.blocks_count = base->blocks_count + making.count;
    return &unplanned->repeat;
}
