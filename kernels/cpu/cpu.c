/* cpu.c: the table of operations on the processor: each cuts its work over the lent threads and calls the
 * inner loops of the context's instruction set. head.c has the head, attention.c attention.
 *
 * Every cut is by rows, columns, heads or fixed blocks whose results meet in a fixed order, so the bits do
 * not depend on the number of threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/random.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE_FLOATS = 16, GRAIN = 4096 }; /* a cache line; what is worth a thread */

static const struct zr_loops *loops_of(const struct zr_kernel_context *context)
{
    return zr_loops_of(context->isa);
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

struct embedding_job {
    const struct zr_embedding *shape;
    const struct zr_loops *loops;
    const float *wte, *wpe, *d;
    float *out, *dwte, *dwpe;
    size_t wte_rows, wpe_rows;
};

static void embedding_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct embedding_job *job = argument;
    const struct zr_embedding *s = job->shape;
    size_t from, to;
    zr_part_range(s->batch * s->sequence, 1, part, parts, &from, &to);
    for (size_t row = from; row < to; row++)
        job->loops->add(s->channels, job->wte + (size_t)s->tokens[row] * s->channels,
                        job->wpe + row % s->sequence * s->channels, job->out + row * s->channels);
}

static void embedding_forward(struct zr_kernel_context *context, const struct zr_embedding *shape,
                              const float *wte, const float *wpe, float *out)
{
    struct embedding_job job = {
        .shape = shape, .loops = loops_of(context), .wte = wte, .wpe = wpe, .out = out};
    zr_parallel_run(context, embedding_forward_part, &job);
}

static void embedding_clear_part(void *argument, unsigned part, unsigned parts)
{
    const struct embedding_job *job = argument;
    size_t from, to, channels = job->shape->channels;
    zr_part_range(job->wte_rows * channels, GRAIN, part, parts, &from, &to);
    memset(job->dwte + from, 0, (to - from) * sizeof(float));
    zr_part_range(job->wpe_rows * channels, GRAIN, part, parts, &from, &to);
    memset(job->dwpe + from, 0, (to - from) * sizeof(float));
}

/* A part owns some channels of all rows, so tokens that repeat add up in their order. */
static void embedding_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct embedding_job *job = argument;
    const struct zr_embedding *s = job->shape;
    size_t from, to;
    zr_part_range(s->channels, LINE_FLOATS, part, parts, &from, &to);
    for (size_t row = 0; row < s->batch * s->sequence && from < to; row++) {
        const float *d = job->d + row * s->channels + from;
        float *dwte = job->dwte + (size_t)s->tokens[row] * s->channels + from;
        float *dwpe = job->dwpe + row % s->sequence * s->channels + from;
        job->loops->add(to - from, dwte, d, dwte);
        job->loops->add(to - from, dwpe, d, dwpe);
    }
}

static void embedding_backward(struct zr_kernel_context *context, const struct zr_embedding *shape,
                               const float *d, float *dwte, size_t wte_rows, float *dwpe, size_t wpe_rows,
                               bool accumulate)
{
    struct embedding_job job = {.shape = shape,
                                .loops = loops_of(context),
                                .d = d,
                                .dwte = dwte,
                                .dwpe = dwpe,
                                .wte_rows = wte_rows,
                                .wpe_rows = wpe_rows};
    if (!accumulate)
        zr_parallel_run(context, embedding_clear_part, &job);
    zr_parallel_run(context, embedding_backward_part, &job);
}

/* ---- Layer norm ------------------------------------------------------------------------------ */

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
                              const float *x, const float *w, const float *b, float *y, float *mean,
                              float *rstd)
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
    zr_part_range(job->work.channels, LINE_FLOATS, part, parts, &from, &to);
    job->loops->layernorm_backward_columns(&job->work, from, to);
    zr_part_range(job->work.rows, 1, part, parts, &from, &to);
    job->loops->layernorm_backward_rows(&job->work, from, to);
}

