/* fork.c: takes every lock before fork() and opens it on both sides after: those of the CUDA driver's
 * loading, pools, rings and arenas as fork.h says, then the backends', liburcu's own, and last the error
 * texts', which any of the others' holders may want. Stands on error.c, index.c, arena.c, contiguous.c,
 * ring.c, cuda_driver.c and backend.c. */
#include "alloc/fork.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "alloc/backend.h"
#include "alloc/error.h"
#include "alloc/index.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A lock is held for less than the first, unless memory is being mapped or the holder waits for a lock that
 * this has. */
static const uint64_t first_patience_ns = 200000, last_patience_ns = 1000000000;

static const long pause_ns = 1000000;

void zr_fork_take(struct zr_fork_locks *locks, struct zr_lock *lock)
{
    locks->failed = locks->failed || !zr_lock_take_within(lock, locks->patience_ns);
    locks->taken += !locks->failed;
}

void zr_fork_give(struct zr_fork_locks *locks, struct zr_lock *lock)
{
    if (locks->passed == locks->taken)
        return;
    locks->passed++;
    if (locks->child)
        zr_lock_forget_sleepers(lock);
    zr_lock_give(lock);
}

static void give_all(struct zr_fork_locks *locks)
{
    zr_cuda_driver_after_fork(locks);
    zr_pools_after_fork(locks);
    zr_rings_after_fork(locks);
    zr_arenas_after_fork(locks);
}

static void before_fork(void)
{
    struct zr_fork_locks locks = {.patience_ns = first_patience_ns};
    for (;;) {
        zr_cuda_driver_before_fork(&locks);
        zr_pools_before_fork(&locks);
        zr_rings_before_fork(&locks);
        zr_arenas_before_fork(&locks);
        if (!locks.failed)
            break;
        give_all(&locks);
        /* Those who wait for what was given back wake up first. */
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        uint64_t more_ns = 2 * locks.patience_ns;
        locks =
            (struct zr_fork_locks){.patience_ns = more_ns < last_patience_ns ? more_ns : last_patience_ns};
    }
    zr_pools_close_list();
    zr_backend_before_fork();
    zr_index_before_fork();
}

static void after_fork_parent(void)
{
    zr_index_after_fork_parent();
    zr_backend_after_fork();
    zr_pools_open_list();
    give_all(&(struct zr_fork_locks){.taken = UINT32_MAX});
}

static void after_fork_child(void)
{
    zr_index_after_fork_child();
    zr_backend_after_fork();
    zr_pools_open_list();
    give_all(&(struct zr_fork_locks){.taken = UINT32_MAX, .child = true});
}

static void wire(void)
{
    zr_error_prepare();
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void zr_fork_prepare(void)
{
    pthread_once(&once, wire);
}
