/* executor_test.c: an arena under plans made by hand: places as planned, whatever the program does instead,
 * blocks by address, plans that come and go while blocks live and others look, memory taken back, refusals,
 * fork; and random departures from random plans, and faults, beside a model of what is live. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/front/front.h"
#include "alloc/base/system/os.h"
#include "alloc/core/index.h"
#include "alloc/core/streams.h"
#include "tests/support/zero/plan_runs.h"
#include "tests/support/seed.h"

static void begin(size_t limit_bytes)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(&arena, &(struct zr_arena_options){
                                .backend = backend, .name = "executor", .limit_bytes = limit_bytes});
}

static bool begin_run(void)
{
    begin(0);
    return true;
}

static bool end_run(void)
{
    bool good = zr_arena_check(arena) == ZR_OK;
    return good & (zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK);
}

static void end(void)
{
    tap_ok(end_run(), "the books are right at the end, and nothing is left");
}

static uint64_t calls(void)
{
    return stats().backend_calls_count;
}

static size_t reserved(void)
{
    return stats().reserved_bytes;
}

/* Four steps; the last two lie where the first two were. */
static struct zr_plan_step four[4];

static zr_result install_four(void)
{
    four[0] = step(3 * MIB, 0, 2);
    four[1] = step(1 * MIB, 3 * MIB, 2);
    four[2] = step(2 * MIB, 0, 1);
    four[3] = step(MIB + 1, 2 * MIB, 1);
    return install(&(struct zr_plan){.steps = four, .steps_count = 4, .region_bytes = 4 * MIB});
}

/* Whether a block is clear of the plan's region, which begins there. */
static bool is_outside(const char *block, size_t bytes, const char *region)
{
    return block && (block + bytes <= region || block >= region + 4 * MIB);
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
    tap_ok(same && calls() == before, "again and again, without a driver call");
    tap_is(counts().planned_count, 404, "all of it counted as planned");
    char *a = take(3 * MIB);
    tap_ok(stats().live_bytes == 3 * MIB && stats().live_by_tag_bytes[ZR_TAG_GRAD] == 3 * MIB &&
               stats().blocks_count == 1,
           "a planned block counts as any other");
    zr_arena_free(arena, a);
    tap_result(zr_arena_free(arena, a), ZR_ERR_DOUBLE_FREE, "it can be freed once");
    zr_arena_install_plan(arena, NULL);
    tap_result(zr_arena_free(arena, a), ZR_ERR_DOUBLE_FREE, "nor freed when its plan has gone, too");
    end();
}

static bool is_foreign(char *address)
{
    struct zr_block_info info;
    return zr_arena_find(arena, address, &info) == ZR_ERR_FOREIGN &&
           zr_arena_free(arena, address) == ZR_ERR_FOREIGN;
}

/* Blocks by address, under their plan and after it. */
static void test_pointers(void)
{
    struct zr_block_info info;
    begin(0);
    install_four();
    char *first = take(3 * MIB), *unused = first + 3 * MIB;
    for (unsigned gone = 0; gone < 2; gone++) {
        const char *when = gone ? "a plan that has gone" : "a plan";
        if (gone)
            zr_arena_install_plan(arena, NULL);
        tap_ok(is_foreign(unused), "%s: a place that was not used yet is no block", when);
        tap_ok(zr_arena_find(arena, first + 2 * MIB, &info) == ZR_OK && info.address == first &&
                   info.bytes == 3 * MIB && info.tag == ZR_TAG_GRAD,
               "%s: a block is found by an address within", when);
        tap_ok(zr_arena_free(arena, first + 256) == ZR_ERR_FOREIGN &&
                   zr_arena_free(arena, first + 1) == ZR_ERR_FOREIGN && zr_arena_check(arena) == ZR_OK,
               "%s: and freed by its first byte alone", when);
    }
    tap_result(zr_arena_free(arena, first), ZR_OK, "its last block is freed as ever");
    tap_ok(is_foreign(first + 2 * MIB) && is_foreign(unused), "then nothing is there");
    tap_ok(zr_arena_free(arena, first) != ZR_OK, "and a second free is refused");
    end();
}

/* ---- In gaps ------------------------------------------------------------------------------------------- */

enum { HALF = MIB / 4 };

/* Beside a block of 1 MiB, steps of a half, a half, the second half again, and of 1 MiB to the granule's end.
 */
