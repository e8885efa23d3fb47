/* cuda.c: the CUDA table. Operations queue kernels in the context's stream and return. The images of the
 * kernels are loaded once per process as driver libraries, which serve all devices. Sums have a fixed order,
 * so bits depend neither on timing nor on the number of multiprocessors. */
#define _GNU_SOURCE
#include "kernels/cuda/cuda.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/matrix.h"
#include "kernels/optimizers.h"
#include "kernels/sizes.h"

/* Kernels of norms, by class of row width. */
#define ROW_NORMS(f, suffix)                                                                                 \
    f(layernorm_forward##suffix) f(residual_layernorm##suffix) f(rmsnorm_forward##suffix)                    \
        f(residual_rmsnorm##suffix) f(layernorm_backward##suffix) f(rmsnorm_backward##suffix)
enum { ROW_NORMS_COUNT = 6 };
/* Kernels with one version per precision, and kernels that take the precision as an argument. */
#define PER_PRECISION(f)                                                                                     \
    f(embedding_forward) f(embedding_backward) f(positions_forward) f(positions_backward) f(gelu_forward)    \
        f(gelu_backward) f(swiglu_forward) f(swiglu_backward) f(add) f(dropout) f(rotary) ROW_NORMS(f, )     \
            ROW_NORMS(f, _4) ROW_NORMS(f, _8) ROW_NORMS(f, _16) f(layernorm_backward_columns)                \
                f(rmsnorm_backward_columns) f(bias_backward) f(product) f(attention_forward)                 \
                    f(attention_probabilities) f(attention_backward_keys) f(attention_backward_queries)      \
                        f(cross_entropy) f(gelu_bias_backward) f(columns_together)
/* Kernels for two-byte precisions only: attention on tensor cores, by head width. */
#define NARROW(f)                                                                                            \
    f(attention_forward_64) f(attention_forward_96) f(attention_forward_128) f(attention_row_statistics)     \
        f(attention_backward_keys_64) f(attention_backward_keys_96) f(attention_backward_keys_128)           \
            f(attention_backward_queries_64) f(attention_backward_queries_96)                                \
                f(attention_backward_queries_128)
#define BY_ARGUMENT(f)                                                                                       \
    f(update_adamw) f(update_sgd) f(squares_of_blocks) f(squares_together) f(find_nonfinite_begin)           \
        f(find_nonfinite) f(checksum_begin) f(checksum) f(checksum_end) f(init_normal) f(convert) f(sum)     \
            f(rotary_table) f(softmax_merge) f(weigh_gradients) f(fp8_max) f(fp8_round) f(update_adamw8)     \
                f(block8_read) f(block8_write) f(factor_rows) f(factor_columns) f(factor_move)               \
                    f(factor_mean) f(factor_squares) f(update_factored) f(muon_direction) f(muon_normalize)  \
                        f(muon_polynomial) f(apply_direction) f(lamb_squares) f(update_lamb) f(average)      \
                            f(outer_step) f(pack_onebit) f(pack_int8) f(pack_int4) f(pack_int4_rotated)      \
                                f(pack_mxfp8) f(unpack_onebit) f(unpack_int8) f(unpack_int4)                 \
                                    f(unpack_int4_rotated) f(unpack_mxfp8)

enum kernel {
#define NUMBER(name) KERNEL_##name,
    PER_PRECISION(NUMBER) NARROW(NUMBER) BY_ARGUMENT(NUMBER) KERNELS_COUNT
#undef NUMBER
};
static const char *const names[] = {
#define NAME(name) #name,
    PER_PRECISION(NAME) NARROW(NAME) BY_ARGUMENT(NAME)
#undef NAME
};
enum { FIRST_NARROW = KERNEL_attention_forward_64, FIRST_BY_ARGUMENT = KERNEL_update_adamw };

/* One per process; never unloaded. */
static struct {
    _Atomic int state; /* NOT_LOADED, LOADING, LOADED */
    const void *const *images;
    const void *set[2]; /* replacement for tests */
    const struct zr_cuda_driver *driver;
#define MEMBER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
    ZR_CUDA_LAUNCHING(MEMBER)
#undef MEMBER
    zr_cu_kernel kernels[KERNELS_COUNT][ZR_PRECISION_COUNT];
} library = {.images = zr_cuda_images};
enum { NOT_LOADED, LOADING, LOADED };

/* ---- Loading ------------------------------------------------------------------------------------------- */

void zr_cuda_kernels_image_set(const void *image)
{
    library.set[0] = image;
    library.images = library.set;
}

static zr_result find_calls(void)
{
    zr_result result = zr_cuda_driver_get(&library.driver);
#define FIND(member, name, suffix, parameters)                                                               \
    if (result == ZR_OK)                                                                                     \
        result = zr_cuda_driver_find(#name #suffix, (void **)&library.member);
    ZR_CUDA_LAUNCHING(FIND)
#undef FIND
    return result == ZR_OK ? zr_cuda_streams_find() : result;
}

/* Searches all images. */
static zr_result find_kernel(const zr_cu_library *loaded, unsigned count, unsigned which, unsigned precision)
{
    char name[64];
    zr_cu_result code = ZR_CU_NO_BINARY;
    snprintf(name, sizeof name, which < FIRST_BY_ARGUMENT ? "%s_%s" : "%s", names[which],
             zr_precision_name((enum zr_precision)precision));
    for (unsigned l = 0; l < count && code != ZR_CU_SUCCESS; l++)
        code = library.library_kernel(&library.kernels[which][precision], loaded[l], name);
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "the kernel %s", name);
}

enum { IMAGES_MAX = 32 };

static zr_result find_kernels(void)
{
    zr_cu_library loaded[IMAGES_MAX];
    unsigned count = 0;
    zr_result result = ZR_OK;
    for (; library.images[count] && count < IMAGES_MAX && result == ZR_OK; count++) {
        zr_cu_result code =
            library.library_load(&loaded[count], library.images[count], NULL, NULL, 0, NULL, NULL, 0);
        if (code == ZR_CU_SUCCESS)
            continue;
        result = zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "the images of zr's kernels");
        break;
    }
    for (unsigned i = 0; i < KERNELS_COUNT && result == ZR_OK; i++)
        for (unsigned p = 0; p < ZR_PRECISION_COUNT && result == ZR_OK; p++)
            if (p != ZR_PRECISION_FP32 || i < FIRST_NARROW || i >= FIRST_BY_ARGUMENT)
                result = find_kernel(loaded, count, i, p);
    while (result != ZR_OK && count > 0)
        library.library_unload(loaded[--count]);
    return result;
}

static zr_result load(void)
{
    int state = NOT_LOADED;
    while (!atomic_compare_exchange_weak(&library.state, &state, LOADING)) {
        if (state == LOADED)
            return ZR_OK;
        state = NOT_LOADED;
    }
    zr_result result = ZR_OK;
    if (!library.images[0])
        result = zr_fail(
            ZR_ERR_UNAVAILABLE,
            "this build has no GPU kernels: nvcc was not found; install the CUDA toolkit or set CUDA_HOME, and build "
            "again");
    if (result == ZR_OK)
        result = find_calls();
    if (result == ZR_OK)
        result = find_kernels();
    atomic_store(&library.state, result == ZR_OK ? LOADED : NOT_LOADED);
    return result;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

/* Workspace: partial sums of squares, then partial sums of columns or the matrix library's workspace. The
 * division of sums, and so their bits, depend on the size, which has two values: contexts with fewer than
 * NARROW channels do not use the library. */
enum {
    NARROW = 16,
    SQUARES_BYTES = CUDA_SQUARES_BLOCKS * sizeof(double),
    NARROW_BYTES = SQUARES_BYTES + (64 << 10),
    WORKSPACE_BYTES = SQUARES_BYTES + ZR_CUDA_MATRIX_WORKSPACE
};

static size_t workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa)
{
    size_t fp8_bytes = zr_cuda_fp8_bytes(limits);
    (void)isa;
    if (fp8_bytes)
        return zr_plus(WORKSPACE_BYTES, fp8_bytes);
    return limits->channels < NARROW ? NARROW_BYTES : WORKSPACE_BYTES;
}

/* Refuses two-byte precisions without cuBLASLt, because zr's own products do not use tensor cores. */
static zr_result check_products(const struct zr_kernel_context *context)
{
    if (context->fp8 && !zr_cuda_matrix_has_library(context->library))
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "fp8 requires cuBLASLt, and this context has %s; run `pip install nvidia-cublas`, add the folder of "
            "libcublasLt.so.13 to LD_LIBRARY_PATH, or use bf16",
            zr_cuda_matrix_words(context->library));
    if (context->precision == ZR_PRECISION_FP32 || zr_cuda_matrix_has_library(context->library) ||
        zr_option_get(ZR_OPTION_PRODUCTS) == 1)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "%s on a GPU requires cuBLASLt, and this context has %s; run `pip install nvidia-cublas`, add the folder of "
        "libcublasLt.so.13 to LD_LIBRARY_PATH, or accept slow products with ZR_CONF=products:any",
        zr_precision_name(context->precision), zr_cuda_matrix_words(context->library));
}

