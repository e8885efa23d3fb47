/* products.c: cuBLAS and cuBLASLt: handles with their workspaces, and matrix products, which take their time
 * in the stream. A product is m * n * k multiplications and as many additions, `batch` times. See runtime.h.
 *
 * Source: NVIDIA's cuBLAS documentation, for parameters, numbers of enums and sizes of workspaces. */
#include <stdio.h>
#include <stdlib.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

/* cublasStatus_t */
enum { DONE = 0, NO_MEMORY = 3, WRONG = 7 };
/* cudaDataType */
enum { FLOAT_32 = 0, FLOAT_64 = 1, COMPLEX_32 = 4, COMPLEX_64 = 5 };
/* cublasMath_t, cublasComputeType_t */
enum { MATH_TF32 = 3, COMPUTE_TF32 = 77 };

struct handle {
    zr_cu_stream stream;
    int math, device;
    size_t workspace_bytes;
    void *workspace; /* the library's own, which it takes when the handle is created */
};

/* ---- Handles ------------------------------------------------------------------------------------------- */

/* CUBLAS_WORKSPACE_CONFIG=:KIB:COUNT[:KIB:COUNT].., or the size that the documentation gives for the device.
 */
static size_t default_workspace(int device)
{
    const char *text = getenv("CUBLAS_WORKSPACE_CONFIG");
    unsigned long kib, count;
    size_t sum = 0;
    int used;
    bool given = false;
    for (; text && sscanf(text, ":%lu:%lu%n", &kib, &count, &used) == 2; text += used)
        given = true, sum += (size_t)kib * count << 10;
    if (given) /* :0:0 is no workspace */
        return sum;
    switch (emulated_attribute(ZR_CU_CAPABILITY_MAJOR, device)) {
    case 9:
    case 10:
        return (size_t)32 << 20;
    case 12:
        return (size_t)12 << 20;
    default:
        return (size_t)4 << 20;
    }
}

ANSWER int cublasCreate_v2(struct handle **out);
int cublasCreate_v2(struct handle **out)
{
    struct handle *made = calloc(1, sizeof *made);
    if (!made)
        return NO_MEMORY;
    cudaGetDevice(&made->device);
    made->workspace_bytes = default_workspace(made->device);
    const bool refused =
        made->workspace_bytes > 0 && cudaMalloc(&made->workspace, made->workspace_bytes) != ZR_CU_SUCCESS;
    cuRehearseLibrary(made->device, (int64_t)made->workspace_bytes, refused);
    if (refused) {
        free(made);
        return NO_MEMORY;
    }
    *out = made;
    return DONE;
}

ANSWER int cublasDestroy_v2(struct handle *handle);
int cublasDestroy_v2(struct handle *handle)
{
    if (!handle)
        return WRONG;
    if (cudaFree(handle->workspace) == ZR_CU_SUCCESS)
        cuRehearseLibrary(handle->device, -(int64_t)handle->workspace_bytes, false);
    free(handle);
    return DONE;
}

ANSWER int cublasSetStream_v2(struct handle *handle, zr_cu_stream stream);
int cublasSetStream_v2(struct handle *handle, zr_cu_stream stream)
{
    handle->stream = stream;
    return DONE;
}

ANSWER int cublasGetStream_v2(const struct handle *handle, zr_cu_stream *out);
int cublasGetStream_v2(const struct handle *handle, zr_cu_stream *out)
{
    *out = handle->stream;
    return DONE;
}

ANSWER int cublasSetMathMode(struct handle *handle, int math);
int cublasSetMathMode(struct handle *handle, int math)
{
    handle->math = math;
    return DONE;
}

ANSWER int cublasGetMathMode(const struct handle *handle, int *out);
int cublasGetMathMode(const struct handle *handle, int *out)
{
    *out = handle->math;
    return DONE;
}

/* ---- Products ------------------------------------------------------------------------------------------ */

static int bits_of(int type)
{
    switch (type) {
    case FLOAT_32:
    case COMPLEX_32:
        return 32;
    case FLOAT_64:
    case COMPLEX_64:
        return 64;
    case 28: /* of 8 bits: e4m3, e5m2 */
    case 29:
    case 3: /* and integers */
        return 8;
    default:
        return 16;
    }
}

struct product {
    double m, n, k, batch;
    int type;
    bool tf32;
};

static int multiply(zr_cu_stream stream, struct product p)
{
    /* A complex product is four real ones; TF32 runs at half the rate of 16-bit numbers. */
    const double complex = p.type == COMPLEX_32 || p.type == COMPLEX_64 ? 4 : 1;
    const bool tf32 = p.type == FLOAT_32 && p.tf32;
    const double operations = 2 * p.m * p.n * p.k * p.batch * complex * (tf32 ? 2 : 1);
    const double moved =
        (p.m * p.k + p.k * p.n + p.m * p.n) * p.batch * bits_of(p.type) / 8 * (complex > 1 ? 2 : 1);
    return cuRehearseWork(stream, moved, operations, tf32 ? 16 : bits_of(p.type)) == ZR_CU_SUCCESS ? DONE
                                                                                                   : WRONG;
}

/* f(name, the place of m among the parameters, from 0; of the batch's size or 0; of the type of the first
 * matrix, or 0; its type otherwise; of the type of the arithmetic, or 0) */
