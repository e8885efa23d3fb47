/* os.c: the clock, threads on stacks from an arena, and waits on words that processes share. The other half
 * of os.h, what the machine grants, is machine.c. */
#define _GNU_SOURCE
#include "alloc/base/system/os.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"

/* ---- Clock --------------------------------------------------------------------------------------------- */

static uint64_t (*_Atomic replaced_clock)(void);

uint64_t zr_os_now_ns(void)
{
    uint64_t (*clock)(void) = atomic_load_explicit(&replaced_clock, memory_order_relaxed);
    struct timespec now;
    if (__builtin_expect(clock != NULL, 0))
        return clock();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void zr_os_clock_set(uint64_t (*now_ns)(void))
{
    atomic_store(&replaced_clock, now_ns);
}

bool zr_environment_prefer(const char *name, const char *value)
{
    return setenv(name, value, 0) == 0;
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* A guard page would have to be protected inside a granule that other blocks share, so the low end of a stack
 * holds a pattern instead; a thread that ran over it is found out when it is joined. */
#define CANARY_WORDS ((size_t)128)
#define CANARY       UINT64_C(0x5a7ac4a9a11dead1)

static void canary_write(void *stack)
{
    uint64_t *word = stack;
    for (size_t i = 0; i < CANARY_WORDS; i++)
        word[i] = CANARY ^ i;
}

static bool canary_whole(const void *stack)
{
    const uint64_t *word = stack;
    uint64_t damage = 0;
    for (size_t i = 0; i < CANARY_WORDS; i++)
        damage |= word[i] ^ CANARY ^ i;
    return damage == 0;
}

/* pthread_create() with the process's signals blocked, so that they stay with the threads that expect them.
 * What the thread itself raises is not: the system would end the process without a word to its handlers.
 * Returns the error number. */
static int create_deaf(pthread_t *handle, const pthread_attr_t *attributes, void *(*run)(void *),
                       void *argument)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    int error = pthread_sigmask(SIG_BLOCK, &all, &before);
    if (error != 0)
        return error;
    error = zr_fault(ZR_FAULT_THREAD) ? EAGAIN : pthread_create(handle, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* `out->stack` is set. */
static zr_result start(struct zr_thread *out, size_t stack_bytes, void *(*run)(void *), void *argument)
{
    pthread_attr_t attributes;
    canary_write(out->stack);
    int error = pthread_attr_init(&attributes);
    if (error == 0) {
        error = pthread_attr_setstack(&attributes, out->stack, stack_bytes);
        if (error == 0)
            error = create_deaf(&out->handle, &attributes, run, argument);
        pthread_attr_destroy(&attributes);
    }
    if (error == 0)
        return ZR_OK;
    return error == EINVAL
               ? zr_fail(ZR_ERR_INVALID,
                         "a stack of %zu bytes is too small for this program's thread-local data",
                         stack_bytes)
               : zr_fail(ZR_ERR_HOST_MEMORY,
                         "the system refused a thread (error %d): raise `ulimit -u` or the cgroup's pids.max",
                         error);
}

zr_result zr_thread_start_on(struct zr_thread *out, struct zr_stack stack, void *(*run)(void *),
                             void *argument)
{
    *out = (struct zr_thread){.stack = stack.pages};
    zr_result result = start(out, stack.bytes, run, argument);
    if (result != ZR_OK)
        *out = (struct zr_thread){0};
    return result;
}

void zr_thread_join_on(struct zr_thread *thread)
{
    int error = pthread_join(thread->handle, NULL);
    zr_assert(error == 0);
    zr_assert(canary_whole(thread->stack));
}

/* ---- Shared words -------------------------------------------------------------------------------------- */

bool zr_word_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec limit = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                             .tv_nsec = (long)(timeout_ns % 1000000000u)};
    if (atomic_load_explicit(word, memory_order_acquire) != expected)
        return true;
    if (timeout_ns == 0)
        return false;
    /* Not FUTEX_PRIVATE: the word may be mapped at another address in another process. */
    long woken = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0);
    if (woken != 0 && errno == ETIMEDOUT)
        return atomic_load_explicit(word, memory_order_acquire) != expected;
    atomic_thread_fence(memory_order_acquire);
    return true;
}

void zr_word_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
