/* zr_launch.h: the ranks of a run on one machine: forks them, watches them, forwards signals, and reports
 * why a run ended. Communication between ranks is in zero/comm/zr_comm.h; zr_launch() there also handles
 * ranks of other launchers and of MPI. */
#ifndef ZR_LAUNCH_H
#define ZR_LAUNCH_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum ranks of a run; a communicator without peers accepts any number. */
enum { ZR_MAX_WORLD = 256 };

/* State of a run as a rank sees it, in memory shared with the launcher. */
struct zr_local_world;

/* A number of ranks that changes by whole replicas. A rank's number is (o * replicas + replica) * inner + i,
 * for o below `outer` and i below `inner`. */
struct zr_launch_replicas {
    unsigned inner, outer; /* their product: ranks of a replica. 0: the number of ranks does not change */
    unsigned least, most;
    bool by_events; /* SIGTERM to a rank and a loss beyond max_restarts take a replica, zr_launch_join() adds
                     * one; false: the program has a schedule, see zr_local_move() */
};

struct zr_launch_options {
    size_t struct_bytes; /* sizeof the struct, or 0: see "Options" in alloc/zr.h */
    unsigned world;
    /* The rank's program; returns the rank's exit code. */
    int (*rank_main)(struct zr_local_world *local, unsigned rank, void *argument);
    void *argument;
    /* Removes partial files. Called in the launcher after an abnormal end, and in the ranks when the
     * launcher has died; must be async-signal-safe. NULL: none. */
    void (*clean_up)(void *argument);
    uint64_t join_timeout_ns; /* time for ranks of another launcher to find each other; 0, or more than 60
                               * s: 60 s */
    /* Maximum time for the current step to finish and be saved after a signal, as long as ranks make
     * progress. 0: there is no place to save to. */
    uint64_t save_within_ns;
    /* The process ends after the run. The signals of the run then remain blocked, so that a signal that
     * arrives after the run cannot change its exit code. false: the caller's mask is restored. */
    bool ends_process;
    /* Restarts after the death of a rank by a signal: the launcher forks a new process for the rank, and the
     * other ranks keep theirs. 0: the death ends the run. For ranks that are forked here with the local
     * transport, and over TCP, where a lost connection also counts; see zr_local_rejoin(). */
    unsigned max_restarts;
    /* With max_restarts, for ranks that are forked here: a rank restarts by itself. The waits of the others
     * go on, and its successor makes up for its predecessor (zero/comm/posted.h). */
    bool apart;
    /* With `apart`: after the last restart the run continues without a rank other than 0: its last successor
     * ends its part in the run (zr_local_leaves()). false: the run ends. */
    bool leaves;
    /* Of zr_launch() over TCP. Rank 0 accepts the others at HOST:PORT; NULL: the ranks are forked here. The
     * secret of ranks that meet there is a file's that only its owner can read; NULL: ZR_SECRET's of the
     * environment. */
    const char *rendezvous, *secret_file;
    unsigned tcp_streams;       /* connections to each other rank for large messages, at most 16; 0: 2 */
    uint64_t heartbeat_ns;      /* a rank that is silent for five times this is lost; 0: 1 s */
    uint64_t rejoin_timeout_ns; /* with max_restarts: time for all ranks to meet again; 0: over TCP 60 s, else
                                 * join_timeout_ns */
    /* The ranks are threads of one process, which is forked here; only with the local transport, without
     * max_restarts. Their stacks have 8 MiB. A rank calls zr_local_fail() and zr_local_part() at its end. */
    bool threads;
    /* Only for ranks that are forked here, with the local transport, and by_events over TCP with a
     * rendezvous, where replicas only leave; see zr_local_rejoin_as(). */
    struct zr_launch_replicas replicas;
};

