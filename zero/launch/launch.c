/* launch.c: forks the ranks of a run, or the one rank that was started here (join.c), watches them, and
 * ends all of them. Uses the control block (control.c); rank.c has the rank's side.
 *
 * The launcher sleeps until a signal arrives, a rank exits, or a deadline passes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/option.h"
#include "alloc/backend/host_common.h"
#include "alloc/keep/holder.h"
#include "zero/launch/control.h"
#include "zero/launch/replicas.h"

#define MS_NS          1000000ull
#define LATE_NS        (10 * MS_NS)     /* a launcher that wakes later than this was starved of CPU */
#define TICK_NS        (100 * MS_NS)    /* maximum sleep: requests may also arrive through a rank */
#define GRACE_NS       (300 * MS_NS)    /* time from ending the run to killing its ranks */
#define DEADLINE_NS    (1500 * MS_NS)   /* time from a request to the end of the run */
#define SAVED_NS       (500 * MS_NS)    /* time from the end of a save to the end of the run */
#define REJOIN_NS      (600000 * MS_NS) /* default time for surviving ranks to rejoin */
#define SILENCE_FACTOR 3 /* tolerated silence, in multiples of the longest silence in earlier steps */
#define SILENCE_MIN_NS (5000 * MS_NS) /* minimum tolerated silence, for a busy machine */
/* Two signals within this time count as one: timeout(1) and shells signal the process and its group.
 * Longer than a sleep, since the second signal may have arrived at any point of one. */
#define SAME_REQUEST_NS (TICK_NS + 50 * MS_NS)

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4, EXIT_SIGNAL = 128 };

struct launcher {
    const struct zr_launch_options *options;
    struct zr_local_part *part;
    struct zr_local_world *local; /* part->control.local */
    unsigned alive;               /* forked ranks that have not been reaped */
    bool process;                 /* ranks are threads, and their process has not been reaped */
    /* Copies, because the launcher of rank 0 may have given the control block back: */
    unsigned world;
    pid_t pids[ZR_MAX_WORLD];
    bool running[ZR_MAX_WORLD];
    bool ended[ZR_MAX_WORLD]; /* with `apart`: it has been reaped and is not replaced */

    struct zr_kept_holder holder; /* of the ranks' kept memory */
    struct zr_replicas replicas;
    unsigned replaced, stalled;    /* restarts of max_restarts / beyond them since a step has ended */
    bool lost;                     /* a rank was lost since the last change of size */
    pid_t stand_ins[ZR_MAX_WORLD]; /* launchers for ranks of other hosts, see struct zr_local_part */
    unsigned stand_ins_count;
    sigset_t signals, mask_before;
    struct sigaction child_before;

    int code;    /* exit code of the first rank that failed */
    int request; /* the signal that requested the end; 0: none */
    uint64_t asked_ns, deadline_ns;
    bool reported; /* printed: the current step is finished first */

    /* Progress of the ranks. */
    uint32_t heartbeats, statuses;      /* sums over all ranks / of the first rank, at the last check */
    uint64_t heartbeat_ns;              /* time of their last advance, or of a save that excused the ranks */
    uint64_t silent_ns, silent_last_ns; /* longest gap between two heartbeats since the last status, and
                                         * before it; the latter is halved with every status */
    uint64_t now_ns;                    /* time of this iteration, which reads the clock once */
    uint64_t wake_ns;                   /* time at which this iteration was due */
    uint64_t late_ns;                   /* delay of this iteration; 0 if small */
    bool spared;                        /* the extra tick after a stall has been granted */

    bool ending, killed;                 /* the run is being ended / SIGKILL has been sent */
    bool speaks;                         /* this launcher ended the run, so its message counts */
    uint64_t kill_ns;                    /* time of SIGKILL; valid if ending */
    unsigned restarts;                   /* begun so far, with changes of size */
    bool restarting;                     /* the ranks that run are to rejoin */
    uint64_t rejoin_ns;                  /* time at which ranks that have not rejoined are killed */
    char loss[ZR_LOCAL_REASON_BYTES];    /* that a rank has asked to restart for; "": no rank has */
    bool forced;                         /* a request, not a failure, ended the run */
    char failure[ZR_LOCAL_REASON_BYTES]; /* message about a failed rank, printed at the end unless all
                                          * ranks failed alike */
    unsigned same_code;                  /* ranks that exited with `code` */
};

/* Writes a whole line at once, so that lines of several processes do not mix. */
void zr_local_log(const char *format, ...)
{
    char line[512];
    va_list list;
    int used = snprintf(line, sizeof(line), "%s: ", program_invocation_short_name);
    va_start(list, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, list);
    va_end(list);
    size_t bytes = strlen(line);
    line[bytes++] = '\n';
    /* A failed write cannot be reported anywhere else. */
    zr_write_all(STDERR_FILENO, ZR_PRESENT_POSITION, line, bytes);
}

/* ---- The end of a run ---------------------------------------------------------------------------------- */

