/* index.h: from an address to the block that holds it, without a lock. Private to alloc/.
 *
 * A tree over the units of an arena's range: the block that may hold an address is the last one that starts
 * at or before it. Regions of 512 MiB have a slot for each chunk of 1 MiB. While at most one block starts in
 * a chunk, its slot names the block; else a node with a slot for each 16 KiB of it, and those have leaves
 * with a place for each unit in the same way. So large blocks, and small ones that are alone, take few cache
 * lines: a slot holds the bits that say below which of its node's slots blocks start, beside the pointer to
 * it.
 *
 * Writers hold the arena's lock; readers no lock, and writers know nothing of them. An extent that has left
 * the index may be used again at once: readers copy what it says and ask its sequence whether that was of one
 * moment. Nodes stay until the index ends. A read section is for what is found by way of a
 * block: the records of a plan, which go after a grace period.
 *
 * Why a reader is right while writers work: for as long as a block is live, the bits on its path are set, and
 * between it and any address in it no other block starts. A slot turns from a block to a node that has the
 * block in one step. A reader passes over bits that turn out empty, always downwards, so it comes to that
 * path. What a slot leads to and does not begin there, or has left, is as good as empty. A region that ever
 * had blocks is looked into.
 *
 * That a block was freed is remembered in its place until another block starts there: in a slot without a
 * node anywhere in the slot's stretch. */
#ifndef ZR_INDEX_H
#define ZR_INDEX_H

#include <stdatomic.h>
#include <stdint.h>

#include "alloc/base/slab.h"
#include "alloc/core/extent.h"

/* Units of 256 bytes: 64 to a leaf, 64 leaves to a chunk, 512 chunks to a region. */
enum { ZR_INDEX_LEAF_BITS = 6, ZR_INDEX_CHUNK_BITS = 6, ZR_INDEX_REGION_BITS = 9 };
enum {
    ZR_INDEX_LEAF_UNITS = 1 << ZR_INDEX_LEAF_BITS,
    ZR_INDEX_CHUNK_LEAVES = 1 << ZR_INDEX_CHUNK_BITS,
    ZR_INDEX_REGION_CHUNKS = 1 << ZR_INDEX_REGION_BITS
};

/* What is in a place: a pointer to a block's extent and ZR_INDEX_BLOCK; the number of the unit where a block
 * started that was freed, shifted, and ZR_INDEX_FREED; in a slot a node or leaf; or nothing, 0. */
typedef uintptr_t zr_index_entry;
enum { ZR_INDEX_BLOCK = 1, ZR_INDEX_FREED = 2, ZR_INDEX_KINDS = 3, ZR_INDEX_UNIT_SHIFT = 2 };

struct zr_index_slot {
    _Atomic uint64_t used; /* with a node or leaf, bit c: a block starts in its slot or unit c */
    _Atomic zr_index_entry entry;
};

struct zr_index_leaf {
    _Atomic zr_index_entry units[ZR_INDEX_LEAF_UNITS];
};

struct zr_index_node {
    struct zr_index_slot leaves[ZR_INDEX_CHUNK_LEAVES];
};

struct zr_index_region {
    _Atomic uint64_t used[ZR_INDEX_REGION_CHUNKS / 64]; /* bit c: a block starts in chunk c */
    struct zr_index_slot chunks[ZR_INDEX_REGION_CHUNKS];
};

struct zr_index {
    _Atomic(struct zr_index_region *) *regions; /* one per 512 MiB of the range */
    _Atomic uint64_t *used;                     /* bit r: blocks have started in region r, now or before */
    size_t regions_count;
    bool cached; /* each pool has the record that one more path may need: the next insert succeeds */
    struct zr_slab region_records, nodes, leaves;
};

zr_result zr_index_init(struct zr_index *index, size_t range_bytes);
void zr_index_end(struct zr_index *index);

/* Makes sure the next insert succeeds; false with words. */
bool zr_index_reserve(struct zr_index *index);
/* The slow half of an insert: no block and no node is where a block that starts at the unit would be entered.
 */
void zr_index_grow(struct zr_index *index, size_t unit);

/* A record stays an extent for as long as the arena lives: a reader may hold one that has become another
 * block's, or no block's, and the sequence tells. Both calls change nothing else that zr_extent_read()
 * copies. lock: arena->lock. Publish before the index shows the block; unpublish after it no longer does. */
