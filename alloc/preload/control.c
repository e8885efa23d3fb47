/* control.c: the only access to jemalloc's control interface (see control.h). Exports jemalloc's control
 * functions for programs that are linked with it. */
#define _GNU_SOURCE
#include "alloc/preload/control.h"

#include <pthread.h>
#include <string.h>

#include "alloc/base/system/lock.h"
#include "alloc/preload/preload.h"
#include "alloc/preload/measuring.h"
#include "alloc/preload/usage.h"

/* jemalloc's control functions, under the prefix. */
int zr_je_mallctl(const char *name, void *old_value, size_t *old_bytes, void *new_value, size_t new_bytes);
int zr_je_mallctlnametomib(const char *name, size_t *mib, size_t *length);
int zr_je_mallctlbymib(const size_t *mib, size_t length, void *old_value, size_t *old_bytes, void *new_value,
                       size_t new_bytes);
void zr_je_malloc_stats_print(void (*write)(void *, const char *), void *argument, const char *options);

/* ---- jemalloc's locks ---------------------------------------------------------------------------------- */

#define OWN __thread __attribute__((tls_model("initial-exec"))) /* dynamic TLS would call malloc */

static OWN unsigned own_locks_count; /* jemalloc locks that this thread holds */

/* preload.mk redirects jemalloc's calls here. A wait for a condition keeps its lock counted: the thread runs
 * no other code meanwhile. */
int zr_je_pthread_mutex_lock(pthread_mutex_t *mutex);
int zr_je_pthread_mutex_trylock(pthread_mutex_t *mutex);
int zr_je_pthread_mutex_unlock(pthread_mutex_t *mutex);

int zr_je_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_lock(mutex);
    own_locks_count += error == 0;
    return error;
}

int zr_je_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_trylock(mutex);
    own_locks_count += error == 0;
    return error;
}

int zr_je_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    own_locks_count--;
    return pthread_mutex_unlock(mutex);
}

/* ---- Entering the control interface -------------------------------------------------------------------- */

static struct {
    struct zr_lock lock;            /* held by an exclusive entry, during fork, and to count an entry */
    _Atomic unsigned threads_count; /* inside by calls of the program; grows only under the lock */
    unsigned
        forking_locks_count; /* lock; own_locks_count of the forking thread, before jemalloc's fork handler */
} entries;

static OWN unsigned own_depth; /* nesting of this thread's control calls: a callback may make another */

/* Enters for a call of the program. False: the thread holds a jemalloc lock and would deadlock. */
static bool enter(void)
{
    if (own_locks_count > 0)
        return false;
    if (own_depth++ > 0)
        return true;
    zr_lock_acquire(&entries.lock);
    atomic_fetch_add(&entries.threads_count, 1);
    zr_lock_release(&entries.lock);
    return true;
}

static void leave(void)
{
    if (--own_depth == 0)
        atomic_fetch_sub(&entries.threads_count, 1);
}

/* Enters for malloc and free, without waiting. False: other threads are inside, or hooks may run. */
static bool try_enter_exclusive(void)
{
    if (own_locks_count > 0 || own_depth > 0 || atomic_load(&zr_preload.hooked) ||
        !zr_lock_try(&entries.lock))
        return false;
    if (atomic_load(&entries.threads_count) > 0) {
        zr_lock_release(&entries.lock);
        return false;
    }
    own_depth = 1;
    return true;
}

static void leave_exclusive(void)
{
    own_depth = 0;
    zr_lock_release(&entries.lock);
}

void zr_control_before_fork(void)
{
    zr_lock_acquire(&entries.lock);
    entries.forking_locks_count = own_locks_count;
}

void zr_control_after_fork(bool child)
{
    own_locks_count = entries.forking_locks_count; /* jemalloc reinitializes its locks in the child */
    if (child) {
        atomic_store(&entries.threads_count, own_depth > 0);
        zr_lock_forget_sleepers(&entries.lock);
    }
    zr_lock_release(&entries.lock);
}

/* ---- Calls of the library ------------------------------------------------------------------------------ */

static size_t number(const char *name)
{
    size_t value = 0, bytes = sizeof value;
    return zr_je_mallctl(name, &value, &bytes, NULL, 0) == 0 ? value : 0;
}

/* Called between enter() and leave(). jemalloc's arena index 4096 means all arenas. */
static void read_figures(struct zr_control_figures *out)
{
    uint64_t epoch = 1;
    zr_je_mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    *out = (struct zr_control_figures){.live_bytes = number("stats.allocated"),
                                       .held_bytes = number("stats.active") +
                                                     number("stats.arenas.4096.pdirty") * ZR_PAGE_BYTES,
                                       .resident_bytes = number("stats.resident")};
}

bool zr_control_try_figures(struct zr_control_figures *out)
{
    if (!try_enter_exclusive())
        return false;
    read_figures(out);
    leave_exclusive();
    return true;
}

void zr_control_try_decay(void)
{
    if (!try_enter_exclusive())
        return;
    zr_je_mallctl("arena.4096.decay", NULL, NULL, NULL, 0);
    leave_exclusive();
}

bool zr_control_figures(struct zr_control_figures *out)
{
    *out = (struct zr_control_figures){0};
    if (!enter())
        return false;
    read_figures(out);
    leave();
    return true;
}

void zr_control_purge(void)
{
    if (!enter())
        return;
    zr_je_mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
    leave();
}

/* ---- Calls of programs --------------------------------------------------------------------------------- */

/* Records that the program may install its own functions in jemalloc: extent hooks or allocation hooks. */
static void note_functions(const char *name)
{
    if (!strstr(name, "hooks") && !strstr(name, "arenas.create") && !strstr(name, "arenas_create"))
        return;
    if (!atomic_exchange(&zr_preload.hooked, true) && zr_measuring.on)
        zr_say("the program replaces jemalloc's hooks: the figures exclude small objects from now on");
}

/* EAGAIN: the library has not started, or the caller is a function that jemalloc calls under its locks. */
ZR_EXPORT int mallctl(const char *name, void *old_value, size_t *old_bytes, void *new_value, size_t new_bytes)
{
    if (!zr_preload_start() || !enter())
        return EAGAIN;
    if (new_value)
        note_functions(name);
    int error = zr_je_mallctl(name, old_value, old_bytes, new_value, new_bytes);
    leave();
    return error;
}

/* The program may install hooks later by the number, so the name is checked here. */
ZR_EXPORT int mallctlnametomib(const char *name, size_t *mib, size_t *length)
{
    if (!zr_preload_start() || !enter())
        return EAGAIN;
    note_functions(name);
    int error = zr_je_mallctlnametomib(name, mib, length);
    leave();
    return error;
}

ZR_EXPORT int mallctlbymib(const size_t *mib, size_t length, void *old_value, size_t *old_bytes,
                           void *new_value, size_t new_bytes)
{
    if (!zr_preload_start() || !enter())
        return EAGAIN;
    int error = zr_je_mallctlbymib(mib, length, old_value, old_bytes, new_value, new_bytes);
    leave();
    return error;
}

ZR_EXPORT void malloc_stats_print(void (*write)(void *, const char *), void *argument, const char *options)
{
    if (!zr_preload_start() || !enter())
        return;
    zr_je_malloc_stats_print(write, argument, options);
    leave();
}
