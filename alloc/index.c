/* index.c: the tree of block starts, read under liburcu. Stands on record.c. */
#include "alloc/index.h"

#include <stdatomic.h>
#include <string.h>
#include <urcu/urcu-bp.h>

#include "alloc/error.h"

/* Units of 256 bytes: 64 to a leaf, 128 leaves to a chunk, 512 chunks to a region. */
enum { LEAF_BITS = 6, CHUNK_BITS = 7, REGION_BITS = 9 };
enum {
    CHUNK_SHIFT = LEAF_BITS,
    REGION_SHIFT = CHUNK_SHIFT + CHUNK_BITS,
    TOP_SHIFT = REGION_SHIFT + REGION_BITS
};
enum { LEAF_UNITS = 1 << LEAF_BITS, CHUNK_LEAVES = 1 << CHUNK_BITS, REGION_CHUNKS = 1 << REGION_BITS };

/* In a leaf, in the place of a block that was freed. */
#define FREED ((struct zr_span *)1)

struct leaf {
    _Atomic uint64_t starts; /* bit u: a block starts at unit u */
    _Atomic(struct zr_span *) blocks[LEAF_UNITS];
};

struct chunk {
    _Atomic uint64_t used[CHUNK_LEAVES / 64]; /* bit l: a block starts in leaf l */
    _Atomic(struct leaf *) leaves[CHUNK_LEAVES];
};

