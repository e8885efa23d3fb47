/* matrix.c: matrix products by cuBLASLt. The library stores matrices by columns, zr by rows: the library sees
 * the transposes and computes c^T = b^T a^T.
 *
 * The library chooses the algorithm once per shape, for a fixed alignment and workspace size. The choice
 * depends only on shape, types, epilogue, GPU and library version, so all ranks compute the same bits.
 * Algorithms that split a sum must add the parts in floats and in order, without atomic additions.
 *
 * Epilogues: the residual is beta c, with c separate from d. GELU is applied to the sums before rounding; its
 * input for backward is rounded. Gradients of biases are zr's own sums of columns, because the order of BGRAD
 * epilogues is not documented and they cannot accumulate. */
#define _GNU_SOURCE
#include "kernels/cuda/matrix.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/fp8.h"

enum {
    MATRICES_MAX = 16, /* maximum of open contexts */
    SHAPES_MAX = 64,   /* cached shapes per context; a training step has about 30 */
    ALIGNMENT_BYTES = 16,
    AUX_LEADING = 8 /* AUX's leading dimension must be a multiple */
};
/* Products with fewer multiplications are slower with the library. */
#define PRODUCT_MIN ((uint64_t)64 * 64 * 64)

/* Key of a cached shape: m, n, k, layouts and types. */
struct shape {
    uint64_t key[6];
    bool known, refused;
    zr_lt_operation operation;
    zr_lt_layout a, b, c; /* in the library's order: a is zr's b */
    zr_lt_algorithm algorithm;
};

struct cuda_matrix {
    bool used;           /* lock: loaded.lock */
    zr_lt_handle handle; /* NULL: no library */
    unsigned next;       /* next entry to replace */
    struct shape shapes[SHAPES_MAX];
    char words[192];
};
static struct cuda_matrix matrices[MATRICES_MAX];

