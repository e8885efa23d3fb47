/* learner_helper_test.c: the thread that learns. Who does what, counted in looks at the clock, which the
 * learner and the packer take where they begin; that nobody waits for it, though its work has no end; a fork
 * while it works; a system without threads; whose memory it uses; and what its checker refuses. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/os.h"
#include "defrag/learn/learner.h"
#include "tests/support/draws.h"
#include "tests/support/tap.h"

#define MIB     ((size_t)1 << 20)
#define ENDLESS (UINT64_MAX / 2)

/* ---- Looks at the clock -------------------------------------------------------------------------------- */

static pthread_t program;
static _Atomic unsigned looks_of_program, looks_of_others;

static uint64_t looked_at(void)
{
    return 1 +
           atomic_fetch_add(pthread_equal(pthread_self(), program) ? &looks_of_program : &looks_of_others, 1);
}

/* ---- Steps that are hard to pack ----------------------------------------------------------------------- */

enum { BLOCKS_MOST = 2000 };

struct event {
    bool alloc;
    uint32_t block;
    size_t bytes;
};

/* Blocks of random sizes and lifetimes: the lower bound cannot be met, so a packer is busy for as long as it
 * may. */
struct steps {
    struct event events[2 * BLOCKS_MOST];
    size_t count;
    uint32_t blocks;
};

