/* arena.c: creates, destroys, trims and searches arenas, and creates backends for programs. Uses space.c,
 * supply.c and index.c. */
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/core/index.h"
#include "alloc/service/client/client.h"
#include "alloc/telemetry/recorder.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"
#include "alloc/plan/executor.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/option.h"
#include "alloc/base/poison.h"
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"
#include "alloc/front/front.h"
#include "alloc/front/stripes.h"

/* ---- Create and destroy -------------------------------------------------------------------------------- */

static void count_arena(zr_backend *backend, int change)
{
    pthread_mutex_lock(&backend->lock);
    backend->arenas_count += (unsigned)change;
    pthread_mutex_unlock(&backend->lock);
}

/* Reserves the range: the requested size, or the backend's hint, halved until the system grants it. */
static zr_result reserve_range(struct zr_arena *arena, size_t requested_bytes)
{
    zr_backend *backend = arena->backend;
    size_t bytes = requested_bytes;
    if (bytes > SIZE_MAX / 2)
        return zr_fail(ZR_ERR_INVALID, "a reservation of %zu bytes exceeds the address space", bytes);
    if (bytes == 0)
        bytes = backend->ops->reserve_hint
                    ? backend->ops->reserve_hint(backend, arena->limit_bytes ? arena->limit_bytes
                                                                             : backend->limit_bytes)
                    : arena->limit_bytes * 4;
    bytes = zr_round_up(bytes, arena->granule_bytes);
    if (bytes < arena->granule_bytes)
        bytes = arena->granule_bytes;
    zr_result result = zr_backend_reserve(backend, bytes, &arena->range);
    while (requested_bytes == 0 && result == ZR_ERR_ADDRESSES && bytes / 2 >= arena->granule_bytes * 16) {
        bytes = zr_round_up(bytes / 2, arena->granule_bytes);
        result = zr_backend_reserve(backend, bytes, &arena->range);
    }
    return result;
}

static zr_result prepare(struct zr_arena *arena, const struct zr_arena_options *options)
{
    zr_backend *backend = options->backend;
    snprintf(arena->name, sizeof arena->name, "%s", options->name ? options->name : "arena");
    arena->first_stripe = arena;
    arena->stripes_max = options->threads > 1 ? options->threads : 1;
    arena->stripe_reserve_bytes = options->reserve_bytes;
    arena->backend = backend;
    arena->granule_bytes = backend->can.granule_bytes;
    arena->granule_shift = (unsigned)__builtin_ctzl(arena->granule_bytes);
    arena->limit_bytes = zr_round_down(options->limit_bytes, arena->granule_bytes);
    arena->check = (unsigned)zr_option_get(ZR_OPTION_CHECK);
    arena->canary_bytes = arena->check >= ZR_CHECK_BYTES ? 16 : 0;
    arena->visible = backend->can.host_visible;
    arena->poison = arena->visible && zr_option_get(ZR_OPTION_POISON) && zr_poison_wanted();
    arena->shared = arena->stripes_max > 1;
    arena->asynchronous = !backend->can.synchronous;
    arena->map_calls = &zr_map_callback_calls;
    arena->granule_cache.granule_bytes = arena->granule_bytes;
    zr_slab_init(&arena->extents, sizeof(struct zr_extent), ZR_POOL_FAULTS);
    zr_slab_init(&arena->uses, sizeof(struct zr_use), ZR_POOL_FAULTS);
    zr_slab_init(&arena->use_queues, sizeof(struct zr_use_queue), ZR_POOL_FAULTS);
    if (!zr_slab_reserve(&arena->extents, ZR_ZONE_COUNT))
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
    if (result != ZR_OK)
        return result;
    zr_space_init(arena);
    zr_recorder_start(arena);
    arena->stacks = zr_stacks_every() > 0;
    zr_arena_note_debug(arena);
    return ZR_OK;
}

static void tear_down(struct zr_arena *arena)
{
    zr_recorder_end(arena);
    if (arena->granules)
        zr_pages_give(arena->granules, arena->bitmap_bytes);
    if (arena->range) {
        zr_result result = zr_backend_release(arena->range);
        zr_assert(result == ZR_OK);
    }
    if (arena->index.regions)
        zr_index_end(&arena->index);
    zr_streams_end(arena);
    zr_executor_end(arena);
    zr_slab_end(&arena->extents);
    zr_pages_give(arena, sizeof *arena);
}

zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options)
{
    struct zr_arena_options own;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_create: out is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_arena_options, threads, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (!options->backend)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_create: backend is NULL");
    if (options->threads > ZR_STRIPES_MAX + 1)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_create: at most %d threads are allowed, not %u",
                       ZR_STRIPES_MAX + 1, options->threads);
    if (options->limit_bytes && options->limit_bytes < options->backend->can.granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_create: a limit of %zu bytes is below one granule (%zu)",
                       options->limit_bytes, options->backend->can.granule_bytes);
    struct zr_arena *arena = zr_pages_take(sizeof *arena);
    if (!arena)
        return ZR_ERR_HOST_MEMORY;
    result = prepare(arena, options);
    if (result != ZR_OK) {
        tear_down(arena);
        return result;
    }
    count_arena(arena->backend, 1);
    zr_arenas_add(arena);
    *out = arena;
    return ZR_OK;
}