/* Ends every wait of the ranks with `why` and schedules SIGKILL. */
static void end_ranks(struct launcher *launcher, zr_result why, const char *reason)
{
    if (launcher->ending)
        return;
    launcher->ending = true;
    launcher->kill_ns = launcher->now_ns + GRACE_NS;
    launcher->speaks =
        zr_local_end(launcher->local,
                     &(struct zr_local_end){ZR_LOCAL_BY_LAUNCHER, launcher->part->first, why, reason}) ||
        launcher->restarting; /* the waits may have ended already */
    launcher->restarting = false;
    atomic_store(&launcher->local->restarting, false);
    atomic_store(&launcher->local->resizing, false);
    zr_word_wake_all(&launcher->local->restarts);
}

static void end_by_request(struct launcher *launcher, const char *why)
{
    char reason[ZR_LOCAL_REASON_BYTES];
    if (launcher->ending)
        return;
    const char *name = sigabbrev_np(launcher->request);
    snprintf(reason, sizeof(reason), "SIG%s: %s", name ? name : "?", why);
    zr_local_log("%s; the run is cut short%s", reason,
                 launcher->options->save_within_ns == 0 ? ", and nothing was saved" : "");
    launcher->forced = true;
    end_ranks(launcher, ZR_ERR_INTERRUPTED, reason);
}

static void kill_ranks(struct launcher *launcher)
{
    for (unsigned r = 0; r < launcher->world; r++)
        if (launcher->running[r])
            kill(launcher->pids[r], SIGKILL);
    for (unsigned i = 0; i < launcher->replicas.left_count; i++)
        kill(launcher->replicas.left[i], SIGKILL);
    for (unsigned i = 0; i < launcher->stand_ins_count; i++)
        kill(launcher->stand_ins[i], SIGKILL);
    launcher->killed = true;
}

/* ---- Ranks that end ------------------------------------------------------------------------------------ */

static void describe_place(const struct zr_local_rank *rank, char *out, size_t room_bytes)
{
    char status[ZR_LOCAL_STATUS_BYTES];
    zr_local_read_status(rank, status);
    snprintf(out, room_bytes, "%s%s", status[0] ? " at " : "", status);
}

static uint64_t rejoin_limit_ns(const struct zr_launch_options *options)
{
    return options->rejoin_timeout_ns ? options->rejoin_timeout_ns
           : options->join_timeout_ns ? options->join_timeout_ns
                                      : REJOIN_NS;
}

static void await_rejoin(struct launcher *launcher)
{
    if (!launcher->restarting) /* other launchers count too */
        launcher->restarts = atomic_load(&launcher->local->restarts) + 1;
    launcher->restarting = true;
    /* A launcher's only rank waits for those of other launchers, and no rank of this one for it. */
    launcher->rejoin_ns =
        launcher->now_ns + (launcher->local->apart ? REJOIN_NS : rejoin_limit_ns(launcher->options));
}

/* Whether a rank may have a successor beyond max_restarts: with replicas, as long as steps end. */
static bool may_stay(struct launcher *launcher)
{
    /* The first status is that of the step that follows the last restart. */
    if (atomic_load(&launcher->local->ranks[launcher->part->first].statuses) > 1)
        launcher->stalled = 0;
    return launcher->options->replicas.by_events && launcher->stalled++ < launcher->world;
}

/* Begins a restart, unless none is left. A rank that dies during a restart belongs to it. `rank` was killed;
 * ZR_LOCAL_ALL: ranks of other launchers are waited for, see restart(). */
static bool begin_restart(struct launcher *launcher, unsigned rank, const char *reason)
{
    const struct zr_launch_options *options = launcher->options;
    if (!launcher->restarting && options->replicas.most == 0)
        launcher->replaced = atomic_load(&launcher->local->restarts);
    bool replaces = launcher->replaced < options->max_restarts;
    bool rejoins = launcher->restarting || atomic_load(&launcher->local->resizing);
    if (launcher->ending || (!rejoins && !replaces && !may_stay(launcher)))
        return false;
    launcher->loss[0] = '\0';
    if (rank == ZR_LOCAL_ALL) {
        launcher->replaced += !launcher->restarting;
        snprintf(launcher->loss, sizeof launcher->loss, "%s", reason);
    } else if (atomic_load(&launcher->local->resizing)) { /* its part of the state has been handed over */
        zr_local_log("%s; a new process takes its number", reason);
    } else if (replaces || !options->replicas.by_events) {
        launcher->replaced += !launcher->restarting;
        zr_local_log("%s; restart %u of %u replaces it", reason, launcher->replaced, options->max_restarts);
    } else {
        bool leaves = zr_replicas_lose(&launcher->replicas, rank);
        zr_local_log("%s; %s", reason,
                     leaves ? "its replica leaves, once a successor has taken its place"
                            : "a successor replaces it, because its replica has to remain");
    }
    await_rejoin(launcher);
    launcher->lost = true;
    atomic_store(&launcher->local->lost_ns, launcher->now_ns);
    atomic_store(&launcher->local->restarting, true);
    zr_local_end(launcher->local,
                 &(struct zr_local_end){ZR_LOCAL_BY_LAUNCHER, launcher->part->first, ZR_ERR_PEER, reason});
    return true;
}

