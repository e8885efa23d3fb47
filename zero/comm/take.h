/* take.h: allocation from an arena for the modules under zero/. If a tag limit refuses a request, the
 * message names the caller. */
#ifndef ZR_TAKE_H
#define ZR_TAKE_H

#include "alloc/base/error.h"
#include "alloc/zr.h"

/* If a tag limit (byte plan, see zr_arena_set_tag_limits()) refused a request, adds the calling function
 * and the destination to the message: "&sums->block" becomes sums->block. */
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

/* Adds the unit to the message. */
static inline zr_result zr_name_unit(zr_result result, const char *unit)
{
    return result == ZR_ERR_TAG_LIMIT ? zr_fail(result, "unit %s, %s", unit, zr_last_error()) : result;
}

/* Allocates count x bytes with an overflow check. A count of 0 gives NULL and ZR_OK. */
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

/* zr_take_block(), and the message of a tag limit names the calling function. */
#define zr_take(arena, tag, count, bytes, out)                                                               \
    zr_name_call(zr_take_block(arena, tag, count, bytes, out), __func__, #out)

/* Frees a block of zr_take() and clears the pointer. A refusal by the arena is a bug of the caller. */
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
