/* map_callbacks.c: calls the callbacks that a program has registered for mapped memory. Uses backend.h; zr.h
 * has the contract.
 *
 * A mapping is announced when its request can no longer fail for lack of memory. Mappings of a failed request
 * are never announced, so callbacks and traces see pairs of calls. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/registry.h"
#include "alloc/front/front.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/telemetry/recorder.h"

/* ---- Calls of the callbacks; lock: the stripe's -------------------------------------------------------- */

/* Calls the first `count` callbacks before the part is unmapped. */
static void call_unmapping(struct zr_arena *arena, struct zr_bounds part, unsigned count)
{
    const struct zr_arena *first_stripe = arena->first_stripe;
    for (unsigned i = count; i-- > 0;)
        if (first_stripe->map_callbacks[i].unmapping)
            first_stripe->map_callbacks[i].unmapping(first_stripe->map_callbacks[i].argument,
                                                     arena->base + part.offset_bytes, part.bytes);
}

static zr_result call_mapped(struct zr_arena *arena, const struct zr_map_callback *callback,
                             struct zr_bounds part)
{
    char *address = arena->base + part.offset_bytes;
    zr_result result = callback->mapped ? callback->mapped(callback->argument, address, part.bytes) : ZR_OK;
    return result == ZR_OK
               ? ZR_OK
               : zr_fail(
                     result,
                     "a map callback of arena \"%s\" rejected %zu bytes at %p (%s): zr_arena_remove_map_callback() removes the callback",
                     arena->name, part.bytes, (void *)address, zr_result_name(result));
}

/* Announces the part to all callbacks. If one of them fails, the part is withdrawn from the others. */
static zr_result call_all_mapped(struct zr_arena *arena, struct zr_bounds part)
{
    const struct zr_arena *first_stripe = arena->first_stripe;
    zr_result result = ZR_OK;
    unsigned notified = 0;
    while (result == ZR_OK && notified < first_stripe->map_callbacks_count) {
        result = call_mapped(arena, &first_stripe->map_callbacks[notified], part);
        notified += result == ZR_OK;
    }
    if (result != ZR_OK)
        call_unmapping(arena, part, notified);
    return result;
}

/* ---- Runs of mappings ---------------------------------------------------------------------------------- */

/* The mappings that a run consists of. */
enum which { NOTIFIED, OF_THE_REQUEST };

static bool belongs(const struct zr_arena *arena, const struct zr_mapping *mapping, enum which which)
{
    return which == NOTIFIED ? mapping->notified : mapping->handle->serial == arena->serial;
}

