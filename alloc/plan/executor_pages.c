/* executor_pages.c: plans in which a granule of memory, a page, lies at several addresses of the region. Uses
 * supply.c and backend.c.
 *
 * Blocks of whole granules whose lifetimes do not overlap share pages, each at an address of its own. So the
 * plan needs only as many pages as are live at once, wherever the blocks lie. A page is mapped at an address
 * when a step first needs it there, and stays mapped at all its addresses until the region returns it.
 *
 * CUDA makes a write through one address visible through another address after the writing operation is
 * complete. The order of a sequence's one stream guarantees this; a block that a second stream uses stays
 * live until that stream has finished.
 *
 * A page counts once in mapped_bytes; its further addresses count in alias_bytes. Regions are not free
 * extents, so only the plan maps, unmaps or releases a page. poison.h marks free space by address, which is
 * correct for each address of a page, because at most one of them has a live block. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/base/poison.h"
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/supply.h"
#include "alloc/core/registry.h"

static inline size_t region_first(const struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    return plan->region->offset_bytes / arena->granule_bytes;
}

/* The page under a granule of the range. */
static inline uint32_t page_at(const struct zr_arena *arena, const struct zr_executor_plan *plan,
                               size_t granule)
{
    return plan->pages[granule - region_first(arena, plan)];
}

/* ---- Late blocks --------------------------------------------------------------------------------------- */

void zr_pages_count_overdue(const struct zr_arena *arena, const struct zr_plan_slot *slot, bool overdue)
{
    struct zr_granule_range under = zr_granules_under(arena, &slot->extent);
    for (size_t at = under.first; at < under.end; at++)
        slot->plan->overdue_counts[page_at(arena, slot->plan, at)] += overdue ? 1u : UINT32_MAX;
}

/* Overdue blocks on this granule of the region. The caller has checked that they do not overlap the place, so
 * they lie beside it on the granule. */
static uint32_t beside_count(const struct zr_arena *arena, const struct zr_executor_sequence *sequence,
                             size_t granule)
{
    uint32_t count = 0;
    for (const struct zr_plan_slot *overdue = sequence->overdue; overdue;
         overdue = (const struct zr_plan_slot *)overdue->extent.next) {
        struct zr_granule_range under = zr_granules_under(arena, &overdue->extent);
        count += under.first <= granule && granule < under.end;
    }
    return count;
}

