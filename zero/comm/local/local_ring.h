/* local_ring.h: a local communicator and its ring. Private to local*.c. */
#ifndef ZR_LOCAL_RING_H
#define ZR_LOCAL_RING_H

#include "zero/comm/comm.h"
#include "zero/comm/local/local.h"

struct local_comm {
    struct zr_comm base;
    zr_backend *backend;  /* maps the rings of the peers */
    char *slots;          /* this rank's ring: two slots, a block of options.arena */
    int file_fd;          /* descriptor of the file of all rings of this rank, borrowed; -1: each ring has
                           * its own file */
    int own_fd;           /* descriptor of the file of its granules, borrowed; -1: unknown */
    size_t mapping_bytes; /* maximum mapping of a peer's file; 0: all data goes through the ring */
    size_t slot_bytes;
    size_t each_bytes;     /* bytes per peer in a slot; a slot holds world - 1 of them */
    uint32_t filled, read; /* pieces for all peers, at most two apart; used by the thread that runs
                            * operations */
    uint32_t lent;         /* pieces for one peer; used by the same thread */
    struct local_count {
        uint32_t filled, read;
    } recorded[2];               /* values when a graph began and ended; used by the same thread */
    uint32_t said;               /* pieces of host messages; used by the caller's thread */
    struct zr_local_ring *ring;  /* counters of this rank */
    const void **from;           /* [world]: operands of a sum */
    struct zr_local_peer *peers; /* [world] */
    bool whole;                  /* the communicator of all ranks */
    /* Waits for peers and counter updates are queued in the stream of operations; false: the host performs
     * them. */
    bool queues;
    bool pinned; /* this communicator has pinned the control block */
};

/* A rank's position in a communicator. */
struct zr_local_position {
    struct zr_local_world *local;
    const unsigned *ranks; /* [world]: ranks in the run */
    unsigned rank, world;
    bool whole;
};

/* local.c: creates a rank's own part: records, ring and thread. On success zr_comm_destroy() closes *out. */
zr_result zr_local_prepare(struct local_comm **out, const struct zr_comm_options *options,
                           const struct zr_local_position *position);
/* Starts the record of operations (calls.h) once the peers are known. */
void zr_local_calls_open(struct local_comm *comm);
/* Waits for a counter of peer p. */
zr_result zr_local_wait_for_peer(const struct local_comm *comm, unsigned p, _Atomic uint32_t *word,
                                 _Atomic uint32_t *sleepers, uint32_t target);

/* Entries of struct zr_comm_table. */
zr_result zr_local_run(struct zr_comm *comm, const struct zr_comm_item *item);
zr_result zr_local_host(struct zr_comm *comm, const struct zr_all_gather *op);
zr_result zr_local_group(struct zr_comm **out, struct zr_comm *parent, const struct zr_comm_members *members);
zr_result zr_local_synchronize(struct zr_comm *comm);

#endif
