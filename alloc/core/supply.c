/* supply.c: physical memory for an arena: its sources, mapping and unmapping. Uses space.c, granule_cache.c
 * and backend.c.
 *
 * gather() takes granules from these sources in order: the cache; the driver, for bytes that idle granules in
 * free extents cannot cover; free extents, by stealing; the driver again, for bytes that stealing missed,
 * after longer idle runs were returned to it. The first driver call comes before stealing, so that an early
 * refusal leaves the free extents unchanged, except for returned runs. After a later refusal the stolen
 * granules are in the cache. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/supply.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/poison.h"

/* Large needs are met with runs of granules, about this many per need, so that terabytes take hundreds of
 * handles and a run strands less than a hundredth of its block. */
enum { HANDLES_PER_NEED = 256 };

/* ---- From the driver ----------------------------------------------------------------------------------- */

/* The longest run, a power of two of granules, for a need of `bytes`. */
static size_t run_bytes(const struct zr_arena *arena, size_t bytes)
{
    size_t granules = bytes / arena->granule_bytes;
    size_t run = granules / HANDLES_PER_NEED;
    if (run < 2)
        return arena->granule_bytes;
    return arena->granule_bytes << (63 - __builtin_clzl(run));
}

void zr_handle_destroy(struct zr_arena *arena, struct zr_handle *handle)
{
    zr_handle_set_class(arena, handle, ZR_GRANULE_MOVABLE);
    arena->reserved_bytes -= handle->bytes;
    zr_limit_release(arena, handle->bytes);
    arena->backend_calls_count++;
    zr_arena_begin_driver_call(arena);
    zr_result result = zr_backend_destroy_handle(arena->backend, handle);
    zr_assert(result == ZR_OK);
    zr_arena_end_driver_call(arena);
}

static void destroy_list(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list)))
        zr_handle_destroy(arena, handle);
}

/* Creates all bytes or none, in handles of at most `longest` bytes. */
static zr_result create_handles(struct zr_arena *arena, size_t bytes, size_t longest,
                                struct zr_handle_list *list)
{
    struct zr_handle_list created = {0};
    struct zr_handle *handle;
    zr_result result = ZR_OK;
    size_t calls_count = 0, created_bytes = 0;
    if (!zr_limit_reserve(arena, bytes))
        return ZR_ERR_MEMORY;
    size_t run = run_bytes(arena, bytes);
    run = run < longest ? run : longest;
    zr_arena_begin_driver_call(arena);
    while (bytes > created_bytes) {
        while (run > bytes - created_bytes)
            run /= 2;
        calls_count++;
        result = zr_backend_create(arena->backend, run, &handle);
        if (result != ZR_OK)
            break;
        handle->serial = arena->serial;
        handle->created = true;
        zr_handle_list_push(&created, handle);
        created_bytes += run;
    }
    zr_arena_end_driver_call(arena);
    arena->backend_calls_count += calls_count;
    arena->reserved_bytes += created_bytes;
    if (result != ZR_OK) {
        zr_limit_release(arena, bytes - created_bytes);
        destroy_list(arena, &created);
        return result;
    }
    while ((handle = zr_handle_list_pop(&created)))
        zr_handle_list_push(list, handle);
    return ZR_OK;
}

/* ---- Unmapping ----------------------------------------------------------------------------------------- */

/* A range of whole mappings that is marked as not mapped before the driver unmaps it. */
struct unmapping {
    struct zr_bounds part;
    struct zr_handle_list handles;
    bool notified;
};

/* Marks a range of mappings that are all notified or all not notified. Mappings of a failing request, and
 * mappings that the driver kept after one, are not notified. */
static void begin_unmap(struct zr_arena *arena, struct zr_bounds part, struct unmapping *out)
{
    *out = (struct unmapping){.part = part,
                              .notified = zr_range_mapping(arena->range, part.offset_bytes)->notified};
    for (size_t done = 0; done < part.bytes;) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, part.offset_bytes + done);
        zr_assert(mapping->notified == out->notified);
        zr_handle_list_push(&out->handles, mapping->handle);
        done += mapping->handle->bytes;
    }
    if (out->notified)
        arena->map_calls->unmapping(arena, part);
    if (arena->poison)
        zr_poison_clear(arena->base + part.offset_bytes, part.bytes);
    arena->mapped_bytes -= part.bytes;
    zr_granules_set(arena->granules, part.offset_bytes >> arena->granule_shift,
                    (part.offset_bytes + part.bytes) >> arena->granule_shift, false);
}

