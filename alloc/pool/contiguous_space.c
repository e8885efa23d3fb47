/* contiguous_space.c: a contiguous pool's extents, the granules under them, and pending extents. Uses
 * backend.c and the arena's granules; see contiguous.h.
 *
 * The pool takes granules as single handles, so that each can be released separately. */
#include "alloc/pool/contiguous.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/poison.h"
#include "alloc/core/calls.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"

/* ---- Extents ------------------------------------------------------------------------------------------- */

/* The number of granules that a linked extent touches and its neighbours do not touch. */
static size_t exclusive_granules(const struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    size_t granule_bytes = pool->granule_bytes;
    size_t first = extent->offset_bytes / granule_bytes;
    size_t end = (zr_pool_extent_end(extent) - 1) / granule_bytes + 1;
    if (extent->previous && (zr_pool_extent_end(extent->previous) - 1) / granule_bytes == first)
        first++;
    if (extent->next && extent->next->offset_bytes / granule_bytes == end - 1)
        end--;
    return end > first ? end - first : 0;
}

static void count(struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    if (extent->kind == ZR_POOL_EXTENT_PENDING)
        pool->pending_bytes += extent->bytes;
    if (extent->kind != ZR_POOL_EXTENT_LIVE)
        return;
    pool->live_bytes += extent->bytes;
    pool->requested_bytes += extent->requested_bytes;
    if (pool->live_bytes > pool->peak_live_bytes)
        pool->peak_live_bytes = pool->live_bytes;
}

static void uncount(struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    if (extent->kind == ZR_POOL_EXTENT_PENDING)
        pool->pending_bytes -= extent->bytes;
    if (extent->kind != ZR_POOL_EXTENT_LIVE)
        return;
    pool->live_bytes -= extent->bytes;
    pool->requested_bytes -= extent->requested_bytes;
}

void zr_pool_extent_link(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                         struct zr_pool_extent *after)
{
    extent->previous = after;
    extent->next = after ? after->next : pool->first;
    zr_assert(!after || zr_pool_extent_end(after) <= extent->offset_bytes);
    zr_assert(!extent->next || zr_pool_extent_end(extent) <= extent->next->offset_bytes);
    *(after ? &after->next : &pool->first) = extent;
    *(extent->next ? &extent->next->previous : &pool->last) = extent;
    pool->touched_count += exclusive_granules(pool, extent);
    count(pool, extent);
}

void zr_pool_extent_unlink(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    pool->touched_count -= exclusive_granules(pool, extent);
    *(extent->previous ? &extent->previous->next : &pool->first) = extent->next;
    *(extent->next ? &extent->next->previous : &pool->last) = extent->previous;
    uncount(pool, extent);
}

static void append_pending(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    extent->next_pending = NULL;
    *(pool->last_pending ? &pool->last_pending->next_pending : &pool->first_pending) = extent;
    pool->last_pending = extent;
}

/* Removes an extent from the list of pending extents and frees its record. */
static void remove_pending(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    struct zr_pool_extent *before = NULL, **link = &pool->first_pending;
    while (*link != extent) {
        before = *link;
        link = &before->next_pending;
    }
    *link = extent->next_pending;
    if (pool->last_pending == extent)
        pool->last_pending = before;
    zr_slab_give(&pool->extents, extent);
}

void zr_pool_extent_claim(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                          struct zr_pool_extent *after)
{
    size_t start = extent->offset_bytes, end = zr_pool_extent_end(extent);
    struct zr_pool_extent *each = after ? after->next : pool->first, *next, *rest = NULL;
    for (; each && zr_pool_extent_end(each) <= start; each = each->next)
        after = each;
    for (; each && each->offset_bytes < end; each = next) {
        size_t each_end = zr_pool_extent_end(each);
        next = each->next;
        zr_assert(each->kind == ZR_POOL_EXTENT_PENDING && each->stream == extent->stream);
        zr_pool_extent_unlink(pool, each);
        if (each_end > end) {
            rest = each;
            if (each->offset_bytes < start) {
                rest = zr_slab_take(&pool->extents);
                *rest = *each;
                append_pending(pool, rest);
            }
        }
        if (each->offset_bytes < start) {
            each->bytes = start - each->offset_bytes;
            zr_pool_extent_link(pool, each, after);
            after = each;
        } else if (each != rest) {
            remove_pending(pool, each);
        }
        if (rest) {
            rest->offset_bytes = end;
            rest->bytes = each_end - end;
        }
    }
    zr_pool_extent_link(pool, extent, after);
    if (rest)
        zr_pool_extent_link(pool, rest, extent);
    if (pool->arena->poison)
        zr_poison_block(zr_pool_extent_address(pool, extent), extent->requested_bytes, extent->bytes);
}

