/* lock.c: what a contended lock does: spin, then sleep on the word. Stands on the system's futex. */
#define _GNU_SOURCE
#include "alloc/lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looks at a held lock before sleeping: two or three microseconds, less than a sleep and a wake cost. */
enum { SPINS = 100 };

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static bool try_open(struct zr_lock *lock)
{
    uint32_t open = ZR_LOCK_OPEN;
    return atomic_load_explicit(&lock->state, memory_order_relaxed) == ZR_LOCK_OPEN &&
           atomic_compare_exchange_strong_explicit(&lock->state, &open, ZR_LOCK_HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}

void zr_lock_wait(struct zr_lock *lock)
{
    int error = errno;
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_open(lock))
            return;
        relax();
    }
    /* Taken from here, the lock counts as awaited: others may sleep too, and one wake too many is harmless.
     */
    while (atomic_exchange_explicit(&lock->state, ZR_LOCK_AWAITED, memory_order_acquire) != ZR_LOCK_OPEN)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, ZR_LOCK_AWAITED, NULL, NULL, 0);
    errno = error;
}

void zr_lock_wake(struct zr_lock *lock)
{
    int error = errno;
    syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = error;
}