/* Forks the ranks, forwards signals, and waits for all ranks. Call it with a single thread, before the
 * process creates a backend. Returns the exit code of the run: 0; the code of the first failing rank; 128
 * + n if signal n killed a rank or ended the run; 2: invalid options; 4: the system lacks resources for
 * the launch.
 *
 * A rank that dies or fails ends the others within a second, and the launcher prints the reason on stderr.
 * Ranks exit if the launcher dies. SIGTERM, SIGHUP and SIGINT become requests (zr_local_request()). The
 * ranks are killed after a second signal, after SIGQUIT, or 1.5 s after the request unless a save is in
 * progress. Within save_within_ns this deadline moves while ranks make progress: a rank may be silent for
 * 5 s, or for three times the longest gap between two calls on a communicator in the previous step. Two
 * signals within 0.1 s count as one, since timeout(1) signals the process and its group. SIGUSR1 is
 * forwarded. SIGTERM or SIGUSR1 sent to the pid of a rank counts as sent to the run; SIGTERM not with
 * replicas.by_events. */
ZR_API int zr_local_launch(const struct zr_launch_options *options);

/* Restarts, with max_restarts. If a signal kills a rank, every wait of the other ranks fails with
 * ZR_ERR_PEER. The other ranks destroy their communicators and call zr_local_rejoin(), which returns ZR_OK
 * after all surviving ranks have called it and the launcher has forked the missing ranks: all ranks then
 * create a communicator of all ranks and continue from what they have saved. ZR_ERR_PEER: the run ends; also
 * without restarts left. The run also ends if a rank does not call it within join_timeout_ns (0: 600 s). One
 * thread of the rank may call it.
 *
 * Over TCP, it closes this rank's connections and makes them again, within rejoin_timeout_ns. Ranks of other
 * launchers wait for each other there, also after a link was cut. */
ZR_API zr_result zr_local_rejoin(struct zr_local_world *local, unsigned rank);
/* Changes of the number of replicas, with options.replicas. All ranks end a step, write what the next world
 * needs to memory that the launcher has, agree that it is complete, call zr_local_move(), destroy their
 * communicators and call zr_local_rejoin_as(). Ranks that remain keep their processes and may get other
 * numbers. A rank that is lost on the way has a successor, as after zr_local_rejoin(), in the old world or in
 * the next one.
 *
 * Whether events want a change; ranks may see it at different times, and agree on it with a message of their
 * own. */
ZR_API bool zr_local_wants_resize(const struct zr_local_world *local);
/* The memory is complete. `replicas`: of the next world by a schedule; 0: what events want. */
ZR_API void zr_local_move(struct zr_local_world *local, unsigned replicas);
/* Whether the memory is complete / declares that it is not needed any more. */
ZR_API bool zr_local_is_moved(const struct zr_local_world *local);
ZR_API void zr_local_end_move(struct zr_local_world *local);
/* zr_local_rejoin() with or without a change: *rank becomes the number in the next world, or ZR_LOCAL_LEAVES,
 * after which rank_main() returns 0. */
#define ZR_LOCAL_LEAVES UINT32_MAX
ZR_API zr_result zr_local_rejoin_as(struct zr_local_world *local, unsigned *rank);
/* The number of ranks / of changes before this process, or this process's last zr_local_rejoin_as(). */
ZR_API unsigned zr_local_world(const struct zr_local_world *local);
ZR_API unsigned zr_local_sizes(const struct zr_local_world *local);
/* Descriptors of files in memory that outlive the ranks, the same numbers in all of them; -1: none. */
enum { ZR_LAUNCH_MEMORIES = 4 };
ZR_API int zr_local_memory(unsigned which);
/* Asks the run of this launcher, of the same user, for one replica more; *replicas: how many there are then.
 * ZR_ERR_INVALID: the pid is not that of a launcher that adds replicas, or it refuses. */
ZR_API zr_result zr_launch_join(int launcher, unsigned *replicas);