/* ---- The arena's totals -------------------------------------------------------------------------------- */

void zr_contiguous_publish(struct zr_contiguous *pool)
{
    struct zr_arena *arena = pool->arena;
    struct zr_pool_counters *counters = &pool->counters;
    size_t used_bytes = pool->live_bytes + pool->pending_bytes;
    /* During a move the idle bytes may count a granule twice. */
    size_t max_idle_bytes = pool->held_bytes > used_bytes ? pool->held_bytes - used_bytes : 0;
    size_t idle_bytes = zr_contiguous_idle_bytes(pool);
    zr_lock_acquire(&arena->lock);
    if (pool->live_bytes < counters->live_bytes && arena->at_peak) {
        memcpy(arena->peak_by_tag_bytes, arena->live_by_tag_bytes, sizeof arena->peak_by_tag_bytes);
        arena->at_peak = false;
    }
    size_t grown_bytes = pool->live_bytes - counters->live_bytes; /* modulo 2^64, like the sums */
    arena->live_bytes += grown_bytes;
    arena->live_by_tag_bytes[pool->tag] += grown_bytes;
    arena->promised_by_tag_bytes[pool->tag] -= pool->promise_over_bytes;
    pool->promise_over_bytes = 0;
    if (arena->bounded)
        zr_tag_limit_note(arena, pool->tag);
    arena->requested_bytes += pool->requested_bytes - counters->requested_bytes;
    arena->blocks_count += pool->entries_count - counters->entries_count;
    arena->allocations_count += pool->appended_count - pool->published_appended_count;
    arena->backend_calls_count += pool->backend_calls_count - pool->published_calls_count;
    if (arena->live_bytes > arena->peak_live_bytes) {
        arena->peak_live_bytes = arena->live_bytes;
        arena->at_peak = true;
    }
    if (arena->requested_bytes > arena->peak_requested_bytes)
        arena->peak_requested_bytes = arena->requested_bytes;
    if (arena->shared)
        zr_stripes_publish(arena);
    counters->live_bytes = pool->live_bytes;
    counters->requested_bytes = pool->requested_bytes;
    counters->entries_count = pool->entries_count;
    counters->pending_bytes = pool->pending_bytes;
    counters->idle_bytes = idle_bytes < max_idle_bytes ? idle_bytes : max_idle_bytes;
    pool->published_appended_count = pool->appended_count;
    pool->published_calls_count = pool->backend_calls_count;
    zr_lock_release(&arena->lock);
}

void zr_pools_counters(const struct zr_arena *arena, struct zr_pool_counters *out)
{
    *out = (struct zr_pool_counters){0};
    for (const struct zr_contiguous *pool = arena->pools; pool; pool = pool->next_of_arena) {
        out->live_by_tag_bytes[pool->tag] += pool->counters.live_bytes;
        out->live_bytes += pool->counters.live_bytes;
        out->requested_bytes += pool->counters.requested_bytes;
        out->pending_bytes += pool->counters.pending_bytes;
        out->idle_bytes += pool->counters.idle_bytes;
        out->entries_count += pool->counters.entries_count;
    }
}

/* ---- Granules ------------------------------------------------------------------------------------------ */

static zr_result take(struct zr_contiguous *pool, size_t bytes, struct zr_handle_list *out)
{
    zr_result result = zr_granules_take(pool->arena, bytes, out);
    if (result != ZR_OK)
        return result;
    pool->held_bytes += bytes;
    if (pool->held_bytes > pool->peak_held_bytes)
        pool->peak_held_bytes = pool->held_bytes;
    return ZR_OK;
}

