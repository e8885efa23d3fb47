/* share.c: exports blocks to other processes and imports theirs. Uses backend.c. */
#include "alloc/front/share.h"

#include "alloc/core/arena.h"
#include "alloc/core/supply.h"
#include "alloc/core/registry.h"

#include "alloc/base/error.h"
#include "alloc/plan/executor.h"

/* The segments of files under a block; consecutive segments count as one. *count gets the number, even if the
 * array is too small. */
static zr_result export_extent(struct zr_arena *arena, const struct zr_extent *block,
                               struct zr_segment *segments, size_t *count)
{
    size_t capacity = *count, needed = 0;
    struct zr_segment last = {.fd = -1}; /* kept here too, because the array may be full */
    size_t at = zr_range_mapping(arena->range, block->offset_bytes)->offset_bytes;
    while (at < zr_extent_end(block)) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at);
        struct zr_segment segment;
        zr_result result = zr_backend_export(arena->backend, mapping->handle, &segment);
        if (result != ZR_OK)
            return result;
        if (needed > 0 && last.fd == segment.fd && last.offset_bytes + last.bytes == segment.offset_bytes) {
            last.bytes += segment.bytes;
            if (needed <= capacity)
                segments[needed - 1] = last;
        } else {
            last = segment;
            if (needed < capacity)
                segments[needed] = last;
            needed++;
        }
        at += mapping->handle->bytes;
    }
    *count = needed;
    return needed <= capacity
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "the block has %zu segments; the array holds %zu", needed, capacity);
}

static void set_exported(struct zr_arena *arena, const struct zr_extent *block)
{
    for (size_t at = block->offset_bytes; at < zr_extent_end(block);) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at);
        if (zr_is_movable(mapping))
            zr_handle_set_class(arena, mapping->handle, ZR_GRANULE_EXPORTED);
        at = mapping->offset_bytes + mapping->handle->bytes;
    }
}

zr_result zr_block_segments(zr_arena *arena, const void *block, bool exports, struct zr_segment *segments,
                            size_t *count, size_t *lead_bytes)
{
    bool freed;
    if (!arena || !count || !lead_bytes || (!segments && *count > 0))
        return zr_fail(ZR_ERR_INVALID, "zr_block_export: arena, segments, count or lead_bytes is NULL");
    arena = zr_arena_stripe_of(arena, block);
    size_t offset = (size_t)((const char *)block - arena->base);
    struct zr_extent *extent = NULL;
    zr_arena_acquire(arena);
    if (offset < arena->range->bytes && offset % ZR_UNIT_BYTES == 0)
        extent = zr_block_exact(arena, offset, &freed);
    zr_result result;
    if (extent) {
        result = export_extent(arena, extent, segments, count);
        *lead_bytes = offset - zr_range_mapping(arena->range, offset)->offset_bytes;
        if (exports && result == ZR_OK)
            set_exported(arena, extent);
    } else {
        result = zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, block);
    }
    zr_arena_release(arena);
    return result;
}

zr_result zr_block_export(zr_arena *arena, const void *block, struct zr_segment *segments, size_t *count,
                          size_t *lead_bytes)
{
    return zr_block_segments(arena, block, true, segments, count, lead_bytes);
}

zr_result zr_block_export_end(zr_arena *arena, const void *block)
{
    bool freed;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_block_export_end: arena is NULL");
    arena = zr_arena_stripe_of(arena, block);
    size_t offset = (size_t)((const char *)block - arena->base);
    const struct zr_extent *extent = NULL;
    zr_arena_acquire(arena);
    if (offset < arena->range->bytes && offset % ZR_UNIT_BYTES == 0)
        extent = zr_block_exact(arena, offset, &freed);
    for (size_t at = offset; extent && at < zr_extent_end(extent);) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at);
        zr_backend_export_end(arena->backend, mapping->handle);
        at = mapping->offset_bytes + mapping->handle->bytes;
    }
    zr_arena_release(arena);
    return extent ? ZR_OK
                  : zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, block);
}

/* ---- Import -------------------------------------------------------------------------------------------- */

/* Maps one segment at the offset. The handle is destroyed at once and lives for its mapping. */
static zr_result import_segment(struct zr_range *range, size_t offset_bytes, const struct zr_segment *segment)
{
    struct zr_handle *handle;
    zr_result result = zr_backend_import(range->backend, segment, &handle);
    if (result != ZR_OK)
        return result;
    result = zr_backend_map(range, offset_bytes, handle);
    zr_result destroyed = zr_backend_destroy_handle(range->backend, handle);
    zr_assert(destroyed == ZR_OK);
    return result;
}

static zr_result total_bytes(const struct zr_segment *segments, size_t count, size_t *out)
{
    *out = 0;
    for (size_t i = 0; i < count; i++)
        if (__builtin_add_overflow(*out, segments[i].bytes, out))
            return zr_fail(ZR_ERR_INVALID, "the imported segments exceed the address space");
    return ZR_OK;
}

zr_result zr_import(zr_backend *backend, const struct zr_segment *segments, size_t count, void **out)
{
    struct zr_range *range = NULL;
    size_t bytes = 0, done = 0;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_import: out is NULL");
    *out = NULL;
    if (!backend || !segments || count == 0)
        return zr_fail(ZR_ERR_INVALID, "zr_import: requires a backend and at least one segment");
    if (!backend->can.exportable)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the %s backend cannot share memory with other processes",
                       backend->ops->name);
    zr_result result = total_bytes(segments, count, &bytes);
    if (result == ZR_OK)
        result = zr_backend_reserve(backend, bytes, &range);
    for (size_t i = 0; result == ZR_OK && i < count; i++) {
        result = import_segment(range, done, &segments[i]);
        if (result == ZR_OK)
            done += segments[i].bytes;
    }
    if (result == ZR_OK)
        result = zr_backend_set_access(range, (struct zr_bounds){0, bytes});
    if (result == ZR_OK) {
        pthread_mutex_lock(&backend->lock);
        range->import = true;
        pthread_mutex_unlock(&backend->lock);
        *out = range->address;
        return ZR_OK;
    }
    if (done > 0)
        zr_backend_unmap(range, (struct zr_bounds){0, done});
    if (range)
        zr_backend_release(range);
    return result;
}

zr_result zr_import_release(zr_backend *backend, void *imported)
{
    if (!imported)
        return ZR_OK;
    if (!backend)
        return zr_fail(ZR_ERR_INVALID, "zr_import_release: backend is NULL");
    /* Claim the import, so that a second release of it finds none. */
    pthread_mutex_lock(&backend->lock);
    struct zr_range *range = backend->ranges;
    while (range && (range->address != imported || !range->import))
        range = range->next;
    if (range)
        range->import = false;
    pthread_mutex_unlock(&backend->lock);
    if (!range)
        return zr_fail(ZR_ERR_FOREIGN, "%p is not an import of the %s backend", imported, backend->ops->name);
    /* The streams that use the import are unknown. If synchronizing fails, the import stays for another call.
     */
    zr_result result = backend->can.synchronous ? ZR_OK : zr_backend_synchronize(backend);
    if (result == ZR_OK)
        result = zr_backend_unmap(range, (struct zr_bounds){0, range->bytes});
    if (result == ZR_OK)
        result = zr_backend_release(range);
    if (result != ZR_OK) {
        pthread_mutex_lock(&backend->lock);
        range->import = true;
        pthread_mutex_unlock(&backend->lock);
    }
    return result;
}
