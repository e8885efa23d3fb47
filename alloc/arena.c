/* arena.c: the arena's life, and the search for a block by address. Stands on space.c, extend.c and index.c.
 */
#define _GNU_SOURCE
#include "alloc/contiguous.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "alloc/error.h"
#include "alloc/follow.h"
#include "alloc/fork.h"
#include "alloc/option.h"
#include "alloc/poison.h"

/* ---- All arenas of the process ------------------------------------------------------------------------- */

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_arena *arenas; /* by number; lock: arenas_lock */

static void arenas_add(struct zr_arena *arena)
{
    struct zr_arena **link = &arenas;
    pthread_mutex_lock(&arenas_lock);
    while (*link && (*link)->number == arena->number) {
        arena->number++;
        link = &(*link)->next;
    }
    arena->next = *link;
    *link = arena;
    pthread_mutex_unlock(&arenas_lock);
}

static void arenas_remove(struct zr_arena *arena)
{
    struct zr_arena **link = &arenas;
    pthread_mutex_lock(&arenas_lock);
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    pthread_mutex_unlock(&arenas_lock);
}

struct zr_arena *zr_arenas_lock(unsigned number)
{
    for (;;) {
        pthread_mutex_lock(&arenas_lock);
        struct zr_arena *arena = arenas;
        while (arena && arena->number != number)
            arena = arena->next;
        if (arena && zr_lock_try(&arena->lock))
            return arena;
        pthread_mutex_unlock(&arenas_lock);
        if (!arena)
            return NULL;
        sched_yield(); /* the arena may end before its lock is had */
    }
}

void zr_arenas_unlock(void)
{
    pthread_mutex_unlock(&arenas_lock);
}

/* The member after this one, of the family and then of the next; NULL after the last. lock: arenas_lock */
static struct zr_arena *next_member(struct zr_arena *arena)
{
    struct zr_arena *head = arena->head;
    unsigned count = atomic_load(&head->siblings_count), seat = 0;
    while (arena != head && head->siblings[seat++] != arena)
        ;
    return seat < count ? head->siblings[seat] : head->next;
}

void zr_arenas_before_fork(struct zr_fork_locks *locks)
{
    pthread_mutex_lock(&arenas_lock);
    for (struct zr_arena *arena = arenas; arena; arena = next_member(arena))
        zr_fork_take(locks, &arena->lock);
}

