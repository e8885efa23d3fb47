/* lock.c: what a contended lock does: spin, then sleep on the word. Stands on the system's futex. */
#define _GNU_SOURCE
#include "alloc/lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
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

static inline bool try_open(struct zr_lock *lock)
{
    return atomic_load_explicit(&lock->held, memory_order_relaxed) == 0 && zr_lock_try(lock);
}

/* Every running thread of the process passes a fence. False on kernels without it. */
static bool fence_all(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
        return true;
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
           syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

static bool spin(struct zr_lock *lock)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (try_open(lock))
            return true;
        relax();
    }
    return false;
}

bool zr_lock_wait(struct zr_lock *lock)
{
    if (spin(lock))
        return false;
    int error = errno;
    atomic_fetch_add(&lock->sleepers, 1);
    bool fenced = fence_all();
    /* Without the fence a wake can be missed, and the sleep has an end of its own. */
    const struct timespec most = {.tv_nsec = 200000};
    do {
        /* From here on gives wake again; one that did not has left the lock open. */
        atomic_exchange(&lock->waking, 0);
        if (!try_open(lock))
            syscall(SYS_futex, &lock->held, FUTEX_WAIT_PRIVATE, 1, fenced ? NULL : &most, NULL, 0);
        else
            break;
    } while (!spin(lock));
    atomic_fetch_sub(&lock->sleepers, 1);
    atomic_exchange(&lock->waking, 0);
    errno = error;
    return true;
}

void zr_lock_wake(struct zr_lock *lock)
{
    int error = errno;
    /* The lock is open for all to see before this looks whether another wakes somebody. */
    if (atomic_exchange(&lock->waking, 1) == 0 &&
        syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) <= 0) {
        /* Nobody slept yet. Whoever fell asleep meanwhile was passed over by gives that saw `waking`. */
        atomic_exchange(&lock->waking, 0);
        if (atomic_load(&lock->held) == 0)
            syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    errno = error;
}
