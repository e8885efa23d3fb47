/* learner_budget_test.c: what learning may take of a program's time. On a clock that moves by one at each
 * look, so that a budget is a number of looks; then on the processor's own, for what lies between two looks.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "alloc/os.h"
#include "defrag/learner.h"
#include "tests/draws.h"
#include "tests/records.h"
#include "tests/tap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* Looks after the end of the time: each job of a round has one, and there are seven in the largest;
 * measuring, packing what is left and the clocks around them have a few. */
enum { LOOKS_MOST = 32 };

static _Atomic uint64_t looks;

static uint64_t looked_at(void)
{
    return atomic_fetch_add(&looks, 1);
}

static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- Steps that are hard to pack ----------------------------------------------------------------------- */

enum { BLOCKS_MOST = 4000 };

struct event {
    bool alloc;
    uint32_t block;
    size_t bytes;
};

/* Blocks of random sizes and lifetimes: the lower bound cannot be met, so a packer is busy for as long as it
 * may.
 */
struct steps {
    struct event events[2 * BLOCKS_MOST];
    size_t count;
    uint32_t blocks;
};

static void make_steps(struct steps *out, uint32_t blocks, uint32_t lifetime_most)
{
    static uint32_t ends[BLOCKS_MOST];
    *out = (struct steps){.blocks = blocks};
    for (uint32_t i = 0; i < blocks; i++)
        ends[i] = i + 1 + (uint32_t)random_below(lifetime_most);
    for (uint32_t now = 0; now <= blocks; now++) {
        for (uint32_t i = now > lifetime_most ? now - lifetime_most : 0; i < now; i++)
            if (ends[i] == now || (now == blocks && ends[i] > now))
                out->events[out->count++] = (struct event){.block = i};
        if (now < blocks)
            out->events[out->count++] = (struct event){true, now, 1 + random_below(8 * MIB)};
    }
}

/* ---- Running ------------------------------------------------------------------------------------------- */

enum { TURNS_MOST = 32 };

/* A turn of the learner's work: the step it came in, from 0, and what it took. */
struct turn {
    unsigned step;
    uint64_t spent_ns;
    bool refined;
};

struct run {
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    void *blocks[BLOCKS_MOST];
    struct zr_learner_stats stats;
    struct turn turns[TURNS_MOST]; /* that were more than a look at what is idle */
    unsigned turns_count, step;
    bool failed;
};

