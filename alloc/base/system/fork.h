/* fork.h: what zr does around fork(), so that a child finds no lock held by a thread it does not have.
 * Private to alloc/.
 *
 * Two kinds of locks. Leaves, whose holders wait for no other lock of zr's or for leaves in one order (lists,
 * backends, readers, error texts), are taken and waited for. Those of arenas, pools and rings may be held by
 * a thread that waits for another of them in whatever order, as in a map callback that allocates
 * from another arena, so no thread may wait for one while it holds another. fork() therefore tries to acquire
 * all of them, each for a while; if one stays held it releases the others, lets their threads run, and tries
 * again. */
#ifndef ZR_FORK_H
#define ZR_FORK_H

#include "alloc/base/system/lock.h"

/* One try, or the end of it. */
struct zr_fork_locks {
    uint64_t patience_ns;   /* for each lock */
    unsigned taken, passed; /* how many are; how many of these are given back */
    bool failed;            /* one did not come: none is tried any more */
    bool child;             /* in the child, where no thread sleeps */
};

/* For each noun's list: takes one of its locks unless the try has failed; gives one back if it was taken. The
 * order is the same, and the list is locked in between. */
void zr_fork_take(struct zr_fork_locks *locks, struct zr_lock *lock);
void zr_fork_give(struct zr_fork_locks *locks, struct zr_lock *lock);

/* What fork() goes through, in this order: a room's objects and their locks. */
enum zr_fork_order {
    ZR_FORK_DRIVER = 0, /* first, because loading the driver may take seconds */
    ZR_FORK_POOLS,
    ZR_FORK_RINGS,
    ZR_FORK_ARENAS,
    ZR_FORK_BACKENDS,
    ZR_FORK_SERVICE, /* the connection to zrd, which a child has not */
    ZR_FORK_READERS,
    ZR_FORK_RECLAIM,
    ZR_FORK_SERVE, /* nothing to take: what a child forgets */
    ZR_FORK_COUNT
};
struct zr_fork_room {
    /* Locks the list, and takes each lock; gives each, and opens the list. NULL: there are none. */
    void (*before)(struct zr_fork_locks *locks);
    void (*after)(struct zr_fork_locks *locks);
    /* Leaves, once all locks are taken. NULL: there are none. */
    void (*close)(void);
    void (*open)(bool child);
};
/* Before the first of the objects is made; again is fine. `room` stays. Wires the handlers, once per process.
 */
void zr_fork_register(enum zr_fork_order order, const struct zr_fork_room *room);

#endif
