/* matrix.h: matrix products by cuBLASLt, which is loaded at run time; product.cu computes the others. Private
 * to kernels/cuda/. */
#ifndef ZR_CUDA_MATRIX_H
#define ZR_CUDA_MATRIX_H

#include "kernels/cuda/arguments.h"

/* The library's state of an open context. */
struct cuda_matrix;

/* Opens the library's state for a context; the caller closes it. Without the library *out computes no
 * products, and zr_cuda_matrix_words() has the reason. Any thread. `card`: the name of the current context's
 * GPU, which is copied. ZR_ERR_UNAVAILABLE, and *out is NULL: 16 contexts are open. */
zr_result zr_cuda_matrix_open(struct cuda_matrix **out, const char *card);
void zr_cuda_matrix_close(struct cuda_matrix *matrix);
/* Whether a pointer, valid or not, came from open(). */
bool zr_cuda_matrix_is(const void *pointer);

/* "cuBLASLt 13.0.2 on NVIDIA H100 80GB HBM3 (compute capability 9.0)", the version and GPU that determine the
 * products' bits; or the replacement and the reason. Valid until closed. */
const char *zr_cuda_matrix_words(const struct cuda_matrix *matrix);

/* Workspace of the library for any product: NVIDIA's recommendation for Hopper. */
enum { ZR_CUDA_MATRIX_WORKSPACE = 32 << 20 };

/* Whether the context has the library. */
bool zr_cuda_matrix_has_library(const struct cuda_matrix *matrix);

/* Operation on the sums before they are rounded and stored in c. */
struct cuda_epilogue {
    enum cuda_epilogue_kind {
        CUDA_EPILOGUE_NONE = 0,
        CUDA_EPILOGUE_RESIDUAL,     /* adds `with` */
        CUDA_EPILOGUE_GELU,         /* writes the sum to `with` and stores its GELU */
        CUDA_EPILOGUE_GELU_BACKWARD /* multiplies by GELU's derivative at `with` */
    } kind;
    const void *with; /* [m, n], with the row stride of c */
};

/* Queues the product in the context's stream; needs ZR_CUDA_MATRIX_WORKSPACE bytes of workspace, aligned to
 * 64 bytes. The algorithm depends only on shape, types, epilogue, GPU and library version. *done false: not
 * computed, because the product is small (unless fp8), unaligned or refused. Refusals without an epilogue are
 * counted in context->refusals; after a refusal with an epilogue the caller repeats the product without it.
 * ZR_ERR_UNAVAILABLE: the GPU failed. One thread at a time per context. */
zr_result zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                  const struct cuda_product *product, struct cuda_epilogue epilogue,
                                  void *workspace, bool *done);

#endif
