/* local_ring.h: a local communicator and its ring. Private to local.c and local_ring.c. */
#ifndef ZR_LOCAL_RING_H
#define ZR_LOCAL_RING_H

#include "zero/comm/comm.h"
#include "zero/comm/local.h"

struct local_comm {
    struct zr_comm base;
    zr_backend *backend;  /* mapped the rings of the peers */
    char *ring;           /* two slots, a block of options.arena */
    int own_fd;           /* of the file that its granules are of, borrowed; -1: not known */
    size_t mapping_bytes; /* of a peer's file that can be mapped; 0: none, all goes through the ring */
    size_t slot_bytes;
    size_t each_bytes;     /* for one peer in a slot: the slot holds world - 1 of them */
    uint32_t filled, read; /* pieces for all; at most two apart. The thread that runs operations */
    uint32_t lent;         /* pieces for one; likewise */
    struct zr_local_rank *self;
    const void **from;           /* world: scratch for the sum */
    struct zr_local_peer *peers; /* world; the own entry stays empty */
};

/* struct zr_comm_table has the contracts. */
zr_result zr_local_run(struct zr_comm *comm, const struct zr_comm_item *item);
zr_result zr_local_synchronize(struct zr_comm *comm);

#endif
