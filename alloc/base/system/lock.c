/* lock.c: what a contended lock does: spin, then sleep on the word. Uses the system's futex. */
#define _GNU_SOURCE
#include "alloc/base/system/lock.h"

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

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sleeps until the lock is this thread's, or until the clock says `end_ns` (0: no end). */
static bool sleep_until(struct zr_lock *lock, uint64_t end_ns)
{
    int error = errno;
    atomic_fetch_add(&lock->sleepers, 1);
    /* Without the fence a wake can be missed, and the sleep has an end of its own; one with an end looks
     * again as often. */
    bool fenced = fence_all() && end_ns == 0, taken;
    const struct timespec most = {.tv_nsec = 200000};
    for (;;) {
        /* From here on gives wake again; one that did not has left the lock open. */
        atomic_exchange(&lock->waking, 0);
        taken = try_open(lock);
        if (taken || (end_ns != 0 && now_ns() >= end_ns))
            break;
        syscall(SYS_futex, &lock->held, FUTEX_WAIT_PRIVATE, 1, fenced ? NULL : &most, NULL, 0);
        taken = spin(lock);
        if (taken)
            break;
    }
    atomic_fetch_sub(&lock->sleepers, 1);
    atomic_exchange(&lock->waking, 0);
    /* The wake may have been meant for this thread, which leaves: another sleeper has it. */
    if (!taken && atomic_load(&lock->sleepers) != 0)
        zr_lock_wake(lock);
    errno = error;
    return taken;
}

bool zr_lock_wait(struct zr_lock *lock)
{
    return !spin(lock) && sleep_until(lock, 0);
}

bool zr_lock_acquire_within(struct zr_lock *lock, uint64_t ns)
{
    return spin(lock) || sleep_until(lock, now_ns() + ns);
}

void zr_lock_wake(struct zr_lock *lock)
{
    int error = errno;
    /* Release the lock before checking whether another thread is waking one. */
    if (atomic_exchange(&lock->waking, 1) == 0 &&
        syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) <= 0) {
        /* No thread slept yet. Releases that saw `waking` skipped threads that fell asleep meanwhile. */
        atomic_exchange(&lock->waking, 0);
        if (atomic_load(&lock->held) == 0)
            syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    errno = error;
}