/* The GPU of the current context. It is no failure if the driver does not report its name. */
static struct cuda_card name_card(void)
{
    zr_cu_result (*context_device)(zr_cu_device * device);
    zr_cu_result (*device_name)(char *name, int bytes, zr_cu_device device);
    zr_cu_device device;
    struct cuda_card card = {"", 0, 0};
    bool known = zr_cuda_driver_find("cuCtxGetDevice", (void **)&context_device) == ZR_OK &&
                 zr_cuda_driver_find("cuDeviceGetName", (void **)&device_name) == ZR_OK &&
                 context_device(&device) == ZR_CU_SUCCESS &&
                 device_name(card.name, (int)sizeof card.name, device) == ZR_CU_SUCCESS;
    if (!known)
        return (struct cuda_card){"an unknown card", 0, 0};
    library.driver->device_attribute(&card.major, (zr_cu_attribute)ZR_CU_CAPABILITY_MAJOR, device);
    library.driver->device_attribute(&card.minor, (zr_cu_attribute)ZR_CU_CAPABILITY_MINOR, device);
    return card;
}

static zr_result open_library(struct zr_kernel_context *context)
{
    const struct cuda_card card = name_card();
    char words[sizeof card.name + 64];
    struct cuda_matrix *matrix = NULL;
    zr_result result = context->fp8 ? zr_cuda_fp8_check(&card) : ZR_OK;
    snprintf(words, sizeof words, "%s (compute capability %d.%d)", card.name, card.major, card.minor);
    if (result == ZR_OK)
        result = zr_cuda_matrix_open(&matrix, words);
    context->library = matrix;
    return result == ZR_OK ? check_products(context) : result;
}

static void close(struct zr_kernel_context *context)
{
    if (zr_cuda_matrix_is(context->library))
        zr_cuda_matrix_close(context->library);
    context->library = NULL;
}

static zr_result open(struct zr_kernel_context *context)
{
    context->library = NULL;
    context->refusals = (struct zr_kernel_refusals){0};
    if ((unsigned)context->precision >= ZR_PRECISION_COUNT)
        return zr_fail(ZR_ERR_INVALID, "unknown precision %d; use fp32, bf16 or fp16",
                       (int)context->precision);
    if (context->fp8 && context->precision != ZR_PRECISION_BF16)
        return zr_fail(ZR_ERR_INVALID, "fp8 requires bf16 tensors, and the precision is %s",
                       zr_precision_name(context->precision));
    if (context->workspace &&
        ((uintptr_t)context->workspace % 64 != 0 || context->workspace_bytes < NARROW_BYTES))
        return zr_fail(
            ZR_ERR_INVALID,
            "the workspace of %zu bytes is too small or not aligned to 64 bytes; see workspace_bytes()",
            context->workspace_bytes);
    zr_result result = load();
    if (result == ZR_OK)
        result = open_library(context);
    if (result != ZR_OK)
        close(context);
    return result;
}

static const char *products(const struct zr_kernel_context *context)
{
    return zr_cuda_matrix_is(context->library) ? zr_cuda_matrix_words(context->library) : "";
}

/* ---- Launching ----------------------------------------------------------------------------------------- */

struct grid {
    size_t x, y, z, shared_bytes;
};

/* Larger shared memory must be requested per device. */
enum { SHARED_DEFAULT_BYTES = 48 << 10 };

static zr_cu_result request_shared(zr_cu_kernel kernel, size_t bytes)
{
    zr_cu_function function;
    if (bytes <= SHARED_DEFAULT_BYTES)
        return ZR_CU_SUCCESS;
    zr_cu_result code = library.kernel_function(&function, kernel);
    return code == ZR_CU_SUCCESS
               ? library.function_set(function, ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX, (int)bytes)
               : code;
}

static zr_result must_be_open(const struct zr_kernel_context *context)
{
    return context && zr_cuda_matrix_is(context->library)
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "a kernel was called with a context that is not open");
}

/* Launches the kernel of the context's precision with one argument. A grid with x 0 launches nothing; y and z
 * 0 mean 1. */
static zr_result launch_with(const struct zr_kernel_context *context, enum kernel which, struct grid grid,
                             unsigned threads, const void *argument)
{
    void *arguments[] = {(void *)(uintptr_t)argument};
    if (must_be_open(context) != ZR_OK)
        return ZR_ERR_INVALID;
    if (grid.x == 0)
        return ZR_OK;
    grid.y = grid.y ? grid.y : 1;
    grid.z = grid.z ? grid.z : 1;
    if (grid.x > INT_MAX || grid.y > USHRT_MAX || grid.z > USHRT_MAX)
        return zr_fail(ZR_ERR_INVALID, "%s: %zu x %zu x %zu blocks exceed the size of a grid", names[which],
                       grid.x, grid.y, grid.z);
    zr_cu_kernel kernel = library.kernels[which][context->precision];
    zr_cu_result code = request_shared(kernel, grid.shared_bytes);
    if (code == ZR_CU_SUCCESS)
        code = library.launch_kernel((zr_cu_function)kernel, (unsigned)grid.x, (unsigned)grid.y,
                                     (unsigned)grid.z, threads, 1, 1, (unsigned)grid.shared_bytes,
                                     (zr_cu_stream)context->stream, arguments, NULL);
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_INVALID, "to launch %s", names[which]);
}

