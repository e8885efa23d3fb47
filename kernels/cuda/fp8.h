/* fp8.h: linear operations in eight bits on a card: fp8.c rounds operands into scratch by the kernels of
 * fp8.cu and has cuBLASLt multiply them. Private to kernels/cuda/. */
#ifndef ZR_CUDA_FP8_H
#define ZR_CUDA_FP8_H

#include "kernels/cuda/arguments.h"
#include "kernels/fp8.h"

/* Scratch beside the rest of the workspace. Saturates. */
size_t zr_cuda_fp8_bytes(const struct zr_kernel_limits *limits);
/* A card by name and compute capability; 0.0: unknown. */
struct cuda_card {
    char name[96];
    int major, minor;
};
/* Whether the card multiplies in eight bits. ZR_ERR_UNAVAILABLE: no, in words. */
zr_result zr_cuda_fp8_check(const struct cuda_card *card);
/* Makes what it can of a shape that zr_fp8_suits(): *done, or dx and dw of NULL afterwards; the caller makes
 * the rest. What the library refuses counts in context->refusals. */
zr_result zr_cuda_fp8_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args,
                              bool *done);
zr_result zr_cuda_fp8_backward(struct zr_kernel_context *context, struct zr_linear_backward *args);

/* What it has of cuda.c: so many bytes of scratch; the kernels; a product by the library, as
 * zr_cuda_matrix_multiply(). */
zr_result zr_cuda_fp8_room(const struct zr_kernel_context *context, size_t bytes, void **out);
zr_result zr_cuda_fp8_round(struct zr_kernel_context *context, const struct cuda_fp8 *operand);
zr_result zr_cuda_fp8_multiply(struct zr_kernel_context *context, const struct cuda_product *product,
                               bool *done);

#endif