/* One per process; never unloaded. */
static struct {
    pthread_mutex_t lock;
    const char *path; /* NULL: the system's search path */
    bool there;
#define MEMBER(member, name, type, parameters) type(*member) parameters;
    struct {
        ZR_LT_FUNCTIONS(MEMBER)
    } lt;
#undef MEMBER
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Opening ------------------------------------------------------------------------------------------- */

void zr_cuda_matrix_library_set(const char *path)
{
    loaded.path = path;
    loaded.there = false;
}

/* lock: loaded.lock */
static bool load(void)
{
#define NAME(member, name, type, parameters) #name,
    static const char *const symbols[] = {ZR_LT_FUNCTIONS(NAME) NULL};
#undef NAME
    const char *names[] = {loaded.path ? loaded.path : "libcublasLt.so.13",
                           loaded.path ? NULL : "libcublasLt.so.12", NULL};
    void *functions[sizeof symbols / sizeof *symbols - 1];
    if (!loaded.there && zr_module_find(names, symbols, functions) == ZR_OK) {
        /* The members are function pointers in the order of the list. */
        _Static_assert(sizeof loaded.lt == sizeof functions, "one pointer for each name");
        memcpy(&loaded.lt, functions, sizeof loaded.lt);
        loaded.there = true;
    }
    return loaded.there;
}

/* lock: loaded.lock */
static void begin(struct cuda_matrix *matrix, const char *card)
{
    zr_lt_status status = ZR_LT_SUCCESS;
    *matrix = (struct cuda_matrix){.used = true};
    if (!load()) {
        snprintf(matrix->words, sizeof matrix->words, "zr's own kernels (%.150s)", zr_last_error());
    } else if ((status = loaded.lt.create(&matrix->handle)) != ZR_LT_SUCCESS) {
        matrix->handle = NULL;
        snprintf(matrix->words, sizeof matrix->words, "zr's own kernels (cuBLASLt does not start: status %u)",
                 status);
    } else {
        size_t version = loaded.lt.version();
        snprintf(matrix->words, sizeof matrix->words, "cuBLASLt %zu.%zu.%zu on %s", version / 10000,
                 version / 100 % 100, version % 100, card);
    }
}

zr_result zr_cuda_matrix_open(struct cuda_matrix **out, const char *card)
{
    *out = NULL;
    pthread_mutex_lock(&loaded.lock);
    for (unsigned i = 0; i < MATRICES_MAX && !*out; i++)
        if (!matrices[i].used)
            *out = &matrices[i];
    if (*out)
        begin(*out, card);
    pthread_mutex_unlock(&loaded.lock);
    return *out ? ZR_OK
                : zr_fail(ZR_ERR_UNAVAILABLE,
                          "a process has at most %d kernel contexts on cards at one time; close one, or use "
                          "another process",
                          MATRICES_MAX);
}

static void forget(struct shape *shape)
{
    if (shape->operation)
        loaded.lt.operation_destroy(shape->operation);
    if (shape->a)
        loaded.lt.layout_destroy(shape->a);
    if (shape->b)
        loaded.lt.layout_destroy(shape->b);
    if (shape->c)
        loaded.lt.layout_destroy(shape->c);
    *shape = (struct shape){.known = false};
}

void zr_cuda_matrix_close(struct cuda_matrix *matrix)
{
    pthread_mutex_lock(&loaded.lock);
    for (unsigned i = 0; i < SHAPES_MAX; i++)
        forget(&matrix->shapes[i]);
    if (matrix->handle)
        loaded.lt.destroy(matrix->handle);
    matrix->handle = NULL;
    matrix->used = false;
    pthread_mutex_unlock(&loaded.lock);
}

bool zr_cuda_matrix_is(const void *pointer)
{
    const struct cuda_matrix *matrix = pointer;
    return matrix && matrix >= matrices && matrix < &matrices[MATRICES_MAX] && matrix->used;
}

bool zr_cuda_matrix_has_library(const struct cuda_matrix *matrix)
{
    return matrix->handle;
}

const char *zr_cuda_matrix_words(const struct cuda_matrix *matrix)
{
    return matrix->words;
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

/* A matrix in the library's view, and whether it is transposed in c^T = b^T a^T. */
struct seen {
    uint64_t rows, columns, leading;
    bool turned;
};

/* Describes rows x columns elements with strides `row` and `column`. False: not supported by the library. */
static bool see(size_t row, size_t column, unsigned rows, unsigned columns, struct seen *out)
{
    *out =
        column == 1 ? (struct seen){columns, rows, row, false} : (struct seen){rows, columns, column, true};
    return (column == 1 || row == 1) && out->leading >= out->rows;
}

static bool aligned(const void *at, uint64_t leading, size_t element_bytes)
{
    return (uintptr_t)at % ALIGNMENT_BYTES == 0 && leading * element_bytes % ALIGNMENT_BYTES == 0;
}

static bool has_aux(struct cuda_epilogue e)
{
    return e.kind == CUDA_EPILOGUE_GELU || e.kind == CUDA_EPILOGUE_GELU_BACKWARD;
}

/* Whether the library computes the product; depends only on the shape if tensors are aligned. */
static bool suits(const struct cuda_product *p, struct cuda_epilogue e, size_t bytes, struct seen *a,
                  struct seen *b)
{
    size_t c_bytes = p->floats ? sizeof(float) : bytes, operand_bytes = p->a_kind ? 1 : bytes;
    bool large = (uint64_t)p->m * p->n >= (PRODUCT_MIN + p->k - 1) / p->k;
    return p->m && p->n && p->k && (large || p->a_kind) && !(p->bias && (p->floats || p->accumulate)) &&
           !(e.kind && (p->floats || p->accumulate)) && see(p->b_row, p->b_column, p->k, p->n, a) &&
           see(p->a_row, p->a_column, p->m, p->k, b) && aligned(p->b, a->leading, operand_bytes) &&
           aligned(p->a, b->leading, operand_bytes) && aligned(p->c, p->c_row, c_bytes) &&
           aligned(p->bias, 0, bytes) && aligned(e.with, p->c_row, c_bytes) &&
           (!has_aux(e) || p->c_row % AUX_LEADING == 0);
}

static uint32_t epilogue_of(const struct cuda_product *p, struct cuda_epilogue e)
{
    uint32_t bias = p->bias ? ZR_LT_EPILOGUE_BIAS : 0;
    return e.kind == CUDA_EPILOGUE_GELU            ? ZR_LT_EPILOGUE_GELU_AUX | bias
           : e.kind == CUDA_EPILOGUE_GELU_BACKWARD ? ZR_LT_EPILOGUE_DGELU
           : bias                                  ? bias
                                                   : ZR_LT_EPILOGUE_NONE;
}

/* The library's choice also depends on the alignment of pointers. */
static zr_lt_status set_operation(struct shape *s, const struct cuda_product *p, struct cuda_epilogue e,
                                  bool turned_a, bool turned_b)
{
    int32_t a = turned_a ? ZR_LT_TRANSPOSED : ZR_LT_AS_IT_IS,
            b = turned_b ? ZR_LT_TRANSPOSED : ZR_LT_AS_IT_IS;
    uint32_t epilogue = epilogue_of(p, e);
    const void *aux = has_aux(e) ? e.with : NULL;
    int64_t aux_leading = aux ? (int64_t)p->c_row : 0;
    const struct {
        unsigned attribute;
        const void *value;
        size_t bytes;
    } settings[] = {{ZR_LT_OPERATION_TRANSPOSE_A, &a, sizeof a},
                    {ZR_LT_OPERATION_TRANSPOSE_B, &b, sizeof b},
                    {ZR_LT_OPERATION_EPILOGUE, &epilogue, sizeof epilogue},
                    {ZR_LT_OPERATION_BIAS, &p->bias, sizeof p->bias},
                    {ZR_LT_OPERATION_AUX, &aux, sizeof aux},
                    {ZR_LT_OPERATION_AUX_LEADING, &aux_leading, sizeof aux_leading}};
    zr_lt_status status = loaded.lt.operation_create(&s->operation, ZR_LT_COMPUTE_FLOAT, ZR_LT_FLOAT);
    for (unsigned i = 0; i < sizeof settings / sizeof *settings && status == ZR_LT_SUCCESS; i++)
        status = loaded.lt.operation_set(s->operation, settings[i].attribute, settings[i].value,
                                         settings[i].bytes);
    return status;
}

static zr_lt_status set_preference(zr_lt_preference preference)
{
    const uint64_t workspace_bytes = ZR_CUDA_MATRIX_WORKSPACE;
    uint32_t reductions = ZR_LT_REDUCTION_IN_FLOATS, alignment = ALIGNMENT_BYTES;
    zr_lt_status status = loaded.lt.preference_set(preference, ZR_LT_PREFERENCE_WORKSPACE_BYTES,
                                                   &workspace_bytes, sizeof workspace_bytes);
    if (status == ZR_LT_SUCCESS)
        status =
            loaded.lt.preference_set(preference, ZR_LT_PREFERENCE_REDUCTIONS, &reductions, sizeof reductions);
    for (unsigned i = 0; i < 4 && status == ZR_LT_SUCCESS; i++) /* a, b, c, d */
        status = loaded.lt.preference_set(preference, ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES + i, &alignment,
                                          sizeof alignment);
    return status;
}

/* Queries the algorithm of a shape whose operation and layouts exist. */
static zr_lt_status choose(struct cuda_matrix *matrix, struct shape *s)
{
    zr_lt_preference preference = NULL;
    zr_lt_choice choice = {.state = ZR_LT_NOT_SUPPORTED};
    int count = 0;
    zr_lt_status status = loaded.lt.preference_create(&preference);
    if (status != ZR_LT_SUCCESS)
        return status;
    status = set_preference(preference);
    if (status == ZR_LT_SUCCESS)
        status = loaded.lt.choose(matrix->handle, s->operation, s->a, s->b, s->c, s->c, preference, 1,
                                  &choice, &count);
    loaded.lt.preference_destroy(preference);
    if (status != ZR_LT_SUCCESS)
        return status;
    s->algorithm = choice.algorithm;
    return count < 1 ? ZR_LT_NOT_SUPPORTED : choice.state;
}

/* Finds or creates the cached shape of a product; a refused shape is cached too. */
static struct shape *shape_of(struct cuda_matrix *matrix, enum zr_precision precision,
                              const struct cuda_product *p, struct cuda_epilogue e, const struct seen *a,
                              const struct seen *b)
{
    static const unsigned types[] = {ZR_LT_FLOAT, ZR_LT_BFLOAT, ZR_LT_HALF},
                          fp8_types[] = {[ZR_FP8_E4M3] = ZR_LT_E4M3, [ZR_FP8_E5M2] = ZR_LT_E5M2};
    const unsigned a_type = p->b_kind ? fp8_types[p->b_kind] : types[precision],
                   b_type = p->a_kind ? fp8_types[p->a_kind] : types[precision];
    const uint64_t kind = (uint64_t)a_type << 24 | (uint64_t)b_type << 16 | (uint64_t)precision << 8 |
                          (uint64_t)e.kind << 4 | (p->bias ? 8 : 0) | (p->floats ? 4 : 0) |
                          (a->turned ? 2 : 0) | (b->turned ? 1 : 0);
    const uint64_t key[6] = {(uint64_t)p->m << 32 | p->n, p->k, kind, a->leading, b->leading, p->c_row};
    for (unsigned i = 0; i < SHAPES_MAX; i++)
        if (matrix->shapes[i].known && memcmp(matrix->shapes[i].key, key, sizeof key) == 0)
            return &matrix->shapes[i];
    struct shape *s = &matrix->shapes[matrix->next++ % SHAPES_MAX];
    forget(s);
    zr_lt_status status = set_operation(s, p, e, a->turned, b->turned);
    if (status == ZR_LT_SUCCESS)
        status = loaded.lt.layout_create(&s->a, a_type, a->rows, a->columns, (int64_t)a->leading);
    if (status == ZR_LT_SUCCESS)
        status = loaded.lt.layout_create(&s->b, b_type, b->rows, b->columns, (int64_t)b->leading);
    if (status == ZR_LT_SUCCESS)
        status = loaded.lt.layout_create(&s->c, p->floats ? ZR_LT_FLOAT : types[precision], p->n, p->m,
                                         (int64_t)p->c_row);
    if (status == ZR_LT_SUCCESS)
        status = choose(matrix, s);
    if (status != ZR_LT_SUCCESS)
        forget(s);
    memcpy(s->key, key, sizeof key);
    s->known = true;
    s->refused = status != ZR_LT_SUCCESS;
    return s;
}

/* ---- Products ------------------------------------------------------------------------------------------ */

static void count_refusal(struct zr_kernel_context *context, const struct cuda_product *p)
{
    if (context->refusals.count++ == 0)
        context->refusals = (struct zr_kernel_refusals){1, p->m, p->n, p->k};
}

/* The library's a is zr's b. */
static zr_lt_status set_scales(struct shape *s, const struct cuda_product *p)
{
    zr_lt_status status =
        loaded.lt.operation_set(s->operation, ZR_LT_OPERATION_SCALE_A, &p->b_scale, sizeof p->b_scale);
    return status == ZR_LT_SUCCESS ? loaded.lt.operation_set(s->operation, ZR_LT_OPERATION_SCALE_B,
                                                             &p->a_scale, sizeof p->a_scale)
                                   : status;
}

zr_result zr_cuda_matrix_multiply(struct zr_kernel_context *context, struct cuda_matrix *matrix,
                                  const struct cuda_product *p, struct cuda_epilogue e, void *workspace,
                                  bool *done)
{
    const bool adds = e.kind == CUDA_EPILOGUE_RESIDUAL;
    const float one = 1, beta = p->accumulate || adds ? 1 : 0;
    struct seen a, b;
    *done = false;
    if (!matrix->handle || !suits(p, e, zr_precision_bytes(context->precision), &a, &b))
        return ZR_OK;
    struct shape *s = shape_of(matrix, context->precision, p, e, &a, &b);
    zr_lt_status status = s->refused ? ZR_LT_NOT_SUPPORTED : ZR_LT_SUCCESS;
    if (status == ZR_LT_SUCCESS && p->bias)
        status = loaded.lt.operation_set(s->operation, ZR_LT_OPERATION_BIAS, &p->bias, sizeof p->bias);
    if (status == ZR_LT_SUCCESS && has_aux(e))
        status = loaded.lt.operation_set(s->operation, ZR_LT_OPERATION_AUX, &e.with, sizeof e.with);
    if (status == ZR_LT_SUCCESS && p->a_kind)
        status = set_scales(s, p);
    if (status == ZR_LT_SUCCESS)
        status = loaded.lt.multiply(matrix->handle, s->operation, &one, p->b, s->a, p->a, s->b, &beta,
                                    adds ? e.with : p->c, s->c, p->c, s->c, &s->algorithm, workspace,
                                    ZR_CUDA_MATRIX_WORKSPACE, (zr_cu_stream)context->stream);
    if (status == ZR_LT_EXECUTION_FAILED)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "cuBLASLt cannot queue a product of [%u, %u] x [%u, %u]: the card fails", p->m, p->k,
                       p->k, p->n);
    *done = status == ZR_LT_SUCCESS;
    if (!*done && e.kind == CUDA_EPILOGUE_NONE)
        count_refusal(context, p);
    return ZR_OK;
}
