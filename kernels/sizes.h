/* sizes.h: saturating arithmetic for workspace sizes, because a plan may have shapes that exceed the address
 * space. Private to kernels/. */
#ifndef ZR_KERNEL_SIZES_H
#define ZR_KERNEL_SIZES_H

#include <stddef.h>
#include <stdint.h>

static inline size_t zr_times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static inline size_t zr_plus(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

/* Rounds up to a multiple of `unit`. */
static inline size_t zr_whole(size_t bytes, size_t unit)
{
    return bytes > SIZE_MAX - unit ? SIZE_MAX : (bytes + unit - 1) / unit * unit;
}

#endif
