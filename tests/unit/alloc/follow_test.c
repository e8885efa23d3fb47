/* follow_test.c: an arena under plans made by hand: places as planned, whatever the program does instead,
 * plans that come and go while blocks live, memory taken back, refusals, faults, fork; and random departures
 * from a random plan with a model of what is live beside it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/core/index.h"
#include "alloc/base/option.h"
#include "alloc/base/os.h"
#include "tests/support/draws.h"
#include "tests/support/plans_support.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

static void begin(size_t limit_bytes)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(
        &arena, &(struct zr_arena_options){.backend = backend, .name = "follow", .limit_bytes = limit_bytes});
}

static void end(void)
{
    size_t leaked = 1;
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right at the end");
    tap_ok(zr_arena_destroy(arena, &leaked) == ZR_OK && zr_backend_destroy(backend) == ZR_OK,
           "and nothing is left");
}

static uint64_t calls(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.backend_calls_count;
}

static size_t reserved(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.reserved_bytes;
}

/* Four steps; the last two lie where the first two were. */
static struct zr_plan_step four[4];

static zr_result install_four(void)
{
    four[0] = step(3 * MIB, 0, 2);
    four[1] = step(1 * MIB, 3 * MIB, 2);
    four[2] = step(2 * MIB, 0, 1);
    four[3] = step(MIB + 1, 2 * MIB, 1);
    struct zr_plan_sequence sequence = {.count = 4, .any = true};
    return zr_arena_install_plan(arena, &(struct zr_plan){.steps = four,
                                                          .steps_count = 4,
                                                          .sequences = &sequence,
                                                          .sequences_count = 1,
                                                          .region_bytes = 4 * MIB});
}

/* Once around as planned; the place of the first block. */
static char *go_round(void)
{
    char *a = take(3 * MIB), *b = take(MIB), *first = a;
    bool good = b == a + 3 * MIB;
    zr_arena_free(arena, b);
    zr_arena_free(arena, a);
    a = take(2 * MIB);
    good &= a == first;
    zr_arena_free(arena, a);
    b = take(MIB + 1);
    good &= b == first + 2 * MIB;
    zr_arena_free(arena, b);
    return good ? first : NULL;
}

/* ---- As planned ---------------------------------------------------------------------------------------- */

static void test_as_planned(void)
{
    struct zr_arena_stats stats;
    struct zr_block_info info;
    begin(0);
    tap_result(install_four(), ZR_OK, "a plan comes into force");
    tap_is(reserved(), 0, "and takes no memory yet");
    char *first = go_round();
    tap_ok(first, "each block lies where it was planned");
    tap_is(reserved(), 4 * MIB, "which takes the region's memory and no more");
    uint64_t before = calls();
    bool same = true;
    for (unsigned i = 0; i < 100; i++)
        same &= go_round() == first;
    tap_ok(same, "again and again");
    tap_is(calls() - before, 0, "without a driver call");
    tap_is(counts().planned_count, 404, "all of it counted as planned");

    char *a = take(3 * MIB);
    zr_arena_get_stats(arena, &stats);
    tap_ok(stats.live_bytes == 3 * MIB && stats.live_by_tag_bytes[ZR_TAG_GRAD] == 3 * MIB &&
               stats.blocks_count == 1,
           "a planned block counts as any other");
    tap_ok(zr_arena_find(arena, a + 2 * MIB, &info) == ZR_OK && info.address == a && info.bytes == 3 * MIB &&
               info.tag == ZR_TAG_GRAD,
           "and is found by an address within");
    tap_result(zr_arena_free(arena, a + MIB), ZR_ERR_FOREIGN, "the middle of one cannot be freed");
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right with one live");
    tap_result(zr_arena_free(arena, a), ZR_OK, "its beginning can");
    tap_result(zr_arena_free(arena, a), ZR_ERR_DOUBLE_FREE, "once");
    tap_result(zr_arena_find(arena, a, &info), ZR_ERR_FOREIGN, "then it is found no more");
    zr_arena_install_plan(arena, NULL);
    tap_result(zr_arena_free(arena, a), ZR_ERR_DOUBLE_FREE, "nor freed when its plan has gone, too");
    end();
}

