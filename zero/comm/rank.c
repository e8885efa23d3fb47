/* rank.c: the side of a forked rank: its signals, its watch over the launcher, and what it tells about
 * itself. The other side is launch.c.
 *
 * A terminal sends Ctrl-C to the whole process group, so ranks leave those signals to the launcher and follow
 * the words in the control block. The kernel tells a rank by a signal of its own when the launcher has died.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "alloc/error.h"
#include "zero/comm/comm.h"
#include "zero/comm/local.h"

enum { LAUNCHER_DIED = SIGUSR2 };

/* What the signal handlers need; they have no other way to learn it. Written once, before they are installed.
 */
static struct {
    struct zr_local_world *local;
    void (*clean_up)(void *argument);
    void *argument;
    char words[160]; /* made beforehand: formatting is not safe in a handler */
    size_t words_bytes;
} self;

/* Ends this rank: the first one to get here says why. */
static void end_without_launcher(int signal_number)
{
    (void)signal_number;
    if (getppid() == self.local->launcher)
        return; /* somebody sent the signal by hand */
    if (!atomic_exchange(&self.local->orphaned, true)) {
        ssize_t written = write(STDERR_FILENO, self.words, self.words_bytes);
        (void)written; /* there is nobody left to tell */
    }
    if (self.clean_up)
        self.clean_up(self.argument);
    _exit(1);
}

/* SIGTERM and SIGUSR1 sent to a rank by its number mean the run: the launcher sees the word and follows up.
 */
static void pass_request_on(int signal_number)
{
    if (signal_number == SIGTERM)
        atomic_fetch_or(&self.local->ends, ZR_LOCAL_END_SAVING);
    else
        atomic_store(&self.local->saves, 1);
}

static void handle(int signal_number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* the handlers do not interrupt one another */
    sigaction(signal_number, &action, NULL);
}

void zr_local_become_rank(struct zr_local_world *local, unsigned rank,
                          const struct zr_launch_options *options, const sigset_t *before)
{
    sigset_t mask = *before;
    static const int followed[] = {SIGTERM, SIGUSR1, LAUNCHER_DIED};
    self.local = local;
    self.clean_up = options->clean_up;
    self.argument = options->argument;
    snprintf(self.words, sizeof(self.words), "%s: the launcher (pid %d) is gone; its ranks end\n",
             program_invocation_short_name, (int)local->launcher);
    self.words_bytes = strlen(self.words);
    atomic_store(&local->ranks[rank].pid, (int32_t)getpid());
    handle(LAUNCHER_DIED, end_without_launcher);
    handle(SIGTERM, pass_request_on);
    handle(SIGUSR1, pass_request_on);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN); /* a reader that has gone is an error of the write, and not the end of a run */
    signal(SIGCHLD, SIG_DFL);
    for (size_t i = 0; i < sizeof(followed) / sizeof(*followed); i++)
        sigdelset(&mask, followed[i]);
    prctl(PR_SET_PDEATHSIG, LAUNCHER_DIED);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    end_without_launcher(0); /* it may have died before the kernel knew whom to tell */
    _exit(options->rank_main(local, rank, options->argument));
}

/* ---- What a rank tells ------------------------------------------------------------------------------ */

void zr_local_busy(struct zr_local_world *local, unsigned rank, bool busy)
{
    if (local && rank < local->world)
        atomic_store(&local->ranks[rank].busy, busy);
}

void zr_local_note(struct zr_local_world *local, unsigned rank, const char *text)
{
    if (local && rank < local->world)
        snprintf(local->ranks[rank].note, ZR_LOCAL_NOTE_BYTES, "%s", text ? text : "");
}

bool zr_local_first_words(struct zr_local_world *local, const char *words)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), first = 0; /* FNV-1a */
    for (; *words; words++)
        hash = (hash ^ (unsigned char)*words) * UINT64_C(0x100000001b3);
    hash |= 1;
    return atomic_compare_exchange_strong(&local->said, &first, hash) || first != hash;
}

/* Rank 0 has the say, so that a signal which arrives while the ranks pass here means the same step to all. */
zr_result zr_local_request(zr_comm *comm, enum zr_request_kind *out)
{
    uint32_t mine = ZR_REQUEST_NONE, all[ZR_COMM_MAX_WORLD];
    if (!comm || !out)
        return zr_fail(ZR_ERR_INVALID, "a request needs a communicator and a place to go");
    *out = ZR_REQUEST_NONE;
    struct zr_local_world *local = comm->local;
    if (!local)
        return ZR_OK;
    if (comm->rank == 0) {
        uint32_t ends = atomic_load(&local->ends);
        bool save = atomic_exchange(&local->saves, 0) != 0;
        mine = ends & ZR_LOCAL_END_NOW      ? ZR_REQUEST_END
               : ends & ZR_LOCAL_END_SAVING ? ZR_REQUEST_SAVE_AND_END
               : save                       ? ZR_REQUEST_SAVE
                                            : ZR_REQUEST_NONE;
    }
    zr_result result = zr_comm_exchange(comm, &mine, sizeof(mine), all);
    if (result == ZR_OK)
        *out = (enum zr_request_kind)all[0];
    return result;
}
