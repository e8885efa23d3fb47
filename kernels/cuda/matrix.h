/* matrix.h: matrix products by cuBLASLt, which is loaded at run time; product.cu makes those that it does
 * not. Private to kernels/cuda/. */
#ifndef ZR_CUDA_MATRIX_H
#define ZR_CUDA_MATRIX_H

#include "kernels/cuda/arguments.h"

/* What an open context has of the library. */
struct cuda_matrix;

/* Without the library *out makes no product, and says why. To be closed. Any thread. `card`: the name of the
 * current context's, for the words; copied. ZR_ERR_UNAVAILABLE, and *out NULL: 16 contexts are open. */
zr_result zr_cuda_matrix_open(struct cuda_matrix **out, const char *card);
void zr_cuda_matrix_close(struct cuda_matrix *matrix);
/* Whether the pointer came from open(), whatever it is. */
bool zr_cuda_matrix_is(const void *pointer);

/* "cuBLASLt 13.0.2 on NVIDIA H100 80GB HBM3 (compute capability 9.0)", on which the library's products
 * depend; or what makes the products instead, and why. Until it is closed. */
const char *zr_cuda_matrix_words(const struct cuda_matrix *matrix);

/* Workspace that the library may use for a product, whatever its shape: what NVIDIA recommends for Hopper. */
enum { ZR_CUDA_MATRIX_WORKSPACE = 32 << 20 };

/* Whether this context has it. */
bool zr_cuda_matrix_has_library(const struct cuda_matrix *matrix);

/* What the library does with a product before it stores it, once rounded, in c. */
struct cuda_epilogue {
    enum cuda_epilogue_kind {
        CUDA_EPILOGUE_NONE = 0,
        CUDA_EPILOGUE_RESIDUAL,     /* adds `with`, which is read */
        CUDA_EPILOGUE_GELU,         /* writes it to `with`, and stores GELU of it */
        CUDA_EPILOGUE_GELU_BACKWARD /* multiplies by GELU's slope at `with`, which is read */
    } kind;
    const void *with; /* [m, n], as far from row to row as c */
};

/* Queues the product in the context's stream, with ZR_CUDA_MATRIX_WORKSPACE bytes of scratch on a 64-byte
 * line. Its algorithm depends on shape, types, epilogue, card and the library's version alone. *done false:
 * it is none for the library: small (but in fp8), not aligned, or refused. A refusal counts in
 * context->refusals where there is no epilogue: else the caller asks for the same product without one.
 * ZR_ERR_UNAVAILABLE: it should have been made, and the card fails. One thread at a time, as the context. */
zr_result zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                  const struct cuda_product *product, struct cuda_epilogue epilogue,
                                  void *workspace, bool *done);

#endif
