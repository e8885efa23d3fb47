/* control.h: the control block that the launcher and its ranks share. Private to zero/.
 *
 * It lies in a small arena whose granules were mapped before the fork, so every process of the run sees the
 * same memory at the same address. Words that processes wait on are 32 bits wide and waited on with
 * zr_word_wait(), always with a time-out, so that a lost peer is noticed whatever happened to it. */
#ifndef ZR_LAUNCH_CONTROL_H
#define ZR_LAUNCH_CONTROL_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "zero/launch/zr_launch.h"

enum { ZR_LOCAL_STATUS_BYTES = 48, ZR_LOCAL_REASON_BYTES = 256, ZR_LOCAL_PLACES = 64 };
/* Communicators of a rank at a time, groups included, and what one piece of a host message holds. */
enum { ZR_LOCAL_RINGS = 24, ZR_LOCAL_HOST_BYTES = 512 };
#define ZR_LOCAL_POLL_NS 50000000ull /* the longest sleep of a rank that waits */

/* What a piece in the ring is, so that ranks that fell out of step are told apart from slow ones. */
struct zr_local_piece {
    uint64_t kind, bytes;
    bool direct; /* not in the slot, but at the places */
};

/* A part of a rank's file of granules. */
struct zr_local_place {
    uint64_t offset_bytes, bytes;
};

/* A piece for one rank alone; `bytes` is the size of the whole transfer. */
struct zr_local_parcel {
    uint64_t bytes;
    uint32_t to;
};

/* One rank's part in one communicator. Each has a ring of its own in each, and its own order of operations.
 * Counters are of pieces, modulo 2^32, and only go up: who opens a communicator begins where the one before
 * it has ended. */
struct zr_local_ring {
    /* Piece n since the communicator began lies in slot n % 2. Written by this rank alone. */
    _Alignas(64) _Atomic uint32_t posted;   /* pieces that peers may read */
    _Atomic uint32_t posted_sleepers;       /* peers asleep on posted, or about to be */
    struct zr_local_piece pieces[2];        /* what lies in the slots; written before posted moves */
    _Alignas(64) _Atomic uint32_t consumed; /* pieces that this rank has read from all its peers */
    _Atomic uint32_t consumed_sleepers;

    /* The ring as the way to one other rank at a time; see local_ring.c. Piece n lies in slot n % 2. */
    _Alignas(64) _Atomic uint32_t lent; /* written by this rank alone */
    _Atomic uint32_t lent_sleepers;
    struct zr_local_parcel parcels[2];   /* what lies in the slots; written before lent moves */
    _Alignas(64) _Atomic uint32_t taken; /* that the one they were for has read; written by that rank */
    _Atomic uint32_t taken_sleepers;

    /* What this rank lets its peers read where it lies: the places one after the other, but for what leads.
     * Written before posted moves, and left alone until all peers have read it. */
    _Alignas(64) uint64_t lead_bytes;
    uint32_t places_count;
    struct zr_local_place places[ZR_LOCAL_PLACES];

    /* Host messages: as the ring, with slots of their own; see local_host.c. */
    _Alignas(64) _Atomic uint32_t host_posted;
    _Atomic uint32_t host_posted_sleepers;
    uint64_t host_bytes[2]; /* of the whole message */
    char host[2][ZR_LOCAL_HOST_BYTES];
    _Alignas(64) _Atomic uint32_t host_consumed;
    _Atomic uint32_t host_consumed_sleepers;

    _Atomic bool open; /* it belongs to a communicator; this rank only */
};

/* What a rank offers the other members of a group that it is about to make, until all have read it. */
struct zr_local_opening {
    _Alignas(64) _Atomic uint64_t key; /* tells the group from others; 0: none. Written last, cleared first */
    _Atomic uint32_t changes;          /* of key, for those who sleep */
    _Atomic uint32_t number;           /* of openings of this rank so far; before all else */
    uint32_t seen[ZR_MAX_WORLD];       /* the number of what this rank has read last of another; its own */
    _Atomic uint32_t readers;          /* members that have read it; written by them */
    uint32_t result;                   /* a zr_result: not ZR_OK, and there is no ring */
    uint32_t ring;                     /* which of the rank's */
    uint32_t posted, host_posted;      /* where its counters begin */
    uint64_t lead_bytes;
    bool passes;           /* its descriptors come beside: it lies in other files than the parent's */
    uint32_t places_count; /* of the ring, in the rank's file of granules */
    struct zr_local_place places[ZR_LOCAL_PLACES];
};