static void begin(struct run *run, struct zr_learner_options options)
{
    *run = (struct run){0};
    zr_backend_sim_create(&run->backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(&run->arena, &(struct zr_arena_options){.backend = run->backend});
    options.arena = run->arena;
    options.host_arena = host_arena;
    if (zr_learner_create(&run->learner, &options) != ZR_OK)
        tap_ok(false, "a learner: %s", zr_last_error());
}

static void end(struct run *run)
{
    run->failed |= zr_arena_check(run->arena) != ZR_OK;
    zr_learner_destroy(run->learner);
    run->failed |= zr_arena_destroy(run->arena, NULL) != ZR_OK || zr_backend_destroy(run->backend) != ZR_OK;
    tap_ok(!run->failed, "and nothing failed");
}

/* Notes what the learner did since the last look. */
static void look(struct run *run)
{
    struct zr_learner_stats before = run->stats;
    zr_learner_get_stats(run->learner, &run->stats);
    bool refined = run->stats.refined_plans_count > before.refined_plans_count;
    if ((refined || run->stats.periods_count > before.periods_count) && run->turns_count < TURNS_MOST)
        run->turns[run->turns_count++] =
            (struct turn){run->step, run->stats.spent_ns - before.spent_ns, refined};
}

static void repeat(struct run *run, const struct steps *steps, unsigned times)
{
    for (unsigned i = 0; i < times; i++, run->step++)
        for (size_t e = 0; e < steps->count; e++) {
            const struct event *event = &steps->events[e];
            void **block = &run->blocks[event->block];
            const struct zr_request request = {.bytes = event->bytes, .tag = ZR_TAG_ACTIVATION};
            run->failed |= event->alloc ? zr_arena_alloc(run->arena, &request, block) != ZR_OK
                                        : zr_arena_free(run->arena, *block) != ZR_OK;
            look(run);
        }
}

static struct steps one, other;
static struct run run;

static bool within(uint64_t spent_ns, uint64_t budget_ns)
{
    return spent_ns >= budget_ns && spent_ns <= budget_ns + LOOKS_MOST;
}

static uint64_t spent_by_turns(void)
{
    uint64_t spent_ns = 0;
    for (unsigned i = 0; i < run.turns_count; i++)
        spent_ns += run.turns[i].spent_ns;
    return spent_ns;
}

/* ---- A budget, and not more ---------------------------------------------------------------------------- */

static void test_bounded(uint32_t blocks, uint64_t budget_ns, unsigned threads)
{
    uint64_t before = atomic_load(&looks);
    random_state = 1;
    make_steps(&one, blocks, blocks / 8 + 20);
    begin(&run, (struct zr_learner_options){.budget_ns = budget_ns, .threads = threads});
    repeat(&run, &one, 3);
    tap_ok(run.turns_count > 0 && within(run.turns[0].spent_ns, budget_ns),
           "%u blocks, %u threads: of a budget of %llu looks at the clock, %llu are taken", blocks, threads,
           (unsigned long long)budget_ns, (unsigned long long)run.turns[0].spent_ns);
    bool good = true;
    for (unsigned i = 0; i < run.turns_count; i++)
        good &= run.turns[i].spent_ns <= budget_ns + LOOKS_MOST;
    tap_ok(good, "and of no turn more");
    /* A turn begins with a look of its own, and so does one that only settles what is idle. */
    uint64_t all = atomic_load(&looks) - before, turns = spent_by_turns();
    tap_ok(all <= turns + 3 * (run.turns_count + 1),
           "no other allocation looks at the clock: %llu, %llu in turns", (unsigned long long)all,
           (unsigned long long)turns);
    end(&run);
}

/* On the processor's own clock, which stands still while others have the machine. What comes on top is what a
 * turn without time takes; the least of some rounds, since memory is touched for the first time in one. */
static uint64_t least_spent_ns(uint64_t budget_ns)
{
    uint64_t least_ns = UINT64_MAX;
    for (unsigned i = 0; i < 5; i++) {
        begin(&run, (struct zr_learner_options){.budget_ns = budget_ns});
        repeat(&run, &one, 3);
        if (run.turns_count > 0 && run.turns[0].spent_ns < least_ns)
            least_ns = run.turns[0].spent_ns;
        end(&run);
    }
    return least_ns;
}

static void test_processor(uint32_t blocks)
{
    const uint64_t budget_ns = 20000000;
    zr_os_clock_set(processor_ns);
    random_state = 1;
    make_steps(&one, blocks, blocks / 8 + 20);
    uint64_t without_ns = least_spent_ns(1), with_ns = least_spent_ns(0);
    zr_os_clock_set(looked_at);
    tap_ok(
        with_ns >= budget_ns / 2 && with_ns <= budget_ns + 3 * without_ns + budget_ns / 2,
        "%u blocks: of 20 ms, which is what is taken where none are given, %.1f are; none is as good as %.1f",
        blocks, (double)with_ns / 1e6, (double)without_ns / 1e6);
}

/* ---- In vain ------------------------------------------------------------------------------------------- */

static void test_halved(void)
{
    const uint64_t budget_ns = 256;
    random_state = 1;
    make_steps(&one, 2000, 200);
    make_steps(&other, 1500, 200);
    begin(&run, (struct zr_learner_options){.budget_ns = budget_ns});
    repeat(&run, &one, 12);
    tap_is(run.stats.refused_plans_count, 5, "a plan that takes too much memory is tried five times");
    tap_is(run.turns_count, 5, "and then no more");
    tap_is(run.stats.plans_count, 0, "nothing is installed");
    for (unsigned i = 0; i < run.turns_count; i++)
        tap_ok(within(run.turns[i].spent_ns, budget_ns >> i), "after %u in vain: %llu looks of %llu", i,
               (unsigned long long)run.turns[i].spent_ns, (unsigned long long)budget_ns >> i);
    for (unsigned i = 0; i + 2 < run.turns_count; i++)
        tap_ok(run.turns[i + 2].step > run.turns[i].step, "tries %u and %u are steps apart", i, i + 2);
    repeat(&run, &other, 12);
    tap_ok(run.turns_count > 5 && within(run.turns[5].spent_ns, budget_ns),
           "another period begins with a whole budget: %llu looks",
           (unsigned long long)run.turns[5].spent_ns);
    end(&run);
}

static void test_parts(void)
{
    struct zr_pack_options part = zr_candidate_budget(20000000, 0, 2, 8);
    tap_ok(part.time_ns == 2500000 && part.work == 0 && part.threads == 2,
           "an eighth of 20 ms; no work is no work");
    part = zr_candidate_budget(0, 40000000, 1, 16);
    tap_ok(part.work == 2500000 && part.time_ns == 1, "a sixteenth of a work; no time is not the default");
    part = zr_candidate_budget(3, 3, 1, 16);
    tap_ok(part.time_ns == 1 && part.work == 1, "never nothing, which would be another budget");
}

/* ---- What is left over --------------------------------------------------------------------------------- */

/* A plan that has had no time is refined at the end of a later step, in a time of its own. Room for a bad
 * plan: something large is live beside the first steps. */
static void test_refined(uint64_t refine_ns)
{
    void *beside = NULL;
    random_state = 7;
    make_steps(&one, 300, 60);
    begin(&run, (struct zr_learner_options){.budget_ns = 1, .refine_ns = refine_ns});
    run.failed |= zr_arena_alloc(run.arena, &(struct zr_request){.bytes = 64 * MIB}, &beside) != ZR_OK;
    repeat(&run, &one, 1);
    run.failed |= zr_arena_free(run.arena, beside) != ZR_OK;
    size_t first_bytes = 0;
    for (unsigned i = 0; i < 8; i++) {
        repeat(&run, &one, 1);
        if (run.stats.plans_count == 1 && first_bytes == 0)
            first_bytes = run.stats.region_bytes;
    }
    tap_is(run.stats.plans_count, 1, "a plan without time is there all the same");
    tap_ok(run.turns_count > 0 && within(run.turns[0].spent_ns, 1), "%llu looks",
           (unsigned long long)run.turns[0].spent_ns);
    tap_is(run.stats.refined_plans_count, refine_ns > 0, "refining with %llu looks",
           (unsigned long long)refine_ns);
    for (unsigned i = 0; i < run.turns_count; i++)
        if (run.turns[i].refined)
            tap_ok(within(run.turns[i].spent_ns, refine_ns) && run.turns[i].step > run.turns[0].step &&
                       run.stats.region_bytes < first_bytes,
                   "in a later step, of %llu looks: %zu MiB instead of %zu",
                   (unsigned long long)run.turns[i].spent_ns, run.stats.region_bytes / MIB,
                   first_bytes / MIB);
    tap_ok(run.stats.strays_count == 0 && run.stats.planned_count >= 4 * one.blocks,
           "%llu allocations are planned", (unsigned long long)run.stats.planned_count);
    end(&run);
}

/* Work inside zr_learner_step() alone: nothing is done in an allocation, and nothing is lost. */
static void test_steps_only(void)
{
    void *beside = NULL;
    random_state = 7;
    make_steps(&one, 300, 60);
    begin(&run, (struct zr_learner_options){.budget_ns = 1, .refine_ns = 200, .steps_only = true});
    run.failed |= zr_arena_alloc(run.arena, &(struct zr_request){.bytes = 64 * MIB}, &beside) != ZR_OK;
    uint64_t before = atomic_load(&looks), in_allocations = 0, in_steps = 0, most = 0;
    for (unsigned i = 0; i < 8; i++) {
        repeat(&run, &one, 1);
        if (i == 0)
            run.failed |= zr_arena_free(run.arena, beside) != ZR_OK;
        in_allocations += atomic_load(&looks) - before;
        before = atomic_load(&looks);
        run.failed |= zr_learner_step(run.learner) != ZR_OK;
        uint64_t spent = atomic_load(&looks) - before;
        in_steps += spent;
        most = spent > most ? spent : most;
        before = atomic_load(&looks);
        look(&run);
    }
    tap_is(in_allocations, 0, "with steps_only no allocation looks at the clock");
    tap_ok(in_steps >= 200 && most <= 200 + LOOKS_MOST, "ends of steps do, %llu times at most, %llu in all",
           (unsigned long long)most, (unsigned long long)in_steps);
    tap_ok(run.stats.plans_count == 1 && run.stats.refined_plans_count == 1,
           "a plan in one of them, a better one in another");
    end(&run);
}

int main(void)
{
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    zr_os_clock_set(looked_at);
    test_bounded(300, 1, 1);
    test_bounded(300, 300, 1);
    test_bounded(300, 100, 2);
    test_bounded(1200, 100, 1);
    test_bounded(4000, 20, 1);
    test_processor(600);
    test_halved();
    test_parts();
    test_refined(200);
    test_refined(0);
    test_steps_only();
    zr_os_clock_set(NULL);
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
