/* sizes.h: saturating arithmetic for workspace sizes, because a plan may have shapes that exceed the address
 * space; and the size that all tables share. Private to kernels/. */
#ifndef ZR_KERNEL_SIZES_H
#define ZR_KERNEL_SIZES_H

#include "kernels/zr_kernels.h"

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

/* The workspace of orthogonalize(): the sum of squares of x, a second matrix of its shape, and x x^T and its
 * square, or x^T x and its square if that is smaller. Offsets in bytes. */
struct zr_orthogonalize_layout {
    size_t x, gram, square, bytes;
    size_t side; /* of the two squares */
};

static inline struct zr_orthogonalize_layout zr_orthogonalize_layout(const struct zr_orthogonalize *args)
{
    enum { LINE = 64 };
    struct zr_orthogonalize_layout at = {.x = LINE};
    at.side = args->rows < args->columns ? args->rows : args->columns;
    size_t square_bytes = zr_whole(zr_times(zr_times(at.side, at.side), sizeof(float)), LINE);
    at.gram = zr_plus(at.x, zr_whole(zr_times(zr_times(args->rows, args->columns), sizeof(float)), LINE));
    at.square = zr_plus(at.gram, square_bytes);
    at.bytes = zr_plus(at.square, square_bytes);
    return at;
}

static inline size_t zr_orthogonalize_bytes(const struct zr_orthogonalize *args)
{
    return zr_orthogonalize_layout(args).bytes;
}

#endif