static zr_result launch(const struct zr_kernel_context *context, enum kernel which, struct grid grid,
                        const void *argument)
{
    return launch_with(context, which, grid, CUDA_THREADS, argument);
}

enum { WARP_LANES = 32 };

static size_t parts(size_t n, size_t each)
{
    return n / each + (n % each != 0);
}

/* Number of blocks of a grid-stride loop. */
static struct grid over(size_t n)
{
    const size_t max = 1 << 14;
    size_t blocks = parts(n, CUDA_THREADS);
    return (struct grid){.x = blocks < max ? blocks : max};
}

/* A thread handles 16 bytes of the widest tensor at a time. */
static struct grid over_packs(enum zr_precision widest, size_t n)
{
    return over(parts(n, CUDA_PACK_BYTES / zr_precision_bytes(widest)));
}

/* Defines an operation that is a single kernel with its name and struct. */
#define ONE(name, how_many)                                                                                  \
    static zr_result name(struct zr_kernel_context *context, const struct zr_##name *args)                   \
    {                                                                                                        \
        return launch(context, KERNEL_##name, how_many, args);                                               \
    }
#define ROWS(rows)    ((struct grid){.x = (rows)})
#define BY_WARP(rows) ((struct grid){.x = parts(rows, CUDA_WARPS)})

ONE(embedding_forward, ROWS(args->rows))
ONE(embedding_backward,
    ((struct grid){.x = args->w_rows, .y = parts(args->channels, CUDA_EMBEDDING_CHANNELS)}))
ONE(positions_forward, ROWS(args->rows))
ONE(positions_backward, ROWS(args->w_rows))
ONE(rotary_table, ROWS(args->width / 2))
ONE(rotary, ROWS(args->rows))
ONE(gelu_forward, over_packs(context->precision, args->n))
ONE(gelu_backward, over_packs(context->precision, args->n))
ONE(swiglu_forward, over_packs(context->precision, args->n))
ONE(swiglu_backward, over_packs(context->precision, args->n))
ONE(add, over_packs(context->precision, args->n))
ONE(dropout, over(args->rows *parts(args->columns, 4)))
ONE(cross_entropy, ROWS(args->rows))
ONE(softmax_merge, over(args->rows))
ONE(init_normal, over(args->n))
ONE(convert, over_packs(ZR_PRECISION_FP32, args->n))

/* ---- Norms --------------------------------------------------------------------------------------------- */

/* Selects the kernel for rows of n elements: one that keeps rows in registers if all tensors (addresses
 * or-ed) and rows are aligned to 16 bytes and rows are not too wide. All kernels have the same bits. */
static enum kernel for_rows(const struct zr_kernel_context *context, enum kernel any, size_t n,
                            uintptr_t addresses)
{
    static const size_t packs_max[] = {4, 8, CUDA_NORM_PACKS};
    size_t bytes = must_be_open(context) == ZR_OK ? n * zr_precision_bytes(context->precision) : 0,
           packs = parts(bytes, CUDA_PACK_BYTES * WARP_LANES);
    for (unsigned i = 0; (addresses | bytes) % CUDA_PACK_BYTES == 0 && i < 3; i++)
        if (packs <= packs_max[i])
            return (enum kernel)(any + (i + 1) * ROW_NORMS_COUNT);
    return any;
}

#define ADDRESS(pointer) ((uintptr_t)(pointer))

static uintptr_t layernorm_addresses(const struct zr_layernorm_forward *norm)
{
    return ADDRESS(norm->w) | ADDRESS(norm->b) | ADDRESS(norm->y);
}

static zr_result layernorm_forward(struct zr_kernel_context *context, const struct zr_layernorm_forward *args)
{
    enum kernel kernel = for_rows(context, KERNEL_layernorm_forward, args->shape.channels,
                                  ADDRESS(args->x) | layernorm_addresses(args));
    return launch(context, kernel, BY_WARP(args->shape.rows), args);
}

static zr_result residual_layernorm(struct zr_kernel_context *context,
                                    const struct zr_residual_layernorm *args)
{
    enum kernel kernel =
        for_rows(context, KERNEL_residual_layernorm, args->norm.shape.channels,
                 ADDRESS(args->a) | ADDRESS(args->b) | ADDRESS(args->sum) | layernorm_addresses(&args->norm));
    return launch(context, kernel, BY_WARP(args->norm.shape.rows), args);
}

/* Bytes between heads inside wider rows, in place of an address. */
static uintptr_t strides_of(const struct zr_kernel_context *context, const struct zr_norm_heads *heads)
{
    return heads->heads ? (heads->x_stride | heads->y_stride) * zr_precision_bytes(context->precision) : 0;
}

static zr_result rmsnorm_forward(struct zr_kernel_context *context, const struct zr_rmsnorm_forward *args)
{
    enum kernel kernel =
        for_rows(context, KERNEL_rmsnorm_forward, args->channels,
                 ADDRESS(args->x) | ADDRESS(args->w) | ADDRESS(args->y) | strides_of(context, &args->heads));
    return launch(context, kernel, BY_WARP(args->rows), args);
}

static zr_result residual_rmsnorm(struct zr_kernel_context *context, const struct zr_residual_rmsnorm *args)
{
    enum kernel kernel = for_rows(context, KERNEL_residual_rmsnorm, args->norm.channels,
                                  ADDRESS(args->a) | ADDRESS(args->b) | ADDRESS(args->sum) |
                                      ADDRESS(args->norm.w) | ADDRESS(args->norm.y));
    return launch(context, kernel, BY_WARP(args->norm.rows), args);
}

/* ---- Columns ------------------------------------------------------------------------------------------- */

/* Workspace after the sums of squares. */
static zr_result take_workspace(const struct zr_kernel_context *context, void **out)
{
    zr_result result = must_be_open(context);
    if (result == ZR_OK && !context->workspace)
        return zr_fail(ZR_ERR_INVALID, "a product or a sum of columns requires a context with a workspace");
    *out = result == ZR_OK ? (char *)context->workspace + SQUARES_BYTES : NULL;
    return result;
}

/* Sums over rows, `sums` per column. The division of rows depends on the shape only. */
static zr_result sum_columns(struct zr_kernel_context *context, enum kernel which, struct cuda_columns a)
{
    const size_t bytes = zr_precision_bytes(context->precision), pack = 16 / bytes, sums = a.sums[1] ? 2 : 1;
    const uintptr_t addresses =
        (uintptr_t)a.x | (uintptr_t)a.dy | (uintptr_t)a.dx | a.stride * bytes | strides_of(context, &a.heads);
    size_t wanted = parts(a.rows, CUDA_COLUMN_ROWS);
    void *workspace = NULL;
    zr_result result = take_workspace(context, &workspace);
    if (result != ZR_OK)
        return result;
    const size_t room_bytes = context->workspace_bytes < WORKSPACE_BYTES ? NARROW_BYTES : WORKSPACE_BYTES;
    const size_t room = (room_bytes - SQUARES_BYTES) / sizeof(float) / sums / (a.columns ? a.columns : 1);
    const size_t max = room < CUDA_COLUMN_PARTS ? room : CUDA_COLUMN_PARTS;
    wanted = wanted > max ? max : wanted;
    a.part_rows = wanted > 1 ? parts(a.rows, wanted) : a.rows;
    a.parts = wanted > 1 ? (unsigned)parts(a.rows, a.part_rows) : 1;
    a.width = addresses % 16 == 0 ? (unsigned)pack : 1;
    a.partial = workspace;
    result =
        launch(context, which, (struct grid){.x = parts(a.columns, (size_t)32 * a.width), .y = a.parts}, &a);
    return result == ZR_OK && a.parts > 1
               ? launch(context, KERNEL_columns_together,
                        (struct grid){.x = parts(a.columns, CUDA_COLUMNS), .y = sums}, &a)
               : result;
}

static zr_result gelu_bias_backward(struct zr_kernel_context *context,
                                    const struct zr_gelu_bias_backward *args)
{
    return sum_columns(context, KERNEL_gelu_bias_backward,
                       (struct cuda_columns){.rows = args->rows,
                                             .columns = args->columns,
                                             .stride = args->columns,
                                             .x = args->x,
                                             .dy = args->dy,
                                             .dx = args->dx,
                                             .sums = {args->db},
                                             .accumulate = args->accumulate});
}

/* Computes the weights' gradients first, because dx may overwrite their inputs. */
static zr_result layernorm_backward(struct zr_kernel_context *context,
                                    const struct zr_layernorm_backward *args)
{
    enum kernel kernel =
        for_rows(context, KERNEL_layernorm_backward, args->shape.channels,
                 ADDRESS(args->x) | ADDRESS(args->w) | ADDRESS(args->dy) | ADDRESS(args->dx));
    zr_result result = ZR_OK;
    if (!args->dw != !args->db)
        return zr_fail(ZR_ERR_INVALID, "a GPU computes the gradients of a norm's weight and bias together; "
                                       "freeze both or none");
    if (args->dw)
        result = sum_columns(context, KERNEL_layernorm_backward_columns,
                             (struct cuda_columns){.rows = args->shape.rows,
                                                   .columns = args->shape.channels,
                                                   .stride = args->shape.channels,
                                                   .x = args->x,
                                                   .dy = args->dy,
                                                   .mean = args->mean,
                                                   .rstd = args->rstd,
                                                   .sums = {args->dw, args->db},
                                                   .accumulate = args->accumulate});
    return result == ZR_OK && args->dx ? launch(context, kernel, BY_WARP(args->shape.rows), args) : result;
}

static zr_result rmsnorm_backward(struct zr_kernel_context *context, const struct zr_rmsnorm_backward *args)
{
    uintptr_t strides = strides_of(context, &args->heads);
    enum kernel kernel =
        for_rows(context, KERNEL_rmsnorm_backward, args->channels,
                 ADDRESS(args->x) | ADDRESS(args->w) | ADDRESS(args->dy) | ADDRESS(args->dx) | strides);
    zr_result result = ZR_OK;
    if (result == ZR_OK && args->dw)
        result = sum_columns(context, KERNEL_rmsnorm_backward_columns,
                             (struct cuda_columns){.rows = args->rows,
                                                   .columns = args->channels,
                                                   .stride = args->channels,
                                                   .x = args->x,
                                                   .dy = args->dy,
                                                   .rstd = args->rstd,
                                                   .heads = args->heads,
                                                   .sums = {args->dw},
                                                   .accumulate = args->accumulate});
    return result == ZR_OK && args->dx ? launch(context, kernel, BY_WARP(args->rows), args) : result;
}

/* ---- Linear -------------------------------------------------------------------------------------------- */

/* Computes the product with cuBLASLt if possible. */
static zr_result multiply_by_library(struct zr_kernel_context *context, const struct cuda_product *p,
                                     struct cuda_epilogue epilogue, bool *done)
{
    void *workspace = NULL;
    zr_result result = take_workspace(context, &workspace);
    *done = false;
    return result == ZR_OK && context->workspace_bytes >= WORKSPACE_BYTES
               ? zr_cuda_matrix_multiply(context, context->library, p, epilogue, workspace, done)
               : result;
}

static zr_result multiply(struct zr_kernel_context *context, const struct cuda_product *p)
{
    struct grid grid = {.x = p->m ? parts(p->n, CUDA_PRODUCT_TILE) : 0, .y = parts(p->m, CUDA_PRODUCT_TILE)};
    bool done;
    zr_result result = multiply_by_library(context, p, (struct cuda_epilogue){CUDA_EPILOGUE_NONE}, &done);
    return result != ZR_OK || done ? result : launch(context, KERNEL_product, grid, p);
}

zr_result zr_cuda_fp8_scratch(const struct zr_kernel_context *context, size_t bytes, void **out)
{
    zr_result result = take_workspace(context, out);
    if (result == ZR_OK &&
        (context->workspace_bytes < WORKSPACE_BYTES || bytes > context->workspace_bytes - WORKSPACE_BYTES))
        result = zr_fail(
            ZR_ERR_INVALID,
            "an fp8 product needs %zu bytes of workspace and has %zu; the problem exceeds the limits passed to "
            "workspace_bytes()",
            bytes, context->workspace_bytes);
    if (result == ZR_OK)
        *out = (char *)context->workspace + WORKSPACE_BYTES;
    return result;
}

zr_result zr_cuda_fp8_round(struct zr_kernel_context *context, const struct cuda_fp8 *operand)
{
    struct grid tiles = {.x = parts(operand->columns, CUDA_FP8_TILE),
                         .y = parts(operand->rows, CUDA_FP8_TILE)};
    zr_cu_result code = library.driver->fill((zr_cu_address)(uintptr_t)operand->most, 0xff,
                                             sizeof *operand->most, (zr_cu_stream)context->stream);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_INVALID, "to begin a search for the largest number");
    zr_result result =
        launch(context, KERNEL_fp8_max, over(parts(operand->rows * operand->columns, 8)), operand);
    return result == ZR_OK ? launch(context, KERNEL_fp8_round, tiles, operand) : result;
}

zr_result zr_cuda_fp8_multiply(struct zr_kernel_context *context, const struct cuda_product *product,
                               bool *done)
{
    return multiply_by_library(context, product, (struct cuda_epilogue){CUDA_EPILOGUE_NONE}, done);
}

/* Sizes and strides of a linear operation as a product. */
static zr_result sizes_of(const struct zr_linear *s, struct cuda_product *out)
{
    if (s->rows > INT_MAX || s->in > INT_MAX || s->out > INT_MAX)
        return zr_fail(ZR_ERR_INVALID, "a product of %zu rows, %zu inputs, %zu outputs is too large", s->rows,
                       s->in, s->out);
    *out = (struct cuda_product){.m = (unsigned)s->rows, .n = (unsigned)s->out, .k = (unsigned)s->in};
    return ZR_OK;
}

/* fp8 products have no epilogue: the operation after them is separate. */
static bool in_fp8(const struct zr_linear *s)
{
    return s->fp8 && zr_fp8_suits(s);
}

static zr_result forward_product(const struct zr_linear_forward *args, struct cuda_product *p)
{
    const struct zr_linear *s = &args->shape;
    zr_result result = sizes_of(s, p);
    p->a = args->x, p->a_row = s->x_stride ? s->x_stride : s->in, p->a_column = 1;
    p->b = args->w, p->b_row = s->turned ? 1 : s->out, p->b_column = s->turned ? s->in : 1;
    p->c = args->y, p->c_row = s->y_stride ? s->y_stride : s->out;
    p->bias = args->bias;
    p->floats = args->floats;
    return result;
}

static zr_result linear_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args)
{
    struct cuda_product p;
    bool done = false;
    if (in_fp8(&args->shape)) {
        zr_result made = zr_cuda_fp8_forward(context, args, &done);
        if (made != ZR_OK || done)
            return made;
    }
    zr_result result = forward_product(args, &p);
    return result == ZR_OK ? multiply(context, &p) : result;
}

