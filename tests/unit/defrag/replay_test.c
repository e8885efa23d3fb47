/* replay_test.c: the driver of replay: what it reports, repeats, capacities, wrong sequences, failures;
 * and our arena under it on passes over weights and by a racing clock. */
#include <ctype.h>
#include <string.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "defrag/zr_defrag.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/tap.h"

#define MIB (UINT64_C(1) << 20)

static size_t live_bytes(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(host_arena, &stats);
    return stats.live_bytes;
}

static struct zr_event a(uint32_t block, uint64_t bytes)
{
    return (struct zr_event){.kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_OTHER, .block = block, .bytes = bytes};
}

static struct zr_event f(uint32_t block)
{
    return (struct zr_event){.kind = ZR_EVENT_FREE, .tag = ZR_TAG_OTHER, .block = block};
}

static struct zr_sequence sequence_of(struct zr_event *events, size_t count, uint32_t blocks)
{
    return (struct zr_sequence){
        .events = events, .events_count = count, .blocks_count = blocks, .host_arena = host_arena};
}
#define SEQUENCE(events, blocks) sequence_of(events, sizeof events / sizeof *events, blocks)

/* ---- Reports ------------------------------------------------------------------------------------------- */

static void test_repeats(enum zr_policy policy)
{
    /* 20 MiB, then two of 10 while the first is gone; the last one is never freed. */
    struct zr_event events[] = {a(0, 20 * MIB), f(0),           {.kind = ZR_EVENT_MARK},
                                a(1, 10 * MIB), a(2, 10 * MIB), f(1)};
    struct zr_sequence sequence = SEQUENCE(events, 3);
    struct zr_replay_report once, thrice;
    const char *name = zr_policy_name(policy);
    sequence.lower_bound_bytes = 20 * MIB;
    tap_result(zr_replay(&sequence, &(struct zr_replay_options){.policy = policy}, &once), ZR_OK, "%s: once",
               name);
    tap_result(zr_replay(&sequence, &(struct zr_replay_options){.policy = policy, .repeat = 3}, &thrice),
               ZR_OK, "%s: three times", name);
    tap_ok(once.peak_reserved_bytes == 20 * MIB && thrice.peak_reserved_bytes == 20 * MIB &&
               thrice.peak_reserved_last_repeat_bytes == 20 * MIB && thrice.lower_bound_bytes == 20 * MIB,
           "%s: reserves the lower bound, and says what that is", name);
    tap_is(once.driver_calls, once.driver_calls_last_repeat, "%s: once, the last repeat is all of it", name);
    tap_ok(thrice.driver_calls == once.driver_calls && thrice.driver_calls_last_repeat == 0,
           "%s: repeating calls no driver", name);
    tap_ok(thrice.ns_per_operation > 0 && thrice.ns_per_operation < 1e8, "%s: it takes time", name);
    tap_ok(thrice.failed_at == UINT64_MAX, "%s: nothing failed", name);
}

static void test_capacity(enum zr_policy policy)
{
    struct zr_event events[] = {a(0, 4 * MIB), {.kind = ZR_EVENT_MARK}, a(1, 40 * MIB), f(1), f(0)};
    struct zr_sequence sequence = SEQUENCE(events, 2);
    struct zr_replay_options options = {.policy = policy, .capacity_bytes = 40 * MIB, .repeat = 4};
    struct zr_replay_report report;
    tap_result(zr_replay(&sequence, &options, &report), ZR_OK, "%s: running out of memory is a result",
               zr_policy_name(policy));
    tap_ok(report.failed_at == 2 && report.peak_reserved_bytes <= 40 * MIB,
           "%s: at the event that found none, and the capacity holds", zr_policy_name(policy));
}

static void test_granules(enum zr_policy policy)
{
    struct zr_event events[] = {a(0, 1), f(0)};
    struct zr_sequence sequence = SEQUENCE(events, 1);
    struct zr_replay_options options = {.policy = policy, .granule_bytes = 64 * MIB};
    struct zr_replay_report report;
    tap_ok(zr_replay(&sequence, &options, &report) == ZR_OK && report.peak_reserved_bytes == 64 * MIB,
           "%s: all is counted in whole granules", zr_policy_name(policy));
    options.granule_bytes = 3 * MIB;
    tap_result(zr_replay(&sequence, &options, &report), ZR_ERR_INVALID, "%s: 3 MiB are no granule",
               zr_policy_name(policy));
}

