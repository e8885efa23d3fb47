/* lock.h: a lock for sections of tens of nanoseconds. Private to alloc/.
 *
 * One word and one atomic step each way, inlined; a contender spins for about as long as a few sections take,
 * then sleeps in the kernel. All zeros is open. Not recursive, not fair, for threads of one process. */
#ifndef ZR_LOCK_H
#define ZR_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum zr_lock_state {
    ZR_LOCK_OPEN = 0,
    ZR_LOCK_HELD,
    ZR_LOCK_AWAITED, /* held, and somebody may sleep */
};

struct zr_lock {
    _Atomic uint32_t state; /* enum zr_lock_state */
};

/* The slow halves. */
void zr_lock_wait(struct zr_lock *lock);
void zr_lock_wake(struct zr_lock *lock);

static inline void zr_lock_take(struct zr_lock *lock)
{
    uint32_t open = ZR_LOCK_OPEN;
    if (__builtin_expect(!atomic_compare_exchange_strong_explicit(&lock->state, &open, ZR_LOCK_HELD,
                                                                  memory_order_acquire, memory_order_relaxed),
                         0))
        zr_lock_wait(lock);
}

static inline void zr_lock_give(struct zr_lock *lock)
{
    if (__builtin_expect(
            atomic_exchange_explicit(&lock->state, ZR_LOCK_OPEN, memory_order_release) == ZR_LOCK_AWAITED, 0))
        zr_lock_wake(lock);
}

#endif
