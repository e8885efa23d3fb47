/* control.h: the control block shared by the launcher and its ranks. Private to zero/.
 *
 * The block is in a small arena whose granules are mapped before the fork, so all processes of the run see
 * it at the same address. Processes sleep on 32-bit words with zr_word_wait(), always with a timeout, so
 * that a lost peer is noticed. */
#ifndef ZR_LAUNCH_CONTROL_H
#define ZR_LAUNCH_CONTROL_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "zero/launch/zr_launch.h"

enum { ZR_LOCAL_STATUS_BYTES = 48, ZR_LOCAL_REASON_BYTES = 256, ZR_LOCAL_PLACES = 64 };
/* Maximum communicators of a rank, groups included / bytes of one piece of a host message. */
enum { ZR_LOCAL_RINGS = 24, ZR_LOCAL_HOST_BYTES = 512 };
#define ZR_LOCAL_POLL_NS 50000000ull /* maximum sleep of a waiting rank */

/* Description of a piece in the ring; distinguishes ranks that are out of step from slow ranks. */
struct zr_local_piece {
    uint64_t kind, bytes;
    bool direct; /* the data is at the places, not in the slot */
};

/* A range of a rank's file of granules. */
struct zr_local_place {
    uint64_t offset_bytes, bytes;
};

/* A piece for a single rank; `bytes` is the size of the whole transfer. */
struct zr_local_parcel {
    uint64_t bytes;
    uint32_t to;
};

/* One rank's part in one communicator, with its own ring and order of operations. Counters count pieces
 * modulo 2^32 and only increase: a new communicator continues with the values of the previous one. */
struct zr_local_ring {
    /* Piece n of the communicator is in slot n % 2. Written by this rank only. */
    _Alignas(64) _Atomic uint32_t posted;   /* pieces that peers may read */
    _Atomic uint32_t posted_sleepers;       /* peers asleep on posted, or about to be */
    struct zr_local_piece pieces[2];        /* contents of the slots; written before posted advances */
    _Alignas(64) _Atomic uint32_t consumed; /* pieces that this rank has read from all peers */
    _Atomic uint32_t consumed_sleepers;

    /* Pieces for one other rank at a time, see local_ring.c. Piece n is in slot n % 2. */
    _Alignas(64) _Atomic uint32_t lent; /* written by this rank only */
    _Atomic uint32_t lent_sleepers;
    struct zr_local_parcel parcels[2];   /* contents of the slots; written before lent advances */
    _Alignas(64) _Atomic uint32_t taken; /* pieces read by their receiver; written by that rank */
    _Atomic uint32_t taken_sleepers;

    /* Memory that peers may read directly: the places in order, without the first lead_bytes. Written
     * before posted advances, unchanged until all peers have read it. With in_window the memory begins
     * lead_bytes after the start of the rank's window (struct zr_comm_window), and there are no places. */
    _Alignas(64) uint64_t lead_bytes;
    bool in_window;
    uint32_t places_count;
    struct zr_local_place places[ZR_LOCAL_PLACES];

    /* Host messages, a second ring with its own slots; see local_host.c. */
    _Alignas(64) _Atomic uint32_t host_posted;
    _Atomic uint32_t host_posted_sleepers;
    uint64_t host_bytes[2]; /* size of the whole message */
    char host[2][ZR_LOCAL_HOST_BYTES];
    _Alignas(64) _Atomic uint32_t host_consumed;
    _Atomic uint32_t host_consumed_sleepers;

    _Atomic bool open; /* in use by a communicator; used by this rank only */

    /* Of ranks that are threads: the slots, and the initial values of the counters, unchanged while open. */
    const char *slots;
    const char *source; /* memory that peers may read directly, in place of the places */
    uint32_t first_posted, first_host_posted;
};

/* Entry of a rank for the other members of a group that it is creating, until all members have read the
 * entry. */