/* Unmap failed: restore the range's state. */
static void undo_unmap(struct zr_arena *arena, const struct unmapping *unmapping)
{
    struct zr_bounds part = unmapping->part;
    arena->mapped_bytes += part.bytes;
    zr_granules_set(arena->granules, part.offset_bytes >> arena->granule_shift,
                    (part.offset_bytes + part.bytes) >> arena->granule_shift, true);
    if (arena->poison)
        zr_poison_free(arena->base + part.offset_bytes, part.bytes);
    if (unmapping->notified)
        arena->map_calls->kept(arena, part);
}

/* Unmaps the range and adds its handles to the list in address order. If the driver refuses, the range stays
 * mapped. */
static zr_result finish_unmap(struct zr_arena *arena, struct unmapping *unmapping,
                              struct zr_handle_list *list)
{
    struct zr_bounds part = unmapping->part;
    struct zr_handle *handle;
    arena->backend_calls_count++;
    zr_arena_begin_driver_call(arena);
    zr_result result = zr_backend_unmap(arena->range, part);
    zr_arena_end_driver_call(arena);
    if (result != ZR_OK) {
        undo_unmap(arena, unmapping);
        return result;
    }
    if (unmapping->notified)
        arena->map_calls->unmapped(arena, part);
    while ((handle = zr_handle_list_pop(&unmapping->handles)))
        zr_handle_list_push(list, handle);
    return ZR_OK;
}

static zr_result unmap_range(struct zr_arena *arena, struct zr_bounds part, struct zr_handle_list *list)
{
    struct unmapping unmapping;
    begin_unmap(arena, part, &unmapping);
    return finish_unmap(arena, &unmapping, list);
}

/* Bytes to take, and the max bytes of one handle. */
struct want {
    size_t bytes, longest;
};

/* Returns adjacent whole mappings at the high end of granules [first, end), up to the wanted bytes, all
 * notified or all not; empty: none. *rest gets the end of the part that is not searched yet. */
static struct zr_bounds last_mappings(const struct zr_arena *arena, struct zr_granule_range where,
                                      struct want want, size_t *rest)
{
    size_t granule = arena->granule_bytes, at = where.end * granule, low = where.first * granule;
    size_t max_bytes = want.bytes;
    struct zr_bounds part = {at, 0};
    bool notified = false;
    while (at > low) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at - 1);
        if (!mapping)
            break;
        size_t begin = mapping->offset_bytes, bytes = mapping->handle->bytes;
        bool whole = begin >= low && begin + bytes <= at && bytes <= want.longest && zr_is_movable(mapping);
        if (whole && part.bytes > 0 && (bytes > max_bytes - part.bytes || mapping->notified != notified))
            break; /* the next call starts here */
        notified = mapping->notified;
        at = begin > low ? begin : low;
        if (whole && bytes <= max_bytes - part.bytes) {
            part = (struct zr_bounds){begin, part.bytes + bytes};
        } else {
            if (part.bytes > 0) {
                at = part.offset_bytes;
                break;
            }
            part.offset_bytes = at;
        }
    }
    *rest = at >> arena->granule_shift;
    return part;
}

zr_result zr_unmap(struct zr_arena *arena, struct zr_bounds extent, size_t max_bytes,
                   struct zr_handle_list *list, size_t *bytes)
{
    struct zr_granule_range where = {extent.offset_bytes >> arena->granule_shift,
                                     (extent.offset_bytes + extent.bytes) >> arena->granule_shift};
    zr_result result = ZR_OK;
    *bytes = 0;
    while (result == ZR_OK && *bytes < max_bytes) {
        where.end = zr_granules_last(arena->granules, where.first, where.end);
        if (where.end == where.first)
            break;
        struct zr_bounds part =
            last_mappings(arena, where, (struct want){max_bytes - *bytes, SIZE_MAX}, &where.end);
        if (part.bytes > 0)
            result = unmap_range(arena, part, list);
        if (part.bytes > 0 && result == ZR_OK)
            *bytes += part.bytes;
    }
    return result;
}

/* ---- From free extents --------------------------------------------------------------------------------- */

/* How many handles may be mapped without extending a neighbouring mapping. Above three quarters of the budget
 * of mappings, the arena creates runs instead, and keeps the remainder for small needs. */
static size_t may_scatter(const struct zr_arena *arena)
{
    size_t budget = arena->backend->can.vma_budget;
    if (budget == 0)
        return SIZE_MAX;
    size_t vmas = zr_backend_vmas_count(arena->backend), max = budget / 4 * 3;
    return vmas < max ? max - vmas : 0;
}

