/* supply.c: physical memory for an arena: where it comes from, mapping and unmapping. Uses space.c,
 * granule_cache.c and backend.c.
 *
 * gather() finds granules for a need: from the cache; from the driver, for what the idle granules inside free
 * extents cannot cover; from those extents (stolen: unmapped there, mapped here, nothing copied); from the
 * driver again, for what could not be stolen, after idle runs of granules were given back to it. The driver
 * is asked before anything is stolen, so an early refusal leaves the free extents as they were, but for such
 * runs. After a later one, what was stolen is in the cache. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/granule_class.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/poison.h"

/* Large needs are met with runs: about this many handles for one need, so that terabytes take hundreds and
 * what a run strands beside a block stays below a hundredth of it. */
enum { HANDLES_PER_NEED = 256 };

/* ---- From the driver ----------------------------------------------------------------------------------- */

/* The largest power of two of granules that is good for a need of `bytes`. */
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
    zr_arena_open(arena);
    zr_result result = zr_backend_destroy_handle(arena->backend, handle);
    zr_assert(result == ZR_OK);
    zr_arena_close(arena);
}

static void destroy_list(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list)))
        zr_handle_destroy(arena, handle);
}

/* All of it or nothing; no handle longer than `longest`. */
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
    zr_arena_open(arena);
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
    zr_arena_close(arena);
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

/* Marks a range of whole mappings as not mapped, before it is unmapped. */
struct leaving {
    struct zr_bounds part;
    struct zr_handle_list handles;
    bool notified;
};

/* All of the stretch is notified or none. Not notified is what a request had mapped that fails now, or what
 * the driver kept of one that failed before. */
