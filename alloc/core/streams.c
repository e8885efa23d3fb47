/* streams.c: which streams may reuse freed memory, and when. Uses space.c and backend.c. */
#include "alloc/core/streams.h"

#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/base/error.h"

/* The max number of frees of a stream after the last one known to have passed. Numbers are compared modulo
 * 2^32, which is right up to twice this. */
#define COUNTED_MAX (UINT32_C(1) << 30)

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

unsigned zr_streams_number(struct zr_arena *arena, uint64_t stream)
{
    unsigned number = zr_streams_find(arena, stream);
    if (number)
        return number;
    /* A stream that owns nothing any more gives up its number. */
    zr_arena_flush_size_cache(arena);
    for (unsigned i = 1; i <= arena->streams_count; i++)
        if (arena->streams[i]->pending_bytes == 0) {
            arena->streams[i]->stream = stream;
            arena->streams[i]->marks_count = 0;
            return i;
        }
    if (arena->streams_count == ZR_STREAMS_MAX)
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
    zr_slab_end(&arena->use_queues);
}

/* ---- Free extents that pass ---------------------------------------------------------------------------- */

/* Removes the owner of everything that the stream freed up to `passed`. */
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

/* Records an event after the last free of the stream, unless one exists or all marks are in use. */
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

/* Waits until all work before the stream's last free has passed. False: the wait failed. */
static bool catch_up(struct zr_arena *arena, unsigned number)
{
    struct zr_stream *own = arena->streams[number];
    zr_arena_flush_size_cache(arena);
    own->marks_count = 0; /* no recorded event covers later frees, whatever their numbers are */
    if (own->pending_bytes > 0) {
        if (zr_arena_stream_wait(arena, own->stream) != ZR_OK)
            return false;
    }
    own->passed = own->freed;
    return true;
}

uint32_t zr_streams_count_free(struct zr_arena *arena, unsigned number)
{
    struct zr_stream *own = arena->streams[number];
    if (__builtin_expect(own->freed - own->passed >= COUNTED_MAX, 0)) {
        if (!catch_up(arena, number))
            return own->freed;
        release_passed(arena, own);
    }
    return ++own->freed;
}

/* ---- Blocks that several streams use ------------------------------------------------------------------- */

bool zr_streams_uses(const struct zr_extent *block, uint64_t stream)
{
    const struct zr_use *use = block->uses;
    while (use && use->queue->stream != stream)
        use = use->next;
    return use != NULL;
}

/* The stream's queue, created if missing. Code that names all streams does so in the same order each time, so
 * the next queue is often the one after the last. NULL: no memory. */
static struct zr_use_queue *queue_of(struct zr_arena *arena, uint64_t stream)
{
    struct zr_use_queue *recent = arena->recent_queue, *each = arena->queues;
    if (recent && recent->stream == stream)
        return recent;
    if (recent && recent->next && recent->next->stream == stream)
        return arena->recent_queue = recent->next;
    while (each && each->stream != stream)
        each = each->next;
    if (!each && zr_slab_reserve(&arena->use_queues, 1)) {
        each = zr_slab_take(&arena->use_queues);
        *each = (struct zr_use_queue){.next = arena->queues, .stream = stream};
        arena->queues = each;
    }
    return arena->recent_queue = each;
}

bool zr_streams_use(struct zr_arena *arena, struct zr_extent *block, uint64_t stream)
{
    struct zr_use_queue *queue = zr_slab_reserve(&arena->uses, 1) ? queue_of(arena, stream) : NULL;
    if (!queue)
        return false;
    struct zr_use *use = zr_slab_take(&arena->uses);
    *use = (struct zr_use){.next = block->uses, .queue = queue, .block = block};
    block->uses = use;
    queue->uses_count++;
    return true;
}

/* Records the point after which the stream does not use the block. After a failure, a later call tries again.
 */
static bool record(struct zr_arena *arena, struct zr_use *use)
{
    if (use->recorded)
        return true;
    use->order = arena->points_count++;
    arena->backend_calls_count++;
    use->recorded = zr_backend_event_record(arena->backend, use->queue->stream, &use->point) == ZR_OK;
    return use->recorded;
}

void zr_streams_defer(struct zr_arena *arena, struct zr_extent *block)
{
    for (struct zr_use *use = block->uses; use; use = use->next) {
        struct zr_use_queue *queue = use->queue;
        record(arena, use);
        use->block = block;
        use->later = NULL;
        if (queue->last)
            queue->last->later = use;
        else
            queue->first = use;
        queue->last = use;
    }
    block->kind = ZR_EXTENT_DEFERRED;
    arena->deferred_bytes += block->bytes;
}

/* The first use of the queue that has a point. Once the point has passed, so have all earlier uses of the
 * queue. If no use has a point, the last one gets one. NULL: the queue is empty, or recording failed. */
static struct zr_use *oldest_point(struct zr_arena *arena, const struct zr_use_queue *queue)
{
    struct zr_use *use = queue->first;
    while (use && !use->recorded)
        use = use->later;
    return use || !queue->last || !record(arena, queue->last) ? use : queue->last;
}