/* How often granules may be unmapped, since each unmap splits the mapping around them. */
static size_t may_part(const struct zr_arena *arena)
{
    size_t budget = arena->backend->can.vma_budget, vmas = zr_backend_vmas_count(arena->backend);
    return budget == 0 ? SIZE_MAX : vmas < budget ? budget - vmas : 0;
}

/* Marks ranges under free extents, open ends and large ones first, up to the wanted bytes and `max_count`.
 * Returns their number. */
static unsigned choose_in_free_extents(struct zr_arena *arena, struct want want, struct unmapping *out,
                                       unsigned max_count)
{
    size_t chosen_bytes = 0;
    unsigned count = 0;
    for (struct zr_extent *gap = zr_space_next_free(arena, NULL);
         gap && chosen_bytes < want.bytes && count < max_count; gap = zr_space_next_free(arena, gap)) {
        struct zr_granule_range where = zr_free_extent_granules(arena, gap);
        while (chosen_bytes < want.bytes && count < max_count && where.first < where.end) {
            where.end = zr_granules_last(arena->granules, where.first, where.end);
            if (where.end == where.first)
                break;
            struct zr_bounds part = last_mappings(
                arena, where, (struct want){want.bytes - chosen_bytes, want.longest}, &where.end);
            if (part.bytes == 0)
                continue;
            begin_unmap(arena, part, &out[count++]);
            chosen_bytes += part.bytes;
        }
    }
    return count;
}

/* Takes the wanted bytes from free extents. Returns the bytes taken. */
static size_t steal(struct zr_arena *arena, struct want want, struct zr_handle_list *list)
{
    enum { AT_ONCE = 16 };
    struct unmapping unmapping[AT_ONCE];
    size_t got = 0, max_count;
    zr_result result = ZR_OK;
    while (got < want.bytes && result == ZR_OK && (max_count = may_part(arena)) > 0) {
        unsigned count =
            choose_in_free_extents(arena, (struct want){want.bytes - got, want.longest}, unmapping,
                                   max_count < AT_ONCE ? (unsigned)max_count : AT_ONCE);
        if (count == 0)
            break;
        for (unsigned i = 0; i < count; i++) {
            if (result == ZR_OK)
                result = finish_unmap(arena, &unmapping[i], list);
            else
                undo_unmap(arena, &unmapping[i]);
            got += result == ZR_OK ? unmapping[i].part.bytes : 0;
        }
    }
    return got;
}

/* Takes from the cache as many handles as `scatter` allows. Returns the others to the driver, up to the need,
 * so that new runs replace them. Returns the bytes taken. */
static size_t take_cached(struct zr_arena *arena, struct want want, size_t scatter,
                          struct zr_handle_list *list)
{
    size_t got = 0, given = 0;
    struct zr_handle *handle;
    while (got + given < want.bytes) {
        size_t max_bytes = want.bytes - got - given;
        handle =
            zr_granule_cache_take(&arena->granule_cache, max_bytes < want.longest ? max_bytes : want.longest);
        if (!handle)
            break;
        if (scatter > 0 || want.longest == arena->granule_bytes) {
            zr_handle_list_push(list, handle);
            got += handle->bytes;
            scatter -= scatter > 0;
        } else {
            given += handle->bytes;
            zr_handle_destroy(arena, handle);
        }
    }
    return got;
}

/* ---- Gathering ----------------------------------------------------------------------------------------- */

/* Returns unused handles: new ones to the driver, the others to the cache. */
static void put_back(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list)))
        if (handle->created && handle->serial == arena->serial)
            zr_handle_destroy(arena, handle);
        else
            zr_granule_cache_put(&arena->granule_cache, handle);
}

/* Returns an idle run of several granules to the driver, so that shorter ones replace it. Returns its bytes,
 * 0: none. */