static void mark_leaving(struct zr_arena *arena, struct zr_bounds part, struct leaving *out)
{
    *out = (struct leaving){.part = part,
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
static void keep_leaving(struct zr_arena *arena, const struct leaving *leaving)
{
    struct zr_bounds part = leaving->part;
    arena->mapped_bytes += part.bytes;
    zr_granules_set(arena->granules, part.offset_bytes >> arena->granule_shift,
                    (part.offset_bytes + part.bytes) >> arena->granule_shift, true);
    if (arena->poison)
        zr_poison_free(arena->base + part.offset_bytes, part.bytes);
    if (leaving->notified)
        arena->map_calls->kept(arena, part);
}

/* Its handles go to the list, in address order; or the driver keeps it. */
static zr_result unmap_leaving(struct zr_arena *arena, struct leaving *leaving, struct zr_handle_list *list)
{
    struct zr_bounds part = leaving->part;
    struct zr_handle *handle;
    arena->backend_calls_count++;
    zr_arena_open(arena);
    zr_result result = zr_backend_unmap(arena->range, part);
    zr_arena_close(arena);
    if (result != ZR_OK) {
        keep_leaving(arena, leaving);
        return result;
    }
    if (leaving->notified)
        arena->map_calls->unmapped(arena, part);
    while ((handle = zr_handle_list_pop(&leaving->handles)))
        zr_handle_list_push(list, handle);
    return ZR_OK;
}

static zr_result unmap_stretch(struct zr_arena *arena, struct zr_bounds part, struct zr_handle_list *list)
{
    struct leaving leaving;
    mark_leaving(arena, part, &leaving);
    return unmap_leaving(arena, &leaving, list);
}

/* How much is wanted, in handles of what length. */
struct want {
    size_t bytes, longest;
};

/* The whole mappings at the high end of [first, end) granules, next to each other, as many as are wanted, all
 * notified or none; empty if there are none. *rest gets where to look on: below it nothing was looked at. */
static struct zr_bounds last_stretch(const struct zr_arena *arena, struct zr_stretch where, struct want want,
                                     size_t *rest)
{
    size_t granule = arena->granule_bytes, at = where.end * granule, low = where.first * granule;
    size_t most = want.bytes;
    struct zr_bounds part = {at, 0};
    bool notified = false;
    while (at > low) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at - 1);
        if (!mapping)
            break;
        size_t begin = mapping->offset_bytes, bytes = mapping->handle->bytes;
        bool whole = begin >= low && begin + bytes <= at && bytes <= want.longest && zr_is_movable(mapping);
        if (whole && part.bytes > 0 && (bytes > most - part.bytes || mapping->notified != notified))
            break; /* for another call */
        notified = mapping->notified;
        at = begin > low ? begin : low;
        if (whole && bytes <= most - part.bytes) {
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

zr_result zr_unmap(struct zr_arena *arena, struct zr_bounds extent, size_t most, struct zr_handle_list *list,
                   size_t *bytes)
{
    struct zr_stretch where = {extent.offset_bytes >> arena->granule_shift,
                               (extent.offset_bytes + extent.bytes) >> arena->granule_shift};
    zr_result result = ZR_OK;
    *bytes = 0;
    while (result == ZR_OK && *bytes < most) {
        where.end = zr_granules_last(arena->granules, where.first, where.end);
        if (where.end == where.first)
            break;
        struct zr_bounds part =
            last_stretch(arena, where, (struct want){most - *bytes, SIZE_MAX}, &where.end);
        if (part.bytes > 0)
            result = unmap_stretch(arena, part, list);
        if (part.bytes > 0 && result == ZR_OK)
            *bytes += part.bytes;
    }
    return result;
}

/* ---- From free extents --------------------------------------------------------------------------------- */

/* How many handles may still be mapped apart from what they continue: with most of the budget of mappings
 * used up, fresh runs are kinder to it, and the rest is kept for small needs. */
static size_t may_scatter(const struct zr_arena *arena)
{
    size_t budget = arena->backend->can.vma_budget;
    if (budget == 0)
        return SIZE_MAX;
    size_t pieces = zr_backend_pieces_count(arena->backend), most = budget / 4 * 3;
    return pieces < most ? most - pieces : 0;
}

/* To unmap granules parts the stretch that they are in: how often that may be, or the system refuses. */
static size_t may_part(const struct zr_arena *arena)
{
    size_t budget = arena->backend->can.vma_budget, pieces = zr_backend_pieces_count(arena->backend);
    return budget == 0 ? SIZE_MAX : pieces < budget ? budget - pieces : 0;
}

/* Marks stretches under free extents, open ends and large ones first, up to what is wanted and `most`.
 * Returns how many. */
static unsigned choose_in_free_extents(struct zr_arena *arena, struct want want, struct leaving *out,
                                       unsigned most)
{
    size_t chosen_bytes = 0;
    unsigned count = 0;
    for (struct zr_extent *gap = zr_space_next_free(arena, NULL);
         gap && chosen_bytes < want.bytes && count < most; gap = zr_space_next_free(arena, gap)) {
        struct zr_stretch where = zr_free_extent_granules(arena, gap);
        while (chosen_bytes < want.bytes && count < most && where.first < where.end) {
            where.end = zr_granules_last(arena->granules, where.first, where.end);
            if (where.end == where.first)
                break;
            struct zr_bounds part = last_stretch(
                arena, where, (struct want){want.bytes - chosen_bytes, want.longest}, &where.end);
            if (part.bytes == 0)
                continue;
            mark_leaving(arena, part, &out[count++]);
            chosen_bytes += part.bytes;
        }
    }
    return count;
}

/* Takes what is wanted from free extents. Returns what it got. */
static size_t steal(struct zr_arena *arena, struct want want, struct zr_handle_list *list)
{
    enum { AT_ONCE = 16 };
    struct leaving leaving[AT_ONCE];
    size_t got = 0, most;
    zr_result result = ZR_OK;
    while (got < want.bytes && result == ZR_OK && (most = may_part(arena)) > 0) {
        unsigned count = choose_in_free_extents(arena, (struct want){want.bytes - got, want.longest}, leaving,
                                                most < AT_ONCE ? (unsigned)most : AT_ONCE);
        if (count == 0)
            break;
        for (unsigned i = 0; i < count; i++) {
            if (result == ZR_OK)
                result = unmap_leaving(arena, &leaving[i], list);
            else
                keep_leaving(arena, &leaving[i]);
            got += result == ZR_OK ? leaving[i].part.bytes : 0;
        }
    }
    return got;
}

/* From the cache, as much as may be scattered. What may not goes back to the driver, up to the need, for
 * fresh runs to take its place. Returns what it got. */
static size_t take_cached(struct zr_arena *arena, struct want want, size_t scatter,
                          struct zr_handle_list *list)
{
    size_t got = 0, given = 0;
    struct zr_handle *handle;
    while (got + given < want.bytes) {
        size_t most = want.bytes - got - given;
        handle = zr_granule_cache_take(&arena->granule_cache, most < want.longest ? most : want.longest);
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

/* What was gathered and not used: to the driver what came from there, the rest to the cache. */
static void put_back(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list)))
        if (handle->created && handle->serial == arena->serial)
            zr_handle_destroy(arena, handle);
        else
            zr_granule_cache_put(&arena->granule_cache, handle);
}

/* An idle run of several granules goes back to the driver, for shorter ones to take its place. Returns its
 * bytes, 0 if there is none. */
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
        struct zr_stretch whole = zr_free_extent_granules(arena, gap);
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

/* Runs in cache that are longer than the need go back to the driver before it is asked for shorter ones: what
 * is reserved does not grow while there is cache. */
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

/* A driver that has no memory for short runs may have it in long ones that are idle here. */
static zr_result create_or_break_up(struct zr_arena *arena, struct want want, struct zr_handle_list *list)
{
    zr_result result = create_handles(arena, want.bytes, want.longest, list);
    while (result == ZR_ERR_MEMORY && break_up(arena) > 0)
        result = create_handles(arena, want.bytes, want.longest, list);
    return result;
}

/* Adds the handles wanted to the list, none of them larger than what was missing when it came. A failure adds
 * nothing, but idle granules may be in the cache now. */
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
        zr_arena_flush_quick(arena);
    /* Idle granules that hold no memory are worth stealing only where the driver gives no others. */
    if (missing > 0 && arena->backend->can.on_touch) {
        result = create_handles(arena, missing, longest, &own);
        missing = result == ZR_OK ? 0 : missing;
        result = result == ZR_ERR_MEMORY ? ZR_OK : result;
    }
    /* To steal a granule can part two stretches: where it was, and where it comes to. */
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
    /* What is idle in runs longer than the need comes back in shorter ones: slower than stealing, no more
     * memory. Runs that stick out of their free extents cannot be had at all. */
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

/* Granules of the range. */
static inline struct zr_bounds extent_of(const struct zr_arena *arena, struct zr_stretch where)
{
    return (struct zr_bounds){where.first * arena->granule_bytes,
                              (where.end - where.first) * arena->granule_bytes};
}

/* The next stretch of unmapped granules from `at` on; empty at the end. */
static struct zr_stretch next_unmapped(const struct zr_arena *arena, size_t at, size_t end)
{
    struct zr_stretch run;
    run.first = zr_granules_next(arena->granules, at, end, false);
    run.end = zr_granules_next(arena->granules, run.first, end, true);
    return run;
}

/* Maps handles from the list onto all of a stretch, and gives it access. */
static zr_result map_stretch(struct zr_arena *arena, struct zr_stretch run, struct zr_handle_list *list)
{
    struct zr_bounds extent = extent_of(arena, run);
    zr_result result = ZR_OK;
    size_t done = 0, calls_count = 0;
    zr_arena_open(arena);
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
    zr_arena_close(arena);
    arena->backend_calls_count += calls_count;
    arena->mapped_bytes += done;
    zr_granules_set(arena->granules, run.first, run.first + (done >> arena->granule_shift), true);
    if (result != ZR_OK)
        return result;
    if (arena->poison)
        zr_poison_free(arena->base + extent.offset_bytes, extent.bytes);
    return ZR_OK;
}

/* Unmaps what the failed request had mapped. What the driver will not unmap again is in *stuck. */
static void unmap_again(struct zr_arena *arena, struct zr_stretch where, struct zr_bounds *stuck)
{
    size_t granule = arena->granule_bytes;
    struct zr_handle_list list = {0};
    while ((where.first = zr_granules_next(arena->granules, where.first, where.end, true)) < where.end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, where.first * granule);
        struct zr_bounds one = {mapping->offset_bytes, mapping->handle->bytes};
        where.first = (one.offset_bytes + one.bytes) / granule;
        if (mapping->handle->serial != arena->serial || unmap_stretch(arena, one, &list) == ZR_OK)
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
    struct zr_stretch where = {extent.offset_bytes >> arena->granule_shift,
                               (extent.offset_bytes + extent.bytes + granule - 1) >> arena->granule_shift};
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
    for (struct zr_stretch run = next_unmapped(arena, where.first, where.end);
         run.first < run.end && result == ZR_OK; run = next_unmapped(arena, run.end, where.end))
        result = gather(
            arena, (struct want){(run.end - run.first) * granule, (run.end - run.first) * granule}, &list);
    for (struct zr_stretch run = next_unmapped(arena, where.first, where.end);
         run.first < run.end && result == ZR_OK; run = next_unmapped(arena, run.end, where.end))
        result = map_stretch(arena, run, &list);
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

/* Single granules, or nothing. lock: arena->lock */
static zr_result take_granules(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out)
{
    arena->serial++;
    return gather(arena, (struct want){bytes, arena->granule_bytes}, out);
}

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
    return take_granules(arena, bytes, out);
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
    /* Runs longer than what was too much. */
    for (size_t run = 1; run > 0 && zr_space_idle_bytes(arena) > keep_bytes; released += run)
        run = break_up(arena);
    return released;
}

/* Destroys the handles under a mapped stretch, then unmaps them, if streams have passed: they live for their
 * mappings. Unmaps one at a time what cannot be unmapped at once. False if something stays. */
static bool release_stretch(struct zr_arena *arena, struct zr_bounds stretch, bool passed)
{
    arena->map_calls->unmapping(arena, stretch);
    for (size_t done = 0; done < stretch.bytes;) {
        struct zr_handle *handle = zr_range_mapping(arena->range, stretch.offset_bytes + done)->handle;
        done += handle->bytes;
        if (handle->destroyed) { /* it lies at another address too, which came before */
            arena->alias_bytes -= handle->bytes;
            continue;
        }
        arena->mapped_bytes -= handle->bytes;
        zr_handle_destroy(arena, handle);
    }
    if (arena->poison)
        zr_poison_clear(arena->base + stretch.offset_bytes, stretch.bytes);
    bool all = true;
    if (!passed)
        return false;
    arena->backend_calls_count++;
    if (zr_backend_unmap(arena->range, stretch) == ZR_OK)
        return true;
    for (size_t done = 0; done < stretch.bytes;) {
        size_t at = stretch.offset_bytes + done;
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
    /* Live blocks may be in use by any stream. There is no later: what fails once is tried once more. */
    bool passed = !arena->asynchronous || arena->mapped_bytes == 0 ||
                  zr_backend_synchronize(arena->backend) == ZR_OK ||
                  zr_backend_synchronize(arena->backend) == ZR_OK;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        const struct zr_zone *zone = &arena->zones[i];
        struct zr_stretch run = {.end = zone->first_bytes / arena->granule_bytes};
        for (;;) {
            run.first = zr_granules_next(arena->granules, run.end, zone->mapped_end, true);
            run.end = zr_granules_next(arena->granules, run.first, zone->mapped_end, false);
            if (run.first >= run.end)
                break;
            all &= release_stretch(arena, extent_of(arena, run), passed);
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
