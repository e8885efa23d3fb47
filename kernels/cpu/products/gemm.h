/* gemm.h: fp32 matrix products by oneDNN, divided over the context's threads (two-byte products: product.h).
 * Private to kernels/cpu. */
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

#endif