/* With `apart`: the rank gets a successor, and the others do not notice. watch() forks it. */
static bool replace_alone(struct launcher *launcher, unsigned rank, const char *reason)
{
    const struct zr_launch_options *options = launcher->options;
    struct zr_local_rank *dead = &launcher->local->ranks[rank];
    if (!options->apart || launcher->ending || atomic_load(&dead->leaves))
        return false;
    if (launcher->replaced < options->max_restarts) {
        launcher->replaced++;
        zr_local_log("%s; restart %u of %u replaces it", reason, launcher->replaced, options->max_restarts);
    } else if (options->leaves && rank > 0) {
        atomic_store(&dead->leaves, true);
        zr_local_log("%s; no restart is left, and the run continues without it", reason);
    } else {
        return false;
    }
    atomic_fetch_add(&dead->replaced, 1);
    atomic_store(&dead->busy, false); /* its successor may not repeat the save */
    atomic_store(&launcher->local->lost_ns, launcher->now_ns);
    launcher->ended[rank] = false;
    return true;
}

static void rank_was_killed(struct launcher *launcher, unsigned rank, int signal_number)
{
    struct zr_local_rank *dead = &launcher->local->ranks[rank];
    char place[ZR_LOCAL_STATUS_BYTES + 8], reason[ZR_LOCAL_REASON_BYTES], who[32];
    const char *name = sigdescr_np(signal_number);
    const char *hint = signal_number == SIGKILL  ? " (possibly by the system, out of memory)"
                       : signal_number == SIGBUS ? " (the system ran out of memory for a shared granule)"
                                                 : "";
    describe_place(dead, place, sizeof(place));
    snprintf(who, sizeof(who), "rank %u", rank);
    if (launcher->local->threads && atomic_load(&launcher->local->faulting) == 0)
        snprintf(who, sizeof(who), "the process of all ranks");
    snprintf(reason, sizeof(reason), "%s (pid %d) was killed by signal %d (%s)%s", who,
             (int)atomic_load(&dead->pid), signal_number, name ? name : "unknown", place);
    if (launcher->options->apart ? replace_alone(launcher, rank, reason)
                                 : begin_restart(launcher, rank, reason))
        return;
    zr_local_log("%s; the run ends%s", reason, hint);
    launcher->code = EXIT_SIGNAL + signal_number;
    end_ranks(launcher, ZR_ERR_PEER, reason);
}

static void rank_failed(struct launcher *launcher, unsigned rank, int code)
{
    struct zr_local_rank *failed = &launcher->local->ranks[rank];
    char place[ZR_LOCAL_STATUS_BYTES + 8];
    describe_place(failed, place, sizeof(place));
    snprintf(launcher->failure, sizeof(launcher->failure), "rank %u (pid %d) ended with exit code %d%s", rank,
             (int)atomic_load(&failed->pid), code, place);
    launcher->code = code;
    launcher->same_code = 0;
    end_ranks(launcher, ZR_ERR_PEER, launcher->failure);
}

/* Whether an exit code replaces the recorded one. The first failure counts, but a more specific code replaces
 * exit code 1, because a rank that lost a peer may exit before that peer. */
static bool is_more_specific(const struct launcher *launcher, int code)
{
    return code != 0 && (launcher->code == 0 || (launcher->code == EXIT_FAILED && code > EXIT_FAILED));
}

static void rank_ended(struct launcher *launcher, unsigned rank, int status)
{
    launcher->running[rank] = false;
    launcher->ended[rank] = launcher->options->apart;
    launcher->alive--;
    if (WIFSIGNALED(status) && !launcher->killed && launcher->code == 0 && !launcher->forced)
        rank_was_killed(launcher, rank, WTERMSIG(status));
    else if (WIFEXITED(status) && is_more_specific(launcher, WEXITSTATUS(status)) && !launcher->forced)
        rank_failed(launcher, rank, WEXITSTATUS(status));
    launcher->same_code += WIFEXITED(status) && WEXITSTATUS(status) == launcher->code;
    if (!launcher->options->apart || launcher->ended[rank])
        atomic_store(&launcher->local->ranks[rank].ended, true); /* set after abort, which has the reason */
    zr_local_wake(launcher->local);
}

/* Threads tell their exit codes. The death of their process ends all of them, first the thread at fault. */
static void reap_threads(struct launcher *launcher)
{
    int status;
    const unsigned first = launcher->part->first, end = first + launcher->part->count;
    for (unsigned r = first; r < end; r++) {
        const uint32_t told = atomic_load(&launcher->local->ranks[r].code);
        const int code = (int)(told & ZR_LOCAL_CODE_MASK);
        if (launcher->running[r] && told & ZR_LOCAL_HAS_ENDED)
            rank_ended(launcher, r, W_EXITCODE(code, 0));
        else if (launcher->running[r] && is_more_specific(launcher, code) && !launcher->forced)
            rank_failed(launcher, r, code);
    }
    if (!launcher->process || waitpid(launcher->pids[first], &status, WNOHANG) <= 0)
        return;
    const uint32_t faulting = atomic_load(&launcher->local->faulting);
    launcher->process = false;
    if (faulting > 0 && launcher->running[faulting - 1])
        rank_ended(launcher, faulting - 1, status);
    for (unsigned r = first; r < end; r++)
        if (launcher->running[r])
            rank_ended(launcher, r, status);
}

