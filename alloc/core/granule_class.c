/* granule_class.c: which granules may move. A handle has the class, so a run of granules that was created
 * together has one class. Code that unmaps memory under free addresses reads the class: stealing, trimming
 * and breaking up runs (supply.c), and plans that return idle memory (plan/executor_memory.c,
 * plan/executor_pages.c). */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/supply.h"
#include "alloc/core/registry.h"

#include "alloc/base/error.h"

void zr_handle_set_class(struct zr_arena *arena, struct zr_handle *handle,
                         enum zr_granule_class granule_class)
{
    if (handle->granule_class != ZR_GRANULE_MOVABLE)
        arena->unmovable_bytes -= handle->bytes;
    handle->granule_class = (uint8_t)granule_class;
    if (granule_class != ZR_GRANULE_MOVABLE)
        arena->unmovable_bytes += handle->bytes;
}

size_t zr_unmovable_bytes(const struct zr_arena *arena, struct zr_granule_range where)
{
    size_t granule = arena->granule_bytes, bytes = 0;
    for (size_t at = zr_granules_next(arena->granules, where.first, where.end, true); at < where.end;
         at = zr_granules_next(arena->granules, at + 1, where.end, true))
        bytes += zr_is_movable(zr_range_mapping(arena->range, at * granule)) ? 0 : granule;
    return bytes;
}

/* Changes all granules that the bytes touch, or none if one of them is not mapped. */
static zr_result set_class(struct zr_arena *arena, struct zr_bounds part, enum zr_granule_class granule_class)
{
    size_t granule = arena->granule_bytes, first = part.offset_bytes / granule;
    size_t end = (part.offset_bytes + part.bytes - 1) / granule + 1;
    for (size_t at = first; at < end; at++) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at * granule);
        if (!mapping || !mapping->notified)
            return zr_fail(ZR_ERR_FOREIGN, "arena \"%s\" has no memory mapped at %p", arena->name,
                           (void *)(arena->base + at * granule));
    }
    for (size_t at = first; at < end; at++)
        zr_handle_set_class(arena, zr_range_mapping(arena->range, at * granule)->handle, granule_class);
    return ZR_OK;
}

zr_result zr_arena_set_granule_class(zr_arena *arena, const void *address, size_t bytes,
                                     enum zr_granule_class granule_class)
{
    if (!arena || bytes == 0 || (unsigned)granule_class >= ZR_GRANULE_CLASS_COUNT)
        return zr_fail(
            ZR_ERR_INVALID,
            "zr_arena_set_granule_class: requires an arena, at least one byte and a class below %d, not %d",
            ZR_GRANULE_CLASS_COUNT, (int)granule_class);
    arena = zr_arena_stripe_of(arena, address);
    size_t offset_bytes = (size_t)((const char *)address - arena->base);
    if (offset_bytes >= arena->range->bytes || bytes > arena->range->bytes - offset_bytes)
        return zr_fail(ZR_ERR_FOREIGN, "%zu bytes at %p do not belong to arena \"%s\"", bytes, address,
                       arena->name);
    zr_arena_acquire(arena);
    zr_result result = set_class(arena, (struct zr_bounds){offset_bytes, bytes}, granule_class);
    zr_arena_release(arena);
    return result;
}

zr_result zr_arena_fix(zr_arena *arena, bool fixed)
{
    enum zr_granule_class from = fixed ? ZR_GRANULE_MOVABLE : ZR_GRANULE_FIXED,
                          to = fixed ? ZR_GRANULE_FIXED : ZR_GRANULE_MOVABLE;
    if (!arena || atomic_load(&arena->stripes_count) > 0)
        return zr_fail(ZR_ERR_INVALID, "%s",
                       arena ? "zr_arena_fix: an arena of several stripes is not supported"
                             : "zr_arena_fix: arena is NULL");
    zr_arena_acquire(arena);
    size_t granule = arena->granule_bytes, end = arena->range->bytes / granule;
    for (size_t at = zr_granules_next(arena->granules, 0, end, true); at < end;
         at = zr_granules_next(arena->granules, at + 1, end, true)) {
        struct zr_handle *handle = zr_range_mapping(arena->range, at * granule)->handle;
        if (handle->granule_class == from)
            zr_handle_set_class(arena, handle, to);
    }
    zr_arena_release(arena);
    return ZR_OK;
}
