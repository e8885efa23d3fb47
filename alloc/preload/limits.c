/* limits.c: a program that bounds its own addresses, by setrlimit(RLIMIT_AS), gets back most of those that
 * the arenas have reserved: else none would be left for stacks and files. See preload.h.
 *
 * An address that is given back is in a block that the arena has handed out and will never get again: so it
 * needs no other way of shrinking. Then the block's addresses are unmapped. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

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

/* What the kernel counts; 0: unknown. */
static size_t address_bytes(void)
{
    char text[64];
    zr_read_text("/proc/self/statm", text, sizeof text);
    return strtoul(text, NULL, 10) * ZR_PAGE_BYTES;
}

/* Addresses of the arena's range under which there is nothing, and that were not given back. */
static size_t unused_bytes(zr_arena *arena, struct zr_span span)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.mapped_bytes < span.bytes ? span.bytes - stats.mapped_bytes : 0;
}

/* All but so many of them. */
static void give(zr_arena *arena, struct zr_span span, size_t keep_bytes)
{
    for (size_t bytes = span.bytes; bytes >= MIN_BYTES;) {
        void *block = NULL;
        size_t unused = unused_bytes(arena, span);
        size_t most = unused > keep_bytes ? (unused - keep_bytes) & ~(GRANULE_BYTES - 1) : 0;
        bytes = (bytes < most ? bytes : most) & ~(GRANULE_BYTES - 1);
        if (bytes < MIN_BYTES)
            return;
        struct zr_request request = {.bytes = bytes, .alignment = GRANULE_BYTES, .tag = ZR_TAG_OTHER};
        zr_recorder_held = true; /* a smaller one may be there */
        zr_result result = zr_arena_alloc(arena, &request, &block);
        zr_recorder_held = false;
        if (result != ZR_OK) {
            bytes /= 2;
            continue;
        }
        munmap(block, bytes);
        zr_large_give_marks(block, bytes);
        zr_arena_take(arena);
        zr_recorder_end(arena); /* it would explain a failure by what was given away here */
        zr_arena_give(arena);
    }
}

static void make_room(const struct rlimit *limit)
{
    if (!zr_preload_start() || zr_preload.alone || zr_option_get(ZR_OPTION_LIMIT) > 0)
        return;
    int error = errno;
    size_t now = address_bytes();
    if (!zr_lock_try(&lock)) /* another thread is at it, or was when this child was made */
        return;
    size_t large = unused_bytes(zr_preload.large_arena, zr_preload.large);
    size_t small = unused_bytes(zr_preload.small_arena, zr_preload.small);
    /* A half of what is left goes to large blocks, a quarter to small objects, the rest to everybody else. */
    size_t others = now > large + small ? now - large - small : 0;
    size_t left = limit->rlim_cur > others ? limit->rlim_cur - others : 0;
    if (now > 0 && limit->rlim_cur < now + now / 8) {
        give(zr_preload.large_arena, zr_preload.large, left / 2);
        give(zr_preload.small_arena, zr_preload.small, left / 4);
    }
    zr_lock_release(&lock);
    errno = error;
}

static int set_limit(pid_t process, int which, const struct rlimit *limit, struct rlimit *old)
{
    if (which == RLIMIT_AS && limit && limit->rlim_cur != RLIM_INFINITY &&
        (process == 0 || process == getpid()))
        make_room(limit);
    return (int)syscall(SYS_prlimit64, process, which, limit, old);
}

/* Under the names of both, which are one type here. */
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