/* ---- Otherwise ----------------------------------------------------------------------------------------- */

static void test_departures(void)
{
    begin(0);
    install_four();
    char *first = go_round();
    char *unplanned = take(5 * MIB);
    tap_ok(unplanned && (unplanned + 5 * MIB <= first || unplanned >= first + 4 * MIB),
           "an unplanned allocation lies outside of the region");
    tap_ok(go_round() == first, "and the plan goes on");
    zr_arena_free(arena, unplanned);

    /* The first block is kept: the third lies on it in the plan. */
    char *a = take(3 * MIB), *b = take(MIB);
    zr_arena_free(arena, b);
    char *c = take(2 * MIB);
    tap_ok(c && (c + 2 * MIB <= first || c >= first + 4 * MIB),
           "what would lie on a late block goes elsewhere");
    tap_is(counts().conflicts_count, 1, "which is counted");
    zr_arena_free(arena, c);
    char *d = take(MIB + 1);
    tap_ok(d && d != first + 2 * MIB, "so does the next one on it");
    zr_arena_free(arena, d);
    char *e = take(3 * MIB);
    tap_ok(e && e != first, "a step whose last block still lives is no match");
    char *f = take(MIB);
    tap_ok(f == first + 3 * MIB, "one that lies clear of what is late has its place");
    zr_arena_free(arena, a);
    zr_arena_free(arena, e);
    zr_arena_free(arena, f);
    take(2 * MIB);
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right");
    end();

    begin(0);
    install_four();
    first = go_round();
    a = take(MIB); /* the second before the first */
    b = take(3 * MIB);
    tap_ok(a == first + 3 * MIB && b == first, "two in the wrong order both have their places");
    zr_arena_free(arena, a);
    zr_arena_free(arena, b);
    c = take(2 * MIB);
    tap_ok(c == first, "and the plan goes on after them");
    zr_arena_free(arena, c);
    end();
}

/* Without a match nearby, the last few requests lead to the place. */
/* Memory that a plan does not use just now serves others before the arena grows beyond what it was. */
static void test_spared(void)
{
    begin(0);
    install_four();
    go_round();
    char *unplanned = take(5 * MIB);
    tap_is(reserved(), 6 * MIB, "what would be new to the arena is taken from an idle plan");
    tap_ok(go_round(), "which gets memory again when it goes on");
    tap_is(reserved(), 10 * MIB, "as much as is live");
    zr_arena_free(arena, unplanned);
    end();

    begin(0);
    zr_arena_free(arena, take(10 * MIB));
    zr_arena_trim(arena, 0, NULL);
    install_four();
    go_round();
    unplanned = take(5 * MIB);
    uint64_t before = calls();
    tap_is(reserved(), 10 * MIB, "an arena that has held more takes it beside its plan");
    tap_ok(go_round() && calls() == before, "whose steps then call no driver");
    zr_arena_free(arena, unplanned);
    end();

    begin(0);
    install_four();
    char *a = take(3 * MIB), *b = take(MIB);
    zr_arena_install_plan(arena, NULL);
    zr_arena_free(arena, a);
    unplanned = take(2 * MIB);
    tap_is(reserved(), 4 * MIB, "what a replaced plan holds for nobody is taken first");
    zr_arena_free(arena, b);
    zr_arena_free(arena, unplanned);
    end();
}