// clang-format off
#define PRODUCTS(f) \
    f(cublasSgemm_v2, 3, 0, 0, FLOAT_32, 0) \
    f(cublasDgemm_v2, 3, 0, 0, FLOAT_64, 0) \
    f(cublasCgemm_v2, 3, 0, 0, COMPLEX_32, 0) \
    f(cublasZgemm_v2, 3, 0, 0, COMPLEX_64, 0) \
    f(cublasSgemmEx, 3, 0, 8, 0, 0) \
    f(cublasGemmEx, 3, 0, 8, 0, 17) \
    f(cublasSgemmStridedBatched, 3, 17, 0, FLOAT_32, 0) \
    f(cublasDgemmStridedBatched, 3, 17, 0, FLOAT_64, 0) \
    f(cublasCgemmStridedBatched, 3, 17, 0, COMPLEX_32, 0) \
    f(cublasZgemmStridedBatched, 3, 17, 0, COMPLEX_64, 0) \
    f(cublasGemmStridedBatchedEx, 3, 20, 8, 0, 21) \
    f(cublasSgemmBatched, 3, 14, 0, FLOAT_32, 0) \
    f(cublasDgemmBatched, 3, 14, 0, FLOAT_64, 0) \
    f(cublasCgemmBatched, 3, 14, 0, COMPLEX_32, 0) \
    f(cublasZgemmBatched, 3, 14, 0, COMPLEX_64, 0)
// clang-format on

/* Parameters beyond those that the function has are not read. */
#define DEFINE(name, of_m, of_batch, of_type, otherwise, of_arithmetic)                                      \
    ANSWER int name(const struct handle *handle, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,         \
                    uintptr_t f, uintptr_t g, uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k,            \
                    uintptr_t l, uintptr_t m, uintptr_t n, uintptr_t o, uintptr_t p, uintptr_t q,            \
                    uintptr_t r, uintptr_t s, uintptr_t t, uintptr_t u, uintptr_t v);                        \
    int name(const struct handle *handle, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f,   \
             uintptr_t g, uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l, uintptr_t m,      \
             uintptr_t n, uintptr_t o, uintptr_t p, uintptr_t q, uintptr_t r, uintptr_t s, uintptr_t t,      \
             uintptr_t u, uintptr_t v)                                                                       \
    {                                                                                                        \
        const uintptr_t all[] = {0, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v};          \
        return multiply(handle->stream,                                                                      \
                        (struct product){(int)all[of_m], (int)all[(of_m) + 1], (int)all[(of_m) + 2],         \
                                         (of_batch) ? (int)all[of_batch] : 1,                                \
                                         (of_type) ? (int)all[of_type] : (otherwise),                        \
                                         handle->math == MATH_TF32 ||                                        \
                                             ((of_arithmetic) && (int)all[of_arithmetic] == COMPUTE_TF32)}); \
    }
PRODUCTS(DEFINE)

/* ---- cuBLASLt ------------------------------------------------------------------------------------------ */

struct layout {
    int type, batch;
    uint64_t rows, columns;
};

ANSWER int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns,
                                      int64_t stride);
int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    (void)stride;
    *out = malloc(sizeof **out);
    if (*out)
        **out = (struct layout){type, 1, rows, columns};
    return *out ? DONE : NO_MEMORY;
}

ANSWER int cublasLtMatrixLayoutDestroy(struct layout *layout);
int cublasLtMatrixLayoutDestroy(struct layout *layout)
{
    free(layout);
    return DONE;
}

ANSWER int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int which, const void *value,
                                            size_t bytes);
int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int which, const void *value, size_t bytes)
{
    enum { BATCH_COUNT = 5 };
    if (which == BATCH_COUNT && bytes == sizeof layout->batch)
        layout->batch = *(const int *)value;
    return DONE;
}

/* A description of a product: in which numbers it computes. */
struct description {
    int arithmetic;
};

ANSWER int cublasLtMatmulDescCreate(struct description **out, int arithmetic, int scale);
int cublasLtMatmulDescCreate(struct description **out, int arithmetic, int scale)
{
    (void)scale;
    *out = malloc(sizeof **out);
    if (*out)
        **out = (struct description){arithmetic};
    return *out ? DONE : NO_MEMORY;
}

ANSWER int cublasLtMatmulDescDestroy(struct description *description);
int cublasLtMatmulDescDestroy(struct description *description)
{
    free(description);
    return DONE;
}

/* The first matrix has m * k elements, transposed or not. */
ANSWER int cublasLtMatmul(void *handle, const struct description *product, const void *alpha, const void *a,
                          const struct layout *of_a, const void *b, const struct layout *of_b,
                          const void *beta, const void *c, const struct layout *of_c, void *d,
                          const struct layout *of_d, const void *algorithm, void *workspace,
                          size_t workspace_bytes, zr_cu_stream stream);
int cublasLtMatmul(void *handle, const struct description *product, const void *alpha, const void *a,
                   const struct layout *of_a, const void *b, const struct layout *of_b, const void *beta,
                   const void *c, const struct layout *of_c, void *d, const struct layout *of_d,
                   const void *algorithm, void *workspace, size_t workspace_bytes, zr_cu_stream stream)
{
    (void)handle, (void)alpha, (void)a, (void)b, (void)of_b, (void)beta, (void)c, (void)of_c, (void)d;
    (void)algorithm, (void)workspace, (void)workspace_bytes;
    const double m = (double)of_d->rows, elements = (double)of_a->rows * (double)of_a->columns;
    return multiply(stream, (struct product){m, (double)of_d->columns, m > 0 ? elements / m : 0, of_d->batch,
                                             of_a->type, product && product->arithmetic == COMPUTE_TF32});
}