/* Takes the processes that have ended from a list. */
static void reap_list(struct launcher *launcher, pid_t *pids, unsigned *count)
{
    int status;
    for (unsigned i = 0; i < *count; i++)
        if (waitpid(pids[i], &status, WNOHANG) > 0) {
            pids[i--] = pids[--*count];
            launcher->alive--;
        }
}

static void reap(struct launcher *launcher)
{
    int status;
    if (launcher->options->threads) {
        reap_threads(launcher);
        return;
    }
    for (unsigned r = 0; r < launcher->world; r++)
        if (launcher->running[r] && waitpid(launcher->pids[r], &status, WNOHANG) > 0)
            rank_ended(launcher, r, status);
    reap_list(launcher, launcher->replicas.left, &launcher->replicas.left_count);
    reap_list(launcher, launcher->stand_ins, &launcher->stand_ins_count);
}

/* ---- Requests and deadlines ---------------------------------------------------------------------------- */

static void request_end(struct launcher *launcher, int signal_number)
{
    if (launcher->request != 0) {
        if (launcher->now_ns - launcher->late_ns - launcher->asked_ns > SAME_REQUEST_NS)
            end_by_request(launcher, "second request to end");
        return;
    }
    launcher->request = signal_number;
    launcher->asked_ns = launcher->now_ns;
    launcher->deadline_ns = launcher->now_ns + DEADLINE_NS;
    zr_local_ask_for_end(launcher->local, signal_number);
}

static void take_signal(struct launcher *launcher, int signal_number)
{
    switch (signal_number) {
    case SIGUSR1:
        atomic_store(&launcher->local->saves, 1);
        break;
    case SIGQUIT:
        launcher->request = signal_number;
        end_by_request(launcher, "request to end immediately");
        break;
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
        request_end(launcher, signal_number);
        break;
    default: /* SIGCHLD, SIGIO: every iteration calls reap(). SIGPIPE: a closed stderr does not end the run.
              */
        break;
    }
}

/* Whether all ranks of the run have ended, including those of other launchers. */
static bool all_ended(const struct launcher *launcher)
{
    for (unsigned r = 0; r < launcher->world; r++)
        if (!atomic_load(&launcher->local->ranks[r].ended))
            return false;
    return true;
}

/* Whether a deadline applies: a request has a deadline until all ranks have exited. A run that has finished
 * is not cut short. */
static bool has_deadline(const struct launcher *launcher)
{
    return launcher->request != 0 && !launcher->ending && !all_ended(launcher);
}

static bool any_busy(const struct launcher *launcher)
{
    const struct zr_local_rank *ranks = launcher->local->ranks;
    for (unsigned r = 0; r < launcher->world; r++)
        if (!atomic_load(&ranks[r].ended) && atomic_load(&ranks[r].busy))
            return true;
    return false;
}

/* Tracks the longest silence of ranks that make progress. Ranks that save are excused. */
static void note_progress(struct launcher *launcher)
{
    const struct zr_local_world *local = launcher->local;
    uint32_t heartbeats = 0, statuses = atomic_load_explicit(&local->ranks[0].statuses, memory_order_relaxed);
    bool excused = any_busy(launcher);
    for (unsigned r = 0; r < launcher->world; r++)
        heartbeats += atomic_load_explicit(&local->ranks[r].heartbeats, memory_order_relaxed);
    if (heartbeats == launcher->heartbeats && !excused)
        return;
    uint64_t silent_ns = launcher->now_ns - launcher->heartbeat_ns;
    if (!excused && launcher->heartbeats != 0 && silent_ns > launcher->silent_ns)
        launcher->silent_ns = silent_ns;
    if (statuses != launcher->statuses) { /* a new step; halving limits the effect of a single long gap */
        uint64_t half_ns = launcher->silent_last_ns / 2;
        launcher->silent_last_ns = launcher->silent_ns > half_ns ? launcher->silent_ns : half_ns;
        launcher->silent_ns = 0;
    }
    launcher->statuses = statuses;
    launcher->heartbeats = heartbeats;
    launcher->heartbeat_ns = launcher->now_ns;
}