static void make_steps(struct steps *out, uint32_t blocks, uint32_t lifetime_most)
{
    static uint32_t ends[BLOCKS_MOST];
    *out = (struct steps){.blocks = blocks};
    random_state = 7;
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

struct run {
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    void *blocks[BLOCKS_MOST];
    bool failed;
};

static void begin(struct run *run, uint64_t work)
{
    *run = (struct run){0};
    zr_backend_sim_create(&run->backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(&run->arena, &(struct zr_arena_options){.backend = run->backend});
    if (zr_learner_create(&run->learner, &(struct zr_learner_options){.arena = run->arena, .work = work}) !=
        ZR_OK)
        tap_ok(false, "a learner: %s", zr_last_error());
}

static bool end(struct run *run)
{
    run->failed |= zr_arena_check(run->arena) != ZR_OK;
    zr_learner_destroy(run->learner);
    run->failed |= zr_arena_destroy(run->arena, NULL) != ZR_OK || zr_backend_destroy(run->backend) != ZR_OK;
    return !run->failed;
}

static void repeat(struct run *run, const struct steps *steps, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        for (size_t e = 0; e < steps->count; e++) {
            const struct event *event = &steps->events[e];
            void **block = &run->blocks[event->block];
            const struct zr_request request = {.bytes = event->bytes, .tag = ZR_TAG_ACTIVATION};
            run->failed |= event->alloc ? zr_arena_alloc(run->arena, &request, block) != ZR_OK
                                        : zr_arena_free(run->arena, *block) != ZR_OK;
        }
}

static struct zr_learner_stats stats_of(struct run *run)
{
    struct zr_learner_stats out;
    zr_learner_get_stats(run->learner, &out);
    return out;
}

static struct steps steps;
static struct run run;

/* Until the thread is at work on what will never end. */
static void until_at_work(void)
{
    while (stats_of(&run).periods_count == 0)
        sched_yield();
}

/* ---- Who does what ------------------------------------------------------------------------------------- */

static void test_who(void)
{
    make_steps(&steps, 600, 80);
    atomic_store(&looks_of_program, 0);
    atomic_store(&looks_of_others, 0);
    zr_os_clock_set(looked_at);
    begin(&run, 2000000);
    for (unsigned i = 0; i < 6; i++) {
        repeat(&run, &steps, 1);
        zr_learner_step(run.learner);
        zr_learner_wait(run.learner);
    }
    repeat(&run, &steps, 1);
    struct zr_learner_stats stats = stats_of(&run);
    zr_os_clock_set(NULL);
    tap_ok(stats.periods_count > 0 && stats.plans_count + stats.refused_plans_count > 0 &&
               atomic_load(&looks_of_others) > 2,
           "a period is found and packed");
    tap_is(atomic_load(&looks_of_program), 0, "in no thread of the program's");
    tap_ok(stats.most_copied_count > 0 && stats.most_copied_count <= 64,
           "of its %u records no more than %llu are copied in one hold of the lock", steps.blocks,
           (unsigned long long)stats.most_copied_count);
    tap_ok(end(&run), "and nothing failed");
}

/* A longer period than what is kept. */
static void test_overrun(void)
{
    begin(&run, 0);
    void *block;
    for (size_t i = 0; i < 300000; i++) {
        run.failed |=
            zr_arena_alloc(run.arena, &(struct zr_request){.bytes = 256 * (i + 1)}, &block) != ZR_OK ||
            zr_arena_free(run.arena, block) != ZR_OK;
    }
    tap_is(stats_of(&run).overruns_count, 1, "300,000 allocations without a period: that is told");
    tap_ok(end(&run), "and nothing failed");
}

/* ---- Nobody waits -------------------------------------------------------------------------------------- */

/* That these return at all is what is tested: the packer would go on for thousands of years. */
static void test_ends(void)
{
    make_steps(&steps, 300, 60);
    begin(&run, ENDLESS);
    repeat(&run, &steps, 4);
    until_at_work();
    repeat(&run, &steps, 10);
    tap_is(stats_of(&run).plans_count, 0, "a plan that takes for ever");
    tap_ok(end(&run), "does not keep its learner from ending");
    pid_t child = fork();
    if (child == 0) {
        begin(&run, ENDLESS);
        repeat(&run, &steps, 4);
        until_at_work();
        exit(run.failed);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "nor a program from exiting");
}

static void test_refused(void)
{
    make_steps(&steps, 300, 60);
    begin(&run, 100000);
    zr_fault_set(ZR_FAULT_THREAD, 1);
    repeat(&run, &steps, 8);
    zr_learner_wait(run.learner);
    struct zr_learner_stats stats = stats_of(&run);
    tap_is(zr_fault_set(ZR_FAULT_THREAD, 0), 1, "a thread that the system refuses is asked for once");
    tap_ok(stats.no_thread && stats.plans_count == 0 && stats.periods_count == 0, "and that is told");
    tap_ok(end(&run), "all goes on without a plan");
}

/* ---- Forks --------------------------------------------------------------------------------------------- */

/* Bytes of shared mappings that may be written: what a child would write into its parent. */
static size_t shared_bytes(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512], how[8];
    unsigned long long first, last;
    size_t bytes = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%llx-%llx %7s", &first, &last, how) == 3 && how[1] == 'w' && how[3] == 's')
            bytes += (size_t)(last - first);
    if (file)
        fclose(file);
    return bytes;
}

static void test_private(void)
{
    make_steps(&steps, 300, 60);
    size_t before = shared_bytes();
    begin(&run, ENDLESS);
    repeat(&run, &steps, 4);
    until_at_work();
    tap_is(shared_bytes(), before, "while it packs, a learner has no memory that a fork would share");
    end(&run);
}

/* At any moment of its work: parent and child both go on, and come to the same. */
static void test_forks(void)
{
    enum { FORKS = 40, STEPS = 5 };
    unsigned bad = 0, planned = 0;
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer ends a child of several threads that starts one");
    return;
#endif
    make_steps(&steps, 120, 20);
    for (unsigned i = 0; i < FORKS; i++) {
        uint64_t regions[2] = {0};
        int fds[2], status = 1;
        begin(&run, 300000);
        repeat(&run, &steps, 4);
        for (unsigned k = 0; k < i * 20; k++)
            sched_yield();
        bad += pipe(fds) != 0;
        pid_t child = fork();
        repeat(&run, &steps, STEPS);
        zr_learner_wait(run.learner);
        repeat(&run, &steps, STEPS);
        zr_learner_wait(run.learner);
        struct zr_learner_stats stats = stats_of(&run);
        if (child == 0) {
            bool sent = write(fds[1], &stats.plans_count, sizeof stats.plans_count) > 0;
            _exit(!end(&run) || !sent);
        }
        waitpid(child, &status, 0);
        bad += child < 0 || status != 0 || read(fds[0], &regions[0], sizeof regions[0]) != sizeof regions[0];
        close(fds[0]);
        close(fds[1]);
        bad += !end(&run) || (stats.plans_count > 0) != (regions[0] > 0);
        planned += stats.plans_count > 0;
    }
    tap_ok(bad == 0 && planned == FORKS,
           "%d forks while it learns: parent and child have a plan each, %u times", FORKS, planned);
}

/* ---- The checker --------------------------------------------------------------------------------------- */

static void test_checker(void)
{
    enum { G = 4096 };
    static const struct {
        const char *words;
        struct {
            size_t granules, offset_bytes;
            uint32_t alive_count;
        } blocks[3];
        uint32_t pages[4];
        size_t pages_count, second_lane; /* 0: one sequence */
        zr_result want;
    } cases[] = {
        {"one after the other", {{1, 0, 1}, {1, 0, 1}, {1, 0, 1}}, {0}, 0, 0, ZR_OK},
        {"beside each other", {{1, 0, 3}, {1, G, 2}, {1, 2 * G, 2}}, {0}, 0, 0, ZR_OK},
        {"at one time", {{1, 0, 2}, {1, G - 256, 1}, {1, 2 * G, 1}}, {0}, 0, 0, ZR_ERR_CORRUPT},
        {"round the end", {{1, 0, 1}, {1, G, 1}, {1, 0, 2}}, {0}, 0, 0, ZR_ERR_CORRUPT},
        {"beyond the region", {{1, 4 * G, 1}, {1, 0, 1}, {1, 0, 1}}, {0}, 0, 0, ZR_ERR_CORRUPT},
        {"pages in turn", {{1, 0, 1}, {2, G, 1}, {1, 3 * G, 1}}, {0, 1, 0, 1}, 2, 0, ZR_OK},
        {"a page at one time", {{1, 0, 2}, {2, G, 1}, {1, 3 * G, 1}}, {0, 1, 0, 1}, 2, 0, ZR_ERR_CORRUPT},
        {"a page twice", {{2, 0, 1}, {1, 2 * G, 1}, {1, 3 * G, 1}}, {0, 0, 1, 1}, 2, 0, ZR_ERR_CORRUPT},
        {"two sequences", {{1, 0, 1}, {1, G, 1}, {1, 2 * G, 1}}, {0}, 0, 2, ZR_OK},
        {"between sequences", {{1, 0, 1}, {1, G, 1}, {1, G, 1}}, {0}, 0, 2, ZR_ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct zr_plan_step made[3];
        struct zr_candidate candidate = {.plan = {.steps = made, .steps_count = 3, .region_bytes = 4 * G}};
        for (unsigned k = 0; k < 3; k++)
            made[k] = (struct zr_plan_step){.request.bytes = cases[i].blocks[k].granules * G,
                                            .offset_bytes = cases[i].blocks[k].offset_bytes,
                                            .alive_count = cases[i].blocks[k].alive_count};
        size_t second = cases[i].second_lane;
        candidate.sequences[0] = (struct zr_plan_sequence){.count = second ? second : 3};
        candidate.sequences[1] = (struct zr_plan_sequence){.first = second, .count = 3 - second};
        candidate.plan.sequences = candidate.sequences;
        candidate.plan.sequences_count = second ? 2 : 1;
        candidate.plan.pages = cases[i].pages_count ? cases[i].pages : NULL;
        candidate.plan.pages_count = cases[i].pages_count;
        tap_result(zr_candidate_check(&candidate, (struct zr_plan_rules){.granule_bytes = G}), cases[i].want,
                   "a plan of blocks %s", cases[i].words);
    }
}

int main(void)
{
    program = pthread_self();
    test_who();
    test_overrun();
    test_ends();
    test_refused();
    test_private();
    test_forks();
    test_checker();
    return tap_done();
}