/* The next run of such mappings that begins in granules [at, end); empty: none. */
static struct zr_bounds next_run(const struct zr_arena *arena, size_t at, size_t end, enum which which)
{
    size_t granule = arena->granule_bytes;
    struct zr_bounds run = {0};
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

static size_t run_end(const struct zr_arena *arena, struct zr_bounds run)
{
    return (run.offset_bytes + run.bytes) >> arena->granule_shift;
}

static void set_notified(struct zr_arena *arena, struct zr_bounds run, bool notified)
{
    for (size_t done = 0; done < run.bytes;) {
        struct zr_mapping *mapping = zr_range_mapping(arena->range, run.offset_bytes + done);
        mapping->notified = notified;
        done += mapping->handle->bytes;
    }
}

/* ---- For the arena; lock: the stripe's ----------------------------------------------------------------- */

static zr_result notify(struct zr_arena *arena, struct zr_granule_range where)
{
    zr_result result = ZR_OK;
    struct zr_bounds run;
    for (size_t at = where.first; result == ZR_OK; at = run_end(arena, run)) {
        run = next_run(arena, at, where.end, OF_THE_REQUEST);
        if (run.bytes == 0)
            break;
        result = call_all_mapped(arena, run);
        if (result == ZR_OK)
            set_notified(arena, run, true);
    }
    for (size_t at = where.first; result != ZR_OK || zr_arena_is_traced(arena) || arena->recorder.events;
         at = run_end(arena, run)) {
        run = next_run(arena, at, where.end, OF_THE_REQUEST);
        if (run.bytes == 0)
            break;
        if (result == ZR_OK) {
            zr_recorder_put_granules(arena, ZRT_MAP, run);
            zr_trace_event(arena, map, arena->base + run.offset_bytes, run.bytes);
        } else if (zr_range_mapping(arena->range, run.offset_bytes)->notified) {
            call_unmapping(arena, run, arena->first_stripe->map_callbacks_count);
            set_notified(arena, run, false);
        }
    }
    return result;
}

static void notify_unmapping(struct zr_arena *arena, struct zr_bounds part)
{
    size_t first = part.offset_bytes >> arena->granule_shift, end = run_end(arena, part);
    struct zr_bounds run;
    if (arena->first_stripe->map_callbacks_count == 0)
        return;
    for (size_t at = first; (run = next_run(arena, at, end, NOTIFIED)).bytes > 0; at = run_end(arena, run))
        call_unmapping(arena, run, arena->first_stripe->map_callbacks_count);
}

static void notify_kept(struct zr_arena *arena, struct zr_bounds part)
{
    for (unsigned i = 0; i < arena->first_stripe->map_callbacks_count; i++)
        call_mapped(arena, &arena->first_stripe->map_callbacks[i], part);
}

static void notify_unmapped(struct zr_arena *arena, struct zr_bounds part)
{
    zr_recorder_put_granules(arena, ZRT_UNMAP, part);
    zr_trace_event(arena, unmap, arena->base + part.offset_bytes, part.bytes);
}

const struct zr_map_calls zr_map_callback_calls = {notify, notify_unmapping, notify_unmapped, notify_kept};

/* ---- Adding and removing callbacks --------------------------------------------------------------------- */

/* While all stripes are locked, no stripe is added and no stripe maps memory. */
static unsigned lock_stripes(struct zr_arena *first_stripe)
{
    zr_arena_hold_unstriped(first_stripe, 1);
    unsigned count = atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    zr_arena_acquire(first_stripe);
    for (unsigned i = 0; i < count; i++)
        zr_arena_acquire(first_stripe->stripes[i]);
    return count;
}

static void unlock_stripes(struct zr_arena *first_stripe, unsigned count)
{
    for (unsigned i = count; i-- > 0;)
        zr_arena_release(first_stripe->stripes[i]);
    zr_arena_release(first_stripe);
    zr_arena_hold_unstriped(first_stripe, -1);
}

/* Announces the mappings of a stripe up to `end` to one callback, or withdraws them. After a failure *stopped
 * gets the granule where it happened. */
static zr_result notify_present(struct zr_arena *arena, const struct zr_map_callback *callback,
                                bool unmapping, size_t end, size_t *stopped)
{
    struct zr_bounds run;
    for (size_t at = 0; (run = next_run(arena, at, end, NOTIFIED)).bytes > 0; at = run_end(arena, run)) {
        zr_result result = ZR_OK;
        if (!unmapping)
            result = call_mapped(arena, callback, run);
        else if (callback->unmapping)
            callback->unmapping(callback->argument, arena->base + run.offset_bytes, run.bytes);
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

static struct zr_arena *stripe_at(struct zr_arena *first_stripe, unsigned i)
{
    return i == 0 ? first_stripe : first_stripe->stripes[i - 1];
}

zr_result zr_arena_add_map_callback(zr_arena *arena, const struct zr_map_callback *callback)
{
    if (!arena || !callback)
        return zr_fail(ZR_ERR_INVALID,
                       "zr_arena_add_map_callback: arena is NULL, or both functions are NULL");
    zr_result result = ZR_OK;
    size_t stopped = 0;
    unsigned stripes = lock_stripes(arena), notified = 0;
    if (arena->map_callbacks_count == ZR_MAP_CALLBACKS_MAX)
        result = zr_fail(ZR_ERR_INVALID, "arena \"%s\" has %d map callbacks, the maximum: remove one first",
                         arena->name, ZR_MAP_CALLBACKS_MAX);
    else
        while (result == ZR_OK && notified <= stripes) {
            struct zr_arena *stripe = stripe_at(arena, notified);
            result = notify_present(stripe, callback, false, all_granules(stripe), &stopped);
            notified += result == ZR_OK;
        }
    if (result == ZR_OK)
        arena->map_callbacks[arena->map_callbacks_count++] = *callback;
    else if (arena->map_callbacks_count < ZR_MAP_CALLBACKS_MAX)
        for (unsigned i = 0; i <= notified; i++)
            notify_present(stripe_at(arena, i), callback, true,
                           i < notified ? all_granules(stripe_at(arena, i)) : stopped, &stopped);
    unlock_stripes(arena, stripes);
    return result;
}

static bool same(const struct zr_map_callback *a, const struct zr_map_callback *b)
{
    return a->mapped == b->mapped && a->unmapping == b->unmapping && a->argument == b->argument;
}

zr_result zr_arena_remove_map_callback(zr_arena *arena, const struct zr_map_callback *callback)
{
    size_t stopped = 0;
    if (!arena || !callback)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_remove_map_callback: arena or callback is NULL");
    zr_result result = ZR_OK;
    unsigned stripes = lock_stripes(arena), at = 0;
    while (at < arena->map_callbacks_count && !same(&arena->map_callbacks[at], callback))
        at++;
    if (at == arena->map_callbacks_count) {
        result = zr_fail(ZR_ERR_INVALID, "arena \"%s\" has no map callback with these values", arena->name);
    } else {
        for (unsigned i = 0; i <= stripes; i++)
            notify_present(stripe_at(arena, i), callback, true, all_granules(stripe_at(arena, i)), &stopped);
        arena->map_callbacks_count--;
        memmove(&arena->map_callbacks[at], &arena->map_callbacks[at + 1],
                (arena->map_callbacks_count - at) * sizeof arena->map_callbacks[0]);
    }
    unlock_stripes(arena, stripes);
    return result;
}
