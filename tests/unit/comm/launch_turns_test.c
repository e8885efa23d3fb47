/* launch_turns_test.c: the deadlines of a launcher, turn by turn. It is the launcher of rank 0 alone, as
 * where ranks are started one by one; the test plays the other rank, and looks on at every turn. How runs end
 * is in launch_test.c and launch_requests_test.c. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "tests/support/tap.h"
#include "zero/launch/control.h"

#define MS_NS       UINT64_C(1000000)
#define TICK_NS     (100 * MS_NS)  /* the launcher's, */
#define CUT_NS      (1200 * MS_NS) /* when it gives up ranks that do not follow a request, */
#define GRACE_NS    (300 * MS_NS)  /* and how long they have then */
#define STALL_NS    (500 * MS_NS)
#define FAREWELL_NS (1000 * MS_NS)  /* the other launcher lives on for so long after the request, */
#define FAR_NS      (60000 * MS_NS) /* or until nobody waits any more */

/* Of the turns after the request: it comes again, as timeout(1) sends it, and is a second one. */
enum { SAME_TURN = 1, SECOND_TURN = 6 };

/* What the test, the launcher and the rank share. */
static struct turns {
    bool other_ends;  /* the test's rank ends, too: only its launcher is still there */
    bool other_stays; /* which stands still */
    bool other_fails; /* and ends the run, in place of the request */
    bool stall;       /* the launcher is to sleep through the deadline */
    bool again;       /* the request comes three times */

    uint64_t asked_ns;        /* 0: not yet */
    uint64_t last_ns;         /* the turn before */
    uint64_t stalled_ns;      /* in all, by this test or by the machine */
    unsigned count;           /* turns since the request */
    unsigned stalled;         /* the turn before which it could not run */
    bool waited;              /* for the other launcher, until it went */
    bool held_up;             /* nor could it at some other time, so that the machine decides */
    unsigned cut;             /* the first turn that began after the end of the run; 0: none */
    uint64_t left_ns;         /* since the request, stalls or not: when the rank had gone */
    uint64_t cut_ns, gone_ns; /* since the request, but for stalls: then, and when the rank had gone */
    _Atomic bool ready, stop, resumed;
} * turns;

static void nap(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
              NULL);
}

static int end_well(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)local, (void)rank, (void)argument;
    return 0;
}

/* Follows no request; wakes its launcher when that has stopped itself. */
static int follow_nothing(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)local, (void)rank, (void)argument;
    atomic_store(&turns->ready, true);
    while (!atomic_load(&turns->stop))
        nap(MS_NS);
    do { /* again, should the first one have come before the stop */
        nap(STALL_NS);
        kill(getppid(), SIGCONT);
    } while (!atomic_load(&turns->resumed));
    while (true)
        pause();
    return 0;
}

static void note_turn(bool cut, bool gone, uint64_t now_ns)
{
    uint64_t slept_ns = now_ns - turns->last_ns;
    turns->count++;
    turns->last_ns = now_ns;
    if (slept_ns > TICK_NS)
        turns->stalled_ns += slept_ns - TICK_NS;
    if (!turns->stalled && !cut && atomic_load(&turns->stop))
        turns->stalled = turns->count;
    else if (!turns->stalled && slept_ns > TICK_NS + TICK_NS / 2)
        turns->held_up = true;
    uint64_t ran_ns = now_ns - turns->asked_ns - turns->stalled_ns;
    if (cut && !turns->cut) {
        turns->cut = turns->count;
        turns->cut_ns = ran_ns;
    }
    if (cut && gone && !turns->gone_ns) {
        turns->gone_ns = ran_ns;
        turns->left_ns = now_ns - turns->asked_ns;
    }
}

/* Held up wherever it may be, the launcher is late for its next turn. */
static void stall(void)
{
    atomic_store(&turns->stop, true);
    kill(getpid(), SIGSTOP);
    atomic_store(&turns->resumed, true);
}

