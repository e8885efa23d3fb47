/* follow_memory.c: granules that regions hold and do not need, and granules kept mapped for strays. Stands on
 * extend.c. */
#include <string.h>

#include "alloc/error.h"
#include "alloc/follow_internal.h"
#include "alloc/option.h"

enum {
    SETTLED_MOST = 4,
    SLACK_DIVISOR =
        16, /* of the plan's memory, and so many granules: kept for strays beyond what they took */
    SLACK_GRANULES = 16,
};

/* ---- What regions can spare ---------------------------------------------------------------------------- */

static struct zr_stretch region_of(const struct zr_arena *arena, const struct zr_follow_plan *plan)
{
    return (struct zr_stretch){plan->region->offset_bytes / arena->granule_bytes,
                               zr_span_end(plan->region) / arena->granule_bytes};
}

/* The next mapping that touches granules of `where`, that was never announced: no step has it. NULL: none. */
static const struct zr_mapping *next_owed(const struct zr_arena *arena, struct zr_stretch where)
{
    size_t at = where.first;
    while ((at = zr_granules_next(arena->granules, at, where.end, true)) < where.end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * arena->granule_bytes);
        if (!mapping->announced)
            return mapping;
        at = (mapping->offset_bytes + mapping->handle->bytes) / arena->granule_bytes;
    }
    return NULL;
}

static struct zr_stretch granules_of(const struct zr_arena *arena, const struct zr_mapping *mapping)
{
    size_t first = mapping->offset_bytes / arena->granule_bytes;
    return (struct zr_stretch){first, first + mapping->handle->bytes / arena->granule_bytes};
}

bool zr_follow_collect(struct zr_arena *arena, struct zr_follow_plan *plan, struct zr_stretch where)
{
    const struct zr_mapping *owed;
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    bool all = true;
    while ((owed = next_owed(arena, where))) {
        struct zr_extent extent = {owed->offset_bytes, owed->handle->bytes};
        size_t bytes;
        where.first = granules_of(arena, owed).end;
        all &= zr_unmap(arena, extent, extent.bytes, &list, &bytes) == ZR_OK;
    }
    while ((handle = zr_handle_list_pop(&list)))
        zr_stock_put(&arena->stock, handle);
    plan->owed = next_owed(arena, region_of(arena, plan)) != NULL;
    return all;
}

bool zr_follow_owes(const struct zr_arena *arena, size_t offset_bytes)
{
    const struct zr_follow *follow = arena->follow;
    const struct zr_follow_plan *plan = follow ? follow->plan : NULL;
    if (follow && !plan)
        plan = follow->retired;
    for (; plan; plan = plan == follow->plan ? follow->retired : plan->next)
        if ((plan->pages_count > 0 || plan->owed) && offset_bytes >= plan->region->offset_bytes &&
            offset_bytes < zr_span_end(plan->region))
            return true;
    return false;
}

/* Marks the granules of the region that blocks touch, and those that the driver kept, in plan->busy. */
static void mark_busy(const struct zr_arena *arena, struct zr_follow_plan *plan)
{
    if (plan->pages_count > 0) {
        zr_pages_mark_busy(arena, plan);
        return;
    }
    struct zr_stretch region = region_of(arena, plan);
    size_t first = region.first, count = region.end - region.first;
    memset(plan->busy, 0, (count + 63) / 64 * sizeof *plan->busy);
    for (size_t word = 0; word * 64 < plan->slots_count; word++)
        for (uint64_t bits = plan->live[word]; bits; bits &= bits - 1) {
            struct zr_stretch under =
                zr_granules_under(arena, &plan->slots[word * 64 + (size_t)__builtin_ctzll(bits)].span);
            zr_granules_set(plan->busy, under.first - first, under.end - first, true);
        }
    const struct zr_mapping *owed;
    while (plan->owed && (owed = next_owed(arena, region))) {
        struct zr_stretch under = granules_of(arena, owed);
        zr_granules_set(plan->busy, under.first - first, under.end - first, true);
        region.first = under.end;
    }
}

/* The next stretch of mapped granules from granule `at` of the range on that no block touches; empty at the
 * end. */
