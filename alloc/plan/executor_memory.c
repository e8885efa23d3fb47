/* executor_memory.c: finds and releases unused granules of regions. Uses supply.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/supply.h"
#include "alloc/core/space.h"

/* ---- What regions can spare ---------------------------------------------------------------------------- */

static struct zr_granule_range region_of(const struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    return (struct zr_granule_range){plan->region->offset_bytes / arena->granule_bytes,
                                     zr_extent_end(plan->region) / arena->granule_bytes};
}

/* The next mapping in `where` that the callbacks were never notified of, so that no step can use it. NULL:
 * none. */
static const struct zr_mapping *next_incomplete(const struct zr_arena *arena, struct zr_granule_range where)
{
    size_t at = where.first;
    while ((at = zr_granules_next(arena->granules, at, where.end, true)) < where.end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * arena->granule_bytes);
        if (!mapping->notified)
            return mapping;
        at = (mapping->offset_bytes + mapping->handle->bytes) / arena->granule_bytes;
    }
    return NULL;
}

static struct zr_granule_range granules_of(const struct zr_arena *arena, const struct zr_mapping *mapping)
{
    size_t first = mapping->offset_bytes / arena->granule_bytes;
    return (struct zr_granule_range){first, first + mapping->handle->bytes / arena->granule_bytes};
}

bool zr_executor_collect(struct zr_arena *arena, struct zr_executor_plan *plan, struct zr_granule_range where)
{
    const struct zr_mapping *incomplete;
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    bool all = true;
    while ((incomplete = next_incomplete(arena, where))) {
        struct zr_bounds extent = {incomplete->offset_bytes, incomplete->handle->bytes};
        size_t bytes;
        where.first = granules_of(arena, incomplete).end;
        all &= zr_unmap(arena, extent, extent.bytes, &list, &bytes) == ZR_OK;
    }
    while ((handle = zr_handle_list_pop(&list)))
        zr_granule_cache_put(&arena->granule_cache, handle);
    plan->must_remap = next_incomplete(arena, region_of(arena, plan)) != NULL;
    return all;
}

bool zr_executor_must_remap(const struct zr_arena *arena, size_t offset_bytes)
{
    const struct zr_executor *executor = arena->executor;
    const struct zr_executor_plan *plan = executor ? executor->plan : NULL;
    if (executor && !plan)
        plan = executor->retired;
    for (; plan; plan = plan == executor->plan ? executor->retired : plan->next)
        if ((plan->pages_count > 0 || plan->must_remap) && offset_bytes >= plan->region->offset_bytes &&
            offset_bytes < zr_extent_end(plan->region))
            return true;
    return false;
}

/* Marks in plan->busy the granules of the region that live blocks touch, granules that the driver kept
 * without access, and granules that are not movable. */
static void mark_busy(const struct zr_arena *arena, struct zr_executor_plan *plan)
{
    if (plan->pages_count > 0) {
        zr_pages_mark_busy(arena, plan);
        return;
    }
    struct zr_granule_range region = region_of(arena, plan);
    size_t first = region.first, count = region.end - region.first;
    memset(plan->busy, 0, (count + 63) / 64 * sizeof *plan->busy);
    for (size_t i = zr_executor_live_from(plan, 0); i < plan->slots_count;
         i = zr_executor_live_from(plan, i + 1)) {
        struct zr_granule_range under = zr_granules_under(arena, &plan->slots[i].extent);
        zr_granules_set(plan->busy, under.first - first, under.end - first, true);
    }
    const struct zr_mapping *incomplete;
    while (plan->must_remap && (incomplete = next_incomplete(arena, region))) {
        struct zr_granule_range under = granules_of(arena, incomplete);
        zr_granules_set(plan->busy, under.first - first, under.end - first, true);
        region.first = under.end;
    }
    region.first = first;
    for (size_t at = first; arena->unmovable_bytes > 0 && at < region.end; at++) {
        at = zr_granules_next(arena->granules, at, region.end, true);
        if (at < region.end && !zr_is_movable(zr_range_mapping(arena->range, at * arena->granule_bytes)))
            zr_granules_set(plan->busy, at - first, at - first + 1, true);
    }
}

/* The next range of mapped granules that no block touches, from granule `at` on; empty at the end. */
static struct zr_granule_range next_idle(const struct zr_arena *arena, const struct zr_executor_plan *plan,
                                         size_t at)
{
    size_t first = plan->region->offset_bytes / arena->granule_bytes,
           end = zr_extent_end(plan->region) / arena->granule_bytes;
    struct zr_granule_range idle = {at, at};
    while (idle.first < end) {
        idle.first = zr_granules_next(arena->granules, idle.first, end, true);
        size_t mapped_end = zr_granules_next(arena->granules, idle.first, end, false);
        idle.first = first + zr_granules_next(plan->busy, idle.first - first, mapped_end - first, false);
        idle.end = first + zr_granules_next(plan->busy, idle.first - first, mapped_end - first, true);
        if (idle.first < idle.end)
            return idle;
        idle.first = mapped_end;
    }
    return (struct zr_granule_range){end, end};
}

/* Whether a step's stream belongs to another device, whose work synchronizing this device does not wait for.
 */
static bool used_elsewhere(const struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    for (size_t i = 0; i < plan->slots_count; i++)
        if (plan->slots[i].placed && zr_backend_stream_elsewhere(arena->backend, plan->steps[i].stream))
            return true;
    return false;
}

/* Waiting for the steps' own streams suffices: a block that other streams use stays live until they have
 * finished. */
