/* index.h: from an address to the block that holds it, without a lock. Private to alloc/.
 *
 * A tree over the units of an arena's range, of bitmaps that say below which child a block starts: the block
 * that may hold an address is the last one that starts at or before it. Regions of 512 MiB hold chunks of
 * 1 MiB, and those leaves of 16 KiB, so that every path has the same three steps. Writers hold the arena's
 * lock; readers only a read section of liburcu (bp flavour), so a span that has left the index may be used
 * again after a grace period and not before. A first search announces itself under the lock (arena.c): until
 * then there are no readers to wait for. Nodes stay until the index ends.
 *
 * Why a reader is right while writers work: for as long as a block is live, the bits on its path are set, and
 * between it and any address in it no other block starts. A reader passes over bits that turn out empty,
 * always downwards, so it comes to that path. Only leaves, chunks and a region's words are cleared: a region
 * that ever had blocks is looked into. */
#ifndef ZR_INDEX_H
#define ZR_INDEX_H

#include <stdatomic.h>

#include "alloc/record.h"
#include "alloc/span.h"

/* Units of 256 bytes: 64 to a leaf, 64 leaves to a chunk, 512 chunks to a region. A node's bits come in
 * words; those of leaves and chunks are one word each. */
enum { ZR_INDEX_LEAF_BITS = 6, ZR_INDEX_CHUNK_BITS = 6, ZR_INDEX_REGION_BITS = 9 };
enum {
    ZR_INDEX_LEAF_UNITS = 1 << ZR_INDEX_LEAF_BITS,
    ZR_INDEX_CHUNK_LEAVES = 1 << ZR_INDEX_CHUNK_BITS,
    ZR_INDEX_REGION_CHUNKS = 1 << ZR_INDEX_REGION_BITS
};

/* In a leaf, in the place of a block that was freed. */
#define ZR_INDEX_FREED ((struct zr_span *)1)

struct zr_index_leaf {
    _Atomic uint64_t starts; /* bit u: a block starts at unit u */
    struct zr_index_chunk *chunk;
    _Atomic(struct zr_span *) blocks[ZR_INDEX_LEAF_UNITS];
};

struct zr_index_chunk {
    _Atomic uint64_t used; /* bit l: a block starts in leaf l */
    struct zr_index_region *region;
    _Atomic(struct zr_index_leaf *) leaves[ZR_INDEX_CHUNK_LEAVES];
};

struct zr_index_region {
    _Atomic uint64_t used[ZR_INDEX_REGION_CHUNKS / 64]; /* bit c: a block starts in chunk c */
    _Atomic(struct zr_index_chunk *) chunks[ZR_INDEX_REGION_CHUNKS];
};

struct zr_index {
    _Atomic(struct zr_index_region *) *regions; /* one per 512 MiB of the range */
    _Atomic uint64_t *used;                     /* bit r: blocks have started in region r, now or before */
    size_t regions_count;
    bool stocked; /* each pool has the record that one more path may need */
    struct zr_pool region_records, chunks, leaves;
};

zr_result zr_index_init(struct zr_index *index, size_t range_bytes);
void zr_index_end(struct zr_index *index);

/* The slow halves. */
bool zr_index_restock(struct zr_index *index);
struct zr_index_leaf *zr_index_make_leaf(struct zr_index *index, size_t unit);

/* Makes sure the next insert succeeds; false with words. */
static inline bool zr_index_reserve(struct zr_index *index)
{
    return __builtin_expect(index->stocked && !zr_fault_watched(), 1) || zr_index_restock(index);
}

/* Where a block that starts at the unit is entered; NULL where nothing ever was. It stays for as long as the
 * index does. */
static inline struct zr_index_leaf *zr_index_leaf_of(const struct zr_index *index, size_t unit)
{
    struct zr_index_region *region = NULL;
    struct zr_index_chunk *chunk = NULL;
    struct zr_index_leaf *leaf = NULL;
    size_t number = unit >> ZR_INDEX_LEAF_BITS >> ZR_INDEX_CHUNK_BITS >> ZR_INDEX_REGION_BITS;
    if (__builtin_expect(number < index->regions_count, 1))
        region = atomic_load_explicit(&index->regions[number], memory_order_relaxed);
    if (__builtin_expect(region != NULL, 1))
        chunk = atomic_load_explicit(
            &region->chunks[(unit >> ZR_INDEX_LEAF_BITS >> ZR_INDEX_CHUNK_BITS) % ZR_INDEX_REGION_CHUNKS],
            memory_order_relaxed);
    if (__builtin_expect(chunk != NULL, 1))
        leaf = atomic_load_explicit(&chunk->leaves[(unit >> ZR_INDEX_LEAF_BITS) % ZR_INDEX_CHUNK_LEAVES],
                                    memory_order_relaxed);
    return leaf;
}

