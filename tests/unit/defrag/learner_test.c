/* learner_test.c: an arena that is watched learns what it serves: generated training steps, by themselves and
 * with unplanned allocations, from two threads, in another shape later, with marks, on asynchronous streams;
 * what must not be planned; and the traces of others where they are at hand. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/plan/plan.h"
#include "defrag/learn/learner.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* ---- Steps --------------------------------------------------------------------------------------------- */

enum { BLOCKS_MOST = 4096, EVENTS_MOST = 2 * BLOCKS_MOST };

struct event {
    bool alloc;
    uint32_t block, thread;
    uint64_t stream;
    size_t bytes;
};

/* One step of training: activations that the backward pass frees in reverse, with temporaries on the way. */
struct steps {
    struct event events[EVENTS_MOST];
    size_t count;
    uint32_t blocks;
};

static void add(struct steps *steps, bool alloc, uint32_t block, size_t bytes)
{
    steps->events[steps->count++] = (struct event){.alloc = alloc, .block = block, .bytes = bytes};
}

static uint32_t add_alloc(struct steps *steps, size_t bytes)
{
    add(steps, true, steps->blocks, bytes);
    return steps->blocks++;
}

static void make_step(struct steps *out, uint64_t seed, unsigned layers)
{
    uint32_t kept[256];
    size_t sizes[8];
    *out = (struct steps){0};
    random_state = seed;
    for (unsigned i = 0; i < 8; i++)
        sizes[i] = (1 + random_below(60)) * 64 * KIB + random_below(64) * 256;
    add_alloc(out, 1 * MIB);
    for (unsigned l = 0; l < layers; l++) {
        uint32_t temporary = add_alloc(out, sizes[0]);
        kept[2 * l] = add_alloc(out, sizes[1 + l % 3]);
        add(out, false, temporary, 0);
        kept[2 * l + 1] = add_alloc(out, sizes[4 + l % 2]);
        add(out, false, add_alloc(out, sizes[6]), 0);
    }
    for (unsigned l = layers; l-- > 0;) {
        uint32_t gradient = add_alloc(out, sizes[7]);
        add(out, false, kept[2 * l + 1], 0);
        add(out, false, kept[2 * l], 0);
        add(out, false, add_alloc(out, sizes[2]), 0);
        add(out, false, gradient, 0);
    }
    add(out, false, 0, 0);
}

/* ---- Running ------------------------------------------------------------------------------------------- */

struct run {
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    unsigned strays_of_thousand;
    void *unplanned[8];
    bool unlearned; /* its learner never gets to work */
    bool failed;
};

/* One that learns between steps only, as where each takes its time. */
static void begin_learner(struct run *run)
{
    tap_result(
        zr_learner_create(&run->learner, &(struct zr_learner_options){.arena = run->arena, .work = 40000000}),
        ZR_OK, "a learner begins");
    zr_learner_hold(run->learner);
}

static void begin(struct run *run, size_t limit_bytes)
{
    *run = (struct run){0};
    zr_backend_sim_create(&run->backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(&run->arena, &(struct zr_arena_options){
                                     .backend = run->backend, .name = "learned", .limit_bytes = limit_bytes});
    begin_learner(run);
}

static void end(struct run *run)
{
    for (unsigned i = 0; i < 8; i++)
        zr_arena_free(run->arena, run->unplanned[i]);
    tap_result(zr_arena_check(run->arena), ZR_OK, "the books are right");
    zr_learner_destroy(run->learner);
    size_t leaked = 1;
    zr_arena_destroy(run->arena, &leaked);
    tap_ok(leaked == 0 && zr_backend_destroy(run->backend) == ZR_OK && !run->failed,
           "and nothing failed or leaked");
}

static void do_event(struct run *run, void **blocks, const struct event *event)
{
    if (event->alloc) {
        struct zr_request request = {
            .bytes = event->bytes, .tag = ZR_TAG_ACTIVATION, .stream = event->stream};
        run->failed |= zr_arena_alloc(run->arena, &request, &blocks[event->block]) != ZR_OK;
    } else {
        run->failed |= zr_arena_free(run->arena, blocks[event->block]) != ZR_OK;
        blocks[event->block] = NULL;
    }
    if (run->strays_of_thousand && random_below(1000) < run->strays_of_thousand) {
        void **unplanned = &run->unplanned[random_below(8)];
        struct zr_request request = {.bytes = 1 + random_below(random_below(2) ? 3 * MIB : 20 * KIB),
                                     .tag = ZR_TAG_OTHER};
        zr_arena_free(run->arena, *unplanned);
        *unplanned = NULL;
        if (random_below(2))
            run->failed |= zr_arena_alloc(run->arena, &request, unplanned) != ZR_OK;
    }
}

static uint64_t calls(struct run *run)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(run->arena, &stats);
    return stats.backend_calls_count;
}

