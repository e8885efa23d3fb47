/* cublaslt.c: an emulated cuBLASLt. See cublaslt_emulator.h. */
#define _GNU_SOURCE
#include "tests/emulators/cublaslt/cublaslt_emulator.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/driver_launch.h"
#include "kernels/fp8.h"

#define PUBLIC __attribute__((visibility("default")))

#define DECLARE(member, name, type, parameters) PUBLIC type name parameters;
ZR_LT_FUNCTIONS(DECLARE)
#undef DECLARE
#define DECLARE(member, name, suffix, parameters) zr_cu_result name##suffix parameters;
ZR_CUDA_LAUNCHING(DECLARE)
#undef DECLARE
zr_cu_result cuCtxGetDevice(zr_cu_device *device);
zr_cu_result cuDeviceGetAttribute(int *value, zr_cu_attribute which, zr_cu_device device);

enum { VERSION = 130002, ALIGNMENT_BYTES = 16, AUX_LEADING = 8, PARTS = 2, SPLIT_MIN = 64 };
enum { SCHEMES = 7, CHOSEN = 0x5a10 };

struct zr_lt_handle_st {
    zr_cu_kernel multiply, together;
};
struct zr_lt_operation_st {
    unsigned compute_type, scale_type;
    int32_t turned[2];
    uint32_t epilogue;
    const void *bias, *aux, *scales[2];
    int64_t aux_leading;
};
struct zr_lt_layout_st {
    unsigned type;
    uint64_t rows, columns;
    int64_t leading;
};
struct zr_lt_preference_st {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4];
};

PUBLIC struct zr_lt_emulator zr_lt_emulator;
static struct zr_lt_emulator *const control = &zr_lt_emulator;