/* One writer at a time: no read-modify-write is needed. Returns the word as it was or is without the bit. */
static inline uint64_t zr_index_set_bit(_Atomic uint64_t *word, size_t bit)
{
    uint64_t was = atomic_load_explicit(word, memory_order_relaxed);
    atomic_store_explicit(word, was | UINT64_C(1) << (bit % 64), memory_order_release);
    return was;
}

static inline uint64_t zr_index_clear_bit(_Atomic uint64_t *word, size_t bit)
{
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed) & ~(UINT64_C(1) << (bit % 64));
    atomic_store_explicit(word, now, memory_order_release);
    return now;
}

/* The last bit set before `bit`, -1 if there is none. */
static inline ptrdiff_t zr_index_bit_before(const _Atomic uint64_t *words, size_t bit)
{
    size_t word = bit / 64;
    uint64_t bits = bit % 64 ? atomic_load_explicit(&words[word], memory_order_acquire) &
                                   ((UINT64_C(1) << (bit % 64)) - 1)
                             : 0;
    while (!bits) {
        if (word == 0)
            return -1;
        bits = atomic_load_explicit(&words[--word], memory_order_acquire);
    }
    return (ptrdiff_t)(word * 64 + 63u - (unsigned)__builtin_clzll(bits));
}

/* Enters a block for which zr_index_reserve() was called. What had blocks already has its bits above it set.
 */
static inline __attribute__((always_inline)) void zr_index_insert(struct zr_index *index,
                                                                  struct zr_span *block)
{
    size_t unit = block->offset_bytes >> ZR_UNIT_SHIFT, number = unit >> ZR_INDEX_LEAF_BITS;
    struct zr_index_leaf *leaf = zr_index_leaf_of(index, unit);
    if (__builtin_expect(!leaf, 0))
        leaf = zr_index_make_leaf(index, unit);
    atomic_store_explicit(&leaf->blocks[unit % ZR_INDEX_LEAF_UNITS], block, memory_order_release);
    if (zr_index_set_bit(&leaf->starts, unit) != 0)
        return;
    struct zr_index_chunk *chunk = leaf->chunk;
    if (zr_index_set_bit(&chunk->used, number) != 0)
        return;
    number = number >> ZR_INDEX_CHUNK_BITS;
    zr_index_set_bit(&chunk->region->used[number % ZR_INDEX_REGION_CHUNKS / 64], number);
}

/* Takes the block that starts at the offset out of the index and returns it; NULL if none does, and *freed
 * says whether one did before. With the lock. */
static inline struct zr_span *zr_index_take(struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT, number = unit >> ZR_INDEX_LEAF_BITS;
    struct zr_index_leaf *leaf = zr_index_leaf_of(index, unit);
    *freed = false;
    if (__builtin_expect(!leaf, 0))
        return NULL;
    _Atomic(struct zr_span *) *place = &leaf->blocks[unit % ZR_INDEX_LEAF_UNITS];
    struct zr_span *block = atomic_load_explicit(place, memory_order_relaxed);
    if (__builtin_expect((uintptr_t)block <= (uintptr_t)ZR_INDEX_FREED, 0)) {
        *freed = block == ZR_INDEX_FREED;
        return NULL;
    }
    atomic_store_explicit(place, ZR_INDEX_FREED, memory_order_release);
    if (zr_index_clear_bit(&leaf->starts, unit) != 0)
        return block;
    struct zr_index_chunk *chunk = leaf->chunk;
    if (zr_index_clear_bit(&chunk->used, number) != 0)
        return block;
    number = number >> ZR_INDEX_CHUNK_BITS;
    zr_index_clear_bit(&chunk->region->used[number % ZR_INDEX_REGION_CHUNKS / 64], number);
    return block;
}

/* No block of the index begins at the offset: whether another did that was freed. Remembered where that takes
 * no memory. With the lock. */
void zr_index_note(struct zr_index *index, size_t offset_bytes, bool freed);

/* The block that starts at the offset, NULL if none does; *freed says that one did before. With the lock. */
struct zr_span *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed);

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