static size_t reserved(struct run *run)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(run->arena, &stats);
    return stats.reserved_bytes;
}

static struct zr_learner_stats stats_of(struct run *run)
{
    struct zr_learner_stats out;
    zr_learner_get_stats(run->learner, &out);
    return out;
}

/* The driver calls of the last of so many steps. */
static uint64_t repeat(struct run *run, const struct steps *steps, unsigned times)
{
    static void *blocks[BLOCKS_MOST];
    uint64_t before = 0;
    for (unsigned i = 0; i < times; i++) {
        before = calls(run);
        for (size_t e = 0; e < steps->count; e++)
            do_event(run, blocks, &steps->events[e]);
        before = calls(run) - before;
        if (!run->unlearned)
            zr_learner_wait(run->learner);
    }
    return before;
}

static struct steps one, other;

/* ---- By itself ----------------------------------------------------------------------------------------- */

static void test_period(void)
{
    struct run run;
    begin(&run, 0);
    make_step(&one, 1, 40);
    repeat(&run, &one, 2);
    size_t dynamic_bytes = reserved(&run);
    tap_is(stats_of(&run).plans_count, 0, "two steps are seen and not yet planned");
    tap_is(repeat(&run, &one, 3), 0, "the fifth calls no driver");
    struct zr_learner_stats stats = stats_of(&run);
    tap_is(stats.plans_count, 1, "there is one plan");
    tap_is(stats.period_count, one.blocks, "of a step's allocations, not of a layer's");
    tap_ok(reserved(&run) <= dynamic_bytes + 2 * MIB, "it takes no more memory: %zu MiB, %zu before",
           reserved(&run) / MIB, dynamic_bytes / MIB);
    uint64_t planned = stats.planned_count;
    repeat(&run, &one, 100);
    tap_is(stats_of(&run).planned_count - planned, 100 * one.blocks, "everything is planned from then on");
    tap_ok(stats_of(&run).asleep, "and the learner sleeps");
    end(&run);
}

/* A block that lives longer in every other step has its place for as long as it ever lived. */
static void test_lifetimes(void)
{
    enum { TEMPORARIES = 40, BLOCKS = TEMPORARIES + 4 };
    struct run run;
    void *blocks[BLOCKS] = {0};
    struct zr_follow_counts early = {0}, late;
    begin(&run, 0);
    for (unsigned round = 0; round < 16; round++) {
        do_event(&run, blocks, &(struct event){.alloc = true, .block = 0, .bytes = 9 * MIB});
        for (unsigned i = 1; i <= TEMPORARIES; i++) {
            do_event(&run, blocks, &(struct event){.alloc = true, .block = i, .bytes = (1 + i) * 64 * KIB});
            do_event(&run, blocks, &(struct event){.block = i});
            if (i == (round % 2 ? 22 : 18))
                do_event(&run, blocks, &(struct event){.block = 0});
            if (i == 20)
                do_event(&run, blocks, &(struct event){.alloc = true, .block = BLOCKS - 1, .bytes = 8 * MIB});
            if (i == 30) /* and this one for longer than a step: it has no place */
                do_event(&run, blocks,
                         &(struct event){.alloc = true, .block = BLOCKS - 3 + round % 2, .bytes = 5 * MIB});
            if (i == 35 && round > 0)
                do_event(&run, blocks, &(struct event){.block = BLOCKS - 2 - round % 2});
        }
        do_event(&run, blocks, &(struct event){.block = BLOCKS - 1});
        zr_learner_wait(run.learner);
        if (round == 7)
            zr_arena_follow_counts(run.arena, &early);
    }
    do_event(&run, blocks, &(struct event){.block = BLOCKS - 2});
    zr_arena_follow_counts(run.arena, &late);
    tap_ok(early.plans_count > 0 && late.conflicts_count == early.conflicts_count,
           "a block that lives longer in every other step has its place for that long (%llu conflicts)",
           (unsigned long long)late.conflicts_count);
    end(&run);
}

