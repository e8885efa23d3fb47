/* index.c: the tree of block starts, read under liburcu. Stands on record.c. */
#include "alloc/index.h"

#include <stdatomic.h>
#include <string.h>
#include <urcu/urcu-bp.h>

#include "alloc/error.h"

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

static inline unsigned chunk_of(size_t unit)
{
    return (unsigned)(unit >> REGION_SHIFT) & (REGION_CHUNKS - 1);
}

static inline unsigned leaf_of(size_t unit)
{
    return (unsigned)(unit >> CHUNK_SHIFT) & (CHUNK_LEAVES - 1);
}

static inline unsigned place_of(size_t unit)
{
    return (unsigned)unit & (LEAF_UNITS - 1);
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
    zr_pool_init(&index->region_records, sizeof(struct zr_index_region), ZR_POOL_FAULTS);
    zr_pool_init(&index->chunks, sizeof(struct zr_index_chunk), ZR_POOL_FAULTS);
    zr_pool_init(&index->leaves, sizeof(struct zr_index_leaf), ZR_POOL_FAULTS);
    return ZR_OK;
}

void zr_index_end(struct zr_index *index)
{
    zr_pool_end(&index->region_records);
    zr_pool_end(&index->chunks);
    zr_pool_end(&index->leaves);
    zr_pages_give(index->regions, top_bytes(index->regions_count));
    index->regions = NULL;
}

/* ---- Writers ------------------------------------------------------------------------------------------- */

bool zr_index_restock(struct zr_index *index)
{
    index->stocked = zr_pool_reserve(&index->leaves, 1) && zr_pool_reserve(&index->chunks, 1) &&
                     zr_pool_reserve(&index->region_records, 1);
    return index->stocked;
}

/* The child at `link`, made of the pool's next record if there is none. */
static void *child_at(struct zr_index *index, void *link, struct zr_pool *pool)
{
    _Atomic(void *) *child = link;
    void *below = atomic_load_explicit(child, memory_order_relaxed);
    if (!below) {
        index->stocked = false;
        below = memset(zr_pool_take(pool), 0, pool->record_bytes);
        atomic_store_explicit(child, below, memory_order_release);
    }
    return below;
}

struct zr_index_leaf *zr_index_make_leaf(struct zr_index *index, size_t unit)
{
    struct zr_index_region *region =
        child_at(index, &index->regions[region_of(unit)], &index->region_records);
    struct zr_index_chunk *chunk = child_at(index, &region->chunks[chunk_of(unit)], &index->chunks);
    struct zr_index_leaf *leaf = child_at(index, &chunk->leaves[leaf_of(unit)], &index->leaves);
    /* Upwards only writers go. */
    chunk->region = region;
    leaf->chunk = chunk;
    zr_index_set_bit(&index->used[region_of(unit) / 64], region_of(unit));
    return leaf;
}

void zr_index_note(struct zr_index *index, size_t offset_bytes, bool freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    struct zr_index_leaf *leaf = zr_index_leaf_of(index, unit);
    if (leaf)
        atomic_store_explicit(&leaf->blocks[place_of(unit)], freed ? ZR_INDEX_FREED : NULL,
                              memory_order_relaxed);
}

struct zr_span *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    struct zr_index_leaf *leaf = zr_index_leaf_of(index, unit);
    struct zr_span *block =
        leaf ? atomic_load_explicit(&leaf->blocks[place_of(unit)], memory_order_relaxed) : NULL;
    *freed = block == ZR_INDEX_FREED;
    return *freed ? NULL : block;
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

/* The last block that starts in the leaf, chunk or region before the unit, leaf or chunk `end` of it. */
static struct zr_span *last_in_leaf(struct zr_index_leaf *leaf, size_t end)
{
    for (ptrdiff_t at = zr_index_bit_before(&leaf->starts, end); at >= 0;
         at = zr_index_bit_before(&leaf->starts, (size_t)at)) {
        struct zr_span *block = atomic_load_explicit(&leaf->blocks[at], memory_order_acquire);
        if (block && block != ZR_INDEX_FREED)
            return block;
    }
    return NULL;
}

static struct zr_span *last_in_chunk(struct zr_index_chunk *chunk, size_t end)
{
    for (ptrdiff_t at = zr_index_bit_before(&chunk->used, end); at >= 0;
         at = zr_index_bit_before(&chunk->used, (size_t)at)) {
        struct zr_index_leaf *leaf = atomic_load_explicit(&chunk->leaves[at], memory_order_acquire);
        struct zr_span *block = last_in_leaf(leaf, LEAF_UNITS);
        if (block)
            return block;
    }
    return NULL;
}

static struct zr_span *last_in_region(struct zr_index_region *region, size_t end)
{
    for (ptrdiff_t at = zr_index_bit_before(region->used, end); at >= 0;
         at = zr_index_bit_before(region->used, (size_t)at)) {
        struct zr_index_chunk *chunk = atomic_load_explicit(&region->chunks[at], memory_order_acquire);
        struct zr_span *block = last_in_chunk(chunk, CHUNK_LEAVES);
        if (block)
            return block;
    }
    return NULL;
}

struct zr_span *zr_index_before(const struct zr_index *index, size_t offset_bytes)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    struct zr_index_region *region = NULL;
    struct zr_index_chunk *chunk = NULL;
    struct zr_index_leaf *leaf = NULL;
    struct zr_span *block = NULL;
    if (region_of(unit) < index->regions_count)
        region = atomic_load_explicit(&index->regions[region_of(unit)], memory_order_acquire);
    if (region)
        chunk = atomic_load_explicit(&region->chunks[chunk_of(unit)], memory_order_acquire);
    if (chunk)
        leaf = atomic_load_explicit(&chunk->leaves[leaf_of(unit)], memory_order_acquire);
    if (leaf)
        block = last_in_leaf(leaf, (size_t)place_of(unit) + 1);
    if (!block && chunk)
        block = last_in_chunk(chunk, leaf_of(unit));
    if (!block && region)
        block = last_in_region(region, chunk_of(unit));
    size_t end = region_of(unit) < index->regions_count ? region_of(unit) : index->regions_count;
    for (ptrdiff_t at = block ? -1 : zr_index_bit_before(index->used, end); at >= 0 && !block;
         at = zr_index_bit_before(index->used, (size_t)at)) {
        region = atomic_load_explicit(&index->regions[at], memory_order_acquire);
        block = last_in_region(region, REGION_CHUNKS);
    }
    return block;
}

/* ThreadSanitizer does not see the barriers inside liburcu: what a grace period orders is said in its terms.
 */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
static char grace_period;
#define reads_end()        __tsan_release(&grace_period)
#define reads_have_ended() __tsan_acquire(&grace_period)
#else
#define reads_end()        ((void)0)
#define reads_have_ended() ((void)0)
#endif

void zr_index_read_lock(void)
{
    urcu_bp_read_lock();
}

void zr_index_read_unlock(void)
{
    reads_end();
    urcu_bp_read_unlock();
}

void zr_index_synchronize(void)
{
    urcu_bp_synchronize_rcu();
    reads_have_ended();
}

void zr_index_before_fork(void)
{
    urcu_bp_before_fork();
}

void zr_index_after_fork_parent(void)
{
    urcu_bp_after_fork_parent();
}

void zr_index_after_fork_child(void)
{
    urcu_bp_after_fork_child();
}
