/* learner_helper_test.c: the thread that learns. Who does what, counted in looks at the clock, which the
 * learner and the packer take where they begin; that nobody waits for it, though its work has no end; a fork
 * while it works; a system without threads; whose memory it uses; and what its checker refuses. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "defrag/learn/learner_state.h"
#include "tests/support/learner_runs.h"

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

static struct steps steps;

/* Blocks of random sizes and lifetimes. */
static void make_steps(uint32_t count, uint32_t lifetime_max)
{
    static uint32_t ends[BLOCKS_MAX];
    steps = (struct steps){.blocks = count};
    random_state = 7;
    for (uint32_t i = 0; i < count; i++)
        ends[i] = i + 1 + (uint32_t)random_below(lifetime_max);
    for (uint32_t now = 0; now <= count; now++) {
        for (uint32_t i = now > lifetime_max ? now - lifetime_max : 0; i < now; i++)
            if (ends[i] == now || (now == count && ends[i] > now))
                steps.events[steps.count++] = (struct event){.block = i};
        if (now < count)
            steps.events[steps.count++] = (struct event){true, now, 1 + random_below(8 * MIB)};
    }
}

static void repeat(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        for (size_t e = 0; e < steps.count; e++)
            do_event(&steps.events[e]);
}

/* A learner that works for so long, while these steps go on; 0 steps: not yet. */
static void begin_working(uint64_t work, unsigned times)
{
    begin_arena(0, 0);
    begin_learner(work);
    repeat(times);
}

/* Until the thread is at work on what will never end. */
static void until_at_work(void)
{
    while (learned().of_learner.periods_count == 0)
        sched_yield();
}

/* ---- Who does what ------------------------------------------------------------------------------------- */

static void test_who(void)
{
    make_steps(600, 80);
    zr_os_clock_set(looked_at);
    begin_working(2000000, 0);
    for (unsigned i = 0; i < 6; i++) {
        repeat(1);
        zr_learner_wait(learner);
    }
    repeat(1);
    struct learned stats = learned();
    zr_os_clock_set(NULL);
    tap_ok(stats.of_learner.periods_count > 0 &&
               stats.of_learner.plans_count + stats.of_learner.refused_plans_count > 0 &&
               atomic_load(&looks_of_others) > 2,
           "a period is found and packed");
    tap_is(atomic_load(&looks_of_program), 0, "in no thread of the program's");
    tap_ok(stats.of_learner.max_copied_count > 0 && stats.of_learner.max_copied_count <= 64,
           "of its %u records no more than %llu are copied in one hold of the lock", steps.blocks,
           (unsigned long long)stats.of_learner.max_copied_count);
    end();
}

/* A longer period than what is kept. */
static void test_overrun(void)
{
    begin_working(0, 0);
    for (size_t i = 0; i < 300000; i++) {
        get(0, 256 * (i + 1));
        give(0);
    }
    tap_is(learned().of_learner.overruns_count, 1, "300,000 allocations without a period: that is told");
    end();
}

/* ---- Nobody waits -------------------------------------------------------------------------------------- */

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

/* That these return at all is what is tested: with so many long lives the packer has found no end after
 * minutes. Of a few hundred short ones it finds the best plan in some 50 ms, by when the program may still be
 * in its steps. */
static void test_ends(void)
{
    make_steps(2000, 200);
    size_t shared = shared_bytes();
    begin_working(ENDLESS, 4);
    until_at_work();
    tap_is(shared_bytes(), shared, "a learner at work has no memory that a fork would share");
    repeat(10);
    tap_is(learned().of_learner.plans_count, 0, "a plan takes for ever");
    tap_ok(end_quietly(), "does not keep its learner from ending");
    pid_t child = fork();
    if (child == 0) {
        begin_working(ENDLESS, 4);
        until_at_work();
        exit(failed);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "nor a program from exiting");
}

static void test_refused(void)
{
    make_steps(300, 60);
    begin_working(100000, 0);
    zr_fault_set(ZR_FAULT_THREAD, 1);
    repeat(8);
    zr_learner_wait(learner);
    struct learned stats = learned();
    tap_is(zr_fault_set(ZR_FAULT_THREAD, 0), 1, "a thread that the system refuses is asked for once");
    tap_ok(stats.of_learner.no_thread && stats.of_learner.plans_count == 0 &&
               stats.of_learner.periods_count == 0,
           "and that is told");
    end(); /* all goes on without a plan */
}

/* At the thread's first write to the learner after it was idle, which says that it ends: the program has set
 * it going, and believes it to be idle still. */
static _Atomic bool set_late;

static void set_going_late(int signal_number)
{
    (void)signal_number;
    mprotect(learner, sizeof *learner, PROT_READ | PROT_WRITE);
    atomic_store(&learner->helper.go, 1);
    atomic_store(&set_late, true);
}

/* A thread that has had no work for a second ends; what comes then has a new one. */
static void test_lingers(void)
{
    struct sigaction late = {.sa_handler = set_going_late, .sa_flags = SA_RESETHAND}, before;
    make_steps(300, 60);
    begin_working(100000, 0);
    repeat(4);
    zr_learner_wait(learner);
    uint64_t periods = learned().of_learner.periods_count;
    sigaction(SIGSEGV, &late, &before);
    alarm(60);      /* no thread learns, so a thread that waits hangs */
    usleep(100000); /* until the thread sleeps: a futex wait fails in a page that is read-only */
    mprotect(learner, sizeof *learner, PROT_READ);
    while (!atomic_load(&set_late))
        usleep(10000);
    zr_learner_wait(learner);
    sigaction(SIGSEGV, &before, NULL);
    tap_is(atomic_load(&learner->helper.go), 0, "what was set as the thread ended is done");
    while (atomic_load(&learner->helper.state) != HELPER_ENDED)
        usleep(10000);
    make_steps(200, 40);
    repeat(8);
    zr_learner_wait(learner);
    alarm(0);
    tap_ok(periods > 0 && learned().of_learner.periods_count > periods,
           "a thread that has ended is begun anew");
    end();
}

/* ---- Forks --------------------------------------------------------------------------------------------- */

/* At any moment of its work: parent and child both go on, and come to the same. */
static void test_forks(void)
{
    enum { FORKS = 40, STEPS = 5 };
    unsigned bad = 0;
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer ends a child of several threads that starts one");
    return;
#elif defined(__SANITIZE_ADDRESS__)
    tap_skip("AddressSanitizer's malloc() may be locked for ever in a child, when another thread was in it");
    return;
#endif
    make_steps(120, 20);
    for (unsigned i = 0; i < FORKS; i++) {
        int status = 1;
        begin_working(300000, 4);
        for (unsigned k = 0; k < i * 20; k++)
            sched_yield();
        pid_t child = fork();
        repeat(STEPS);
        zr_learner_wait(learner);
        repeat(STEPS);
        zr_learner_wait(learner);
        bool planned = learned().of_learner.plans_count > 0;
        bool good = end_quietly() && planned;
        if (child == 0)
            _exit(!good);
        waitpid(child, &status, 0);
        bad += child < 0 || status != 0 || !good;
    }
    tap_is(bad, 0, "%d forks while it learns: parent and child have a plan each", FORKS);
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
    test_lingers();
    test_forks();
    test_checker();
    return tap_done();
}