/* After ZR_ERR_PEER: whether a rank was lost and zr_local_rejoin() is expected. Over TCP it waits for up to
 * ten heartbeats until this rank has seen the loss that another rank reports. */
ZR_API bool zr_local_is_restarting(struct zr_local_world *local);
/* Number of restarts before this process, or this process's last zr_local_rejoin(). */
ZR_API unsigned zr_local_restarts(const struct zr_local_world *local);
/* Nanoseconds since the loss that caused the last restart; 0: there was none. */
ZR_API uint64_t zr_local_restart_ns(const struct zr_local_world *local);
/* With zr_launch_options.apart: whether this process is a rank's last one, which makes the others continue
 * without the rank and returns 0 / restarts of all ranks / ranks that have left. */
ZR_API bool zr_local_leaves(const struct zr_local_world *local, unsigned rank);
ZR_API unsigned zr_local_replaced(const struct zr_local_world *local);
ZR_API unsigned zr_local_left(const struct zr_local_world *local);
/* A number of the program that survives restarts, such as the last saved step; 0 at first. */
ZR_API void zr_local_set_restart_point(struct zr_local_world *local, uint64_t point);
ZR_API uint64_t zr_local_restart_point(const struct zr_local_world *local);

/* Whether the ranks are threads of one process. Each has its own last error; `local` NULL: false. */
ZR_API bool zr_local_are_threads(const struct zr_local_world *local);
/* The thread of a rank will end with this exit code, which is not 0: the waits of the other ranks end. Does
 * nothing in a process with one rank, whose launcher sees its end. */
ZR_API void zr_local_fail(struct zr_local_world *local, unsigned rank, int code);
/* Waits until all ranks of the process have called it. A thread calls it once, after its communicators are
 * destroyed and before it frees memory that other threads read. Does nothing in a process with one rank. */
ZR_API void zr_local_part(struct zr_local_world *local);

/* Requests of signals, weakest first. SIGUSR1: save and continue. SIGINT, SIGTERM, SIGHUP: save and end. */
enum zr_request_kind { ZR_REQUEST_NONE = 0, ZR_REQUEST_SAVE, ZR_REQUEST_SAVE_AND_END };

/* The request that this rank has seen; a request to save is reported once. Ranks may see different
 * requests and agree on the strongest, in a message of their own or with zr_local_request() in zr_comm.h.
 * `local` NULL: ZR_REQUEST_NONE. */
ZR_API enum zr_request_kind zr_local_own_request(struct zr_local_world *local);
/* The signal that requested the end, as far as this rank knows; 0: none. */
ZR_API int zr_local_end_signal(const struct zr_local_world *local);
/* Records that this rank ends because of that signal (of this or another rank) after saving: rank_main()
 * then returns 0, and the run's exit code is 128 + the signal. */
ZR_API void zr_local_request_followed(struct zr_local_world *local, int signal_number);

/* Marks a save or another step that must not be interrupted; the deadline waits for it. */
ZR_API void zr_local_busy(struct zr_local_world *local, unsigned rank, bool busy);

/* Sets the rank's activity for the message printed if it dies, such as "step 17"; cut to 47 bytes. */
ZR_API void zr_local_set_status(struct zr_local_world *local, unsigned rank, const char *text);

/* Whether the run ends because its ranks are out of step: a ZR_ERR_PEER that the launcher does not print. */
ZR_API bool zr_local_is_out_of_step(const struct zr_local_world *local);

/* True for the first rank that passes this message, and for every other message. Lets one rank print what
 * all ranks find; it then calls zr_local_message_logged(). The other ranks wait here for that call for up
 * to ten seconds, since a rank that exits with a failure may get slower ranks killed; afterwards they may
 * print the message themselves. */
ZR_API bool zr_local_first_message(struct zr_local_world *local, const char *words);
ZR_API void zr_local_message_logged(struct zr_local_world *local);

#ifdef __cplusplus
}
#endif

#endif