static zr_result linear_gelu_forward(struct zr_kernel_context *context,
                                     const struct zr_linear_gelu_forward *args)
{
    const struct zr_linear_forward *linear = &args->linear;
    struct cuda_product p;
    bool done = false;
    zr_result result = forward_product(linear, &p);
    p.c = args->gelu;
    if (result == ZR_OK && !in_fp8(&linear->shape))
        result =
            multiply_by_library(context, &p, (struct cuda_epilogue){CUDA_EPILOGUE_GELU, linear->y}, &done);
    if (result != ZR_OK || done)
        return result;
    result = linear_forward(context, linear);
    return result == ZR_OK
               ? gelu_forward(context, &(struct zr_gelu_forward){linear->shape.rows * linear->shape.out,
                                                                 linear->y, args->gelu, ZR_GELU_TANH})
               : result;
}

static zr_result linear_residual_forward(struct zr_kernel_context *context,
                                         const struct zr_linear_residual_forward *args)
{
    const struct zr_linear_forward *linear = &args->linear;
    struct cuda_product p;
    bool done = false;
    zr_result result = forward_product(linear, &p);
    if (result == ZR_OK && !in_fp8(&linear->shape))
        result = multiply_by_library(context, &p,
                                     (struct cuda_epilogue){CUDA_EPILOGUE_RESIDUAL, args->residual}, &done);
    if (result != ZR_OK || done)
        return result;
    result = linear_forward(context, linear);
    return result == ZR_OK ? add(context, &(struct zr_add){linear->shape.rows * linear->shape.out,
                                                           args->residual, linear->y, linear->y})
                           : result;
}