static void give(struct zr_contiguous *pool, struct zr_handle_list *list)
{
    size_t bytes = 0;
    for (const struct zr_handle *handle = list->first; handle; handle = handle->next)
        bytes += handle->bytes;
    if (bytes == 0)
        return;
    /* Publish first, so that the arena never counts returned granules as live, pending or idle. */
    pool->held_bytes -= bytes;
    zr_contiguous_publish(pool);
    zr_granules_give(pool->arena, list);
}

static void lower_end(struct zr_contiguous *pool)
{
    size_t end = pool->mapped_end_bytes;
    while (end > 0 && !zr_range_mapping(pool->range, end - pool->granule_bytes))
        end -= pool->granule_bytes;
    pool->mapped_end_bytes = end;
}

/* Unmaps granules that are all notified or all not. A granule without another mapping returns to the arena.
 */
static zr_result unmap(struct zr_contiguous *pool, struct zr_bounds part)
{
    struct zr_handle_list list = {0};
    char *address = pool->range->address + part.offset_bytes;
    bool notified = zr_range_mapping(pool->range, part.offset_bytes)->notified;
    for (size_t done = 0; done < part.bytes; done += pool->granule_bytes) {
        struct zr_handle *handle = zr_range_mapping(pool->range, part.offset_bytes + done)->handle;
        if (handle->mappings_count == 1)
            zr_handle_list_push(&list, handle);
    }
    if (notified && pool->map_callback.unmapping)
        pool->map_callback.unmapping(pool->map_callback.argument, address, part.bytes);
    if (pool->arena->poison)
        zr_poison_clear(address, part.bytes);
    pool->backend_calls_count++;
    zr_result result = zr_backend_unmap(pool->range, part);
    if (result != ZR_OK) {
        if (notified && pool->arena->poison)
            zr_poison_free(address, part.bytes);
        if (notified && pool->map_callback.mapped)
            pool->map_callback.mapped(pool->map_callback.argument, address, part.bytes);
        return result;
    }
    pool->mapped_bytes -= part.bytes;
    lower_end(pool);
    give(pool, &list);
    return ZR_OK;
}

zr_result zr_contiguous_notify(struct zr_contiguous *pool, struct zr_bounds part)
{
    char *address = pool->range->address + part.offset_bytes;
    zr_result result = pool->map_callback.mapped
                           ? pool->map_callback.mapped(pool->map_callback.argument, address, part.bytes)
                           : ZR_OK;
    if (result != ZR_OK)
        return zr_fail(result, "the map callback of pool \"%s\" rejected %zu bytes at %p (%s)", pool->name,
                       part.bytes, (void *)address, zr_result_name(result));
    for (size_t done = 0; done < part.bytes; done += pool->granule_bytes)
        zr_range_mapping(pool->range, part.offset_bytes + done)->notified = true;
    return ZR_OK;
}

/* Sets access for the part's new mappings, run by run, and notifies the map callback. */
static zr_result set_access(struct zr_contiguous *pool, struct zr_bounds part)
{
    size_t granule_bytes = pool->granule_bytes, end = part.offset_bytes + part.bytes;
    for (size_t at = part.offset_bytes; at < end; at += granule_bytes) {
        struct zr_bounds run = {at, 0};
        while (at < end && !zr_range_mapping(pool->range, at)->notified)
            at += granule_bytes;
        run.bytes = at - run.offset_bytes;
        if (run.bytes == 0)
            continue;
        pool->backend_calls_count++;
        zr_result result = zr_backend_set_access(pool->range, run);
        if (result == ZR_OK)
            result = zr_contiguous_notify(pool, run);
        if (result != ZR_OK)
            return result;
        if (pool->arena->poison)
            zr_poison_free(pool->range->address + run.offset_bytes, run.bytes);
    }
    return ZR_OK;
}

