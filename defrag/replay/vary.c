/* vary.c: repeats of a sequence that differ as those of a program do. Stands on scratch.h.
 *
 * What is drawn depends on the seed and the repeat alone, so each policy is asked for the same. */
#include "defrag/replay/vary.h"

#include <string.h>

#include "alloc/base/error.h"

enum { COPIES_MOST = 64 };

#define NOBODY UINT32_MAX
/* In all: 64 copies of them, as many unplanned allocations and a quarter on top have a sum. */
#define BYTES_MOST (UINT64_C(1) << 54)

/* splitmix64: any seed will do, also those next to each other. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool is_plain(const struct zr_vary *vary)
{
    return vary->how.unplanned_percent == 0 && vary->how.copies <= 1 && vary->how.change_at == 0;
}

static size_t copies_of(const struct zr_vary *vary)
{
    return vary->how.copies ? vary->how.copies : 1;
}

/* ---- The base ------------------------------------------------------------------------------------------ */

static zr_result check(struct zr_vary *vary)
{
    const struct zr_sequence *base = vary->base;
    uint64_t all_bytes = 0;
    if (vary->how.unplanned_percent > 100 || vary->how.copies > COPIES_MOST)
        return zr_fail(ZR_ERR_INVALID,
                       "%u %% of unplanned allocations and %u threads: 100 and %d are the most",
                       vary->how.unplanned_percent, vary->how.copies, COPIES_MOST);
    for (size_t i = 0; i < base->events_count; i++) {
        const struct zr_event *event = &base->events[i];
        if (event->kind != ZR_EVENT_MARK && event->block >= base->blocks_count)
            return zr_fail(ZR_ERR_INVALID, "event %zu of the sequence names a block that it has not", i);
        if (event->thread >= vary->threads_count)
            vary->threads_count = event->thread + 1u;
        if (event->kind != ZR_EVENT_ALLOC)
            continue;
        vary->allocations_count++;
        if (event->bytes > BYTES_MOST - all_bytes)
            return zr_fail(ZR_ERR_INVALID, "a sequence of more than 2^54 bytes in all cannot be varied");
        all_bytes += event->bytes;
    }
    /* Unplanned allocations are no more than allocations, and each of them has two events. */
    vary->events_most = copies_of(vary) * (base->events_count + 2 * vary->allocations_count);
    if (copies_of(vary) * vary->threads_count > UINT16_MAX || vary->events_most >= UINT32_MAX / 2)
        return zr_fail(ZR_ERR_INVALID,
                       "%zu copies of %zu events from %u threads are more than a sequence can hold",
                       copies_of(vary), base->events_count, vary->threads_count);
    return ZR_OK;
}

/* The base's sizes and lifetimes, which unplanned allocations are given. Whether its events make sense is not
 * known yet. */
static void note_allocations(struct zr_vary *vary)
{
    const struct zr_sequence *base = vary->base;
    uint32_t count = 0;
    for (uint32_t i = 0; i < base->events_count; i++) {
        const struct zr_event *event = &base->events[i];
        if (event->kind == ZR_EVENT_ALLOC) {
            vary->number_of[event->block] = count;
            vary->sizes[count] = i;
            vary->ends[count++] = (uint32_t)base->events_count - i;
        } else if (event->kind == ZR_EVENT_FREE) {
            uint32_t number = vary->number_of[event->block];
            vary->ends[number] = i - vary->sizes[number];
        }
    }
}

zr_result zr_vary_begin(struct zr_vary *vary, const struct zr_sequence *base, const struct zr_variation *how)
{
    *vary = (struct zr_vary){.base = base,
                             .how = *how,
                             .scratch.arena = base->host_arena,
                             .events_most = base->events_count,
                             .repeat = *base};
    if (is_plain(vary))
        return ZR_OK;
    zr_result result = check(vary);
    if (result != ZR_OK)
        return result;
    struct zr_scratch *scratch = &vary->scratch;
    size_t allocations = vary->allocations_count, copies = copies_of(vary);
    vary->number_of = zr_scratch_take(scratch, base->blocks_count, sizeof *vary->number_of);
    vary->sizes = zr_scratch_take(scratch, allocations, sizeof *vary->sizes);
    vary->ends = zr_scratch_take(scratch, allocations, sizeof *vary->ends);
    vary->at = zr_scratch_take(scratch, copies, sizeof *vary->at);
    vary->due = zr_scratch_take(scratch, copies * base->events_count + 1, sizeof *vary->due);
    vary->next = zr_scratch_take(scratch, copies * allocations, sizeof *vary->next);
    vary->repeat.events = zr_scratch_take(scratch, vary->events_most, sizeof *vary->repeat.events);
    if (scratch->result == ZR_OK)
        note_allocations(vary);
    return scratch->result;
}

void zr_vary_end(struct zr_vary *vary)
{
    zr_scratch_end(&vary->scratch);
    *vary = (struct zr_vary){0};
}

uint32_t zr_vary_blocks_most(const struct zr_vary *vary)
{
    size_t unplanned = vary->how.unplanned_percent ? vary->allocations_count : 0; /* per copy, at most */
    return (uint32_t)(copies_of(vary) * (vary->base->blocks_count + unplanned));
}

/* ---- A repeat ------------------------------------------------------------------------------------------ */

/* One repeat under way. */
struct making {
    struct zr_vary *vary;
    uint64_t unplanned_state, turn_state;
    size_t passed; /* events of the copies */
    uint32_t unplanned_count;
    uint64_t live_bytes;
    bool changed;
};

