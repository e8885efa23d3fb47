/* contiguous.c: contiguous pools: creation, entries by handle, statistics and checks. Uses
 * contiguous_space.c and contiguous_compact.c; zr.h has the contract. */
#define _GNU_SOURCE
#include "alloc/pool/contiguous.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/option.h"
#include "alloc/core/calls.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"

/* Records that one append may need: its extent, and the remainder of an extent that it splits. */
enum { APPEND_EXTENTS = 2 };
enum { ALIGNMENT_MIN = 16 };
/* A handle is a slot in a table, whose pages take no memory until they are used. */
#define SLOTS_MAX ((uint32_t)1 << 20)

/* ---- All pools of the process -------------------------------------------------------------------------- */

/* A change of the list holds both locks, change_lock first. A search holds pools_lock only, because fork()
 * holds change_lock while it waits for pools' locks, and a map callback may search while a pool's lock is
 * held. */
static pthread_mutex_t change_lock = PTHREAD_MUTEX_INITIALIZER, pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_contiguous *pools;

static void close_list(void)
{
    pthread_mutex_lock(&pools_lock);
}

static void open_list(bool child)
{
    (void)child;
    pthread_mutex_unlock(&pools_lock);
}

static void before_fork(struct zr_fork_locks *locks)
{
    pthread_mutex_lock(&change_lock);
    for (struct zr_contiguous *pool = pools; pool; pool = pool->next)
        zr_fork_take(locks, &pool->lock);
}

static void after_fork(struct zr_fork_locks *locks)
{
    for (struct zr_contiguous *pool = pools; pool; pool = pool->next)
        zr_fork_give(locks, &pool->lock);
    pthread_mutex_unlock(&change_lock);
}

static void enlist(struct zr_contiguous *pool)
{
    static const struct zr_fork_room room = {before_fork, after_fork, close_list, open_list};
    zr_fork_register(ZR_FORK_POOLS, &room);
    pthread_mutex_lock(&change_lock);
    pthread_mutex_lock(&pools_lock);
    pool->next = pools;
    if (pools)
        pools->before = pool;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    pthread_mutex_unlock(&change_lock);
    zr_lock_acquire(&pool->arena->lock);
    atomic_store(&pool->arena->pool_calls, &zr_contiguous_calls);
    pool->next_of_arena = pool->arena->pools;
    pool->arena->pools = pool;
    zr_lock_release(&pool->arena->lock);
}

static void delist(struct zr_contiguous *pool)
{
    pthread_mutex_lock(&change_lock);
    pthread_mutex_lock(&pools_lock);
    *(pool->before ? &pool->before->next : &pools) = pool->next;
    if (pool->next)
        pool->next->before = pool->before;
    pthread_mutex_unlock(&pools_lock);
    pthread_mutex_unlock(&change_lock);
    zr_lock_acquire(&pool->arena->lock);
    struct zr_contiguous **link = &pool->arena->pools;
    while (*link != pool)
        link = &(*link)->next_of_arena;
    *link = pool->next_of_arena;
    zr_lock_release(&pool->arena->lock);
}

/* Finds the entry that contains the offset. lock: pool->view */
static bool find_entry(const struct zr_contiguous *pool, size_t offset_bytes, struct zr_block_info *out)
{
    const struct zr_pool_extent *extent = pool->first;
    while (extent && zr_pool_extent_end(extent) <= offset_bytes)
        extent = extent->next;
    if (!extent || extent->kind != ZR_POOL_EXTENT_LIVE || extent->offset_bytes > offset_bytes)
        return false;
    *out = (struct zr_block_info){.address = pool->base + extent->offset_bytes,
                                  .bytes = extent->requested_bytes,
                                  .reserved_bytes = extent->bytes,
                                  .tag = pool->tag,
                                  .stream = extent->stream};
    return true;
}

static bool find_in_pools(const struct zr_arena *arena, const void *pointer, struct zr_block_info *out)
{
    bool found = false;
    pthread_mutex_lock(&pools_lock);
    for (struct zr_contiguous *pool = pools; pool && !found; pool = pool->next) {
        size_t offset_bytes = (size_t)((const char *)pointer - pool->base);
        if (pool->arena != arena || offset_bytes >= pool->limit_bytes)
            continue;
        zr_lock_acquire(&pool->view);
        found = find_entry(pool, offset_bytes, out);
        zr_lock_release(&pool->view);
    }
    pthread_mutex_unlock(&pools_lock);
    return found;
}