/* dx = dy w^T */
static zr_result input_product(const struct zr_linear_backward *args, struct cuda_product *p)
{
    const struct zr_linear *s = &args->shape;
    struct cuda_product sizes;
    zr_result result = sizes_of(s, &sizes);
    *p = (struct cuda_product){.m = sizes.m, .n = sizes.k, .k = sizes.n, .accumulate = args->accumulate_dx};
    p->a = args->dy, p->a_row = s->y_stride ? s->y_stride : s->out, p->a_column = 1;
    p->b = args->w, p->b_row = s->turned ? s->in : 1, p->b_column = s->turned ? 1 : s->out;
    p->c = args->dx, p->c_row = s->x_stride ? s->x_stride : s->in;
    return result;
}

/* dw = x^T dy; dy^T x if w is transposed. */
static zr_result linear_backward(struct zr_kernel_context *context, const struct zr_linear_backward *args)
{
    const struct zr_linear *s = &args->shape;
    size_t x_stride = s->x_stride ? s->x_stride : s->in, y_stride = s->y_stride ? s->y_stride : s->out;
    struct zr_linear_backward rest = *args;
    struct cuda_product sizes, p;
    zr_result result = sizes_of(s, &sizes);
    if (result == ZR_OK && in_fp8(s))
        result = zr_cuda_fp8_backward(context, &rest);
    if (result == ZR_OK && rest.dx && (result = input_product(args, &p)) == ZR_OK)
        result = multiply(context, &p);
    if (result == ZR_OK && rest.dw) {
        p = (struct cuda_product){
            .k = sizes.m, .accumulate = args->accumulate, .c = args->dw, .floats = args->dw_floats};
        p.m = s->turned ? sizes.n : sizes.k, p.n = s->turned ? sizes.k : sizes.n;
        p.a = s->turned ? args->dy : args->x, p.a_row = 1, p.a_column = s->turned ? y_stride : x_stride;
        p.b = s->turned ? args->x : args->dy, p.b_row = s->turned ? x_stride : y_stride, p.b_column = 1;
        p.c_row = p.n;
        result = multiply(context, &p);
    }
    if (result == ZR_OK && args->db)
        result = sum_columns(context, KERNEL_bias_backward,
                             (struct cuda_columns){.rows = s->rows,
                                                   .columns = s->out,
                                                   .stride = y_stride,
                                                   .dy = args->dy,
                                                   .sums = {args->db},
                                                   .accumulate = args->accumulate});
    return result;
}