struct zr_local_opening {
    _Alignas(64) _Atomic uint64_t key; /* identifies the group; 0: none. Written last, cleared first */
    _Atomic uint32_t changes;          /* counts changes of key; sleepers wait on it */
    _Atomic uint32_t number;           /* entries of this rank so far; written first */
    uint32_t seen[ZR_MAX_WORLD];  /* number of the last entry read from each rank; used by this rank only */
    _Atomic uint32_t readers;     /* members that have read the entry; written by them */
    uint32_t result;              /* zr_result; there is no ring unless ZR_OK */
    uint32_t ring;                /* index of the ring among the rank's */
    uint32_t posted, host_posted; /* initial values of its counters */
    uint64_t lead_bytes;
    bool passes;           /* its files differ from the parent's, so descriptors are sent separately */
    uint32_t places_count; /* places of the ring in the rank's file of granules */
    struct zr_local_place places[ZR_LOCAL_PLACES];
};

/* Operations on one channel of a communicator. */
struct zr_local_call {
    _Atomic uint64_t begun, ended; /* number of the last operation, from 1; `ended`: once none is queued */
    _Atomic uint64_t ticket;       /* ticket of the operation that has begun; 0: a host message */
    /* Operation n in element n % 2. Kind: enum zr_comm_kind, plus ZR_LOCAL_MEETS if it ends on no rank
     * before all members have begun it. */
    _Atomic uint64_t bytes[2];
    _Atomic uint32_t kind[2];
};
enum { ZR_LOCAL_MEETS = 1u << 8 };
enum zr_local_channel { ZR_LOCAL_DATA, ZR_LOCAL_HOST, ZR_LOCAL_CHANNELS };

/* Record of one communicator of a rank. */
struct zr_local_calls {
    _Alignas(64) _Atomic uint64_t key; /* 0: none. Written last */
    _Atomic uint64_t submitted;        /* number of the last submitted operation */
    struct zr_local_call channels[ZR_LOCAL_CHANNELS];
    uint64_t members[ZR_MAX_WORLD / 64]; /* ranks of the run, one bit each */
    char group[16];
};

/* Operations and waits of a rank, read by ranks that wait for this rank. Written by this rank only;
 * zero/comm/calls.h has the protocol. */
struct zr_local_record {
    struct zr_local_calls calls[ZR_LOCAL_RINGS];
    /* State of the submitting thread: (number of waits << 8) | (1 + 2 * index in calls + channel), or | 0
     * if it does not wait; and the ticket. */
    _Atomic uint64_t waits, ticket;
    _Atomic uint64_t thread;  /* ID of that thread; 0: none yet */
    _Atomic uint64_t several; /* 1: several threads submit, so a wait of one does not block the rank */
};

struct zr_local_rank {
    struct zr_local_ring rings[ZR_LOCAL_RINGS];
    struct zr_local_opening opening;

    /* Creation of a communicator of all ranks: (attempt << 8) | zr_result, see zr_comm_local_create(). */
    _Alignas(64) _Atomic uint32_t verdict;
    _Atomic uint32_t received; /* turns completed in the exchange of rings */
    _Atomic uint32_t received_sleepers;
    _Atomic uint32_t attempts;   /* communicators of all ranks that this rank has begun to create; used by
                                  * this rank only */
    _Atomic uint32_t whole_ring; /* of threads: index of the ring of the communicator of all ranks */
    _Atomic bool whole;          /* this rank has a communicator of all ranks; used by this rank only */
    _Atomic uint32_t heartbeats; /* counts calls on a communicator; written by this rank only */
    _Atomic uint32_t statuses;   /* counts status changes */
    struct zr_local_record record;
    struct zr_local_record answers[2]; /* answers of an MPI rank, for this process only; see liveness.h */

