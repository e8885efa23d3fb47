/* fp8.h: linear operations in fp8 on a GPU: fp8.c rounds operands into scratch memory with the kernels of
 * fp8.cu, and multiplies them with cuBLASLt. Private to kernels/cuda/. */
#ifndef ZR_CUDA_FP8_H
#define ZR_CUDA_FP8_H

#include "kernels/cuda/arguments.h"
#include "kernels/fp8.h"

/* Bytes of scratch memory, in addition to the other parts of the workspace. Saturates. */
size_t zr_cuda_fp8_bytes(const struct zr_kernel_limits *limits);
/* A GPU by name and compute capability; 0.0: unknown. */
struct cuda_card {
    char name[96];
    int major, minor;
};
/* Checks that the GPU multiplies in fp8. ZR_ERR_UNAVAILABLE, with a message: it does not. */
zr_result zr_cuda_fp8_check(const struct cuda_card *card);
/* Compute a linear operation of a shape that zr_fp8_suits(), as far as the library supports it. Forward sets
 * *done; backward sets dx and dw to NULL if they are computed. The caller computes the remainder. Refused
 * products are counted in context->refusals. */
zr_result zr_cuda_fp8_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args,
                              bool *done);
zr_result zr_cuda_fp8_backward(struct zr_kernel_context *context, struct zr_linear_backward *args);

/* Functions of cuda.c for fp8.c: scratch memory, the kernels that round, and a product by the library, see
 * zr_cuda_matrix_multiply(). */
zr_result zr_cuda_fp8_scratch(const struct zr_kernel_context *context, size_t bytes, void **out);
zr_result zr_cuda_fp8_round(struct zr_kernel_context *context, const struct cuda_fp8 *operand);
zr_result zr_cuda_fp8_multiply(struct zr_kernel_context *context, const struct cuda_product *product,
                               bool *done);

#endif