static zr_result install_gaps(const char *gap, struct zr_plan_step wrong)
{
    for (unsigned i = 0; i < 4; i++) {
        four[i] = step(i < 3 ? HALF : MIB, ZR_PLAN_NOWHERE, i == 0 ? 2 : 1);
        four[i].gap_bytes = (size_t)(gap - arena->base) + (i == 1 || i == 2 ? HALF : 0);
    }
    four[2] = wrong.request.bytes > 0 ? wrong : four[2];
    return install(&(struct zr_plan){.steps = four, .steps_count = 4, .region_bytes = 2 * MIB});
}

/* How many of the steps have their places, once around. */
static unsigned go_through(const char *gap)
{
    char *first = take(HALF), *second = take(HALF);
    unsigned count = (first == gap) + (second == gap + HALF);
    zr_arena_free(arena, first);
    zr_arena_free(arena, second);
    for (unsigned i = 2; i < 4; i++) {
        first = take(four[i].request.bytes);
        count += first == gap + (i == 2 ? HALF : 0);
        zr_arena_free(arena, first);
    }
    return count;
}

static void wait_for_streams(void)
{
    zr_arena_acquire(arena);
    while (zr_streams_wait(arena))
        continue;
    zr_arena_release(arena);
}

static void test_gaps(void)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB, .work_ns = 1000});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "gaps"});
    char *low = take(MIB), *gap = take_on(2 * HALF, 7), *other;
    struct zr_plan_step wrong = step(HALF, 0, 1);
    wrong.gap_bytes = MIB;
    tap_result(install_gaps(gap, wrong), ZR_ERR_INVALID, "a place in the region and one in a gap");
    wrong = step(HALF, ZR_PLAN_NOWHERE, 1);
    wrong.gap_bytes = MIB + 1;
    tap_result(install_gaps(gap, wrong), ZR_ERR_INVALID, "a place that is not aligned");
    wrong.gap_bytes = arena->range_bytes;
    tap_result(install_gaps(gap, wrong), ZR_ERR_INVALID, "a place behind the arena");
    wrong = step(3 * MIB, ZR_PLAN_NOWHERE, 1);
    wrong.gap_bytes = MIB;
    tap_result(install_gaps(gap, wrong), ZR_OK, "a place in a gap that is larger than the region");
    tap_result(install_gaps(gap, (struct zr_plan_step){0}), ZR_OK, "places in a gap");
    tap_is(go_through(gap), 0, "a block that lies in the gap stays where it is");
    zr_arena_free(arena, gap);
    tap_is(go_through(gap), 0, "nor is what another stream may still use");
    wait_for_streams();
    zr_arena_free(arena,
                  take(2 * HALF)); /* the gap's first half belongs to this stream, the second to none */
    uint64_t before = calls();
    struct zr_executor_counts was = counts();
    bool good = true;
    for (unsigned i = 0; i < 3; i++)
        good &= go_through(gap) == 4;
    tap_ok(good && calls() == before && counts().conflicts_count == was.conflicts_count &&
               counts().planned_count == was.planned_count + 12,
           "each block lies where it was planned, whichever thread freed the parts of its place");
    zr_arena_free(arena, low);
    tap_is(go_through(gap), 4, "also when the older block goes");
    wait_for_streams();
    zr_arena_trim(arena, 0, NULL);
    tap_ok(go_through(gap) < 4, "but not where no memory is left");
    low = take(MIB);
    go_through(gap);
    other = take(HALF);
    zr_arena_install_plan(arena, NULL);
    gap = take(HALF);
    tap_ok(other && gap && (other + HALF <= gap || gap + HALF <= other),
           "a block in a gap outlives its plan");
    zr_arena_free(arena, low);
    zr_arena_free(arena, gap);
    zr_arena_free(arena, other);
    end();
}

/* ---- Otherwise ----------------------------------------------------------------------------------------- */