    /* State for the launcher and for messages of peers. */
    _Atomic bool ended;    /* the launcher has reaped the process */
    _Atomic bool busy;     /* a save is in progress */
    _Atomic uint32_t code; /* of a thread: enum zr_local_code | exit code; 0: it runs */
    _Atomic int32_t pid;
    _Atomic uint32_t replaced; /* restarts of this rank by itself */
    _Atomic bool leaves;       /* its successor ends its part in the run */
    _Atomic uint32_t rejoins;  /* the restart that this rank waits for in zr_local_rejoin(). Unless the
                                * launcher has begun it, the rank's message says why */
    /* The current status is status[statuses % 2], so a rank that dies while it writes one leaves the
     * previous one intact. */
    char status[2][ZR_LOCAL_STATUS_BYTES]; /* the last byte is always 0 */
    /* Why the run ends, per enum zr_local_reporter. Written by that process only, and only until abort
     * points here. */
    char message[2][ZR_LOCAL_REASON_BYTES];
};

/* A stand-in leaves before a rank with a notice. */
enum zr_local_leave { ZR_LOCAL_REMAINS = 0, ZR_LOCAL_HAS_NOTICE, ZR_LOCAL_STANDS_IN };

/* A thread that fails tells its exit code before it ends, because it still waits for other threads. */
enum zr_local_code { ZR_LOCAL_CODE_MASK = 255, ZR_LOCAL_FAILS = 256, ZR_LOCAL_HAS_ENDED = 512 };

struct zr_local_world {
    unsigned world;
    bool threads; /* the ranks are threads of one process, which read each other's memory at its addresses */
    _Atomic uint32_t parted;   /* threads that have called zr_local_part() */
    _Atomic uint32_t faulting; /* 1 + rank of the thread that a signal kills; 0: unknown */
    bool spins;                /* the ranks fit the cores, so that a short spin before sleeping saves time */

    /* 0, or the zr_result that ends every wait and the index of the message that says why. It changes
     * once, so either the run continues or all ranks see the same reason. */
    _Atomic uint32_t abort; /* ((2 * rank + reporter) << 8) | zr_result */

    _Atomic uint32_t ends;          /* the first signal that requested the end; 0: none */
    _Atomic bool followed;          /* the ranks end because of this signal */
    _Atomic uint32_t saves;         /* 1: SIGUSR1 arrived; the first rank that reads the 1 resets it */
    _Atomic bool orphaned;          /* a rank has reported that the launcher is gone */
    _Atomic uint64_t first_message; /* hash of the first message of zr_local_first_message(); 0: none yet */
    _Atomic uint32_t said;          /* 1: the first message has been printed */
    _Atomic bool out_of_step;       /* the ranks are out of step, which no launcher reports */

    _Atomic uint32_t posts; /* counts messages that stay in a file, see zero/comm/posted.h */

    /* Restarts after the loss of a rank; only these fields and the requests survive one. */
    _Atomic uint32_t restarts;
    _Atomic bool restarting;        /* `abort` does not end the run; set before abort, reset after
                                     * restarts has advanced */
    _Atomic uint64_t lost_ns;       /* time at which the launcher saw the loss */
    _Atomic uint64_t restart_point; /* see zr_local_set_restart_point() */
    _Atomic uint64_t run;           /* number of a run whose ranks meet at a rendezvous; 0: not known yet */
    _Atomic uint32_t generation;    /* of their connections, see zero/comm/message/tcp/wire.h */

    /* Changes of the number of replicas, see replicas.h; they survive restarts. */
    _Atomic int32_t notices[ZR_MAX_WORLD]; /* pids of ranks that got SIGTERM; 0: free */
    _Atomic bool resize_wanted;            /* by events */
    _Atomic uint32_t
        moved; /* 1 + the replicas that a schedule wants, or 1; 0: no state is in the launcher's memory */
    _Atomic uint32_t moved_before; /* `moved` at the last zr_local_move() */
    _Atomic bool resizing;         /* the ranks rejoin for a change; reset after restarts has advanced */
    _Atomic uint32_t sizes;        /* changes so far */
    uint32_t next[ZR_MAX_WORLD];   /* number of each rank after the change, or ZR_LOCAL_LEAVES; written before
                                    * restarts advances */
    /* Of a launcher whose only rank meets those of other launchers, see zr_local_agree_to_leave(). */
    _Atomic uint32_t hosts;   /* 1 + the ranks of each host when the ranks of this size first met, or 1;
                               * 0: they have not met */
    bool apart;               /* it is one; written before the fork */
    _Atomic uint8_t leaves;   /* enum zr_local_leave: why the rank's replica is to leave */
    _Atomic uint8_t gathered; /* `leaves` as the ranks have agreed on it; a later notice stays for the next
                               * change */
    _Atomic bool leaving[ZR_MAX_WORLD]; /* of the replicas: the ranks have agreed that it leaves; written
                                         * before zr_local_move() */
    _Atomic bool absent[ZR_MAX_WORLD]; /* ranks that are lost with their launchers: this one is to stand in */

