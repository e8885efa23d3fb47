/* replay_test.c: the driver of replay: what it reports, repeats, capacities, wrong sequences, failures; and
 * our arena under it on random sequences with a model of what must hold. */
#include <string.h>

#include "alloc/base/fault.h"
#include "alloc/base/os.h"
#include "defrag/zr_defrag.h"
#include "tests/support/draws.h"
#include "tests/support/tap.h"

#define MIB (UINT64_C(1) << 20)

static zr_backend *host;
static zr_arena *arena;

static size_t live_bytes(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
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
    struct zr_sequence sequence = {.events = events,
                                   .events_count = count,
                                   .blocks_count = blocks,
                                   .host_arena = arena,
                                   .format = "made up"};
    uint64_t bytes[64] = {0}, live = 0;
    for (size_t i = 0; i < count && blocks <= 64; i++) {
        if (events[i].kind == ZR_EVENT_ALLOC && events[i].block < 64)
            live += bytes[events[i].block] = events[i].bytes;
        if (events[i].kind == ZR_EVENT_FREE && events[i].block < 64)
            live -= bytes[events[i].block];
        if (live > sequence.lower_bound_bytes)
            sequence.lower_bound_bytes = live;
    }
    return sequence;
}
#define SEQUENCE(events, blocks) sequence_of(events, sizeof events / sizeof *events, blocks)

/* ---- Reports ------------------------------------------------------------------------------------------- */

static void test_repeats(void)
{
    /* 20 MiB, then two of 10 while the first is gone; the last one is never freed. */
    struct zr_event events[] = {a(0, 20 * MIB), f(0),           {.kind = ZR_EVENT_MARK},
                                a(1, 10 * MIB), a(2, 10 * MIB), f(1)};
    struct zr_sequence sequence = SEQUENCE(events, 3);
    for (unsigned policy = 0; policy < ZR_POLICY_COUNT; policy++) {
        struct zr_replay_report once, thrice;
        const char *name = zr_policy_name((enum zr_policy)policy);
        struct zr_replay_options options = {.policy = (enum zr_policy)policy};
        tap_result(zr_replay(&sequence, &options, &once), ZR_OK, "%s: once", name);
        options.repeat = 3;
        tap_result(zr_replay(&sequence, &options, &thrice), ZR_OK, "%s: three times", name);
        tap_ok(once.peak_reserved_bytes == 20 * MIB && thrice.peak_reserved_bytes == 20 * MIB &&
                   thrice.peak_reserved_last_repeat_bytes == 20 * MIB,
               "%s: reserves the lower bound", name);
        tap_is(thrice.lower_bound_bytes, 20 * MIB, "%s: and says what that is", name);
        tap_is(once.driver_calls, once.driver_calls_last_repeat, "%s: once, the last repeat is all of it",
               name);
        tap_is(thrice.driver_calls, once.driver_calls, "%s: repeating calls no driver", name);
        tap_is(thrice.driver_calls_last_repeat, 0, "%s: nor does the last repeat", name);
        tap_ok(thrice.ns_per_operation > 0 && thrice.ns_per_operation < 1e8, "%s: it takes time", name);
        tap_ok(thrice.failed_at == UINT64_MAX, "%s: nothing failed", name);
    }
}

static void test_capacity(void)
{
    struct zr_event events[] = {a(0, 4 * MIB), {.kind = ZR_EVENT_MARK}, a(1, 40 * MIB), f(1), f(0)};
    struct zr_sequence sequence = SEQUENCE(events, 2);
    for (unsigned policy = 0; policy < ZR_POLICY_COUNT; policy++) {
        struct zr_replay_report report;
        const char *name = zr_policy_name((enum zr_policy)policy);
        tap_result(zr_replay(&sequence,
                             &(struct zr_replay_options){
                                 .policy = (enum zr_policy)policy, .capacity_bytes = 40 * MIB, .repeat = 4},
                             &report),
                   ZR_OK, "%s: running out of memory is a result", name);
        tap_is(report.failed_at, 2, "%s: at the event that found none", name);
        tap_ok(report.peak_reserved_bytes <= 40 * MIB, "%s: the capacity holds", name);
    }
}