unsigned zr_arena_add_stripe(struct zr_arena *first_stripe, unsigned count)
{
    struct zr_arena *arena = NULL;
    unsigned made = 0;
    zr_arenas_acquire();
    if (1 + atomic_load(&first_stripe->stripes_count) != count || first_stripe->unstriped ||
        first_stripe->no_more)
        goto unlock; /* another thread has added one */
    arena = zr_pages_take(sizeof *arena);
    if (arena &&
        prepare(arena, &(struct zr_arena_options){.backend = first_stripe->backend,
                                                  .name = first_stripe->name,
                                                  .reserve_bytes = first_stripe->stripe_reserve_bytes,
                                                  .limit_bytes = first_stripe->limit_bytes}) == ZR_OK) {
        arena->first_stripe = first_stripe;
        arena->shared = true;
        first_stripe->stripes[count - 1] = arena;
        atomic_store_explicit(&first_stripe->stripes_count, count, memory_order_release);
        made = 1;
    } else {
        /* There are no addresses or records for another stripe, so do not try again. */
        if (arena)
            tear_down(arena);
        first_stripe->no_more = true;
    }
unlock:
    zr_arenas_release();
    return made;
}

static zr_result end_stripe(struct zr_arena *arena, size_t *leaked_bytes)
{
    if (leaked_bytes)
        *leaked_bytes += arena->live_bytes;
    zr_arena_acquire(arena); /* never released: the locks end with the arena */
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
    zr_lock_acquire(&arena->lock);
    const struct zr_pool_calls *pools = atomic_load(&arena->pool_calls);
    const char *pool = pools ? pools->name(arena) : NULL;
    if (pool)
        result = zr_fail(ZR_ERR_INVALID, "arena \"%s\" still has pool \"%s\": destroy the pool first",
                         arena->name, pool);
    zr_lock_release(&arena->lock);
    if (result != ZR_OK)
        return result;
    zr_arenas_remove(arena);
    for (unsigned i = 0; i < ZR_TRACE_COUNT; i++) {
        struct zr_trace *trace = arena->traces[i];
        arena->traces[i] = NULL;
        zr_result closed = trace ? zr_trace_close(trace) : ZR_OK;
        result = result == ZR_OK ? closed : result;
    }
    zr_backend *backend = arena->backend;
    for (unsigned i = arena->stripes_count; i-- > 0;) {
        zr_result released = end_stripe(arena->stripes[i], leaked_bytes);
        result = result == ZR_OK ? released : result;
    }
    zr_result released = end_stripe(arena, leaked_bytes);
    result = result == ZR_OK ? released : result;
    count_arena(backend, -1);
    return result;
}

zr_backend *zr_arena_backend(const zr_arena *arena)
{
    return arena ? arena->backend : NULL;
}

/* ---- Trim ---------------------------------------------------------------------------------------------- */

static size_t trim_stripe(struct zr_arena *arena, size_t keep_bytes)
{
    zr_arena_acquire(arena);
    zr_arena_flush_size_cache(arena);
    if (arena->asynchronous)
        zr_streams_poll(arena);
    if (arena->executor) {
        zr_executor_retire_gone(arena);
        zr_executor_give_back(arena);
    }
    size_t released = zr_trim(arena, keep_bytes);
    if (arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_arena_release(arena);
    return released;
}

zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes)
{
    if (released_bytes)
        *released_bytes = 0;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_trim: arena is NULL");
    size_t released = zr_stripes_trim(arena) + trim_stripe(arena, keep_bytes);
    if (released_bytes)
        *released_bytes = released;
    return ZR_OK;
}

void zr_arena_commit_plan(zr_arena *arena)
{
    zr_arena_acquire(arena);
    zr_executor_commit(arena);
    if (arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_arena_release(arena);
}

/* ---- Search -------------------------------------------------------------------------------------------- */

zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out)
{
    bool found = false;
    if (!arena || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_find: arena or out is NULL");
    arena = zr_arena_stripe_of(arena, pointer);
    size_t offset = (size_t)((const char *)pointer - arena->base);
    *out = (struct zr_block_info){0};
    if (offset < arena->range_bytes) {
        struct zr_extent copy;
        zr_reading *reading = zr_read_begin();
        const struct zr_extent *block = zr_block_before(arena, offset, &copy);
        found = block && offset < zr_extent_end(&copy);
        if (found)
            *out = zr_block_info_of(arena, &copy);
        zr_read_end(reading);
    }
    const struct zr_pool_calls *pools = atomic_load(&arena->first_stripe->pool_calls);
    return found || (pools && pools->find(arena->first_stripe, pointer, out))
               ? ZR_OK
               : zr_fail(ZR_ERR_FOREIGN, "no live block of arena \"%s\" contains %p", arena->name, pointer);
}

/* ---- Backends ------------------------------------------------------------------------------------------ */

/* The public functions that create backends whose memory zrd may lend: see zr.h and client.h. */

zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options)
{
    return zr_backend_host_open(out, options, zr_service_find);
}

zr_result zr_backend_cuda_create(zr_backend **out, const struct zr_cuda_options *options)
{
    return zr_backend_cuda_open(out, options, zr_service_find);
}
