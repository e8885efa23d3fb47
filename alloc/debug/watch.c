/* watch.c: who is told of the memory that an arena maps and unmaps. Stands on backend.h; zr.h has the
 * contract.
 *
 * A mapping is announced once the request that made it can no longer fail for want of memory, and goes
 * unannounced with one that fails: whoever watches, and whoever reads the trace, sees pairs. */
#include "alloc/core/arena_internal.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/debug/trace.h"

/* ---- Telling; lock: the member's ----------------------------------------------------------------------- */

/* The extent goes, for the first `count` of those who watch. */
static void tell_going(struct zr_arena *arena, struct zr_extent part, unsigned count)
{
    const struct zr_arena *head = arena->head;
    for (unsigned i = count; i-- > 0;)
        if (head->watches[i].unmapping)
            head->watches[i].unmapping(head->watches[i].argument, arena->base + part.offset_bytes,
                                       part.bytes);
}

static zr_result tell_one(struct zr_arena *arena, const struct zr_map_watch *watch, struct zr_extent part)
{
    char *address = arena->base + part.offset_bytes;
    zr_result result = watch->mapped ? watch->mapped(watch->argument, address, part.bytes) : ZR_OK;
    return result == ZR_OK
               ? ZR_OK
               : zr_fail(result,
                         "a watch of the maps of arena \"%s\" refused %zu bytes at %p (%s): it has the "
                         "reason, and zr_arena_unwatch() ends it",
                         arena->name, part.bytes, (void *)address, zr_result_name(result));
}

/* All of those who watch take the extent, or none does. */
static zr_result tell_mapped(struct zr_arena *arena, struct zr_extent part)
{
    const struct zr_arena *head = arena->head;
    zr_result result = ZR_OK;
    unsigned told = 0;
    while (result == ZR_OK && told < head->watches_count) {
        result = tell_one(arena, &head->watches[told], part);
        told += result == ZR_OK;
    }
    if (result != ZR_OK)
        tell_going(arena, part, told);
    return result;
}

/* ---- Runs of mappings ---------------------------------------------------------------------------------- */

/* Which mappings make a run. */
enum which { ANNOUNCED, OF_THE_REQUEST };

static bool belongs(const struct zr_arena *arena, const struct zr_mapping *mapping, enum which which)
{
    return which == ANNOUNCED ? mapping->announced : mapping->handle->serial == arena->serial;
}

/* The next run of such mappings that begins in [at, end) granules; no bytes: there is none. */
static struct zr_extent next_run(const struct zr_arena *arena, size_t at, size_t end, enum which which)
{
    size_t granule = arena->granule_bytes;
    struct zr_extent run = {0};
    while ((at = zr_granules_next(arena->granules, at, end, true)) < end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * granule);
        bool wanted = belongs(arena, mapping, which);
        if (run.bytes > 0 && (!wanted || mapping->offset_bytes != run.offset_bytes + run.bytes))
            break;
        if (wanted && run.bytes == 0)
            run.offset_bytes = mapping->offset_bytes;
        if (wanted)
            run.bytes += mapping->handle->bytes;
        at = (mapping->offset_bytes + mapping->handle->bytes) >> arena->granule_shift;
    }
    return run;
}

static size_t run_end(const struct zr_arena *arena, struct zr_extent run)
{
    return (run.offset_bytes + run.bytes) >> arena->granule_shift;
}

static void set_announced(struct zr_arena *arena, struct zr_extent run, bool announced)
{
    for (size_t done = 0; done < run.bytes;) {
        struct zr_mapping *mapping = zr_range_mapping(arena->range, run.offset_bytes + done);
        mapping->announced = announced;
        done += mapping->handle->bytes;
    }
}

/* ---- For the arena; lock: the member's ----------------------------------------------------------------- */

static zr_result announce(struct zr_arena *arena, struct zr_stretch where)
{
    zr_result result = ZR_OK;
    struct zr_extent run;
    for (size_t at = where.first; result == ZR_OK; at = run_end(arena, run)) {
        run = next_run(arena, at, where.end, OF_THE_REQUEST);
        if (run.bytes == 0)
            break;
        result = tell_mapped(arena, run);
        if (result == ZR_OK)
            set_announced(arena, run, true);
    }
    for (size_t at = where.first; result != ZR_OK || arena->trace; at = run_end(arena, run)) {
        run = next_run(arena, at, where.end, OF_THE_REQUEST);
        if (run.bytes == 0)
            break;
        if (result == ZR_OK) {
            zr_trace_event(arena->trace, map, arena->base + run.offset_bytes, run.bytes);
        } else if (zr_range_mapping(arena->range, run.offset_bytes)->announced) {
            tell_going(arena, run, arena->head->watches_count);
            set_announced(arena, run, false);
        }
    }
    return result;
}