/* What a step leaves to the next one has its place for as long as it lives, not for all of the period. */
static void test_boundary(void)
{
    enum { KEPT = 20 };
    struct run run;
    struct zr_arena_stats stats;
    void *blocks[KEPT + 3] = {0};
    uint64_t before = 0;
    begin(&run, 0);
    do_event(&run, blocks, &(struct event){.alloc = true, .block = KEPT + 2, .bytes = 24 * MIB});
    for (uint32_t round = 0; round < 12; round++) {
        before = calls(&run);
        for (uint32_t i = 0; i < KEPT; i++) {
            do_event(&run, blocks, &(struct event){.alloc = true, .block = i, .bytes = (1 + i) * 256 * KIB});
            if (i == 12) /* more of this step is alive by then */
                do_event(&run, blocks, &(struct event){.block = KEPT + (round + 1) % 2});
        }
        for (uint32_t i = KEPT; i-- > 0;) {
            do_event(&run, blocks, &(struct event){.block = i});
            if (i == 13)
                do_event(&run, blocks,
                         &(struct event){.alloc = true, .block = KEPT + round % 2, .bytes = 20 * MIB});
        }
        if (round == 0) /* the room that the first plan starts in */
            do_event(&run, blocks, &(struct event){.block = KEPT + 2});
        before = calls(&run) - before;
        zr_learner_wait(run.learner);
    }
    zr_arena_get_stats(run.arena, &stats);
    struct zr_learner_stats learned = stats_of(&run);
    tap_ok(learned.passes_count > 0 && before == 0 && learned.conflicts_count == 0 &&
               learned.region_bytes < stats.peak_live_bytes - 24 * MIB + 4 * MIB,
           "a block alive across the boundary: %zu bytes where %zu are live, %llu plans refused",
           learned.region_bytes, stats.peak_live_bytes, (unsigned long long)learned.refused_plans_count);
    do_event(&run, blocks, &(struct event){.block = KEPT + 1});
    end(&run);
}

/* Layers before steps, steps before files: what is outside of the period is seen once. */
static void test_setup(void)
{
    static void *weights[200];
    struct run run;
    begin(&run, 0);
    for (unsigned i = 0; i < 200; i++)
        zr_arena_alloc(run.arena, &(struct zr_request){.bytes = 300 * KIB, .tag = ZR_TAG_PARAM}, &weights[i]);
    make_step(&one, 2, 30);
    tap_is(repeat(&run, &one, 6), 0, "steps after a set-up of 200 equal blocks: no driver call in the sixth");
    tap_is(stats_of(&run).period_count, one.blocks, "the period is the step");
    for (unsigned i = 0; i < 200; i++)
        zr_arena_free(run.arena, weights[i]);
    tap_is(repeat(&run, &one, 2), 0, "nor when the weights are gone");
    end(&run);
}

/* ---- Otherwise ----------------------------------------------------------------------------------------- */

/* An unplanned allocation that is larger than any before it costs driver calls now and then: nearly all steps
 * make none, and over five sequences at least nine in ten. */
static void test_strays(uint64_t seed)
{
    unsigned all_quiet = 0;
    for (unsigned i = 0; i < 5; i++) {
        struct run run;
        uint64_t last[8], most = 0;
        make_step(&one, 3 + i, 120);
        random_state = seed + i;
        begin(&run, 0);
        run.strays_of_thousand = 10;
        for (unsigned k = 0; k < 20; k++) {
            uint64_t now = repeat(&run, &one, 1);
            if (k >= 12)
                last[k - 12] = now;
        }
        unsigned quiet = 0;
        for (unsigned k = 0; k < 8; k++) {
            quiet += last[k] == 0;
            most = last[k] > most ? last[k] : most;
        }
        struct zr_learner_stats stats = stats_of(&run);
        tap_ok(stats.plans_count >= 1 && stats.period_count * 100 >= one.blocks * 98,
               "seed %llu, one unplanned allocation in a hundred events: %llu of %u allocations are planned",
               (unsigned long long)seed + i, (unsigned long long)stats.period_count, one.blocks);
        tap_note("%u of the last eight steps call no driver, at most %llu calls, %llu plans", quiet,
                 (unsigned long long)most, (unsigned long long)stats.plans_count);
        all_quiet += quiet;
        end(&run);
    }
    tap_ok(all_quiet >= 36, "%u of 40 steps call no driver", all_quiet);
}

static void test_changed(void)
{
    struct run run;
    begin(&run, 0);
    make_step(&one, 7, 40);
    make_step(&other, 8, 50);
    tap_is(repeat(&run, &one, 5), 0, "one shape is learned");
    size_t before = reserved(&run);
    repeat(&run, &other, 1);
    tap_ok(!run.failed, "another one is served all the same");
    tap_is(repeat(&run, &other, 5), 0, "and learned again");
    tap_is(stats_of(&run).period_count, other.blocks, "with its own period");
    tap_note("%zu MiB before, %zu after", before / MIB, reserved(&run) / MIB);
    tap_is(repeat(&run, &one, 6), 0, "and the first one once more");
    end(&run);
}

