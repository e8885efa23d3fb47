/* cpu.c: the table of operations on the processor, and those on the model's tensors: each cuts its work over
 * the lent threads and calls the inner loops of the context's instruction set and precision. head.c has the
 * head, attention.c attention, state.c what works on the engine's state.
 *
 * Every cut is by rows, columns, heads or fixed blocks whose results meet in a fixed order, so the bits do
 * not depend on the number of threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/product.h"

#include <string.h>

static const struct zr_loops *loops_of(const struct zr_kernel_context *context)
{
    return zr_loops_of(context->isa, context->precision);
}

/* Element `index` of a tensor of the context's precision. */
static const void *in(const struct zr_loops *loops, const void *tensor, size_t index)
{
    return (const char *)tensor + index * loops->element_bytes;
}

static void *out_at(const struct zr_loops *loops, void *tensor, size_t index)
{
    return (char *)tensor + index * loops->element_bytes;
}

/* ---- Embeddings ---------------------------------------------------------------------------------------- */

/* The rows of each token, chained in their order, so that a sum is rounded once however often the token
 * comes. */
struct chains {
    int32_t *next;  /* [rows]: the next row of the same token, -1 at the end */
    int32_t *first; /* [count]: where each chain begins */
    size_t count;
};

struct embedding_job {
    const struct zr_embedding *shape;
    const struct zr_loops *loops;
    const void *wte, *wpe, *d;
    void *out, *dwte, *dwpe;
    struct chains chains;
};

static void embedding_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct embedding_job *job = argument;
    const struct zr_embedding *s = job->shape;
    const struct zr_loops *loops = job->loops;
    size_t from, to;
    zr_part_range(s->batch * s->sequence, 1, part, parts, &from, &to);
    for (size_t row = from; row < to; row++) {
        const void *token = in(loops, job->wte, (size_t)s->tokens[row] * s->channels);
        void *out = out_at(loops, job->out, row * s->channels);
        if (job->wpe)
            loops->add(s->channels, token, in(loops, job->wpe, row % s->sequence * s->channels), out);
        else
            memcpy(out, token, s->channels * loops->element_bytes);
    }
}

static void embedding_forward(struct zr_kernel_context *context, const struct zr_embedding *shape,
                              const void *wte, const void *wpe, void *out)
{
    struct embedding_job job = {
        .shape = shape, .loops = loops_of(context), .wte = wte, .wpe = wpe, .out = out};
    zr_parallel_run(context, embedding_forward_part, &job);
}

/* An open table from a token to its chain's last row. */
static struct chains chains_find(struct zr_kernel_context *context, const struct zr_embedding *s)
{
    size_t rows = s->batch * s->sequence, slots = zr_chains_slots(rows);
    int32_t *last = zr_context_scratch(context, zr_chains_bytes(rows));
    struct chains chains = {.next = last + slots, .first = last + slots + rows};
    for (size_t i = 0; i < slots; i++)
        last[i] = -1;
    for (size_t row = 0; row < rows; row++) {
        size_t slot = (uint32_t)s->tokens[row] * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (slots - 1);
        while (last[slot] >= 0 && s->tokens[last[slot]] != s->tokens[row])
            slot = (slot + 1) & (slots - 1);
        if (last[slot] >= 0)
            chains.next[last[slot]] = (int32_t)row;
        else
            chains.first[chains.count++] = (int32_t)row;
        chains.next[row] = -1;
        last[slot] = (int32_t)row;
    }
    return chains;
}

/* A part owns some channels of all rows, so tokens that repeat add up in their order. */
static void embedding_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct embedding_job *job = argument;
    const struct zr_embedding *s = job->shape;
    const struct zr_loops *loops = job->loops;
    size_t from, to, rows = s->batch * s->sequence;
    zr_part_range(s->channels, ZR_LINE_ELEMENTS, part, parts, &from, &to);
    if (from == to)
        return;
    struct zr_chain_sum sum = {.columns = to - from,
                               .stride = s->channels,
                               .from = in(loops, job->d, from),
                               .next = job->chains.next};
    for (size_t i = 0; i < job->chains.count; i++) {
        sum.first = job->chains.first[i];
        sum.to = out_at(loops, job->dwte, (size_t)s->tokens[sum.first] * s->channels + from);
        loops->add_chain(&sum);
    }
    sum.next = NULL;
    sum.step = (int32_t)s->sequence;
    sum.end = (int32_t)rows;
    for (size_t t = 0; job->dwpe && t < s->sequence && t < rows; t++) {
        sum.first = (int32_t)t;
        sum.to = out_at(loops, job->dwpe, t * s->channels + from);
        loops->add_chain(&sum);
    }
}