static size_t break_up(struct zr_arena *arena)
{
    size_t granule = arena->granule_bytes, bytes = 0;
    struct zr_handle_list list = {0};
    struct zr_handle *handle = zr_granule_cache_take_larger(&arena->granule_cache, 2 * granule);
    if (handle) {
        bytes = handle->bytes;
        zr_handle_destroy(arena, handle);
        return bytes;
    }
    for (struct zr_extent *gap = zr_space_next_free(arena, NULL); gap; gap = zr_space_next_free(arena, gap)) {
        struct zr_granule_range whole = zr_free_extent_granules(arena, gap);
        while ((whole.first = zr_granules_next(arena->granules, whole.first, whole.end, true)) < whole.end) {
            const struct zr_mapping *mapping = zr_range_mapping(arena->range, whole.first * granule);
            struct zr_bounds run = {mapping->offset_bytes, mapping->handle->bytes};
            if (run.bytes > granule && zr_is_movable(mapping) && run.offset_bytes >= whole.first * granule &&
                run.offset_bytes + run.bytes <= whole.end * granule) {
                zr_unmap(arena, run, run.bytes, &list, &bytes);
                destroy_list(arena, &list);
                return bytes;
            }
            whole.first = (run.offset_bytes + run.bytes) / granule;
        }
    }
    return 0;
}

/* Returns cached runs that are longer than the need to the driver before requesting shorter ones, so that
 * reserved bytes do not grow while the cache has memory. */
static void break_up_cached(struct zr_arena *arena, size_t bytes)
{
    struct zr_handle *handle;
    for (size_t freed = 0; freed < bytes;) {
        handle = zr_granule_cache_take_larger(&arena->granule_cache, 2 * arena->granule_bytes);
        if (!handle)
            return;
        freed += handle->bytes;
        zr_handle_destroy(arena, handle);
    }
}

/* If the driver has no memory for short runs, returning long idle runs may free some. */
static zr_result create_or_break_up(struct zr_arena *arena, struct want want, struct zr_handle_list *list)
{
    zr_result result = create_handles(arena, want.bytes, want.longest, list);
    while (result == ZR_ERR_MEMORY && break_up(arena) > 0)
        result = create_handles(arena, want.bytes, want.longest, list);
    return result;
}

/* Adds the wanted handles to the list, none larger than the bytes that were missing at that point. A failure
 * adds nothing, but may have moved idle granules to the cache. */
static zr_result gather(struct zr_arena *arena, struct want want, struct zr_handle_list *list)
{
    struct zr_handle_list own = {0};
    struct zr_handle *handle;
    zr_result result = ZR_OK;
    size_t missing = want.bytes, longest = want.longest;
    size_t scatter = may_scatter(arena), granule = arena->granule_bytes;
    missing -= take_cached(arena, want, scatter, &own);
    size_t taken = (want.bytes - missing) >> arena->granule_shift;
    scatter -= scatter < taken ? scatter : taken;
    if (missing > 0)
        zr_arena_flush_size_cache(arena);
    /* Idle granules without pages are taken only if the driver refuses new ones. */
    if (missing > 0 && arena->backend->can.on_touch) {
        result = create_handles(arena, missing, longest, &own);
        missing = result == ZR_OK ? 0 : missing;
        result = result == ZR_ERR_MEMORY ? ZR_OK : result;
    }
    /* Moving a granule can split two mappings: at its old address and at its new one. */
    size_t idle = missing > 0 ? zr_space_idle_up_to(arena, missing) : 0;
    if (idle >> arena->granule_shift > scatter / 2)
        idle = scatter / 2 * granule;
    if (result == ZR_OK && missing > idle) {
        break_up_cached(arena, missing - idle);
        result = create_or_break_up(arena, (struct want){missing - idle, longest}, &own);
        missing = idle;
    }
    if (result == ZR_OK && missing > 0)
        missing -= steal(arena, (struct want){missing, longest}, &own);
    /* Replace idle runs that are longer than the need by shorter ones. This is slower than moving granules,
     * but takes no more memory. Runs that extend beyond their free extents are not available. */
    for (size_t freed = 0, run = 1; result == ZR_OK && freed < missing && run > 0; freed += run)
        run = break_up(arena);
    if (result == ZR_OK && missing > 0)
        result = create_or_break_up(arena, (struct want){missing, longest}, &own);
    if (result != ZR_OK)
        put_back(arena, &own);
    while ((handle = zr_handle_list_pop(&own))) {
        handle->created = handle->created && handle->serial == arena->serial;
        handle->serial = arena->serial;
        zr_handle_list_push(list, handle);
    }
    return result;
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

/* The addresses of the granules, as offsets. */
static inline struct zr_bounds extent_of(const struct zr_arena *arena, struct zr_granule_range where)
{
    return (struct zr_bounds){where.first * arena->granule_bytes,
                              (where.end - where.first) * arena->granule_bytes};
}

/* The next range of unmapped granules from `at` on; empty at the end. */
static struct zr_granule_range next_unmapped(const struct zr_arena *arena, size_t at, size_t end)
{
    struct zr_granule_range run;
    run.first = zr_granules_next(arena->granules, at, end, false);
    run.end = zr_granules_next(arena->granules, run.first, end, true);
    return run;
}

/* Maps handles from the list over the whole range and sets access. */
static zr_result map_range(struct zr_arena *arena, struct zr_granule_range run, struct zr_handle_list *list)
{
    struct zr_bounds extent = extent_of(arena, run);
    zr_result result = ZR_OK;
    size_t done = 0, calls_count = 0;
    zr_arena_begin_driver_call(arena);
    while (done < extent.bytes && result == ZR_OK) {
        struct zr_handle *handle = list->first;
        calls_count++;
        result = zr_backend_map(arena->range, extent.offset_bytes + done, handle);
        if (result != ZR_OK)
            break;
        zr_handle_list_pop(list);
        done += handle->bytes;
    }
    if (result == ZR_OK) {
        calls_count++;
        result = zr_backend_set_access(arena->range, extent);
    }
    zr_arena_end_driver_call(arena);
    arena->backend_calls_count += calls_count;
    arena->mapped_bytes += done;
    zr_granules_set(arena->granules, run.first, run.first + (done >> arena->granule_shift), true);
    if (result != ZR_OK)
        return result;
    if (arena->poison)
        zr_poison_free(arena->base + extent.offset_bytes, extent.bytes);
    return ZR_OK;
}

/* Unmaps what the failed request has mapped. *stuck gets what the driver refuses to unmap. */
static void unmap_again(struct zr_arena *arena, struct zr_granule_range where, struct zr_bounds *stuck)
{
    size_t granule = arena->granule_bytes;
    struct zr_handle_list list = {0};
    while ((where.first = zr_granules_next(arena->granules, where.first, where.end, true)) < where.end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, where.first * granule);
        struct zr_bounds one = {mapping->offset_bytes, mapping->handle->bytes};
        where.first = (one.offset_bytes + one.bytes) / granule;
        if (mapping->handle->serial != arena->serial || unmap_range(arena, one, &list) == ZR_OK)
            continue;
        if (stuck->bytes == 0)
            *stuck = one;
        stuck->bytes = one.offset_bytes + one.bytes - stuck->offset_bytes;
    }
    put_back(arena, &list);
}