/* ---- Threads and streams ------------------------------------------------------------------------------- */

/* Two threads' steps, interleaved: the same way each time, each step begun together; or as it comes. */
static uint64_t interleave(struct run *run, bool vary, unsigned times)
{
    static void *blocks[2][BLOCKS_MOST];
    const struct steps *steps[2] = {&one, &other};
    uint32_t own = zr_thread_number();
    uint64_t before = 0;
    size_t at[2] = {0, 0}, ahead_most = vary ? one.count / 2 : 0;
    for (unsigned i = 0; i < times; i++) {
        if (!vary)
            random_state = 99;
        before = calls(run);
        while (at[0] < one.count || at[1] < other.count) {
            unsigned t = (unsigned)random_below(2);
            for (size_t burst = 1 + random_below(20); burst > 0; burst--) {
                if (at[t] == steps[t]->count + ahead_most || (at[t] >= steps[t]->count && i == times - 1))
                    break;
                zr_thread_become(own + 1 + t);
                do_event(run, blocks[t], &steps[t]->events[at[t]++ % steps[t]->count]);
            }
        }
        for (unsigned t = 0; t < 2; t++)
            at[t] -= steps[t]->count; /* one may have begun the next */
        before = calls(run) - before;
        zr_learner_wait(run->learner);
    }
    zr_thread_become(own);
    return before;
}

static void test_threads(uint64_t seed)
{
    struct run run;
    struct zr_learner_stats stats;
    make_step(&one, 11, 60);
    make_step(&other, 12, 45);
    begin(&run, 0);
    random_state = seed;
    tap_is(interleave(&run, false, 8), 0,
           "two threads that take turns in the same way: no driver call in the eighth step");
    stats = stats_of(&run);
    tap_is(stats.period_count, one.blocks + other.blocks, "planned together");
    end(&run);

    begin(&run, 0);
    random_state = seed;
    tap_is(interleave(&run, true, 16), 0,
           "seed %llu: two threads as it comes: no driver call in the sixteenth", (unsigned long long)seed);
    stats = stats_of(&run);
    /* Sequences that cannot share addresses may take too much memory to be worth it. */
    tap_ok((stats.plans_count == 0 && stats.refused_plans_count > 0) ||
               stats.period_count * 100 >= (one.blocks + other.blocks) * 97,
           "each has its sequence: %llu of %u allocations are planned",
           (unsigned long long)stats.period_count, one.blocks + other.blocks);
    tap_note("%llu plans, %llu conflicts, %llu unplanned allocations", (unsigned long long)stats.plans_count,
             (unsigned long long)stats.conflicts_count, (unsigned long long)stats.unplanned_count);
    end(&run);
}

/* ---- Settings ------------------------------------------------------------------------------------------ */

static void test_marks(void)
{
    struct run run;
    begin(&run, 0);
    make_step(&one, 21, 20);
    for (unsigned i = 0; i < 4; i++) {
        repeat(&run, &one, 1);
        tap_result(zr_learner_step(run.learner), ZR_OK, "the step is marked");
        zr_learner_wait(run.learner);
        tap_is(stats_of(&run).plans_count, i > 1, "%u steps: %s", i + 1, i > 1 ? "a plan" : "none yet");
    }
    tap_is(repeat(&run, &one, 3), 0, "then no driver call is made");
    end(&run);
}

static void test_settings(void)
{
    struct run run;
    zr_learner *learner = (zr_learner *)&run;
    begin(&run, 0);
    tap_result(zr_learner_create(&learner, &(struct zr_learner_options){.arena = run.arena}), ZR_ERR_INVALID,
               "an arena has one learner");
    tap_ok(!learner, "and nothing comes out");
    tap_result(zr_learner_create(&learner, &(struct zr_learner_options){0}), ZR_ERR_INVALID, "no arena");
    tap_result(zr_learner_create(NULL, &(struct zr_learner_options){.arena = run.arena}), ZR_ERR_INVALID,
               "nowhere to go");
    tap_ok(zr_learner_step(NULL) == ZR_ERR_INVALID && zr_learner_wait(NULL) == ZR_ERR_INVALID,
           "no learner to mark, nor to wait for");
    zr_learner_destroy(NULL);
    end(&run);

    begin(&run, 0);
    zr_learner_destroy(run.learner);
    begin_learner(&run);
    make_step(&one, 31, 20);
    tap_is(repeat(&run, &one, 6), 0, "after one another: it learns as well");
    end(&run);
}