static void announce_unmapping(struct zr_arena *arena, struct zr_extent part)
{
    size_t first = part.offset_bytes >> arena->granule_shift, end = run_end(arena, part);
    struct zr_extent run;
    if (arena->head->watches_count == 0)
        return;
    for (size_t at = first; (run = next_run(arena, at, end, ANNOUNCED)).bytes > 0; at = run_end(arena, run))
        tell_going(arena, run, arena->head->watches_count);
}

static void announce_kept(struct zr_arena *arena, struct zr_extent part)
{
    for (unsigned i = 0; i < arena->head->watches_count; i++)
        tell_one(arena, &arena->head->watches[i], part);
}

static void announce_unmapped(struct zr_arena *arena, struct zr_extent part)
{
    zr_trace_event(arena->trace, unmap, arena->base + part.offset_bytes, part.bytes);
}

const struct zr_map_calls zr_watch_calls = {announce, announce_unmapping, announce_unmapped, announce_kept};

/* ---- Coming and going ---------------------------------------------------------------------------------- */

/* No member is made meanwhile, and none of them maps. */
static unsigned lock_family(struct zr_arena *head)
{
    zr_arena_keep_together(head, 1);
    unsigned count = atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    zr_arena_take(head);
    for (unsigned i = 0; i < count; i++)
        zr_arena_take(head->siblings[i]);
    return count;
}

static void unlock_family(struct zr_arena *head, unsigned count)
{
    for (unsigned i = count; i-- > 0;)
        zr_arena_give(head->siblings[i]);
    zr_arena_give(head);
    zr_arena_keep_together(head, -1);
}

/* Tells one watch of what a member has mapped, or that it goes, up to `end`; *stopped gets the granule where
 * a refusal ended it. */
static zr_result tell_present(struct zr_arena *arena, const struct zr_map_watch *watch, bool going,
                              size_t end, size_t *stopped)
{
    struct zr_extent run;
    for (size_t at = 0; (run = next_run(arena, at, end, ANNOUNCED)).bytes > 0; at = run_end(arena, run)) {
        zr_result result = ZR_OK;
        if (!going)
            result = tell_one(arena, watch, run);
        else if (watch->unmapping)
            watch->unmapping(watch->argument, arena->base + run.offset_bytes, run.bytes);
        if (result != ZR_OK) {
            *stopped = run.offset_bytes / arena->granule_bytes;
            return result;
        }
    }
    return ZR_OK;
}

static size_t all_granules(const struct zr_arena *arena)
{
    return arena->range->bytes / arena->granule_bytes;
}

static struct zr_arena *member_of(struct zr_arena *head, unsigned i)
{
    return i == 0 ? head : head->siblings[i - 1];
}

zr_result zr_arena_watch(zr_arena *arena, const struct zr_map_watch *watch)
{
    if (!arena || !watch)
        return zr_fail(ZR_ERR_INVALID, "a watch needs an arena and somebody to tell");
    zr_result result = ZR_OK;
    size_t stopped = 0;
    unsigned siblings = lock_family(arena), told = 0;
    if (arena->watches_count == ZR_WATCHES_MOST)
        result = zr_fail(ZR_ERR_INVALID, "arena \"%s\" has %d watches, the most there can be: end one first",
                         arena->name, ZR_WATCHES_MOST);
    else
        while (result == ZR_OK && told <= siblings) {
            struct zr_arena *member = member_of(arena, told);
            result = tell_present(member, watch, false, all_granules(member), &stopped);
            told += result == ZR_OK;
        }
    if (result == ZR_OK)
        arena->watches[arena->watches_count++] = *watch;
    else if (arena->watches_count < ZR_WATCHES_MOST)
        for (unsigned i = 0; i <= told; i++)
            tell_present(member_of(arena, i), watch, true,
                         i < told ? all_granules(member_of(arena, i)) : stopped, &stopped);
    unlock_family(arena, siblings);
    return result;
}

static bool same(const struct zr_map_watch *a, const struct zr_map_watch *b)
{
    return a->mapped == b->mapped && a->unmapping == b->unmapping && a->argument == b->argument;
}

zr_result zr_arena_unwatch(zr_arena *arena, const struct zr_map_watch *watch)
{
    size_t stopped = 0;
    if (!arena || !watch)
        return zr_fail(ZR_ERR_INVALID, "a watch ends with its arena and what it was begun with");
    zr_result result = ZR_OK;
    unsigned siblings = lock_family(arena), at = 0;
    while (at < arena->watches_count && !same(&arena->watches[at], watch))
        at++;
    if (at == arena->watches_count) {
        result = zr_fail(ZR_ERR_INVALID, "nobody of that name watches arena \"%s\"", arena->name);
    } else {
        for (unsigned i = 0; i <= siblings; i++)
            tell_present(member_of(arena, i), watch, true, all_granules(member_of(arena, i)), &stopped);
        arena->watches_count--;
        memmove(&arena->watches[at], &arena->watches[at + 1],
                (arena->watches_count - at) * sizeof arena->watches[0]);
    }
    unlock_family(arena, siblings);
    return result;
}