static void test_lost(void)
{
    enum { STEPS = 400 };
    static struct zr_plan_step steps[STEPS];
    begin(0);
    for (size_t i = 0; i < STEPS; i++)
        steps[i] = step((i * 7919 % 997 + 1) * KIB, i % 2 * MIB, 1);
    struct zr_plan_sequence sequence = {.count = STEPS, .any = true};
    struct zr_plan plan = {.steps = steps,
                           .steps_count = STEPS,
                           .sequences = &sequence,
                           .sequences_count = 1,
                           .region_bytes = 2 * MIB};
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "a plan of %d steps", STEPS);
    size_t first_planned = 0;
    for (size_t i = 200; i < 300; i++) {
        char *block = take(steps[i].request.bytes);
        if (!first_planned && counts().planned_count)
            first_planned = i;
        zr_arena_free(arena, block);
    }
    tap_ok(first_planned > 200 && first_planned <= 204,
           "far from the cursor it takes up to four unplanned allocations to find it");
    tap_is(counts().planned_count, 100 - (first_planned - 200), "and then all is as planned");
    end();
}

/* ---- Plans that come and go ---------------------------------------------------------------------------- */

static void test_replaced(void)
{
    begin(0);
    install_four();
    char *a = take(3 * MIB), *b = take(MIB);
    tap_result(install_four(), ZR_OK, "a plan is replaced while its blocks live");
    char *c = take(3 * MIB);
    tap_ok(c && (c + 3 * MIB <= a || c >= b + MIB), "the new one has addresses of its own");
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right");
    zr_arena_free(arena, a);
    zr_arena_free(arena, b);
    tap_result(zr_arena_check(arena), ZR_OK, "and when the old one is gone with its last block");
    zr_arena_free(arena, c);
    tap_ok(take(MIB) && take(2 * MIB), "the new one is followed");
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "no plan any more, two blocks live");
    tap_ok(take(4 * MIB), "the arena goes on without");
    tap_result(install_four(), ZR_OK, "and with one again");
    char *blocks[3];
    bool good = true;
    for (unsigned i = 0; i < 3; i++)
        good &= (blocks[i] = take(3 * MIB)) && install_four() == ZR_OK;
    for (unsigned i = 0; i < 3; i++)
        good &= zr_arena_free(arena, blocks[i]) == ZR_OK;
    tap_ok(good, "several old ones go, each with its block");
    end();
}

static void test_refused(void)
{
    begin(0);
    struct zr_plan_step steps[2] = {step(MIB, 0, 1), step(MIB, MIB, 1)};
    struct zr_plan_sequence sequences[2] = {{.count = 2, .any = true}};
    struct zr_plan good = {.steps = steps,
                           .steps_count = 2,
                           .sequences = sequences,
                           .sequences_count = 1,
                           .region_bytes = 2 * MIB};
    struct zr_plan plan = good;
    tap_result(zr_arena_install_plan(NULL, &good), ZR_ERR_INVALID, "no arena");
    plan.region_bytes = 2 * MIB - 1;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_ERR_INVALID, "a step beyond the region");
    plan = good;
    plan.sequences_count = 0;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_ERR_INVALID, "no sequences");
    plan.sequences_count = 2;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_ERR_INVALID, "a sequence without steps");
    sequences[0].cursor = 2;
    tap_result(zr_arena_install_plan(arena, &good), ZR_ERR_INVALID, "a cursor beyond the sequence");
    sequences[0] = (struct zr_plan_sequence){.count = 1, .any = true};
    tap_result(zr_arena_install_plan(arena, &good), ZR_ERR_INVALID, "a step in no sequence");
    sequences[0].count = 2;
    steps[1].offset_bytes = MIB + 1;
    tap_result(zr_arena_install_plan(arena, &good), ZR_ERR_INVALID, "an offset that is not aligned");
    steps[1] = step(MIB, MIB, 0);
    tap_result(zr_arena_install_plan(arena, &good), ZR_ERR_INVALID, "a block without a lifetime");
    steps[1] = step(MIB, MIB, 3);
    tap_result(zr_arena_install_plan(arena, &good), ZR_ERR_INVALID,
               "a block that lives beyond its next turn");
    steps[1] = step(SIZE_MAX - 10, ZR_PLAN_NOWHERE, 0);
    tap_result(zr_arena_install_plan(arena, &good), ZR_OK, "a step that stays dynamic may be anything");
    plan = good;
    plan.region_bytes = SIZE_MAX / 4;
    tap_result(zr_arena_install_plan(arena, &plan), ZR_ERR_ADDRESSES, "more addresses than there are");
    struct zr_resident before, after;
    zr_os_resident(&before);
    for (unsigned i = 0; i < 500; i++)
        zr_arena_install_plan(arena, &plan);
    zr_os_resident(&after);
    tap_ok(after.address_bytes < before.address_bytes + 256 * KIB,
           "which keeps no memory, however often: %zu KiB",
           (after.address_bytes - before.address_bytes) / KIB);
    tap_is(counts().region_bytes, 2 * MIB, "leaves the plan before in force");
    end();
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