static zr_result linear_gelu_backward(struct zr_kernel_context *context,
                                      const struct zr_linear_gelu_backward *args)
{
    struct zr_linear_backward linear = args->linear;
    const size_t rows = linear.shape.rows, columns = linear.shape.in;
    void *const dx = linear.dx;
    struct cuda_product p;
    bool done = false;
    zr_result result = input_product(&linear, &p);
    if (result == ZR_OK && !in_fp8(&linear.shape))
        result = multiply_by_library(context, &p,
                                     (struct cuda_epilogue){CUDA_EPILOGUE_GELU_BACKWARD, args->pre}, &done);
    linear.dx = done ? NULL : dx;
    if (result == ZR_OK)
        result = linear_backward(context, &linear);
    if (result != ZR_OK)
        return result;
    if (done && args->pre_bias)
        return sum_columns(context, KERNEL_bias_backward,
                           (struct cuda_columns){.rows = rows,
                                                 .columns = columns,
                                                 .stride = columns,
                                                 .dy = dx,
                                                 .sums = {args->pre_bias},
                                                 .accumulate = linear.accumulate});
    if (args->pre_bias)
        return gelu_bias_backward(context,
                                  &(struct zr_gelu_bias_backward){rows, columns, args->pre, dx, dx,
                                                                  args->pre_bias, linear.accumulate});
    return done ? ZR_OK
                : gelu_backward(context,
                                &(struct zr_gelu_backward){rows * columns, args->pre, dx, dx, ZR_GELU_TANH});
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* Launches one block per tile, with `tiles` tiles in shared memory. */
static zr_result tiles_of(const struct zr_attention *s, size_t heads, size_t tiles, struct grid *out)
{
    size_t width = s->heads ? s->channels / s->heads : 0;
    if (width == 0 || width > CUDA_ATTENTION_WIDTH)
        return zr_fail(ZR_ERR_INVALID, "heads of %zu numbers are not supported on a GPU; use 1 to %d", width,
                       CUDA_ATTENTION_WIDTH);
    if (s->ring.kv)
        return zr_fail(ZR_ERR_INVALID, "attention in a ring is not supported on a GPU");
    *out = (struct grid){.x = s->batch && heads ? parts(s->sequence, CUDA_ATTENTION_TILE) : 0,
                         .y = heads,
                         .z = s->batch,
                         .shared_bytes = tiles * CUDA_ATTENTION_TILE * (width | 1) * sizeof(float)};
    return ZR_OK;
}

/* Index of the tensor-core kernel for the head width; -1: not supported. They require two-byte heads of three
 * widths, rows aligned to 16 bytes, attention to all tokens before, the usual scale and no dropout. All GPUs
 * of the images have tensor cores. */
static int narrow_kernel(const struct zr_kernel_context *context, const struct zr_attention *s,
                         uintptr_t addresses)
{
    size_t width = s->heads ? s->channels / s->heads : 0;
    if (context->precision == ZR_PRECISION_FP32 || addresses % 16 != 0 || s->sequence > INT_MAX / 2 ||
        s->channels > INT_MAX / 4 || s->ring.kv || s->scale > 0 || s->dropout.rate > 0 ||
        (s->window && s->window < s->sequence))
        return -1;
    return width == 64 ? 0 : width == 96 ? 1 : width == 128 ? 2 : -1;
}

/* Launches blocks of `rows` rows, with tiles of `tile_rows` rows in shared memory. */
static struct grid narrow_grid(const struct zr_attention *s, size_t heads, size_t rows, size_t tile_rows)
{
    size_t width = s->channels / s->heads;
    return (struct grid){.x = s->batch && heads ? parts(s->sequence, rows) : 0,
                         .y = heads,
                         .z = s->batch,
                         .shared_bytes = tile_rows * CUDA_MMA_ROW_BYTES(width)};
}

static zr_result narrow_forward(struct zr_kernel_context *context, const struct zr_attention_forward *args,
                                int which)
{
    struct grid grid =
        narrow_grid(&args->shape, args->shape.heads, CUDA_MMA_QUERIES, CUDA_MMA_QUERIES + 2 * CUDA_MMA_TILE);
    return launch_with(context, (enum kernel)(KERNEL_attention_forward_64 + which), grid, CUDA_MMA_THREADS,
                       args);
}

static zr_result narrow_backward(struct zr_kernel_context *context, const struct zr_attention_backward *args,
                                 int which)
{
    const struct zr_attention *s = &args->shape;
    size_t rows = CUDA_MMA_QUERY_STRIPS(s->channels / s->heads) * 16 * CUDA_MMA_WARPS;
    struct grid keys = narrow_grid(s, s->kv_heads ? s->kv_heads : s->heads, CUDA_MMA_KEYS, 4 * CUDA_MMA_TILE);
    struct grid queries = narrow_grid(s, s->heads, rows, 4 * CUDA_MMA_TILE);
    zr_result result = launch(context, KERNEL_attention_row_statistics,
                              ROWS(parts(s->batch * s->sequence * s->heads, CUDA_THREADS / 8)), args);
    if (result == ZR_OK)
        result = launch_with(context, (enum kernel)(KERNEL_attention_backward_keys_64 + which), keys,
                             CUDA_MMA_THREADS, args);
    return result == ZR_OK ? launch_with(context, (enum kernel)(KERNEL_attention_backward_queries_64 + which),
                                         queries, CUDA_MMA_THREADS, args)
                           : result;
}

static zr_result attention_forward(struct zr_kernel_context *context, const struct zr_attention_forward *args)
{
    struct grid grid;
    int narrow = narrow_kernel(context, &args->shape, (uintptr_t)args->qkv | (uintptr_t)args->out);
    zr_result result = tiles_of(&args->shape, args->shape.heads, 3, &grid);
    if (result == ZR_OK)
        result = narrow >= 0 ? narrow_forward(context, args, narrow)
                             : launch(context, KERNEL_attention_forward, grid, args);
    if (result == ZR_OK && args->p) /* plans for this table never request probabilities, but a caller may */
        result = launch(context, KERNEL_attention_probabilities,
                        (struct grid){grid.x ? args->shape.sequence : 0, grid.y, grid.z, 0}, args);
    return result;
}

/* Always recomputes probabilities. */
static zr_result attention_backward(struct zr_kernel_context *context,
                                    const struct zr_attention_backward *args)
{
    const struct zr_attention *s = &args->shape;
    struct grid keys, queries;
    int narrow = narrow_kernel(context, s,
                               (uintptr_t)args->qkv | (uintptr_t)args->out | (uintptr_t)args->dout |
                                   (uintptr_t)args->dqkv);
    if (narrow >= 0)
        return narrow_backward(context, args, narrow);
    zr_result result = tiles_of(s, s->kv_heads ? s->kv_heads : s->heads, 4, &keys);
    if (result == ZR_OK)
        result = tiles_of(s, s->heads, 4, &queries);
    if (result == ZR_OK)
        result = launch(context, KERNEL_attention_backward_keys, keys, args);
    return result == ZR_OK ? launch(context, KERNEL_attention_backward_queries, queries, args) : result;
}

/* ---- State --------------------------------------------------------------------------------------------- */

static zr_result sum_of_squares(struct zr_kernel_context *context, const struct zr_sum_of_squares *args)
{
    const size_t round = (size_t)CUDA_SQUARES_BLOCK * CUDA_SQUARES_BLOCKS;
    zr_result result = must_be_open(context);
    if (result == ZR_OK && !context->workspace)
        return zr_fail(ZR_ERR_INVALID, "a sum of squares requires a context with a workspace");
    for (size_t first = 0; result == ZR_OK && (first == 0 || first < args->n); first += round) {
        struct cuda_squares squares = {*args, first, context->workspace, first == 0};
        size_t rest = args->n - first, count = rest < round ? rest : round;
        result =
            launch(context, KERNEL_squares_of_blocks, BY_WARP(parts(count, CUDA_SQUARES_BLOCK)), &squares);
        if (result == ZR_OK)
            result = launch(context, KERNEL_squares_together, ROWS(1), &squares);
    }
    return result;
}

static zr_result find_nonfinite(struct zr_kernel_context *context, const struct zr_find_nonfinite *args)
{
    zr_result result = launch_with(context, KERNEL_find_nonfinite_begin, ROWS(1), 1, args);
    return result == ZR_OK ? launch(context, KERNEL_find_nonfinite, over(args->n), args) : result;
}

static zr_result checksum(struct zr_kernel_context *context, const struct zr_checksum *args)
{
    size_t blocks = parts(args->bytes, CUDA_CHECKSUM_BLOCK);
    zr_result result = launch_with(context, KERNEL_checksum_begin, ROWS(1), 1, args);
    if (result == ZR_OK)
        result =
            launch(context, KERNEL_checksum, ROWS(parts(blocks * CUDA_CHECKSUM_LANES, CUDA_THREADS)), args);
    return result == ZR_OK ? launch_with(context, KERNEL_checksum_end, ROWS(1), 1, args) : result;
}

static zr_result clear(struct zr_kernel_context *context, const struct zr_clear *args)
{
    if (must_be_open(context) != ZR_OK)
        return ZR_ERR_INVALID;
    if (args->bytes == 0)
        return ZR_OK;
    zr_cu_result code = library.driver->fill((zr_cu_address)(uintptr_t)args->to, 0, args->bytes,
                                             (zr_cu_stream)context->stream);
    return code == ZR_CU_SUCCESS ? ZR_OK
                                 : zr_cuda_error(code, ZR_ERR_INVALID, "to clear %zu bytes", args->bytes);
}

/* The driver tells host memory from device memory by the address. */
static zr_result copy_bytes(struct zr_kernel_context *context, const struct zr_copy_bytes *args)
{
    if (must_be_open(context) != ZR_OK)
        return ZR_ERR_INVALID;
    /* Drain first, because the driver's copy would wait without polling while_waiting. */
    zr_result result = args->waits && context->while_waiting ? zr_cuda_stream_wait(context) : ZR_OK;
    if (result != ZR_OK)
        return result;
    zr_cu_result code = ZR_CU_SUCCESS;
    if (args->bytes > 0)
        code = library.driver->copy((zr_cu_address)(uintptr_t)args->to, (zr_cu_address)(uintptr_t)args->from,
                                    args->bytes, (zr_cu_stream)context->stream);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_INVALID, "to copy %zu bytes", args->bytes);
    return args->waits && (args->bytes > 0 || !context->while_waiting) ? zr_cuda_stream_wait(context) : ZR_OK;
}