/* Extends the deadline while ranks make progress, so that the step can be saved. */
static void extend_deadline(struct launcher *launcher)
{
    uint64_t within_ns = launcher->options->save_within_ns, max_silence_ns = launcher->silent_ns;
    uint64_t now_ns = launcher->now_ns;
    if (within_ns == 0)
        return;
    if (launcher->silent_last_ns > max_silence_ns)
        max_silence_ns = launcher->silent_last_ns;
    max_silence_ns =
        SILENCE_FACTOR * max_silence_ns > SILENCE_MIN_NS ? SILENCE_FACTOR * max_silence_ns : SILENCE_MIN_NS;
    uint64_t until_ns = launcher->heartbeat_ns + max_silence_ns, latest_ns = launcher->asked_ns + within_ns;
    until_ns = until_ns < latest_ns ? until_ns : latest_ns;
    if (until_ns > launcher->deadline_ns)
        launcher->deadline_ns = until_ns;
    if (launcher->reported || launcher->part->first != 0 || now_ns + GRACE_NS >= launcher->deadline_ns ||
        now_ns + GRACE_NS < launcher->asked_ns + DEADLINE_NS)
        return;
    launcher->reported = true;
    zr_local_log("the current step is finished and saved first; a second signal ends the run at once");
}

static void end_in_time(struct launcher *launcher)
{
    uint64_t within_ns = launcher->options->save_within_ns;
    char why[80];
    if (within_ns > DEADLINE_NS && launcher->deadline_ns >= launcher->asked_ns + within_ns)
        snprintf(why, sizeof(why), "the current step did not finish within %.1f s", (double)within_ns * 1e-9);
    else
        snprintf(why, sizeof(why), "the ranks did not exit in time");
    end_by_request(launcher, why);
}

static void keep_deadlines(struct launcher *launcher)
{
    uint64_t now_ns = launcher->now_ns;
    int asked = zr_local_end_signal(launcher->local);
    if (launcher->request == 0 && asked != 0)
        request_end(launcher, asked); /* a signal reached a rank or another launcher */
    note_progress(launcher);
    if (has_deadline(launcher)) {
        extend_deadline(launcher);
        if (any_busy(launcher) && launcher->deadline_ns < now_ns + SAVED_NS)
            launcher->deadline_ns = now_ns + SAVED_NS;
        if (now_ns + GRACE_NS >= launcher->deadline_ns)
            end_in_time(launcher);
    }
    /* Another launcher of the run may have ended it. */
    if (!launcher->ending && !launcher->restarting && atomic_load(&launcher->local->abort) != 0) {
        launcher->ending = true;
        launcher->kill_ns = now_ns + GRACE_NS;
    }
    if (launcher->ending && !launcher->killed && now_ns >= launcher->kill_ns)
        kill_ranks(launcher);
}

static uint64_t time_to_sleep_ns(const struct launcher *launcher)
{
    uint64_t now_ns = launcher->now_ns, until_ns = now_ns + TICK_NS;
    if (launcher->ending && !launcher->killed && launcher->kill_ns < until_ns)
        until_ns = launcher->kill_ns;
    if (has_deadline(launcher) && launcher->deadline_ns - GRACE_NS < until_ns)
        until_ns = launcher->deadline_ns - GRACE_NS;
    return until_ns > now_ns ? until_ns - now_ns : 0;
}

/* Starts an iteration. If the launcher was starved of CPU, its ranks probably were too, so deadlines and the
 * measured silence exclude the delay. A deadline that passed meanwhile gets one extra tick, once, for what
 * the ranks would have done before it. Because each iteration reads the clock once, a delay anywhere in the
 * previous iteration is detected here. */
static void begin_iteration(struct launcher *launcher)
{
    launcher->now_ns = zr_os_now_ns();
    launcher->late_ns = 0;
    if (launcher->now_ns <= launcher->wake_ns + LATE_NS)
        return;
    uint64_t late_ns = launcher->now_ns - launcher->wake_ns;
    launcher->late_ns = late_ns;
    launcher->heartbeat_ns += late_ns; /* does not exceed now_ns, because no heartbeat was read since */
    if (late_ns > TICK_NS && !launcher->spared && (launcher->request != 0 || launcher->ending)) {
        launcher->spared = true;
        late_ns += TICK_NS;
    }
    launcher->deadline_ns += late_ns;
    launcher->kill_ns += late_ns;
}

/* Whether all ranks have ended and another launcher has not exited by the deadline. */
static bool other_launcher_is_late(const struct launcher *launcher)
{
    return launcher->request != 0 && launcher->alive == 0 && all_ended(launcher) &&
           launcher->now_ns >= launcher->deadline_ns;
}

/* ---- Forking ------------------------------------------------------------------------------------------- */

/* In the child: keeps only its own inbox. */
static void close_other_inboxes(struct zr_local_sockets *sockets, unsigned rank)
{
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        if (r != rank && sockets->inbox[r] >= 0) {
            close(sockets->inbox[r]);
            sockets->inbox[r] = -1;
        }
}

/* In the child: closes the links, so that peers notice the launcher's death. */
static void close_links(const struct zr_local_part *part)
{
    for (unsigned r = 0; part->elsewhere && r < ZR_MAX_WORLD; r++)
        if (part->links[r] >= 0)
            close(part->links[r]);
}