static _Atomic bool reads, installed, seen_early;

static void *read_for_a_while(void *argument)
{
    (void)argument;
    zr_index_read_lock();
    atomic_store(&reads, true);
    for (unsigned ms = 0; ms < 200 && !atomic_load(&seen_early); ms++) {
        usleep(1000);
        atomic_store(&seen_early, atomic_load(&installed));
    }
    zr_index_read_unlock();
    return NULL;
}

/* The records of a plan that goes stay until whoever may be reading them has ended. */
static void test_readers(void)
{
    pthread_t thread;
    begin(0);
    install_four();
    pthread_create(&thread, NULL, read_for_a_while, NULL);
    while (!atomic_load(&reads))
        usleep(100);
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "a plan goes while a thread reads");
    atomic_store(&installed, true);
    pthread_join(thread, NULL);
    tap_ok(!atomic_load(&seen_early), "and waits for that thread");
    end();
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void test_memory(void)
{
    size_t released;
    begin(0);
    install_four();
    char *first = go_round();
    char *a = take(3 * MIB);
    tap_ok(zr_arena_trim(arena, 0, &released) == ZR_OK && released == 0 && go_round() == NULL,
           "a trim takes nothing from under a block");
    zr_arena_free(arena, a);
    while (counts().planned_count % 4)
        zr_arena_free(arena, take(four[counts().planned_count % 4].request.bytes));
    zr_arena_trim(arena, 0, &released);
    tap_ok(released >= 4 * MIB && reserved() == 0, "between steps it takes all");
    bool again = false;
    for (unsigned i = 0; i < 4 && !again; i++)
        again = go_round() == first;
    tap_ok(again, "which comes back when the plan needs it");
    end();

    begin(6 * MIB);
    install_four();
    first = go_round();
    char *unplanned = take(6 * MIB);
    tap_ok(unplanned && reserved() <= 6 * MIB, "as a last resort a region gives up what it does not use");
    a = take(3 * MIB);
    tap_ok(!a, "there is no memory for both");
    tap_ok(strstr(zr_last_error(), "6.00 MB") || strlen(zr_last_error()) > 20, "with words");
    zr_arena_free(arena, unplanned);
    for (unsigned i = 0; i < 4; i++)
        again = go_round() == first;
    tap_ok(again, "then the plan has its memory again");
    end();

    begin(2 * MIB);
    install_four();
    a = take(MIB + 1);
    tap_ok(a, "under a limit below the plan");
    zr_arena_free(arena, a);
    a = take(3 * MIB);
    tap_ok(!a, "a block above it is refused as ever");
    end();
}

