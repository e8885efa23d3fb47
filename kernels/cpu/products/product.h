/* product.h: products of two-byte matrices. Private to kernels/cpu. */
#ifndef ZR_KERNELS_PRODUCT_H
#define ZR_KERNELS_PRODUCT_H

#include "kernels/cpu/context.h"
#include "kernels/cpu/products/panels.h"

/* c[m, n] (+)= op(a) op(b) + bias[n], a and b of `precision`. a_turned: a is stored [k, m]; b_turned: b is
 * stored [n, k]. c is of the same precision or fp32. Sums are made in floats, in an order that depends only
 * on k, and rounded once. */
struct zr_product {
    size_t m, n, k;
    bool a_turned, b_turned, accumulate;
    enum zr_precision precision;
    const uint16_t *a, *b;
    size_t a_stride, b_stride, c_stride; /* row strides in elements; 0: dense */
    const uint16_t *bias;                /* NULL: none */
    struct zr_numbers c;
};

zr_result zr_product(struct zr_kernel_context *context, const struct zr_product *product);

/* Tests: with a given table. */
zr_result zr_product_by(struct zr_kernel_context *context, const struct zr_product *product,
                        const struct zr_panels *panels);

#endif