static void test_granules(void)
{
    struct zr_event events[] = {a(0, 1), f(0)};
    struct zr_sequence sequence = SEQUENCE(events, 1);
    struct zr_replay_report report;
    for (unsigned policy = 0; policy < ZR_POLICY_COUNT; policy++) {
        struct zr_replay_options options = {.policy = (enum zr_policy)policy, .granule_bytes = 64 * MIB};
        tap_ok(zr_replay(&sequence, &options, &report) == ZR_OK && report.peak_reserved_bytes == 64 * MIB,
               "%s: all is counted in whole granules", zr_policy_name((enum zr_policy)policy));
        options.granule_bytes = 3 * MIB;
        tap_result(zr_replay(&sequence, &options, &report), ZR_ERR_INVALID, "%s: 3 MiB are no granule",
                   zr_policy_name((enum zr_policy)policy));
    }
    tap_result(zr_replay(&sequence, &(struct zr_replay_options){.policy = ZR_POLICY_COUNT}, &report),
               ZR_ERR_INVALID, "there is no such policy");
    tap_result(zr_replay(NULL, &(struct zr_replay_options){0}, &report), ZR_ERR_INVALID, "no sequence");
    tap_result(zr_replay(&sequence, NULL, &report), ZR_ERR_INVALID, "no options");
    tap_result(zr_replay(&sequence, &(struct zr_replay_options){0}, NULL), ZR_ERR_INVALID,
               "nowhere to put it");
    tap_ok(!zr_policy_name(ZR_POLICY_COUNT) && !zr_policy_name((enum zr_policy) - 1),
           "which has no name either");
}

static void test_wrong_sequences(void)
{
    struct zr_event twice[] = {a(0, 1), a(0, 1)}, dead[] = {a(0, 1), f(0), f(0)}, unknown[] = {f(0)},
                    beyond[] = {a(1, 1)}, empty[] = {a(0, 0)}, kind[] = {{.kind = 9, .bytes = 1}},
                    tag[] = {{.kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_COUNT, .bytes = 1}};
    const struct {
        const char *words;
        struct zr_sequence sequence;
    } wrong[] = {
        {"a live block allocated", SEQUENCE(twice, 1)},
        {"a block freed twice", SEQUENCE(dead, 1)},
        {"a block freed that never was", SEQUENCE(unknown, 1)},
        {"a block beyond the number of them", SEQUENCE(beyond, 1)},
        {"a block of no bytes", SEQUENCE(empty, 1)},
        {"an event of no kind", SEQUENCE(kind, 1)},
        {"a tag that there is not", SEQUENCE(tag, 1)},
    };
    struct zr_replay_report report;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        tap_result(zr_replay(&wrong[i].sequence, &(struct zr_replay_options){0}, &report), ZR_ERR_INVALID,
                   "%s", wrong[i].words);
    struct zr_sequence none = {.host_arena = arena};
    tap_result(zr_replay(&none, &(struct zr_replay_options){.repeat = 3}, &report), ZR_OK,
               "a sequence without events");
    tap_is(report.peak_reserved_bytes, 0, "takes nothing");
}

/* ---- Random sequences ---------------------------------------------------------------------------------- */

enum { EVENTS = 20000, SLOTS = 200 };

static uint64_t some_bytes(unsigned family)
{
    uint64_t dice = next_random();
    switch (family % 4) {
    case 0: /* sizes of a training step */
        return (1 + dice % 12) * MIB / 4;
    case 1: /* whole granules: nothing can be lost */
        return (1 + dice % 12) * 2 * MIB;
    case 2: /* everything */
        return 1 + (dice >> 8) % (UINT64_C(1) << (8 + dice % 17));
    default: /* small ones */
        return 1 + dice % 3000;
    }
}

