/* gemm.h: matrix products, divided over the context's threads: fp32 products by oneDNN, and products of
 * two-byte matrices. Private to kernels/cpu. */
#ifndef ZR_KERNELS_GEMM_H
#define ZR_KERNELS_GEMM_H

#include "kernels/cpu/context.h"

/* c[m, n] (+)= op(a) op(b) + bias[n]. a_turned: a is stored [k, m]; b_turned: b is stored [n, k]. Strides are
 * row strides in elements; 0: dense. */
struct zr_gemm {
    size_t m, n, k;
    bool a_turned, b_turned, accumulate;
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, c_stride;
    const float *bias; /* NULL: none */
};

zr_result zr_gemm(struct zr_kernel_context *context, const struct zr_gemm *product);

/* Bytes of the library's state for `threads`, at the start of the workspace / bytes of scratch per thread. */
size_t zr_gemm_state_bytes(unsigned threads);
size_t zr_gemm_scratch_bytes(unsigned threads);

/* Scratch of thread 0, ZR_THREAD_SCRATCH_BYTES per thread, consecutive. Unused while no product of this file
 * runs. */
char *zr_gemm_scratch(const struct zr_kernel_context *context);

zr_result zr_gemm_open(struct zr_kernel_context *context);
void zr_gemm_close(struct zr_kernel_context *context);

/* Tests: makes every product be refused by the library from now on. */
void zr_gemm_refuse(struct zr_kernel_context *context);

/* ---- Two-byte products (product.c) --------------------------------------------------------------------- */

struct zr_panels;

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
