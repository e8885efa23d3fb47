/* context.c: opening a context, the layout of its workspace, and dividing work over its threads.
 *
 * The workspace is [state of the matrix library | the library's scratch per thread | scratch of the running
 * operation]. One operation runs at a time, so the last part has the size of the largest scratch of an
 * operation. */
#include "kernels/cpu/context.h"
#include "alloc/base/error.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/sizes.h"

#include <immintrin.h>

/* ---- Sizes --------------------------------------------------------------------------------------------- */

/* fp8.c needs two copies of two-byte operands: the widest rows and either the matrix or other rows. */
static size_t fp8_bytes(const struct zr_kernel_limits *limits)
{
    size_t rows = zr_times(limits->rows, limits->fp8_wide),
           matrix = zr_times(limits->fp8_narrow, limits->fp8_wide),
           other = zr_times(limits->rows, limits->fp8_narrow);
    size_t elements = zr_plus(rows, zr_plus(matrix > other ? matrix : other, 2 * ZR_LINE_ELEMENTS));
    return limits->fp8_wide ? zr_times(elements, sizeof(uint16_t)) : 0;
}

size_t zr_cpu_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa)
{
    (void)isa; /* unused: tiles are sized for the widest vectors */
    unsigned threads = limits->threads == 0 ? 1 : limits->threads;
    size_t heads = limits->heads == 0 ? 1 : limits->heads;
    size_t fixed = zr_plus(zr_gemm_state_bytes(threads), zr_gemm_scratch_bytes(threads));
    size_t floats = zr_attention_scratch_floats(limits->sequence, limits->channels / heads);
    size_t attention = zr_times(threads, zr_times(floats, sizeof(float)));
    size_t max_bytes = ZR_PARTIAL_BYTES, chains = zr_chains_bytes(limits->rows), fp8 = fp8_bytes(limits);
    max_bytes = chains > max_bytes ? chains : max_bytes;
    max_bytes = attention > max_bytes ? attention : max_bytes;
    max_bytes = fp8 > max_bytes ? fp8 : max_bytes;
    size_t total = zr_plus(zr_plus(fixed, max_bytes), 4096);
    return total == SIZE_MAX ? SIZE_MAX : total / 64 * 64;
}

/* T x D matrices with padded rows, their transposes, and two blocks of scores: see loops_attention.h. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width)
{
    const size_t block = 32;
    size_t tokens = zr_plus(sequence, 15) / 16 * 16, wide = zr_plus(width, 15) / 16 * 16;
    size_t matrices = zr_times(zr_times(7, tokens), wide);
    return zr_plus(zr_plus(matrices, zr_times(2 * block, tokens)), zr_plus(zr_times(block, wide), 256));
}

/* Backward of the embedding: next and first rows of each chain, and a hash table at most half full. */
size_t zr_chains_slots(size_t rows)
{
    size_t slots = 16;
    while (slots < SIZE_MAX / 8 && slots / 2 < rows)
        slots *= 2;
    return slots;
}

size_t zr_chains_bytes(size_t rows)
{
    return zr_times(zr_plus(zr_times(2, rows), zr_chains_slots(rows)), sizeof(int32_t));
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static size_t fixed_bytes(const struct zr_kernel_context *context)
{
    unsigned threads = zr_context_threads(context);
    return zr_gemm_state_bytes(threads) + zr_gemm_scratch_bytes(threads);
}

zr_result zr_context_scratch(const struct zr_kernel_context *context, size_t bytes, void **out)
{
    size_t fixed = fixed_bytes(context);
    *out = (char *)context->workspace + fixed;
    if (context->workspace_bytes >= fixed && bytes <= context->workspace_bytes - fixed)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_INVALID,
        "a kernel needs %zu bytes of workspace and has %zu; the problem exceeds the limits passed to "
        "workspace_bytes()",
        bytes, context->workspace_bytes);
}

zr_result zr_cpu_open(struct zr_kernel_context *context)
{
    enum zr_isa best = zr_isa_best();
    context->library = NULL;
    context->refusals = (struct zr_kernel_refusals){0};
    if ((unsigned)context->isa >= ZR_ISA_COUNT || context->isa > best)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "this processor does not support the instruction set %s; its best is %s",
                       zr_isa_name(context->isa), zr_isa_name(best));
    if ((unsigned)context->precision >= ZR_PRECISION_COUNT)
        return zr_fail(ZR_ERR_INVALID, "unknown precision %d; use fp32, bf16 or fp16",
                       (int)context->precision);
    if (context->fp8 && context->precision != ZR_PRECISION_BF16)
        return zr_fail(ZR_ERR_INVALID, "fp8 requires bf16 tensors, and the precision is %s",
                       zr_precision_name(context->precision));
    if (context->parallel.threads > 1 && context->parallel.run == NULL)
        return zr_fail(ZR_ERR_INVALID, "%u threads require parallel.run", context->parallel.threads);
    if (context->workspace == NULL || (uintptr_t)context->workspace % 64 != 0 ||
        context->workspace_bytes < fixed_bytes(context) + ZR_PARTIAL_BYTES)
        return zr_fail(
            ZR_ERR_INVALID,
            "the workspace of %zu bytes is too small or not aligned to 64 bytes; see workspace_bytes()",
            context->workspace_bytes);
    return zr_gemm_open(context);
}

void zr_cpu_close(struct zr_kernel_context *context)
{
    if (context->library != NULL)
        zr_gemm_close(context);
    context->library = NULL;
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* Sets the floating-point mode of a part: round to nearest, no traps, denormals are zero. Operations on
 * denormals, for example of vanishing variances and gradients, are about a hundred times slower. */
enum { FLOAT_MODE = 0x1f80 | 0x8000 | 0x0040 };

struct guarded {
    void (*task)(void *, unsigned, unsigned);
    void *argument;
};

static void guarded_part(void *argument, unsigned part, unsigned parts)
{
    const struct guarded *guarded = argument;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(FLOAT_MODE);
    guarded->task(guarded->argument, part, parts);
    _mm_setcsr(mode);
}

zr_result zr_parallel_run(struct zr_kernel_context *context, void (*task)(void *, unsigned, unsigned),
                          void *argument)
{
    const struct zr_parallel *parallel = &context->parallel;
    struct guarded guarded = {task, argument};
    if (context->library == NULL)
        return zr_fail(ZR_ERR_INVALID, "a kernel was called with a context that is not open");
    if (parallel->threads > 1 && parallel->run != NULL)
        parallel->run(parallel->state, guarded_part, &guarded);
    else
        guarded_part(&guarded, 0, 1);
    return ZR_OK;
}

struct loop_job {
    zr_loop *loop;
    const void *args;
    size_t n, grain;
};

static void loop_part(void *argument, unsigned part, unsigned parts)
{
    const struct loop_job *job = argument;
    size_t n = job->n, grain = job->grain;
    size_t grains = n / grain + (n % grain != 0), each = grains / parts, more = grains % parts;
    size_t first = part * each + (part < more ? part : more), end = first + each + (part < more);
    size_t from = first * grain < n ? first * grain : n, to = end * grain < n ? end * grain : n;
    if (from < to)
        job->loop(job->args, from, to);
}

zr_result zr_loop_run(struct zr_kernel_context *context, zr_loop *loop, const void *args, size_t n,
                      size_t grain)
{
    return zr_parallel_run(context, loop_part, &(struct loop_job){loop, args, n, grain});
}
