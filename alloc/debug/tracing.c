/* tracing.c: switches an arena's trace on and off. Between the two debug.c writes the blocks that come and
 * go, map_callbacks.c what is mapped and unmapped, allocate.c and tag_limits.c what is refused. Stands on
 * trace.c, registry.c and follow.h. */
#include "alloc/core/arena_internal.h"
#include "alloc/base/error.h"
#include "alloc/plan/follow.h"
#include "alloc/debug/trace.h"

static void write_block(struct zr_trace *trace, const struct zr_arena *arena, const struct zr_extent *block)
{
    zr_trace_write_alloc(trace, &(struct zr_block_info){.address = arena->base + block->offset_bytes,
                                                        .bytes = zr_extent_requested_bytes(block),
                                                        .reserved_bytes = block->bytes,
                                                        .tag = (zr_tag)block->tag,
                                                        .stream = block->stream});
}

/* Writes what is there already, so that a trace started late is as complete as one started at once: granules
 * first, then the blocks on them. */
void zr_trace_write_present(struct zr_trace *trace, struct zr_arena *arena)
{
    size_t granule = arena->granule_bytes, end = arena->range->bytes / granule;
    for (size_t first = 0, after; first < end; first = after) {
        first = zr_granules_next(arena->granules, first, end, true);
        after = zr_granules_next(arena->granules, first, end, false);
        if (first < after)
            zr_trace_write_map(trace, arena->base + first * granule, (after - first) * granule);
    }
    for (const struct zr_extent *extent = arena->first; extent; extent = extent->next)
        if (extent->kind == ZR_EXTENT_BLOCK) /* the free of one that is leaving came before */
            write_block(trace, arena, extent);
    for (const struct zr_extent *block = NULL; (block = zr_follow_next_block(arena, block));)
        write_block(trace, arena, block);
    zr_trace_write_begin(trace);
}

zr_result zr_trace_start(zr_arena *arena, const char *path)
{
    struct zr_trace *trace = NULL;
    zr_result result;
    if (!arena || !path)
        return zr_fail(ZR_ERR_INVALID, "a trace needs an arena and a file name");
    if (!zr_arena_hold_unstriped(arena, 1)) {
        zr_arena_hold_unstriped(arena, -1);
        return zr_fail(
            ZR_ERR_INVALID,
            "the threads of arena '%s' have addresses of their own already: start its trace before "
            "they allocate, or make it for one thread",
            arena->name);
    }
    /* Under the lock from the look to the switch: two starts must not open one file twice. */
    zr_arena_take(arena);
    if (arena->trace) {
        result =
            zr_fail(ZR_ERR_INVALID, "arena '%s' writes a trace already: stop that one first", arena->name);
        goto unwind;
    }
    result = zr_trace_open(&trace, path,
                           &(struct zr_trace_origin){.name = arena->name,
                                                     .base = arena->base,
                                                     .reserve_bytes = arena->range->bytes,
                                                     .granule_bytes = arena->granule_bytes});
    if (result != ZR_OK)
        goto unwind;
    zr_trace_write_present(trace, arena);
    arena->trace = trace;
    zr_arena_note_debug(arena);
unwind:
    zr_arena_give(arena);
    if (result != ZR_OK)
        zr_arena_hold_unstriped(arena, -1);
    return result;
}

zr_result zr_trace_mark(zr_arena *arena, const char *label)
{
    if (!arena || !label)
        return zr_fail(ZR_ERR_INVALID, "a mark needs an arena and a label");
    zr_lock_take(&arena->lock);
    zr_trace_event(arena->trace, mark, label);
    zr_lock_give(&arena->lock);
    return ZR_OK;
}

zr_result zr_trace_stop(zr_arena *arena)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "stopping a trace needs its arena");
    zr_arena_take(arena);
    struct zr_trace *trace = arena->trace;
    arena->trace = NULL;
    zr_arena_note_debug(arena);
    zr_arena_give(arena);
    if (!trace)
        return zr_fail(ZR_ERR_INVALID, "arena '%s' writes no trace", arena->name);
    zr_arena_hold_unstriped(arena, -1);
    return zr_trace_close(trace);
}