static inline void zr_extent_publish(struct zr_extent *block)
{
    uint32_t sequence = atomic_load_explicit(&block->sequence, memory_order_relaxed);
    atomic_store_explicit(&block->sequence, sequence + 1, memory_order_release);
}
static inline void zr_extent_unpublish(struct zr_extent *block)
{
    uint32_t sequence = atomic_load_explicit(&block->sequence, memory_order_relaxed);
    atomic_store_explicit(&block->sequence, sequence + 1, memory_order_relaxed);
    /* Orders the later changes of the record. ThreadSanitizer knows no fences and does not watch readers. */
#if defined(__SANITIZE_THREAD__)
    atomic_signal_fence(memory_order_release);
#else
    atomic_thread_fence(memory_order_release);
#endif
}

/* Copies the place, size, slack, stream, tag and zone of a block as they were at one moment. False: it was in
 * no index. Any thread, without a lock. */
bool zr_extent_read(const struct zr_extent *extent, struct zr_extent *copy);

static inline zr_index_entry zr_index_entry_of(const struct zr_extent *block)
{
    return (uintptr_t)block | ZR_INDEX_BLOCK;
}

static inline zr_index_entry zr_index_freed_at(size_t unit)
{
    return unit << ZR_INDEX_UNIT_SHIFT | ZR_INDEX_FREED;
}

static inline bool zr_index_is_block(zr_index_entry entry)
{
    return entry & ZR_INDEX_BLOCK;
}

static inline bool zr_index_is_node(zr_index_entry entry)
{
    return (entry & ZR_INDEX_KINDS) == 0 && entry != 0;
}

/* Nothing is there, or what was there is freed. */
static inline bool zr_index_is_free(zr_index_entry entry)
{
    return (entry & ZR_INDEX_FREED) != 0 || entry == 0;
}

static inline struct zr_extent *zr_index_block_of(zr_index_entry entry)
{
    return (struct zr_extent *)(entry - ZR_INDEX_BLOCK);
}

static inline struct zr_index_region *zr_index_region_of(const struct zr_index *index, size_t unit)
{
    size_t number = unit >> ZR_INDEX_LEAF_BITS >> ZR_INDEX_CHUNK_BITS >> ZR_INDEX_REGION_BITS;
    return __builtin_expect(number < index->regions_count, 1)
               ? atomic_load_explicit(&index->regions[number], memory_order_relaxed)
               : NULL;
}

static inline size_t zr_index_chunk_of(size_t unit)
{
    return (unit >> ZR_INDEX_LEAF_BITS >> ZR_INDEX_CHUNK_BITS) % ZR_INDEX_REGION_CHUNKS;
}