/* Opens the door of the holder of kept memory: a request there raises SIGIO, which watch() takes. */
static zr_result open_door(struct zr_local_part *part)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, part->door) != 0) {
        part->door[0] = part->door[1] = -1;
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left for kept memory: raise `ulimit -n`");
    }
    fcntl(part->door[0], F_SETOWN, getpid());
    fcntl(part->door[0], F_SETFL, O_ASYNC);
    return ZR_OK;
}

static void close_door(struct launcher *launcher)
{
    for (unsigned i = 0; i < 2; i++)
        if (launcher->part->door[i] >= 0)
            close(launcher->part->door[i]);
    zr_kept_holder_fini(&launcher->holder);
}

/* Files for what a change of size hands over; the launcher keeps them. */
static zr_result open_memories(struct zr_local_part *part, const struct zr_launch_options *options)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < ZR_LAUNCH_MEMORIES && options->replicas.inner > 0 && result == ZR_OK; i++)
        result = zr_host_file(&part->memory[i]);
    return result;
}

static void close_memories(struct zr_local_part *part)
{
    for (unsigned i = 0; i < ZR_LAUNCH_MEMORIES; i++)
        if (part->memory[i] >= 0)
            close(part->memory[i]);
}

/* Forks the ranks that do not run. */
static zr_result fork_ranks(struct launcher *launcher)
{
    struct zr_local_part *part = launcher->part;
    const unsigned threads = launcher->options->threads ? part->count : 0;
    pid_t self = getpid(), pid = 0;
    for (unsigned r = part->first; r < part->first + part->count; r++) {
        if (launcher->running[r] || launcher->ended[r])
            continue;
        if (threads == 0 || r == part->first)
            pid = zr_fault(ZR_FAULT_THREAD) ? -1 : fork();
        if (pid == 0) {
            if (launcher->options->replicas.inner == 0) /* else ranks get other numbers */
                close_other_inboxes(&part->sockets, r);
            close_links(part);
            close(part->door[0]);
            zr_replicas_close(&launcher->replicas);
            zr_local_become_rank(&(struct zr_local_birth){.options = launcher->options,
                                                          .local = launcher->local,
                                                          .sockets = &part->sockets,
                                                          .before = &launcher->mask_before,
                                                          .launcher = self,
                                                          .door = part->door[1],
                                                          .memory = part->memory,
                                                          .alone = part->elsewhere != NULL,
                                                          .threads = threads,
                                                          .rank = r});
        }
        if (pid < 0)
            return zr_fail(ZR_ERR_HOST_MEMORY,
                           "cannot fork rank %u: raise `ulimit -u` or the cgroup's pids.max", r);
        atomic_store(&launcher->local->ranks[r].pid, (int32_t)pid);
        launcher->pids[r] = pid;
        launcher->running[r] = true;
        launcher->process = threads > 0;
        launcher->alive++;
    }
    return ZR_OK;
}

/* Forks launchers for the ranks that rank 0 has missed. They end with this process. */
static void stand_in(struct launcher *launcher)
{
    struct zr_local_part *part = launcher->part;
    const pid_t self = getpid();
    for (unsigned r = 0; part->stand_in && !launcher->ending && r < launcher->world; r++) {
        if (!atomic_exchange(&launcher->local->absent[r], false))
            continue;
        zr_local_log("rank %u stays away: this host takes its place until its replica has left", r);
        const pid_t pid = zr_fault(ZR_FAULT_THREAD) ? -1 : fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self)
                _exit(EXIT_FAILED);
            zr_replicas_close(&launcher->replicas);
            close_door(launcher);
            close_memories(part);
            pthread_sigmask(SIG_SETMASK, &launcher->mask_before, NULL);
            _exit(part->stand_in(launcher->local, r));
        }
        if (pid < 0) {
            zr_local_log("cannot fork: raise `ulimit -u` or the cgroup's pids.max");
            continue; /* rank 0 waits for the rank, and then ends the run */
        }
        launcher->stand_ins[launcher->stand_ins_count++] = pid;
        launcher->alive++;
    }
}

/* ---- Restarts ------------------------------------------------------------------------------------------ */

/* Whether all ranks that still run have rejoined. Ranks that are too late are killed, and replaced too. */
static bool have_rejoined(struct launcher *launcher)
{
    struct zr_local_world *local = launcher->local;
    bool late = launcher->now_ns >= launcher->rejoin_ns, all = launcher->replicas.left_count == 0;
    for (unsigned i = 0; late && i < launcher->replicas.left_count; i++)
        kill(launcher->replicas.left[i], SIGKILL);
    for (unsigned r = 0; r < launcher->world; r++) {
        if (!launcher->running[r] || atomic_load(&local->ranks[r].rejoins) == launcher->restarts)
            continue;
        all = false;
        if (late)
            kill(launcher->pids[r], SIGKILL);
    }
    return all;
}

/* Begins a restart for a rank that has lost another one, before this launcher knows of the death, or without
 * one: the other rank has another launcher, or the connection is cut. */