bool zr_executor_wait(struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    struct zr_stream_point points[ZR_EXECUTOR_STREAMS];
    size_t count = plan->streams_count;
    bool recorded[ZR_EXECUTOR_STREAMS], all = true;
    if (!arena->asynchronous)
        return true;
    if (count > ZR_EXECUTOR_STREAMS)
        return !used_elsewhere(arena, plan) && zr_backend_synchronize(arena->backend) == ZR_OK;
    arena->backend_calls_count += count;
    zr_arena_begin_driver_call(arena);
    for (size_t i = 0; i < count; i++)
        recorded[i] = zr_backend_event_record(arena->backend, plan->streams[i], &points[i]) == ZR_OK;
    for (size_t i = 0; i < count; i++)
        recorded[i] = recorded[i] && zr_backend_event_wait(arena->backend, &points[i]) == ZR_OK;
    zr_arena_end_driver_call(arena);
    for (size_t i = 0; i < count && all; i++)
        all = recorded[i] || zr_arena_stream_wait(arena, plan->streams[i]) == ZR_OK;
    return all;
}

size_t zr_executor_give_back_of(struct zr_arena *arena, struct zr_executor_plan *plan, size_t wanted_bytes)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    size_t all_bytes = 0, granule = arena->granule_bytes;
    struct zr_granule_range idle = {0, plan->region->offset_bytes / granule};
    if (plan->must_remap)
        zr_executor_collect(arena, plan, region_of(arena, plan));
    mark_busy(arena, plan);
    if (next_idle(arena, plan, idle.end).first == zr_extent_end(plan->region) / granule)
        return 0;
    /* Steps now take the slow path to their places, which waits for the supply lock. */
    plan->epoch++;
    /* Streams may still work on blocks freed here, because a region records no owner for free space. */
    if (!zr_executor_wait(arena, plan))
        return 0;
    for (idle = next_idle(arena, plan, idle.end); idle.first < idle.end;
         idle = next_idle(arena, plan, idle.end)) {
        size_t left = (wanted_bytes - all_bytes - 1) / granule + 1, bytes = 0; /* in granules */
        struct zr_bounds extent = {idle.first * granule, (idle.end - idle.first) * granule};
        if (left > idle.end - idle.first)
            left = idle.end - idle.first;
        zr_result result = ZR_OK;
        if (plan->pages_count > 0) {
            idle.end = idle.first + left;
            result = zr_pages_unmap(arena, plan, idle, &bytes);
        } else {
            result = zr_unmap(arena, extent, left * granule, &list, &bytes);
            if (result == ZR_OK && bytes == 0) /* the handle is larger than the bytes left to unmap */
                result = zr_unmap(arena, extent, extent.bytes, &list, &bytes);
        }
        all_bytes += bytes;
        if (result != ZR_OK || all_bytes >= wanted_bytes)
            break;
    }
    while ((handle = zr_handle_list_pop(&list)))
        zr_granule_cache_put(&arena->granule_cache, handle);
    return all_bytes;
}

size_t zr_executor_give_back(struct zr_arena *arena)
{
    size_t bytes =
        arena->executor->plan ? zr_executor_give_back_of(arena, arena->executor->plan, SIZE_MAX) : 0;
    for (struct zr_executor_plan *plan = arena->executor->retired; plan; plan = plan->next)
        bytes += zr_executor_give_back_of(arena, plan, SIZE_MAX);
    return bytes;
}

void zr_executor_spare(struct zr_arena *arena, size_t missing_bytes, size_t mapped_bytes, bool dynamic)
{
    struct zr_executor *executor = arena->executor;
    bool over = dynamic && executor->plan && arena->reserved_bytes + missing_bytes > executor->allowed_bytes;
    size_t have_bytes = SIZE_MAX, idle_bytes = zr_space_idle_bytes(arena);
    /* Idle granules under the place itself are not missing. */
    if (executor->retired || over)
        have_bytes =
            arena->granule_cache.bytes + idle_bytes - (idle_bytes < mapped_bytes ? idle_bytes : mapped_bytes);
    for (struct zr_executor_plan *plan = executor->retired; plan && have_bytes < missing_bytes;
         plan = plan->next)
        have_bytes += zr_executor_give_back_of(arena, plan, missing_bytes - have_bytes);
    if (over && have_bytes < missing_bytes)
        zr_executor_give_back_of(arena, executor->plan, missing_bytes - have_bytes);
}

void zr_executor_allow(struct zr_arena *arena, size_t bytes)
{
    bytes = zr_plan_allowed_bytes(bytes, arena->granule_bytes, arena->executor->unplanned);
    if (arena->executor->allowed_bytes < bytes)
        arena->executor->allowed_bytes = bytes;
}

static size_t idle_bytes_of(const struct zr_arena *arena, struct zr_executor_plan *plan)
{
    struct zr_granule_range idle = {0, plan->region->offset_bytes / arena->granule_bytes};
    size_t count = 0;
    if (plan->pages_count > 0)
        return zr_pages_mark_busy(arena, plan);
    mark_busy(arena, plan);
    for (idle = next_idle(arena, plan, idle.end); idle.first < idle.end;
         idle = next_idle(arena, plan, idle.end))
        count += idle.end - idle.first;
    return count * arena->granule_bytes;
}

size_t zr_executor_retired_idle_bytes(struct zr_arena *arena)
{
    size_t bytes = 0;
    for (struct zr_executor_plan *plan = arena->executor->retired; plan; plan = plan->next)
        bytes += idle_bytes_of(arena, plan);
    return bytes;
}

size_t zr_executor_idle_bytes(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    if (!executor)
        return 0;
    return zr_executor_retired_idle_bytes(arena) +
           (executor->plan ? idle_bytes_of(arena, executor->plan) : 0);
}