/* The operations of one channel of a communicator, as a rank is in them. */
struct zr_local_call {
    _Atomic uint64_t begun, ended; /* the number of the last one, from 1 */
    _Atomic uint64_t ticket;       /* of the one that has begun; 0: a host message */
    /* Of operation n in place n % 2. Kind: an enum zr_comm_kind, and ZR_LOCAL_MEETS where it ends on no rank
     * before all members have begun it. */
    _Atomic uint64_t bytes[2];
    _Atomic uint32_t kind[2];
};
enum { ZR_LOCAL_MEETS = 1u << 8 };
enum zr_local_channel { ZR_LOCAL_DATA, ZR_LOCAL_HOST, ZR_LOCAL_CHANNELS };

/* One communicator of a rank. */
struct zr_local_calls {
    _Alignas(64) _Atomic uint64_t key; /* 0: none. Written last */
    _Atomic uint64_t submitted;        /* the number of the last operation that was handed in */
    struct zr_local_call channels[ZR_LOCAL_CHANNELS];
    uint64_t members[ZR_MAX_WORLD / 64]; /* ranks of the run, a bit each */
    char group[16];
};

/* What a rank waits for, for those that wait for it. Written by that rank alone; the protocol is in
 * zero/comm/calls.h. */
struct zr_local_record {
    struct zr_local_calls calls[ZR_LOCAL_RINGS];
    /* Of the thread that hands operations in: (times << 8) | (1 + 2 * place in calls + channel), or | 0 where
     * it does not wait; and the ticket. */
    _Atomic uint64_t waits, ticket;
    _Atomic uint64_t thread;  /* which one that is; 0: none has yet */
    _Atomic uint64_t several; /* 1: more than one has, and what one of them does not do another may */
};

struct zr_local_rank {
    struct zr_local_ring rings[ZR_LOCAL_RINGS];
    struct zr_local_opening opening;

    /* Making a communicator of all: (attempt << 8) | zr_result, see zr_comm_local_create(). */
    _Alignas(64) _Atomic uint32_t verdict;
    _Atomic uint32_t received; /* turns of the passing round of rings that this rank is through with */
    _Atomic uint32_t received_sleepers;
    _Atomic uint32_t attempts;   /* communicators of all this rank has begun to make; this rank only */
    _Atomic bool whole;          /* this rank has one; this rank only */
    _Atomic uint32_t heartbeats; /* moves with every call on a communicator; this rank only */
    _Atomic uint32_t statuses;   /* with every status */
    struct zr_local_record record;
    struct zr_local_record answers[2]; /* of a rank of MPI, for this one alone; see liveness.h */

    /* For the launcher and the peers' messages. */
    _Atomic bool ended; /* the launcher has seen the end of the process */
    _Atomic bool busy;  /* a save is in progress */
    _Atomic int32_t pid;
    /* The last one is status[statuses % 2], so that who dies while it writes one has the last one still. */
    char status[2][ZR_LOCAL_STATUS_BYTES]; /* the last byte is always 0 */
    /* Why the run ends, should its launcher or the rank itself end it; by enum zr_local_reporter. Written by
     * that process alone, and only until abort points here. */
    char message[2][ZR_LOCAL_REASON_BYTES];
};

struct zr_local_world {
    unsigned world;
    bool spins; /* the ranks fit the cores: a short spin before sleeping pays */

    /* 0, or the zr_result that every wait ends with, and above it whose words say why: moves once, and at
     * whatever moment somebody dies, the run goes on or all know why it does not. */
    _Atomic uint32_t abort; /* ((2 * rank + reporter) << 8) | zr_result */

    _Atomic uint32_t ends;          /* the first signal that has asked for the end; 0: none has */
    _Atomic bool followed;          /* and the ranks end for it */
    _Atomic uint32_t saves;         /* 1: SIGUSR1 came; the first rank to see it takes it */
    _Atomic bool orphaned;          /* a rank has said on stderr that the launcher is gone */
    _Atomic uint64_t first_message; /* hash of the first words of zr_local_first_message(); 0: none yet */
    _Atomic uint32_t said;          /* 1: they have been said, or others */
    _Atomic bool out_of_step;       /* a rank has found that: no launcher has words for it */

    /* Passing the descriptors of the rings round: whose turn it is to send. */
    _Alignas(64) _Atomic uint32_t turn; /* attempt * world + rank */

    struct zr_local_rank ranks[]; /* world */
};

/* What a rank has noted last; `out` has room for ZR_LOCAL_STATUS_BYTES. */
void zr_local_read_status(const struct zr_local_rank *rank, char *out);