static const char *name_in_pools(const struct zr_arena *arena)
{
    return arena->pools ? arena->pools->name : NULL;
}

const struct zr_pool_calls zr_contiguous_calls = {zr_pools_counters, find_in_pools, name_in_pools};

/* ---- Create and destroy -------------------------------------------------------------------------------- */

/* Reserves the requested addresses. Without a request, reserves the size of the arena's range, halved until
 * the system has enough addresses. */
static zr_result reserve_range(struct zr_contiguous *pool, size_t requested_bytes)
{
    size_t bytes = requested_bytes ? requested_bytes : pool->arena->range->bytes;
    if (bytes > SIZE_MAX / 2)
        return zr_fail(ZR_ERR_INVALID, "a reservation of %zu bytes exceeds the address space", bytes);
    zr_result result;
    for (;; bytes /= 2) {
        bytes = zr_round_up(bytes, pool->granule_bytes);
        result = zr_backend_reserve(pool->backend, bytes, &pool->range);
        if (result != ZR_ERR_ADDRESSES || requested_bytes || bytes < 32 * pool->granule_bytes)
            break;
    }
    pool->limit_bytes = bytes;
    return result;
}

static void free_pool(struct zr_contiguous *pool)
{
    if (pool->range) {
        zr_result result = zr_backend_release(pool->range);
        zr_assert(result == ZR_OK);
    }
    zr_pages_give(pool->slots, SLOTS_MAX * sizeof *pool->slots);
    zr_slab_end(&pool->extents);
    zr_pages_give(pool, sizeof *pool);
}

zr_result zr_contiguous_create(zr_contiguous **out, const struct zr_contiguous_options *options)
{
    struct zr_contiguous_options own;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_create: out is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_contiguous_options, map_callback, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (!options->arena)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_create: arena is NULL");
    if ((unsigned)options->tag >= ZR_TAG_COUNT)
        return zr_fail(ZR_ERR_INVALID, "%d is not a tag", (int)options->tag);
    struct zr_contiguous *pool = zr_pages_take(sizeof *pool);
    if (!pool)
        return ZR_ERR_HOST_MEMORY;
    snprintf(pool->name, sizeof pool->name, "%s", options->name ? options->name : "pool");
    pool->arena = options->arena;
    pool->backend = options->arena->backend;
    pool->granule_bytes = options->arena->granule_bytes;
    pool->tag = options->tag;
    pool->map_callback = options->map_callback;
    pool->keep_bytes = options->keep_bytes;
    zr_slab_init(&pool->extents, sizeof(struct zr_pool_extent), ZR_POOL_FAULTS);
    pool->slots = zr_pages_take(SLOTS_MAX * sizeof *pool->slots);
    result = pool->slots ? reserve_range(pool, options->reserve_bytes) : ZR_ERR_HOST_MEMORY;
    if (result != ZR_OK) {
        free_pool(pool);
        return result;
    }
    pool->base = pool->range->address;
    enlist(pool);
    *out = pool;
    return ZR_OK;
}

