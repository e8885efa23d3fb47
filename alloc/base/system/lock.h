/* lock.h: a lock for sections of tens of nanoseconds. Private to alloc/.
 *
 * One atomic step to take it, a plain store to give it, inlined; a contender spins for about as long as a few
 * sections take, then sleeps in the kernel. All zeros is open. Not recursive, not fair, for threads of one
 * process.
 *
 * A release reads `sleepers` after its store without a fence between, and the processor may swap the two. A
 * thread that goes to sleep compensates: it counts itself, makes every running thread of the process pass a
 * fence (membarrier(2)), then reads the state again. While a woken sleeper has not run yet, releases wake no
 * other: a thread that acquires and releases the lock in a loop does not call the kernel each time. */
#ifndef ZR_LOCK_H
#define ZR_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct zr_lock {
    _Atomic uint32_t held; /* 1: held */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t waking; /* 1: one of them is being woken and has not looked at the lock yet */
};

/* Takes it, or gives up after about so long. */
bool zr_lock_acquire_within(struct zr_lock *lock, uint64_t ns);

/* The slow halves. Wait: true if it slept. */
bool zr_lock_wait(struct zr_lock *lock);
void zr_lock_wake(struct zr_lock *lock);

static inline bool zr_lock_try(struct zr_lock *lock)
{
    uint32_t open = 0;
    return atomic_compare_exchange_strong_explicit(&lock->held, &open, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void zr_lock_acquire(struct zr_lock *lock)
{
    if (__builtin_expect(!zr_lock_try(lock), 0))
        zr_lock_wait(lock);
}

/* Releases the lock. True: a thread sleeps, and the caller must call zr_lock_wake(). */
static inline bool zr_lock_open(struct zr_lock *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
    return __builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0);
}

static inline void zr_lock_release(struct zr_lock *lock)
{
    if (zr_lock_open(lock))
        zr_lock_wake(lock);
}

/* Resets the lock in a child after fork(), where no thread sleeps. */
static inline void zr_lock_forget_sleepers(struct zr_lock *lock)
{
    atomic_store(&lock->sleepers, 0);
    atomic_store(&lock->waking, 0);
}

#endif