static zr_result sum(struct zr_kernel_context *context, const struct zr_sum *args)
{
    struct cuda_sum all = {.n = args->n,
                           .to = args->to,
                           .count = args->count,
                           .precision = args->precision,
                           .scale = args->scale,
                           .accumulate = args->accumulate};
    if (must_be_open(context) != ZR_OK)
        return ZR_ERR_INVALID;
    if (args->count > CUDA_SUM_SOURCES)
        return zr_fail(ZR_ERR_INVALID, "a sum of %u sources is not supported on a GPU; the maximum is %d",
                       args->count, CUDA_SUM_SOURCES);
    for (unsigned k = 0; k < args->count; k++)
        all.from[k] = args->from[k];
    return launch(context, KERNEL_sum, over(args->n), &all);
}

/* ---- Packed numbers ------------------------------------------------------------------------------------ */

/* Kernels are in the order of enum zr_packing. */
_Static_assert((int)KERNEL_pack_onebit + ZR_PACKINGS_COUNT == (int)KERNEL_unpack_onebit &&
                   (int)KERNEL_pack_mxfp8 - (int)KERNEL_pack_onebit == (int)ZR_PACKING_MXFP8,
               "a kernel of each packing");

/* The launch of a warp for each block of numbers. */
static zr_result launch_packing(const struct zr_kernel_context *context, enum kernel first,
                                enum zr_packing packing, size_t n, const void *argument)
{
    return launch(context, (enum kernel)(first + packing), BY_WARP(parts(n, ZR_PACK_BLOCK)), argument);
}

static zr_result pack(struct zr_kernel_context *context, const struct zr_pack *args)
{
    return launch_packing(context, KERNEL_pack_onebit, args->packing, args->n, args);
}

static zr_result unpack(struct zr_kernel_context *context, const struct zr_unpack *args)
{
    struct cuda_unpack all = {.n = args->n,
                              .to = args->to,
                              .count = args->count,
                              .scale = args->scale,
                              .accumulate = args->accumulate};
    uintptr_t addresses = 0;
    if (args->count > CUDA_SUM_SOURCES)
        return zr_fail(ZR_ERR_INVALID,
                       "a sum of %u packed sources is not supported on a GPU; the maximum is %d", args->count,
                       CUDA_SUM_SOURCES);
    for (unsigned k = 0; k < args->count; k++) {
        all.from[k] = args->from[k];
        addresses |= ADDRESS(args->from[k]);
    }
    all.aligned = addresses % sizeof(uint32_t) == 0;
    return launch_packing(context, KERNEL_unpack_onebit, args->packing, args->n, &all);
}

/* ---- Optimizers ---------------------------------------------------------------------------------------- */

/* Uses one thread, because the sum is short and has a fixed order. */
static zr_result weigh_gradients(struct zr_kernel_context *context, const struct zr_weigh_gradients *args)
{
    return launch_with(context, KERNEL_weigh_gradients, ROWS(1), 1, args);
}

static zr_result update_adamw(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    return launch(context, KERNEL_update_adamw, over_packs(ZR_PRECISION_FP32, args->numbers.n), args);
}

static zr_result update_sgd(struct zr_kernel_context *context, const struct zr_update_sgd *args)
{
    return launch(context, KERNEL_update_sgd, over_packs(ZR_PRECISION_FP32, args->numbers.n), args);
}

/* A warp takes a block of 256 numbers at a time. The grid is bounded, because each of its blocks first makes
 * two maps. */
static struct grid over_blocks(size_t n)
{
    const size_t max = 1 << 11;
    size_t blocks = parts(parts(n, ZR_BLOCK8_NUMBERS), CUDA_WARPS);
    return (struct grid){.x = blocks < max ? blocks : max};
}

ONE(update_adamw8, over_blocks(args->numbers.n))
ONE(block8_read, over_blocks(args->n))
ONE(block8_write, over_blocks(args->n))
ONE(muon_direction, over(args->n))
ONE(apply_direction, over(args->numbers.n))
ONE(average, over(args->n))
ONE(outer_step, over(args->n))
ONE(update_factored, over_packs(ZR_PRECISION_FP32, args->numbers.n))
ONE(update_lamb, over_packs(ZR_PRECISION_FP32, args->numbers.n))

static zr_result factor_sums(struct zr_kernel_context *context, const struct zr_factor_sums *args)
{
    if (args->n == 0)
        return must_be_open(context);
    size_t rows = (args->first + args->n - 1) / args->columns - args->first / args->columns + 1;
    zr_result result = launch(context, KERNEL_factor_rows, BY_WARP(rows), args);
    return result == ZR_OK
               ? launch(context, KERNEL_factor_columns, ROWS(parts(args->columns, WARP_LANES)), args)
               : result;
}

static zr_result factor_moments(struct zr_kernel_context *context, const struct zr_factor_moments *args)
{
    zr_result result = launch(context, KERNEL_factor_move, over(args->rows + args->columns), args);
    return result == ZR_OK ? launch(context, KERNEL_factor_mean, ROWS(1), args) : result;
}

/* Sums the squares that a kernel makes of n numbers onto `total`, and before them the masters' squares. */
struct made_squares {
    enum kernel kernel;
    void *args; /* of the kernel; `first` and `partial` are members */
    size_t *first;
    double **partial, *squares;
    const struct zr_update *numbers;
    bool masters;
};

static zr_result sum_made(struct zr_kernel_context *context, const struct made_squares *made)
{
    const size_t n = made->numbers->n, round = (size_t)CUDA_SQUARES_BLOCK * CUDA_SQUARES_BLOCKS;
    const struct zr_sum_of_squares masters = {
        n, {made->numbers->master, ZR_PRECISION_FP32}, &made->squares[1]};
    zr_result result = made->masters ? sum_of_squares(context, &masters) : must_be_open(context);
    *made->partial = context->workspace;
    for (size_t first = 0; result == ZR_OK && (first == 0 || first < n); first += round) {
        struct cuda_squares squares = {{n, {0}, &made->squares[0]}, first, context->workspace, first == 0};
        size_t count = n - first < round ? n - first : round;
        *made->first = first;
        result = launch(context, made->kernel, BY_WARP(parts(count, CUDA_SQUARES_BLOCK)), made->args);
        if (result == ZR_OK)
            result = launch(context, KERNEL_squares_together, ROWS(1), &squares);
    }
    return result;
}

