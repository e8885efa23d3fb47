/* fork.c: takes every lock before fork() and opens it on both sides after: those of the rooms that have
 * registered, in their order, then their leaves, and last the error texts', which any of the others' holders
 * may want. Uses error.c. */
#include "alloc/base/system/fork.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "alloc/base/error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A lock is held for less than the first, unless memory is being mapped or the holder waits for a lock that
 * this has. */
static const uint64_t first_patience_ns = 200000, last_patience_ns = 1000000000;

static const long pause_ns = 1000000;

void zr_fork_take(struct zr_fork_locks *locks, struct zr_lock *lock)
{
    locks->failed = locks->failed || !zr_lock_acquire_within(lock, locks->patience_ns);
    locks->taken += !locks->failed;
}

void zr_fork_give(struct zr_fork_locks *locks, struct zr_lock *lock)
{
    if (locks->passed == locks->taken)
        return;
    locks->passed++;
    if (locks->child)
        zr_lock_forget_sleepers(lock);
    zr_lock_release(lock);
}

static const struct zr_fork_room *_Atomic rooms[ZR_FORK_COUNT];

/* A bit for each room that was there when the fork began; of the thread that forks. */
static __thread uint16_t forking __attribute__((tls_model("initial-exec")));
_Static_assert(ZR_FORK_COUNT <= 16, "a bit for each room");

static const struct zr_fork_room *room_at(unsigned order)
{
    static const struct zr_fork_room none = {0};
    return forking >> order & 1 ? atomic_load(&rooms[order]) : &none;
}

static void give_all(struct zr_fork_locks *locks)
{
    for (unsigned i = 0; i < ZR_FORK_COUNT; i++)
        if (room_at(i)->after)
            room_at(i)->after(locks);
}

static void before_fork(void)
{
    struct zr_fork_locks locks = {.patience_ns = first_patience_ns};
    forking = 0;
    for (unsigned i = 0; i < ZR_FORK_COUNT; i++)
        forking |= (uint16_t)((atomic_load(&rooms[i]) != NULL) << i);
    for (;;) {
        for (unsigned i = 0; i < ZR_FORK_COUNT; i++)
            if (room_at(i)->before)
                room_at(i)->before(&locks);
        if (!locks.failed)
            break;
        give_all(&locks);
        /* Wake the threads that wait for the released locks first. */
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        uint64_t more_ns = 2 * locks.patience_ns;
        locks =
            (struct zr_fork_locks){.patience_ns = more_ns < last_patience_ns ? more_ns : last_patience_ns};
    }
    for (unsigned i = 0; i < ZR_FORK_COUNT; i++)
        if (room_at(i)->close)
            room_at(i)->close();
}

static void after_fork(bool child)
{
    for (unsigned i = ZR_FORK_COUNT; i-- > 0;)
        if (room_at(i)->open)
            room_at(i)->open(child);
    give_all(&(struct zr_fork_locks){.taken = UINT32_MAX, .child = child});
}

static void after_fork_parent(void)
{
    after_fork(false);
}

static void after_fork_child(void)
{
    after_fork(true);
}

static void wire(void)
{
    zr_error_prepare();
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void zr_fork_register(enum zr_fork_order order, const struct zr_fork_room *room)
{
    pthread_once(&once, wire);
    atomic_store(&rooms[order], room);
}
