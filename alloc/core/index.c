/* index.c: the tree of block starts, read without a lock. Uses slab.c and readers.c. */
#include "alloc/core/index.h"

#include <stdatomic.h>
#include <string.h>

#include "alloc/base/error.h"

enum {
    CHUNK_SHIFT = ZR_INDEX_LEAF_BITS,
    REGION_SHIFT = CHUNK_SHIFT + ZR_INDEX_CHUNK_BITS,
    TOP_SHIFT = REGION_SHIFT + ZR_INDEX_REGION_BITS,
    LEAF_UNITS = ZR_INDEX_LEAF_UNITS,
    CHUNK_LEAVES = ZR_INDEX_CHUNK_LEAVES,
    REGION_CHUNKS = ZR_INDEX_REGION_CHUNKS
};

static inline size_t region_of(size_t unit)
{
    return unit >> TOP_SHIFT;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static inline size_t top_bytes(size_t regions_count)
{
    return regions_count * sizeof(void *) + (regions_count + 63) / 64 * sizeof(uint64_t);
}

zr_result zr_index_init(struct zr_index *index, size_t range_bytes)
{
    size_t count = region_of((range_bytes - 1) >> ZR_UNIT_SHIFT) + 1;
    memset(index, 0, sizeof *index);
    index->regions = zr_pages_take(top_bytes(count));
    if (!index->regions)
        return ZR_ERR_HOST_MEMORY;
    index->used = (_Atomic uint64_t *)(index->regions + count);
    index->regions_count = count;
    zr_slab_init(&index->region_records, sizeof(struct zr_index_region), ZR_POOL_FAULTS);
    zr_slab_init(&index->nodes, sizeof(struct zr_index_node), ZR_POOL_FAULTS);
    zr_slab_init(&index->leaves, sizeof(struct zr_index_leaf), ZR_POOL_FAULTS);
    zr_readers_prepare();
    return ZR_OK;
}

void zr_index_end(struct zr_index *index)
{
    zr_slab_end(&index->region_records);
    zr_slab_end(&index->nodes);
    zr_slab_end(&index->leaves);
    zr_pages_give(index->regions, top_bytes(index->regions_count));
    index->regions = NULL;
}

/* ---- Writers ------------------------------------------------------------------------------------------- */

bool zr_index_reserve(struct zr_index *index)
{
    index->cached = zr_slab_reserve(&index->leaves, 1) && zr_slab_reserve(&index->nodes, 1) &&
                    zr_slab_reserve(&index->region_records, 1);
    return index->cached;
}

static void *take_record(struct zr_index *index, struct zr_slab *pool)
{
    index->cached = false;
    return memset(zr_slab_take(pool), 0, pool->record_bytes);
}

/* Moves the slot's block down into a node or leaf: `place` is the block's place there, `child` its number. */
static void move_down(struct zr_index_slot *slot, size_t child, _Atomic zr_index_entry *place,
                      zr_index_entry below)
{
    atomic_store_explicit(place, atomic_load_explicit(&slot->entry, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&slot->used, UINT64_C(1) << child, memory_order_relaxed);
    atomic_store_explicit(&slot->entry, below, memory_order_release);
}

void zr_index_grow(struct zr_index *index, size_t unit)
{
    struct zr_index_region *region = zr_index_region_of(index, unit);
    if (!region) {
        region = take_record(index, &index->region_records);
        atomic_store_explicit(&index->regions[region_of(unit)], region, memory_order_release);
        zr_index_set_bit(&index->used[region_of(unit) / 64], region_of(unit));
        return;
    }
    struct zr_index_slot *slot = &region->chunks[zr_index_chunk_of(unit)];
    zr_index_entry entry = atomic_load_explicit(&slot->entry, memory_order_relaxed);
    if (zr_index_is_block(entry)) {
        size_t child = zr_index_leaf_of(zr_index_block_of(entry)->offset_bytes >> ZR_UNIT_SHIFT);
        struct zr_index_node *node = take_record(index, &index->nodes);
        move_down(slot, child, &node->leaves[child].entry, (uintptr_t)node);
        return;
    }
    slot = &((struct zr_index_node *)entry)->leaves[zr_index_leaf_of(unit)];
    entry = atomic_load_explicit(&slot->entry, memory_order_relaxed);
    size_t child = (zr_index_block_of(entry)->offset_bytes >> ZR_UNIT_SHIFT) % LEAF_UNITS;
    struct zr_index_leaf *leaf = take_record(index, &index->leaves);
    move_down(slot, child, &leaf->units[child], (uintptr_t)leaf);
}

/* The place of a block that starts at the unit, at the lowest existing level; NULL if there is no region. */
static _Atomic zr_index_entry *place_of(const struct zr_index *index, size_t unit)
{
    struct zr_index_region *region = zr_index_region_of(index, unit);
    if (!region)
        return NULL;
    _Atomic zr_index_entry *place = &region->chunks[zr_index_chunk_of(unit)].entry;
    zr_index_entry entry = atomic_load_explicit(place, memory_order_relaxed);
    if (!zr_index_is_node(entry))
        return place;
    place = &((struct zr_index_node *)entry)->leaves[zr_index_leaf_of(unit)].entry;
    entry = atomic_load_explicit(place, memory_order_relaxed);
    return zr_index_is_node(entry) ? &((struct zr_index_leaf *)entry)->units[unit % LEAF_UNITS] : place;
}

void zr_index_note(struct zr_index *index, size_t offset_bytes, bool freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    _Atomic zr_index_entry *place = place_of(index, unit);
    zr_index_entry entry = place ? atomic_load_explicit(place, memory_order_relaxed) : 0;
    if (!place || !zr_index_is_free(entry))
        return;
    if (freed)
        atomic_store_explicit(place, zr_index_freed_at(unit), memory_order_relaxed);
    else if (entry == zr_index_freed_at(unit))
        atomic_store_explicit(place, 0, memory_order_relaxed);
}

struct zr_extent *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    _Atomic zr_index_entry *place = place_of(index, unit);
    zr_index_entry entry = place ? atomic_load_explicit(place, memory_order_relaxed) : 0;
    *freed = entry == zr_index_freed_at(unit);
    return zr_index_is_block(entry) && zr_index_block_of(entry)->offset_bytes >> ZR_UNIT_SHIFT == unit
               ? zr_index_block_of(entry)
               : NULL;
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread)) /* may read a torn record; the check of the sequence discards it */
#endif
bool zr_extent_read(const struct zr_extent *extent, struct zr_extent *copy)
{
    uint32_t sequence = atomic_load_explicit(&extent->sequence, memory_order_acquire);
    if (sequence % 2 == 0)
        return false;
    /* No load may move after the second load of the sequence. */
    copy->offset_bytes = __atomic_load_n(&extent->offset_bytes, __ATOMIC_ACQUIRE);
    copy->bytes = __atomic_load_n(&extent->bytes, __ATOMIC_ACQUIRE);
    copy->slack_bytes = __atomic_load_n(&extent->slack_bytes, __ATOMIC_ACQUIRE);
    copy->stream = __atomic_load_n(&extent->stream, __ATOMIC_ACQUIRE);
    copy->tag = __atomic_load_n(&extent->tag, __ATOMIC_ACQUIRE);
    copy->zone = __atomic_load_n(&extent->zone, __ATOMIC_ACQUIRE);
    return atomic_load_explicit(&extent->sequence, memory_order_relaxed) == sequence;
}

