/* scratch.c: one block per array, from an arena or as private pages. Uses the arena and slab.h. */
#include "defrag/trace/vector.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

/* Header before an array on private pages. */
enum { HEAD_BYTES = 64 };

/* Zeroed. NULL, with a message: no memory. */
static void *take_pages(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        zr_fail(ZR_ERR_HOST_MEMORY, "an array of %zu bytes", bytes);
        return NULL;
    }
    size_t *pages = zr_pages_take_unforked(bytes + HEAD_BYTES);
    if (!pages)
        return NULL;
    *pages = bytes + HEAD_BYTES;
    return (char *)pages + HEAD_BYTES;
}

void *zr_scratch_take(struct zr_scratch *scratch, size_t count, size_t element_bytes)
{
    struct zr_request request = {.tag = ZR_TAG_OTHER};
    void *block = NULL;

    if (scratch->result)
        return NULL;
    if (scratch->count == ZR_SCRATCH_ROOM)
        scratch->result = zr_fail(ZR_ERR_INVALID, "more than %d arrays in one scratch", ZR_SCRATCH_ROOM);
    else if (__builtin_mul_overflow(count ? count : 1, element_bytes, &request.bytes))
        scratch->result =
            zr_fail(ZR_ERR_INVALID, "an array of %zu elements of %zu bytes", count, element_bytes);
    else if (scratch->arena)
        scratch->result = zr_arena_alloc(scratch->arena, &request, &block);
    else
        scratch->result = (block = take_pages(request.bytes)) ? ZR_OK : ZR_ERR_HOST_MEMORY;
    if (scratch->result)
        return NULL;
    if (scratch->arena)
        memset(block, 0, request.bytes);
    scratch->blocks[scratch->count++] = block;
    return block;
}

void zr_scratch_end(struct zr_scratch *scratch)
{
    while (scratch->count > 0) {
        void *block = scratch->blocks[--scratch->count];
        if (scratch->arena)
            zr_arena_free(scratch->arena, block);
        else
            zr_pages_give((char *)block - HEAD_BYTES, *(size_t *)((char *)block - HEAD_BYTES));
    }
}