/* A random sequence; the caller's events have room for EVENTS. */
static struct zr_sequence random_sequence(struct zr_event *events, unsigned family)
{
    struct zr_sequence sequence = {.events = events, .host_arena = arena};
    static struct {
        uint32_t block;
        uint64_t bytes; /* 0: nothing live */
    } slots[SLOTS];
    uint64_t live = 0;
    memset(slots, 0, sizeof slots);
    for (; sequence.events_count < EVENTS; sequence.events_count++) {
        unsigned at = (unsigned)(next_random() % SLOTS);
        struct zr_event *event = &events[sequence.events_count];
        if (slots[at].bytes) {
            *event = f(slots[at].block);
            live -= slots[at].bytes;
            slots[at].bytes = 0;
            continue;
        }
        slots[at].block = sequence.blocks_count++;
        slots[at].bytes = some_bytes(family);
        *event = a(slots[at].block, slots[at].bytes);
        event->stream = next_random() % 2;
        live += slots[at].bytes;
        if (live > sequence.lower_bound_bytes)
            sequence.lower_bound_bytes = live;
    }
    return sequence;
}

static void test_random(uint64_t seed)
{
    static struct zr_event events[EVENTS];
    random_state = seed;
    tap_note("seed %llu", (unsigned long long)seed);
    for (unsigned family = 0; family < 4; family++) {
        struct zr_sequence sequence = random_sequence(events, family);
        for (unsigned policy = 0; policy < ZR_POLICY_COUNT; policy++) {
            struct zr_replay_report report, again;
            struct zr_replay_options options = {.policy = (enum zr_policy)policy, .repeat = 2};
            bool good = zr_replay(&sequence, &options, &report) == ZR_OK &&
                        zr_replay(&sequence, &options, &again) == ZR_OK;
            tap_ok(good && report.peak_reserved_bytes >= sequence.lower_bound_bytes &&
                       report.peak_reserved_last_repeat_bytes >= sequence.lower_bound_bytes &&
                       report.peak_reserved_last_repeat_bytes <= report.peak_reserved_bytes &&
                       report.peak_reserved_bytes % (2 * MIB) == 0,
                   "family %u: %s reserves %.3f times the lower bound", family,
                   zr_policy_name(options.policy),
                   (double)report.peak_reserved_bytes / (double)sequence.lower_bound_bytes);
            tap_ok(good && report.peak_reserved_bytes == again.peak_reserved_bytes &&
                       report.driver_calls == again.driver_calls &&
                       report.driver_calls_last_repeat == again.driver_calls_last_repeat,
                   "family %u: %s does the same each time", family, zr_policy_name(options.policy));
        }
    }
}

/* ---- Weights that stay --------------------------------------------------------------------------------- */

enum { LAYERS = 12, PASSES = 4 };

static void take(struct zr_sequence *sequence, uint64_t bytes, uint32_t *block)
{
    *block = sequence->blocks_count++;
    sequence->events[sequence->events_count++] = a(*block, bytes);
}

static void drop(struct zr_sequence *sequence, uint32_t block)
{
    sequence->events[sequence->events_count++] = f(block);
}

/* Inference: 1.9 GB of weights, then a few passes over them whose activations come and go. A pass is a period
 * that is found while most of memory is in use by what is none of it. */