static void take_losses(struct launcher *launcher)
{
    struct zr_local_world *local = launcher->local;
    char loss[ZR_LOCAL_REASON_BYTES];
    for (unsigned r = 0; r < launcher->world && !launcher->restarting && !launcher->ending; r++) {
        if (!launcher->running[r] || atomic_load(&local->ranks[r].rejoins) <= atomic_load(&local->restarts) ||
            atomic_load(&local->resizing)) /* set before `rejoins` */
            continue;
        snprintf(loss, sizeof loss, "%s", local->ranks[r].message[ZR_LOCAL_BY_RANK]);
        if (!begin_restart(launcher, ZR_LOCAL_ALL, loss))
            end_ranks(launcher, ZR_ERR_PEER, loss);
    }
}

/* Begins a change of the number of replicas when the first rank waits for it. */
static void begin_resize(struct launcher *launcher)
{
    if (launcher->restarting || launcher->ending || !atomic_load(&launcher->local->resizing))
        return;
    await_rejoin(launcher);
    if (!launcher->lost)
        atomic_store(&launcher->local->lost_ns, launcher->now_ns);
}

static void resize(struct launcher *launcher)
{
    struct zr_local_part *part = launcher->part;
    const unsigned own = part->first;
    zr_replicas_change(&launcher->replicas, launcher->running);
    launcher->world = launcher->local->world;
    if (launcher->local->apart) {
        part->count = launcher->local->next[own] != ZR_LOCAL_LEAVES;
        part->first = part->count > 0 ? launcher->local->next[own] : 0;
    } else {
        part->count = launcher->world;
    }
    for (unsigned r = 0; r < launcher->world; r++)
        launcher->pids[r] = (pid_t)atomic_load(&launcher->local->ranks[r].pid);
    launcher->lost = false;
}

/* Forks the missing ranks and lets the others continue, once no rank uses the control block. */
static void restart(struct launcher *launcher)
{
    struct zr_local_world *local = launcher->local;
    char of[24] = "";
    if (!have_rejoined(launcher))
        return;
    if (launcher->replaced <= launcher->options->max_restarts)
        snprintf(of, sizeof of, " of %u", launcher->options->max_restarts);
    if (launcher->loss[0])
        zr_local_log("%s; restart %u%s waits up to %.4g s for it", launcher->loss, launcher->replaced, of,
                     (double)rejoin_limit_ns(launcher->options) * 1e-9);
    launcher->loss[0] = '\0';
    if (atomic_load(&local->resizing))
        resize(launcher);
    zr_local_control_restart(local);
    zr_local_sockets_drain(&launcher->part->sockets);
    launcher->heartbeats = launcher->statuses = 0;
    launcher->restarting = false;
    atomic_store(&local->restarts, launcher->restarts);
    atomic_store(&local->restarting, false);
    atomic_store(&local->resizing, false);
    zr_result result = fork_ranks(launcher);
    zr_word_wake_all(&local->restarts);
    if (result == ZR_OK)
        return;
    zr_local_log("%s", zr_last_error());
    launcher->code = EXIT_MEMORY;
    end_ranks(launcher, ZR_ERR_PEER, zr_last_error());
}

/* With `apart`: forks the successors of ranks that were killed. */
static void replace_killed(struct launcher *launcher)
{
    if (!launcher->options->apart || launcher->ending || fork_ranks(launcher) == ZR_OK)
        return;
    zr_local_log("%s", zr_last_error());
    launcher->code = EXIT_MEMORY;
    end_ranks(launcher, ZR_ERR_PEER, zr_last_error());
}

/* ---- The watch ----------------------------------------------------------------------------------------- */

static void watch(struct launcher *launcher)
{
    struct zr_local_part *part = launcher->part;
    while (launcher->alive > 0 || launcher->process || launcher->restarting ||
           (part->elsewhere && !part->elsewhere(part) && !other_launcher_is_late(launcher))) {
        uint64_t ns = time_to_sleep_ns(launcher);
        launcher->wake_ns = launcher->now_ns + ns;
        struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
        int signal_number = sigtimedwait(&launcher->signals, NULL, &limit);
        begin_iteration(launcher);
        if (signal_number > 0)
            take_signal(launcher, signal_number);
        reap(launcher);
        replace_killed(launcher);
        zr_kept_holder_serve(&launcher->holder, part->door[0]);
        if (part->elsewhere)
            part->elsewhere(part);
        zr_replicas_serve(&launcher->replicas, launcher->request != 0 || launcher->ending);
        begin_resize(launcher);
        take_losses(launcher);
        stand_in(launcher);
        if (launcher->restarting)
            restart(launcher);
        keep_deadlines(launcher);
    }
}

/* Blocks signals until watch() takes them. Blocking also keeps a SIGINT that a shell's `&` has set to
 * ignored. */