static void embedding_backward(struct zr_kernel_context *context, const struct zr_embedding *shape,
                               const void *d, void *dwte, size_t wte_rows, void *dwpe, size_t wpe_rows,
                               bool accumulate)
{
    struct embedding_job job = {
        .shape = shape, .loops = loops_of(context), .d = d, .dwte = dwte, .dwpe = dwpe};
    size_t row_bytes = shape->channels * job.loops->element_bytes;
    job.chains = chains_find(context, shape);
    if (!accumulate) {
        zr_cpu_clear(context, wte_rows * row_bytes, dwte);
        if (dwpe)
            zr_cpu_clear(context, wpe_rows * row_bytes, dwpe);
    }
    zr_parallel_run(context, embedding_backward_part, &job);
}

/* ---- Layer norm ---------------------------------------------------------------------------------------- */

struct layernorm_job {
    const struct zr_loops *loops;
    struct zr_layernorm_work work;
};

static void layernorm_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct layernorm_job *job = argument;
    size_t from, to;
    zr_part_range(job->work.rows, 1, part, parts, &from, &to);
    job->loops->layernorm_forward(&job->work, from, to);
}

static void layernorm_forward(struct zr_kernel_context *context, const struct zr_layernorm *shape,
                              const void *x, const void *w, const void *b, void *y, float *mean, float *rstd)
{
    struct layernorm_job job = {loops_of(context),
                                {.rows = shape->rows,
                                 .channels = shape->channels,
                                 .x = x,
                                 .w = w,
                                 .b = b,
                                 .y = y,
                                 .mean = mean,
                                 .rstd = rstd}};
    zr_parallel_run(context, layernorm_forward_part, &job);
}

/* One run for both halves: dx must be another tensor than dy, which other parts still read. */
static void layernorm_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct layernorm_job *job = argument;
    size_t from, to;
    zr_part_range(job->work.channels, ZR_LINE_ELEMENTS, part, parts, &from, &to);
    job->loops->layernorm_backward_columns(&job->work, from, to);
    zr_part_range(job->work.rows, 1, part, parts, &from, &to);
    job->loops->layernorm_backward_rows(&job->work, from, to);
}

static void layernorm_backward(struct zr_kernel_context *context, const struct zr_layernorm *shape,
                               const void *x, const void *w, const float *mean, const float *rstd,
                               const void *dy, void *dx, bool accumulate_dx, void *dw, void *db,
                               bool accumulate)
{
    struct layernorm_job job = {loops_of(context),
                                {.rows = shape->rows,
                                 .channels = shape->channels,
                                 .x = x,
                                 .w = w,
                                 .mean = (float *)mean,
                                 .rstd = (float *)rstd,
                                 .dy = dy,
                                 .dx = dx,
                                 .dw = dw,
                                 .db = db,
                                 .accumulate_dx = accumulate_dx,
                                 .accumulate = accumulate}};
    zr_parallel_run(context, layernorm_backward_part, &job);
}

/* ---- Linear -------------------------------------------------------------------------------------------- */

