/* core.c: one allocation and one free of the core. Uses space.c, supply.c, index.c and streams.c.
 *
 * An allocation takes the first that exists: a freed block of the same size, the best fit in mapped memory,
 * the best fit with its missing memory mapped. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

#include "alloc/base/compiler.h"
#include "alloc/base/error.h"

/* ---- Space that becomes free --------------------------------------------------------------------------- */

/* Sets the stream that owns the block's free extent. False: the stream has no number, and there is no record
 * for another one. */
static bool find_owner(struct zr_arena *arena, struct zr_extent *block)
{
    unsigned owner = zr_streams_number(arena, block->stream);
    block->owner = (uint8_t)owner;
    if (owner)
        block->serial = zr_streams_count_free(arena, owner);
    return owner > 0;
}

static inline bool set_owner(struct zr_arena *arena, struct zr_extent *block)
{
    block->owner = 0;
    return likely(!arena->asynchronous) || find_owner(arena, block);
}

/* A stream without a number cannot own a free extent, so its work must complete first. No other thread has
 * the block meanwhile. */
static __attribute__((noinline)) bool wait_for_stream(struct zr_arena *arena, const struct zr_extent *block)
{
    uint64_t stream = block->stream;
    arena->backend_calls_count++;
    zr_arena_begin_driver_call(arena);
    bool passed = zr_backend_stream_wait(arena->backend, stream) == ZR_OK;
    zr_arena_end_driver_call(arena);
    return passed;
}

/* ---- The size cache ------------------------------------------------------------------------------------ */

/* Programs often request the size that they have just freed, so the size cache keeps a few freed blocks whole
 * for the next request of their size. */
static inline bool is_cached(const struct zr_extent *extent)
{
    return extent && extent->kind == ZR_EXTENT_CACHED;
}

/* The bit of the filter for a size. */
static inline unsigned filter_bit(size_t bytes)
{
    return (uint32_t)(bytes >> ZR_UNIT_SHIFT) * UINT32_C(0x9e3779b9) >> 26;
}

/* False: the size cache has no block of the size. */
static inline bool may_have_cached(const struct zr_arena *arena, size_t bytes)
{
    return arena->size_cache_filter >> filter_bit(bytes) & 1;
}

static inline struct zr_extent *remove_cached(struct zr_arena *arena, unsigned place)
{
    struct zr_extent *block = arena->size_cache[place];
    arena->size_cache[place] = NULL;
    arena->size_cache_bytes[place] = 0;
    if (--arena->size_cache_count == 0)
        arena->size_cache_filter = 0;
    return block;
}

/* Rebuild the size filter after a false positive. */
static inline void rebuild_filter(struct zr_arena *arena)
{
    arena->size_cache_filter = 0;
    for (unsigned i = 0; i < ZR_SIZE_CACHE_BLOCKS; i++)
        if (arena->size_cache[i])
            arena->size_cache_filter |= UINT64_C(1) << filter_bit(arena->size_cache_bytes[i]);
}

/* The bytes by which the smallest cached block of at least `bytes` exceeds the request; above SIZE_MAX / 2 if
 * there is no such block. */
static inline size_t cached_excess(const struct zr_arena *arena, size_t bytes)
{
    size_t excess = SIZE_MAX;
#pragma GCC unroll 4
    for (unsigned i = 0; i < ZR_SIZE_CACHE_BLOCKS; i++)
        if (arena->size_cache_bytes[i] - bytes < excess) /* wraps around for a smaller block */
            excess = arena->size_cache_bytes[i] - bytes;
    return excess;
}

static void evict_cached(struct zr_arena *arena, unsigned place)
{
    struct zr_extent *block = remove_cached(arena, place);
    /* The stream's work may have passed since the free. Nothing reports this again. */
    if (unlikely(block->owner) && zr_streams_passed(arena->streams[block->owner], block->serial))
        block->owner = 0;
    zr_space_free(arena, block);
}

/* Adds the freed block, which touches no free extent, and evicts the oldest block of a full cache. */
static void cache_block(struct zr_arena *arena, struct zr_extent *block)
{
    unsigned place = arena->size_cache_next;
    if (arena->size_cache[place])
        evict_cached(arena, place);
    block->kind = ZR_EXTENT_CACHED;
    arena->size_cache[place] = block;
    arena->size_cache_bytes[place] = block->bytes;
    arena->size_cache_filter |= UINT64_C(1) << filter_bit(block->bytes);
    arena->size_cache_count++;
    arena->size_cache_next = (place + 1) % ZR_SIZE_CACHE_BLOCKS;
}

