/* learner_sequences_test.c: threads that each repeat a step of their own. Sequences of a plan do not share
 * memory, so there are such only where the threads' peaks meet without a plan too; threads that keep apart
 * share it. */
#include "tests/support/learner_runs.h"
#include "tests/support/seed.h"

enum { KEPT = 20, STEP_CALLS = 2 * KEPT, THREADS = 2, ROUNDS = 8 };

/* A thread in the middle of its step: KEPT blocks are taken, and given back from the last to the first. */
static struct sequence {
    uint32_t thread, first_block;
    size_t bytes[KEPT], peak_bytes;
    unsigned at;
} sequences[THREADS];

static void begin_sequences(uint64_t work_ns)
{
    uint32_t own = zr_thread_number();
    begin_arena(0, work_ns);
    begin_learner(WORK);
    zr_learner_hold(learner);
    for (unsigned t = 0; t < THREADS; t++) {
        sequences[t] = (struct sequence){.thread = own + 1 + t, .first_block = t * KEPT};
        for (unsigned i = 0; i < KEPT; i++) {
            sequences[t].bytes[i] = 32 * MIB + random_below(128) * MIB / 4;
            sequences[t].peak_bytes += sequences[t].bytes[i];
        }
    }
}

/* The sequence's next call, as its thread. */
static void go_on(struct sequence *sequence)
{
    uint32_t own = zr_thread_number();
    zr_thread_become(sequence->thread);
    if (sequence->at < KEPT)
        get(sequence->first_block + sequence->at, sequence->bytes[sequence->at]);
    else
        give(sequence->first_block + STEP_CALLS - 1 - sequence->at);
    sequence->at = (sequence->at + 1) % STEP_CALLS;
    zr_thread_become(own);
}

static void whole_step(struct sequence *sequence)
{
    do
        go_on(sequence);
    while (sequence->at > 0);
}

/* Of so many rounds: a plan that is made while one thread's steps happen to come alone keeps room for the
 * other's as for unplanned allocations, now and then. */
struct rounds {
    unsigned shared_count, quiet_count;
};

/* Threads whose steps never meet, and then do. */
static void test_apart_and_together(struct rounds *rounds)
{
    begin_sequences(0);
    size_t first = sequences[0].peak_bytes, second = sequences[1].peak_bytes;
    size_t most = first > second ? first : second;
    for (unsigned i = 0; i < 60; i++) {
        whole_step(&sequences[random_below(2)]);
        zr_learner_wait(learner);
    }
    struct zr_learner_stats known = learned();
    size_t reserved = stats().peak_reserved_bytes;
    rounds->shared_count += reserved <= most + most / 2;
    tap_ok(known.periods_count > 0,
           "steps that never meet: %zu MiB for %zu and %zu; plans: %llu, %llu refused", reserved / MIB,
           first / MIB, second / MIB, (unsigned long long)known.plans_count,
           (unsigned long long)known.refused_plans_count);

    uint64_t before = 0;
    bool quiet = false;
    for (unsigned i = 0; i < 800; i++) {
        before = calls();
        for (unsigned k = 0; k < 2 * STEP_CALLS; k++)
            go_on(&sequences[random_below(2)]);
        quiet = calls() == before;
        zr_learner_wait(learner);
    }
    known = learned();
    tap_ok(known.period_count >= 2 * KEPT, "then as it comes, until both peaks have met: a plan of both");
    rounds->quiet_count += quiet;
    reserved = stats().peak_reserved_bytes;
    tap_ok(reserved <= (first + second) * 5 / 4, "with %zu MiB", reserved / MIB);
    for (unsigned t = 0; t < THREADS; t++)
        while (sequences[t].at > 0)
            go_on(&sequences[t]);
    end();
}

/* Threads that begin and end their steps together, as they come in between, and say so. */
static void test_marks(uint64_t work_ns)
{
    uint64_t before = 0;
    begin_sequences(work_ns);
    for (unsigned i = 0; i < 40; i++) {
        before = calls();
        for (unsigned half = 1; half <= 2; half++)
            for (unsigned left = THREADS * KEPT; left > 0;) {
                struct sequence *sequence = &sequences[random_below(THREADS)];
                if (half == 1 ? sequence->at == KEPT : sequence->at == 0)
                    continue;
                go_on(sequence);
                left--;
            }
        before = calls() - before;
        zr_learner_step(learner);
        zr_learner_wait(learner);
    }
    struct zr_learner_stats known = learned();
    tap_is(known.period_count, THREADS * KEPT,
           "steps that are marked, %s: a plan of both threads, %llu refused",
           work_ns ? "on streams" : "without streams", (unsigned long long)known.refused_plans_count);
    if (work_ns == 0)
        tap_is(before, 0, "and no driver call in the end");
    end();
}

int main(void)
{
    random_state = run_seed();
    struct rounds rounds = {0};
    for (unsigned i = 0; i < ROUNDS; i++)
        test_apart_and_together(&rounds);
    tap_ok(rounds.shared_count >= ROUNDS - 2, "steps that never meet share memory, %u times of %d",
           rounds.shared_count, ROUNDS);
    tap_ok(rounds.quiet_count >= ROUNDS - 2,
           "and once they meet there are no driver calls in the end, %u times", rounds.quiet_count);
    test_marks(0);
    test_marks(1);
    return tap_done();
}