static void test_wrong(void)
{
    struct zr_sequence none = sequence_of(NULL, 0, 0);
    struct zr_replay_options options = {.repeat = 3}, no_policy = {.policy = ZR_POLICY_COUNT};
    struct zr_replay_report report;
    const struct {
        const char *words;
        struct zr_event events[3];
        size_t count;
    } wrong[] = {
        {"a live block allocated", {a(0, 1), a(0, 1)}, 2},
        {"a block freed twice", {a(0, 1), f(0), f(0)}, 3},
        {"a block freed that never was", {f(0)}, 1},
        {"a block beyond the number of them", {a(1, 1)}, 1},
        {"a block of no bytes", {a(0, 0)}, 1},
        {"an event of no kind", {{.kind = 9, .bytes = 1}}, 1},
        {"a tag that there is not", {{.kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_COUNT, .bytes = 1}}, 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct zr_event events[3];
        memcpy(events, wrong[i].events, sizeof events);
        struct zr_sequence sequence = sequence_of(events, wrong[i].count, 1);
        tap_result(zr_replay(&sequence, &options, &report), ZR_ERR_INVALID, "%s", wrong[i].words);
    }
    tap_result(zr_replay(&none, &options, &report), ZR_OK, "a sequence without events");
    tap_is(report.peak_reserved_bytes, 0, "takes nothing");
    tap_result(zr_replay(&none, &no_policy, &report), ZR_ERR_INVALID, "there is no such policy");
    tap_ok(!zr_policy_name(ZR_POLICY_COUNT) && !zr_policy_name((enum zr_policy) - 1),
           "which has no name either");
    tap_ok(zr_replay(NULL, &options, &report) == ZR_ERR_INVALID &&
               zr_replay(&none, NULL, &report) == ZR_ERR_INVALID &&
               zr_replay(&none, &options, NULL) == ZR_ERR_INVALID,
           "no sequence, no options, nowhere to put it");
}

/* ---- Weights that stay --------------------------------------------------------------------------------- */

/* Lower case takes a block of the letter's size, upper case drops the one taken last. */
static void go_on(struct zr_sequence *sequence, const char *letters, const uint64_t *sizes)
{
    static uint32_t held['z' + 1];
    for (; *letters; letters++) {
        bool takes = islower(*letters);
        uint32_t *block = &held[tolower(*letters)];
        *block = takes ? sequence->blocks_count++ : *block;
        sequence->events[sequence->events_count++] =
            takes ? a(*block, sizes[(unsigned char)*letters]) : f(*block);
    }
}

/* Inference: 1.9 GB of parameters, then a few passes over them whose activations come and go: hidden ones, a
 * query, attended ones, wide ones, logits. A pass is a period that is found while most of memory is in use by
 * what is none of it. */
static void test_inference(void)
{
    static struct zr_event events[4096];
    struct zr_sequence sequence = sequence_of(events, 0, 0);
    uint64_t sizes['z' + 1];
    random_state = 2;
    for (unsigned i = 0; i < 48; i++) {
        sizes['p'] = 23 * MIB + random_below(30 * MIB) / 512 * 512;
        go_on(&sequence, "p", sizes);
    }
    for (const char *letter = "hqawl"; *letter; letter++)
        sizes[(unsigned char)*letter] = 12 * MIB + random_below(16 * MIB) / 512 * 512;
    sizes['l'] *= 4;
    for (unsigned pass = 0; pass < 4; pass++) {
        go_on(&sequence, "h", sizes);
        for (unsigned layer = 0; layer < 12; layer++)
            go_on(&sequence, "qaQwAWHh", sizes);
        go_on(&sequence, "lHL", sizes);
    }
    struct zr_replay_options options = {.policy = ZR_POLICY_ZR, .repeat = 5};
    struct zr_replay_report ours, best;
    bool good = zr_replay(&sequence, &options, &ours) == ZR_OK;
    options.policy = ZR_POLICY_BESTFIT;
    good = good && zr_replay(&sequence, &options, &best) == ZR_OK;
    tap_ok(good && ours.peak_reserved_bytes <= best.peak_reserved_bytes + 2 * 2 * MIB,
           "passes over weights: %llu MiB reserved, best fit %llu",
           (unsigned long long)(ours.peak_reserved_bytes / MIB),
           (unsigned long long)(best.peak_reserved_bytes / MIB));
}

/* ---- The clock ----------------------------------------------------------------------------------------- */

enum { QUEUED = 24, STEPS = 700 };

/* Hours between any two looks: on such a machine there is no time for anything. */
static uint64_t racing_clock(void)
{
    static _Atomic uint64_t hours;
    return ++hours * UINT64_C(3600000000000);
}

/* Blocks of one size, each freed when so many others have come: a plan at the lower bound is found as soon as
 * it is looked for, and one that is made in a hurry piles up hundreds of them. */
static void test_clock(void)
{
    static struct zr_event events[2 * STEPS];
    struct zr_replay_report report[2] = {{0}};
    size_t count = 0;
    random_state = 17;
    for (uint32_t i = 0; i < STEPS + QUEUED; i++) {
        if (i >= QUEUED)
            events[count++] = f(i - QUEUED);
        if (i >= STEPS)
            continue;
        events[count] = a(i, 3 * MIB);
        events[count++].tag = (uint8_t)random_below(ZR_TAG_COUNT);
    }
    struct zr_sequence sequence = sequence_of(events, count, STEPS);
    struct zr_replay_options options = {.policy = ZR_POLICY_ZR, .repeat = 6};
    tap_result(zr_replay(&sequence, &options, &report[0]), ZR_OK, "a replay by the usual clock");
    zr_os_clock_set(racing_clock);
    tap_result(zr_replay(&sequence, &options, &report[1]), ZR_OK, "a replay by a racing clock");
    zr_os_clock_set(NULL);
    tap_is(report[0].driver_calls_last_repeat, 0, "it is planned");
    tap_ok(report[0].driver_calls == report[1].driver_calls &&
               report[0].driver_calls_last_repeat == report[1].driver_calls_last_repeat &&
               report[0].peak_reserved_bytes == report[1].peak_reserved_bytes &&
               report[0].peak_reserved_last_repeat_bytes == report[1].peak_reserved_last_repeat_bytes,
           "what it comes to does not depend on the clock");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Each driver call and record refused in turn, of a replay of random steps. */
static void test_faults(enum zr_policy policy)
{
    enum { EVENTS = 400, SLOTS = 200 };
    static const enum zr_fault_site sites[] = {ZR_FAULT_METADATA, ZR_FAULT_RESERVE, ZR_FAULT_CREATE,
                                               ZR_FAULT_MAP, ZR_FAULT_ACCESS};
    struct zr_event events[EVENTS];
    struct zr_sequence sequence = sequence_of(events, EVENTS, 0);
    struct {
        uint32_t block;
        bool live;
    } slots[SLOTS] = {{0}};
    random_state = 5;
    for (size_t i = 0; i < EVENTS; i++) {
        size_t at = random_below(SLOTS);
        if (!slots[at].live)
            slots[at].block = sequence.blocks_count++;
        events[i] =
            slots[at].live ? f(slots[at].block) : a(slots[at].block, (1 + random_below(12)) * MIB / 4);
        events[i].stream = slots[at].live ? 0 : random_below(2);
        slots[at].live = !slots[at].live;
    }
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        struct zr_replay_options options = {.policy = policy};
        struct zr_replay_report report = {0};
        zr_result result = ZR_OK;
        unsigned bad = 0, nth = 0;
        size_t before = live_bytes();
        do {
            nth = nth < 40 ? nth + 1 : nth + nth / 8;
            zr_fault_set(sites[i], nth);
            result = zr_replay(&sequence, &options, &report);
            bad += live_bytes() != before;
        } while (zr_fault_set(sites[i], 0) >= nth && nth < 100000);
        tap_ok(bad == 0 && result == ZR_OK && report.failed_at == UINT64_MAX,
               "%s: site %s failing in turn: no leak, and clean at last", zr_policy_name(policy),
               zr_fault_site_name(sites[i]));
    }
}

int main(void)
{
    if (records_begin() != ZR_OK) {
        tap_ok(false, "an arena for the test: %s", zr_last_error());
        return tap_done();
    }
    for (enum zr_policy policy = 0; policy < ZR_POLICY_COUNT; policy++) {
        test_repeats(policy);
        test_capacity(policy);
        test_granules(policy);
        test_faults(policy);
    }
    test_wrong();
    test_inference();
    test_clock();
    tap_is(records_end(), 0, "every record went back to the arena");
    return tap_done();
}