/* Limits that leave no room for the plan beside what is live. */
static void test_limits(void)
{
    struct run run;
    make_step(&one, 41, 40);
    begin(&run, 0);
    run.unlearned = true;
    repeat(&run, &one, 8);
    size_t enough = reserved(&run);
    end(&run);
    begin(&run, enough + 8 * MIB);
    repeat(&run, &one, 10);
    tap_ok(!run.failed && reserved(&run) <= enough + 8 * MIB,
           "within four granules of what it takes without a plan all is served");
    end(&run);
}

static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_METADATA, ZR_FAULT_THREAD};
    make_step(&one, 51, 12);
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        bool good = true, clean = false;
        unsigned failures = 0;
        for (uint64_t nth = 1; nth < 400 && !clean; nth += nth < 40 ? 1 : 13) {
            static void *blocks[BLOCKS_MOST];
            zr_backend *backend;
            zr_arena *arena;
            zr_learner *learner = NULL;
            zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
            zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
            zr_fault_set(sites[s], nth);
            zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena, .work = 200000});
            for (unsigned i = 0; i < 5; i++) {
                for (size_t e = 0; e < one.count; e++)
                    if (one.events[e].alloc)
                        zr_arena_alloc(arena, &(struct zr_request){.bytes = one.events[e].bytes},
                                       &blocks[one.events[e].block]);
                    else
                        zr_arena_free(arena, blocks[one.events[e].block]);
                zr_learner_wait(learner);
            }
            clean = zr_fault_set(sites[s], 0) < nth;
            failures += !clean;
            good &= zr_arena_check(arena) == ZR_OK;
            zr_learner_destroy(learner);
            good &= zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK;
        }
        tap_ok(good && failures > 0, "%s: each of %u failures leaves the books right",
               zr_fault_site_name(sites[s]), failures);
    }
}

static void test_fork(void)
{
    struct run run;
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer ends a child of several threads that starts one");
    return;
#endif
    begin(&run, 0);
    make_step(&one, 61, 20);
    repeat(&run, &one, 2);
    pid_t child = fork();
    if (child == 0)
        _exit(repeat(&run, &one, 4) == 0 && !run.failed ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "a child goes on learning where its parent was");
    tap_is(repeat(&run, &one, 4), 0, "and so does its parent");
    end(&run);
}

/* ---- Traces of others ---------------------------------------------------------------------------------- */

static void test_traces(void)
{
    static const struct {
        const char *path;
        uint64_t unit_bytes;
        double last_most;
    } traces[] = {{"../shared/traces/torch_medium_512_training.pickle", 0, 1.001},
                  {"../shared/traces/minimalloc_A.csv", 65536, 1.001},
                  {"../shared/traces/minimalloc_B.csv", 65536, 1.001},
                  {"../shared/traces/minimalloc_D.csv", 65536, 1.001},
                  {"../shared/traces/minimalloc_F.csv", 65536, 1.001}};
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        struct zr_sequence sequence;
        struct zr_replay_report report = {0};
#if defined(__SANITIZE_THREAD__)
        if (i > 0) {
            tap_skip(
                "%s: under ThreadSanitizer the packer does not find in its budget what it finds in a tenth",
                traces[i].path);
            continue;
        }
#endif
        if (access(traces[i].path, R_OK) != 0) {
            tap_skip("%s is not here", traces[i].path);
            continue;
        }
        zr_result result =
            zr_sequence_read(&sequence,
                             &(struct zr_read_options){
                                 .path = traces[i].path, .unit_bytes = traces[i].unit_bytes, .device = -1},
                             host_arena);
        if (result == ZR_OK)
            result = zr_replay(&sequence, &(struct zr_replay_options){.policy = ZR_POLICY_ZR, .repeat = 5},
                               &report);
        tap_result(result, ZR_OK, "%s is replayed", traces[i].path);
        tap_is(report.driver_calls_last_repeat, 0, "without a driver call in the fifth repeat");
        double bound = (double)report.lower_bound_bytes;
        tap_ok((double)report.peak_reserved_last_repeat_bytes <= bound * traces[i].last_most + 2 * MIB &&
                   (double)report.peak_reserved_bytes <= bound * 1.015,
               "and at %.4f of the lower bound, %.4f over all",
               (double)report.peak_reserved_last_repeat_bytes / bound,
               (double)report.peak_reserved_bytes / bound);
        zr_sequence_end(&sequence);
    }
}

int main(void)
{
    uint64_t seed = run_seed();
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    test_period();
    test_lifetimes();
    test_boundary();
    test_setup();
    test_strays(seed);
    test_changed();
    test_threads(seed);
    test_marks();
    test_settings();
    test_limits();
    test_faults();
    test_fork();
    test_traces();
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