bool zr_pages_clear_of_overdue(const struct zr_arena *arena, const struct zr_executor_sequence *sequence,
                               const struct zr_plan_slot *slot)
{
    struct zr_granule_range under = zr_granules_under(arena, &slot->extent);
    for (size_t at = under.first; at < under.end; at++) {
        uint32_t count = slot->plan->overdue_counts[page_at(arena, slot->plan, at)];
        if (count > 0 && count > beside_count(arena, sequence, at))
            return false;
    }
    return true;
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

/* Whether the granule is mapped with access and its mapping was notified. */
static bool is_ready(const struct zr_arena *arena, size_t granule)
{
    return zr_granules_all_mapped(arena->granules, granule, granule + 1) &&
           zr_range_mapping(arena->range, granule * arena->granule_bytes)->notified;
}

/* Counts a granule of the region that was mapped, or unmapped if `mapped` is NULL. Returns the handle of a
 * page without another mapping; the caller then owns it. */
static struct zr_handle *count_page(struct zr_arena *arena, struct zr_executor_plan *plan, size_t granule,
                                    struct zr_handle *mapped)
{
    struct zr_handle **handle = &plan->handles[page_at(arena, plan, granule)], *left = NULL;
    zr_granules_set(arena->granules, granule, granule + 1, mapped != NULL);
    if (mapped && !*handle) {
        *handle = mapped;
        arena->mapped_bytes += arena->granule_bytes;
    } else if (mapped) {
        arena->alias_bytes += arena->granule_bytes;
    } else if (*handle && (*handle)->mappings_count == 0) {
        left = *handle;
        *handle = NULL;
        arena->mapped_bytes -= arena->granule_bytes;
    } else {
        arena->alias_bytes -= arena->granule_bytes;
    }
    return left;
}

/* Maps one page. A page without a handle takes one from the list. */
static zr_result map_page(struct zr_arena *arena, struct zr_executor_plan *plan, size_t granule,
                          struct zr_handle_list *list)
{
    struct zr_handle *handle = plan->handles[page_at(arena, plan, granule)];
    bool fresh = handle == NULL;
    if (fresh)
        handle = list->first;
    arena->backend_calls_count++;
    zr_result result = zr_backend_map(arena->range, granule * arena->granule_bytes, handle);
    if (result != ZR_OK)
        return result;
    if (fresh)
        zr_handle_list_pop(list);
    count_page(arena, plan, granule, handle);
    return ZR_OK;
}

/* Gives access to granules that were not notified, range by range, and notifies the callbacks: granules that
 * this request mapped, and granules that an earlier failed request left. */
static zr_result open_pages(struct zr_arena *arena, struct zr_granule_range under)
{
    size_t granule = arena->granule_bytes;
    struct zr_granule_range run = under;
    zr_result result = ZR_OK;
    for (; run.first < under.end && result == ZR_OK; run.first = run.end + 1) {
        for (run.end = run.first; run.end < under.end; run.end++) {
            struct zr_mapping *mapping = zr_range_mapping(arena->range, run.end * granule);
            if (mapping->notified)
                break;
            /* The serial selects the mapping for the notification. No other mapping under this block has the
             * handle. */
            mapping->handle->serial = arena->serial;
        }
        if (run.end == run.first)
            continue;
        struct zr_bounds extent = {run.first * granule, (run.end - run.first) * granule};
        arena->backend_calls_count++;
        result = zr_backend_set_access(arena->range, extent);
        if (result == ZR_OK && arena->poison)
            zr_poison_free(arena->base + extent.offset_bytes, extent.bytes);
    }
    return result == ZR_OK ? arena->map_calls->mapped(arena, under) : result;
}

/* Unmaps a granule that a failed request mapped. A granule that the driver keeps stays in the counters, and
 * the next step there maps it again. */
static void unmap_again(struct zr_arena *arena, struct zr_executor_plan *plan, size_t granule,
                        struct zr_handle_list *list)
{
    struct zr_bounds extent = {granule * arena->granule_bytes, arena->granule_bytes};
    if (arena->poison)
        zr_poison_clear(arena->base + extent.offset_bytes, extent.bytes);
    arena->backend_calls_count++;
    if (zr_backend_unmap(arena->range, extent) != ZR_OK)
        return;
    struct zr_handle *left = count_page(arena, plan, granule, NULL);
    if (left)
        zr_handle_list_push(list, left);
}

/* The number of pages under the granules that have no memory. No page occurs twice there. */
static size_t count_missing(const struct zr_arena *arena, const struct zr_executor_plan *plan,
                            struct zr_granule_range under)
{
    size_t count = 0;
    for (size_t at = under.first; at < under.end; at++)
        count += plan->handles[page_at(arena, plan, at)] == NULL;
    return count;
}

zr_result zr_pages_map(struct zr_arena *arena, const struct zr_plan_slot *slot)
{
    struct zr_executor_plan *plan = slot->plan;
    struct zr_granule_range under = zr_granules_under(arena, &slot->extent);
    struct zr_handle_list list = {0};
    size_t first = region_first(arena, plan), at = under.first;
    while (at < under.end && is_ready(arena, at))
        at++;
    if (at == under.end)
        return ZR_OK;
    zr_result result =
        zr_granules_gather(arena, count_missing(arena, plan, under) * arena->granule_bytes, &list);
    /* plan->busy marks the granules that this request maps. */
    zr_granules_set(plan->busy, under.first - first, under.end - first, false);
    struct zr_zone *zone = arena->zones;
    while (zone->end_bytes <= slot->extent.offset_bytes)
        zone++;
    if (under.end > zone->mapped_end)
        zone->mapped_end = under.end;
    for (at = under.first; at < under.end && result == ZR_OK; at++) {
        if (zr_granules_all_mapped(arena->granules, at, at + 1))
            continue;
        result = map_page(arena, plan, at, &list);
        if (result == ZR_OK)
            zr_granules_set(plan->busy, at - first, at - first + 1, true);
    }
    if (result == ZR_OK)
        result = open_pages(arena, under);
    if (result != ZR_OK) {
        for (at = under.first; at < under.end; at++)
            if (zr_granules_all_mapped(plan->busy, at - first, at - first + 1))
                unmap_again(arena, plan, at, &list);
        zr_granules_put_back(arena, &list);
        return result;
    }
    zr_limit_note_peak(arena);
    return ZR_OK;
}

/* ---- Unmapping ----------------------------------------------------------------------------------------- */

size_t zr_pages_mark_busy(const struct zr_arena *arena, struct zr_executor_plan *plan)
{
    size_t count = plan->region->bytes / arena->granule_bytes, idle_count = 0;
    memset(plan->busy_pages, 0, (plan->pages_count + 63) / 64 * sizeof *plan->busy_pages);
    memset(plan->busy, 0, (count + 63) / 64 * sizeof *plan->busy);
    for (size_t i = zr_executor_live_from(plan, 0); i < plan->slots_count;
         i = zr_executor_live_from(plan, i + 1)) {
        struct zr_granule_range under = zr_granules_under(arena, &plan->slots[i].extent);
        for (size_t at = under.first; at < under.end; at++) {
            uint32_t page = page_at(arena, plan, at);
            plan->busy_pages[page / 64] |= UINT64_C(1) << (page % 64);
        }
    }
    for (size_t page = 0; page < plan->pages_count; page++)
        if (plan->handles[page] && plan->handles[page]->granule_class != ZR_GRANULE_MOVABLE)
            plan->busy_pages[page / 64] |= UINT64_C(1) << (page % 64);
    for (size_t i = 0; i < count; i++)
        if (plan->busy_pages[plan->pages[i] / 64] >> (plan->pages[i] % 64) & 1)
            plan->busy[i / 64] |= UINT64_C(1) << (i % 64);
    for (size_t page = 0; page < plan->pages_count; page++)
        idle_count += plan->handles[page] && !(plan->busy_pages[page / 64] >> (page % 64) & 1);
    return idle_count * arena->granule_bytes;
}

/* Unmaps granules of which all or none are notified. */
static zr_result unmap_alike(struct zr_arena *arena, struct zr_executor_plan *plan,
                             struct zr_granule_range where, bool notified, size_t *bytes)
{
    struct zr_bounds extent = {where.first * arena->granule_bytes,
                               (where.end - where.first) * arena->granule_bytes};
    char *address = arena->base + extent.offset_bytes;
    if (notified)
        arena->map_calls->unmapping(arena, extent);
    if (arena->poison)
        zr_poison_clear(address, extent.bytes);
    arena->backend_calls_count++;
    zr_result result = zr_backend_unmap(arena->range, extent);
    if (result != ZR_OK) {
        if (arena->poison)
            zr_poison_free(address, extent.bytes);
        if (notified)
            arena->map_calls->kept(arena, extent);
        return result;
    }
    if (notified)
        arena->map_calls->unmapped(arena, extent);
    for (size_t at = where.first; at < where.end; at++) {
        struct zr_handle *left = count_page(arena, plan, at, NULL);
        if (!left)
            continue;
        *bytes += left->bytes;
        zr_granule_cache_put(&arena->granule_cache, left);
    }
    return ZR_OK;
}

zr_result zr_pages_unmap(struct zr_arena *arena, struct zr_executor_plan *plan, struct zr_granule_range where,
                         size_t *bytes)
{
    zr_result result = ZR_OK;
    for (struct zr_granule_range part = where; part.first < where.end && result == ZR_OK;
         part.first = part.end) {
        bool notified = is_ready(arena, part.first);
        for (part.end = part.first + 1; part.end < where.end; part.end++)
            if (is_ready(arena, part.end) != notified)
                break;
        result = unmap_alike(arena, plan, part, notified, bytes);
    }
    return result;
}

bool zr_pages_leave(struct zr_arena *arena, struct zr_executor_plan *plan)
{
    struct zr_granule_range run = {.end = region_first(arena, plan)};
    size_t end = zr_extent_end(plan->region) / arena->granule_bytes, bytes = 0;
    bool all = true;
    for (;;) {
        run.first = zr_granules_next(arena->granules, run.end, end, true);
        run.end = zr_granules_next(arena->granules, run.first, end, false);
        if (run.first == end)
            return all;
        if (zr_unmovable_bytes(arena, run) > 0)
            all = false;
        else
            all &= zr_pages_unmap(arena, plan, run, &bytes) == ZR_OK;
    }
}

/* ---- Checking ------------------------------------------------------------------------------------------ */

bool zr_pages_are_good(const struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    bool good = true;
    for (size_t i = 0; i < plan->slots_count && good; i++) {
        if (!plan->slots[i].placed)
            continue;
        struct zr_granule_range under = zr_granules_under(arena, &plan->slots[i].extent);
        for (size_t at = under.first; at < under.end; at++) {
            uint32_t *seen = &plan->overdue_counts[page_at(arena, plan, at)];
            good &= *seen != (uint32_t)i + 1;
            *seen = (uint32_t)i + 1;
        }
    }
    memset(plan->overdue_counts, 0, plan->pages_count * sizeof *plan->overdue_counts);
    return good;
}

zr_result zr_pages_check(const struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    size_t first = region_first(arena, plan), end = zr_extent_end(plan->region) / arena->granule_bytes;
    size_t mappings_count = 0, pages_count = 0, counted = 0;
    for (size_t at = zr_granules_next(arena->granules, first, end, true); at < end;
         at = zr_granules_next(arena->granules, at + 1, end, true)) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * arena->granule_bytes);
        if (!mapping || mapping->handle != plan->handles[page_at(arena, plan, at)])
            return zr_fail(ZR_ERR_CORRUPT, "granule %zu of a plan's region has a different page than planned",
                           at - first);
        mappings_count++;
    }
    for (size_t page = 0; page < plan->pages_count; page++) {
        if (!plan->handles[page])
            continue;
        pages_count++;
        counted += plan->handles[page]->mappings_count;
        if (plan->handles[page]->bytes != arena->granule_bytes)
            return zr_fail(ZR_ERR_CORRUPT, "page %zu of a plan is not a single granule", page);
    }
    if (counted != mappings_count ||
        (mappings_count - pages_count) * arena->granule_bytes > arena->alias_bytes)
        return zr_fail(ZR_ERR_CORRUPT, "%zu pages of a plan are mapped at %zu addresses; the counter has %zu",
                       pages_count, mappings_count, counted);
    for (size_t i = 0; i < plan->slots_count; i++) {
        if (!plan->slots[i].placed || !zr_slot_live(plan, &plan->slots[i]))
            continue;
        struct zr_granule_range under = zr_granules_under(arena, &plan->slots[i].extent);
        for (size_t at = under.first; at < under.end; at++)
            if (!is_ready(arena, at))
                return zr_fail(ZR_ERR_CORRUPT, "the planned block of step %zu lies on a page without access",
                               i);
    }
    return ZR_OK;
}
