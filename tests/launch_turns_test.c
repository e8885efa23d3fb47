/* launch_turns_test.c: the deadlines of a launcher, turn by turn. It is the launcher of rank 0 alone, as
 * where ranks are started one by one; the test plays the other rank, and looks on at every turn. How runs end
 * is in launch_test.c. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/os.h"
#include "tests/tap.h"
#include "zero/comm/local.h"

#define MS_NS       UINT64_C(1000000)
#define TICK_NS     (100 * MS_NS)  /* the launcher's, */
#define CUT_NS      (1200 * MS_NS) /* and when it gives up ranks that do not follow a request */
#define STALL_NS    (500 * MS_NS)
#define FAREWELL_NS (2000 * MS_NS)  /* the other launcher lives on for so long after the request, */
#define FAR_NS      (60000 * MS_NS) /* or for ever, where this one is to give up */

/* What the test, the launcher and the rank share. */
static struct turns {
    bool other_ends;   /* the test's rank ends, too: only its launcher is still there */
    bool stall;        /* the launcher is to sleep through the deadline */
    uint64_t asked_ns; /* 0: not yet */
    uint64_t last_ns;  /* the turn before */
    unsigned count;    /* turns since the request */
    unsigned stalled;  /* the turn before which it could not run */
    bool held_up;      /* nor could it at some other time, so that the machine decides */
    bool cut_at_once;  /* there was no other turn between that one and the end */
    _Atomic bool ready, stop;
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

/* Stops its launcher when told to, lets it go on later, and follows no request. */
static int stop_the_launcher(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)local, (void)rank, (void)argument;
    atomic_store(&turns->ready, true);
    while (!atomic_load(&turns->stop))
        nap(MS_NS);
    kill(getppid(), SIGSTOP);
    nap(STALL_NS);
    kill(getppid(), SIGCONT);
    while (true)
        pause();
    return 0;
}

static void note_turn(bool cut, uint64_t now_ns)
{
    uint64_t slept_ns = now_ns - turns->last_ns;
    turns->count++;
    if (turns->stalled && turns->count == turns->stalled + 1)
        turns->cut_at_once = cut;
    if (!turns->stalled && !cut && atomic_load(&turns->stop) && slept_ns >= STALL_NS)
        turns->stalled = turns->count;
    else if (!turns->stalled && slept_ns > TICK_NS + TICK_NS / 2)
        turns->held_up = true;
    if (turns->stall && now_ns - turns->asked_ns > CUT_NS - TICK_NS - 10 * MS_NS)
        atomic_store(&turns->stop, true);
    turns->last_ns = now_ns;
}

/* The launcher calls it at every turn, before it looks at its deadlines. */
static bool watch_turns(struct zr_local_part *part)
{
    struct zr_local_world *local = part->control.local;
    uint64_t now_ns = zr_os_now_ns();
    bool cut = atomic_load(&local->abort) != 0;
    if (turns->asked_ns != 0) {
        note_turn(cut, now_ns);
    } else if (atomic_load(turns->stall ? &turns->ready : &local->ranks[0].ended)) {
        atomic_store(&local->ranks[1].ended, turns->other_ends);
        kill(getpid(), SIGTERM);
        turns->asked_ns = turns->last_ns = now_ns;
    }
    uint64_t lives_ns = turns->other_ends ? FAREWELL_NS : FAR_NS;
    return cut || (turns->asked_ns != 0 && now_ns - turns->asked_ns > lives_ns);
}

static int launch(int (*rank_main)(struct zr_local_world *, unsigned, void *))
{
    struct zr_local_part part = {.count = 1, .elsewhere = watch_turns};
    zr_local_sockets_clear(&part.sockets);
    for (unsigned r = 0; r < ZR_COMM_MAX_WORLD; r++)
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
        _exit(launch(rank_main));
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
    turns = mmap(NULL, sizeof(*turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turns == MAP_FAILED)
        return tap_done();
    tap_is(run((struct turns){.other_ends = true}, end_well), 0,
           "ranks that have all ended well are not cut short while launchers wait for each other");
    tap_ok(turns->count < 200, "and the wait is no busy one (%u turns)", turns->count);
    tap_is(run((struct turns){.other_ends = false}, end_well), 143,
           "a rank elsewhere that follows no request is given up");
    tap_is(run((struct turns){.stall = true}, stop_the_launcher), 143,
           "a launcher that slept through a deadline keeps it afterwards");
    if (turns->stalled && !turns->held_up)
        tap_ok(!turns->cut_at_once, "but the ranks have a moment before");
    else
        tap_skip("the launcher was not stopped in time, or not only by the test");
    return tap_done();
}
