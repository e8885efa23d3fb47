/* local.h: ranks of one machine that share memory: waits, mappings and rings. Private to zero/comm/. */
#ifndef ZR_LOCAL_H
#define ZR_LOCAL_H

#include "zero/comm/zr_comm.h"
#include "zero/launch/control.h"

/* Returns ZR_OK or the failure that ends the run. Also fails if `peer` (ZR_LOCAL_ALL: any rank) has exited; a
 * caller then checks once more for data that the peer has posted. */
zr_result zr_local_check(struct zr_local_world *local, unsigned peer);

/* Waits until *word, a counter modulo 2^32, reaches `target`. `sleepers` counts this waiter; NULL: the
 * other side always wakes. ZR_ERR_PEER or ZR_ERR_INTERRUPTED: the run is ending. ZR_ERR_TIMEOUT: `peer`
 * has been silent for more than `timeout_ns`. */
struct zr_local_wait {
    _Atomic uint32_t *word, *sleepers;
    uint32_t target;
    unsigned peer; /* rank of the run that advances the word */
    uint64_t timeout_ns;
    bool looks; /* the waiting `rank` checks from time to time whether the ranks are out of step (calls.h) */
    unsigned rank;
};
zr_result zr_local_wait_for(struct zr_local_world *local, const struct zr_local_wait *wait);
/* The error for a peer (or ZR_LOCAL_ALL) that is alive, as far as the system knows, but has been silent for
 * too long. */
zr_result zr_local_lost(const struct zr_local_world *local, unsigned peer, uint64_t waited_ns);
/* Advances a counter and wakes its waiters. */
void zr_local_advance(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers);

/* Another rank's file of granules, mapped into this process as far as needed. */
struct zr_local_mapping {
    int fd;                          /* owned; -1: none */
    struct zr_range *range;          /* byte n of the file is at offset n; NULL before the first use */
    size_t mapped_bytes;             /* from offset 0 */
    size_t first, end;               /* range used since the last unmap */
    size_t window_first, window_end; /* the same, of the peer's window */
};

#define ZR_LOCAL_UNMAPPED                                                                                    \
    (struct zr_local_mapping)                                                                                \
    {                                                                                                        \
        .fd = -1, .first = SIZE_MAX, .window_first = SIZE_MAX                                                \
    }

/* A rank of a communicator in this process. For this rank only the first three fields are valid. */
struct zr_local_peer {
    unsigned rank;                /* rank in the run */
    struct zr_local_ring *ring;   /* its counters; NULL: unknown */
    uint32_t posted, host_posted; /* initial values of its counters */
    void *import;                 /* owned; freed with zr_import_release() */
    const char *slots;            /* the peer's ring, within `import` */
    struct zr_local_mapping mapping;
};

/* local.c: the ring of a peer that is another thread of this process, in the peer's memory. */
void zr_local_find_thread(struct zr_local_peer *peer, struct zr_local_ring *ring);

/* share.c: sends this rank's ring to all ranks of the run and maps theirs into peers[world]. Entries of
 * this rank and of ranks whose ring did not arrive are unchanged. `peers` is NULL if `mine` is. Collective
 * per attempt, failed ranks included. */
struct zr_local_share {
    struct zr_local_world *local;
    unsigned rank;
    unsigned ring; /* index of `mine` among this rank's rings */
    uint64_t timeout_ns;
    uint32_t attempt;
    const void *mine; /* NULL: this rank has failed and takes part only so that the others do not wait; the
                       * arenas are unused */
    zr_arena *arena;  /* arena of `mine` */
    zr_arena *host_arena; /* for long segment lists */
    zr_backend *backend;  /* maps the rings of the peers */
    int *file_fd;         /* out: descriptor of the file of `mine`, borrowed; -1: none */
};
zr_result zr_local_share_rings(const struct zr_local_share *share, struct zr_local_peer *peers);

/* Exchanges the rings of a group whose files the peers do not have. All members call it concurrently.
 * segments: [count][ZR_LOCAL_PLACES]; the caller fills its own entries, the function fills the others with
 * descriptors that the caller must close, even after a failure. counts: [count], number of segments;
 * wanted: [count], number expected. */
struct zr_local_pass {
    struct zr_local_world *local;
    const unsigned *ranks; /* [count]: ranks in the run */
    unsigned count, rank;
    uint32_t attempt; /* equal on all members, and unique among the groups being created */
    uint64_t timeout_ns;
    struct zr_segment *segments;
    unsigned *counts;
    const unsigned *wanted;
};
zr_result zr_local_pass_rings(const struct zr_local_pass *pass);

#endif