zr_result zr_map(struct zr_arena *arena, struct zr_bounds extent, struct zr_bounds *stuck)
{
    size_t granule = arena->granule_bytes;
    struct zr_granule_range where = {extent.offset_bytes >> arena->granule_shift,
                                     (extent.offset_bytes + extent.bytes + granule - 1) >>
                                         arena->granule_shift};
    struct zr_handle_list list = {0};
    zr_result result = ZR_OK;
    if (stuck)
        *stuck = (struct zr_bounds){0};
    arena->serial++;
    struct zr_zone *zone = arena->zones;
    while (zone->end_bytes <= extent.offset_bytes)
        zone++;
    if (where.end > zone->mapped_end)
        zone->mapped_end = where.end;
    for (struct zr_granule_range run = next_unmapped(arena, where.first, where.end);
         run.first < run.end && result == ZR_OK; run = next_unmapped(arena, run.end, where.end))
        result = gather(
            arena, (struct want){(run.end - run.first) * granule, (run.end - run.first) * granule}, &list);
    for (struct zr_granule_range run = next_unmapped(arena, where.first, where.end);
         run.first < run.end && result == ZR_OK; run = next_unmapped(arena, run.end, where.end))
        result = map_range(arena, run, &list);
    if (result == ZR_OK)
        result = arena->map_calls->mapped(arena, where);
    if (result != ZR_OK) {
        struct zr_bounds none = {0};
        put_back(arena, &list);
        unmap_again(arena, where, stuck ? stuck : &none);
        return result;
    }
    zr_limit_note_peak(arena);
    return ZR_OK;
}

/* ---- For others ---------------------------------------------------------------------------------------- */

size_t zr_idle_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    size_t got = 0;
    while (got < bytes && (handle = zr_granule_cache_take(&arena->granule_cache, bytes - got))) {
        zr_handle_list_push(&list, handle);
        got += handle->bytes;
    }
    if (got < bytes)
        got += steal(arena, (struct want){bytes - got, SIZE_MAX}, &list);
    arena->reserved_bytes -= got;
    while ((handle = zr_handle_list_pop(&list))) {
        handle->created = false;
        zr_handle_list_push(out, handle);
    }
    return got > 0 ? got : break_up(arena);
}