/* Maps handles of the list where the part has no granule. Stops at the first failure. */
static zr_result map_missing(struct zr_contiguous *pool, struct zr_bounds part, struct zr_handle_list *list)
{
    for (size_t at = part.offset_bytes; at < part.offset_bytes + part.bytes; at += pool->granule_bytes) {
        if (zr_range_mapping(pool->range, at))
            continue;
        pool->backend_calls_count++;
        zr_result result = zr_backend_map(pool->range, at, list->first);
        if (result != ZR_OK)
            return result;
        zr_handle_list_pop(list);
        pool->mapped_bytes += pool->granule_bytes;
        if (at + pool->granule_bytes > pool->mapped_end_bytes)
            pool->mapped_end_bytes = at + pool->granule_bytes;
    }
    return ZR_OK;
}

zr_result zr_contiguous_back(struct zr_contiguous *pool, struct zr_bounds part)
{
    struct zr_bounds whole = zr_whole_around(pool, part);
    struct zr_handle_list list = {0};
    size_t missing = 0, end = whole.offset_bytes + whole.bytes;
    bool accessible = true;
    for (size_t at = whole.offset_bytes; at < end; at += pool->granule_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at);
        missing += mapping ? 0 : pool->granule_bytes;
        accessible &= mapping && mapping->notified;
    }
    if (accessible)
        return ZR_OK;
    zr_result result = missing ? take(pool, missing, &list) : ZR_OK;
    if (result == ZR_OK)
        result = map_missing(pool, whole, &list);
    if (result == ZR_OK)
        result = set_access(pool, whole);
    give(pool, &list);
    for (size_t at = whole.offset_bytes; result != ZR_OK && at < end; at += pool->granule_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at);
        if (mapping && !mapping->notified)
            unmap(pool, (struct zr_bounds){at, pool->granule_bytes});
    }
    return result;
}

zr_result zr_contiguous_release(struct zr_contiguous *pool, struct zr_bounds part, size_t max_bytes)
{
    zr_result result = ZR_OK;
    size_t granule_bytes = pool->granule_bytes, at = part.offset_bytes + part.bytes, done = 0;
    if (at > pool->mapped_end_bytes)
        at = pool->mapped_end_bytes;
    while (at > part.offset_bytes && done < max_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at - granule_bytes);
        size_t end = at;
        bool notified = mapping && mapping->notified;
        at -= granule_bytes;
        if (!mapping)
            continue;
        while (at > part.offset_bytes && done + (end - at) < max_bytes &&
               (mapping = zr_range_mapping(pool->range, at - granule_bytes)) && mapping->notified == notified)
            at -= granule_bytes;
        zr_result one = unmap(pool, (struct zr_bounds){at, end - at});
        result = result == ZR_OK ? one : result;
        done += end - at;
    }
    return result;
}

/* The whole granules of free addresses between two neighbouring extents; may be empty. */
static struct zr_bounds free_bounds_between(const struct zr_contiguous *pool,
                                            const struct zr_pool_extent *before,
                                            const struct zr_pool_extent *after)
{
    size_t start = before ? zr_round_up(zr_pool_extent_end(before), pool->granule_bytes) : 0;
    size_t end = after ? zr_round_down(after->offset_bytes, pool->granule_bytes) : pool->mapped_end_bytes;
    return (struct zr_bounds){start, end > start ? end - start : 0};
}

zr_result zr_contiguous_release_idle(struct zr_contiguous *pool, size_t keep_bytes)
{
    zr_result result = ZR_OK;
    struct zr_pool_extent *after = NULL, *before = pool->last;
    for (;; after = before, before = before->previous) {
        size_t idle_bytes = zr_contiguous_idle_bytes(pool);
        if (idle_bytes <= keep_bytes)
            return result;
        zr_result one =
            zr_contiguous_release(pool, free_bounds_between(pool, before, after), idle_bytes - keep_bytes);
        result = result == ZR_OK ? one : result;
        if (!before)
            return result;
    }
}

/* ---- Pending extents ----------------------------------------------------------------------------------- */

/* Records the point in the stream after which the extent is unused. After a failure, a later call tries
 * again. */
static void record(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    if (extent->recorded)
        return;
    extent->recorded = pool->backend->can.synchronous;
    if (!extent->recorded) {
        pool->backend_calls_count++;
        extent->recorded = zr_backend_event_record(pool->backend, extent->stream, &extent->point) == ZR_OK;
    }
}