/* In place of a rank: whichever it may be. */
#define ZR_LOCAL_ALL UINT32_MAX

/* This rank gets on, which a launcher that has been asked for the end looks at. */
static inline void zr_local_heartbeat(struct zr_local_world *local, unsigned rank)
{
    if (local)
        atomic_fetch_add_explicit(&local->ranks[rank].heartbeats, 1, memory_order_relaxed);
}

/* control.c: makes the control block of a run of `world` ranks, and gives it back. */
struct zr_local_control {
    zr_backend *backend;
    zr_arena *arena;              /* NULL where another process has made it */
    void *import;                 /* NULL where this process has */
    struct zr_local_world *local; /* in one of the two */
};
zr_result zr_local_control_backend(struct zr_local_control *control);
zr_result zr_local_control_make(struct zr_local_control *control, unsigned world);
void zr_local_control_end(struct zr_local_control *control);

/* The sockets that rings are passed round by: an inbox and an outbox for each rank; those that a process does
 * not hold are -1. */
struct zr_local_sockets {
    int inbox[ZR_MAX_WORLD], outbox[ZR_MAX_WORLD];
};
void zr_local_sockets_clear(struct zr_local_sockets *sockets);
zr_result zr_local_sockets_make(struct zr_local_sockets *sockets, unsigned world);
void zr_local_sockets_close(struct zr_local_sockets *sockets);

/* Words for a rank whose launcher has ended before it, in a run whose launchers have one rank each. `out` has
 * room for ZR_LOCAL_REASON_BYTES. */
void zr_local_describe_orphan(const struct zr_local_world *local, unsigned rank, char *out);

/* Raises `abort`, once in a run: true for the one whose words count. Wakes all who wait. */
enum zr_local_reporter { ZR_LOCAL_BY_LAUNCHER, ZR_LOCAL_BY_RANK };
struct zr_local_end {
    enum zr_local_reporter reporter;
    unsigned rank; /* the first one of the launcher's, or the rank itself */
    zr_result why;
    const char *reason;
};
bool zr_local_end(struct zr_local_world *local, const struct zr_local_end *end);
void zr_local_wake(struct zr_local_world *local);
/* rank.c: the ranks of this machine are out of step, as zr_last_error() says: ends the run with these words.
 * Returns ZR_ERR_PEER, with the words of whoever was first to end it. */
zr_result zr_local_out_of_step(struct zr_local_world *local, unsigned rank);

/* launch.c: the launcher of some of the ranks of a run: all of them, or the one that was started here. */
struct zr_local_part {
    struct zr_local_control control;
    struct zr_local_sockets sockets; /* closed in the launcher after the forks */
    unsigned first, count;           /* ranks to fork */
    int links[ZR_MAX_WORLD];         /* to the launchers of other ranks, or -1; unused without elsewhere() */
    /* Called at every turn of the watch; false: ranks elsewhere still need this launcher. NULL: there are
     * none. */
    bool (*elsewhere)(struct zr_local_part *part);
    void *state; /* of elsewhere() */
};
int zr_local_watch_over(const struct zr_launch_options *options, struct zr_local_part *part);
/* One line on stderr, with the program's name before it. */
void zr_local_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* rank.c: this process's own ends of the sockets, for share.c. */
const struct zr_local_sockets *zr_local_own_sockets(void);
/* A signal asks for the end. */
void zr_local_ask_for_end(struct zr_local_world *local, int signal_number);
/* Signals as requests. */
void zr_local_follow_signals(struct zr_local_world *local);
/* The same for a rank of mpirun, which passes on neither SIGTERM nor SIGINT as such: it ends the run on them.
 * They are held, and taken at zr_local_request(). */
enum { ZR_MPIRUN_SAVE_AND_END = SIGUSR2, ZR_MPIRUN_INTERRUPT = SIGURG };
#define ZR_MPIRUN_FORWARDS "SIGURG" /* beside those that it forwards anyway */
void zr_local_hold_mpirun_signals(void);
void zr_local_follow_mpirun(struct zr_local_world *local);

/* rank.c: what a process does between the fork and rank_main(): signals, and the watch over the launcher.
 * `before` is the signal mask to go back to, `launcher` the process that has forked it. Never returns. */
struct zr_local_birth {
    const struct zr_launch_options *options;
    struct zr_local_world *local;
    const struct zr_local_sockets *sockets;
    const sigset_t *before;
    pid_t launcher;
    unsigned rank;
    bool alone; /* the launcher has this rank only: others have been started beside it (join.c) */
};
_Noreturn void zr_local_become_rank(const struct zr_local_birth *birth);

#endif
