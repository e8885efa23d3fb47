/* index.h: from an address to the block that holds it, without a lock. Private to alloc/.
 *
 * The index is a tree over the units of an arena's range. The block that may hold an address is the last one
 * that starts at or before the address. A region of 512 MiB has a slot for each chunk of 1 MiB. While at most
 * one block starts in a chunk, the slot names that block. Otherwise the slot names a node with a slot for
 * each 16 KiB, and in the same way such a slot names a block or a leaf with a place for each unit. Large
 * blocks and isolated small blocks thus take few cache lines. A slot also holds a bitmap of the children of
 * its node in which blocks start.
 *
 * Writers hold the arena's lock. Readers hold no lock, and writers do not know of readers. An extent that has
 * left the index may be reused at once, so a reader copies the extent and checks its sequence: the copy is
 * valid if the sequence did not change. Nodes stay until the index ends. A read section protects only what is
 * reached through a block: the records of a plan, which are freed after a grace period.
 *
 * A reader is right while writers work for these reasons. While a block is live, the bits on its path are
 * set, and no other block starts between its start and any address in it. One store turns a slot from a block
 * into a node that has the block. A reader that finds nothing behind a set bit continues with lower bits, and
 * so reaches the block's path. An entry whose block starts elsewhere or has left the index counts as empty.
 * Readers search every region that ever had blocks.
 *
 * After a free, the place keeps the unit of the freed block until another block starts there. A slot without
 * a node keeps one such unit for all of its addresses. */
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

/* The content of a place: the pointer to a block's extent with ZR_INDEX_BLOCK; the number of the unit where a
 * freed block started, shifted, with ZR_INDEX_FREED; in a slot also the pointer to a node or leaf; 0:
 * nothing. */
typedef uintptr_t zr_index_entry;
enum { ZR_INDEX_BLOCK = 1, ZR_INDEX_FREED = 2, ZR_INDEX_KINDS = 3, ZR_INDEX_UNIT_SHIFT = 2 };

struct zr_index_slot {
    _Atomic uint64_t used; /* of a slot with a node or leaf, bit c: a block starts in its slot or unit c */
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
    _Atomic uint64_t *used;                     /* bit r: region r has or had blocks */
    size_t regions_count;
    bool cached; /* each slab has a spare record, so the next insert succeeds */
    struct zr_slab region_records, nodes, leaves;
};

zr_result zr_index_init(struct zr_index *index, size_t range_bytes);
void zr_index_end(struct zr_index *index);

/* Makes sure that the next insert succeeds. False: sets the error. */
bool zr_index_reserve(struct zr_index *index);
/* The slow half of an insert: adds the region, node or leaf that a block at the unit needs. */
void zr_index_grow(struct zr_index *index, size_t unit);

/* A record stays an extent while the arena lives, but may become the record of another block. A reader
 * detects this by the sequence. Both calls change nothing else that zr_extent_read() copies. Publish a block
 * before the index shows it, and unpublish it after the index no longer does. lock: arena->lock */
static inline void zr_extent_publish(struct zr_extent *block)
{
    uint32_t sequence = atomic_load_explicit(&block->sequence, memory_order_relaxed);
    atomic_store_explicit(&block->sequence, sequence + 1, memory_order_release);
}
static inline void zr_extent_unpublish(struct zr_extent *block)
{
    uint32_t sequence = atomic_load_explicit(&block->sequence, memory_order_relaxed);
    atomic_store_explicit(&block->sequence, sequence + 1, memory_order_relaxed);
    /* Orders the later changes of the record. ThreadSanitizer does not support fences and does not check
     * readers. */
#if defined(__SANITIZE_THREAD__)
    atomic_signal_fence(memory_order_release);
#else
    atomic_thread_fence(memory_order_release);
#endif
}

/* Copies the place, size, slack, stream, tag and zone of a block at one point in time. False: the extent was
 * in no index. Any thread, without a lock. */
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

/* Nothing is there, or a freed block was. */
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

/* Plain loads and stores suffice, because there is one writer at a time. Set returns the old word, clear the
 * new one. */
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

/* Enters or removes a block in `place`, which is child `child` of the slot's node or leaf. True: the slot
 * had, or now has, no other block. */
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

/* Enters a block after zr_index_reserve(). False: zr_index_grow() must add a level first. */
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

/* The block of the entry if it starts at the offset; else NULL, and *freed says whether a block that was
 * freed did. */
static inline struct zr_extent *zr_index_match(zr_index_entry entry, size_t offset_bytes, bool *freed)
{
    struct zr_extent *block = zr_index_block_of(entry);
    if (__builtin_expect(zr_index_is_block(entry) && block->offset_bytes == offset_bytes, 1))
        return block;
    *freed = entry == zr_index_freed_at(offset_bytes >> ZR_UNIT_SHIFT);
    return NULL;
}

/* Removes the block that starts at the offset and returns it. NULL: no block starts there, and *freed says
 * whether one did before, if that is known. lock: arena->lock */
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

/* For an offset where no block starts: stores whether a freed block started there, if that takes no memory.
 * lock: arena->lock */
void zr_index_note(struct zr_index *index, size_t offset_bytes, bool freed);

/* The block that starts at the offset; NULL: none, and *freed says whether one did before, if that is known.
 * lock: arena->lock */
struct zr_extent *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed);

/* The last block that starts at or before the offset; NULL: none. The caller checks in the copy
 * (zr_extent_read()) whether the block reaches the offset. Any thread. Without the arena's lock the extent
 * may have become another block since. */
struct zr_extent *zr_index_before(const struct zr_index *index, size_t offset_bytes, struct zr_extent *copy);

/* ---- Read sections (readers.c) ------------------------------------------------------------------------- */

/* A writer waits for a grace period before it frees what read sections may read.
 *
 * Sections are counted, and their threads are not registered. A section therefore needs no memory and no
 * state of a thread, may begin in any thread, and leaves nothing behind when the thread ends. A section is
 * short and does not sleep. Signal handlers that fork() may not interrupt a section. */

/* The counter of a section. */
typedef _Atomic uint64_t zr_reading;

/* Call it before the first section; further calls do nothing. In a child after fork() only the sections of
 * the child's one thread count. */
void zr_readers_prepare(void);
/* Begins a section of the calling thread. Pass the result to zr_read_end(). Sections may nest. */
zr_reading *zr_read_begin(void);
void zr_read_end(zr_reading *reading);
/* Waits until every current section has ended. The caller is in no section, and holds no lock that a section
 * may acquire. */
void zr_readers_wait(void);

#endif
