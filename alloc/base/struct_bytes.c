/* struct_bytes.c: see struct_bytes.h. */
#include "alloc/base/struct_bytes.h"

#include <string.h>

#include "alloc/base/error.h"

zr_result zr_struct_copy(void *own, size_t own_bytes, size_t first_bytes, const void *given, const char *name)
{
    const unsigned char *bytes = given;
    size_t given_bytes = 0;
    memset(own, 0, own_bytes);
    if (!given)
        return ZR_OK;
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes == 0)
        given_bytes = first_bytes;
    if (given_bytes < sizeof given_bytes || given_bytes > PTRDIFF_MAX)
        return zr_fail(ZR_ERR_INVALID,
                       "struct %s: struct_bytes is %zu; set it to the struct's sizeof, or to 0", name,
                       given_bytes);
    for (size_t i = own_bytes; i < given_bytes; i++)
        if (bytes[i] != 0)
            return zr_fail(
                ZR_ERR_INVALID,
                "struct %s of %zu bytes: byte %zu is not 0, and this zr knows only %zu bytes: the program was built against a newer zr, or struct_bytes is wrong",
                name, given_bytes, i, own_bytes);
    memcpy(own, given, given_bytes < own_bytes ? given_bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return ZR_OK;
}