void zr_arena_flush_size_cache(struct zr_arena *arena)
{
    for (unsigned i = 0; arena->size_cache_count > 0 && i < ZR_SIZE_CACHE_BLOCKS; i++)
        if (arena->size_cache[i])
            evict_cached(arena, i);
}

/* Takes the most recently freed block of the requested size that the stream may use. NULL: none. */
static struct zr_extent *take_cached_block(struct zr_arena *arena, const struct zr_request *request,
                                           struct zr_need need)
{
    for (unsigned age = 1; age <= ZR_SIZE_CACHE_BLOCKS; age++) {
        unsigned place = (arena->size_cache_next - age) % ZR_SIZE_CACHE_BLOCKS;
        struct zr_extent *block = arena->size_cache[place];
        if (arena->size_cache_bytes[place] == need.bytes &&
            (block->offset_bytes & (need.alignment - 1)) == 0 &&
            (!block->owner || block->stream == request->stream)) {
            remove_cached(arena, place);
            block->kind = ZR_EXTENT_BLOCK;
            return block;
        }
    }
    rebuild_filter(arena);
    return NULL;
}

/* A block that touches no free extent would be the best fit for its own size, so caching it changes no
 * placement and saves work. */
void zr_core_free(struct zr_arena *arena, struct zr_extent *block)
{
    if (unlikely(!set_owner(arena, block)) && !wait_for_stream(arena, block)) {
        zr_streams_defer_unnumbered(arena, block);
        return;
    }
    if (arena->size_cache_count > 0 && unlikely(is_cached(block->previous) || is_cached(block->next)))
        zr_arena_flush_size_cache(arena);
    if (zr_free_extent_beside(block, block->previous) || zr_free_extent_beside(block, block->next))
        zr_space_free(arena, block);
    else
        cache_block(arena, block);
}

