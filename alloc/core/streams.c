/* streams.c: who may use what was freed, and when anybody may. Stands on space.c and backend.c. */
#include "alloc/core/streams.h"

#include <string.h>

#include "alloc/core/arena_internal.h"
#include "alloc/base/error.h"

/* Frees of a stream since the last that is known to have passed. Their numbers are compared modulo 2^32,
 * which is right for twice as many. */
#define COUNTED_MOST (UINT32_C(1) << 30)

/* ---- Streams as numbers -------------------------------------------------------------------------------- */

unsigned zr_streams_find(struct zr_arena *arena, uint64_t stream)
{
    unsigned recent = arena->recent_stream;
    if (recent && arena->streams[recent]->stream == stream)
        return recent;
    for (unsigned i = 1; i <= arena->streams_count; i++)
        if (arena->streams[i]->stream == stream)
            return arena->recent_stream = i;
    return 0;
}

/* A quick block's owner shows in its free extent only, and some are kept for want of a record. */
static bool owns_quick(const struct zr_arena *arena, unsigned number)
{
    for (unsigned i = 0; arena->quick_count > 0 && i < ZR_QUICK_BLOCKS; i++)
        if (arena->quick[i] && arena->quick[i]->owner == number)
            return true;
    return false;
}

unsigned zr_streams_number(struct zr_arena *arena, uint64_t stream)
{
    unsigned number = zr_streams_find(arena, stream);
    if (number)
        return number;
    /* One that owns nothing any more gives its place. */
    zr_arena_flush_quick(arena);
    for (unsigned i = 1; i <= arena->streams_count; i++)
        if (arena->streams[i]->pending_bytes == 0 && !owns_quick(arena, i)) {
            arena->streams[i]->stream = stream;
            arena->streams[i]->marks_count = 0;
            return i;
        }
    if (arena->streams_count == ZR_STREAMS_MOST)
        return 0;
    struct zr_stream *own = zr_pages_take(sizeof *own);
    if (!own)
        return 0;
    own->stream = stream;
    arena->streams[++arena->streams_count] = own;
    return arena->streams_count;
}

void zr_streams_end(struct zr_arena *arena)
{
    for (unsigned i = 1; i <= arena->streams_count; i++)
        zr_pages_give(arena->streams[i], sizeof *arena->streams[i]);
    arena->streams_count = 0;
    zr_slab_end(&arena->uses);
}

/* ---- Free extents that pass ---------------------------------------------------------------------------- */

/* Everything that the stream freed up to `passed` becomes anybody's. */
static bool release_passed(struct zr_arena *arena, struct zr_stream *own)
{
    bool any = false;
    for (unsigned zone = 0; zone < ZR_ZONE_COUNT; zone++) {
        struct zr_extent *gap = zr_bins_largest(&own->gaps[zone]), *next;
        for (; gap; gap = next) {
            next = zr_bins_smaller(&own->gaps[zone], gap);
            if (!zr_streams_passed(own, gap->serial))
                continue;
            zr_space_disown(arena, gap);
            any = true;
        }
    }
    return any;
}

/* Records an event behind all that the stream has freed, unless there is one, or no room for one. */
static void mark(struct zr_arena *arena, struct zr_stream *own)
{
    struct zr_stream_mark *next = &own->marks[own->marks_count];
    if (own->freed == own->passed || own->marks_count == ZR_STREAM_MARKS ||
        (own->marks_count > 0 && next[-1].freed == own->freed))
        return;
    arena->backend_calls_count++;
    if (zr_backend_event_record(arena->backend, own->stream, &next->point) != ZR_OK)
        return;
    next->freed = own->freed;
    next->order = arena->points_count++;
    own->marks_count++;
}

static bool poll_stream(struct zr_arena *arena, struct zr_stream *own)
{
    unsigned done = 0;
    if (own->pending_bytes == 0)
        return false;
    mark(arena, own);
    while (done < own->marks_count && zr_backend_event_done(arena->backend, &own->marks[done].point))
        own->passed = own->marks[done++].freed;
    if (done == 0)
        return false;
    own->marks_count -= done;
    memmove(own->marks, own->marks + done, own->marks_count * sizeof *own->marks);
    mark(arena, own);
    return release_passed(arena, own);
}

/* Waits until all that the stream has freed so far has passed. False: it cannot be waited for. */
static bool catch_up(struct zr_arena *arena, unsigned number)
{
    struct zr_stream *own = arena->streams[number];
    zr_arena_flush_quick(arena);
    own->marks_count = 0; /* what is freed from here on is behind none of them, whatever its number */
    if (own->pending_bytes > 0 || owns_quick(arena, number)) {
        if (zr_arena_stream_wait(arena, own->stream) != ZR_OK)
            return false;
    }
    own->passed = own->freed;
    return true;
}

uint32_t zr_streams_count_free(struct zr_arena *arena, unsigned number)
{
    struct zr_stream *own = arena->streams[number];
    if (__builtin_expect(own->freed - own->passed >= COUNTED_MOST, 0)) {
        if (!catch_up(arena, number))
            return own->freed;
        release_passed(arena, own);
    }
    return ++own->freed;
}

/* ---- Blocks that several streams use ------------------------------------------------------------------- */

/* The point after which the stream does not use the block; what could not be noted is tried again. */
static void record(struct zr_arena *arena, struct zr_use *use)
{
    if (use->recorded)
        return;
    use->order = arena->points_count++;
    arena->backend_calls_count++;
    use->recorded = zr_backend_event_record(arena->backend, use->stream, &use->point) == ZR_OK;
}