/* A search for the last block that starts at or before the unit. */
struct search {
    size_t unit;
    struct zr_extent *copy;
};

/* Each function searches the 1 << shift units from `first` on. */

static struct zr_extent *in_entry(const struct search *search, zr_index_entry entry, size_t first,
                                  unsigned shift)
{
    struct zr_extent *block = zr_index_is_block(entry) ? zr_index_block_of(entry) : NULL;
    if (!block || !zr_extent_read(block, search->copy))
        return NULL;
    size_t unit = search->copy->offset_bytes >> ZR_UNIT_SHIFT;
    return unit <= search->unit && unit >= first && (unit - first) >> shift == 0 ? block : NULL;
}

/* How many of `count` children, of 1 << shift units each, begin at or before the unit. */
static inline size_t children_until(const struct search *search, size_t first, unsigned shift, size_t count)
{
    size_t until = ((search->unit - first) >> shift) + 1;
    return until < count ? until : count;
}

static struct zr_extent *last_in_leaf(const struct search *search, const struct zr_index_slot *slot,
                                      size_t first)
{
    zr_index_entry entry = atomic_load_explicit(&slot->entry, memory_order_acquire);
    if (!zr_index_is_node(entry))
        return in_entry(search, entry, first, CHUNK_SHIFT);
    struct zr_index_leaf *leaf = (struct zr_index_leaf *)entry;
    for (ptrdiff_t at = zr_index_bit_before(&slot->used, children_until(search, first, 0, LEAF_UNITS));
         at >= 0; at = zr_index_bit_before(&slot->used, (size_t)at)) {
        entry = atomic_load_explicit(&leaf->units[at], memory_order_acquire);
        struct zr_extent *block = in_entry(search, entry, first + (size_t)at, 0);
        if (block)
            return block;
    }
    return NULL;
}

static struct zr_extent *last_in_chunk(const struct search *search, const struct zr_index_slot *slot,
                                       size_t first)
{
    zr_index_entry entry = atomic_load_explicit(&slot->entry, memory_order_acquire);
    if (!zr_index_is_node(entry))
        return in_entry(search, entry, first, REGION_SHIFT);
    struct zr_index_node *node = (struct zr_index_node *)entry;
    for (ptrdiff_t at =
             zr_index_bit_before(&slot->used, children_until(search, first, CHUNK_SHIFT, CHUNK_LEAVES));
         at >= 0; at = zr_index_bit_before(&slot->used, (size_t)at)) {
        struct zr_extent *block =
            last_in_leaf(search, &node->leaves[at], first + ((size_t)at << CHUNK_SHIFT));
        if (block)
            return block;
    }
    return NULL;
}

static struct zr_extent *last_in_region(const struct search *search, const struct zr_index_region *region,
                                        size_t first)
{
    for (ptrdiff_t at =
             zr_index_bit_before(region->used, children_until(search, first, REGION_SHIFT, REGION_CHUNKS));
         at >= 0; at = zr_index_bit_before(region->used, (size_t)at)) {
        struct zr_extent *block =
            last_in_chunk(search, &region->chunks[at], first + ((size_t)at << REGION_SHIFT));
        if (block)
            return block;
    }
    return NULL;
}

struct zr_extent *zr_index_before(const struct zr_index *index, size_t offset_bytes, struct zr_extent *copy)
{
    const struct search search = {offset_bytes >> ZR_UNIT_SHIFT, copy};
    size_t own = region_of(search.unit), end = own < index->regions_count ? own + 1 : index->regions_count;
    for (ptrdiff_t at = zr_index_bit_before(index->used, end); at >= 0;
         at = zr_index_bit_before(index->used, (size_t)at)) {
        const struct zr_index_region *region =
            atomic_load_explicit(&index->regions[at], memory_order_acquire);
        struct zr_extent *block = region ? last_in_region(&search, region, (size_t)at << TOP_SHIFT) : NULL;
        if (block)
            return block;
    }
    return NULL;
}