static void layernorm_backward(struct zr_kernel_context *context, const struct zr_layernorm *shape,
                               const float *x, const float *w, const float *mean, const float *rstd,
                               const float *dy, float *dx, bool accumulate_dx, float *dw, float *db,
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

/* ---- Linear ---------------------------------------------------------------------------------- */

static void linear_forward(struct zr_kernel_context *context, const struct zr_linear *shape, const float *x,
                           const float *w, const float *bias, float *y)
{
    zr_gemm(context,
            &(struct zr_gemm){
                .m = shape->rows, .n = shape->out, .k = shape->in, .a = x, .b = w, .c = y, .bias = bias});
}

struct bias_job {
    const struct zr_loops *loops;
    const struct zr_linear *shape;
    const float *dy;
    float *db;
    bool accumulate;
};

static void bias_part(void *argument, unsigned part, unsigned parts)
{
    const struct bias_job *job = argument;
    size_t from, to;
    zr_part_range(job->shape->out, LINE_FLOATS, part, parts, &from, &to);
    struct zr_tile tile = {(float *)job->dy + from, job->shape->rows, to - from, job->shape->out};
    job->loops->sum_rows(&tile, job->db + from, job->accumulate);
}

static void linear_backward(struct zr_kernel_context *context, const struct zr_linear *shape, const float *x,
                            const float *w, const float *dy, float *dx, float *dw, float *db, bool accumulate)
{
    if (dx != NULL)
        zr_gemm(context, &(struct zr_gemm){.m = shape->rows,
                                           .n = shape->in,
                                           .k = shape->out,
                                           .b_turned = true,
                                           .a = dy,
                                           .b = w,
                                           .c = dx});
    if (dw != NULL)
        zr_gemm(context, &(struct zr_gemm){.m = shape->in,
                                           .n = shape->out,
                                           .k = shape->rows,
                                           .a_turned = true,
                                           .accumulate = accumulate,
                                           .a = x,
                                           .b = dy,
                                           .c = dw});
    if (db != NULL)
        zr_parallel_run(context, bias_part, &(struct bias_job){loops_of(context), shape, dy, db, accumulate});
}

/* ---- Element by element ---------------------------------------------------------------------- */

struct elements_job {
    const struct zr_loops *loops;
    size_t n;
    const float *a, *b;
    float *out;
    float value;
};

static void gelu_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->gelu_forward(to - from, job->a + from, job->out + from);
}

static void gelu_forward(struct zr_kernel_context *context, size_t n, const float *x, float *y)
{
    zr_parallel_run(context, gelu_forward_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = x, .out = y});
}

static void gelu_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->gelu_backward(to - from, job->a + from, job->b + from, job->out + from);
}

static void gelu_backward(struct zr_kernel_context *context, size_t n, const float *x, const float *dy,
                          float *dx)
{
    zr_parallel_run(context, gelu_backward_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = x, .b = dy, .out = dx});
}

static void add_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->add(to - from, job->a + from, job->b + from, job->out + from);
}

static void add(struct zr_kernel_context *context, size_t n, const float *a, const float *b, float *out)
{
    zr_parallel_run(context, add_part,
                    &(struct elements_job){.loops = loops_of(context), .n = n, .a = a, .b = b, .out = out});
}

static void fill_part(void *argument, unsigned part, unsigned parts)
{
    const struct elements_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    if (job->value == 0.0f && !__builtin_signbit(job->value)) {
        memset(job->out + from, 0, (to - from) * sizeof(float));
        return;
    }
    for (size_t i = from; i < to; i++)
        job->out[i] = job->value;
}

static void fill(struct zr_kernel_context *context, size_t n, float value, float *x)
{
    zr_parallel_run(context, fill_part, &(struct elements_job){.n = n, .out = x, .value = value});
}

struct copy_job {
    size_t bytes;
    const char *from;
    char *to;
};

static void copy_part(void *argument, unsigned part, unsigned parts)
{
    const struct copy_job *job = argument;
    size_t from, to;
    zr_part_range(job->bytes, GRAIN * sizeof(float), part, parts, &from, &to);
    if (from < to)
        memcpy(job->to + from, job->from + from, to - from);
}

static void copy(struct zr_kernel_context *context, size_t bytes, const void *from, void *to)
{
    zr_parallel_run(context, copy_part, &(struct copy_job){bytes, from, to});
}

/* ---- The optimizer and what watches it ------------------------------------------------------- */

struct adamw_job {
    const struct zr_loops *loops;
    const struct zr_adamw *how;
    size_t n;
    const float *g;
    float *parameter, *momentum, *variance;
};

static void adamw_part(void *argument, unsigned part, unsigned parts)
{
    const struct adamw_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->adamw(job->how, to - from, job->parameter + from, job->g + from, job->momentum + from,
                      job->variance + from);
}

