/* local.h: ranks of one machine that read each other's memory: waiting for one another, mappings and rings.
 * Private to zero/comm/. */
#ifndef ZR_LOCAL_H
#define ZR_LOCAL_H

#include "zero/comm/zr_comm.h"
#include "zero/launch/control.h"

/* ZR_OK, or the failure that ends the run, with words. Also fails when `peer` (with ZR_LOCAL_ALL: any rank)
 * has ended, since nothing more will come from it: look at what it has left behind once more before giving
 * up. */
zr_result zr_local_check(struct zr_local_world *local, unsigned peer);

/* Waits until *word, a counter modulo 2^32, has reached `target`; `sleepers` (NULL: the other side always
 * wakes) counts this waiter. ZR_ERR_PEER or ZR_ERR_INTERRUPTED: the run is ending. ZR_ERR_TIMEOUT: `peer` has
 * been silent for longer than `timeout_ns`. */
struct zr_local_wait {
    _Atomic uint32_t *word, *sleepers;
    uint32_t target;
    unsigned peer; /* who moves the word: its number in the run */
    uint64_t timeout_ns;
    bool looks; /* `rank`, which waits, looks from time to time whether the ranks are out of step (calls.h) */
    unsigned rank;
};
zr_result zr_local_wait_for(struct zr_local_world *local, const struct zr_local_wait *wait);
/* The failure of a peer (or ZR_LOCAL_ALL) that lives, as far as the system knows, and has been silent for too
 * long. */
zr_result zr_local_lost(const struct zr_local_world *local, unsigned peer, uint64_t waited_ns);
/* Moves such a counter and wakes those who wait for it. */
void zr_local_advance(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers);

/* Another rank's memory, in this process: its file of granules, mapped as far as was needed to read. */
struct zr_local_mapping {
    int fd;                 /* owned; -1: none */
    struct zr_range *range; /* a byte of the file is as far into it; NULL before the first look */
    size_t mapped_bytes;    /* from the start of both */
    size_t first, end;      /* what has been looked at since it was last let go */
};

/* A rank of a communicator, as this process sees it; of this rank itself the first three alone. */
struct zr_local_peer {
    unsigned rank;                /* in the run */
    struct zr_local_ring *ring;   /* its counters; NULL: not known yet */
    uint32_t posted, host_posted; /* where they began */
    void *import;                 /* owned: zr_import_release() */
    const char *slots;            /* in it */
    struct zr_local_mapping mapping;
};

/* share.c: sends this rank's ring to all ranks of the run and maps theirs into peers[world]; the entries of
 * this rank and of those whose ring did not come stay as they are. `peers` is NULL where `mine` is.
 * Collective, attempt by attempt, failed ranks included. */
struct zr_local_share {
    struct zr_local_world *local;
    unsigned rank;
    unsigned ring; /* the number of `mine` among the rank's */
    uint64_t timeout_ns;
    uint32_t attempt;
    const void *mine; /* NULL: this rank has failed and only keeps the others from waiting; no arenas then */
    zr_arena *arena;  /* of `mine` */
    zr_arena *host_arena; /* for long lists of segments */
    zr_backend *backend;  /* maps the rings of the peers */
    int *file_fd;         /* out: of the file that `mine` lies in, borrowed; -1: no descriptor stays */
};
zr_result zr_local_share_rings(const struct zr_local_share *share, struct zr_local_peer *peers);

/* The rings of a group, where they lie in files that the peers do not know: all members are at it at once,
 * and none is before it. segments: [count][ZR_LOCAL_PLACES], of this rank filled in, of the others filled
 * here, with descriptors that are the caller's to close, after a failure too. counts: [count], how many there
 * are; wanted: [count], how many will come. */
struct zr_local_pass {
    struct zr_local_world *local;
    const unsigned *ranks; /* [count]: in the run */
    unsigned count, rank;
    uint32_t attempt; /* what all members have for this group, and for no other at this time */
    uint64_t timeout_ns;
    struct zr_segment *segments;
    unsigned *counts;
    const unsigned *wanted;
};
zr_result zr_local_pass_rings(const struct zr_local_pass *pass);

#endif