static struct zr_stretch next_idle(const struct zr_arena *arena, const struct zr_follow_plan *plan, size_t at)
{
    size_t first = plan->region->offset_bytes / arena->granule_bytes,
           end = zr_span_end(plan->region) / arena->granule_bytes;
    struct zr_stretch idle = {at, at};
    while (idle.first < end) {
        idle.first = zr_granules_next(arena->granules, idle.first, end, true);
        size_t mapped_end = zr_granules_next(arena->granules, idle.first, end, false);
        idle.first = first + zr_granules_next(plan->busy, idle.first - first, mapped_end - first, false);
        idle.end = first + zr_granules_next(plan->busy, idle.first - first, mapped_end - first, true);
        if (idle.first < idle.end)
            return idle;
        idle.first = mapped_end;
    }
    return (struct zr_stretch){end, end};
}

/* Waiting for the device does not wait for another device's streams. */
static bool used_elsewhere(const struct zr_arena *arena, const struct zr_follow_plan *plan)
{
    for (size_t i = 0; i < plan->slots_count; i++)
        if (plan->slots[i].placed && zr_backend_stream_elsewhere(arena->backend, plan->steps[i].stream))
            return true;
    return false;
}

/* A block that others than its step's stream use is live until they have passed. */
bool zr_follow_wait(struct zr_arena *arena, const struct zr_follow_plan *plan)
{
    struct zr_stream_point points[ZR_FOLLOW_STREAMS];
    size_t count = plan->streams_count;
    bool recorded[ZR_FOLLOW_STREAMS], all = true;
    if (!arena->asynchronous)
        return true;
    if (count > ZR_FOLLOW_STREAMS)
        return !used_elsewhere(arena, plan) && zr_backend_synchronize(arena->backend) == ZR_OK;
    for (size_t i = 0; i < count; i++) {
        arena->backend_calls_count++;
        recorded[i] = zr_backend_event_record(arena->backend, plan->streams[i], &points[i]) == ZR_OK;
    }
    for (size_t i = 0; i < count && all; i++)
        all = (recorded[i] && zr_backend_event_wait(arena->backend, &points[i]) == ZR_OK) ||
              zr_backend_stream_wait(arena->backend, plan->streams[i]) == ZR_OK;
    return all;
}

size_t zr_follow_give_back_of(struct zr_arena *arena, struct zr_follow_plan *plan, size_t wanted_bytes)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    size_t all_bytes = 0, granule = arena->granule_bytes;
    bool unmapped = false;
    struct zr_stretch idle = {0, plan->region->offset_bytes / granule};
    if (plan->owed)
        zr_follow_collect(arena, plan, region_of(arena, plan));
    mark_busy(arena, plan);
    /* Streams may still work on what was freed here: no gap has them as its owner. */
    if (next_idle(arena, plan, idle.end).first < zr_span_end(plan->region) / granule &&
        !zr_follow_wait(arena, plan))
        return 0;
    for (idle = next_idle(arena, plan, idle.end); idle.first < idle.end;
         idle = next_idle(arena, plan, idle.end)) {
        size_t left = (wanted_bytes - all_bytes - 1) / granule + 1, bytes = 0; /* granules */
        struct zr_extent extent = {idle.first * granule, (idle.end - idle.first) * granule};
        if (left > idle.end - idle.first)
            left = idle.end - idle.first;
        zr_result result = ZR_OK;
        if (plan->pages_count > 0) {
            idle.end = idle.first + left;
            result = zr_pages_unmap(arena, plan, idle, &bytes);
        } else {
            result = zr_unmap(arena, extent, left * granule, &list, &bytes);
            if (result == ZR_OK && bytes == 0) /* runs, longer than what is wanted */
                result = zr_unmap(arena, extent, extent.bytes, &list, &bytes);
        }
        unmapped |= bytes > 0 || plan->pages_count > 0;
        all_bytes += bytes;
        if (result != ZR_OK || all_bytes >= wanted_bytes)
            break;
    }
    if (unmapped)
        plan->epoch++;
    while ((handle = zr_handle_list_pop(&list)))
        zr_stock_put(&arena->stock, handle);
    return all_bytes;
}

