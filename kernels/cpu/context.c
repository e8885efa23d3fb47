/* context.c: opening a context, the layout of its workspace, and spreading work over the threads lent to it.
 *
 * The workspace is [the matrix library's state | its scratch per thread | what the running operation needs].
 * One operation runs at a time, so the last part is as large as the neediest operation's share. */
#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm.h"

#include <immintrin.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static __thread char why[512];

const char *zr_kernel_why(void)
{
    return why;
}

void zr_kernel_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
}

/* ---- Sizes: saturating, since a plan may ask about shapes no machine can hold -------------------------- */

static size_t times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static size_t plus(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

static size_t threads_of(unsigned threads)
{
    return threads == 0 ? 1 : threads;
}

size_t zr_kernel_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa)
{
    (void)isa; /* the same on all: tiles are cut for the widest vectors */
    size_t threads = threads_of(limits->threads), heads = limits->heads == 0 ? 1 : limits->heads;
    size_t fixed = plus(zr_gemm_state_bytes((unsigned)threads), zr_gemm_scratch_bytes((unsigned)threads));
    size_t row_bytes = times(limits->vocabulary, sizeof(float));
    size_t most_rows = row_bytes == 0 ? 0 : ZR_LOGITS_BYTES / row_bytes;
    size_t logits_rows = most_rows == 0 ? 1 : most_rows < limits->rows ? most_rows : limits->rows;
    size_t logits = times(row_bytes, logits_rows);
    size_t width = limits->channels / heads;
    size_t attention =
        times(threads, times(zr_attention_scratch_floats(limits->sequence, width), sizeof(float)));
    size_t most = ZR_PARTIAL_BYTES, chains = zr_chains_bytes(limits->rows);
    most = chains > most ? chains : most;
    most = logits > most ? logits : most;
    most = attention > most ? attention : most;
    size_t total = plus(plus(fixed, most), 4096);
    return total == SIZE_MAX ? SIZE_MAX : total / 64 * 64;
}

/* T x D matrices in rows of whole vectors, their turned forms, and two blocks of scores: see
 * loops_attention.h. */
size_t zr_attention_scratch_floats(size_t sequence, size_t width)
{
    const size_t block = 32;
    size_t tokens = plus(sequence, 15) / 16 * 16, wide = plus(width, 15) / 16 * 16;
    size_t matrices = times(times(7, tokens), wide);
    return plus(plus(matrices, times(2 * block, tokens)), plus(times(block, wide), 256));
}

/* Embedding's backward pass: next and first rows of each chain, and a table at most half full. */
size_t zr_chains_slots(size_t rows)
{
    size_t slots = 16;
    while (slots < SIZE_MAX / 8 && slots / 2 < rows)
        slots *= 2;
    return slots;
}

size_t zr_chains_bytes(size_t rows)
{
    return times(plus(times(2, rows), zr_chains_slots(rows)), sizeof(int32_t));
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static size_t fixed_bytes(const struct zr_kernel_context *context)
{
    unsigned threads = (unsigned)threads_of(context->parallel.threads);
    return zr_gemm_state_bytes(threads) + zr_gemm_scratch_bytes(threads);
}

void *zr_context_scratch(const struct zr_kernel_context *context, size_t bytes)
{
    size_t fixed = fixed_bytes(context);
    if (bytes > context->workspace_bytes - fixed)
        __builtin_trap();
    return (char *)context->workspace + fixed;
}

struct zr_gemm_state *zr_context_gemm(const struct zr_kernel_context *context)
{
    return context->library;
}

int zr_kernel_open(struct zr_kernel_context *context)
{
    enum zr_isa best = zr_isa_best();
    context->library = NULL;
    if ((unsigned)context->isa >= ZR_ISA_COUNT || context->isa > best) {
        zr_kernel_fail("this processor does not have the instruction set %s; its best is %s",
                       zr_isa_name(context->isa), zr_isa_name(best));
        return -1;
    }
    if ((unsigned)context->precision >= ZR_PRECISION_COUNT) {
        zr_kernel_fail("%d is no precision; there are fp32, bf16 and fp16", (int)context->precision);
        return -1;
    }
    if (context->parallel.threads > 1 && context->parallel.run == NULL) {
        zr_kernel_fail("%u threads were promised and no way to run them", context->parallel.threads);
        return -1;
    }
    if (context->workspace == NULL || (uintptr_t)context->workspace % 64 != 0 ||
        context->workspace_bytes < fixed_bytes(context) + ZR_PARTIAL_BYTES) {
        zr_kernel_fail("a workspace of %zu bytes is too small (or not on a 64-byte line); ask "
                       "zr_kernel_workspace_bytes()",
                       context->workspace_bytes);
        return -1;
    }
    return zr_gemm_open(context);
}

void zr_kernel_close(struct zr_kernel_context *context)
{
    if (context->library != NULL)
        zr_gemm_close(context);
    context->library = NULL;
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* Every part computes under one floating-point mode, whatever the thread was in: round to nearest, no traps,
 * and denormals are zero. Variances and gradients that fade away would otherwise cost a hundred times their
 * price. */
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

void zr_parallel_run(struct zr_kernel_context *context, void (*task)(void *, unsigned, unsigned),
                     void *argument)
{
    const struct zr_parallel *parallel = &context->parallel;
    struct guarded guarded = {task, argument};
    if (parallel->threads > 1 && parallel->run != NULL)
        parallel->run(parallel->state, guarded_part, &guarded);
    else
        guarded_part(&guarded, 0, 1);
}

void zr_part_range(size_t n, size_t grain, unsigned part, unsigned parts, size_t *from, size_t *to)
{
    size_t grains = n / grain + (n % grain != 0), each = grains / parts, more = grains % parts;
    size_t first = part * each + (part < more ? part : more), end = first + each + (part < more);
    *from = first * grain < n ? first * grain : n;
    *to = end * grain < n ? end * grain : n;
}