/* Whether recording the event can wait. In a pool that keeps all its memory only other streams need the
 * event; the extent's own stream reuses the extent without it. */
static bool event_can_wait(const struct zr_contiguous *pool, const struct zr_pool_extent *extent,
                           uint64_t stream)
{
    return pool->keep_bytes == SIZE_MAX && extent->kind == ZR_POOL_EXTENT_PENDING &&
           extent->stream == stream && !pool->backend->can.synchronous;
}

void zr_pool_extent_defer(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    if (extent->kind == ZR_POOL_EXTENT_LIVE) {
        uncount(pool, extent);
        zr_lock_acquire(&pool->view);
        extent->kind = ZR_POOL_EXTENT_PENDING;
        zr_lock_release(&pool->view);
        count(pool, extent);
    }
    extent->recorded = false;
    if (!event_can_wait(pool, extent, extent->stream))
        record(pool, extent);
    append_pending(pool, extent);
}

static bool has_passed(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    record(pool, extent);
    return pool->backend->can.synchronous ||
           (extent->recorded && zr_backend_event_done(pool->backend, &extent->point));
}

static zr_result wait_for(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    if (has_passed(pool, extent))
        return ZR_OK;
    return extent->recorded ? zr_backend_event_wait(pool->backend, &extent->point)
                            : zr_contiguous_stream_wait(pool, extent->stream);
}

/* Frees an extent that its stream has passed. Idle granules beyond keep_bytes return to the arena, or stay
 * idle if the driver does not unmap them. */
static zr_result end_pending(struct zr_contiguous *pool, struct zr_pool_extent *extent)
{
    struct zr_pool_extent *before = extent->previous, *after = extent->next;
    struct zr_bounds all = {extent->offset_bytes, extent->bytes};
    if (extent->kind == ZR_POOL_EXTENT_ALIAS) {
        zr_result result = zr_contiguous_release(pool, all, SIZE_MAX);
        if (result != ZR_OK)
            return result;
    } else if (pool->arena->poison) {
        zr_poison_free(zr_pool_extent_address(pool, extent), extent->bytes);
    }
    zr_lock_acquire(&pool->view);
    zr_pool_extent_unlink(pool, extent);
    remove_pending(pool, extent);
    zr_lock_release(&pool->view);
    size_t idle_bytes = zr_contiguous_idle_bytes(pool);
    if (idle_bytes > pool->keep_bytes)
        zr_contiguous_release(pool, free_bounds_between(pool, before, after), idle_bytes - pool->keep_bytes);
    return ZR_OK;
}

/* Frees pending extents. `stream`: the requesting stream, which may reuse its own pending extents; NULL:
 * none. */
static zr_result finish_pending(struct zr_contiguous *pool, bool wait, const uint64_t *stream)
{
    zr_result result = ZR_OK;
    struct zr_pool_extent *next;
    const struct zr_pool_extent *busy = NULL; /* its stream has passed no later extent either */
    for (struct zr_pool_extent *extent = pool->first_pending; extent; extent = next) {
        zr_result one = ZR_OK;
        bool passed = false;
        next = extent->next_pending;
        if (stream && event_can_wait(pool, extent, *stream)) {
            passed = false;
        } else if (wait) {
            one = wait_for(pool, extent);
            passed = one == ZR_OK;
        } else if (!busy || busy->stream != extent->stream) {
            passed = has_passed(pool, extent);
            busy = passed ? busy : extent;
        }
        if (passed)
            one = end_pending(pool, extent);
        result = result == ZR_OK ? one : result;
    }
    return result;
}

zr_result zr_contiguous_finish_pending(struct zr_contiguous *pool, bool wait)
{
    return finish_pending(pool, wait, NULL);
}

void zr_contiguous_poll(struct zr_contiguous *pool, uint64_t stream)
{
    finish_pending(pool, false, &stream);
}

