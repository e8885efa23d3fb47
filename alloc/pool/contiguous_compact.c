/* contiguous_compact.c: moves a contiguous pool's entries down, in order. Uses contiguous_space.c.
 *
 * If the old and the new address of an entry begin on a granule, the entry is moved by mapping: its whole
 * granules are mapped at the new place too, and unmapped at the old place after its stream has passed. Until
 * then both addresses show the same bytes. If the places overlap, the entry first moves to free addresses
 * after the last entry. Any other entry is copied in its own stream, in one copy if the places do not
 * overlap, else in steps. The entry's address changes after all its bytes are at the new place. */
#include "alloc/pool/contiguous.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/poison.h"
#include "alloc/core/space.h"

/* Records that one move may need: two for pending parts of the old extent, one for a split extent, one for an
 * alias. */
enum { MOVE_EXTENTS = 4 };

/* A step below this share of a granule is copied through a bounce granule: twice the bytes in fewer calls. */
enum { SMALL_STEP_SHARE = 8 };

/* One compaction. */
struct compaction {
    struct zr_contiguous *pool;
    struct zr_pool_extent *bounce; /* NULL: no bounce granule yet */
};

/* A copy within the pool's range. */
struct move {
    size_t to, from, bytes;
};

/* Links a copy of `like` in address order after `after` and makes it pending. lock: also pool->view */
static struct zr_pool_extent *link_pending(struct zr_contiguous *pool, const struct zr_pool_extent *like,
                                           struct zr_pool_extent *after)
{
    struct zr_pool_extent *extent = zr_slab_take(&pool->extents);
    *extent = *like;
    while (after && after->next && zr_pool_extent_end(after->next) <= extent->offset_bytes)
        after = after->next;
    zr_pool_extent_link(pool, extent, after);
    zr_pool_extent_defer(pool, extent);
    return extent;
}

static struct zr_pool_extent *last_before(const struct zr_contiguous *pool, size_t offset_bytes)
{
    struct zr_pool_extent *extent = pool->last;
    while (extent && extent->offset_bytes >= offset_bytes)
        extent = extent->previous;
    return extent;
}

/* Moves the entry's extent to `to`, where its contents already are, after `after`. The rest of the old extent
 * becomes pending, its first `aliased_bytes` as an alias. */
static void place_at(struct zr_contiguous *pool, struct zr_pool_extent *extent, size_t to,
                     size_t aliased_bytes, struct zr_pool_extent *after)
{
    struct zr_pool_extent old = *extent;
    size_t old_end = zr_pool_extent_end(extent);
    zr_lock_acquire(&pool->view);
    zr_pool_extent_unlink(pool, extent);
    extent->offset_bytes = to;
    zr_pool_extent_claim(pool, extent, to < old.offset_bytes ? after : pool->last);
    after = to < old.offset_bytes ? extent : last_before(pool, old.offset_bytes);
    old.borrows_count = 0;
    if (aliased_bytes > 0) {
        old.bytes = aliased_bytes;
        old.kind = ZR_POOL_EXTENT_ALIAS;
        after = link_pending(pool, &old, after);
        old.offset_bytes += aliased_bytes;
    }
    old.kind = ZR_POOL_EXTENT_PENDING;
    if (to < old.offset_bytes && zr_pool_extent_end(extent) > old.offset_bytes)
        old.offset_bytes = zr_pool_extent_end(extent);
    old.bytes = old_end - old.offset_bytes;
    if (old.bytes > 0)
        link_pending(pool, &old, after);
    zr_lock_release(&pool->view);
}

static zr_result copy(struct zr_contiguous *pool, struct move move, uint64_t stream)
{
    return zr_backend_copy(pool->backend, &(struct zr_copy){.to = pool->range->address + move.to,
                                                            .from = pool->range->address + move.from,
                                                            .bytes = move.bytes,
                                                            .stream = stream});
}

/* Maps granules under a part that will be written. If the arena has none left, uses the pool's idle and
 * pending granules. */