void zr_cpu_multiply(struct zr_kernel_context *context, const struct zr_matrices *p)
{
    if (context->precision == ZR_PRECISION_FP32)
        zr_gemm(context, &(struct zr_gemm){.m = p->m,
                                           .n = p->n,
                                           .k = p->k,
                                           .a_turned = p->a_turned,
                                           .b_turned = p->b_turned,
                                           .accumulate = p->accumulate,
                                           .a = p->a,
                                           .a_stride = p->a_stride,
                                           .b = p->b,
                                           .b_stride = p->b_stride,
                                           .c = p->c,
                                           .c_stride = p->c_stride,
                                           .bias = p->bias});
    else
        zr_product(context,
                   &(struct zr_product){.m = p->m,
                                        .n = p->n,
                                        .k = p->k,
                                        .a_turned = p->a_turned,
                                        .b_turned = p->b_turned,
                                        .accumulate = p->accumulate,
                                        .precision = context->precision,
                                        .a = p->a,
                                        .a_stride = p->a_stride,
                                        .b = p->b,
                                        .b_stride = p->b_stride,
                                        .c_stride = p->c_stride,
                                        .c = {p->c, p->floats ? ZR_PRECISION_FP32 : context->precision},
                                        .bias = p->bias});
}

static void linear_forward(struct zr_kernel_context *context, const struct zr_linear *shape, const void *x,
                           const void *w, const void *bias, void *y)
{
    zr_cpu_multiply(context, &(struct zr_matrices){.m = shape->rows,
                                                   .n = shape->out,
                                                   .k = shape->in,
                                                   .b_turned = shape->turned,
                                                   .a = x,
                                                   .a_stride = shape->x_stride,
                                                   .b = w,
                                                   .c = y,
                                                   .c_stride = shape->y_stride,
                                                   .bias = bias});
}

struct bias_job {
    const struct zr_loops *loops;
    const struct zr_linear *shape;
    const void *dy;
    void *db;
    bool accumulate;
};

static void bias_part(void *argument, unsigned part, unsigned parts)
{
    const struct bias_job *job = argument;
    size_t from, to;
    zr_part_range(job->shape->out, ZR_LINE_ELEMENTS, part, parts, &from, &to);
    struct zr_tile tile = {out_at(job->loops, (void *)job->dy, from), job->shape->rows, to - from,
                           job->shape->y_stride ? job->shape->y_stride : job->shape->out};
    job->loops->sum_rows(&tile, out_at(job->loops, job->db, from), job->accumulate);
}

static void linear_backward(struct zr_kernel_context *context, const struct zr_linear *shape, const void *x,
                            const void *w, const void *dy, void *dx, void *dw, void *db, bool accumulate)
{
    if (dx != NULL)
        zr_cpu_multiply(context, &(struct zr_matrices){.m = shape->rows,
                                                       .n = shape->in,
                                                       .k = shape->out,
                                                       .b_turned = !shape->turned,
                                                       .accumulate = shape->accumulate_dx,
                                                       .a = dy,
                                                       .a_stride = shape->y_stride,
                                                       .b = w,
                                                       .c = dx,
                                                       .c_stride = shape->x_stride});
    struct zr_matrices weights = {.m = shape->in,
                                  .n = shape->out,
                                  .k = shape->rows,
                                  .a_turned = true,
                                  .accumulate = accumulate,
                                  .a = x,
                                  .a_stride = shape->x_stride,
                                  .b = dy,
                                  .b_stride = shape->y_stride,
                                  .c = dw};
    if (shape->turned) { /* the other way round */
        weights.m = shape->out;
        weights.n = shape->in;
        weights.a = dy;
        weights.a_stride = shape->y_stride;
        weights.b = x;
        weights.b_stride = shape->x_stride;
    }
    if (dw != NULL)
        zr_cpu_multiply(context, &weights);
    if (db != NULL)
        zr_parallel_run(context, bias_part, &(struct bias_job){loops_of(context), shape, dy, db, accumulate});
}

/* ---- Element by element -------------------------------------------------------------------------------- */

struct elements_job {
    const struct zr_loops *loops;
    size_t n;
    const void *a, *b;
    void *out;
};

static void gelu_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    job->loops->gelu_forward(to - from, in(job->loops, job->a, from), out_at(job->loops, job->out, from));
}

static void gelu_forward(struct zr_kernel_context *context, size_t n, const void *x, void *y)
{
    zr_parallel_run(context, gelu_forward_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = x, .out = y});
}