static void test_inference(void)
{
    static struct zr_event events[4096];
    struct zr_sequence sequence = {.events = events, .host_arena = arena};
    uint32_t weights, hidden, query, attended, wide, logits;
    uint64_t sizes[5];
    random_state = 2;
    for (unsigned i = 0; i < LAYERS; i++)
        for (unsigned k = 0; k < 4; k++)
            take(&sequence, 23 * MIB + random_below(30 * MIB) / 512 * 512, &weights);
    for (unsigned i = 0; i < 5; i++)
        sizes[i] = 12 * MIB + random_below(16 * MIB) / 512 * 512;
    for (unsigned pass = 0; pass < PASSES; pass++) {
        take(&sequence, sizes[0], &hidden);
        for (unsigned i = 0; i < LAYERS; i++) {
            take(&sequence, sizes[1], &query);
            take(&sequence, sizes[2], &attended);
            drop(&sequence, query);
            take(&sequence, sizes[3], &wide);
            drop(&sequence, attended);
            drop(&sequence, wide);
            drop(&sequence, hidden);
            take(&sequence, sizes[0], &hidden);
        }
        take(&sequence, 4 * sizes[4], &logits);
        drop(&sequence, hidden);
        drop(&sequence, logits);
    }
    for (unsigned repeat = 1; repeat <= 5; repeat++) {
        struct zr_replay_report ours, best;
        bool good =
            zr_replay(&sequence, &(struct zr_replay_options){.repeat = repeat}, &ours) == ZR_OK &&
            zr_replay(&sequence, &(struct zr_replay_options){.policy = ZR_POLICY_BESTFIT, .repeat = repeat},
                      &best) == ZR_OK;
        tap_ok(good && ours.peak_reserved_bytes <= best.peak_reserved_bytes + 2 * 2 * MIB,
               "passes over weights, %u repeats: %llu MiB reserved, best fit %llu", repeat,
               (unsigned long long)(ours.peak_reserved_bytes / MIB),
               (unsigned long long)(best.peak_reserved_bytes / MIB));
    }
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
    sequence.lower_bound_bytes = QUEUED * 3 * MIB;
    for (unsigned run = 0; run < 2; run++) {
        struct zr_replay_options options = {.policy = ZR_POLICY_ZR, .repeat = 6};
        zr_os_clock_set(run == 0 ? NULL : racing_clock);
        tap_result(zr_replay(&sequence, &options, &report[run]), ZR_OK, "a replay by %s clock",
                   run == 0 ? "the usual" : "a racing");
        zr_os_clock_set(NULL);
    }
    tap_is(report[0].driver_calls_last_repeat, 0, "it is planned");
    tap_ok(report[0].driver_calls == report[1].driver_calls &&
               report[0].driver_calls_last_repeat == report[1].driver_calls_last_repeat &&
               report[0].peak_reserved_bytes == report[1].peak_reserved_bytes &&
               report[0].peak_reserved_last_repeat_bytes == report[1].peak_reserved_last_repeat_bytes,
           "what it comes to does not depend on the clock");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static void test_faults(void)
{
    static struct zr_event events[EVENTS];
    static const enum zr_fault_site sites[] = {ZR_FAULT_METADATA, ZR_FAULT_RESERVE, ZR_FAULT_CREATE,
                                               ZR_FAULT_MAP, ZR_FAULT_ACCESS};
    random_state = 5;
    struct zr_sequence sequence = random_sequence(events, 0);
    sequence.events_count = 400;
    for (unsigned policy = 0; policy < ZR_POLICY_COUNT; policy++)
        for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
            struct zr_replay_report report = {0};
            zr_result result = ZR_OK;
            unsigned bad = 0, nth = 0;
            size_t before = live_bytes();
            do {
                nth = nth < 40 ? nth + 1 : nth + nth / 8;
                zr_fault_set(sites[i], nth);
                result = zr_replay(&sequence, &(struct zr_replay_options){.policy = (enum zr_policy)policy},
                                   &report);
                bad += live_bytes() != before;
            } while (zr_fault_set(sites[i], 0) >= nth && nth < 100000);
            tap_ok(bad == 0 && result == ZR_OK && report.failed_at == UINT64_MAX,
                   "%s: site %s failing in turn: no leak, and clean at last",
                   zr_policy_name((enum zr_policy)policy), zr_fault_site_name(sites[i]));
        }
}

int main(void)
{
    if (zr_backend_host_create(&host, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = host}) != ZR_OK) {
        tap_ok(false, "an arena for the test: %s", zr_last_error());
        return tap_done();
    }
    test_repeats();
    test_capacity();
    test_granules();
    test_wrong_sequences();
    test_random(0x9e3779b97f4a7c15);
    test_inference();
    test_clock();
    test_faults();
    tap_is(live_bytes(), 0, "every record went back to the arena");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(host);
    return tap_done();
}