void zr_streams_defer(struct zr_arena *arena, struct zr_extent *block)
{
    for (struct zr_use *use = block->uses; use; use = use->next)
        record(arena, use);
    block->kind = ZR_EXTENT_LEAVING;
    arena->deferred_bytes += block->bytes;
    block->uses->next_deferred = NULL;
    if (arena->deferred_last)
        arena->deferred_last->uses->next_deferred = block;
    else
        arena->deferred = block;
    arena->deferred_last = block;
}

static bool uses_passed(struct zr_arena *arena, const struct zr_extent *block)
{
    for (struct zr_use *use = block->uses; use; use = use->next) {
        record(arena, use);
        if (!use->recorded || !zr_backend_event_done(arena->backend, &use->point))
            return false;
    }
    return true;
}

static void give_uses(struct zr_arena *arena, struct zr_extent *block)
{
    while (block->uses) {
        struct zr_use *use = block->uses;
        block->uses = use->next;
        zr_slab_give(&arena->uses, use);
    }
}

/* Lets go of the deferred blocks whose uses have passed. */
static bool poll_deferred(struct zr_arena *arena)
{
    bool any = false;
    struct zr_extent *block = arena->deferred, *kept = NULL;
    while (block) {
        struct zr_extent *next = block->uses->next_deferred;
        if (uses_passed(arena, block)) {
            if (kept)
                kept->uses->next_deferred = next;
            else
                arena->deferred = next;
            if (arena->deferred_last == block)
                arena->deferred_last = kept;
            arena->deferred_bytes -= block->bytes;
            give_uses(arena, block);
            zr_arena_vacate(arena, block);
            any = true;
        } else {
            kept = block;
        }
        block = next;
    }
    return any;
}

void zr_streams_defer_unnumbered(struct zr_arena *arena, struct zr_extent *block)
{
    block->kind = ZR_EXTENT_LEAVING;
    block->unnumbered = arena->unnumbered;
    arena->unnumbered = block;
    arena->deferred_bytes += block->bytes;
}

/* Lets go of the blocks that were unnumbered and whose streams have a number by now, or can be waited for. */
static bool poll_withheld(struct zr_arena *arena, bool wait)
{
    bool any = false;
    struct zr_extent *block = arena->unnumbered;
    arena->unnumbered = NULL;
    while (block) {
        struct zr_extent *next = block->unnumbered;
        arena->deferred_bytes -= block->bytes;
        if (zr_streams_number(arena, block->stream) ||
            (wait && zr_arena_stream_wait(arena, block->stream) == ZR_OK)) {
            zr_arena_vacate(arena, block);
            any |= arena->unnumbered != block;
        } else {
            zr_streams_defer_unnumbered(arena, block);
        }
        block = next;
    }
    return any;
}

/* ---- Asking and waiting -------------------------------------------------------------------------------- */

bool zr_streams_poll(struct zr_arena *arena)
{
    bool any = arena->deferred && poll_deferred(arena);
    if (__builtin_expect(arena->unnumbered != NULL, 0))
        any |= poll_withheld(arena, false);
    for (unsigned i = 1; i <= arena->streams_count; i++)
        any |= poll_stream(arena, arena->streams[i]);
    return any;
}

/* A point that can be waited for. */
struct waitable {
    const struct zr_stream_point *point; /* NULL: none */
    uint32_t order;
};

static void choose(struct waitable *first, const struct zr_stream_point *point, uint32_t order)
{
    if (!first->point || (int32_t)(order - first->order) < 0)
        *first = (struct waitable){point, order};
}

/* Of the points that hold something back the one that was recorded first. Streams without a point get one. */
static struct waitable first_point(struct zr_arena *arena)
{
    struct waitable first = {0};
    for (const struct zr_extent *block = arena->deferred; block; block = block->uses->next_deferred)
        for (const struct zr_use *use = block->uses; use; use = use->next)
            if (use->recorded && !zr_backend_event_done(arena->backend, &use->point))
                choose(&first, &use->point, use->order);
    for (unsigned i = 1; i <= arena->streams_count; i++) {
        struct zr_stream *own = arena->streams[i];
        if (own->pending_bytes > 0)
            mark(arena, own);
        if (own->pending_bytes > 0 && own->marks_count > 0)
            choose(&first, &own->marks[0].point, own->marks[0].order);
    }
    return first;
}

/* Where no event can be recorded, or waited for, there is only waiting for all: what is freed by then has
 * passed. What cannot be waited for at all stays where it is. */
static bool wait_without_points(struct zr_arena *arena)
{
    bool any = false;
    for (const struct zr_extent *block = arena->deferred; block; block = block->uses->next_deferred)
        for (struct zr_use *use = block->uses; use; use = use->next) {
            bool done = use->recorded && zr_backend_event_done(arena->backend, &use->point);
            if (done || zr_arena_stream_wait(arena, use->stream) != ZR_OK)
                continue;
            use->point = (struct zr_stream_point){0};
            use->recorded = true;
        }
    for (unsigned i = 1; i <= arena->streams_count; i++)
        if (arena->streams[i]->pending_bytes > 0 && catch_up(arena, i))
            any |= release_passed(arena, arena->streams[i]);
    if (arena->unnumbered)
        any |= poll_withheld(arena, true);
    return zr_streams_poll(arena) || any;
}

bool zr_streams_wait(struct zr_arena *arena)
{
    /* What a point held back may be in use again: then the next one. */
    for (;;) {
        if (zr_streams_poll(arena))
            return true;
        struct waitable first = first_point(arena);
        struct zr_stream_point point;
        zr_result result = ZR_ERR_UNAVAILABLE;
        if (first.point) {
            point = *first.point; /* others may ask for it, and forget it, meanwhile */
            zr_arena_open(arena);
            result = zr_backend_event_wait(arena->backend, &point);
            zr_arena_close(arena);
        }
        if (result != ZR_OK)
            return zr_space_pending_bytes(arena) > 0 && wait_without_points(arena);
    }
}