static zr_result map_under(struct zr_contiguous *pool, struct zr_bounds part)
{
    zr_result result = zr_contiguous_back(pool, part);
    if (result == ZR_ERR_MEMORY && zr_contiguous_finish_pending(pool, true) == ZR_OK &&
        zr_contiguous_release_idle(pool, 0) == ZR_OK)
        result = zr_contiguous_back(pool, part);
    return result;
}

/* ---- Moves by mapping ---------------------------------------------------------------------------------- */

static size_t whole_bytes(const struct zr_contiguous *pool, const struct zr_pool_extent *extent)
{
    return zr_round_down(extent->bytes, pool->granule_bytes);
}

/* Unmaps a second mapping of the entry's granules, or keeps it as an alias if the driver refuses. */
static void remove_second_mapping(struct zr_contiguous *pool, const struct zr_pool_extent *extent,
                                  struct zr_bounds part)
{
    if (part.bytes == 0 || zr_contiguous_release(pool, part, SIZE_MAX) == ZR_OK)
        return;
    struct zr_pool_extent alias = {.offset_bytes = part.offset_bytes,
                                   .bytes = part.bytes,
                                   .stream = extent->stream,
                                   .kind = ZR_POOL_EXTENT_ALIAS};
    zr_lock_acquire(&pool->view);
    link_pending(pool, &alias, last_before(pool, part.offset_bytes));
    zr_lock_release(&pool->view);
}

/* Maps all whole granules of the entry at `to` too, or none of them. */
static zr_result add_second_mapping(struct zr_contiguous *pool, const struct zr_pool_extent *extent,
                                    size_t to)
{
    struct zr_bounds done = {to, 0};
    zr_result result = ZR_OK;
    while (result == ZR_OK && done.bytes < whole_bytes(pool, extent)) {
        struct zr_handle *handle = zr_range_mapping(pool->range, extent->offset_bytes + done.bytes)->handle;
        pool->backend_calls_count++;
        result = zr_backend_map(pool->range, to + done.bytes, handle);
        if (result == ZR_OK)
            done.bytes += pool->granule_bytes;
    }
    pool->mapped_bytes += done.bytes;
    if (done.bytes > 0 && to + done.bytes > pool->mapped_end_bytes)
        pool->mapped_end_bytes = to + done.bytes;
    if (result == ZR_OK) {
        pool->backend_calls_count++;
        result = zr_backend_set_access(pool->range, done);
    }
    if (result == ZR_OK)
        result = zr_contiguous_notify(pool, done);
    if (result != ZR_OK)
        remove_second_mapping(pool, extent, done);
    return result;
}

/* Moves an entry by mapping to a place that shares no granule with it. */
static zr_result remap(struct zr_contiguous *pool, struct zr_pool_extent *extent, size_t to,
                       struct zr_pool_extent *after)
{
    size_t whole = whole_bytes(pool, extent);
    size_t rest = extent->requested_bytes > whole ? extent->requested_bytes - whole : 0;
    zr_result result =
        zr_contiguous_clear(pool, zr_whole_around(pool, (struct zr_bounds){to, extent->bytes}), NULL);
    if (result == ZR_OK) /* idle granules are in the way */
        result = zr_contiguous_release(pool, (struct zr_bounds){to, whole}, SIZE_MAX);
    if (result == ZR_OK && extent->bytes > whole)
        result = map_under(pool, (struct zr_bounds){to + whole, extent->bytes - whole});
    if (result == ZR_OK)
        result = add_second_mapping(pool, extent, to);
    if (result != ZR_OK)
        return result;
    if (rest > 0) {
        if (pool->arena->poison)
            zr_poison_clear(pool->range->address + to + whole, rest);
        result = copy(pool, (struct move){to + whole, extent->offset_bytes + whole, rest}, extent->stream);
    }
    if (result != ZR_OK) {
        remove_second_mapping(pool, extent, (struct zr_bounds){to, whole});
        return result;
    }
    place_at(pool, extent, to, whole, after);
    pool->remapped_bytes += whole;
    pool->copied_bytes += rest;
    return ZR_OK;
}

