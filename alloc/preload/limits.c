/* limits.c: calls of the program that would harm its memory: setrlimit, and dlopen with RTLD_DEEPBIND. See
 * preload.h.
 *
 * When the program limits its own addresses by setrlimit(RLIMIT_AS), releases most addresses that the arenas
 * have reserved: otherwise no addresses remain for stacks and files. Released addresses are blocks that are
 * allocated from the arena, unmapped and never freed, so that the arena needs no function to shrink. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/system/file.h"
#include "alloc/base/system/lock.h"
#include "alloc/base/option.h"
#include "alloc/core/arena.h"
#include "alloc/telemetry/recorder.h"
#include "alloc/preload/large.h"

#define GRANULE_BYTES ((size_t)2 << 20)
#define MIN_BYTES     ((size_t)16 << 20) /* smaller extents are not worth the call */

static struct zr_lock lock;

/* The bytes of addresses that the kernel counts against the limit; 0: unknown. */
static size_t address_bytes(void)
{
    char text[64];
    zr_read_text("/proc/self/statm", text, sizeof text);
    return strtoul(text, NULL, 10) * ZR_PAGE_BYTES;
}

/* Bytes of the arena's range that are neither mapped nor released. */
static size_t unused_bytes(zr_arena *arena, struct zr_span span)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.mapped_bytes < span.bytes ? span.bytes - stats.mapped_bytes : 0;
}

/* Releases the unused addresses except keep_bytes. */
static void release_addresses(zr_arena *arena, struct zr_span span, size_t keep_bytes)
{
    for (size_t bytes = span.bytes; bytes >= MIN_BYTES;) {
        void *block = NULL;
        size_t unused = unused_bytes(arena, span);
        size_t unused_max = unused > keep_bytes ? (unused - keep_bytes) & ~(GRANULE_BYTES - 1) : 0;
        bytes = (bytes < unused_max ? bytes : unused_max) & ~(GRANULE_BYTES - 1);
        if (bytes < MIN_BYTES)
            return;
        struct zr_request request = {.bytes = bytes, .alignment = GRANULE_BYTES, .tag = ZR_TAG_OTHER};
        zr_recorder_suppressed = true; /* no report: a smaller request may succeed */
        zr_result result = zr_arena_alloc(arena, &request, &block);
        zr_recorder_suppressed = false;
        if (result != ZR_OK) {
            bytes /= 2;
            continue;
        }
        munmap(block, bytes);
        zr_large_free_marks(block, bytes);
        zr_arena_acquire(arena);
        zr_recorder_end(arena); /* later reports must not count the released addresses */
        zr_arena_release(arena);
    }
}

static void release_for_limit(const struct rlimit *limit)
{
    if (!zr_preload_start() || zr_preload.passive || zr_option_get(ZR_OPTION_LIMIT) > 0)
        return;
    int error = errno;
    size_t now = address_bytes();
    if (!zr_lock_try(&lock)) /* another thread releases addresses now, or did when this child was forked */
        return;
    size_t large = unused_bytes(zr_preload.large_arena, zr_preload.large);
    size_t small = unused_bytes(zr_preload.small_arena, zr_preload.small);
    /* Half of the remaining addresses go to large blocks, a quarter to small objects, the rest to others. */
    size_t others = now > large + small ? now - large - small : 0;
    size_t left = limit->rlim_cur > others ? limit->rlim_cur - others : 0;
    if (now > 0 && limit->rlim_cur < now + now / 8) {
        release_addresses(zr_preload.large_arena, zr_preload.large, left / 2);
        release_addresses(zr_preload.small_arena, zr_preload.small, left / 4);
    }
    zr_lock_release(&lock);
    errno = error;
}

static int set_limit(pid_t process, int which, const struct rlimit *limit, struct rlimit *old)
{
    if (which == RLIMIT_AS && limit && limit->rlim_cur != RLIM_INFINITY &&
        (process == 0 || process == getpid()))
        release_for_limit(limit);
    return (int)syscall(SYS_prlimit64, process, which, limit, old);
}

/* Exported under the 64-bit names too: both types are the same here. */
int zr_setrlimit(int which, const struct rlimit *limit);
int zr_prlimit(pid_t process, int which, const struct rlimit *limit, struct rlimit *old);
int zr_setrlimit64(int which, const struct rlimit *limit) __asm__("setrlimit64") ZR_EXPORT
    __attribute__((alias("setrlimit")));
int zr_prlimit64(pid_t process, int which, const struct rlimit *limit,
                 struct rlimit *old) __asm__("prlimit64") ZR_EXPORT __attribute__((alias("prlimit")));
int zr_setrlimit(int which, const struct rlimit *limit) __asm__("setrlimit") ZR_EXPORT;
int zr_prlimit(pid_t process, int which, const struct rlimit *limit,
               struct rlimit *old) __asm__("prlimit") ZR_EXPORT;

int zr_setrlimit(int which, const struct rlimit *limit)
{
    return set_limit(0, which, limit, NULL);
}

int zr_prlimit(pid_t process, int which, const struct rlimit *limit, struct rlimit *old)
{
    return set_limit(process, which, limit, old);
}

/* ---- dlopen -------------------------------------------------------------------------------------------- */

/* PHP sets RTLD_DEEPBIND for its extensions. A library opened with the flag finds the C library's free()
 * first and calls it with objects that this library has allocated. */
typedef void *opener(const char *path, int flags);

static opener *next_dlopen(void)
{
    static _Atomic(opener *) next;
    opener *found = atomic_load_explicit(&next, memory_order_acquire);
    if (!found) {
        *(void **)&found = dlsym(RTLD_NEXT, "dlopen");
        atomic_store_explicit(&next, found, memory_order_release);
    }
    return found;
}

/* The C library searches the paths of its caller, which it finds by the return address: the call below must
 * be a tail call. */
ZR_EXPORT void *dlopen(const char *path, int flags)
{
    return next_dlopen()(path, flags & ~RTLD_DEEPBIND);
}
