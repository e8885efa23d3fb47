/* lend.c: whole granules for ranges other than the arena's: contiguous pools and rings. Uses supply.c,
 * streams.c, stripes.c and executor.h. */
#include "alloc/core/arena.h"
#include "alloc/core/registry.h"
#include "alloc/core/supply.h"
#include "alloc/front/front.h"
#include "alloc/front/stripes.h"
#include "alloc/plan/executor.h"

zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out)
{
    *out = (struct zr_handle_list){0};
    zr_arena_acquire(arena);
    zr_result result = zr_granules_gather(arena, bytes, out);
    /* The last resorts are the same as for a block. */
    while (result == ZR_ERR_MEMORY && arena->asynchronous && zr_streams_wait(arena))
        result = zr_granules_gather(arena, bytes, out);
    if (result == ZR_ERR_MEMORY && arena->executor && zr_executor_give_back(arena) > 0)
        result = zr_granules_gather(arena, bytes, out);
    while (result == ZR_ERR_MEMORY && zr_stripes_fetch(arena, bytes))
        result = zr_granules_gather(arena, bytes, out);
    if (result == ZR_OK) {
        arena->lent_bytes += bytes;
        zr_limit_note_peak(arena);
    }
    zr_arena_release(arena);
    return result;
}

void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    zr_lock_acquire(&arena->lock);
    while ((handle = zr_handle_list_pop(list))) {
        arena->lent_bytes -= handle->bytes;
        zr_granule_cache_put(&arena->granule_cache, handle);
    }
    zr_lock_release(&arena->lock);
}

size_t zr_granules_abandon(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    size_t bytes = 0;
    zr_arena_acquire(arena);
    while ((handle = zr_handle_list_pop(list))) {
        bytes += handle->bytes;
        arena->lent_bytes -= handle->bytes;
        zr_handle_destroy(arena, handle); /* the handle lives until its last mapping is unmapped */
    }
    zr_arena_release(arena);
    return bytes;
}
