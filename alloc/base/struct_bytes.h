/* struct_bytes.h: option structs of callers that were built against another release. Private to zr. */
#ifndef ZR_STRUCT_BYTES_H
#define ZR_STRUCT_BYTES_H

#include <stddef.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* Copies an option struct of the caller's, which begins with its struct_bytes, into the library's own; what
 * the caller's lacks is 0, and all of it if `given` is NULL. Reads no byte behind what the caller has.
 * ZR_ERR_INVALID, with the struct's name: struct_bytes is no size of it, or a byte that this release does not
 * know is not 0. `first_bytes`: the struct as the first release had it. A field that a later release adds
 * begins behind the sizeof that the struct had, never in its padding, which callers need not clear. */
ZR_PRIVATE_API zr_result zr_struct_copy(void *own, size_t own_bytes, size_t first_bytes, const void *given,
                                        const char *name);

/* zr_struct_copy() of `struct type` into `own`; `last` is the last field of its first release. */
#define ZR_STRUCT_COPY(type, last, own, given)                                                               \
    zr_struct_copy((own), sizeof(struct type),                                                               \
                   offsetof(struct type, last) + sizeof(((struct type *)0)->last), (given), #type)

#endif