static void adamw(struct zr_kernel_context *context, const struct zr_adamw *how, size_t n, float *parameter,
                  const float *g, float *momentum, float *variance)
{
    zr_parallel_run(context, adamw_part,
                    &(struct adamw_job){loops_of(context), how, n, g, parameter, momentum, variance});
}

struct squares_job {
    const struct zr_loops *loops;
    size_t n;
    const float *x;
    double *sums; /* one per block of SQUARES_BLOCK */
};

enum { SQUARES_BLOCK = 4096, SQUARES_BLOCKS = ZR_PARTIAL_BYTES / sizeof(double) };

static void squares_part(void *argument, unsigned part, unsigned parts)
{
    const struct squares_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, SQUARES_BLOCK, part, parts, &from, &to);
    for (size_t i = from; i < to; i += SQUARES_BLOCK)
        job->sums[i / SQUARES_BLOCK] =
            job->loops->sum_of_squares(to - i < SQUARES_BLOCK ? to - i : SQUARES_BLOCK, job->x + i);
}

static double sum_of_squares(struct zr_kernel_context *context, size_t n, const float *x)
{
    const size_t round = (size_t)SQUARES_BLOCK * SQUARES_BLOCKS;
    double total = 0.0, *sums = zr_context_scratch(context, ZR_PARTIAL_BYTES);
    for (size_t from = 0; from < n; from += round) {
        size_t count = n - from < round ? n - from : round;
        zr_parallel_run(context, squares_part,
                        &(struct squares_job){loops_of(context), count, x + from, sums});
        for (size_t block = 0; block * SQUARES_BLOCK < count; block++)
            total += sums[block];
    }
    return total;
}

struct search_job {
    const struct zr_loops *loops;
    size_t n;
    const float *x;
    atomic_size_t first;
};

static void search_part(void *argument, unsigned part, unsigned parts)
{
    struct search_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    size_t found = from + job->loops->find_nonfinite(to - from, job->x + from);
    size_t first = atomic_load(&job->first);
    while (found < to && found < first && !atomic_compare_exchange_weak(&job->first, &first, found))
        ;
}

static size_t find_nonfinite(struct zr_kernel_context *context, size_t n, const float *x)
{
    struct search_job job = {.loops = loops_of(context), .n = n, .x = x};
    atomic_init(&job.first, n);
    zr_parallel_run(context, search_part, &job);
    return atomic_load(&job.first);
}

/* ---- Initial values, checksums --------------------------------------------------------------- */

struct normal_job {
    size_t n;
    uint64_t seed, first_index;
    float mean, deviation;
    float *x;
};

static void normal_part(void *argument, unsigned part, unsigned parts)
{
    const struct normal_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    for (size_t i = from; i < to; i++)
        job->x[i] = (float)((double)job->mean +
                            (double)job->deviation * zr_random_normal(job->seed, job->first_index + i));
}

static void init_normal(struct zr_kernel_context *context, size_t n, uint64_t seed, uint64_t first_index,
                        float mean, float deviation, float *x)
{
    zr_parallel_run(context, normal_part, &(struct normal_job){n, seed, first_index, mean, deviation, x});
}

enum { HASH_BLOCK = 1 << 16, HASH_LANES = 8 };

static uint64_t hash_mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 29) * 0x9fb21c651e98df25;
    return x ^ x >> 32;
}

/* Eight lanes; every step of a lane can be undone, so one changed word always changes its lane. */
static uint64_t hash_block(const char *data, size_t bytes, uint64_t index)
{
    uint64_t lane[HASH_LANES], word[HASH_LANES], hash = hash_mix(index + 0x9e3779b97f4a7c15);
    for (size_t j = 0; j < HASH_LANES; j++)
        lane[j] = hash_mix(hash + j);
    for (size_t i = 0; i < bytes; i += sizeof word) {
        size_t left = bytes - i;
        if (left < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, data + i, left < sizeof word ? left : sizeof word);
        for (size_t j = 0; j < HASH_LANES; j++) {
            uint64_t x = (lane[j] ^ word[j]) * 0x9e3779b97f4a7c15;
            lane[j] = x ^ x >> 29;
        }
    }
    for (size_t j = 0; j < HASH_LANES; j++)
        hash = hash_mix(hash ^ lane[j]) + j;
    return hash_mix(hash ^ bytes);
}

struct hash_job {
    const char *data;
    size_t bytes;
    atomic_uint_least64_t sum; /* blocks know their index, so the order they come in does not matter */
};

