/* index.h: from an address to the block that holds it, without a lock. Private to alloc/.
 *
 * A tree over the units of an arena's range, of bitmaps that say below which child a block starts: the block
 * that may hold an address is the last one that starts at or before it. Regions of 1 GiB hold chunks of 2
 * MiB, and those leaves of 16 KiB, so that every path has the same three steps. Writers hold the arena's
 * lock; readers only a read section of liburcu (bp flavour), so a span that has left the index may be used
 * again after a grace period and not before. Nodes stay until the index ends.
 *
 * Why a reader is right while writers work: for as long as a block is live, the bits on its path are set, and
 * between it and any address in it no other block starts. A reader passes over bits that turn out empty,
 * always downwards, so it comes to that path. */
#ifndef ZR_INDEX_H
#define ZR_INDEX_H

#include <stdatomic.h>

#include "alloc/record.h"
#include "alloc/span.h"

struct zr_index_region;

struct zr_index {
    _Atomic(struct zr_index_region *) *regions; /* one per GiB of the range */
    _Atomic uint64_t *used;                     /* bit r: a block starts in region r */
    size_t regions_count;
    struct zr_pool region_records, chunks, leaves;
};

zr_result zr_index_init(struct zr_index *index, size_t range_bytes);
void zr_index_end(struct zr_index *index);

/* Makes sure the next insert succeeds; false with words. */
static inline bool zr_index_reserve(struct zr_index *index)
{
    return zr_pool_reserve(&index->leaves, 1) && zr_pool_reserve(&index->chunks, 1) &&
           zr_pool_reserve(&index->region_records, 1);
}

void zr_index_insert(struct zr_index *index, struct zr_span *block);
/* The block that starts at the offset, NULL if none does; *freed says that one did before. With the lock. */
struct zr_span *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed);
/* The same, and takes it out of the index. */
struct zr_span *zr_index_take(struct zr_index *index, size_t offset_bytes, bool *freed);

/* The last block that starts at or before the offset, NULL if none: the caller looks whether it reaches that
 * far. Any thread inside a read section, or with the arena's lock. */
struct zr_span *zr_index_before(const struct zr_index *index, size_t offset_bytes);

void zr_index_read_lock(void);
void zr_index_read_unlock(void);
/* Waits until every read section that runs now has ended. No lock may be held that a reader could want. */
void zr_index_synchronize(void);
void zr_index_before_fork(void);
void zr_index_after_fork_parent(void);
void zr_index_after_fork_child(void);

#endif