/* The launcher calls it at every turn, before it looks at its deadlines. */
static bool watch_turns(struct zr_local_part *part)
{
    struct zr_local_world *local = part->control.local;
    uint64_t now_ns = zr_os_now_ns();
    bool cut = atomic_load(&local->abort) != 0, gone = atomic_load(&local->ranks[0].ended);
    if (turns->asked_ns == 0) {
        if (!gone && !atomic_load(&turns->ready))
            return false;
        atomic_store(&local->ranks[1].ended, turns->other_ends);
        if (turns->other_fails)
            zr_local_end(local, &(struct zr_local_end){ZR_LOCAL_BY_LAUNCHER, 1, ZR_ERR_IO, "a full disk"});
        else
            kill(getpid(), SIGTERM);
        turns->asked_ns = turns->last_ns = now_ns;
        return false;
    }
    note_turn(cut, gone, now_ns);
    if (turns->again && (turns->count == SAME_TURN || turns->count == SECOND_TURN))
        kill(getpid(), SIGTERM);
    if (turns->stall && !atomic_load(&turns->stop) &&
        now_ns - turns->asked_ns > CUT_NS - TICK_NS - 10 * MS_NS)
        stall();
    turns->waited = now_ns - turns->asked_ns > (turns->other_stays ? FAR_NS : FAREWELL_NS);
    return cut || turns->waited;
}

enum { HANG_S = 300 }; /* a deadline that never comes is found out */

static int launch(int (*rank_main)(struct zr_local_world *, unsigned, void *))
{
    struct zr_local_part part = {.count = 1, .elsewhere = watch_turns};
    zr_local_sockets_clear(&part.sockets);
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        part.links[r] = -1;
    if (zr_local_control_make(&part.control, 2) != ZR_OK)
        return 99;
    int code = zr_local_watch_over(&(struct zr_launch_options){.world = 2, .rank_main = rank_main}, &part);
    zr_local_control_end(&part.control);
    return code;
}

/* In a process of its own, which may be stopped. Returns the launcher's exit code. */
static int run(struct turns settings, int (*rank_main)(struct zr_local_world *, unsigned, void *))
{
    int status = -1;
    *turns = settings;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(HANG_S);
        _exit(launch(rank_main));
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_others(void)
{
    tap_is(run((struct turns){.other_ends = true}, end_well), 0,
           "ranks that have all ended well are not cut short while launchers wait for each other");
    tap_ok(turns->count < 200, "and the wait is no busy one (%u turns)", turns->count);
    tap_is(run((struct turns){.other_ends = true, .other_stays = true}, end_well), 0,
           "nor does one wait for ever for another launcher that stands still");
    tap_ok(!turns->waited && !turns->cut, "and nothing is cut short then either");
    tap_is(run((struct turns){.other_stays = true}, end_well), 143,
           "a rank elsewhere that follows no request is given up");
    tap_ok(!turns->waited, "before its launcher goes");
}

static void test_deadlines(void)
{
    tap_is(run((struct turns){.other_stays = true}, follow_nothing), 143,
           "a rank of its own that follows no request is given up");
    tap_ok(turns->cut_ns > CUT_NS - TICK_NS && turns->cut_ns < CUT_NS + 4 * TICK_NS,
           "after the time that it has for it (%llu ms, but for stalls)",
           (unsigned long long)(turns->cut_ns / MS_NS));
    uint64_t grace_ns = turns->gone_ns - turns->cut_ns;
    tap_ok(turns->gone_ns > turns->cut_ns && grace_ns < GRACE_NS + 3 * TICK_NS,
           "and gone after a grace (%llu ms)", (unsigned long long)(grace_ns / MS_NS));
    tap_is(run((struct turns){.other_stays = true, .again = true}, follow_nothing), 143,
           "a request that comes three times cuts the run short");
    tap_is(turns->cut, SECOND_TURN + 1, "at once, but not where two of them are one");
}

static void test_failure(void)
{
    int code = run((struct turns){.other_stays = true, .other_fails = true}, follow_nothing);
    tap_ok(code != 0 && turns->left_ns > GRACE_NS - TICK_NS,
           "a rank of a run that another launcher ends has a moment to end by itself (%d, %llu ms)", code,
           (unsigned long long)(turns->left_ns / MS_NS));
}

static void test_stall(void)
{
    int code = 143;
    bool alone = false; /* it was stopped by this test, and by nothing else */
    for (unsigned tries = 0; tries < 5 && !alone && code == 143; tries++) {
        code = run((struct turns){.other_stays = true, .stall = true}, follow_nothing);
        alone = turns->stalled && !turns->held_up;
    }
    tap_is(code, 143, "a launcher that slept through a deadline keeps it afterwards");
    if (alone)
        tap_ok(turns->cut > turns->stalled + 1, "but the ranks have a moment before");
    else
        tap_skip("this machine holds the launcher up, too");
}

int main(void)
{
    turns = mmap(NULL, sizeof(*turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turns == MAP_FAILED)
        return tap_done();
    test_others();
    test_deadlines();
    test_failure();
    test_stall();
    return tap_done();
}