zr_result zr_contiguous_destroy(zr_contiguous *pool, size_t *leaked_bytes)
{
    zr_result result = ZR_OK;
    if (leaked_bytes)
        *leaked_bytes = pool ? pool->live_bytes : 0;
    if (!pool)
        return ZR_OK;
    zr_lock_acquire(&pool->lock);
    size_t mapped_bytes = pool->mapped_bytes;
    if (!zr_contiguous_release_all(pool)) {
        char reason[256];
        snprintf(reason, sizeof reason, "%s", zr_last_error());
        result = zr_fail(ZR_ERR_UNAVAILABLE, "addresses of %zu bytes of pool \"%s\" stay mapped: %s",
                         mapped_bytes, pool->name, reason);
    }
    zr_contiguous_publish(pool);
    zr_lock_release(&pool->lock);
    delist(pool);
    free_pool(pool);
    return result;
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

static zr_entry entry_of(const struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    return ((uint64_t)pool->slots[extent->number].generation << 32) | (extent->number + 1);
}

static bool slot_left(const struct zr_contiguous *pool)
{
    return pool->free_slot != 0 || pool->slots_count < SLOTS_MAX;
}

static void slot_take(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    uint32_t number = pool->free_slot ? pool->free_slot - 1 : pool->slots_count++;
    struct zr_entry_slot *slot = &pool->slots[number];
    if (pool->free_slot)
        pool->free_slot = slot->next_free;
    slot->extent = extent;
    extent->number = number;
}

static void slot_give(struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    struct zr_entry_slot *slot = &pool->slots[extent->number];
    slot->extent = NULL;
    slot->generation++;
    slot->next_free = pool->free_slot;
    pool->free_slot = extent->number + 1;
}

/* Finds the extent of a live entry. */
static zr_result find_extent(struct zr_contiguous *pool, zr_entry entry, struct zr_pool_extent **out)
{
    uint32_t number = (uint32_t)entry - 1, generation = (uint32_t)(entry >> 32);
    const struct zr_entry_slot *slot = number < pool->slots_count ? &pool->slots[number] : NULL;
    *out = NULL;
    if (!slot || generation > slot->generation || (generation == slot->generation && !slot->extent))
        return zr_fail(ZR_ERR_FOREIGN, "%#llx is not an entry of pool \"%s\"", (unsigned long long)entry,
                       pool->name);
    if (generation < slot->generation)
        return zr_fail(ZR_ERR_DOUBLE_FREE, "entry %#llx of pool \"%s\" was freed before",
                       (unsigned long long)entry, pool->name);
    *out = slot->extent;
    return ZR_OK;
}

/* Ends a call: updates the arena's totals, releases the lock, and checks the pool if ZR_CONF=check requests
 * it. */
static void release_pool(struct zr_contiguous *pool)
{
    zr_contiguous_publish(pool);
    zr_lock_release(&pool->lock);
    if (pool->arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_contiguous_check(pool) == ZR_OK);
}

/* ---- Appending ----------------------------------------------------------------------------------------- */

static zr_result check_request(const struct zr_contiguous *pool, const struct zr_entry_request *request,
                               struct zr_pool_extent *extent)
{
    size_t alignment = request->alignment ? request->alignment : ZR_UNIT_BYTES;
    if (request->bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_append: a request of 0 bytes");
    if (request->bytes > PTRDIFF_MAX - 2 * pool->granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "an entry of %zu bytes exceeds the address space", request->bytes);
    if ((alignment & (alignment - 1)) != 0 || alignment < ALIGNMENT_MIN || alignment > pool->granule_bytes)
        return zr_fail(ZR_ERR_INVALID,
                       "alignment %zu: must be a power of two from %d to the granule size, %zu", alignment,
                       ALIGNMENT_MIN, pool->granule_bytes);
    uint64_t stream = request->stream;
    zr_result result = zr_backend_stream_name(pool->backend, &stream);
    if (result != ZR_OK)
        return result;
    *extent = (struct zr_pool_extent){
        .bytes = zr_round_up(request->bytes, alignment < ZR_UNIT_BYTES ? alignment : ZR_UNIT_BYTES),
        .requested_bytes = request->bytes,
        .alignment = alignment,
        .stream = stream,
        .movable = request->movable,
    };
    return ZR_OK;
}

/* Places the extent after the last entry and maps granules. *after gets the last extent before it. Pending
 * extents of the same stream may be overwritten. */
static zr_result find_place(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                            struct zr_pool_extent **after)
{
    struct zr_pool_extent *last = pool->last;
    while (last && last->kind == ZR_POOL_EXTENT_PENDING && last->stream == extent->stream)
        last = last->previous;
    *after = last;
    extent->offset_bytes = zr_round_up(last ? zr_pool_extent_end(last) : 0, extent->alignment);
    if (extent->offset_bytes > pool->limit_bytes || extent->bytes > pool->limit_bytes - extent->offset_bytes)
        return zr_fail(ZR_ERR_ADDRESSES,
                       "pool \"%s\" has no %zu addresses left of the %zu it reserved (%zu bytes live): "
                       "compact it, or reserve more",
                       pool->name, extent->bytes, pool->limit_bytes, pool->live_bytes);
    return zr_contiguous_back(pool, (struct zr_bounds){extent->offset_bytes, extent->bytes});
}

static zr_result report_exhausted(struct zr_contiguous *pool, zr_result result, size_t bytes)
{
    char cause[320];
    if (result != ZR_ERR_MEMORY)
        return result;
    snprintf(cause, sizeof cause, "%s", zr_last_error());
    return zr_fail(
        result,
        "pool \"%s\" has no %zu bytes for %s: %zu live, %zu held in granules, %zu still in use by streams. Cause: %s. What would help: compacting the pool, a larger limit, or freeing other memory of the arena",
        pool->name, bytes, zr_tag_name(pool->tag), pool->live_bytes, pool->held_bytes, pool->pending_bytes,
        cause);
}

/* Appends an entry. lock: pool->lock */
static zr_result append(struct zr_contiguous *pool, const struct zr_pool_extent *like,
                        struct zr_pool_extent **out)
{
    struct zr_pool_extent wanted = *like, *after;
    zr_contiguous_poll(pool, wanted.stream);
    if (!slot_left(pool))
        return zr_fail(ZR_ERR_HOST_MEMORY, "pool \"%s\" has %u entries, the maximum", pool->name, SLOTS_MAX);
    if (!zr_slab_reserve(&pool->extents, APPEND_EXTENTS))
        return ZR_ERR_HOST_MEMORY;
    zr_result result = find_place(pool, &wanted, &after);
    /* Retry after waiting for pending extents and releasing idle granules, if there are any. */
    bool more = pool->first_pending || (result == ZR_ERR_MEMORY && zr_contiguous_idle_bytes(pool) > 0);
    if ((result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES) && more) {
        zr_contiguous_finish_pending(pool, true);
        if (result == ZR_ERR_MEMORY)
            zr_contiguous_release_idle(pool, 0);
        result = find_place(pool, &wanted, &after);
    }
    if (result != ZR_OK) {
        result = report_exhausted(pool, result, like->bytes);
        zr_contiguous_release_idle(pool, pool->keep_bytes);
        return result;
    }
    *out = zr_slab_take(&pool->extents);
    **out = wanted;
    slot_take(pool, *out);
    zr_lock_acquire(&pool->view);
    zr_pool_extent_claim(pool, *out, after);
    zr_lock_release(&pool->view);
    pool->entries_count++;
    pool->appended_count++;
    return ZR_OK;
}

zr_result zr_contiguous_append(zr_contiguous *pool, const struct zr_entry_request *request, zr_entry *out,
                               void **address)
{
    struct zr_pool_extent like, *extent = NULL;
    size_t promised_bytes;
    if (out)
        *out = 0;
    if (address)
        *address = NULL;
    if (!pool || !request || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_append: pool, request or out is NULL");
    zr_result result = check_request(pool, request, &like);
    if (result != ZR_OK)
        return result;
    zr_lock_acquire(&pool->lock);
    result =
        zr_tag_limit_promise(pool->arena, &(struct zr_request){.bytes = request->bytes, .tag = pool->tag},
                             like.bytes, &promised_bytes);
    if (result == ZR_OK)
        result = append(pool, &like, &extent);
    if (result == ZR_OK) {
        *out = entry_of(pool, extent);
        if (address && !extent->movable)
            *address = zr_pool_extent_address(pool, extent);
    }
    pool->promise_over_bytes = promised_bytes;
    release_pool(pool);
    return result;
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

zr_result zr_contiguous_free(zr_contiguous *pool, zr_entry entry)
{
    struct zr_pool_extent *extent;
    if (!pool)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_free: pool is NULL");
    if (entry == 0)
        return ZR_OK;
    zr_lock_acquire(&pool->lock);
    zr_result result = find_extent(pool, entry, &extent);
    if (result == ZR_OK && extent->borrows_count > 0) {
        result = zr_fail(ZR_ERR_INVALID, "cannot free an entry of pool \"%s\": it is borrowed %u times",
                         pool->name, extent->borrows_count);
    } else if (result == ZR_OK) {
        slot_give(pool, extent);
        pool->entries_count--;
        zr_pool_extent_defer(pool, extent);
        zr_contiguous_poll(pool, extent->stream);
    }
    release_pool(pool);
    return result;
}

zr_result zr_contiguous_borrow(zr_contiguous *pool, zr_entry entry, void **address)
{
    struct zr_pool_extent *extent;
    if (address)
        *address = NULL;
    if (!pool || !address)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_borrow: pool or address is NULL");
    zr_lock_acquire(&pool->lock);
    zr_result result = find_extent(pool, entry, &extent);
    if (result == ZR_OK && extent->corrupt) {
        result = zr_fail(ZR_ERR_CORRUPT, "the contents of an entry of pool \"%s\" were lost in a failed move",
                         pool->name);
    } else if (result == ZR_OK) {
        pool->borrowed_count += extent->borrows_count++ == 0;
        *address = zr_pool_extent_address(pool, extent);
    }
    zr_lock_release(&pool->lock);
    return result;
}

zr_result zr_contiguous_return(zr_contiguous *pool, zr_entry entry, uint64_t stream)
{
    struct zr_pool_extent *extent;
    if (!pool)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_return: pool is NULL");
    zr_result result = zr_backend_stream_name(pool->backend, &stream);
    if (result != ZR_OK)
        return result;
    zr_lock_acquire(&pool->lock);
    result = find_extent(pool, entry, &extent);
    if (result == ZR_OK && extent->borrows_count == 0) {
        result =
            zr_fail(ZR_ERR_INVALID, "cannot return an entry of pool \"%s\": it is not borrowed", pool->name);
    } else if (result == ZR_OK) {
        pool->borrowed_count -= --extent->borrows_count == 0;
        zr_lock_acquire(&pool->view);
        extent->stream = stream;
        zr_lock_release(&pool->view);
    }
    zr_lock_release(&pool->lock);
    return result;
}

/* ---- Pool operations ----------------------------------------------------------------------------------- */

zr_result zr_contiguous_compact(zr_contiguous *pool)
{
    if (!pool)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_compact: pool is NULL");
    zr_lock_acquire(&pool->lock);
    zr_result result = zr_contiguous_finish_pending(pool, true);
    if (result == ZR_OK)
        result = zr_contiguous_move_down(pool);
    char reason[512];
    if (result != ZR_OK)
        snprintf(reason, sizeof reason, "%s", zr_last_error());
    zr_result finished = zr_contiguous_finish_pending(pool, true);
    if (finished == ZR_OK)
        finished = zr_contiguous_release_idle(pool, pool->keep_bytes);
    release_pool(pool);
    return result == ZR_OK ? finished : zr_fail(result, "%s", reason);
}

zr_result zr_contiguous_trim(zr_contiguous *pool, size_t keep_bytes, size_t *released_bytes)
{
    if (released_bytes)
        *released_bytes = 0;
    if (!pool)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_trim: pool is NULL");
    zr_lock_acquire(&pool->lock);
    size_t held_bytes = pool->held_bytes;
    zr_contiguous_finish_pending(pool, false);
    zr_result result = zr_contiguous_release_idle(pool, keep_bytes);
    if (released_bytes)
        *released_bytes = held_bytes - pool->held_bytes;
    release_pool(pool);
    return result;
}

zr_result zr_contiguous_get_stats(zr_contiguous *pool, struct zr_contiguous_stats *out)
{
    if (!pool || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_get_stats: pool or out is NULL");
    zr_lock_acquire(&pool->lock);
    const struct zr_pool_extent *last = pool->last;
    while (last && last->kind != ZR_POOL_EXTENT_LIVE)
        last = last->previous;
    *out = (struct zr_contiguous_stats){
        .live_bytes = pool->live_bytes,
        .requested_bytes = pool->requested_bytes,
        .pending_bytes = pool->pending_bytes,
        .mapped_bytes = pool->held_bytes,
        .idle_bytes = zr_contiguous_idle_bytes(pool),
        .end_bytes = last ? zr_pool_extent_end(last) : 0,
        .peak_live_bytes = pool->peak_live_bytes,
        .peak_mapped_bytes = pool->peak_held_bytes,
        .entries_count = pool->entries_count,
        .borrowed_count = pool->borrowed_count,
        .copied_bytes = pool->copied_bytes,
        .remapped_bytes = pool->remapped_bytes,
        .backend_calls_count = pool->backend_calls_count,
    };
    out->stranded_bytes = out->mapped_bytes - out->live_bytes - out->pending_bytes - out->idle_bytes;
    zr_lock_release(&pool->lock);
    return ZR_OK;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

#define corrupt(...) zr_fail(ZR_ERR_CORRUPT, __VA_ARGS__)

struct sums {
    size_t live_bytes, requested_bytes, pending_bytes, entries_count, borrowed_count, pending_count;
    size_t touched_count, touched_end; /* in granules; end: the first granule not counted yet */
};

static zr_result check_pool_extent(const struct zr_contiguous *pool, const struct zr_pool_extent *extent,
                                   struct sums *sums)
{
    size_t granule_bytes = pool->granule_bytes, end = zr_pool_extent_end(extent);
    if (extent->next ? extent->next->previous != extent || extent->next->offset_bytes < end
                     : pool->last != extent)
        return corrupt("the extents of pool \"%s\" overlap or do not point back at %zu", pool->name,
                       extent->offset_bytes);
    if (extent->bytes == 0 || end > pool->range->bytes)
        return corrupt("an extent of pool \"%s\" at %zu of %zu bytes crosses the end of its range",
                       pool->name, extent->offset_bytes, extent->bytes);
    if (extent->kind == ZR_POOL_EXTENT_LIVE &&
        (pool->slots[extent->number].extent != extent || extent->requested_bytes > extent->bytes ||
         extent->offset_bytes % extent->alignment != 0))
        return corrupt("the entry at %zu of pool \"%s\" has a bad handle, size or alignment",
                       extent->offset_bytes, pool->name);
    for (size_t at = zr_round_down(extent->offset_bytes, granule_bytes); at < end; at += granule_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at);
        if (!mapping || (extent->kind != ZR_POOL_EXTENT_ALIAS && !mapping->access))
            return corrupt("the granule at %zu of pool \"%s\" is in use without memory", at, pool->name);
        if (at / granule_bytes >= sums->touched_end) {
            sums->touched_count++;
            sums->touched_end = at / granule_bytes + 1;
        }
    }
    bool live = extent->kind == ZR_POOL_EXTENT_LIVE;
    sums->live_bytes += live ? extent->bytes : 0;
    sums->requested_bytes += live ? extent->requested_bytes : 0;
    sums->entries_count += live;
    sums->borrowed_count += live && extent->borrows_count > 0;
    sums->pending_count += !live;
    sums->pending_bytes += extent->kind == ZR_POOL_EXTENT_PENDING ? extent->bytes : 0;
    return ZR_OK;
}

static zr_result check_granules(const struct zr_contiguous *pool)
{
    size_t mapped_bytes = 0, held_bytes = 0;
    for (size_t at = 0; at < pool->mapped_end_bytes; at += pool->granule_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at);
        if (!mapping)
            continue;
        const struct zr_handle *handle = mapping->handle;
        if (handle->bytes != pool->granule_bytes || handle->mappings_count == 0)
            return corrupt("the mapping at %zu of pool \"%s\" is not one granule", at, pool->name);
        mapped_bytes += pool->granule_bytes;
        /* Each mapping of an aliased granule counts as a half. */
        held_bytes += pool->granule_bytes / handle->mappings_count;
    }
    if (mapped_bytes != pool->mapped_bytes ||
        pool->range->mappings_count * pool->granule_bytes != mapped_bytes)
        return corrupt("%zu bytes of pool \"%s\" are mapped; the counter has %zu", mapped_bytes, pool->name,
                       pool->mapped_bytes);
    if (held_bytes > pool->held_bytes || pool->held_bytes - held_bytes >= pool->granule_bytes)
        return corrupt("%zu bytes of granules are in pool \"%s\"; the counter has %zu", held_bytes,
                       pool->name, pool->held_bytes);
    return ZR_OK;
}

/* Checks every invariant of the pool. lock: pool->lock */
static zr_result check(const struct zr_contiguous *pool)
{
    struct sums sums = {0};
    size_t pending_count = 0;
    for (const struct zr_pool_extent *extent = pool->first; extent; extent = extent->next) {
        zr_result result = check_pool_extent(pool, extent, &sums);
        if (result != ZR_OK)
            return result;
    }
    for (const struct zr_pool_extent *extent = pool->first_pending; extent; extent = extent->next_pending)
        pending_count++;
    if (sums.live_bytes != pool->live_bytes || sums.requested_bytes != pool->requested_bytes ||
        sums.pending_bytes != pool->pending_bytes || sums.entries_count != pool->entries_count ||
        sums.borrowed_count != pool->borrowed_count)
        return corrupt("%zu bytes in %zu entries of pool \"%s\" are live; the counters have %zu in %zu",
                       sums.live_bytes, sums.entries_count, pool->name, pool->live_bytes,
                       pool->entries_count);
    if (sums.pending_count != pending_count || sums.touched_count != pool->touched_count)
        return corrupt(
            "%zu extents of pool \"%s\" are left and %zu granules in use; the counters have %zu and %zu",
            sums.pending_count, pool->name, sums.touched_count, pending_count, pool->touched_count);
    return check_granules(pool);
}

zr_result zr_contiguous_check(zr_contiguous *pool)
{
    if (!pool)
        return zr_fail(ZR_ERR_INVALID, "zr_contiguous_check: pool is NULL");
    zr_lock_acquire(&pool->lock);
    zr_result result = check(pool);
    zr_lock_release(&pool->lock);
    return result;
}