void zr_arena_vacate(struct zr_arena *arena, struct zr_extent *block)
{
    if (block->zone == ZR_ZONE_COUNT) {
        arena->plan_calls->freed(arena, block);
        return;
    }
    if (set_owner(arena, block))
        zr_space_free(arena, block);
    else
        zr_streams_defer_unnumbered(arena, block);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* The number of the request's stream, which may use the free extents that the stream owns; 0: it owns none.
 */
static inline unsigned owner_of(struct zr_arena *arena, const struct zr_request *request)
{
    return unlikely(arena->asynchronous) ? zr_streams_find(arena, request->stream) : 0;
}

/* Undo the placement: the block's addresses become a free extent again. If the driver refuses to unmap a
 * part, the part becomes an extent that stays unused until the arena is destroyed and retries the unmap.
 * Without a record for that extent, the whole block becomes one. */
static void withdraw(struct zr_arena *arena, struct zr_extent *block, struct zr_bounds stuck)
{
    if (stuck.bytes > 0 && !zr_slab_reserve(&arena->extents, ZR_CARVE_EXTENTS)) {
        block->kind = ZR_EXTENT_DEFERRED;
        return;
    }
    zr_space_free(arena, block);
    if (stuck.bytes == 0)
        return;
    struct zr_extent *gap = arena->first;
    while (zr_extent_end(gap) <= stuck.offset_bytes)
        gap = gap->next;
    zr_space_carve(arena, gap, stuck)->kind = ZR_EXTENT_DEFERRED;
}

/* Searches again if cached blocks fit better or may merge into a mapped place, and if querying the streams
 * may save memory. */
static __attribute__((noinline)) void search_again(struct zr_arena *arena, const struct zr_request *request,
                                                   struct zr_need need, struct zr_place *place)
{
    bool mapped = place->gap && place->missing == 0;
    size_t excess = mapped ? place->gap->bytes - need.bytes : SIZE_MAX / 2; /* any cached block fits better */
    if (arena->size_cache_count > 0 && (!place->gap || cached_excess(arena, need.bytes) < excess)) {
        zr_arena_flush_size_cache(arena);
        *place = zr_space_find(arena, need, owner_of(arena, request));
    }
    if (arena->asynchronous && (!place->gap || place->missing > 0) && zr_space_pending_bytes(arena) > 0 &&
        zr_streams_poll(arena))
        *place = zr_space_find(arena, need, owner_of(arena, request));
}

/* Creates a block at the place and maps missing memory; no other thread has the block meanwhile. */
static zr_result build(struct zr_arena *arena, struct zr_place place, struct zr_need need,
                       struct zr_extent **out)
{
    if (!place.gap)
        return zr_fail(ZR_ERR_ADDRESSES, "no %zu consecutive free addresses are left of the %zu reserved",
                       need.bytes, arena->range_bytes);
    struct zr_bounds part = {place.offset_bytes, need.bytes}, stuck = {0};
    struct zr_extent *block = zr_space_carve(arena, place.gap, part);
    if (place.missing > 0 && arena->plan_calls)
        arena->plan_calls->spare(arena, place.missing * arena->granule_bytes);
    zr_result result = place.missing > 0 ? zr_map(arena, part, &stuck) : ZR_OK;
    /* Last resort: memory that a plan's region holds and does not use. */
    if (result == ZR_ERR_MEMORY && stuck.bytes == 0 && arena->plan_calls &&
        arena->plan_calls->give_back(arena) > 0)
        result = zr_map(arena, part, &stuck);
    if (result == ZR_OK && !zr_index_reserve(&arena->index)) /* another thread may have used the record */
        result = ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK)
        *out = block;
    else
        withdraw(arena, block, stuck);
    return result;
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

static inline struct zr_extent *hand_out(struct zr_arena *arena, const struct zr_request *request,
                                         struct zr_extent *block)
{
    block->slack_bytes = (uint32_t)(block->bytes - request->bytes);
    block->stream = request->stream;
    block->uses = NULL;
    block->tag = (uint8_t)request->tag;
    zr_index_insert(&arena->index, block);
    return block;
}

/* Allocates a cached block of the size, or the best fit in mapped memory. NULL: *place is the best fit. */
static inline __attribute__((always_inline)) struct zr_extent *
reuse(struct zr_arena *arena, const struct zr_request *request, struct zr_need need, struct zr_place *place)
{
    struct zr_extent *block = NULL;
    if (may_have_cached(arena, need.bytes))
        block = take_cached_block(arena, request, need);
    if (!block)
        block = zr_space_take(arena, need, owner_of(arena, request), cached_excess(arena, need.bytes), place);
    if (unlikely(!block)) {
        search_again(arena, request, need, place);
        if (!place->gap || place->missing > 0)
            return NULL;
        block = zr_space_carve(arena, place->gap, (struct zr_bounds){place->offset_bytes, need.bytes});
    }
    return hand_out(arena, request, block);
}

/* Makes sure that records exist for a block, for the free extents that it leaves, and for its index entry.
 * False: sets the error. */
static inline bool reserve_records(struct zr_arena *arena)
{
    return likely(arena->extents.spare_count >= ZR_PROMISED_EXTENTS && arena->index.cached &&
                  !atomic_load_explicit(&zr_fault_watched, memory_order_relaxed)) ||
           (zr_slab_reserve(&arena->extents, ZR_PROMISED_EXTENTS) && zr_index_reserve(&arena->index));
}

zr_result zr_core_try(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                      struct zr_extent **out)
{
    struct zr_place place;
    if (!reserve_records(arena))
        return ZR_ERR_HOST_MEMORY;
    *out = reuse(arena, request, need, &place);
    return ZR_OK;
}

struct zr_extent *zr_core_extent_before(const struct zr_arena *arena, size_t offset_bytes)
{
    struct zr_extent copy, *block = zr_index_before(&arena->index, offset_bytes, &copy);
    return block && copy.zone < ZR_ZONE_COUNT ? block
                                              : arena->first; /* the entry of a region is in no list */
}

struct zr_extent *zr_core_alloc_at(struct zr_arena *arena, const struct zr_request *request,
                                   struct zr_bounds place)
{
    if (!reserve_records(arena))
        return NULL;
    zr_arena_flush_size_cache(arena);
    struct zr_extent *block = zr_space_take_at(arena, zr_core_extent_before(arena, place.offset_bytes), place,
                                               owner_of(arena, request));
    return block ? hand_out(arena, request, block) : NULL;
}

zr_result zr_core_build_at(struct zr_arena *arena, const struct zr_request *request, struct zr_bounds place,
                           struct zr_extent **out)
{
    struct zr_need need = {place.bytes, ZR_UNIT_BYTES};
    size_t end = place.offset_bytes + place.bytes;
    *out = NULL;
    if (!reserve_records(arena))
        return ZR_ERR_HOST_MEMORY;
    zr_arena_flush_size_cache(arena);
    struct zr_extent *gap = zr_core_extent_before(arena, place.offset_bytes);
    while (gap && zr_extent_end(gap) <= place.offset_bytes)
        gap = gap->next;
    if (!gap || gap->kind != ZR_EXTENT_FREE || gap->owner || zr_extent_end(gap) < end)
        return ZR_OK;
    size_t first = place.offset_bytes >> arena->granule_shift, last = (end - 1) >> arena->granule_shift;
    size_t missing = last + 1 - first - zr_granules_mapped(arena->granules, first, last + 1);
    zr_result result = build(arena, (struct zr_place){gap, place.offset_bytes, missing}, need, out);
    if (result == ZR_OK)
        hand_out(arena, request, *out);
    return result;
}

/* The bytes of idle granules that a block at the place would use. */
static size_t idle_within(const struct zr_arena *arena, struct zr_place place, struct zr_need need)
{
    struct zr_granule_range whole = zr_free_extent_granules(arena, place.gap);
    size_t first = place.offset_bytes >> arena->granule_shift;
    size_t end = (place.offset_bytes + need.bytes + arena->granule_bytes - 1) >> arena->granule_shift;
    first = first > whole.first ? first : whole.first;
    end = end < whole.end ? end : whole.end;
    return place.gap->owner || first >= end
               ? 0
               : zr_granules_mapped(arena->granules, first, end) << arena->granule_shift;
}

/* The bytes that the driver must supply for the place, after idle memory elsewhere is used. */
static size_t growth_of(const struct zr_arena *arena, struct zr_place place, struct zr_need need)
{
    if (!place.gap || place.missing == 0)
        return 0;
    size_t missing = place.missing * arena->granule_bytes, within = idle_within(arena, place, need);
    size_t idle = zr_space_idle_up_to(arena, missing + within) + arena->granule_cache.bytes;
    return missing + within > idle ? missing + within - idle : 0;
}

/* Whether the pending bytes suffice for the need, or for one granule, so that waiting may avoid growth. */
static bool may_pass(const struct zr_arena *arena, struct zr_need need)
{
    size_t enough = need.bytes < arena->granule_bytes ? need.bytes : arena->granule_bytes;
    return zr_space_pending_bytes(arena) >= enough;
}

/* While the place needs memory from the driver, waits for pending memory, oldest first, and searches again.
 */
static zr_result avoid_growth(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                              struct zr_place *place)
{
    zr_arena_flush_size_cache(arena);
    *place = zr_space_find(arena, need, owner_of(arena, request));
    while (growth_of(arena, *place, need) > 0 && may_pass(arena, need)) {
        bool passed = zr_streams_wait(arena);
        if (!zr_slab_reserve(&arena->extents, ZR_PROMISED_EXTENTS)) /* another thread may have used them */
            return ZR_ERR_HOST_MEMORY;
        *place = zr_space_find(arena, need, owner_of(arena, request));
        if (!passed)
            break;
    }
    return ZR_OK;
}

__thread bool zr_thread_waits_to_grow __attribute__((tls_model("initial-exec")));

zr_result zr_core_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                        struct zr_extent **out)
{
    struct zr_place place;
    struct zr_extent *block;
    if (!reserve_records(arena))
        return ZR_ERR_HOST_MEMORY;
    *out = reuse(arena, request, need, &place);
    if (*out)
        return ZR_OK;
    zr_result result = ZR_OK;
    if (unlikely(zr_thread_waits_to_grow) && arena->asynchronous)
        result = avoid_growth(arena, request, need, &place);
    if (result == ZR_OK)
        result = build(arena, place, need, &block);
    /* Wait for pending memory before failing. Other threads may use the extents meanwhile, so search again.
     */
    while (unlikely(result != ZR_OK) && arena->asynchronous && zr_streams_wait(arena) &&
           zr_slab_reserve(&arena->extents, ZR_PROMISED_EXTENTS))
        result = build(arena, zr_space_find(arena, need, 0), need, &block);
    if (result == ZR_OK)
        *out = hand_out(arena, request, block);
    return result;
}
