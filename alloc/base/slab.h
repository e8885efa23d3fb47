/* slab.h: pools of records of one size, straight from the system. Private to alloc/.
 *
 * All of zr's own bookkeeping lives in these: no malloc, so the library may serve one. A pool has no lock of
 * its own; its owner's lock covers every call. A record keeps its address until it is given back, and the
 * pool's memory goes back to the system when the pool ends. */
#ifndef ZR_RECORD_H
#define ZR_RECORD_H

#include <stdatomic.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/zr.h"

enum zr_slab_faults {
    ZR_POOL_FAULTS = 0, /* every reservation passes the fault site `metadata` */
    ZR_POOL_NO_FAULTS,  /* never fails by injection: the error texts themselves */
};

struct zr_slab_pages;

struct zr_slab {
    size_t record_bytes;     /* a multiple of 8 */
    size_t records_count;    /* in all slabs */
    size_t spare_count;      /* can be taken without the system: free records and what `fresh` has left */
    void *free;              /* linked through their first word */
    char *fresh, *fresh_end; /* never used part of the newest slab */
    struct zr_slab_pages *slabs;
    enum zr_slab_faults faults;
};

/* Takes no memory yet, so it cannot fail. */
void zr_slab_init(struct zr_slab *pool, size_t record_bytes, enum zr_slab_faults faults);
/* Gives everything back, live records included. The pool can be used again. */
void zr_slab_end(struct zr_slab *pool);

/* Makes sure that the next `count` takes succeed; false, with words, when the system refuses memory. An
 * operation reserves first and takes later, so that it cannot fail half way. */
bool zr_slab_grow(struct zr_slab *pool, size_t count);
static inline bool zr_slab_reserve(struct zr_slab *pool, size_t count)
{
    return __builtin_expect(pool->spare_count >= count &&
                                !atomic_load_explicit(&zr_fault_watched, memory_order_relaxed),
                            1) ||
           zr_slab_grow(pool, count);
}

/* One record, its content undefined. The caller has reserved it. */
static inline void *zr_slab_take(struct zr_slab *pool)
{
    void *record = pool->free;
    zr_assert(pool->spare_count > 0);
    if (record) {
        /* The one after it is next: given back long ago, it may be far by now. */
        pool->free = *(void **)record;
        __builtin_prefetch(pool->free, 1);
    } else {
        record = pool->fresh;
        pool->fresh += pool->record_bytes;
    }
    pool->spare_count--;
    return record;
}

static inline void zr_slab_give(struct zr_slab *pool, void *record)
{
    *(void **)record = pool->free;
    pool->free = record;
    pool->spare_count++;
}

/* Taken and not given back. */
static inline size_t zr_slab_live_count(const struct zr_slab *pool)
{
    return pool->records_count - pool->spare_count;
}

/* Whole pages of zeros from the system, NULL with words when it refuses; released with the same size. Passes
 * the fault site `metadata`. Pages that are never touched cost addresses only. */
ZR_PRIVATE_API void *zr_pages_take(size_t bytes);
ZR_PRIVATE_API void zr_pages_give(void *pages, size_t bytes);
/* Has the system give the pages' memory now, not when they are first touched; no matter if it does not. */
void zr_pages_touch(void *pages, size_t bytes);
/* The same pages for what one thread works on: a child after fork(), which has not that thread, does not get
 * them, so that none of them is lost in it. */
void *zr_pages_take_unforked(size_t bytes);

#endif