static zr_lt_status refuse(zr_lt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static zr_lt_status refuse(zr_lt_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(control->report, sizeof control->report, format, list);
    va_end(list);
    return status;
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

PUBLIC size_t cublasLtGetVersion(void)
{
    const char *version = getenv("ZR_EMULATOR_CUBLASLT");
    return version ? strtoul(version, NULL, 10) : VERSION;
}

PUBLIC zr_lt_status cublasLtCreate(zr_lt_handle *out)
{
    static zr_cu_library library;
    static struct zr_lt_handle_st found;
    char line[PATH_MAX + 64];
    Dl_info own;
    if (control->create)
        return refuse(control->create, "cublasLtCreate() is told to fail");
    if (!out)
        return refuse(ZR_LT_INVALID_VALUE, "no place for the handle");
    dladdr(&zr_lt_emulator, &own);
    snprintf(line, sizeof line, "zr emulated image %.*s/cublaslt.image\n",
             (int)(strrchr(own.dli_fname, '/') - own.dli_fname), own.dli_fname);
    if (!library && (cuLibraryLoadData(&library, line, NULL, NULL, 0, NULL, NULL, 0) != ZR_CU_SUCCESS ||
                     cuLibraryGetKernel(&found.multiply, library, "lt_multiply") != ZR_CU_SUCCESS ||
                     cuLibraryGetKernel(&found.together, library, "lt_together") != ZR_CU_SUCCESS))
        return refuse(ZR_LT_NOT_INITIALIZED, "the driver does not load the library's kernels");
    *out = malloc(sizeof **out);
    if (!*out)
        return ZR_LT_ALLOC_FAILED;
    **out = found;
    control->handles++;
    return ZR_LT_SUCCESS;
}

PUBLIC zr_lt_status cublasLtDestroy(zr_lt_handle handle)
{
    if (!handle)
        return refuse(ZR_LT_NOT_INITIALIZED, "no handle");
    control->handles--;
    free(handle);
    return ZR_LT_SUCCESS;
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

#define OBJECT(destroy, kind)                                                                                \
    PUBLIC zr_lt_status destroy(kind object)                                                                 \
    {                                                                                                        \
        if (object)                                                                                          \
            control->objects--;                                                                              \
        free(object);                                                                                        \
        return ZR_LT_SUCCESS;                                                                                \
    }
OBJECT(cublasLtMatmulDescDestroy, zr_lt_operation)
OBJECT(cublasLtMatrixLayoutDestroy, zr_lt_layout)
OBJECT(cublasLtMatmulPreferenceDestroy, zr_lt_preference)

static void *object_of(const void *content, size_t bytes)
{
    void *made = malloc(bytes);
    if (!made)
        abort();
    control->objects++;
    return memcpy(made, content, bytes);
}
#define OBJECT_OF(type, ...) object_of(&(type)__VA_ARGS__, sizeof(type))

PUBLIC zr_lt_status cublasLtMatmulDescCreate(zr_lt_operation *out, unsigned int compute, unsigned int scale)
{
    *out = OBJECT_OF(struct zr_lt_operation_st,
                     {.compute_type = compute, .scale_type = scale, .epilogue = ZR_LT_EPILOGUE_NONE});
    return ZR_LT_SUCCESS;
}

PUBLIC zr_lt_status cublasLtMatrixLayoutCreate(zr_lt_layout *out, unsigned int type, uint64_t rows,
                                               uint64_t columns, int64_t leading)
{
    *out = OBJECT_OF(struct zr_lt_layout_st, {type, rows, columns, leading});
    return ZR_LT_SUCCESS;
}

PUBLIC zr_lt_status cublasLtMatmulPreferenceCreate(zr_lt_preference *out)
{
    *out = OBJECT_OF(struct zr_lt_preference_st, {0, SCHEMES, {256, 256, 256, 256}});
    return ZR_LT_SUCCESS;
}

/* What an attribute lies in. */
struct place {
    void *at;
    size_t bytes;
};

static zr_lt_status put(struct place place, unsigned attribute, const void *value, size_t bytes)
{
    if (!place.at)
        return refuse(ZR_LT_INVALID_VALUE, "there is no attribute %u", attribute);
    if (!value || bytes != place.bytes)
        return refuse(ZR_LT_INVALID_VALUE, "attribute %u has %zu bytes, not %zu", attribute, place.bytes,
                      bytes);
    memcpy(place.at, value, bytes);
    return ZR_LT_SUCCESS;
}

PUBLIC zr_lt_status cublasLtMatmulDescSetAttribute(zr_lt_operation o, unsigned int attribute,
                                                   const void *value, size_t bytes)
{
    struct place place = {NULL, 0};
    if (attribute == ZR_LT_OPERATION_TRANSPOSE_A || attribute == ZR_LT_OPERATION_TRANSPOSE_B)
        place = (struct place){&o->turned[attribute - ZR_LT_OPERATION_TRANSPOSE_A], sizeof *o->turned};
    else if (attribute == ZR_LT_OPERATION_EPILOGUE)
        place = (struct place){&o->epilogue, sizeof o->epilogue};
    else if (attribute == ZR_LT_OPERATION_BIAS)
        place = (struct place){&o->bias, sizeof o->bias};
    else if (attribute == ZR_LT_OPERATION_AUX)
        place = (struct place){&o->aux, sizeof o->aux};
    else if (attribute == ZR_LT_OPERATION_AUX_LEADING)
        place = (struct place){&o->aux_leading, sizeof o->aux_leading};
    else if (attribute == ZR_LT_OPERATION_SCALE_A || attribute == ZR_LT_OPERATION_SCALE_B)
        place = (struct place){&o->scales[attribute - ZR_LT_OPERATION_SCALE_A], sizeof *o->scales};
    return put(place, attribute, value, bytes);
}

PUBLIC zr_lt_status cublasLtMatmulPreferenceSetAttribute(zr_lt_preference p, unsigned int attribute,
                                                         const void *value, size_t bytes)
{
    struct place place = {NULL, 0};
    unsigned matrix = attribute - ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES;
    if (attribute == ZR_LT_PREFERENCE_WORKSPACE_BYTES)
        place = (struct place){&p->workspace_bytes, sizeof p->workspace_bytes};
    else if (attribute == ZR_LT_PREFERENCE_REDUCTIONS)
        place = (struct place){&p->reductions, sizeof p->reductions};
    else if (matrix < 4)
        place = (struct place){&p->alignment[matrix], sizeof *p->alignment};
    return put(place, attribute, value, bytes);
}

/* ---- What products there are ----------------------------------------------------------------------------
 */

struct problem {
    const struct zr_lt_operation_st *o;
    const struct zr_lt_layout_st *a, *b, *c, *d;
};

static bool is_fp8(unsigned type)
{
    return type == ZR_LT_E4M3 || type == ZR_LT_E5M2;
}

static size_t bytes_of(unsigned type)
{
    return is_fp8(type) ? 1 : type == ZR_LT_FLOAT ? 4 : type == ZR_LT_HALF || type == ZR_LT_BFLOAT ? 2 : 0;
}

static uint64_t depth_of(const struct problem *p)
{
    return p->o->turned[0] ? p->a->rows : p->a->columns;
}

static zr_lt_status check_layout(const struct zr_lt_layout_st *l, const char *name)
{
    if (!bytes_of(l->type))
        return refuse(ZR_LT_NOT_SUPPORTED, "%s is of type %u", name, l->type);
    if (l->rows == 0 || l->columns == 0 || l->rows > INT_MAX || l->columns > INT_MAX)
        return refuse(ZR_LT_INVALID_VALUE, "%s of %llu x %llu", name, (unsigned long long)l->rows,
                      (unsigned long long)l->columns);
    if (l->leading < (int64_t)l->rows)
        return refuse(ZR_LT_INVALID_VALUE, "the columns of %s overlap: %lld apart, of %llu rows", name,
                      (long long)l->leading, (unsigned long long)l->rows);
    if ((size_t)l->leading * bytes_of(l->type) % ALIGNMENT_BYTES)
        return refuse(ZR_LT_NOT_SUPPORTED, "the columns of %s do not begin on 16 bytes", name);
    return ZR_LT_SUCCESS;
}

static bool has_bias(uint32_t epilogue)
{
    return epilogue == ZR_LT_EPILOGUE_BIAS || epilogue == ZR_LT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(uint32_t epilogue)
{
    return epilogue == ZR_LT_EPILOGUE_GELU_AUX || epilogue == ZR_LT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == ZR_LT_EPILOGUE_DGELU;
}

/* The choice looks at the pointers' alignment, too. */
static zr_lt_status check_epilogue(const struct problem *p)
{
    const struct zr_lt_operation_st *o = p->o;
    if (o->epilogue != ZR_LT_EPILOGUE_NONE && !has_bias(o->epilogue) && !has_aux(o->epilogue))
        return refuse(ZR_LT_NOT_SUPPORTED, "epilogue %u", o->epilogue);
    if (has_bias(o->epilogue) && (uintptr_t)o->bias % ALIGNMENT_BYTES)
        return refuse(ZR_LT_NOT_SUPPORTED, "the bias is not on 16 bytes");
    if (!has_aux(o->epilogue))
        return ZR_LT_SUCCESS;
    if (!o->aux || (uintptr_t)o->aux % ALIGNMENT_BYTES)
        return refuse(ZR_LT_NOT_SUPPORTED, "AUX is at %p, not on 16 bytes", o->aux);
    if (o->aux_leading % AUX_LEADING || o->aux_leading < (int64_t)p->d->rows)
        return refuse(ZR_LT_INVALID_VALUE, "the columns of AUX are %lld apart, of %llu rows",
                      (long long)o->aux_leading, (unsigned long long)p->d->rows);
    return p->d->type == p->a->type
               ? ZR_LT_SUCCESS
               : refuse(ZR_LT_NOT_SUPPORTED, "epilogue %u of another type than A's", o->epilogue);
}

/* Of which the matrices fit together. */
static zr_lt_status check_fp8(const struct problem *p)
{
    const uint64_t sizes[] = {p->d->rows, p->d->columns, depth_of(p)};
    int major = 0, minor = 0;
    zr_cu_device device = 0;
    if (!is_fp8(p->a->type) || !is_fp8(p->b->type))
        return refuse(p->o->scales[0] || p->o->scales[1] ? ZR_LT_INVALID_VALUE : ZR_LT_NOT_SUPPORTED,
                      "types %u x %u, scaled or not", p->a->type, p->b->type);
    cuCtxGetDevice(&device);
    cuDeviceGetAttribute(&major, (zr_cu_attribute)ZR_CU_CAPABILITY_MAJOR, device);
    cuDeviceGetAttribute(&minor, (zr_cu_attribute)ZR_CU_CAPABILITY_MINOR, device);
    if (10 * major + minor < 89)
        return refuse(ZR_LT_NOT_SUPPORTED, "eight bits on a card of compute capability %d.%d", major, minor);
    if (!p->o->turned[0] || p->o->turned[1])
        return refuse(ZR_LT_NOT_SUPPORTED, "eight bits, and A is not transposed or B is");
    if (p->a->type == ZR_LT_E5M2 && p->b->type == ZR_LT_E5M2)
        return refuse(ZR_LT_NOT_SUPPORTED, "E5M2 by E5M2");
    for (unsigned i = 0; i < 3; i++)
        if (sizes[i] % 16)
            return refuse(ZR_LT_NOT_SUPPORTED, "%c of %llu is no multiple of 16", "MNK"[i],
                          (unsigned long long)sizes[i]);
    return p->d->type == ZR_LT_BFLOAT || (p->d->type == ZR_LT_FLOAT && p->o->epilogue == ZR_LT_EPILOGUE_NONE)
               ? ZR_LT_SUCCESS
               : refuse(ZR_LT_NOT_SUPPORTED, "eight bits to type %u", p->d->type);
}

static zr_lt_status check_problem(const struct problem *p)
{
    const struct zr_lt_layout_st *const layouts[] = {p->a, p->b, p->c, p->d};
    zr_lt_status status = ZR_LT_SUCCESS;
    for (unsigned i = 0; i < 4 && status == ZR_LT_SUCCESS; i++)
        status = layouts[i] ? check_layout(layouts[i], (const char *[]){"A", "B", "C", "D"}[i])
                            : refuse(ZR_LT_INVALID_VALUE, "a layout is missing");
    if (status != ZR_LT_SUCCESS)
        return status;
    uint64_t m = p->o->turned[0] ? p->a->columns : p->a->rows,
             n = p->o->turned[1] ? p->b->rows : p->b->columns;
    if (depth_of(p) != (p->o->turned[1] ? p->b->columns : p->b->rows) || p->d->rows != m ||
        p->d->columns != n || p->c->rows != m || p->c->columns != n)
        return refuse(ZR_LT_INVALID_VALUE, "the matrices do not fit together");
    bool fp8 = is_fp8(p->a->type) || is_fp8(p->b->type) || p->o->scales[0] || p->o->scales[1];
    if (fp8 && (status = check_fp8(p)) != ZR_LT_SUCCESS)
        return status;
    if ((!fp8 && p->a->type != p->b->type) || p->c->type != p->d->type ||
        (!fp8 && p->d->type != p->a->type && p->d->type != 0) || p->o->compute_type != ZR_LT_COMPUTE_FLOAT ||
        p->o->scale_type != ZR_LT_FLOAT)
        return refuse(ZR_LT_NOT_SUPPORTED, "types %u x %u to %u, computed in %u", p->a->type, p->b->type,
                      p->d->type, p->o->compute_type);
    return check_epilogue(p);
}

/* ---- Algorithms ------------------------------------------------------------------------------------------
 */

/* What an algorithm keeps: a mark, what it is for, its parts, its workspace. */
static zr_lt_algorithm algorithm_for(const struct problem *p, unsigned parts)
{
    const struct zr_lt_operation_st *o = p->o;
    uint64_t kind = (uint64_t)p->a->type << 48 | (uint64_t)p->b->type << 40 | (uint64_t)p->d->type << 32 |
                    o->epilogue << 8 | (unsigned)o->turned[0] << 1 | (unsigned)o->turned[1];
    uint64_t bytes = parts > 1 ? parts * p->d->rows * p->d->columns * sizeof(float) : 0;
    return (zr_lt_algorithm){{CHOSEN, kind, p->d->rows << 32 | p->d->columns, depth_of(p), parts, bytes,
                              (uint64_t)p->a->leading << 32 | (uint64_t)p->b->leading,
                              (uint64_t)p->d->leading}};
}

PUBLIC zr_lt_status cublasLtMatmulAlgoGetHeuristic(zr_lt_handle handle, zr_lt_operation operation,
                                                   zr_lt_layout a, zr_lt_layout b, zr_lt_layout c,
                                                   zr_lt_layout d, zr_lt_preference preference, int most,
                                                   zr_lt_choice *out, int *count)
{
    struct problem p = {operation, a, b, c, d};
    if (!handle || !operation || !preference)
        return refuse(ZR_LT_NOT_INITIALIZED, "no handle, operation or preference");
    if (most <= 0 || !out || !count)
        return refuse(ZR_LT_INVALID_VALUE, "no room for an algorithm");
    *count = 0;
    control->choices++;
    if (control->choose == ZR_LT_EMULATOR_NONE)
        return refuse(ZR_LT_SUCCESS, "no algorithm is found");
    if (control->choose)
        return refuse(control->choose, "the choice is told to fail");
    zr_lt_status status = check_problem(&p);
    if (status != ZR_LT_SUCCESS)
        return status;
    for (unsigned i = 0; i < 4; i++)
        if (preference->alignment[i] < ALIGNMENT_BYTES)
            return refuse(ZR_LT_NOT_SUPPORTED, "matrix %u may lie on %u bytes", i, preference->alignment[i]);
    if (operation->epilogue & control->unsupported)
        return refuse(ZR_LT_SUCCESS, "no algorithm is found for epilogue %u", operation->epilogue);
    bool splits = depth_of(&p) >= SPLIT_MIN && preference->reductions & ZR_LT_REDUCTION_IN_FLOATS &&
                  algorithm_for(&p, PARTS).data[5] <= preference->workspace_bytes;
    out[0] = (zr_lt_choice){.algorithm = algorithm_for(&p, splits ? PARTS : 1), .waves_count = 1};
    out[0].workspace_bytes = (size_t)out[0].algorithm.data[5];
    control->unordered += (preference->reductions & ~(uint32_t)ZR_LT_REDUCTION_IN_FLOATS) != 0;
    *count = 1;
    return ZR_LT_SUCCESS;
}

/* ---- Products ------------------------------------------------------------------------------------------ */

static unsigned kind_of(unsigned type)
{
    return type == ZR_LT_E4M3 ? ZR_FP8_E4M3 : type == ZR_LT_E5M2 ? ZR_FP8_E5M2 : ZR_FP8_NONE;
}

static struct zr_numbers numbers_of(const void *at, unsigned type)
{
    return (struct zr_numbers){(void *)(uintptr_t)at, type == ZR_LT_FLOAT  ? ZR_PRECISION_FP32
                                                      : type == ZR_LT_HALF ? ZR_PRECISION_FP16
                                                                           : ZR_PRECISION_BF16};
}

static zr_cu_result queue(zr_cu_kernel kernel, const struct lt_product *product, size_t threads,
                          zr_cu_stream stream)
{
    struct lt_product copy = *product;
    void *arguments[] = {&copy};
    size_t blocks = (threads + LT_THREADS - 1) / LT_THREADS;
    return cuLaunchKernel((zr_cu_function)kernel, blocks < 4096 ? (unsigned)blocks : 4096, 1, 1, LT_THREADS,
                          1, 1, 0, stream, arguments, NULL);
}

static zr_lt_status check_call(const struct problem *p, const zr_lt_algorithm *algorithm,
                               const void *const at[4], float beta, const void *workspace,
                               size_t workspace_bytes)
{
    zr_lt_status status = check_problem(p);
    if (status != ZR_LT_SUCCESS)
        return status;
    if (!algorithm || algorithm->data[0] != CHOSEN)
        return refuse(ZR_LT_NOT_SUPPORTED, "no algorithm of this library");
    zr_lt_algorithm own = algorithm_for(p, (unsigned)algorithm->data[4]);
    if (memcmp(&own, algorithm, sizeof own) != 0)
        return refuse(ZR_LT_INVALID_VALUE, "the algorithm was chosen for another product");
    for (unsigned i = 0; i < 4; i++)
        if (!at[i] || (uintptr_t)at[i] % ALIGNMENT_BYTES)
            return refuse(ZR_LT_INVALID_VALUE, "matrix %c is at %p, not on 16 bytes", "ABCD"[i], at[i]);
    if (has_bias(p->o->epilogue) && !p->o->bias)
        return refuse(ZR_LT_INVALID_VALUE, "there is no bias");
    if (has_aux(p->o->epilogue) && (beta != 0 || p->o->aux == at[3]))
        return refuse(ZR_LT_NOT_SUPPORTED, "epilogue %u with beta, or with AUX in D", p->o->epilogue);
    if (at[2] == at[3] && p->c->leading != p->d->leading)
        return refuse(ZR_LT_INVALID_VALUE, "C is D, and they lie differently");
    if (own.data[5] > workspace_bytes ||
        (own.data[5] && (!workspace || (uintptr_t)workspace % ALIGNMENT_BYTES)))
        return refuse(ZR_LT_INVALID_VALUE,
                      "the algorithm needs %llu bytes of workspace on 16 bytes, and has %zu",
                      (unsigned long long)own.data[5], workspace_bytes);
    return ZR_LT_SUCCESS;
}

PUBLIC zr_lt_status cublasLtMatmul(zr_lt_handle handle, zr_lt_operation o, const void *alpha,
                                   const void *a_at, zr_lt_layout a, const void *b_at, zr_lt_layout b,
                                   const void *beta, const void *c_at, zr_lt_layout c, void *d_at,
                                   zr_lt_layout d, const zr_lt_algorithm *algorithm, void *workspace,
                                   size_t workspace_bytes, zr_cu_stream stream)
{
    if (!handle)
        return refuse(ZR_LT_NOT_INITIALIZED, "no handle");
    if (!o || !alpha || !beta)
        return refuse(ZR_LT_INVALID_VALUE, "no operation, alpha or beta");
    zr_lt_status status =
        check_call(&(struct problem){o, a, b, c, d}, algorithm, (const void *const[]){a_at, b_at, c_at, d_at},
                   *(const float *)beta, workspace, workspace_bytes);
    if (status == ZR_LT_SUCCESS && control->launch)
        status = refuse(control->launch, "the product is told to fail");
    if (status != ZR_LT_SUCCESS)
        return status;
    struct lt_product product = {.m = (unsigned)d->rows,
                                 .n = (unsigned)d->columns,
                                 .k = (unsigned)algorithm->data[3],
                                 .parts = (unsigned)algorithm->data[4],
                                 .a_turned = o->turned[0],
                                 .b_turned = o->turned[1],
                                 .a = numbers_of(a_at, a->type),
                                 .b = numbers_of(b_at, b->type),
                                 .c = numbers_of(c_at, c->type),
                                 .d = numbers_of(d_at, d->type),
                                 .a_leading = (size_t)a->leading,
                                 .b_leading = (size_t)b->leading,
                                 .c_leading = (size_t)d->leading,
                                 .alpha = *(const float *)alpha,
                                 .beta = *(const float *)beta,
                                 .partial = workspace,
                                 .a_kind = kind_of(a->type),
                                 .b_kind = kind_of(b->type),
                                 .a_scale = o->scales[0],
                                 .b_scale = o->scales[1]};
    if (has_bias(o->epilogue))
        product.bias = numbers_of(o->bias, d->type);
    if (has_aux(o->epilogue)) {
        product.aux = numbers_of(o->aux, d->type);
        product.aux_leading = (size_t)o->aux_leading;
        product.backward = o->epilogue == ZR_LT_EPILOGUE_DGELU;
    }
    size_t results = (size_t)product.m * product.n;
    zr_cu_result code = queue(handle->multiply, &product, results * product.parts, stream);
    if (code == ZR_CU_SUCCESS && product.parts > 1)
        code = queue(handle->together, &product, results, stream);
    control->products++;
    control->epilogues += has_aux(o->epilogue);
    control->splits += product.parts > 1;
    return code == ZR_CU_SUCCESS ? ZR_LT_SUCCESS : refuse(ZR_LT_EXECUTION_FAILED, "the driver says %u", code);
}