void zr_arenas_after_fork(struct zr_fork_locks *locks)
{
    for (struct zr_arena *arena = arenas; arena; arena = next_member(arena)) {
        if (locks->child) { /* the thread that waited for readers is not there */
            arena->reclaiming = false;
            zr_follow_after_fork_child(arena);
        }
        zr_fork_give(locks, &arena->lock);
    }
    pthread_mutex_unlock(&arenas_lock);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void count_arena(zr_backend *backend, int change)
{
    pthread_mutex_lock(&backend->lock);
    backend->arenas_count += (unsigned)change;
    pthread_mutex_unlock(&backend->lock);
}

/* Reserves the range: what was asked for, or the backend's hint, halved until the system agrees. */
static zr_result reserve_range(struct zr_arena *arena, size_t asked_bytes)
{
    zr_backend *backend = arena->backend;
    size_t bytes = asked_bytes;
    if (bytes > SIZE_MAX / 2)
        return zr_fail(ZR_ERR_INVALID, "a reservation of %zu bytes is larger than any address space", bytes);
    if (bytes == 0)
        bytes = backend->ops->reserve_hint
                    ? backend->ops->reserve_hint(backend, arena->limit_bytes ? arena->limit_bytes
                                                                             : backend->limit_bytes)
                    : arena->limit_bytes * 4;
    bytes = zr_round_up(bytes, arena->granule_bytes);
    if (bytes < arena->granule_bytes)
        bytes = arena->granule_bytes;
    zr_result result = zr_backend_reserve(backend, bytes, &arena->range);
    while (asked_bytes == 0 && result == ZR_ERR_ADDRESSES && bytes / 2 >= arena->granule_bytes * 16) {
        bytes = zr_round_up(bytes / 2, arena->granule_bytes);
        result = zr_backend_reserve(backend, bytes, &arena->range);
    }
    return result;
}

void zr_arena_note_careful(struct zr_arena *arena)
{
    arena->careful = arena->trace || arena->canary_bytes || arena->poison || arena->check >= ZR_CHECK_ARENA ||
                     arena->bounded;
    arena->plain = !arena->careful && !arena->asynchronous;
    if (arena->plain && !arena->follow)
        atomic_fetch_and(&arena->busy, ~(unsigned)ZR_BUSY_CALLS);
    else
        atomic_fetch_or(&arena->busy, ZR_BUSY_CALLS);
}

static zr_result prepare(struct zr_arena *arena, const struct zr_arena_options *options)
{
    zr_backend *backend = options->backend;
    snprintf(arena->name, sizeof arena->name, "%s", options->name ? options->name : "arena");
    arena->head = arena;
    arena->members_most = options->threads > 1 ? options->threads : 1;
    arena->sibling_reserve_bytes = options->reserve_bytes;
    arena->backend = backend;
    arena->granule_bytes = backend->can.granule_bytes;
    arena->granule_shift = (unsigned)__builtin_ctzl(arena->granule_bytes);
    arena->limit_bytes = zr_round_down(options->limit_bytes, arena->granule_bytes);
    arena->check = (unsigned)zr_option_get(ZR_OPTION_CHECK);
    arena->canary_bytes = arena->check >= ZR_CHECK_BYTES ? 16 : 0;
    arena->visible = backend->can.host_visible;
    arena->poison = arena->visible && zr_option_get(ZR_OPTION_POISON) && zr_poison_wanted();
    arena->shared = arena->members_most > 1;
    arena->asynchronous = !backend->can.synchronous;
    arena->unfenced = !zr_fence_all();
    arena->busy = arena->unfenced ? ZR_READERS_HERE : ZR_READERS_NONE;
    zr_arena_note_careful(arena);
    arena->stock.granule_bytes = arena->granule_bytes;
    zr_pool_init(&arena->spans, sizeof(struct zr_span), ZR_POOL_FAULTS);
    zr_pool_init(&arena->uses, sizeof(struct zr_use), ZR_POOL_FAULTS);
    if (!zr_pool_reserve(&arena->spans, ZR_ZONE_COUNT))
        return ZR_ERR_HOST_MEMORY;
    zr_result result = reserve_range(arena, options->reserve_bytes);
    if (result != ZR_OK)
        return result;
    arena->base = arena->range->address;
    arena->range_bytes = arena->range->bytes;
    arena->bitmap_bytes = (arena->range->bytes / arena->granule_bytes + 63) / 64 * sizeof(uint64_t);
    arena->granules = zr_pages_take(arena->bitmap_bytes);
    if (!arena->granules)
        return ZR_ERR_HOST_MEMORY;
    result = zr_index_init(&arena->index, arena->range->bytes);
    if (result == ZR_OK)
        zr_space_init(arena);
    return result;
}

static void tear_down(struct zr_arena *arena)
{
    if (arena->granules)
        zr_pages_give(arena->granules, arena->bitmap_bytes);
    if (arena->range) {
        zr_result result = zr_backend_release(arena->range);
        zr_assert(result == ZR_OK);
    }
    if (arena->index.regions)
        zr_index_end(&arena->index);
    zr_streams_end(arena);
    zr_follow_end(arena);
    zr_pool_end(&arena->spans);
    zr_pages_give(arena, sizeof *arena);
}

zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "an arena needs somewhere to go");
    *out = NULL;
    if (!options || !options->backend)
        return zr_fail(ZR_ERR_INVALID, "an arena needs a backend");
    if (options->threads > ZR_SIBLINGS_MOST + 1)
        return zr_fail(ZR_ERR_INVALID, "an arena serves at most %d threads at once, not %u",
                       ZR_SIBLINGS_MOST + 1, options->threads);
    if (options->limit_bytes && options->limit_bytes < options->backend->can.granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "an arena's limit of %zu bytes is below one granule (%zu)",
                       options->limit_bytes, options->backend->can.granule_bytes);
    struct zr_arena *arena = zr_pages_take(sizeof *arena);
    if (!arena)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = prepare(arena, options);
    if (result != ZR_OK) {
        tear_down(arena);
        return result;
    }
    count_arena(arena->backend, 1);
    arenas_add(arena);
    *out = arena;
    return ZR_OK;
}

unsigned zr_arena_add_sibling(struct zr_arena *head, unsigned count)
{
    struct zr_arena *arena = NULL;
    unsigned made = 0;
    pthread_mutex_lock(&arenas_lock);
    if (1 + atomic_load(&head->siblings_count) != count || head->together || head->no_more)
        goto unlock; /* somebody was faster */
    arena = zr_pages_take(sizeof *arena);
    if (arena && prepare(arena, &(struct zr_arena_options){.backend = head->backend,
                                                           .name = head->name,
                                                           .reserve_bytes = head->sibling_reserve_bytes,
                                                           .limit_bytes = head->limit_bytes}) == ZR_OK) {
        arena->head = head;
        arena->shared = true;
        head->siblings[count - 1] = arena;
        atomic_store_explicit(&head->siblings_count, count, memory_order_release);
        made = 1;
    } else {
        /* No addresses or records for one more: the family stays as it is. */
        if (arena)
            tear_down(arena);
        head->no_more = true;
    }
unlock:
    pthread_mutex_unlock(&arenas_lock);
    return made;
}

