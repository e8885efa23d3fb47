/* unplanned_test.c: repeats with unplanned allocations: each makes sense, what is not unplanned is the base,
 * and what is drawn follows the seed and the repeat. */
#include <string.h>

#include "defrag/replay/unplanned.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { EVENTS = 4000, SLOTS = 100, BLOCKS_MAX = 2 * EVENTS };

static struct zr_event events[EVENTS];
static struct zr_sequence base;

/* Two threads; some marks; some blocks never freed. */
static void make_base(void)
{
    uint32_t slots[SLOTS] = {0}; /* 1 + block */
    uint64_t bytes[SLOTS] = {0}, live_bytes = 0;
    base = (struct zr_sequence){.events = events, .events_count = EVENTS, .host_arena = host_arena};
    for (size_t i = 0; i < EVENTS; i++) {
        size_t at = random_below(SLOTS);
        struct zr_event *event = &events[i];
        *event = (struct zr_event){.kind = ZR_EVENT_MARK};
        if (i % 500 == 499)
            continue;
        bool freed = slots[at] != 0;
        if (!freed) {
            slots[at] = ++base.blocks_count;
            bytes[at] = 1 + random_below(30) * 1000;
        }
        *event = (struct zr_event){.kind = freed ? ZR_EVENT_FREE : ZR_EVENT_ALLOC,
                                   .thread = (uint16_t)(at % 2),
                                   .block = slots[at] - 1,
                                   .bytes = bytes[at],
                                   .stream = at % 3};
        slots[at] = freed ? 0 : slots[at];
        live_bytes += freed ? -bytes[at] : bytes[at];
        if (live_bytes > base.lower_bound_bytes)
            base.lower_bound_bytes = live_bytes;
    }
}

struct seen {
    size_t unplanned_count, base_count;
    bool makes_sense, base_is_whole, bound_is_right;
    uint64_t hash;
};

/* Goes through a repeat by its own counters. */
static struct seen look(const struct zr_sequence *sequence)
{
    static uint64_t live[BLOCKS_MAX];
    struct seen seen = {.makes_sense = sequence->blocks_count <= BLOCKS_MAX, .base_is_whole = true};
    uint64_t sum = 0, most = 0;
    memset(live, 0, sizeof live);
    for (size_t i = 0; i < sequence->events_count && seen.makes_sense; i++) {
        const struct zr_event *event = &sequence->events[i];
        bool alloc = event->kind == ZR_EVENT_ALLOC, mark = event->kind == ZR_EVENT_MARK;
        seen.hash = (seen.hash ^ event->kind ^ (uint64_t)event->block << 8 ^ event->bytes << 40) *
                    UINT64_C(0x9e3779b97f4a7c15);
        if (mark || event->block < base.blocks_count)
            seen.base_is_whole &= memcmp(event, &events[seen.base_count++], sizeof *event) == 0;
        else
            seen.unplanned_count += alloc;
        if (mark)
            continue;
        seen.makes_sense = event->block < sequence->blocks_count && event->bytes > 0 &&
                           live[event->block] == (alloc ? 0 : event->bytes);
        live[event->block] = alloc ? event->bytes : 0;
        sum += alloc ? event->bytes : -event->bytes;
        most = sum > most ? sum : most;
    }
    seen.base_is_whole &= seen.base_count == EVENTS;
    seen.bound_is_right = most == sequence->lower_bound_bytes;
    return seen;
}

static void test_repeats(unsigned percent)
{
    struct zr_unplanned unplanned;
    uint64_t hashes[3];
    tap_result(zr_unplanned_begin(&unplanned, &base, percent, next_random()), ZR_OK, "%u per cent", percent);
    for (unsigned repeat = 0; repeat < 3; repeat++) {
        const struct zr_sequence *sequence = zr_unplanned_make(&unplanned, repeat);
        struct seen seen = look(sequence);
        double share = (double)seen.unplanned_count * 100 / (double)base.blocks_count;
        hashes[repeat] = seen.hash;
        tap_ok(seen.makes_sense && seen.base_is_whole && seen.bound_is_right,
               "%u per cent, repeat %u: the base, event by event, and its bound", percent, repeat);
        tap_ok(share >= 0.7 * percent && share <= 1.3 * percent, "%.2f per cent are unplanned", share);
        tap_ok(sequence->blocks_count <= unplanned.blocks_max &&
                   sequence->events_count <= unplanned.events_max,
               "within the room that was promised");
    }
    tap_is(hashes[1] == hashes[0], percent == 0, "each repeat has others");
    tap_is(look(zr_unplanned_make(&unplanned, 1)).hash, hashes[1], "asked for again it is the same");
    zr_unplanned_end(&unplanned);
}

static void test_misuse(void)
{
    static const struct {
        const char *words;
        unsigned percent;
        struct zr_event event;
        zr_result result;
    } rows[] = {
        {"more than all of them", 101, {.kind = ZR_EVENT_ALLOC, .bytes = 1}, ZR_ERR_INVALID},
        {"sizes whose sum could overflow",
         1,
         {.kind = ZR_EVENT_ALLOC, .bytes = (UINT64_C(1) << 62) + 1},
         ZR_ERR_INVALID},
        {"a block beyond the number of them", 1, {.kind = ZR_EVENT_FREE, .block = 7}, ZR_ERR_INVALID},
        {"a free of nothing, which the replay refuses", 1, {.kind = ZR_EVENT_FREE}, ZR_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_unplanned unplanned;
        struct zr_event event = rows[i].event;
        struct zr_sequence one = {
            .events = &event, .events_count = 1, .blocks_count = 1, .host_arena = host_arena};
        tap_result(zr_unplanned_begin(&unplanned, &one, rows[i].percent, 1), rows[i].result, "%s",
                   rows[i].words);
        zr_unplanned_end(&unplanned);
    }
}

int main(void)
{
    random_state = run_seed();
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    make_base();
    test_repeats(0);
    test_repeats(20);
    test_repeats(100);
    test_misuse();
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