zr_result zr_contiguous_clear(struct zr_contiguous *pool, struct zr_bounds part,
                              const uint64_t *except_stream)
{
    struct zr_pool_extent *next;
    for (struct zr_pool_extent *extent = pool->first_pending; extent; extent = next) {
        next = extent->next_pending;
        if (extent->offset_bytes >= part.offset_bytes + part.bytes ||
            zr_pool_extent_end(extent) <= part.offset_bytes ||
            (extent->kind == ZR_POOL_EXTENT_PENDING && except_stream && extent->stream == *except_stream))
            continue;
        zr_result result = wait_for(pool, extent);
        if (result == ZR_OK)
            result = end_pending(pool, extent);
        if (result != ZR_OK)
            return result;
    }
    return ZR_OK;
}

/* ---- Destruction --------------------------------------------------------------------------------------- */

static bool is_aliased(const struct zr_contiguous *pool, size_t offset_bytes)
{
    for (const struct zr_pool_extent *extent = pool->first_pending; extent; extent = extent->next_pending)
        if (extent->kind == ZR_POOL_EXTENT_ALIAS && offset_bytes >= extent->offset_bytes &&
            offset_bytes < zr_pool_extent_end(extent))
            return true;
    return false;
}

/* Abandons mappings that the driver does not unmap. Their granules return to the arena, unless streams may
 * still use the memory. */
static void abandon(struct zr_contiguous *pool, bool in_use)
{
    struct zr_handle_list list = {0};
    for (size_t at = 0; at < pool->mapped_end_bytes; at += pool->granule_bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(pool->range, at);
        if (mapping && (mapping->handle->mappings_count == 1 || !is_aliased(pool, at)))
            zr_handle_list_push(&list, mapping->handle);
    }
    if (in_use) {
        pool->held_bytes -= zr_granules_abandon(pool->arena, &list);
        zr_contiguous_publish(pool);
    }
    pool->mapped_bytes -= zr_backend_abandon(pool->range);
    pool->range = NULL;
    give(pool, &list);
}

/* Whether a stream of another device may use the pool. Synchronizing this device does not wait for such
 * streams. */
static bool used_elsewhere(const struct zr_contiguous *pool)
{
    for (const struct zr_pool_extent *extent = pool->first_pending; extent; extent = extent->next_pending)
        if (zr_backend_stream_elsewhere(pool->backend, extent->stream))
            return true;
    for (const struct zr_pool_extent *extent = pool->first; extent; extent = extent->next)
        if (extent->kind == ZR_POOL_EXTENT_LIVE &&
            (!extent->previous || extent->previous->stream != extent->stream) &&
            zr_backend_stream_elsewhere(pool->backend, extent->stream))
            return true;
    return false;
}

bool zr_contiguous_release_all(struct zr_contiguous *pool)
{
    struct zr_bounds all = {0, pool->mapped_end_bytes};
    /* Streams may use live entries too. A destroyed pool has no later attempt, so retry once. */
    bool passed = pool->backend->can.synchronous || pool->mapped_bytes == 0 ||
                  zr_backend_synchronize(pool->backend) == ZR_OK ||
                  zr_backend_synchronize(pool->backend) == ZR_OK;
    if (passed) {
        zr_contiguous_finish_pending(pool, true);
        passed = !used_elsewhere(pool);
    }
    pool->live_bytes = pool->requested_bytes = pool->pending_bytes = 0;
    pool->touched_count = pool->entries_count = 0;
    if (!passed) {
        abandon(pool, true);
        return false;
    }
    /* Release aliases first. One call must not unmap two mappings of a granule, because unmapping the last
     * mapping returns the granule. */
    for (const struct zr_pool_extent *extent = pool->first_pending; extent; extent = extent->next_pending)
        if (extent->kind == ZR_POOL_EXTENT_ALIAS)
            zr_contiguous_release(pool, (struct zr_bounds){extent->offset_bytes, extent->bytes}, SIZE_MAX);
    zr_contiguous_release(pool, all, SIZE_MAX);
    for (size_t at = 0; at < all.bytes; at += pool->granule_bytes)
        if (zr_range_mapping(pool->range, at))
            unmap(pool, (struct zr_bounds){at, pool->granule_bytes});
    bool done = pool->mapped_bytes == 0;
    if (!done)
        abandon(pool, false);
    zr_assert(pool->held_bytes == 0 && pool->mapped_bytes == 0);
    return done;
}
