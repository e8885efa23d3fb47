/* take.h: one way for the rooms under zero/ to take memory from an arena. */
#ifndef ZR_TAKE_H
#define ZR_TAKE_H

#include "alloc/error.h"
#include "alloc/zr.h"

/* count x bytes, overflow checked. A count of 0 gives NULL and ZR_OK. */
static inline zr_result zr_take(zr_arena *arena, zr_tag tag, size_t count, size_t bytes, void **out)
{
    size_t total;
    *out = NULL;
    if (count == 0 || bytes == 0)
        return ZR_OK;
    if (__builtin_mul_overflow(count, bytes, &total))
        return zr_fail(ZR_ERR_INVALID, "%zu elements of %zu bytes overflow the address space", count, bytes);
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = total, .tag = tag}, out);
}

/* Frees what zr_take() gave and forgets it. Only a broken caller makes the arena refuse. */
static inline void zr_drop(zr_arena *arena, void *pointer_to_block)
{
    void **block = pointer_to_block;
    if (*block) {
        zr_result result = zr_arena_free(arena, *block);
        zr_assert(result == ZR_OK);
        *block = NULL;
    }
}

#endif
