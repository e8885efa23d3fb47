/* rank.c: the part of the launcher's protocol that runs in a forked rank: signals, the watch over the
 * launcher, status. launch.c is the launcher's part.
 *
 * A terminal sends Ctrl-C to the whole process group, so ranks ignore it and follow the control block
 * instead. The kernel signals a rank when its launcher has died. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/keep/holder.h"
#include "zero/launch/control.h"
#include "alloc/base/system/os.h"

#define MESSAGE_NS 10000000000ull /* time for the first rank with a message to print it */

/* SIGCONT also wakes a stopped process, so that it exits too. */
enum { LAUNCHER_DIED = SIGCONT };

/* State of the signal handlers, written once before they are installed. */
static struct {
    struct zr_local_world *local;
    const struct zr_local_sockets *sockets;
    pid_t launcher; /* 0: no launcher forked this rank */
    int memory[ZR_LAUNCH_MEMORIES];
    unsigned replaced; /* restarts of this rank by itself */
    bool leaves;       /* SIGTERM takes its replica, not the run */
    unsigned rank;
    bool holds; /* mpirun's signals are blocked and taken one by one */
    const struct zr_local_ties *ties;
    void (*clean_up)(void *argument);
    void *argument;
    /* Formatted in advance, since formatting is not async-signal-safe. */
    char reason[ZR_LOCAL_REASON_BYTES]; /* for ranks of other launchers */
    char line[ZR_LOCAL_REASON_BYTES + 80];
} self;

/* Ends this rank; the first rank to get here prints the reason. */
static void end_without_launcher(int signal_number)
{
    (void)signal_number;
    if (getppid() == self.launcher)
        return; /* SIGCONT of a stopped run */
    if (!atomic_exchange(&self.local->orphaned, true)) {
        ssize_t written = write(STDERR_FILENO, self.line, strlen(self.line));
        (void)written; /* a failed write cannot be reported */
    }
    /* After printing: if this rank is killed here, another launcher of the run can still report. */
    zr_local_end(self.local, &(struct zr_local_end){ZR_LOCAL_BY_RANK, self.rank, ZR_ERR_PEER, self.reason});
    if (self.clean_up)
        self.clean_up(self.argument);
    _exit(1);
}

void zr_local_ask_for_end(struct zr_local_world *local, int signal_number)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&local->ends, &none, (uint32_t)signal_number);
}

/* Notes this rank's pid for the launcher. */
static void give_notice(void)
{
    for (unsigned i = 0; i < ZR_MAX_WORLD; i++) {
        int32_t none = 0;
        if (atomic_compare_exchange_strong(&self.local->notices[i], &none, (int32_t)getpid()))
            break;
    }
    kill(self.launcher, SIGCHLD); /* the launcher then reads it */
}

/* SIGTERM and SIGUSR1 for a rank's pid apply to the run; the launcher reads the control block. */
static void forward_request(int signal_number)
{
    if (signal_number == SIGTERM && self.leaves)
        give_notice();
    else if (signal_number == SIGTERM || signal_number == ZR_MPIRUN_SAVE_AND_END)
        zr_local_ask_for_end(self.local, SIGTERM);
    else if (signal_number == SIGINT || signal_number == ZR_MPIRUN_INTERRUPT)
        zr_local_ask_for_end(self.local, SIGINT);
    else
        atomic_store(&self.local->saves, 1);
}

/* Stack of the handlers. Matrix products of oneDNN 2.6 for AVX-512 point the stack pointer at heap memory,
 * where the frame of a signal would overwrite other blocks. */
static _Alignas(64) char handler_stack[256 << 10];

static void handle(int signal_number, void (*handler)(int))
{
    const stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigfillset(&action.sa_mask); /* the handlers do not interrupt each other */
    sigaction(signal_number, &action, NULL);
}

const struct zr_local_sockets *zr_local_own_sockets(void)
{
    return self.sockets;
}

