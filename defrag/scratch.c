/* scratch.c: one arena block per array. Stands on the arena alone. */
#include "defrag/scratch.h"

#include <string.h>

#include "alloc/error.h"

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
    else
        scratch->result = zr_arena_alloc(scratch->arena, &request, &block);
    if (scratch->result)
        return NULL;
    memset(block, 0, request.bytes);
    scratch->blocks[scratch->count++] = block;
    return block;
}

void zr_scratch_end(struct zr_scratch *scratch)
{
    while (scratch->count > 0)
        zr_arena_free(scratch->arena, scratch->blocks[--scratch->count]);
}