static bool can_remap(const struct zr_contiguous *pool, const struct zr_pool_extent *extent, size_t to)
{
    return pool->backend->can.aliases && whole_bytes(pool, extent) > 0 &&
           (extent->offset_bytes | to) % pool->granule_bytes == 0;
}

/* ---- Moves by copying ---------------------------------------------------------------------------------- */

/* Waits until all submitted work of a stream has finished. */
static zr_result drain(struct zr_contiguous *pool, uint64_t stream)
{
    return pool->backend->can.synchronous ? ZR_OK : zr_contiguous_stream_wait(pool, stream);
}

/* Provides a bounce granule after all mappings, for use in the stream. False: no granule or no addresses are
 * left. */
static bool get_bounce(struct compaction *compaction, uint64_t stream)
{
    struct zr_contiguous *pool = compaction->pool;
    struct zr_bounds part = {pool->mapped_end_bytes, pool->granule_bytes};
    struct zr_pool_extent *bounce = compaction->bounce;
    if (bounce) {
        bool ready = bounce->stream == stream || drain(pool, bounce->stream) == ZR_OK;
        if (ready)
            bounce->stream = stream;
        return ready;
    }
    if (part.bytes > pool->limit_bytes - part.offset_bytes ||
        !zr_slab_reserve(&pool->extents, MOVE_EXTENTS + 1) || zr_contiguous_back(pool, part) != ZR_OK)
        return false;
    bounce = zr_slab_take(&pool->extents);
    *bounce = (struct zr_pool_extent){.offset_bytes = part.offset_bytes,
                                      .bytes = part.bytes,
                                      .stream = stream,
                                      .kind = ZR_POOL_EXTENT_BOUNCE};
    zr_lock_acquire(&pool->view);
    zr_pool_extent_link(pool, bounce, pool->last);
    zr_lock_release(&pool->view);
    if (pool->arena->poison)
        zr_poison_clear(zr_pool_extent_address(pool, bounce), part.bytes);
    compaction->bounce = bounce;
    return true;
}

static void end_bounce(struct compaction *compaction)
{
    struct zr_contiguous *pool = compaction->pool;
    struct zr_pool_extent *bounce = compaction->bounce;
    if (!bounce)
        return;
    struct zr_pool_extent *before = bounce->previous;
    zr_lock_acquire(&pool->view);
    zr_pool_extent_unlink(pool, bounce);
    bounce->kind = ZR_POOL_EXTENT_PENDING;
    zr_pool_extent_link(pool, bounce, before);
    zr_lock_release(&pool->view);
    zr_pool_extent_defer(pool, bounce);
}

static zr_result copy_step(struct compaction *compaction, struct move move, uint64_t stream, bool by_bounce)
{
    if (!by_bounce)
        return copy(compaction->pool, move, stream);
    size_t bounce = compaction->bounce->offset_bytes;
    zr_result result = copy(compaction->pool, (struct move){bounce, move.from, move.bytes}, stream);
    if (result == ZR_OK)
        result = copy(compaction->pool, (struct move){move.to, bounce, move.bytes}, stream);
    return result;
}

/* Copies an entry to an overlapping place below. Each step overwrites only bytes that an earlier step has
 * copied, so that after a failure the steps can be undone in reverse order. */
