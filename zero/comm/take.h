/* take.h: one way for the rooms under zero/ to take memory from an arena, whose tag limits may refuse it:
 * then the words say for whom. */
#ifndef ZR_TAKE_H
#define ZR_TAKE_H

#include "alloc/base/error.h"
#include "alloc/zr.h"

/* Of a request above a tag limit of the arena (a byte plan, see zr_arena_set_tag_limits()): says which call
 * it was, and what for, "&sums->block" being sums->block. */
static inline zr_result zr_name_call(zr_result result, const char *function, const char *out)
{
    const char *what = out;
    if (__builtin_expect(result != ZR_ERR_TAG_LIMIT, 1))
        return result;
    for (const char *at = out; *at; at++)
        if (*at == '&')
            what = at + 1;
    return zr_fail(result, "%s() for %s: %s", function, what, zr_last_error());
}

/* And of which unit. */
static inline zr_result zr_name_unit(zr_result result, const char *unit)
{
    return result == ZR_ERR_TAG_LIMIT ? zr_fail(result, "unit %s, %s", unit, zr_last_error()) : result;
}

/* count x bytes, overflow checked. A count of 0 gives NULL and ZR_OK. */
static inline zr_result zr_take_block(zr_arena *arena, zr_tag tag, size_t count, size_t bytes, void **out)
{
    size_t total;
    *out = NULL;
    if (count == 0 || bytes == 0)
        return ZR_OK;
    if (__builtin_mul_overflow(count, bytes, &total))
        return zr_fail(ZR_ERR_INVALID, "%zu elements of %zu bytes overflow the address space", count, bytes);
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = total, .tag = tag}, out);
}

/* The same, and the words of what a tag limit refuses name the function around it. */
#define zr_take(arena, tag, count, bytes, out)                                                               \
    zr_name_call(zr_take_block(arena, tag, count, bytes, out), __func__, #out)

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
