/* pages.c: discards, moves and restores pages (see pages.h). */
#define _GNU_SOURCE
#include "alloc/preload/pages.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "alloc/preload/preload.h"
#include "alloc/preload/usage.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* Linux 4.17 */
#endif

enum { ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

/* Whether a filter forbids the call or the kernel does not have it, so that nothing was changed. */
static bool is_forbidden(void)
{
    return errno == EPERM || errno == EACCES || errno == ENOSYS;
}

static void say_once(_Atomic bool *said, const char *reason)
{
    if (!atomic_exchange(said, true))
        zr_say("%s", reason);
}

bool zr_pages_discard(char *address, size_t bytes, bool remap)
{
    static _Atomic bool said;
    if (!remap && madvise(address, bytes, MADV_DONTNEED) == 0)
        return true;
    if (!remap && is_forbidden())
        say_once(&said,
                 "the system forbids madvise(): freed memory is released by new mappings, which is slower");
    return mmap(address, bytes, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == address;
}

enum zr_pages_moved zr_pages_move(const struct zr_pages_move *move)
{
    if (mremap(move->from, move->bytes, move->to_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, move->to) == move->to)
        return ZR_PAGES_MOVED;
    if (is_forbidden()) {
        static _Atomic bool said;
        say_once(&said, "the system forbids mremap(): growing blocks are copied");
        return ZR_PAGES_STAYED;
    }
    /* mremap may fail before or after it has unmapped the new place. */
    unsigned char resident;
    if (mincore(move->to, 1, &resident) == 0 || zr_pages_restore(move->to, move->to_bytes))
        return ZR_PAGES_STAYED;
    return ZR_PAGES_LOST;
}

bool zr_pages_restore(char *address, size_t bytes)
{
    void *got = mmap(address, bytes, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == address)
        return true;
    if (got != MAP_FAILED) /* an old kernel ignores MAP_FIXED_NOREPLACE */
        munmap(got, bytes);
    return false;
}
