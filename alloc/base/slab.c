/* slab.c: slabs of equal records on anonymous pages. Uses error.c and fault.c. */
#define _GNU_SOURCE
#include "alloc/base/slab.h"

#include <stdint.h>
#include <sys/mman.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Slabs grow with the pool, so that a small arena takes little and a large one calls the system rarely. */
#define SLAB_FIRST_BYTES ((size_t)16 << 10)
#define SLAB_MAX_BYTES   ((size_t)1 << 20)

struct zr_slab_pages {
    struct zr_slab_pages *next;
    size_t bytes;
};

static void *pages_from_system(size_t bytes)
{
    void *pages =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static zr_result memory_error(size_t bytes)
{
    return zr_fail(ZR_ERR_HOST_MEMORY,
                   "the system refused %zu bytes for zr's own records: see `ulimit -v` and vm.max_map_count",
                   bytes);
}

void *zr_pages_take(size_t bytes)
{
    void *pages = zr_fault(ZR_FAULT_METADATA) ? NULL : pages_from_system(bytes);
    if (!pages)
        memory_error(bytes);
    return pages;
}

void zr_pages_touch(void *pages, size_t bytes)
{
    madvise(pages, bytes, MADV_POPULATE_WRITE);
}

void *zr_pages_take_unforked(size_t bytes)
{
    void *pages = zr_pages_take(bytes);
    if (pages)
        madvise(pages, bytes, MADV_DONTFORK); /* if refused, the child has an unused copy */
    return pages;
}

void zr_pages_give(void *pages, size_t bytes)
{
    if (pages)
        munmap(pages, bytes);
}

void zr_slab_init(struct zr_slab *pool, size_t record_bytes, enum zr_slab_faults faults)
{
    zr_assert(record_bytes >= sizeof(void *) && record_bytes % 8 == 0);
    *pool = (struct zr_slab){.record_bytes = record_bytes, .faults = faults};
}

void zr_slab_end(struct zr_slab *pool)
{
    while (pool->slabs) {
        struct zr_slab_pages *slab = pool->slabs;
        pool->slabs = slab->next;
        munmap(slab, slab->bytes);
    }
    zr_slab_init(pool, pool->record_bytes, pool->faults);
}

/* What is left of the newest slab becomes free records, so that a new slab can take its place. */
static void retire_fresh(struct zr_slab *pool)
{
    while (pool->fresh_end - pool->fresh >= (ptrdiff_t)pool->record_bytes) {
        *(void **)pool->fresh = pool->free;
        pool->free = pool->fresh;
        pool->fresh += pool->record_bytes;
    }
}

static bool add_slab(struct zr_slab *pool, size_t count)
{
    size_t bytes = pool->slabs ? pool->slabs->bytes * 2 : SLAB_FIRST_BYTES;
    if (bytes > SLAB_MAX_BYTES)
        bytes = SLAB_MAX_BYTES;
    /* Records start on a cache line when their size is a multiple of one. */
    const size_t head_bytes = 64;
    while (bytes - head_bytes < count * pool->record_bytes)
        bytes *= 2;
    struct zr_slab_pages *slab = pages_from_system(bytes);
    if (!slab) {
        memory_error(bytes);
        return false;
    }
    *slab = (struct zr_slab_pages){.next = pool->slabs, .bytes = bytes};
    retire_fresh(pool);
    pool->slabs = slab;
    pool->fresh = (char *)slab + head_bytes;
    pool->fresh_end = (char *)slab + bytes;
    pool->records_count += (bytes - head_bytes) / pool->record_bytes;
    pool->spare_count += (bytes - head_bytes) / pool->record_bytes;
    return true;
}

bool zr_slab_grow(struct zr_slab *pool, size_t count)
{
    if (pool->faults == ZR_POOL_FAULTS && zr_fault(ZR_FAULT_METADATA)) {
        memory_error(count * pool->record_bytes);
        return false;
    }
    return pool->spare_count >= count || add_slab(pool, count - pool->spare_count);
}