static inline size_t zr_index_leaf_of(size_t unit)
{
    return (unit >> ZR_INDEX_LEAF_BITS) % ZR_INDEX_CHUNK_LEAVES;
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

/* A block starts, or none does any more, in what the slot of the node or the unit of the leaf is for. */
static inline bool zr_index_enter(struct zr_index_slot *slot, size_t child, _Atomic zr_index_entry *place,
                                  struct zr_extent *block)
{
    zr_extent_publish(block);
    atomic_store_explicit(place, zr_index_entry_of(block), memory_order_release);
    return zr_index_set_bit(&slot->used, child) == 0;
}

static inline bool zr_index_leave(struct zr_index_slot *slot, size_t child, _Atomic zr_index_entry *place,
                                  size_t unit)
{
    atomic_store_explicit(place, zr_index_freed_at(unit), memory_order_release);
    return zr_index_clear_bit(&slot->used, child) == 0;
}

/* Enters a block for which zr_index_reserve() was called; false if there is no room for it yet. */
static inline __attribute__((always_inline)) bool zr_index_try_insert(struct zr_index *index,
                                                                      struct zr_extent *block)
{
    size_t unit = block->offset_bytes >> ZR_UNIT_SHIFT, chunk = zr_index_chunk_of(unit);
    struct zr_index_region *region = zr_index_region_of(index, unit);
    if (__builtin_expect(!region, 0))
        return false;
    struct zr_index_slot *slot = &region->chunks[chunk];
    zr_index_entry entry = atomic_load_explicit(&slot->entry, memory_order_relaxed);
    bool first = true;
    if (zr_index_is_free(entry)) {
        zr_extent_publish(block);
        atomic_store_explicit(&slot->entry, zr_index_entry_of(block), memory_order_release);
    } else if (__builtin_expect(!zr_index_is_block(entry), 1)) {
        size_t number = zr_index_leaf_of(unit);
        struct zr_index_slot *inner = &((struct zr_index_node *)entry)->leaves[number];
        entry = atomic_load_explicit(&inner->entry, memory_order_relaxed);
        if (zr_index_is_free(entry)) {
            first = zr_index_enter(slot, number, &inner->entry, block);
        } else if (__builtin_expect(!zr_index_is_block(entry), 1)) {
            struct zr_index_leaf *leaf = (struct zr_index_leaf *)entry;
            size_t place = unit % ZR_INDEX_LEAF_UNITS;
            first = zr_index_enter(inner, place, &leaf->units[place], block) &&
                    zr_index_set_bit(&slot->used, number) == 0;
        } else {
            return false;
        }
    } else {
        return false;
    }
    if (first)
        zr_index_set_bit(&region->used[chunk / 64], chunk);
    return true;
}

static inline void zr_index_insert(struct zr_index *index, struct zr_extent *block)
{
    while (!zr_index_try_insert(index, block))
        zr_index_grow(index, block->offset_bytes >> ZR_UNIT_SHIFT);
}

/* The block of the entry if it starts at the offset; else NULL, and *freed says whether one did. */
static inline struct zr_extent *zr_index_match(zr_index_entry entry, size_t offset_bytes, bool *freed)
{
    struct zr_extent *block = zr_index_block_of(entry);
    if (__builtin_expect(zr_index_is_block(entry) && block->offset_bytes == offset_bytes, 1))
        return block;
    *freed = entry == zr_index_freed_at(offset_bytes >> ZR_UNIT_SHIFT);
    return NULL;
}

/* Takes the block that starts at the offset out of the index and returns it; NULL if none does, and *freed
 * says whether one did before, where that is known. With the lock. */
static inline struct zr_extent *zr_index_take(struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT, chunk = zr_index_chunk_of(unit);
    struct zr_index_region *region = zr_index_region_of(index, unit);
    struct zr_extent *block;
    bool last = true;
    *freed = false;
    if (__builtin_expect(!region, 0))
        return NULL;
    struct zr_index_slot *slot = &region->chunks[chunk];
    zr_index_entry entry = atomic_load_explicit(&slot->entry, memory_order_relaxed);
    if (!zr_index_is_node(entry)) {
        if (!(block = zr_index_match(entry, offset_bytes, freed)))
            return NULL;
        atomic_store_explicit(&slot->entry, zr_index_freed_at(unit), memory_order_release);
    } else {
        size_t number = zr_index_leaf_of(unit), place = unit % ZR_INDEX_LEAF_UNITS;
        struct zr_index_slot *inner = &((struct zr_index_node *)entry)->leaves[number];
        entry = atomic_load_explicit(&inner->entry, memory_order_relaxed);
        if (zr_index_is_node(entry)) {
            struct zr_index_leaf *leaf = (struct zr_index_leaf *)entry;
            entry = atomic_load_explicit(&leaf->units[place], memory_order_relaxed);
            if (!(block = zr_index_match(entry, offset_bytes, freed)))
                return NULL;
            last = zr_index_leave(inner, place, &leaf->units[place], unit) &&
                   zr_index_clear_bit(&slot->used, number) == 0;
        } else {
            if (!(block = zr_index_match(entry, offset_bytes, freed)))
                return NULL;
            last = zr_index_leave(slot, number, &inner->entry, unit);
        }
    }
    if (last)
        zr_index_clear_bit(&region->used[chunk / 64], chunk);
    zr_extent_unpublish(block);
    return block;
}

/* No block of the index begins at the offset: whether another did that was freed. Remembered where that takes
 * no memory. With the lock. */
void zr_index_note(struct zr_index *index, size_t offset_bytes, bool freed);

/* The block that starts at the offset, NULL if none does; *freed says that one did before, where that is
 * known. With the lock. */
struct zr_extent *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed);

/* The last block that starts at or before the offset, NULL if none: the caller looks whether it reaches that
 * far, in the copy (zr_extent_read()). Any thread; the block itself may be another by now without the arena's
 * lock. */
struct zr_extent *zr_index_before(const struct zr_index *index, size_t offset_bytes, struct zr_extent *copy);

/* ---- Read sections (readers.c) ------------------------------------------------------------------------- */

/* A writer waits for a grace period before it frees what read sections may read.
 *
 * A section is counted, and its thread is not known: no registration, no memory and no state of a thread is
 * needed, so a section begins in any thread, and nothing remains of it when the thread ends. A section is
 * short and does not sleep. Signal handlers that fork() may not interrupt it. */

/* Where a section is counted. */
typedef _Atomic uint64_t zr_reading;

/* Before the first section; again is fine. In a child after fork() only the sections of its one thread are
 * counted. */
void zr_readers_prepare(void);
/* Begins a section of the calling thread, which ends it by the pointer returned. Sections may nest. */
zr_reading *zr_read_begin(void);
void zr_read_end(zr_reading *reading);
/* Waits until every section that runs now has ended. The caller has no section, and no lock that a section
 * could want. */
void zr_readers_wait(void);

#endif
