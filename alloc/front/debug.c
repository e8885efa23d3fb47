/* debug.c: the debug hooks of each block: canaries, poison, tag limits, the trace. Uses core/arena.h. */
#include "alloc/core/arena.h"
#include "alloc/front/front.h"

#include "alloc/base/error.h"
#include "alloc/telemetry/trace.h"
#include "alloc/base/option.h"
#include "alloc/base/poison.h"

/* ---- Canaries ------------------------------------------------------------------------------------------ */

/* The canary's value at an offset. It differs from offset to offset, so that a copied canary does not pass.
 */
static inline unsigned char canary_byte(size_t offset_bytes)
{
    return (unsigned char)(0xa5 ^ (offset_bytes * 31));
}

static void write_canary(struct zr_arena *arena, const struct zr_extent *block)
{
    for (size_t at = block->offset_bytes + zr_extent_requested_bytes(block); at < zr_extent_end(block); at++)
        arena->base[at] = (char)canary_byte(at);
}

/* The number of the first damaged byte after the block, from 1 on; 0: none is damaged. */
static size_t damaged(const struct zr_arena *arena, const struct zr_extent *block)
{
    size_t end = block->offset_bytes + zr_extent_requested_bytes(block);
    for (size_t at = end; at < zr_extent_end(block); at++)
        if ((unsigned char)arena->base[at] != canary_byte(at))
            return at - end + 1;
    return 0;
}

/* ---- Allocated and freed blocks ------------------------------------------------------------------------ */

void zr_debug_new(struct zr_arena *arena, const struct zr_extent *block)
{
    char *address = arena->base + block->offset_bytes;
    if (arena->poison)
        zr_poison_block(address, arena->canary_bytes ? block->bytes : zr_extent_requested_bytes(block),
                        block->bytes);
    if (arena->canary_bytes && arena->visible)
        write_canary(arena, block);
    if (arena->bounded)
        zr_tag_limit_note(arena, block->tag);
    struct zr_block_info info = zr_block_info_of(arena, block);
    zr_trace_event(arena, alloc, &info, zr_extent_stack(arena, block));
}

zr_result zr_debug_freed(struct zr_arena *arena, const struct zr_extent *block)
{
    char *address = arena->base + block->offset_bytes;
    zr_result result = ZR_OK;
    if (arena->canary_bytes && arena->visible) {
        size_t byte = damaged(arena, block);
        if (byte > 0)
            result = zr_fail(
                ZR_ERR_CORRUPT,
                "the program wrote past the end of the block of %zu bytes at %p (%s): byte %zu after it",
                zr_extent_requested_bytes(block), (void *)address, zr_tag_name((zr_tag)block->tag), byte);
    }
    struct zr_block_info info = zr_block_info_of(arena, block);
    zr_trace_event(arena, free, &info);
    if (arena->poison)
        zr_poison_free(address, block->bytes);
    return result;
}