/* Installs handlers that turn signals into requests. */
static void follow_signals(struct zr_local_world *local)
{
    self.local = local;
    handle(SIGTERM, forward_request);
    handle(SIGINT, forward_request);
    handle(SIGUSR1, forward_request);
    signal(SIGPIPE, SIG_IGN); /* a closed reader is only a write error */
}

static void mpirun_signals(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGUSR1);
    sigaddset(out, ZR_MPIRUN_SAVE_AND_END);
    sigaddset(out, ZR_MPIRUN_INTERRUPT);
}

/* Keeps the signals blocked: a rank takes them between steps. */
void zr_local_hold_mpirun_signals(void)
{
    sigset_t signals;
    mpirun_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

void zr_local_follow_mpirun(struct zr_local_world *local)
{
    follow_signals(local);
    self.holds = true;
}

static void take_held_signals(void)
{
    const struct timespec at_once = {0};
    sigset_t signals;
    int signal_number;
    mpirun_signals(&signals);
    while (self.holds && (signal_number = sigtimedwait(&signals, NULL, &at_once)) > 0)
        forward_request(signal_number);
}

void zr_local_become_rank(const struct zr_local_birth *birth)
{
    const struct zr_launch_options *options = birth->options;
    struct zr_local_world *local = birth->local;
    sigset_t mask = *birth->before;
    static const int followed[] = {SIGTERM, SIGUSR1, LAUNCHER_DIED};
    self.sockets = birth->sockets;
    self.launcher = birth->launcher;
    self.rank = birth->rank;
    zr_holding_set_door(birth->door);
    for (unsigned i = 0; i < ZR_LAUNCH_MEMORIES; i++)
        self.memory[i] = birth->memory ? birth->memory[i] : -1;
    self.leaves = options->replicas.by_events;
    self.replaced = atomic_load(&local->ranks[birth->rank].replaced);
    self.clean_up = options->clean_up;
    self.argument = options->argument;
    for (unsigned r = birth->rank; r < birth->rank + (birth->threads ? birth->threads : 1); r++)
        atomic_store(&local->ranks[r].pid, (int32_t)getpid());
    if (birth->alone)
        zr_local_describe_orphan(local, birth->rank, self.reason);
    else
        snprintf(self.reason, sizeof(self.reason), "the launcher (pid %d) is gone", (int)birth->launcher);
    snprintf(self.line, sizeof(self.line), "%s: %s; the run ends\n", program_invocation_short_name,
             self.reason);
    follow_signals(local);
    handle(LAUNCHER_DIED, end_without_launcher);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    for (size_t i = 0; i < sizeof(followed) / sizeof(*followed); i++)
        sigdelset(&mask, followed[i]);
    prctl(PR_SET_PDEATHSIG, LAUNCHER_DIED);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    end_without_launcher(0); /* the launcher may have died before the kernel was asked to signal its death */
    _exit(birth->threads ? zr_local_run_threads(birth)
                         : options->rank_main(local, birth->rank, options->argument));
}

/* ---- Status -------------------------------------------------------------------------------------------- */

void zr_local_busy(struct zr_local_world *local, unsigned rank, bool busy)
{
    if (local && rank < local->world)
        atomic_store(&local->ranks[rank].busy, busy);
}

void zr_local_set_status(struct zr_local_world *local, unsigned rank, const char *text)
{
    if (!local || rank >= local->world)
        return;
    struct zr_local_rank *own = &local->ranks[rank];
    uint32_t statuses = atomic_load_explicit(&own->statuses, memory_order_relaxed);
    snprintf(own->status[(statuses + 1) & 1], ZR_LOCAL_STATUS_BYTES, "%s", text ? text : "");
    atomic_store(&own->statuses, statuses + 1);
}

/* Copies the current status, or a status that is set during the copy. */
void zr_local_read_status(const struct zr_local_rank *rank, char *out)
{
    memcpy(out, rank->status[atomic_load(&rank->statuses) & 1], ZR_LOCAL_STATUS_BYTES);
    out[ZR_LOCAL_STATUS_BYTES - 1] = '\0';
}

zr_result zr_local_out_of_step(struct zr_local_world *local, unsigned rank)
{
    char words[ZR_LOCAL_REASON_BYTES];
    snprintf(words, sizeof(words), "%s", zr_last_error());
    if (atomic_load(&local->abort) == 0) {
        atomic_store(&local->out_of_step, true); /* before abort, which readers check first */
        zr_local_end(local, &(struct zr_local_end){ZR_LOCAL_BY_RANK, rank, ZR_ERR_PEER, words});
    }
    uint32_t abort = atomic_load(&local->abort);
    return zr_fail((zr_result)(abort & 255), "%s", local->ranks[abort >> 9].message[abort >> 8 & 1]);
}

bool zr_local_is_out_of_step(const struct zr_local_world *local)
{
    return local && atomic_load(&local->out_of_step);
}

bool zr_local_first_message(struct zr_local_world *local, const char *words)
{
    uint64_t hash = zr_hash_text(words) | 1, first = 0;
    if (atomic_compare_exchange_strong(&local->first_message, &first, hash) || first != hash)
        return true;
    struct zr_timeout timeout = zr_timeout_begin();
    while (!atomic_load(&local->said) && zr_timeout_waited_ns(&timeout) < MESSAGE_NS)
        zr_word_wait(&local->said, 0, ZR_LOCAL_POLL_NS);
    return !atomic_load(&local->said);
}

void zr_local_message_logged(struct zr_local_world *local)
{
    atomic_store(&local->said, 1);
    zr_word_wake_all(&local->said);
}

/* ---- Restarts ------------------------------------------------------------------------------------------ */

void zr_local_set_ties(const struct zr_local_ties *ties)
{
    self.ties = ties;
}

/* Whether a restart has begun, or may begin: `abort` ends the run unless `restarting` was set before it. */
static bool may_restart(const struct zr_local_world *local, bool asks)
{
    return (asks && atomic_load(&local->abort) == 0) || atomic_load(&local->restarting) ||
           atomic_load(&local->resizing);
}

zr_result zr_local_await_restart(struct zr_local_world *local, unsigned rank, const char *reason)
{
    struct zr_local_rank *own = &local->ranks[rank];
    uint32_t before = atomic_load(&local->restarts);
    bool waits = may_restart(local, reason != NULL);
    if (waits) {
        if (reason && atomic_load(&local->abort) == 0)
            snprintf(own->message[ZR_LOCAL_BY_RANK], ZR_LOCAL_REASON_BYTES, "%s", reason);
        atomic_store(&own->rejoins, before + 1);
        kill(self.launcher, SIGCHLD); /* the launcher then looks at its ranks */
    }
    while (waits && atomic_load(&local->restarts) == before) {
        zr_word_wait(&local->restarts, before, ZR_LOCAL_POLL_NS);
        waits = may_restart(local, reason != NULL); /* read first: reset after restarts has advanced */
    }
    return atomic_load(&local->restarts) != before ? ZR_OK
                                                   : zr_fail(ZR_ERR_PEER, "the run ends without a restart");
}

bool zr_local_ask_to_stand_in(struct zr_local_world *local, const bool *missing)
{
    bool any = false;
    for (unsigned r = 0; r < local->world; r++) {
        atomic_store(&local->absent[r], missing[r]);
        any |= missing[r];
    }
    kill(self.launcher, SIGCHLD); /* the launcher then looks */
    return any;
}

zr_result zr_local_rejoin(struct zr_local_world *local, unsigned rank)
{
    if (!local || rank >= local->world)
        return zr_fail(ZR_ERR_INVALID, "zr_local_rejoin() requires a world that includes this rank");
    return self.ties ? self.ties->rejoin(local, rank) : zr_local_await_restart(local, rank, NULL);
}

zr_result zr_local_rejoin_as(struct zr_local_world *local, unsigned *rank)
{
    unsigned sizes = zr_local_sizes(local);
    zr_result result = zr_local_rejoin(local, *rank);
    if (result == ZR_OK && zr_local_sizes(local) != sizes)
        *rank = local->next[*rank];
    if (result == ZR_OK && *rank != ZR_LOCAL_LEAVES)
        self.rank = *rank;
    return result;
}

bool zr_local_wants_resize(const struct zr_local_world *local)
{
    return local && (atomic_load(&local->resize_wanted) || atomic_load(&local->leaves) != ZR_LOCAL_REMAINS);
}

void zr_local_move(struct zr_local_world *local, unsigned replicas)
{
    atomic_store(&local->moved_before, atomic_exchange(&local->moved, 1 + replicas));
    atomic_store(&local->resizing, true);
}

void zr_local_undo_move(struct zr_local_world *local)
{
    atomic_store(&local->moved, atomic_load(&local->moved_before));
    atomic_store(&local->resizing, false);
}

bool zr_local_is_moved(const struct zr_local_world *local)
{
    return local && atomic_load(&local->moved) > 0;
}

void zr_local_end_move(struct zr_local_world *local)
{
    if (local)
        atomic_store(&local->moved, 0);
}

unsigned zr_local_world(const struct zr_local_world *local)
{
    return local ? local->world : 0;
}

unsigned zr_local_sizes(const struct zr_local_world *local)
{
    return local ? atomic_load(&local->sizes) : 0;
}

int zr_local_memory(unsigned which)
{
    return which < ZR_LAUNCH_MEMORIES && self.launcher ? self.memory[which] : -1;
}

bool zr_local_is_restarting(struct zr_local_world *local)
{
    return local && (atomic_load(&local->restarting) || (self.ties && self.ties->lost(local)));
}

unsigned zr_local_restarts(const struct zr_local_world *local)
{
    return local ? atomic_load(&local->restarts) + self.replaced : 0;
}

bool zr_local_leaves(const struct zr_local_world *local, unsigned rank)
{
    return local && rank < local->world && atomic_load(&local->ranks[rank].leaves);
}

unsigned zr_local_replaced(const struct zr_local_world *local)
{
    unsigned sum = 0;
    for (unsigned r = 0; local && r < local->world; r++)
        sum += atomic_load(&local->ranks[r].replaced) - atomic_load(&local->ranks[r].leaves);
    return sum;
}

unsigned zr_local_left(const struct zr_local_world *local)
{
    unsigned sum = 0;
    for (unsigned r = 0; local && r < local->world; r++)
        sum += atomic_load(&local->ranks[r].leaves);
    return sum;
}

uint64_t zr_local_restart_ns(const struct zr_local_world *local)
{
    uint64_t lost_ns = local ? atomic_load(&local->lost_ns) : 0;
    return lost_ns ? zr_os_now_ns() - lost_ns : 0;
}

void zr_local_set_restart_point(struct zr_local_world *local, uint64_t point)
{
    if (local)
        atomic_store(&local->restart_point, point);
}

uint64_t zr_local_restart_point(const struct zr_local_world *local)
{
    return local ? atomic_load(&local->restart_point) : 0;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

enum zr_request_kind zr_local_own_request(struct zr_local_world *local)
{
    if (!local)
        return ZR_REQUEST_NONE;
    take_held_signals();
    if (atomic_load(&local->ends) != 0)
        return ZR_REQUEST_SAVE_AND_END;
    return atomic_exchange(&local->saves, 0) ? ZR_REQUEST_SAVE : ZR_REQUEST_NONE;
}

int zr_local_end_signal(const struct zr_local_world *local)
{
    return local ? (int)atomic_load(&local->ends) : 0;
}

void zr_local_request_followed(struct zr_local_world *local, int signal_number)
{
    if (!local)
        return;
    zr_local_ask_for_end(local, signal_number);
    atomic_store(&local->followed, true);
}
