/* control.c: see control.h. Exports jemalloc's control functions for programs that are linked with it. */
#define _GNU_SOURCE
#include "alloc/preload/control.h"

#include <pthread.h>
#include <string.h>

#include "alloc/base/system/lock.h"
#include "alloc/preload/preload.h"
#include "alloc/preload/measuring.h"
#include "alloc/preload/say.h"

/* jemalloc's, under its prefix. */
int zr_je_mallctl(const char *name, void *old_value, size_t *old_bytes, void *new_value, size_t new_bytes);
int zr_je_mallctlnametomib(const char *name, size_t *mib, size_t *length);
int zr_je_mallctlbymib(const size_t *mib, size_t length, void *old_value, size_t *old_bytes, void *new_value,
                       size_t new_bytes);
void zr_je_malloc_stats_print(void (*write)(void *, const char *), void *argument, const char *options);

/* ---- jemalloc's locks ---------------------------------------------------------------------------------- */

#define OWN __thread __attribute__((tls_model("initial-exec"))) /* dynamic TLS would call malloc */

static OWN unsigned own_locks_count; /* locks of jemalloc's that this thread holds */

/* preload.mk redirects jemalloc's calls here. Its waits for a condition keep the lock in this count: the
 * thread runs nothing meanwhile. */
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

/* ---- The door ------------------------------------------------------------------------------------------ */

static struct {
    struct zr_lock lock;            /* held while a thread is in alone, during fork, and to count one in */
    _Atomic unsigned threads_count; /* inside by the program's own calls; grows under the lock only */
    unsigned forking_locks_count;   /* lock: of the thread that forks, before jemalloc takes all */
} door;

static OWN unsigned own_depth; /* of this thread's calls inside: a callback of one may make another */

/* For a call of the program's. False: the thread holds a lock of jemalloc's, and would wait for itself. */
static bool enter(void)
{
    if (own_locks_count > 0)
        return false;
    if (own_depth++ > 0)
        return true;
    zr_lock_acquire(&door.lock);
    atomic_fetch_add(&door.threads_count, 1);
    zr_lock_release(&door.lock);
    return true;
}

static void leave(void)
{
    if (--own_depth == 0)
        atomic_fetch_sub(&door.threads_count, 1);
}

/* For malloc and free. False: not now. */
static bool enter_alone(void)
{
    if (own_locks_count > 0 || own_depth > 0 || atomic_load(&zr_preload.hooked) || !zr_lock_try(&door.lock))
        return false;
    if (atomic_load(&door.threads_count) > 0) {
        zr_lock_release(&door.lock);
        return false;
    }
    own_depth = 1;
    return true;
}

static void leave_alone(void)
{
    own_depth = 0;
    zr_lock_release(&door.lock);
}

void zr_control_before_fork(void)
{
    zr_lock_acquire(&door.lock);
    door.forking_locks_count = own_locks_count;
}

void zr_control_after_fork(bool child)
{
    own_locks_count = door.forking_locks_count; /* jemalloc reinitializes its locks in the child */
    if (child) {
        atomic_store(&door.threads_count, own_depth > 0);
        zr_lock_forget_sleepers(&door.lock);
    }
    zr_lock_release(&door.lock);
}

/* ---- What the library itself asks ---------------------------------------------------------------------- */

static size_t number(const char *name)
{
    size_t value = 0, bytes = sizeof value;
    return zr_je_mallctl(name, &value, &bytes, NULL, 0) == 0 ? value : 0;
}

/* Inside. 4096 stands for all arenas. */
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
    if (!enter_alone())
        return false;
    read_figures(out);
    leave_alone();
    return true;
}

void zr_control_try_decay(void)
{
    if (!enter_alone())
        return;
    zr_je_mallctl("arena.4096.decay", NULL, NULL, NULL, 0);
    leave_alone();
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

/* ---- What programs ask --------------------------------------------------------------------------------- */

/* What may give jemalloc functions of the program's: extent hooks of an arena, hooks of allocations. */
static void note_functions(const char *name)
{
    if (!strstr(name, "hooks") && !strstr(name, "arenas.create") && !strstr(name, "arenas_create"))
        return;
    if (!atomic_exchange(&zr_preload.hooked, true) && zr_measuring.on)
        zr_say("the program replaces jemalloc's hooks: the figures exclude small objects from now on");
}

/* EAGAIN: before the library has started, or from a function that jemalloc calls under its locks. */
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

/* A number that may be used to write later. */
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
