/* use.c: blocks that a second stream uses. Uses streams.c and executor.h. */
#include "alloc/base/error.h"
#include "alloc/plan/executor.h"
#include "alloc/core/registry.h"

zr_result zr_block_use(zr_arena *arena, const void *block, uint64_t stream)
{
    bool freed;
    if (!arena || !block)
        return zr_fail(ZR_ERR_INVALID, "zr_block_use: arena or block is NULL");
    zr_result result = zr_backend_stream_name(arena->backend, &stream);
    if (result != ZR_OK)
        return result;
    arena = zr_arena_stripe_of(arena, block);
    size_t offset = (size_t)((const char *)block - arena->base);
    struct zr_extent *extent = NULL;
    zr_lock_acquire(&arena->lock);
    if (offset < arena->range->bytes && offset % ZR_UNIT_BYTES == 0)
        extent = zr_block_exact(arena, offset, &freed);
    if (!extent) {
        result = zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, block);
    } else if (arena->asynchronous && stream != extent->stream && !zr_streams_uses(extent, stream)) {
        result = zr_backend_stream_check(arena->backend, stream);
        if (result == ZR_OK && !zr_streams_use(arena, extent, stream))
            result = ZR_ERR_HOST_MEMORY;
        else if (result == ZR_OK && extent->kind == ZR_EXTENT_PLANNED)
            zr_executor_note_use(extent);
    }
    zr_lock_release(&arena->lock);
    return result;
}