static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                               ZR_FAULT_METADATA};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        unsigned failures = 0;
        bool good = true, clean = false;
        for (uint64_t nth = 1; nth < 200 && !clean; nth++) {
            begin(0);
            uint64_t passed;
            zr_fault_set(sites[s], nth);
            zr_result result = install_four();
            unsigned live = 0;
            char *blocks[64];
            for (unsigned i = 0; i < 16; i++) {
                char *block = take(four[i % 4].request.bytes);
                if (block)
                    blocks[live++] = block;
                while (live > (i % 4 < 2 ? 2u : 0u))
                    zr_arena_free(arena, blocks[--live]);
            }
            zr_arena_trim(arena, 0, NULL);
            passed = zr_fault_set(sites[s], 0);
            clean = passed < nth;
            failures += !clean;
            good &= result == ZR_OK || counts().region_bytes == 0;
            good &= zr_arena_check(arena) == ZR_OK;
            good &= take(4 * MIB) != NULL;
            good &= zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK;
        }
        tap_ok(good && clean && failures > 0, "%s: each of %u failures leaves the books right",
               zr_fault_site_name(sites[s]), failures);
    }
}

static void test_fork(void)
{
    begin(0);
    install_four();
    char *a = take(3 * MIB);
    pid_t child = fork();
    if (child == 0) {
        bool good = zr_arena_free(arena, a) == ZR_OK && zr_arena_check(arena) == ZR_OK;
        for (unsigned i = 0; i < 8; i++) {
            char *block = take(four[(i + 1) % 4].request.bytes);
            good &= block && zr_arena_free(arena, block) == ZR_OK;
        }
        _exit(good && counts().planned_count > 4 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "a child goes on with the plan it was born with");
    tap_result(zr_arena_free(arena, a), ZR_OK, "and so does its parent");
    end();
}

/* ---- At random ----------------------------------------------------------------------------------------- */

enum { RANDOM_STEPS = 300, LIVE_MOST = 2048 };

static struct zr_plan_step random_steps[RANDOM_STEPS];

/* First fit around the circle, by brute force. */
static size_t make_random_plan(void)
{
    size_t height = 0;
    for (size_t i = 0; i < RANDOM_STEPS; i++) {
        random_steps[i] =
            step((random_below(8) + 1) * (random_below(4) ? 40 * KIB : 700 * KIB) - random_below(200), 0,
                 (uint32_t)(1 + random_below(random_below(10) ? 20 : RANDOM_STEPS)));
        if (random_below(40) == 0)
            random_steps[i].offset_bytes = ZR_PLAN_NOWHERE;
        size_t bytes = (random_steps[i].request.bytes + 255) & ~(size_t)255, at = 0;
        bool moved = random_steps[i].offset_bytes != ZR_PLAN_NOWHERE;
        while (moved) {
            moved = false;
            for (size_t k = 0; k < i; k++) {
                size_t other = (random_steps[k].request.bytes + 255) & ~(size_t)255;
                bool together = (i - k) < random_steps[k].alive_count ||
                                (RANDOM_STEPS + k - i) < random_steps[i].alive_count;
                if (together && random_steps[k].offset_bytes != ZR_PLAN_NOWHERE &&
                    at < random_steps[k].offset_bytes + other && random_steps[k].offset_bytes < at + bytes) {
                    at = random_steps[k].offset_bytes + other;
                    moved = true;
                }
            }
        }
        if (random_steps[i].offset_bytes != ZR_PLAN_NOWHERE) {
            random_steps[i].offset_bytes = at;
            height = at + bytes > height ? at + bytes : height;
        }
    }
    return height;
}

struct live_block {
    char *address;
    size_t bytes, due;
};

static struct live_block live[LIVE_MOST];
static size_t live_count;

static bool take_one(size_t bytes, size_t due)
{
    struct zr_block_info info;
    char *address = take(bytes);
    bool good =
        address && zr_arena_find(arena, address + bytes - 1, &info) == ZR_OK && info.address == address;
    for (size_t i = 0; i < live_count; i++)
        good &= address + bytes <= live[i].address || address >= live[i].address + live[i].bytes;
    live[live_count++] = (struct live_block){address, bytes, due};
    return good;
}

static bool free_one(size_t number)
{
    bool good = zr_arena_free(arena, live[number].address) == ZR_OK;
    live[number] = live[--live_count];
    return good;
}

static bool run_random(unsigned rounds, unsigned disorder)
{
    bool good = true;
    size_t now = 0;
    for (unsigned r = 0; r < rounds * RANDOM_STEPS && good; r++, now++) {
        size_t at = now % RANDOM_STEPS;
        for (size_t i = live_count; i-- > 0;)
            if (live[i].due <= now && (disorder == 0 || random_below(1000) >= disorder))
                good &= free_one(i);
        if (disorder && random_below(1000) < disorder) {
            size_t what = random_below(6);
            if (what == 0)
                now += random_below(RANDOM_STEPS); /* a part of the step is left out */
            else if (what == 1)
                zr_arena_trim(arena, 0, NULL);
            else if (what == 2 && live_count > 0)
                good &= free_one(random_below(live_count)); /* too early */
            else if (what == 3)
                good &= take_one(random_steps[random_below(RANDOM_STEPS)].request.bytes,
                                 now + random_below(1000));
            else
                good &= take_one(1 + random_below(3 * MIB), now + random_below(400));
        }
        if (live_count < LIVE_MOST - 2)
            good &= take_one(random_steps[at].request.bytes, now + random_steps[at].alive_count);
        if (r % 64 == 0)
            good &= zr_arena_check(arena) == ZR_OK;
    }
    while (live_count > 0)
        good &= free_one(live_count - 1);
    return good && zr_arena_check(arena) == ZR_OK;
}

static void test_random(uint64_t seed)
{
    for (unsigned i = 0; i < 6; i++) {
        static const unsigned disorders[] = {0, 3, 10, 30, 100, 300};
        random_state = seed + i;
        begin(0);
        struct zr_plan_sequence sequence = {.count = RANDOM_STEPS, .any = true};
        struct zr_plan plan = {
            .steps = random_steps, .steps_count = RANDOM_STEPS, .sequences = &sequence, .sequences_count = 1};
        plan.region_bytes = make_random_plan();
        tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "a random plan");
        tap_ok(run_random(12, disorders[i]),
               "seed %llu, %u in a thousand otherwise: no two blocks ever overlap",
               (unsigned long long)seed + i, disorders[i]);
        struct zr_follow_counts got = counts();
        tap_note("planned %llu, unplanned allocations %llu, conflicts %llu, dynamic %llu",
                 (unsigned long long)got.planned_count, (unsigned long long)got.unplanned_count,
                 (unsigned long long)got.conflicts_count, (unsigned long long)got.unplaced_count);
        if (disorders[i] == 0)
            tap_ok(got.unplanned_count == 0 && got.conflicts_count == 0,
                   "in order nothing departs from the plan");
        end();
    }
}

/* What the dynamic path held before goes back in pieces, once; what comes beside the plan keeps its memory.
 */
static void test_settled(void)
{
    begin(0);
    zr_arena_free(arena, take(100 * MIB));
    install_four();
    go_round();
    zr_arena_commit_plan(arena);
    tap_is(reserved(), 4 * MIB, "after its first pass a plan holds its own memory, no more");
    zr_arena_free(arena, take(9 * MIB));
    uint64_t before = calls();
    for (unsigned i = 0; i < 3; i++) {
        zr_arena_commit_plan(arena);
        tap_ok(go_round(), "the plan goes on");
        zr_arena_free(arena, take(9 * MIB));
    }
    tap_is(calls() - before, 0, "an allocation beside it asks the driver the first time alone");
    zr_arena_trim(arena, 0, NULL);
    tap_is(reserved(), 0, "and a trim takes all");
    tap_ok(go_round(), "which the plan gets again");
    end();
}

int main(void)
{
    uint64_t seed = run_seed();
    test_as_planned();
    test_departures();
    test_spared();
    test_settled();
    test_lost();
    test_replaced();
    test_refused();
    test_readers();
    test_memory();
    test_faults();
    test_fork();
    test_random(seed);
    return tap_done();
}