bool zr_arena_keep_together(struct zr_arena *head, int change)
{
    pthread_mutex_lock(&arenas_lock);
    atomic_fetch_add(&head->together, (unsigned)change);
    bool alone = atomic_load(&head->siblings_count) == 0;
    pthread_mutex_unlock(&arenas_lock);
    return alone;
}

static zr_result end_member(struct zr_arena *arena, size_t *leaked_bytes)
{
    if (leaked_bytes)
        *leaked_bytes += arena->live_bytes;
    zr_result result = zr_release_all(arena);
    tear_down(arena);
    return result;
}

zr_result zr_arena_destroy(zr_arena *arena, size_t *leaked_bytes)
{
    zr_result result = ZR_OK;
    if (leaked_bytes)
        *leaked_bytes = 0;
    if (!arena)
        return ZR_OK;
    zr_lock_take(&arena->lock);
    const struct zr_contiguous *pool = arena->pools;
    if (pool)
        result = zr_fail(ZR_ERR_INVALID, "arena \"%s\" still carries pool \"%s\": destroy that first",
                         arena->name, pool->name);
    zr_lock_give(&arena->lock);
    if (result != ZR_OK)
        return result;
    arenas_remove(arena);
    if (arena->trace)
        result = zr_trace_close(arena->trace);
    arena->trace = NULL;
    zr_backend *backend = arena->backend;
    for (unsigned i = arena->siblings_count; i-- > 0;) {
        zr_result released = end_member(arena->siblings[i], leaked_bytes);
        result = result == ZR_OK ? released : result;
    }
    zr_result released = end_member(arena, leaked_bytes);
    result = result == ZR_OK ? released : result;
    count_arena(backend, -1);
    return result;
}

zr_backend *zr_arena_backend(const zr_arena *arena)
{
    return arena ? arena->backend : NULL;
}

/* ---- Trim ---------------------------------------------------------------------------------------------- */

static size_t trim_member(struct zr_arena *arena, size_t keep_bytes)
{
    zr_lock_take(&arena->lock);
    zr_arena_settle(arena);
    if (arena->asynchronous)
        zr_streams_poll(arena);
    if (arena->follow)
        zr_follow_give_back(arena);
    size_t released = zr_trim(arena, keep_bytes);
    if (arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_lock_give(&arena->lock);
    return released;
}

zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes)
{
    if (released_bytes)
        *released_bytes = 0;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "there is no arena to trim");
    size_t released = zr_siblings_trim(arena) + trim_member(arena, keep_bytes);
    if (released_bytes)
        *released_bytes = released;
    return ZR_OK;
}

/* ---- Search -------------------------------------------------------------------------------------------- */

/* From now on, until nobody has searched for a while (reclaim() in allocate.c), records of freed blocks wait
 * for readers. Without a lock: who searches may hold any. In a read section, so that nothing of this can come
 * to NONE again between the fence and the turn to HERE. */
static void announce_search(struct zr_arena *arena)
{
    if (zr_readers_turn(arena, ZR_READERS_LEAVING, ZR_READERS_HERE))
        return; /* writers have never stopped waiting */
    zr_readers_turn(arena, ZR_READERS_NONE, ZR_READERS_COMING);
    if (!zr_fence_all()) { /* denied since the arena was made: a turn with the lock does as well */
        zr_lock_take(&arena->lock);
        zr_lock_give(&arena->lock);
    }
    zr_readers_turn(arena, ZR_READERS_COMING, ZR_READERS_HERE);
}

static void begin_search(struct zr_arena *arena)
{
    zr_index_read_lock();
    while (__builtin_expect(
        (atomic_load_explicit(&arena->busy, memory_order_acquire) & ZR_READERS_MASK) != ZR_READERS_HERE, 0))
        announce_search(arena);
    if (!atomic_load_explicit(&arena->sought, memory_order_relaxed))
        atomic_store_explicit(&arena->sought, true, memory_order_relaxed);
}

zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out)
{
    bool found = false;
    if (!arena || !out)
        return zr_fail(ZR_ERR_INVALID, "a search needs an arena and somewhere to put its answer");
    arena = zr_arena_member_of(arena, pointer);
    size_t offset = (size_t)((const char *)pointer - arena->base);
    *out = (struct zr_block_info){0};
    if (offset < arena->range_bytes) {
        begin_search(arena);
        const struct zr_span *block = zr_block_before(arena, offset);
        found = block && offset < zr_span_end(block);
        if (found)
            *out = zr_block_info_of(arena, block);
        zr_index_read_unlock();
    }
    return found || zr_pools_find(arena->head, pointer, out)
               ? ZR_OK
               : zr_fail(ZR_ERR_FOREIGN, "no live block of arena \"%s\" holds %p", arena->name, pointer);
}