size_t zr_follow_give_back(struct zr_arena *arena)
{
    size_t bytes = arena->follow->plan ? zr_follow_give_back_of(arena, arena->follow->plan, SIZE_MAX) : 0;
    for (struct zr_follow_plan *plan = arena->follow->retired; plan; plan = plan->next)
        bytes += zr_follow_give_back_of(arena, plan, SIZE_MAX);
    return bytes;
}

void zr_follow_spare(struct zr_arena *arena, size_t missing_bytes, bool dynamic)
{
    struct zr_follow *follow = arena->follow;
    bool over = dynamic && follow->plan && arena->reserved_bytes + missing_bytes > follow->allowed_bytes;
    size_t have_bytes = follow->retired || over ? arena->stock.bytes + zr_space_idle_bytes(arena) : SIZE_MAX;
    for (struct zr_follow_plan *plan = follow->retired; plan && have_bytes < missing_bytes; plan = plan->next)
        have_bytes += zr_follow_give_back_of(arena, plan, missing_bytes - have_bytes);
    if (over && have_bytes < missing_bytes)
        zr_follow_give_back_of(arena, follow->plan, missing_bytes - have_bytes);
}

void zr_follow_allow(struct zr_arena *arena, size_t bytes)
{
    bytes += bytes / 64 + arena->granule_bytes;
    if (arena->follow->allowed_bytes < bytes)
        arena->follow->allowed_bytes = bytes;
}

static size_t idle_bytes_of(const struct zr_arena *arena, struct zr_follow_plan *plan)
{
    struct zr_stretch idle = {0, plan->region->offset_bytes / arena->granule_bytes};
    size_t count = 0;
    if (plan->pages_count > 0)
        return zr_pages_mark_busy(arena, plan);
    mark_busy(arena, plan);
    for (idle = next_idle(arena, plan, idle.end); idle.first < idle.end;
         idle = next_idle(arena, plan, idle.end))
        count += idle.end - idle.first;
    return count * arena->granule_bytes;
}

size_t zr_follow_idle_bytes(struct zr_arena *arena)
{
    struct zr_follow *follow = arena->follow;
    size_t bytes = follow && follow->plan ? idle_bytes_of(arena, follow->plan) : 0;
    for (struct zr_follow_plan *plan = follow ? follow->retired : NULL; plan; plan = plan->next)
        bytes += idle_bytes_of(arena, plan);
    return bytes;
}

/* ---- Room for strays ----------------------------------------------------------------------------------- */

void zr_follow_swing(struct zr_follow *follow, const struct zr_span *block, bool freed)
{
    struct zr_swing *of = &follow->swings[block->zone];
    /* Blocks from before the plan are freed without having been counted. */
    if (freed)
        of->now_bytes -= block->bytes < of->now_bytes ? block->bytes : of->now_bytes;
    else
        of->now_bytes += block->bytes;
    if (of->now_bytes > of->most_bytes)
        of->most_bytes = of->now_bytes;
}

/* Maps the first bytes of a gap; returns the bytes of it. No matter if there is no memory. */
static size_t map_ahead(struct zr_arena *arena, struct zr_span *gap, size_t bytes)
{
    if (!zr_pool_reserve(&arena->spans, 2 * ZR_CARVE_SPANS))
        return 0;
    struct zr_span *block = zr_space_carve(arena, gap, (struct zr_extent){gap->offset_bytes, bytes});
    struct zr_extent stuck, part = {block->offset_bytes, bytes};
    zr_result result = zr_map(arena, part, &stuck);
    if (result != ZR_OK && stuck.bytes > 0) {
        block->kind = ZR_SPAN_LEAVING; /* the driver has it, and the arena's end asks again */
        return 0;
    }
    if (!zr_space_free(arena, block, block))
        zr_pool_give(&arena->spans, block);
    return result == ZR_OK ? bytes : 0;
}