static void hash_part(void *argument, unsigned part, unsigned parts)
{
    struct hash_job *job = argument;
    size_t from, to;
    uint64_t sum = 0;
    zr_part_range(job->bytes, HASH_BLOCK, part, parts, &from, &to);
    for (size_t i = from; i < to; i += HASH_BLOCK)
        sum += hash_block(job->data + i, to - i < HASH_BLOCK ? to - i : HASH_BLOCK, i / HASH_BLOCK);
    atomic_fetch_add(&job->sum, sum);
}

static uint64_t checksum(struct zr_kernel_context *context, size_t bytes, const void *data)
{
    struct hash_job job = {.data = data, .bytes = bytes};
    atomic_init(&job.sum, hash_mix(bytes));
    zr_parallel_run(context, hash_part, &job);
    return hash_mix(atomic_load(&job.sum));
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

struct convert_job {
    const struct zr_loops *loops;
    size_t n;
    float *wide;
    uint16_t *narrow;
};

static void narrow_part(void *argument, unsigned part, unsigned parts)
{
    const struct convert_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->bf16_from_float(to - from, job->wide + from, job->narrow + from);
}

static void widen_part(void *argument, unsigned part, unsigned parts)
{
    const struct convert_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, GRAIN, part, parts, &from, &to);
    job->loops->bf16_to_float(to - from, job->narrow + from, job->wide + from);
}

void zr_bf16_from_float(struct zr_kernel_context *context, size_t n, const float *from, uint16_t *to)
{
    zr_parallel_run(context, narrow_part, &(struct convert_job){loops_of(context), n, (float *)from, to});
}

void zr_bf16_to_float(struct zr_kernel_context *context, size_t n, const uint16_t *from, float *to)
{
    zr_parallel_run(context, widen_part, &(struct convert_job){loops_of(context), n, to, (uint16_t *)from});
}

void zr_bf16_product(struct zr_kernel_context *context, const struct zr_linear *shape, const uint16_t *x,
                     const uint16_t *w, float *y)
{
    zr_gemm(context, &(struct zr_gemm){.m = shape->rows,
                                       .n = shape->out,
                                       .k = shape->in,
                                       .element = ZR_ELEMENT_BF16,
                                       .a = x,
                                       .b = w,
                                       .c = y});
}

/* ---- The tables ------------------------------------------------------------------------------ */

/* They differ in the one operation that knows no context. */
#define CPU_TABLE(loops_sum)                                                                                 \
    {                                                                                                        \
        .name = "cpu", .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,     \
        .layernorm_forward = layernorm_forward, .layernorm_backward = layernorm_backward,                    \
        .linear_forward = linear_forward, .linear_backward = linear_backward,                                \
        .attention_forward = zr_cpu_attention_forward, .attention_backward = zr_cpu_attention_backward,      \
        .gelu_forward = gelu_forward, .gelu_backward = gelu_backward, .add = add,                            \
        .head_loss = zr_cpu_head_loss, .head_logits = zr_cpu_head_logits, .adamw = adamw,                    \
        .sum_of_squares = sum_of_squares, .init_normal = init_normal, .fill = fill, .copy = copy,            \
        .find_nonfinite = find_nonfinite, .checksum = checksum, .sum_in_order = loops_sum                    \
    }

static void sum_plain(size_t n, const float *const *from, unsigned count, float scale, float *to,
                      bool accumulate)
{
    zr_loops_plain.sum_in_order(n, from, count, scale, to, accumulate);
}

static void sum_avx2(size_t n, const float *const *from, unsigned count, float scale, float *to,
                     bool accumulate)
{
    zr_loops_avx2.sum_in_order(n, from, count, scale, to, accumulate);
}

static void sum_avx512(size_t n, const float *const *from, unsigned count, float scale, float *to,
                       bool accumulate)
{
    zr_loops_avx512.sum_in_order(n, from, count, scale, to, accumulate);
}

static const struct zr_kernels cpu_plain = CPU_TABLE(sum_plain), cpu_avx2 = CPU_TABLE(sum_avx2),
                               cpu_avx512 = CPU_TABLE(sum_avx512);

const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa)
{
    switch (isa) {
    case ZR_ISA_AVX512:
    case ZR_ISA_AVX512_BF16:
        return &cpu_avx512;
    case ZR_ISA_AVX2:
        return &cpu_avx2;
    default:
        return &cpu_plain;
    }
}