struct zr_index_region {
    _Atomic uint64_t used[REGION_CHUNKS / 64]; /* bit c: a block starts in chunk c */
    _Atomic(struct chunk *) chunks[REGION_CHUNKS];
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
    zr_pool_init(&index->chunks, sizeof(struct chunk), ZR_POOL_FAULTS);
    zr_pool_init(&index->leaves, sizeof(struct leaf), ZR_POOL_FAULTS);
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

/* One writer at a time: no read-modify-write needed. True if no bit of the word was set before. */
static inline bool set_bit(_Atomic uint64_t *words, size_t bit)
{
    uint64_t now = atomic_load_explicit(&words[bit / 64], memory_order_relaxed);
    atomic_store_explicit(&words[bit / 64], now | UINT64_C(1) << (bit % 64), memory_order_release);
    return now == 0;
}

/* True if no bit of the word is set now. */
static inline bool clear_bit(_Atomic uint64_t *words, size_t bit)
{
    uint64_t now =
        atomic_load_explicit(&words[bit / 64], memory_order_relaxed) & ~(UINT64_C(1) << (bit % 64));
    atomic_store_explicit(&words[bit / 64], now, memory_order_release);
    return now == 0;
}

static inline bool none_set(const _Atomic uint64_t *words, unsigned count)
{
    uint64_t any = 0;
    for (unsigned i = 0; i < count; i++)
        any |= atomic_load_explicit(&words[i], memory_order_relaxed);
    return any == 0;
}

/* The child at `link`, made of the pool's next record if there is none. */
static inline void *child_at(void *link, struct zr_pool *pool)
{
    _Atomic(void *) *child = link;
    void *below = atomic_load_explicit(child, memory_order_relaxed);
    if (__builtin_expect(!below, 0)) {
        below = memset(zr_pool_take(pool), 0, pool->record_bytes);
        atomic_store_explicit(child, below, memory_order_release);
    }
    return below;
}

void zr_index_insert(struct zr_index *index, struct zr_span *block)
{
    size_t unit = block->offset_bytes >> ZR_UNIT_SHIFT;
    struct zr_index_region *region = child_at(&index->regions[region_of(unit)], &index->region_records);
    struct chunk *chunk = child_at(&region->chunks[chunk_of(unit)], &index->chunks);
    struct leaf *leaf = child_at(&chunk->leaves[leaf_of(unit)], &index->leaves);
    atomic_store_explicit(&leaf->blocks[place_of(unit)], block, memory_order_release);
    /* What had blocks already has its bits above it set. */
    if (set_bit(&leaf->starts, place_of(unit)) && set_bit(chunk->used, leaf_of(unit)) &&
        set_bit(region->used, chunk_of(unit)))
        set_bit(index->used, region_of(unit));
}

/* Where a unit's block would be; all NULL where nothing ever was. */
struct path {
    struct zr_index_region *region;
    struct chunk *chunk;
    struct leaf *leaf;
};

static inline struct path path_to(const struct zr_index *index, size_t unit)
{
    struct path path = {0};
    if (region_of(unit) < index->regions_count)
        path.region = atomic_load_explicit(&index->regions[region_of(unit)], memory_order_relaxed);
    if (path.region)
        path.chunk = atomic_load_explicit(&path.region->chunks[chunk_of(unit)], memory_order_relaxed);
    if (path.chunk)
        path.leaf = atomic_load_explicit(&path.chunk->leaves[leaf_of(unit)], memory_order_relaxed);
    return path;
}

static inline struct zr_span *block_in(const struct leaf *leaf, size_t unit, bool *freed)
{
    struct zr_span *block =
        leaf ? atomic_load_explicit(&leaf->blocks[place_of(unit)], memory_order_relaxed) : NULL;
    *freed = block == FREED;
    return *freed ? NULL : block;
}

struct zr_span *zr_index_exact(const struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    return block_in(path_to(index, unit).leaf, unit, freed);
}

struct zr_span *zr_index_take(struct zr_index *index, size_t offset_bytes, bool *freed)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT;
    struct path path = path_to(index, unit);
    struct zr_span *block = block_in(path.leaf, unit, freed);
    if (!block)
        return NULL;
    atomic_store_explicit(&path.leaf->blocks[place_of(unit)], FREED, memory_order_release);
    if (clear_bit(&path.leaf->starts, place_of(unit)) && clear_bit(path.chunk->used, leaf_of(unit)) &&
        none_set(path.chunk->used, CHUNK_LEAVES / 64) && clear_bit(path.region->used, chunk_of(unit)) &&
        none_set(path.region->used, REGION_CHUNKS / 64))
        clear_bit(index->used, region_of(unit));
    return block;
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

/* The last bit set before `bit`, -1 if there is none. */
static inline ptrdiff_t bit_before(const _Atomic uint64_t *words, size_t bit)
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

/* The last block that starts in the leaf, chunk or region before the unit, leaf or chunk `end` of it. */
static struct zr_span *last_in_leaf(struct leaf *leaf, size_t end)
{
    for (ptrdiff_t at = bit_before(&leaf->starts, end); at >= 0; at = bit_before(&leaf->starts, (size_t)at)) {
        struct zr_span *block = atomic_load_explicit(&leaf->blocks[at], memory_order_acquire);
        if (block && block != FREED)
            return block;
    }
    return NULL;
}

static struct zr_span *last_in_chunk(struct chunk *chunk, size_t end)
{
    for (ptrdiff_t at = bit_before(chunk->used, end); at >= 0; at = bit_before(chunk->used, (size_t)at)) {
        struct leaf *leaf = atomic_load_explicit(&chunk->leaves[at], memory_order_acquire);
        struct zr_span *block = last_in_leaf(leaf, LEAF_UNITS);
        if (block)
            return block;
    }
    return NULL;
}

static struct zr_span *last_in_region(struct zr_index_region *region, size_t end)
{
    for (ptrdiff_t at = bit_before(region->used, end); at >= 0; at = bit_before(region->used, (size_t)at)) {
        struct chunk *chunk = atomic_load_explicit(&region->chunks[at], memory_order_acquire);
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
    struct chunk *chunk = NULL;
    struct leaf *leaf = NULL;
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
    for (ptrdiff_t at = block ? -1 : bit_before(index->used, end); at >= 0 && !block;
         at = bit_before(index->used, (size_t)at)) {
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
