/* learner_sequences_test.c: threads that each repeat a step of their own. Sequences of a plan do not share
 * memory, so there are such only where the threads' peaks meet without a plan too; threads that keep apart
 * share it. */
#include <stdlib.h>

#include "alloc/plan/plan.h"
#include "defrag/learn/learner.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define MIB ((size_t)1 << 20)

enum { KEPT = 20, STEP_CALLS = 2 * KEPT, THREADS = 2, ROUNDS = 8, GRANULE_BYTES = 2 << 20 };

/* A thread in the middle of its step: KEPT blocks are taken, and given back from the last to the first. */
struct sequence {
    uint32_t thread;
    size_t bytes[KEPT];
    void *blocks[KEPT];
    unsigned at;
};

struct run {
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    struct sequence sequences[THREADS];
    bool failed;
};

static void begin(struct run *run, uint64_t work_ns)
{
    uint32_t own = zr_thread_number();
    *run = (struct run){0};
    zr_backend_sim_create(&run->backend,
                          &(struct zr_sim_options){.granule_bytes = GRANULE_BYTES, .work_ns = work_ns});
    zr_arena_create(&run->arena, &(struct zr_arena_options){.backend = run->backend, .name = "sequences"});
    tap_result(
        zr_learner_create(&run->learner, &(struct zr_learner_options){.arena = run->arena, .work = 40000000}),
        ZR_OK, "a learner begins");
    zr_learner_hold(run->learner);
    for (unsigned t = 0; t < THREADS; t++) {
        run->sequences[t].thread = own + 1 + t;
        for (unsigned i = 0; i < KEPT; i++)
            run->sequences[t].bytes[i] = 32 * MIB + random_below(128) * MIB / 4;
    }
}

static void end(struct run *run)
{
    tap_result(zr_arena_check(run->arena), ZR_OK, "the books are right");
    zr_learner_destroy(run->learner);
    size_t leaked = 1;
    zr_arena_destroy(run->arena, &leaked);
    tap_ok(leaked == 0 && zr_backend_destroy(run->backend) == ZR_OK && !run->failed,
           "and nothing failed or leaked");
}

static size_t peak_bytes(const struct sequence *sequence)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < KEPT; i++)
        bytes += sequence->bytes[i];
    return bytes;
}

static void take(struct run *run, size_t bytes, void **out)
{
    struct zr_request request = {.bytes = bytes, .tag = ZR_TAG_ACTIVATION};
    run->failed |= zr_arena_alloc(run->arena, &request, out) != ZR_OK;
}

/* The sequence's next call, as its thread. */
static void go_on(struct run *run, struct sequence *sequence)
{
    uint32_t own = zr_thread_number();
    zr_thread_become(sequence->thread);
    if (sequence->at < KEPT)
        take(run, sequence->bytes[sequence->at], &sequence->blocks[sequence->at]);
    else
        run->failed |= zr_arena_free(run->arena, sequence->blocks[STEP_CALLS - 1 - sequence->at]) != ZR_OK;
    sequence->at = (sequence->at + 1) % STEP_CALLS;
    zr_thread_become(own);
}

static void whole_step(struct run *run, struct sequence *sequence)
{
    do
        go_on(run, sequence);
    while (sequence->at > 0);
}

static struct zr_arena_stats stats_of(struct run *run)
{
    struct zr_arena_stats out;
    zr_arena_get_stats(run->arena, &out);
    return out;
}

static struct zr_learner_stats learned(struct run *run)
{
    struct zr_learner_stats out;
    zr_learner_get_stats(run->learner, &out);
    return out;
}

/* Of so many rounds: a plan that is made while one thread's steps happen to come alone keeps room for the
 * other's as for unplanned allocations, now and then. */
struct rounds {
    unsigned shared_count, quiet_count;
};

/* Threads whose steps never meet, and then do. */
static void test_apart_and_together(struct rounds *rounds)
{
    struct run run;
    begin(&run, 0);
    size_t first = peak_bytes(&run.sequences[0]), second = peak_bytes(&run.sequences[1]);
    size_t most = first > second ? first : second;
    for (unsigned i = 0; i < 60; i++) {
        whole_step(&run, &run.sequences[random_below(2)]);
        zr_learner_wait(run.learner);
    }
    struct zr_learner_stats known = learned(&run);
    size_t reserved = stats_of(&run).peak_reserved_bytes;
    rounds->shared_count += reserved <= most + most / 2;
    tap_ok(known.periods_count > 0,
           "steps that never meet: %zu MiB for %zu and %zu; plans: %llu, %llu refused", reserved / MIB,
           first / MIB, second / MIB, (unsigned long long)known.plans_count,
           (unsigned long long)known.refused_plans_count);

    uint64_t before = 0;
    bool quiet = false;
    for (unsigned i = 0; i < 800; i++) {
        before = stats_of(&run).backend_calls_count;
        for (unsigned calls = 0; calls < 2 * STEP_CALLS; calls++)
            go_on(&run, &run.sequences[random_below(2)]);
        quiet = stats_of(&run).backend_calls_count == before;
        zr_learner_wait(run.learner);
    }
    known = learned(&run);
    tap_ok(known.period_count >= 2 * KEPT, "then as it comes, until both peaks have met: a plan of both");
    rounds->quiet_count += quiet;
    reserved = stats_of(&run).peak_reserved_bytes;
    tap_ok(reserved <= (first + second) * 5 / 4, "with %zu MiB", reserved / MIB);
    for (unsigned t = 0; t < THREADS; t++)
        while (run.sequences[t].at > 0)
            go_on(&run, &run.sequences[t]);
    end(&run);
}

/* Threads that begin and end their steps together, as they come in between, and say so. */
static void test_marks(uint64_t work_ns)
{
    struct run run;
    uint64_t before = 0;
    begin(&run, work_ns);
    for (unsigned i = 0; i < 40; i++) {
        before = stats_of(&run).backend_calls_count;
        for (unsigned half = 1; half <= 2; half++)
            for (unsigned left = THREADS * KEPT; left > 0;) {
                struct sequence *sequence = &run.sequences[random_below(THREADS)];
                if (half == 1 ? sequence->at == KEPT : sequence->at == 0)
                    continue;
                go_on(&run, sequence);
                left--;
            }
        before = stats_of(&run).backend_calls_count - before;
        zr_learner_step(run.learner);
        zr_learner_wait(run.learner);
    }
    struct zr_learner_stats known = learned(&run);
    tap_is(known.period_count, THREADS * KEPT,
           "steps that are marked, %s: a plan of both threads, %llu refused",
           work_ns ? "on streams" : "without streams", (unsigned long long)known.refused_plans_count);
    if (work_ns == 0)
        tap_is(before, 0, "and no driver call in the end");
    end(&run);
}

int main(void)
{
    uint64_t seed = run_seed();
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    random_state = seed;
    struct rounds rounds = {0};
    for (unsigned i = 0; i < ROUNDS; i++)
        test_apart_and_together(&rounds);
    tap_ok(rounds.shared_count >= ROUNDS - 2, "steps that never meet share memory, %u times of %d",
           rounds.shared_count, ROUNDS);
    tap_ok(rounds.quiet_count >= ROUNDS - 2,
           "and once they meet there are no driver calls in the end, %u times", rounds.quiet_count);
    test_marks(0);
    test_marks(1);
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