    /* Exchange of ring descriptors: the rank whose turn it is to send. */
    _Alignas(64) _Atomic uint32_t turn; /* attempt * world + rank */

    struct zr_local_rank ranks[]; /* [world] */
};

/* Copies a rank's current status; `out` has ZR_LOCAL_STATUS_BYTES. */
void zr_local_read_status(const struct zr_local_rank *rank, char *out);

/* Stands for any rank. */
#define ZR_LOCAL_ALL UINT32_MAX

/* control.c: creates and destroys the control block of a run with `world` ranks. */
struct zr_local_control {
    zr_backend *backend;
    zr_arena *arena;              /* NULL: another process created the block */
    void *import;                 /* NULL: this process created the block */
    struct zr_local_world *local; /* within arena or import */
};
zr_result zr_local_control_backend(struct zr_local_control *control);
zr_result zr_local_control_make(struct zr_local_control *control, unsigned world);
void zr_local_control_end(struct zr_local_control *control);
/* Sets the number of ranks, at most that of zr_local_control_make(). No rank uses the block. */
void zr_local_set_world(struct zr_local_world *local, unsigned world);
/* Prepares the control block for the next communicators after the loss of a rank. No rank uses it. */
void zr_local_control_restart(struct zr_local_world *local);

/* Sockets for the exchange of rings: an inbox and an outbox per rank; -1: not held by this process. */
struct zr_local_sockets {
    int inbox[ZR_MAX_WORLD], outbox[ZR_MAX_WORLD];
};
void zr_local_sockets_clear(struct zr_local_sockets *sockets);
zr_result zr_local_sockets_make(struct zr_local_sockets *sockets, unsigned world);
void zr_local_sockets_close(struct zr_local_sockets *sockets);
/* Discards messages that no rank has received. */
void zr_local_sockets_drain(const struct zr_local_sockets *sockets);

/* Message for a rank whose process has lost its launcher, in a run with one launcher per rank. `out` has
 * ZR_LOCAL_REASON_BYTES. */
void zr_local_describe_orphan(const struct zr_local_world *local, unsigned rank, char *out);

/* Sets `abort` once per run and wakes all waiters; true if this call set it, so its message counts. */
enum zr_local_reporter { ZR_LOCAL_BY_LAUNCHER, ZR_LOCAL_BY_RANK };
struct zr_local_end {
    enum zr_local_reporter reporter;
    unsigned rank; /* the launcher's first rank, or the rank itself */
    zr_result why;
    const char *reason;
};
bool zr_local_end(struct zr_local_world *local, const struct zr_local_end *end);
void zr_local_wake(struct zr_local_world *local);
/* rank.c: ends the run because the ranks are out of step, with the message in zr_last_error(). Returns
 * ZR_ERR_PEER and the message of the process that ended the run first. */
zr_result zr_local_out_of_step(struct zr_local_world *local, unsigned rank);