/* Best fit looks at gaps between blocks first, mapped or not, so those are filled first. */
static void map_zone_ahead(struct zr_arena *arena, unsigned zone, size_t bytes)
{
    for (struct zr_span *gap = arena->first; gap && bytes > 0; gap = gap->next) {
        if (gap->kind != ZR_SPAN_GAP || gap->zone != zone || gap->owner != 0 ||
            gap == arena->zones[zone].tail || gap->bytes > bytes)
            continue;
        struct zr_stretch under = zr_granules_under(arena, gap);
        if (zr_granules_all_mapped(arena->granules, under.first, under.end))
            continue;
        struct zr_span *before = gap->previous;
        bytes -= map_ahead(arena, gap, gap->bytes);
        gap = before ? before->next : arena->first; /* the gap has another record now */
    }
    struct zr_span *tail = arena->zones[zone].tail;
    /* To the end of a granule: what the driver keeps without access must be the block's whole. */
    size_t end = tail ? zr_round_up(tail->offset_bytes + bytes, arena->granule_bytes) : 0;
    if (tail && bytes > 0 && end < zr_span_end(tail))
        map_ahead(arena, tail, end - tail->offset_bytes);
}

/* Gets the memory for all zones before any of it is mapped, so that none is stolen from another. */
static bool fill_stock(struct zr_arena *arena, size_t bytes)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    zr_result result = zr_granules_gather(arena, bytes, &list);
    while ((handle = zr_handle_list_pop(&list)))
        zr_stock_put(&arena->stock, handle);
    return result == ZR_OK;
}

/* Steps that have not come yet will take no memory from what is kept for strays. No matter if there is none.
 */
static void map_rest_of_plan(struct zr_arena *arena, struct zr_follow_plan *plan)
{
    for (size_t i = 0; i < plan->slots_count; i++)
        if (plan->slots[i].placed && plan->steps[i].seen_epoch != plan->epoch &&
            !zr_follow_map_slot(arena, &plan->slots[i]))
            return;
}

/* What is kept mapped and free for strays by zone, and in all: up to what blocks outside of the plan took at
 * most, and some times that again, as far as it is no large part of the plan. */
static size_t wanted_for_strays(const struct zr_arena *arena, const struct zr_follow *follow,
                                size_t wanted[ZR_ZONE_COUNT])
{
    size_t sum_bytes = 0, swing_bytes = 0, times = 3 + 2 * follow->settled_count;
    size_t most_bytes = follow->counts.memory_bytes / SLACK_DIVISOR + SLACK_GRANULES * arena->granule_bytes;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++)
        swing_bytes += follow->swings[i].most_bytes;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        double part = swing_bytes ? (double)follow->swings[i].most_bytes / (double)swing_bytes : 0;
        size_t extra_bytes = times * follow->swings[i].most_bytes;
        if (times * swing_bytes > most_bytes)
            extra_bytes = (size_t)((double)most_bytes * part);
        wanted[i] = zr_round_up(follow->swings[i].most_bytes - follow->swings[i].now_bytes + extra_bytes,
                                arena->granule_bytes);
        sum_bytes += wanted[i];
    }
    return sum_bytes;
}

static void settle(struct zr_arena *arena, struct zr_follow *follow)
{
    size_t wanted[ZR_ZONE_COUNT], kept_bytes = wanted_for_strays(arena, follow, wanted);
    zr_arena_settle(arena); /* what waits to be asked for again is no longer of use there */
    if (arena->asynchronous && !follow->settled)
        zr_streams_wait(arena); /* once for a plan: what streams still use cannot be trimmed */
    if (kept_bytes > 0)
        map_rest_of_plan(arena, follow->plan);
    if (!follow->settled)
        zr_trim(arena, kept_bytes);
    follow->settled_count += follow->settled && follow->settled_count < SETTLED_MOST;
    follow->settled = true;
    bool more = false;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++)
        more |= wanted[i] > follow->swings[i].kept_bytes;
    if (!more || !fill_stock(arena, kept_bytes))
        return;
    zr_follow_allow(arena, arena->reserved_bytes);
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        map_zone_ahead(arena, i, wanted[i]);
        follow->swings[i].kept_bytes = wanted[i];
    }
}

void zr_arena_settle_plan(zr_arena *arena)
{
    zr_lock_take(&arena->lock);
    if (arena->follow && arena->follow->plan) {
        settle(arena, arena->follow);
        zr_follow_begin_pass(arena);
    }
    if (arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_lock_give(&arena->lock);
}