static zr_result copy_in_steps(struct compaction *compaction, struct zr_pool_extent *extent, size_t to)
{
    struct zr_contiguous *pool = compaction->pool;
    size_t from = extent->offset_bytes, bytes = extent->requested_bytes, done = 0, step = from - to;
    uint64_t stream = extent->stream;
    zr_result result = ZR_OK, undone = ZR_OK;
    bool by_bounce =
        step < pool->granule_bytes / SMALL_STEP_SHARE && bytes > 2 * step && get_bounce(compaction, stream);
    if (by_bounce)
        step = pool->granule_bytes;
    while (result == ZR_OK && done < bytes) {
        size_t part = bytes - done < step ? bytes - done : step;
        result = copy_step(compaction, (struct move){to + done, from + done, part}, stream, by_bounce);
        if (result == ZR_OK)
            done += part;
    }
    if (result == ZR_OK)
        return ZR_OK;
    while (undone == ZR_OK && done > 0) {
        done -= step;
        undone = copy_step(compaction, (struct move){from + done, to + done, step}, stream, by_bounce);
    }
    if (undone == ZR_OK)
        return result;
    char reason[256];
    snprintf(reason, sizeof reason, "%s", zr_last_error());
    extent->corrupt = true;
    return zr_fail(
        ZR_ERR_CORRUPT,
        "pool \"%s\": an entry of %zu bytes is lost: a copy failed half way, and the copy back failed too: %s",
        pool->name, bytes, reason);
}

static zr_result copy_down(struct compaction *compaction, struct zr_pool_extent *extent, size_t to,
                           struct zr_pool_extent *after)
{
    struct zr_contiguous *pool = compaction->pool;
    size_t distance = extent->offset_bytes - to;
    struct zr_bounds fresh = {to, extent->bytes < distance ? extent->bytes : distance};
    zr_result result = zr_contiguous_clear(pool, fresh, &extent->stream);
    if (result == ZR_OK)
        result = map_under(pool, fresh);
    if (result != ZR_OK)
        return result;
    if (pool->arena->poison)
        zr_poison_clear(pool->range->address + fresh.offset_bytes, fresh.bytes);
    if (distance >= extent->bytes)
        result = copy(pool, (struct move){to, extent->offset_bytes, extent->requested_bytes}, extent->stream);
    else
        result = copy_in_steps(compaction, extent, to);
    if (result != ZR_OK) {
        if (pool->arena->poison)
            zr_poison_free(pool->range->address + fresh.offset_bytes, fresh.bytes);
        return result;
    }
    place_at(pool, extent, to, 0, after);
    pool->copied_bytes += extent->requested_bytes;
    return ZR_OK;
}

/* ---- All entries --------------------------------------------------------------------------------------- */

static zr_result move_entry(struct compaction *compaction, struct zr_pool_extent *extent, size_t to,
                            struct zr_pool_extent *after)
{
    struct zr_contiguous *pool = compaction->pool;
    size_t needed_bytes = zr_round_up(extent->bytes, pool->granule_bytes);
    if (!zr_slab_reserve(&pool->extents, MOVE_EXTENTS))
        return ZR_ERR_HOST_MEMORY;
    if (!can_remap(pool, extent, to))
        return copy_down(compaction, extent, to, after);
    if (extent->offset_bytes - to >= needed_bytes)
        return remap(pool, extent, to, after);
    /* The places overlap: move to free addresses first. The entry is consistent between the two moves. */
    if (needed_bytes > pool->limit_bytes - pool->mapped_end_bytes)
        return copy_down(compaction, extent, to, after);
    zr_result result = remap(pool, extent, pool->mapped_end_bytes, NULL);
    if (result != ZR_OK)
        return result;
    if (!zr_slab_reserve(&pool->extents, MOVE_EXTENTS))
        return ZR_ERR_HOST_MEMORY;
    return remap(pool, extent, to, after);
}

static struct zr_pool_extent *live_from(struct zr_pool_extent *extent)
{
    while (extent && extent->kind != ZR_POOL_EXTENT_LIVE)
        extent = extent->next;
    return extent;
}

zr_result zr_contiguous_move_down(struct zr_contiguous *pool)
{
    struct compaction compaction = {.pool = pool};
    struct zr_pool_extent *before = NULL, *extent;
    zr_result result = ZR_OK;
    while (result == ZR_OK && (extent = live_from(before ? before->next : pool->first))) {
        size_t to = zr_round_up(before ? zr_pool_extent_end(before) : 0, extent->alignment);
        if (extent->movable && extent->borrows_count == 0 && !extent->corrupt && to < extent->offset_bytes)
            result = move_entry(&compaction, extent, to, before);
        before = extent;
    }
    end_bounce(&compaction);
    return result;
}
