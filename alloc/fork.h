/* fork.h: what zr does around fork(), so that a child finds no lock held by a thread it does not have.
 * Private to alloc/.
 *
 * Two kinds of locks. Leaves, whose holders wait for no other lock of zr's or for leaves in one order (lists,
 * backends, liburcu, error texts), are taken and waited for. Those of arenas, pools and rings may be held by
 * a thread that waits for another of them in whatever order, as in a callback of a map watch that allocates
 * from another arena: nobody may wait for one with another in its hands. So fork() tries to have them all,
 * each for a while, and where one does not come it gives back what it has, lets the others go on, and tries
 * anew. */
#ifndef ZR_FORK_H
#define ZR_FORK_H

#include "alloc/lock.h"

/* One try, or the end of it. */
struct zr_fork_locks {
    uint64_t patience_ns;   /* for each lock */
    unsigned taken, passed; /* how many are; how many of these are given back */
    bool failed;            /* one did not come: none is tried any more */
    bool child;             /* where nobody sleeps */
};

/* For each noun's list: takes one of its locks unless the try has failed; gives one back if it was taken. The
 * order is the same, and the list is locked in between. */
void zr_fork_take(struct zr_fork_locks *locks, struct zr_lock *lock);
void zr_fork_give(struct zr_fork_locks *locks, struct zr_lock *lock);

/* The nouns: lock the list, then take each lock; give each, then open the list. */
void zr_pools_before_fork(struct zr_fork_locks *locks);
void zr_pools_after_fork(struct zr_fork_locks *locks);
/* The list itself, once all locks are taken: a search of it is no change. */
void zr_pools_close_list(void);
void zr_pools_open_list(void);
void zr_rings_before_fork(struct zr_fork_locks *locks);
void zr_rings_after_fork(struct zr_fork_locks *locks);
void zr_arenas_before_fork(struct zr_fork_locks *locks);
void zr_arenas_after_fork(struct zr_fork_locks *locks);
/* The loading of the CUDA driver, which may take seconds: first, so that nobody waits for it meanwhile. */
void zr_cuda_driver_before_fork(struct zr_fork_locks *locks);
void zr_cuda_driver_after_fork(struct zr_fork_locks *locks);

/* Wires the handlers, once per process. Whoever makes the first backend calls it. */
void zr_fork_prepare(void);

#endif
