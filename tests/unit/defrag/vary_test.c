/* vary_test.c: repeats that differ: each is a sequence that makes sense, the copies in it are the base, and
 * what is drawn follows the seed. */
#include <string.h>

#include "defrag/replay/vary.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { EVENTS = 4000, SLOTS = 100, BLOCKS_MOST = 64 * EVENTS };

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
    size_t unplanned_count, copies_events;
    bool makes_sense, copies_are_base, bound_is_right, equal_stay_equal;
    uint64_t hash;
};

/* Goes through a repeat by its own counters. */
static struct seen look(const struct zr_sequence *sequence, size_t copies)
{
    static uint64_t live[BLOCKS_MOST], becomes[30];
    struct seen seen = {.makes_sense = sequence->blocks_count <= BLOCKS_MOST,
                        .copies_are_base = true,
                        .equal_stay_equal = true};
    size_t at[64] = {0};
    uint64_t sum = 0, most = 0;
    memset(live, 0, sizeof live);
    memset(becomes, 0, sizeof becomes);
    for (size_t i = 0; i < sequence->events_count && seen.makes_sense; i++) {
        const struct zr_event *event = &sequence->events[i];
        seen.hash = (seen.hash ^ event->kind ^ (uint64_t)event->block << 8 ^ event->bytes << 40) *
                    UINT64_C(0x9e3779b97f4a7c15);
        if (event->kind == ZR_EVENT_MARK)
            continue;
        bool alloc = event->kind == ZR_EVENT_ALLOC;
        seen.makes_sense = event->block < sequence->blocks_count && event->bytes > 0 &&
                           live[event->block] == (alloc ? 0 : event->bytes);
        if (!seen.makes_sense)
            break;
        live[event->block] = alloc ? event->bytes : 0;
        sum += alloc ? event->bytes : -event->bytes;
        most = sum > most ? sum : most;
        size_t copy = event->block / base.blocks_count;
        if (copy >= copies) {
            seen.unplanned_count += alloc;
            continue;
        }
        while (events[at[copy]].kind == ZR_EVENT_MARK)
            at[copy]++;
        const struct zr_event *own = &events[at[copy]++];
        seen.copies_are_base &= own->kind == event->kind && own->stream == event->stream &&
                                own->thread == event->thread % 2 && copy == event->thread / 2 &&
                                own->block == event->block % base.blocks_count;
        uint64_t *becomes_bytes = &becomes[own->bytes / 1000];
        seen.equal_stay_equal &= *becomes_bytes == 0 || *becomes_bytes == event->bytes;
        *becomes_bytes = event->bytes;
        seen.copies_events++;
    }
    seen.bound_is_right = most == sequence->lower_bound_bytes;
    return seen;
}

static void test_repeats(const char *words, struct zr_variation how)
{
    struct zr_vary vary;
    size_t copies = how.copies ? how.copies : 1;
    size_t plain = EVENTS - EVENTS / 500;
    uint64_t hashes[4];
    how.seed = next_random();
    tap_result(zr_vary_begin(&vary, &base, &how), ZR_OK, "%s: begins", words);
    for (unsigned repeat = 0; repeat < 4; repeat++) {
        const struct zr_sequence *sequence = zr_vary_make(&vary, repeat);
        struct seen seen = look(sequence, copies);
        hashes[repeat] = seen.hash;
        tap_ok(seen.makes_sense && seen.copies_are_base && seen.copies_events == copies * plain,
               "%s, repeat %u: every copy is the base, event by event", words, repeat);
        tap_ok(seen.bound_is_right && seen.equal_stay_equal, "and its bound is that of its events");
        double share = (double)seen.unplanned_count * 100 / (double)(copies * base.blocks_count);
        tap_ok(share >= 0.7 * how.unplanned_percent && share <= 1.3 * how.unplanned_percent,
               "%.2f %% of unplanned allocations where %u are asked for", share, how.unplanned_percent);
        tap_ok(sequence->blocks_count <= zr_vary_blocks_most(&vary) &&
                   (sequence == &base || sequence->events_count <= vary.events_most),
               "within the room that was promised");
    }
    bool others = how.unplanned_percent > 0 || how.loose_turns;
    tap_is(hashes[1] == hashes[0], !others, "the second repeat is the first: %s", others ? "no" : "yes");
    tap_is(hashes[3] == hashes[1], !others && how.change_at == 0, "and the fourth is the second");
    tap_ok(look(zr_vary_make(&vary, 1), copies).hash == hashes[1], "asked for again it is the same");
    zr_vary_end(&vary);
}

static void test_refusals(void)
{
    struct zr_vary vary;
    static const struct zr_variation wrong[] = {{.unplanned_percent = 101}, {.copies = 65}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tap_result(zr_vary_begin(&vary, &base, &wrong[i]), ZR_ERR_INVALID, "more than there is");
        zr_vary_end(&vary);
    }
    struct zr_event event = {.kind = ZR_EVENT_ALLOC, .bytes = UINT64_C(1) << 55};
    struct zr_sequence large = {
        .events = &event, .events_count = 1, .blocks_count = 1, .host_arena = host_arena};
    tap_result(zr_vary_begin(&vary, &large, &(struct zr_variation){.copies = 2}), ZR_ERR_INVALID,
               "sizes whose sum could overflow");
    zr_vary_end(&vary);
    event = (struct zr_event){.kind = ZR_EVENT_FREE, .block = 7};
    tap_result(zr_vary_begin(&vary, &large, &(struct zr_variation){.copies = 2}), ZR_ERR_INVALID,
               "a block beyond the number of them");
    zr_vary_end(&vary);
    event = (struct zr_event){.kind = ZR_EVENT_ALLOC, .thread = 40000, .bytes = 1};
    tap_result(zr_vary_begin(&vary, &large, &(struct zr_variation){.copies = 2}), ZR_ERR_INVALID,
               "threads beyond the numbers for them");
    zr_vary_end(&vary);
}

int main(void)
{
    random_state = run_seed();
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    make_base();
    test_repeats("as it is", (struct zr_variation){0});
    test_repeats("unplanned allocations", (struct zr_variation){.unplanned_percent = 20});
    test_repeats("nothing but unplanned allocations in between",
                 (struct zr_variation){.unplanned_percent = 100});
    test_repeats("three threads", (struct zr_variation){.copies = 3});
    test_repeats("two threads that take turns loosely",
                 (struct zr_variation){.copies = 2, .loose_turns = true});
    test_repeats("another shape", (struct zr_variation){.change_at = 3});
    test_repeats("all of it", (struct zr_variation){
                                  .unplanned_percent = 10, .copies = 4, .loose_turns = true, .change_at = 2});
    test_refusals();
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
