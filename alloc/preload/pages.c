/* pages.c: see pages.h. */
#define _GNU_SOURCE
#include "alloc/preload/pages.h"

#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* Linux 4.17 */
#endif

enum { ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

bool zr_pages_discard(char *address, size_t bytes, bool anew)
{
    if (!anew && madvise(address, bytes, MADV_DONTNEED) == 0)
        return true;
    return mmap(address, bytes, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == address;
}

enum zr_pages_moved zr_pages_move(const struct zr_pages_move *move)
{
    if (mremap(move->from, move->bytes, move->to_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, move->to) == move->to)
        return ZR_PAGES_MOVED;
    /* A refusal may come before or after the kernel has unmapped the new place. */
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
    if (got != MAP_FAILED) /* a kernel that does not know the flag */
        munmap(got, bytes);
    return false;
}