/* Removes the first use of the queue, which has passed. */
static void pass(struct zr_arena *arena, struct zr_use_queue *queue)
{
    struct zr_use *use = queue->first;
    struct zr_extent *block = use->block;
    struct zr_use **link = &block->uses;
    while (*link != use)
        link = &(*link)->next;
    *link = use->next;
    queue->first = use->later;
    if (!queue->first)
        queue->last = NULL;
    queue->uses_count--;
    zr_slab_give(&arena->uses, use);
    if (block->uses)
        return;
    arena->deferred_bytes -= block->bytes;
    zr_arena_vacate(arena, block);
}

static bool poll_queue(struct zr_arena *arena, struct zr_use_queue *queue)
{
    const struct zr_use *oldest;
    size_t before = arena->deferred_bytes;
    while ((oldest = oldest_point(arena, queue)) && zr_backend_event_done(arena->backend, &oldest->point)) {
        while (queue->first != oldest)
            pass(arena, queue);
        pass(arena, queue);
    }
    return arena->deferred_bytes < before;
}

/* Frees the deferred blocks whose uses have passed. */
static bool poll_queues(struct zr_arena *arena)
{
    bool any = false;
    struct zr_use_queue **link = &arena->queues;
    while (*link) {
        struct zr_use_queue *queue = *link;
        any |= poll_queue(arena, queue);
        if (queue->uses_count > 0) {
            link = &queue->next;
            continue;
        }
        *link = queue->next;
        arena->recent_queue = NULL;
        zr_slab_give(&arena->use_queues, queue);
    }
    return any;
}

void zr_streams_defer_unnumbered(struct zr_arena *arena, struct zr_extent *block)
{
    block->kind = ZR_EXTENT_DEFERRED;
    block->unnumbered = arena->unnumbered;
    arena->unnumbered = block;
    arena->deferred_bytes += block->bytes;
}

/* Frees the unnumbered blocks whose streams have got a number or, with `wait`, have been waited for. */
static bool poll_unnumbered(struct zr_arena *arena, bool wait)
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
    bool any = arena->queues && poll_queues(arena);
    if (__builtin_expect(arena->unnumbered != NULL, 0))
        any |= poll_unnumbered(arena, false);
    for (unsigned i = 1; i <= arena->streams_count; i++)
        any |= poll_stream(arena, arena->streams[i]);
    return any;
}

/* A point to wait for. */
struct waitable {
    const struct zr_stream_point *point; /* NULL: none */
    uint32_t order;
};

static void choose(struct waitable *first, const struct zr_stream_point *point, uint32_t order)
{
    if (!first->point || (int32_t)(order - first->order) < 0)
        *first = (struct waitable){point, order};
}

/* The oldest of the points that delay frees. Streams without a point get one. */
static struct waitable first_point(struct zr_arena *arena)
{
    struct waitable first = {0};
    for (const struct zr_use_queue *queue = arena->queues; queue; queue = queue->next) {
        const struct zr_use *oldest = oldest_point(arena, queue);
        if (oldest)
            choose(&first, &oldest->point, oldest->order);
    }
    for (unsigned i = 1; i <= arena->streams_count; i++) {
        struct zr_stream *own = arena->streams[i];
        if (own->pending_bytes > 0)
            mark(arena, own);
        if (own->pending_bytes > 0 && own->marks_count > 0)
            choose(&first, &own->marks[0].point, own->marks[0].order);
    }
    return first;
}

/* If no event can be recorded or waited for, waits for whole streams. Blocks of a stream whose wait fails
 * stay. */
static bool wait_without_points(struct zr_arena *arena)
{
    bool any = false;
    for (struct zr_use_queue *queue = arena->queues; queue; queue = queue->next)
        if (queue->first && zr_arena_stream_wait(arena, queue->stream) == ZR_OK) {
            any = true;
            while (queue->first)
                pass(arena, queue);
        }
    for (unsigned i = 1; i <= arena->streams_count; i++)
        if (arena->streams[i]->pending_bytes > 0 && catch_up(arena, i))
            any |= release_passed(arena, arena->streams[i]);
    if (arena->unnumbered)
        any |= poll_unnumbered(arena, true);
    return zr_streams_poll(arena) || any;
}

bool zr_streams_wait(struct zr_arena *arena)
{
    /* What a point has released may already be in use again: then wait for the next point. */
    for (;;) {
        if (zr_streams_poll(arena))
            return true;
        struct waitable first = first_point(arena);
        struct zr_stream_point point;
        zr_result result = ZR_ERR_UNAVAILABLE;
        if (first.point) {
            point = *first.point; /* other threads may query and remove the point meanwhile */
            zr_arena_begin_driver_call(arena);
            result = zr_backend_event_wait(arena->backend, &point);
            zr_arena_end_driver_call(arena);
        }
        if (result != ZR_OK)
            return zr_space_pending_bytes(arena) > 0 && wait_without_points(arena);
    }
}