static void test_departures(void)
{
    begin(0);
    install_four();
    char *first = go_round();
    char *unplanned = take(5 * MIB);
    tap_ok(is_outside(unplanned, 5 * MIB, first), "an unplanned allocation lies outside of the region");
    tap_ok(go_round() == first, "and the plan goes on");
    zr_arena_free(arena, unplanned);

    /* The first block is kept: the third lies on it in the plan. */
    char *a = take(3 * MIB), *b = take(MIB);
    zr_arena_free(arena, b);
    char *c = take(2 * MIB);
    tap_ok(is_outside(c, 2 * MIB, first), "a block planned on an overdue block goes elsewhere");
    tap_is(counts().conflicts_count, 1, "which is counted");
    zr_arena_free(arena, c);
    zr_arena_free(arena, take(MIB + 1)); /* so does the next one on it */
    char *e = take(3 * MIB);
    tap_ok(e && e != first, "a step whose last block still lives is no match");
    char *f = take(MIB);
    tap_ok(f == first + 3 * MIB, "a block planned clear of overdue blocks has its place");
    zr_arena_free(arena, a);
    zr_arena_free(arena, e);
    zr_arena_free(arena, f);
    take(2 * MIB);
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

    begin(0);
    char *blocks[4];
    for (size_t i = 0; i < 4; i++)
        four[i] = step(2 * MIB, i * 2 * MIB, 4);
    install(&(struct zr_plan){.steps = four, .steps_count = 4, .region_bytes = 8 * MIB});
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(2 * MIB);
    zr_arena_install_plan(arena, NULL);
    zr_arena_free(arena, blocks[0]);
    zr_arena_free(arena, blocks[2]);
    struct zr_handle_list list;
    zr_granules_take(arena, 2 * MIB, &list);
    zr_granules_give(arena, &list);
    take(2 * MIB);
    tap_ok(reserved() == 10 * MIB && stats().cached_bytes == 0, "what is in cache comes first");
    for (unsigned i = 0; i < 2; i++) {
        unplanned = take(2 * MIB);
        tap_ok(reserved() == 10 * MIB && stats().cached_bytes == 0, "and no more of it than is missing");
    }
    end();
}

/* What the dynamic path held before goes back in pieces, once; what comes beside the plan keeps its memory.
 */
static void test_settled(void)
{
    size_t released;
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
    zr_arena_free(arena, take(100 * MIB));
    install_four();
    go_round();
    zr_arena_commit_plan(arena);
    tap_is(reserved(), 4 * MIB, "the next plan does as this one did");
    char *a = take(3 * MIB);
    tap_ok(zr_arena_trim(arena, 0, &released) == ZR_OK && released == 0 && go_round() == NULL,
           "but nothing from under a block");
    zr_arena_free(arena, a);
    end();
}

/* The program begins its step again: so does the plan, and blocks that live on do not disturb it. */
static void test_rewound(void)
{
    begin(0);
    install_four();
    char *first = go_round(), *a = take(3 * MIB);
    zr_arena_rewind_plan(arena);
    char *again = take(3 * MIB);
    tap_ok(first && a == first && is_outside(again, 3 * MIB, first), "a block that lives on keeps its place");
    tap_ok(take(MIB) == first + 3 * MIB, "the next step has its own");
    zr_arena_free(arena, a);
    zr_arena_free(arena, again);
    zr_arena_free(arena, first + 3 * MIB);
    zr_arena_rewind_plan(arena);
    tap_ok(go_round() == first, "and then all is as planned");
    zr_arena_install_plan(arena, NULL);
    zr_arena_rewind_plan(arena);
    end();
}

/* Without a match nearby, the last few requests lead to the place. */
static void test_lost(void)
{
    enum { MANY = 400 };
    static struct zr_plan_step many[MANY];
    size_t first_planned = 0;
    begin(0);
    for (size_t i = 0; i < MANY; i++)
        many[i] = step((i * 7919 % 997 + 1) * KIB, i % 2 * MIB, 1);
    install(&(struct zr_plan){.steps = many, .steps_count = MANY, .region_bytes = 2 * MIB});
    for (size_t i = 200; i < 300; i++) {
        zr_arena_free(arena, take(many[i].request.bytes));
        if (!first_planned && counts().planned_count)
            first_planned = i;
    }
    tap_ok(first_planned > 200 && first_planned <= 204,
           "far from the cursor it takes up to four unplanned allocations to find it");
    tap_is(counts().planned_count, 300 - first_planned, "and then all is as planned");
    end();
}

/* ---- Plans that come and go ---------------------------------------------------------------------------- */