static void gelu_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    job->loops->gelu_backward(to - from, in(job->loops, job->a, from), in(job->loops, job->b, from),
                              out_at(job->loops, job->out, from));
}

static void gelu_backward(struct zr_kernel_context *context, size_t n, const void *x, const void *dy,
                          void *dx)
{
    zr_parallel_run(context, gelu_backward_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = x, .b = dy, .out = dx});
}

static void add_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, ZR_GRAIN, part, parts, &from, &to);
    job->loops->add(to - from, in(job->loops, job->a, from), in(job->loops, job->b, from),
                    out_at(job->loops, job->out, from));
}

static void add(struct zr_kernel_context *context, size_t n, const void *a, const void *b, void *out)
{
    zr_parallel_run(context, add_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = a, .b = b, .out = out});
}

/* ---- The tables ---------------------------------------------------------------------------------------- */

/* They differ in the operations that know no context. */
#define SUMS(isa)                                                                                            \
    static void sum_##isa(size_t n, const float *const *from, unsigned count, float scale, float *to,        \
                          bool accumulate)                                                                   \
    {                                                                                                        \
        zr_loops_of(isa, ZR_PRECISION_FP32)                                                                  \
            ->sum_in_order(&(struct zr_sum){.n = n,                                                          \
                                            .from = (const void *const *)from,                               \
                                            .count = count,                                                  \
                                            .scale = scale,                                                  \
                                            .accumulate = accumulate,                                        \
                                            .to = {to, ZR_PRECISION_FP32}});                                 \
    }                                                                                                        \
    static void sum_numbers_##isa(const struct zr_sum *sum)                                                  \
    {                                                                                                        \
        zr_loops_of(isa, sum->precision)->sum_in_order(sum);                                                 \
    }
SUMS(ZR_ISA_PLAIN)
SUMS(ZR_ISA_AVX2)
SUMS(ZR_ISA_AVX512)

#define CPU_TABLE(isa)                                                                                       \
    {                                                                                                        \
        .name = "cpu", .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,     \
        .layernorm_forward = layernorm_forward, .layernorm_backward = layernorm_backward,                    \
        .linear_forward = linear_forward, .linear_backward = linear_backward,                                \
        .rmsnorm_forward = zr_cpu_rmsnorm_forward, .rmsnorm_backward = zr_cpu_rmsnorm_backward,              \
        .rotary_table = zr_cpu_rotary_table, .rotary = zr_cpu_rotary,                                        \
        .swiglu_forward = zr_cpu_swiglu_forward, .swiglu_backward = zr_cpu_swiglu_backward,                  \
        .attention_forward = zr_cpu_attention_forward, .attention_backward = zr_cpu_attention_backward,      \
        .gelu_forward = gelu_forward, .gelu_backward = gelu_backward, .add = add,                            \
        .head_loss = zr_cpu_head_loss, .head_logits = zr_cpu_head_logits, .adamw = zr_cpu_adamw,             \
        .sum_of_squares = zr_cpu_sum_of_squares, .init_normal = zr_cpu_init_normal, .fill = zr_cpu_fill,     \
        .copy = zr_cpu_copy, .find_nonfinite = zr_cpu_find_nonfinite, .update_adamw = zr_cpu_update_adamw,   \
        .update_sgd = zr_cpu_update_sgd, .sum_of_squares_in = zr_cpu_sum_of_squares_in,                      \
        .find_nonfinite_in = zr_cpu_find_nonfinite_in, .convert = zr_cpu_convert, .clear = zr_cpu_clear,     \
        .checksum = zr_cpu_checksum, .sum_in_order = sum_##isa, .sum_numbers_in_order = sum_numbers_##isa    \
    }

static const struct zr_kernels cpu_plain = CPU_TABLE(ZR_ISA_PLAIN), cpu_avx2 = CPU_TABLE(ZR_ISA_AVX2),
                               cpu_avx512 = CPU_TABLE(ZR_ISA_AVX512);

const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa)
{
    return isa >= ZR_ISA_AVX512 ? &cpu_avx512 : isa == ZR_ISA_AVX2 ? &cpu_avx2 : &cpu_plain;
}