static void hold_signals(struct launcher *launcher)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGQUIT, SIGPIPE, SIGIO};
    struct sigaction hangup, standard = {.sa_handler = SIG_DFL};
    sigemptyset(&launcher->signals);
    for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
        sigaddset(&launcher->signals, taken[i]);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&launcher->signals, SIGHUP); /* not under nohup(1) */
    pthread_sigmask(SIG_BLOCK, &launcher->signals, &launcher->mask_before);
    sigaction(SIGCHLD, &standard, &launcher->child_before); /* ignored children would leave no exit status */
}

static void release_signals(struct launcher *launcher)
{
    struct timespec at_once = {0};
    while (sigtimedwait(&launcher->signals, NULL, &at_once) > 0)
        ; /* discard signals that arrived for the run */
    sigaction(SIGCHLD, &launcher->child_before, NULL);
    if (!launcher->options->ends_process)
        pthread_sigmask(SIG_SETMASK, &launcher->mask_before, NULL);
}

static int exit_code(const struct launcher *launcher)
{
    if (launcher->forced)
        return EXIT_SIGNAL + launcher->request;
    if (launcher->code <= EXIT_FAILED && atomic_load(&launcher->local->followed))
        return EXIT_SIGNAL + zr_local_end_signal(launcher->local);
    /* A run that another launcher ended has failed here too. */
    return launcher->code == 0 && launcher->ending ? EXIT_FAILED : launcher->code;
}

/* Prints a rank's failing exit, unless all ranks exited alike or a more specific message was printed. */
static void print_failure(const struct launcher *launcher)
{
    const struct zr_local_part *part = launcher->part;
    if (launcher->failure[0] && launcher->speaks && !atomic_load(&launcher->local->said) &&
        (launcher->same_code < part->count || part->count < launcher->world))
        zr_local_log("%s; the run ends", launcher->failure);
}

int zr_local_watch_over(const struct zr_launch_options *options, struct zr_local_part *part)
{
    struct launcher launcher = {
        .options = options, .part = part, .local = part->control.local, .world = options->world};
    launcher.now_ns = launcher.wake_ns = zr_os_now_ns();
    zr_kept_holder_init(&launcher.holder);
    hold_signals(&launcher);
    zr_replicas_init(&launcher.replicas, &options->replicas, launcher.local);
    for (unsigned i = 0; i < ZR_LAUNCH_MEMORIES; i++)
        part->memory[i] = -1;
    zr_result result = open_door(part);
    if (result == ZR_OK)
        result = open_memories(part, options);
    if (result == ZR_OK && options->replicas.by_events && !launcher.local->apart)
        result = zr_replicas_open(&launcher.replicas);
    if (result == ZR_OK)
        result = fork_ranks(&launcher);
    if (options->max_restarts == 0 && options->replicas.inner == 0)
        zr_local_sockets_close(&part->sockets);
    if (result != ZR_OK)
        end_ranks(&launcher, ZR_ERR_PEER, zr_last_error());
    watch(&launcher);
    zr_replicas_close(&launcher.replicas);
    close_door(&launcher);
    close_memories(part);
    release_signals(&launcher);
    if (result != ZR_OK) {
        zr_local_log("%s", zr_last_error());
        launcher.code = EXIT_MEMORY;
    } else {
        print_failure(&launcher);
    }
    return exit_code(&launcher);
}

/* The most ranks that the run may have. */
static unsigned most_ranks(const struct zr_launch_options *options)
{
    unsigned most = options->replicas.most * options->replicas.inner * options->replicas.outer;
    return most > options->world ? most : options->world;
}

int zr_local_launch(const struct zr_launch_options *options)
{
    struct zr_local_part part = {.first = 0};
    struct zr_launch_options own;
    int code;
    if (ZR_STRUCT_COPY(zr_launch_options, save_within_ns, &own, options) != ZR_OK) {
        zr_local_log("%s", zr_last_error());
        return EXIT_USAGE;
    }
    options = &own;
    if (!options->rank_main) {
        zr_local_log("zr_local_launch() requires options with rank_main");
        return EXIT_USAGE;
    }
    if (options->world == 0 || most_ranks(options) > ZR_MAX_WORLD) {
        zr_local_log("world must be 1 to %d on one machine", ZR_MAX_WORLD);
        return EXIT_USAGE;
    }
    if (options->threads && options->max_restarts > 0) {
        zr_local_log("max_restarts requires ranks that are processes");
        return EXIT_USAGE;
    }
    part.count = options->world;
    zr_local_sockets_clear(&part.sockets);
    zr_result result = zr_local_control_make(&part.control, most_ranks(options));
    if (result == ZR_OK)
        part.control.local->threads = options->threads;
    if (result == ZR_OK)
        zr_local_set_world(part.control.local, options->world);
    if (result == ZR_OK && !options->threads)
        result = zr_local_sockets_make(&part.sockets, most_ranks(options));
    if (result == ZR_OK) {
        code = zr_local_watch_over(options, &part);
    } else {
        zr_local_log("%s", zr_last_error());
        code = EXIT_MEMORY;
    }
    if (code != 0 && options->clean_up)
        options->clean_up(options->argument);
    zr_local_sockets_close(&part.sockets);
    zr_local_control_end(&part.control);
    return code;
}