void zr_idle_add(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list))) {
        arena->reserved_bytes += handle->bytes;
        zr_granule_cache_put(&arena->granule_cache, handle);
    }
}

zr_result zr_granules_gather(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out)
{
    arena->serial++;
    return gather(arena, (struct want){bytes, arena->granule_bytes}, out);
}

void zr_granules_put_back(struct zr_arena *arena, struct zr_handle_list *list)
{
    put_back(arena, list);
}

/* ---- Giving back --------------------------------------------------------------------------------------- */

size_t zr_trim(struct zr_arena *arena, size_t keep_bytes)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    size_t idle = zr_space_idle_bytes(arena), released = 0;
    while (arena->granule_cache.bytes + idle > keep_bytes &&
           (handle = zr_granule_cache_take(&arena->granule_cache, arena->granule_cache.bytes))) {
        released += handle->bytes;
        zr_handle_destroy(arena, handle);
    }
    if (arena->granule_cache.bytes == 0 && idle > keep_bytes)
        released += steal(
            arena, (struct want){zr_round_up(idle - keep_bytes, arena->granule_bytes), SIZE_MAX}, &list);
    destroy_list(arena, &list);
    /* What remains are runs longer than the excess. */
    for (size_t run = 1; run > 0 && zr_space_idle_bytes(arena) > keep_bytes; released += run)
        run = break_up(arena);
    return released;
}

/* Destroys the handles under a mapped range. If streams have passed, also unmaps them; a destroyed handle
 * lives until its last mapping is unmapped. If unmapping the whole range fails, unmaps one handle at a time.
 * False: some mapping remains. */
static bool release_range(struct zr_arena *arena, struct zr_bounds range, bool passed)
{
    arena->map_calls->unmapping(arena, range);
    for (size_t done = 0; done < range.bytes;) {
        struct zr_handle *handle = zr_range_mapping(arena->range, range.offset_bytes + done)->handle;
        done += handle->bytes;
        if (handle->destroyed) { /* an alias: the handle was destroyed at its other address */
            arena->alias_bytes -= handle->bytes;
            continue;
        }
        arena->mapped_bytes -= handle->bytes;
        zr_handle_destroy(arena, handle);
    }
    if (arena->poison)
        zr_poison_clear(arena->base + range.offset_bytes, range.bytes);
    bool all = true;
    if (!passed)
        return false;
    arena->backend_calls_count++;
    if (zr_backend_unmap(arena->range, range) == ZR_OK)
        return true;
    for (size_t done = 0; done < range.bytes;) {
        size_t at = range.offset_bytes + done;
        struct zr_bounds one = {at, zr_range_mapping(arena->range, at)->handle->bytes};
        done += one.bytes;
        arena->backend_calls_count++;
        all &= zr_backend_unmap(arena->range, one) == ZR_OK;
    }
    return all;
}

zr_result zr_release_all(struct zr_arena *arena)
{
    bool all = true;
    struct zr_handle *handle;
    /* Streams may still use live blocks. The arena ends here, so a failed wait is retried once. */
    bool passed = !arena->asynchronous || arena->mapped_bytes == 0 ||
                  zr_backend_synchronize(arena->backend) == ZR_OK ||
                  zr_backend_synchronize(arena->backend) == ZR_OK;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        const struct zr_zone *zone = &arena->zones[i];
        struct zr_granule_range run = {.end = zone->first_bytes / arena->granule_bytes};
        for (;;) {
            run.first = zr_granules_next(arena->granules, run.end, zone->mapped_end, true);
            run.end = zr_granules_next(arena->granules, run.first, zone->mapped_end, false);
            if (run.first >= run.end)
                break;
            all &= release_range(arena, extent_of(arena, run), passed);
        }
    }
    while ((handle = zr_granule_cache_take(&arena->granule_cache, arena->granule_cache.bytes)))
        zr_handle_destroy(arena, handle);
    zr_assert(arena->mapped_bytes == 0 && arena->alias_bytes == 0 &&
              arena->reserved_bytes == arena->lent_bytes);
    if (all)
        return ZR_OK;
    char reason[256];
    snprintf(reason, sizeof reason, "%s", zr_last_error());
    size_t bytes = zr_backend_abandon(arena->range);
    arena->range = NULL;
    return zr_fail(ZR_ERR_UNAVAILABLE, "%zu bytes of arena \"%s\" stay mapped: %s", bytes, arena->name,
                   reason);
}
