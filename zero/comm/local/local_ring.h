/* local_ring.h: a local communicator and its ring. Private to local*.c. */
#ifndef ZR_LOCAL_RING_H
#define ZR_LOCAL_RING_H

#include "zero/comm/comm.h"
#include "zero/comm/local/local.h"

struct local_comm {
    struct zr_comm base;
    zr_backend *backend;  /* mapped the rings of the peers */
    char *slots;          /* two, a block of options.arena: this rank's ring */
    int file_fd;          /* of the file that all rings of this rank lie in, borrowed; -1: each in its own */
    int own_fd;           /* of the file that its granules are of, borrowed; -1: not known */
    size_t mapping_bytes; /* of a peer's file that can be mapped; 0: none, all goes through the ring */
    size_t slot_bytes;
    size_t each_bytes;     /* for one peer in a slot: the slot holds world - 1 of them */
    uint32_t filled, read; /* pieces for all; at most two apart. The thread that runs operations */
    uint32_t lent;         /* pieces for one; likewise */
    struct local_count {
        uint32_t filled, read;
    } recorded[2];               /* where they were when a graph began and ended; the same thread */
    uint32_t said;               /* pieces of host messages; the caller's thread */
    struct zr_local_ring *ring;  /* counters of this rank's */
    const void **from;           /* world: scratch for the sum */
    struct zr_local_peer *peers; /* world */
    bool whole;                  /* it is the one of all ranks */
    /* Waits for peers, and words to them, are queued in the stream of operations; false: the host's. */
    bool queues;
    bool pinned; /* the control block is, by this one */
};

/* Which ranks of the run a communicator is of. */
struct zr_local_seats {
    struct zr_local_world *local;
    const unsigned *ranks; /* [world]: by their numbers in the run */
    unsigned rank, world;
    bool whole;
};

/* local.c: everything of a rank's own: records, ring, thread. On success *out is closed by zr_comm_destroy().
 */
zr_result zr_local_prepare(struct local_comm **out, const struct zr_comm_options *options,
                           const struct zr_local_seats *seats);
/* The operations of a communicator whose peers are known are noted from here on. */
void zr_local_calls_open(struct local_comm *comm);
/* Waits for a word that peer p moves. */
zr_result zr_local_wait_for_peer(const struct local_comm *comm, unsigned p, _Atomic uint32_t *word,
                                 _Atomic uint32_t *sleepers, uint32_t target);
/* The same, and moves a word: at once, or with `queues` when the stream comes to it. */
zr_result zr_local_await_word(const struct local_comm *comm, unsigned p, _Atomic uint32_t *word,
                              _Atomic uint32_t *sleepers, uint32_t target);
zr_result zr_local_move_word(const struct local_comm *comm, _Atomic uint32_t *word, uint32_t value,
                             _Atomic uint32_t *sleepers);

/* struct zr_comm_table has the contracts. */
zr_result zr_local_run(struct zr_comm *comm, const struct zr_comm_item *item);
zr_result zr_local_host(struct zr_comm *comm, const struct zr_all_gather *op);
zr_result zr_local_group(struct zr_comm **out, struct zr_comm *parent, const struct zr_comm_members *members);
zr_result zr_local_synchronize(struct zr_comm *comm);

#endif