static void test_replaced(void)
{
    char *blocks[3];
    bool good = true;
    begin(0);
    install_four();
    for (unsigned i = 0; i < 3; i++) {
        blocks[i] = take(3 * MIB);
        good &= i > 0 ? is_outside(blocks[i], 3 * MIB, blocks[i - 1]) : blocks[i] != NULL;
        good &= install_four() == ZR_OK;
    }
    tap_ok(good, "a plan is replaced while its block lives, by one with addresses of its own");
    for (unsigned i = 0; i < 3; i++)
        good &= zr_arena_free(arena, blocks[i]) == ZR_OK && zr_arena_check(arena) == ZR_OK;
    tap_ok(good, "and goes with it");
    tap_ok(take(3 * MIB) && zr_arena_install_plan(arena, NULL) == ZR_OK && take(4 * MIB),
           "no plan any more, a block lives: the arena goes on without");
    end();
}

static bool has_passed(void *nothing)
{
    (void)nothing;
    return false;
}

static void test_refused(void)
{
    static const struct {
        const char *words;
        size_t bytes, offset_bytes, region_bytes; /* of the second step, which ends the region */
        uint32_t alive_count;
        size_t count, cursor, sequences_count;
        zr_result want;
    } cases[] = {{"a step beyond the region", MIB, MIB, 2 * MIB - 1, 1, 2, 0, 1, ZR_ERR_INVALID},
                 {"no sequences", MIB, MIB, 2 * MIB, 1, 2, 0, 0, ZR_ERR_INVALID},
                 {"a sequence without steps", MIB, MIB, 2 * MIB, 1, 2, 0, 2, ZR_ERR_INVALID},
                 {"a step in no sequence", MIB, MIB, 2 * MIB, 1, 1, 0, 1, ZR_ERR_INVALID},
                 {"an offset that is not aligned", MIB, MIB + 1, 3 * MIB, 1, 2, 0, 1, ZR_ERR_INVALID},
                 {"a step that stays dynamic may be anything", SIZE_MAX - 10, ZR_PLAN_NOWHERE, 2 * MIB, 0, 2,
                  0, 1, ZR_OK},
                 {"more addresses than there are", MIB, MIB, SIZE_MAX / 4, 1, 2, 0, 1, ZR_ERR_ADDRESSES}};
    struct zr_resident before, after;
    struct zr_plan plan;
    begin(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct zr_plan_step two[2] = {
            step(MIB, 0, 1), step(cases[i].bytes, cases[i].offset_bytes, cases[i].alive_count)};
        const struct zr_plan_sequence sequences[2] = {
            {.count = cases[i].count, .cursor = cases[i].cursor, .any = true}};
        plan = (struct zr_plan){.steps = two,
                                .steps_count = 2,
                                .sequences = sequences,
                                .sequences_count = cases[i].sequences_count,
                                .region_bytes = cases[i].region_bytes};
        tap_result(zr_arena_install_plan(arena, &plan), cases[i].want, "%s", cases[i].words);
        tap_result(zr_arena_install_plan(NULL, &plan), ZR_ERR_INVALID, "no arena");
        zr_os_resident(&before);
        for (unsigned k = 0; k < 500 && cases[i].want == ZR_ERR_ADDRESSES; k++)
            zr_arena_install_plan(arena, &plan);
        zr_os_resident(&after);
    }
    tap_ok(after.address_bytes < before.address_bytes + 256 * KIB,
           "which keeps no memory, however often: %zu KiB",
           (after.address_bytes - before.address_bytes) / KIB);
    const struct zr_plan_step one = step(MIB, 0, 1);
    plan = (struct zr_plan){.steps = &one, .steps_count = 1, .region_bytes = MIB, .begin = has_passed};
    uint64_t plans_count = counts().plans_count;
    tap_result(install(&plan), ZR_ERR_UNAVAILABLE, "one whose step has passed");
    tap_is(counts().plans_count, plans_count, "does not come into force");
    tap_is(counts().region_bytes, 2 * MIB, "leaves the plan before in force");
    end();
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

static _Atomic bool reads, installed, seen_early;

static void *read_for_a_while(void *argument)
{
    (void)argument;
    zr_reading *reading = zr_read_begin();
    atomic_store(&reads, true);
    for (unsigned ms = 0; ms < 200 && !atomic_load(&seen_early); ms++) {
        usleep(1000);
        atomic_store(&seen_early, atomic_load(&installed));
    }
    zr_read_end(reading);
    return NULL;
}

/* The records of a plan that goes stay until whoever may be reading them has ended. */
static void test_grace(void)
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

enum { READERS = 2, PASSES = 20000 };

static _Atomic(char *) latest; /* a recent place, for searches that find what they may */
static _Atomic bool over;
static _Atomic unsigned looks, wrong;

/* What is found there holds the byte; and is that block, if one is named. */
static bool finds(char *byte, const char *block)
{
    struct zr_block_info info;
    if (zr_arena_find(arena, byte, &info) != ZR_OK)
        return !block;
    return (size_t)(byte - (char *)info.address) < info.reserved_bytes && (!block || info.address == block);
}

static void *look(void *kept)
{
    uint64_t state = 88172645463325252u + (uintptr_t)&state;
    for (; !atomic_load(&over); atomic_fetch_add(&looks, 1))
        if (!finds((char *)kept + xorshift64(&state) % (3 * MIB), kept) ||
            !finds(atomic_load(&latest) + xorshift64(&state) % (6 * MIB), NULL))
            atomic_fetch_add(&wrong, 1);
    return NULL;
}

/* One block outlives the plan that it is of. */
static void test_readers(void)
{
    pthread_t threads[READERS];
    bool good = true;
    begin(0);
    install_four();
    char *kept = take(3 * MIB);
    atomic_store(&latest, kept);
    for (unsigned i = 0; i < READERS; i++)
        if (pthread_create(&threads[i], NULL, look, kept) != 0)
            abort();
    for (unsigned pass = 0; pass < PASSES || atomic_load(&looks) == 0; pass++) {
        good &= pass % 64 > 0 || install_four() == ZR_OK;
        char *first = go_round();
        good &= first != NULL;
        atomic_store(&latest, first ? first : kept);
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    tap_ok(good, "a plan is followed and replaced while others look (%u times)", looks);
    tap_is(wrong, 0, "and each finds the block that lives meanwhile, and never a wrong one");
    end();
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void test_memory(void)
{
    bool again = false;
    begin(6 * MIB);
    install_four();
    char *first = go_round();
    char *unplanned = take(6 * MIB);
    tap_ok(unplanned && reserved() <= 6 * MIB, "as a last resort a region gives up what it does not use");
    tap_ok(!take(3 * MIB), "there is no memory for both: %s", zr_last_error());
    zr_arena_free(arena, unplanned);
    for (unsigned i = 0; i < 4; i++)
        again = go_round() == first;
    tap_ok(again, "then the plan has its memory again");
    end();
}

static void test_fork(void)
{
    int status = 1;
    begin(0);
    install_four();
    char *a = take(3 * MIB);
    pid_t child = fork();
    if (child == 0) {
        bool good = zr_arena_free(arena, a) == ZR_OK && zr_arena_check(arena) == ZR_OK;
        for (unsigned i = 0; i < 8; i++)
            good &= zr_arena_free(arena, take(four[(i + 1) % 4].request.bytes)) == ZR_OK;
        _exit(good && counts().planned_count > 4 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "a child goes on with the plan it was born with");
    tap_result(zr_arena_free(arena, a), ZR_OK, "and so does its parent");
    end();
}

/* ---- At random ----------------------------------------------------------------------------------------- */

/* Small blocks lie where large ones were, and the other way about; some steps have no place. */
static zr_result install_random(void)
{
    static const size_t units[] = {256, 40 * KIB, 40 * KIB, 700 * KIB};
    struct zr_plan plan = {.steps = steps, .steps_count = STEPS};
    for (size_t i = 0; i < STEPS; i++) {
        size_t bytes = (1 + random_below(8)) * units[random_below(4)] - random_below(200);
        steps[i] = step(bytes, ZR_PLAN_NOWHERE, (uint32_t)(1 + random_below(random_below(10) ? 20 : STEPS)));
        if (random_below(40) == 0)
            continue;
        steps[i].offset_bytes = first_fit(i);
        size_t end = steps[i].offset_bytes + rounded(bytes);
        plan.region_bytes = end > plan.region_bytes ? end : plan.region_bytes;
    }
    return install(&plan);
}

int main(void)
{
    uint64_t seed = run_seed();
    test_as_planned();
    test_gaps();
    test_pointers();
    test_departures();
    test_spared();
    test_settled();
    test_rewound();
    test_lost();
    test_replaced();
    test_refused();
    test_grace();
    test_readers();
    test_memory();
    test_fork();
    test_random("places", seed, 12);
    test_failures("places", seed, run_stride(2));
    return tap_done();
}