static zr_result factor_norm(struct zr_kernel_context *context, const struct zr_factor_norm *args)
{
    struct cuda_factor_squares all = {.all = *args};
    return sum_made(context, &(struct made_squares){KERNEL_factor_squares, &all, &all.first, &all.partial,
                                                    args->squares, &args->numbers, args->how.relative});
}

static zr_result lamb_norms(struct zr_kernel_context *context, const struct zr_lamb_norms *args)
{
    struct cuda_lamb_squares all = {.all = *args};
    return sum_made(context, &(struct made_squares){KERNEL_lamb_squares, &all, &all.first, &all.partial,
                                                    args->squares, &args->numbers, true});
}

/* The squares of an iteration are queued: gram = x x^T, or x^T x of a tall matrix, and square = gram gram. */
static zr_result multiply_squares(struct zr_kernel_context *context, const struct zr_orthogonalize *args,
                                  const float *x, float *gram, float *square)
{
    const bool tall = args->rows > args->columns;
    const unsigned side = (unsigned)(tall ? args->columns : args->rows),
                   length = (unsigned)(tall ? args->rows : args->columns);
    const size_t along = tall ? args->columns : 1, across = tall ? 1 : args->columns;
    zr_result result = multiply(context, &(struct cuda_product){.m = side,
                                                                .n = side,
                                                                .k = length,
                                                                .a = x,
                                                                .a_row = across,
                                                                .a_column = along,
                                                                .b = x,
                                                                .b_row = along,
                                                                .b_column = across,
                                                                .c = gram,
                                                                .c_row = side});
    return result == ZR_OK ? multiply(context, &(struct cuda_product){.m = side,
                                                                      .n = side,
                                                                      .k = side,
                                                                      .a = gram,
                                                                      .a_row = side,
                                                                      .a_column = 1,
                                                                      .b = gram,
                                                                      .b_row = side,
                                                                      .b_column = 1,
                                                                      .c = square,
                                                                      .c_row = side})
                           : result;
}

/* to = factor from; from factor, if the matrix is tall. */
static zr_result multiply_factor(struct zr_kernel_context *context, const struct zr_orthogonalize *args,
                                 const float *factor, const float *from, float *to)
{
    const bool tall = args->rows > args->columns;
    const size_t side = tall ? args->columns : args->rows;
    return multiply(context, &(struct cuda_product){.m = (unsigned)args->rows,
                                                    .n = (unsigned)args->columns,
                                                    .k = (unsigned)side,
                                                    .a = tall ? from : factor,
                                                    .a_row = side,
                                                    .a_column = 1,
                                                    .b = tall ? factor : from,
                                                    .b_row = args->columns,
                                                    .b_column = 1,
                                                    .c = to,
                                                    .c_row = args->columns});
}

/* Iterations in a context of fp32. The number of iterations is odd, so the last one writes to x. */
static zr_result iterate(struct zr_kernel_context *context, const struct zr_orthogonalize *args,
                         const struct zr_orthogonalize_layout *at)
{
    char *workspace = args->workspace;
    double *squares = (double *)workspace;
    float *from = (float *)(workspace + at->x), *to = args->x, *gram = (float *)(workspace + at->gram),
          *square = (float *)(workspace + at->square);
    const size_t n = args->rows * args->columns, side = at->side;
    zr_result result =
        sum_of_squares(context, &(struct zr_sum_of_squares){n, {args->x, ZR_PRECISION_FP32}, squares});
    if (result == ZR_OK)
        result = launch(context, KERNEL_muon_normalize, over(n),
                        &(struct cuda_muon){.n = n, .from = args->x, .to = from, .squares = squares});
    for (unsigned i = 0; i < ZR_MUON_ITERATIONS && result == ZR_OK; i++) {
        float *const before = from;
        result = multiply_squares(context, args, from, gram, square);
        if (result == ZR_OK)
            result = launch(context, KERNEL_muon_polynomial, over(side * side),
                            &(struct cuda_muon){.n = side * side, .side = side, .from = gram, .to = square});
        if (result == ZR_OK)
            result = multiply_factor(context, args, square, from, to);
        from = to;
        to = before;
    }
    return result;
}

static zr_result orthogonalize(struct zr_kernel_context *context, const struct zr_orthogonalize *args)
{
    const struct zr_orthogonalize_layout at = zr_orthogonalize_layout(args);
    struct zr_kernel_context wide;
    if (must_be_open(context) != ZR_OK)
        return ZR_ERR_INVALID;
    if (args->rows > INT_MAX || args->columns > INT_MAX || args->workspace_bytes < at.bytes)
        return zr_fail(ZR_ERR_INVALID,
                       "orthogonalize() of %zu x %zu numbers needs %zu bytes of workspace and has %zu; see "
                       "orthogonalize_bytes()",
                       args->rows, args->columns, at.bytes, args->workspace_bytes);
    wide = *context;
    wide.precision = ZR_PRECISION_FP32;
    zr_result result = iterate(&wide, args, &at);
    context->refusals = wide.refusals;
    return result;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct zr_kernels table = {
    .version = ZR_KERNELS_VERSION,
    .name = "cuda",
    .executes = true,
    .deterministic_sums = true,
    .narrow_logits = true,
    .workspace_bytes = workspace_bytes,
    .orthogonalize_bytes = zr_orthogonalize_bytes,
    .open = open,
    .close = close,
    .products = products,
    .streams = &zr_cuda_streams,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .positions_forward = positions_forward,
    .positions_backward = positions_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .rotary_table = rotary_table,
    .rotary = rotary,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .add = add,
    .dropout = dropout,
    .cross_entropy = cross_entropy,
    .softmax_merge = softmax_merge,
    .residual_layernorm = residual_layernorm,
    .residual_rmsnorm = residual_rmsnorm,
    .gelu_bias_backward = gelu_bias_backward,
    .linear_gelu_forward = linear_gelu_forward,
    .linear_residual_forward = linear_residual_forward,
    .linear_gelu_backward = linear_gelu_backward,
    .weigh_gradients = weigh_gradients,
    .update_adamw = update_adamw,
    .update_sgd = update_sgd,
    .update_adamw8 = update_adamw8,
    .block8_read = block8_read,
    .block8_write = block8_write,
    .factor_sums = factor_sums,
    .factor_moments = factor_moments,
    .factor_norm = factor_norm,
    .update_factored = update_factored,
    .lamb_norms = lamb_norms,
    .update_lamb = update_lamb,
    .muon_direction = muon_direction,
    .orthogonalize = orthogonalize,
    .apply_direction = apply_direction,
    .average = average,
    .outer_step = outer_step,
    .sum_of_squares = sum_of_squares,
    .find_nonfinite = find_nonfinite,
    .checksum = checksum,
    .init_normal = init_normal,
    .convert = convert,
    .clear = clear,
    .copy_bytes = copy_bytes,
    .sum = sum,
    .pack = pack,
    .unpack = unpack,
};

const struct zr_kernels *zr_kernels_cuda(void)
{
    return &table;
}