static void emit(struct making *making, const struct zr_event *event)
{
    struct zr_sequence *out = &making->vary->repeat;
    out->events[out->events_count++] = *event;
    if (event->kind == ZR_EVENT_ALLOC)
        making->live_bytes += event->bytes;
    else if (event->kind == ZR_EVENT_FREE)
        making->live_bytes -= event->bytes;
    if (making->live_bytes > out->lower_bound_bytes)
        out->lower_bound_bytes = making->live_bytes;
}

/* A changed shape: equal sizes stay equal, and each becomes 3/4, 7/8, 9/8 or 5/4 of what it was. */
static uint64_t bytes_of(const struct making *making, uint64_t bytes)
{
    static const uint64_t eighths[] = {6, 7, 9, 10};
    uint64_t state = making->vary->how.seed ^ bytes * UINT64_C(0xd6e8feb86659fd93);
    if (!making->changed)
        return bytes;
    uint64_t by = eighths[draw(&state) % 4], rest = bytes % 8 * by / 8;
    return bytes / 8 * by + (bytes < 8 ? bytes : rest);
}

/* The unplanned allocations' numbers follow those of the copies' blocks. */
static uint32_t block_of_unplanned(const struct zr_vary *vary, uint32_t unplanned)
{
    return (uint32_t)copies_of(vary) * vary->base->blocks_count + unplanned;
}

/* Another allocation right behind this one: the size and tag of one of the base's, the lifetime of another.
 */
static void add_unplanned(struct making *making, const struct zr_event *behind)
{
    struct zr_vary *vary = making->vary;
    uint64_t *state = &making->unplanned_state;
    if (draw(state) % 100 >= vary->how.unplanned_percent)
        return;
    const struct zr_event *like = &vary->base->events[vary->sizes[draw(state) % vary->allocations_count]];
    size_t until = making->passed + vary->ends[draw(state) % vary->allocations_count];
    uint32_t unplanned = making->unplanned_count++;
    emit(making, &(struct zr_event){.kind = ZR_EVENT_ALLOC,
                                    .tag = like->tag,
                                    .thread = behind->thread,
                                    .block = block_of_unplanned(vary, unplanned),
                                    .bytes = bytes_of(making, like->bytes),
                                    .stream = behind->stream});
    if (until > copies_of(vary) * vary->base->events_count)
        return; /* live at the end */
    vary->next[unplanned] = vary->due[until];
    vary->due[until] = (uint32_t)(vary->repeat.events_count - 1);
}

/* The unplanned allocations whose time ends once so many events have passed. `due` names their events. */
static void free_unplanned(struct making *making)
{
    struct zr_vary *vary = making->vary;
    uint32_t first_block = block_of_unplanned(vary, 0);
    for (uint32_t at = vary->due[making->passed]; at != NOBODY;) {
        struct zr_event event = vary->repeat.events[at];
        at = vary->next[event.block - first_block];
        event.kind = ZR_EVENT_FREE;
        emit(making, &event);
    }
}

static void pass_event(struct making *making, size_t copy)
{
    struct zr_vary *vary = making->vary;
    struct zr_event event = vary->base->events[vary->at[copy]++];
    making->passed++;
    if (event.kind != ZR_EVENT_MARK) {
        event.bytes = vary->base->events[vary->sizes[vary->number_of[event.block]]].bytes;
        event.block += (uint32_t)copy * vary->base->blocks_count;
        event.thread = (uint16_t)(event.thread + copy * vary->threads_count);
        event.bytes = bytes_of(making, event.bytes);
    }
    if (event.kind != ZR_EVENT_MARK || copy == 0)
        emit(making, &event);
    if (event.kind == ZR_EVENT_ALLOC && vary->how.unplanned_percent > 0)
        add_unplanned(making, &event);
    if (vary->how.unplanned_percent > 0)
        free_unplanned(making);
}

/* The copies take turns; one that has ended is passed over. */
static void take_turns(struct making *making)
{
    struct zr_vary *vary = making->vary;
    size_t copies = copies_of(vary), events = vary->base->events_count;
    while (making->passed < copies * events) {
        size_t copy = copies > 1 ? draw(&making->turn_state) % copies : 0;
        size_t turn = copies > 1 ? 1 + draw(&making->turn_state) % ZR_VARY_TURN_MOST : events;
        for (; turn > 0 && vary->at[copy] < events; turn--)
            pass_event(making, copy);
    }
}

const struct zr_sequence *zr_vary_make(struct zr_vary *vary, unsigned repeat)
{
    if (is_plain(vary))
        return vary->base;
    /* The same turns in each repeat, unless they are to be loose; other unplanned allocations in any case. */
    struct making making = {.vary = vary,
                            .unplanned_state = vary->how.seed ^ (uint64_t)(repeat + 1) << 32,
                            .turn_state = ~vary->how.seed,
                            .changed = vary->how.change_at > 0 && repeat + 1 >= vary->how.change_at};
    if (vary->how.loose_turns)
        making.turn_state ^= (uint64_t)(repeat + 1) << 32;
    memset(vary->at, 0, copies_of(vary) * sizeof *vary->at);
    memset(vary->due, 0xff, (copies_of(vary) * vary->base->events_count + 1) * sizeof *vary->due);
    vary->repeat.events_count = 0;
    vary->repeat.lower_bound_bytes = 0;
    take_turns(&making);
    vary->repeat.blocks_count = block_of_unplanned(vary, making.unplanned_count);
    return &vary->repeat;
}