/* launch.c: the ranks that one launcher forks: all ranks of a run, or one rank. */
struct zr_local_part {
    struct zr_local_control control;
    struct zr_local_sockets sockets; /* the launcher closes them after the forks, or after the run if it may
                                      * fork more ranks */
    unsigned first, count;           /* ranks to fork */
    int memory[ZR_LAUNCH_MEMORIES];  /* see zr_local_memory(); -1: none */
    int door[2]; /* of the holder of kept memory: the launcher's end, and the end that ranks inherit */
    int links[ZR_MAX_WORLD]; /* connections to the launchers of other ranks, or -1; used only with
                              * elsewhere() */
    /* Called in every iteration of the watch; false: ranks of other launchers still need this launcher. NULL:
     * no other launchers. */
    bool (*elsewhere)(struct zr_local_part *part);
    void *state; /* argument of elsewhere() */
    /* In a child of the launcher: runs a launcher for a rank that was lost with its own, and returns the exit
     * code; NULL: there is none. */
    int (*stand_in)(const struct zr_local_world *local, unsigned rank);
};
int zr_local_watch_over(const struct zr_launch_options *options, struct zr_local_part *part);
/* Prints one line on stderr, prefixed with the program's name. */
void zr_local_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* replicas.c: ranks with launchers of their own agree on the replicas that leave. Each rank gathers what
 * zr_local_gather_leave() returns on all, enum zr_local_leave, and passes it as wants: [world]. Replica 0,
 * which has the rendezvous, and the least number stay. Returns how many leave; 0: there is no change. */
uint8_t zr_local_gather_leave(struct zr_local_world *local);
unsigned zr_local_agree_to_leave(struct zr_local_world *local, const struct zr_launch_replicas *options,
                                 const uint8_t *wants);

/* rank.c: this process's ends of the sockets, for share.c. */
const struct zr_local_sockets *zr_local_own_sockets(void);
/* Records the first signal that requests the end. */
void zr_local_ask_for_end(struct zr_local_world *local, int signal_number);
/* Signals of a rank under mpirun. mpirun ends the run on SIGTERM and SIGINT instead of forwarding them, so
 * zr forwards other signals. They are blocked and taken in zr_local_request(). */
enum { ZR_MPIRUN_SAVE_AND_END = SIGUSR2, ZR_MPIRUN_INTERRUPT = SIGURG };
#define ZR_MPIRUN_FORWARDS "SIGURG" /* in addition to the signals that mpirun forwards by default */
void zr_local_hold_mpirun_signals(void);
void zr_local_follow_mpirun(struct zr_local_world *local);

/* rank.c: the connections of this process to other ranks, for zr_local_is_restarting() and zr_local_rejoin().
 * NULL, the default: ranks of one launcher that share memory. */
struct zr_local_ties {
    bool (*lost)(struct zr_local_world *local); /* whether a lost rank is awaited; may wait for its loss */
    zr_result (*rejoin)(struct zr_local_world *local, unsigned rank);
};
void zr_local_set_ties(const struct zr_local_ties *ties);
/* After zr_local_move(): the ranks stay in the old world. Before zr_local_await_restart(). */
void zr_local_undo_move(struct zr_local_world *local);
/* Asks the launcher to stand in for ranks that are lost with theirs. missing: [world]. False: there are none.
 */
bool zr_local_ask_to_stand_in(struct zr_local_world *local, const bool *missing);
/* The launcher's part of zr_local_rejoin(). `reason`: this rank has lost another, which its launcher may not
 * know; NULL: the launcher began the restart. */
zr_result zr_local_await_restart(struct zr_local_world *local, unsigned rank, const char *reason);

/* rank.c: runs a forked rank: installs signal handlers, watches the launcher, calls rank_main(). `before`
 * is the signal mask to restore, `launcher` the parent process. Never returns. */
struct zr_local_birth {
    const struct zr_launch_options *options;
    struct zr_local_world *local;
    const struct zr_local_sockets *sockets;
    const sigset_t *before;
    pid_t launcher;
    int door;          /* the launcher's, for kept memory; -1: none */
    const int *memory; /* see zr_local_memory(); NULL: none */
    unsigned rank;
    unsigned threads; /* ranks from `rank` on that are threads of this process; 0: the rank is the process */
    bool alone;       /* the launcher has only this rank; other ranks have other launchers (join.c) */
};
_Noreturn void zr_local_become_rank(const struct zr_local_birth *birth);

/* threads.c: runs the ranks of a process as threads and waits for them. Returns the process's exit code. */
int zr_local_run_threads(const struct zr_local_birth *birth);

#endif
