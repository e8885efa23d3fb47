/* cpu.c: the CPU table and its operations on the model's tensors. An operation divides its work over the
 * context's threads and calls the inner loops of the context's instruction set and precision. attention.c has
 * attention, optimizers.c and state.c the operations on optimizer state. Work is divided by rows, columns,
 * heads or fixed blocks whose results are combined in a fixed order, so the bits do not depend on the number
 * of threads. */
#include "kernels/cpu/cpu.h"
#include "alloc/base/error.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/fp8.h"
#include "kernels/real.h"
#include "kernels/sizes.h"
#include "kernels/state.h"

static const struct zr_loops *loops_of(const struct zr_kernel_context *context)
{
    return zr_loops_of[context->isa][context->precision];
}

/* ---- Operations by rows or elements -------------------------------------------------------------------- */

/* Defines an operation that is one loop over args->count, divided at multiples of `grain`. */
#define BY(name, count, grain)                                                                               \
    static zr_result name(struct zr_kernel_context *context, const struct zr_##name *args)                   \
    {                                                                                                        \
        return zr_loop_run(context, loops_of(context)->name, args, args->count, grain);                      \
    }

BY(embedding_forward, rows, 1)
BY(positions_forward, rows, 1)
BY(layernorm_forward, shape.rows, 1)
BY(rmsnorm_forward, rows, 1)
BY(residual_layernorm, norm.shape.rows, 1)
BY(residual_rmsnorm, norm.rows, 1)
BY(rotary, rows, 1)
BY(cross_entropy, rows, 1)
BY(dropout, rows, 1)
BY(gelu_forward, n, ZR_GRAIN)
BY(gelu_backward, n, ZR_GRAIN)
BY(swiglu_forward, n, ZR_GRAIN)
BY(swiglu_backward, n, ZR_GRAIN)
BY(add, n, ZR_GRAIN)

/* Weights' gradients first, because dx may overwrite their inputs. */
static zr_result layernorm_backward(struct zr_kernel_context *context,
                                    const struct zr_layernorm_backward *args)
{
    const struct zr_loops *loops = loops_of(context);
    zr_result result = args->dw || args->db ? zr_loop_run(context, loops->layernorm_backward_columns, args,
                                                          args->shape.channels, ZR_LINE_ELEMENTS)
                                            : ZR_OK;
    return result == ZR_OK && args->dx
               ? zr_loop_run(context, loops->layernorm_backward, args, args->shape.rows, 1)
               : result;
}

static zr_result rmsnorm_backward(struct zr_kernel_context *context, const struct zr_rmsnorm_backward *args)
{
    const struct zr_loops *loops = loops_of(context);
    zr_result result = args->dw ? zr_loop_run(context, loops->rmsnorm_backward_columns, args, args->channels,
                                              ZR_LINE_ELEMENTS)
                                : ZR_OK;
    return result == ZR_OK && args->dx ? zr_loop_run(context, loops->rmsnorm_backward, args, args->rows, 1)
                                       : result;
}

static zr_result gelu_bias_backward(struct zr_kernel_context *context,
                                    const struct zr_gelu_bias_backward *args)
{
    return zr_loop_run(context, loops_of(context)->gelu_bias_backward_columns, args, args->columns,
                       ZR_LINE_ELEMENTS);
}

static void rotary_table_pairs(const void *args, size_t from, size_t to)
{
    const struct zr_rotary_table *table = args;
    size_t half = table->width / 2;
    for (size_t i = from; i < to; i++) {
        double scale, frequency = zr_rotary_frequency(table, i, &scale);
        for (size_t t = 0; t < table->sequence; t++) {
            double sine, cosine;
            zr_real_sine_cosine((double)t * frequency, &sine, &cosine);
            table->cosines[t * half + i] = (float)(cosine * scale);
            table->sines[t * half + i] = (float)(sine * scale);
        }
    }
}

static zr_result rotary_table(struct zr_kernel_context *context, const struct zr_rotary_table *args)
{
    return zr_loop_run(context, rotary_table_pairs, args, args->width / 2, 1);
}

/* ---- Embeddings ---------------------------------------------------------------------------------------- */

/* Rows with the same token, chained in order, so that a token's sum is rounded once. */
struct chains {
    const struct zr_embedding_backward *args;
    const struct zr_loops *loops;
    int32_t *next;  /* [rows]: next row with the same token; -1: end */
    int32_t *first; /* [count]: first row of each chain */
    size_t count;
};

/* Open-addressing hash table from a token to the last row of its chain. */
static void chains_find(struct chains *chains, int32_t *last)
{
    const int32_t *tokens = chains->args->tokens;
    size_t rows = chains->args->rows, slots = zr_chains_slots(rows);
    chains->next = last + slots;
    chains->first = last + slots + rows;
    for (size_t i = 0; i < slots; i++)
        last[i] = -1;
    for (size_t row = 0; row < rows; row++) {
        size_t slot = (uint32_t)tokens[row] * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (slots - 1);
        while (last[slot] >= 0 && tokens[last[slot]] != tokens[row])
            slot = (slot + 1) & (slots - 1);
        if (last[slot] >= 0)
            chains->next[last[slot]] = (int32_t)row;
        else
            chains->first[chains->count++] = (int32_t)row;
        chains->next[row] = -1;
        last[slot] = (int32_t)row;
    }
}

/* A task has some channels of all rows, so that repeated tokens are added in order. */
static void chains_add(const void *args, size_t from, size_t to)
{
    const struct chains *chains = args;
    const struct zr_embedding_backward *e = chains->args;
    size_t bytes = chains->loops->element_bytes;
    for (size_t i = 0; i < chains->count; i++) {
        int32_t first = chains->first[i];
        size_t token = (size_t)e->tokens[first] - e->first_row, at = token * e->channels + from;
        if (token >= e->w_rows)
            continue;
        chains->loops->add_chain(&(struct zr_chain_sum){.columns = to - from,
                                                        .stride = e->channels,
                                                        .to = (char *)e->dw + at * bytes,
                                                        .from = (const char *)e->dy + from * bytes,
                                                        .first = first,
                                                        .next = chains->next});
    }
}

static zr_result embedding_backward(struct zr_kernel_context *context,
                                    const struct zr_embedding_backward *args)
{
    struct chains chains = {.args = args, .loops = loops_of(context)};
    void *scratch;
    zr_result result = zr_context_scratch(context, zr_chains_bytes(args->rows), &scratch);
    if (result == ZR_OK && !args->accumulate)
        result = zr_cpu_clear(
            context,
            &(struct zr_clear){args->w_rows * args->channels * chains.loops->element_bytes, args->dw});
    if (result != ZR_OK)
        return result;
    chains_find(&chains, scratch);
    return zr_loop_run(context, chains_add, &chains, args->channels, ZR_LINE_ELEMENTS);
}

static zr_result positions_backward(struct zr_kernel_context *context,
                                    const struct zr_positions_backward *args)
{
    const struct zr_loops *loops = loops_of(context);
    zr_result result = ZR_OK;
    if (!args->accumulate)
        result = zr_cpu_clear(
            context, &(struct zr_clear){args->w_rows * args->channels * loops->element_bytes, args->dw});
    return result == ZR_OK ? zr_loop_run(context, loops->positions_backward_columns, args, args->channels,
                                         ZR_LINE_ELEMENTS)
                           : result;
}

/* ---- Softmax of several shares ------------------------------------------------------------------------- */

/* Merges softmax parts. A part without columns adds nothing. Values that are not finite propagate; a part
 * with no other values may have no largest logit. */
static void merge_rows(const void *args, size_t from, size_t to)
{
    const struct zr_softmax_merge *merge = args;
    for (size_t row = from; row < to; row++) {
        struct zr_softmax_part all = merge->parts[row];
        for (unsigned i = 1; i < merge->count; i++) {
            float most = merge->parts[i * merge->rows + row].most;
            all.most = most > all.most || most != most ? most : all.most;
        }
        all.sum = all.target = 0;
        for (unsigned i = 0; i < merge->count; i++) {
            const struct zr_softmax_part *part = &merge->parts[i * merge->rows + row];
            double below = (double)part->most - (double)all.most;
            all.target += part->target;
            all.sum += part->sum * (below < -700 ? 0 : zr_real_exp(below));
        }
        merge->all[row] = all;
    }
}

static zr_result softmax_merge(struct zr_kernel_context *context, const struct zr_softmax_merge *args)
{
    return zr_loop_run(context, merge_rows, args, args->rows, 1);
}

/* ---- Linear -------------------------------------------------------------------------------------------- */

/* c[m, n] (+)= op(a) op(b) + bias[n], in the context's precision; with `floats` c is float. */
static zr_result multiply(struct zr_kernel_context *context, const struct zr_gemm *p, bool floats)
{
    if (context->library == NULL)
        return zr_fail(ZR_ERR_INVALID, "a product was called with a context that is not open");
    if (context->precision == ZR_PRECISION_FP32)
        return zr_gemm(context, p);
    return zr_product(context,
                      &(struct zr_product){.m = p->m,
                                           .n = p->n,
                                           .k = p->k,
                                           .a_turned = p->a_turned,
                                           .b_turned = p->b_turned,
                                           .accumulate = p->accumulate,
                                           .precision = context->precision,
                                           .a = (const void *)p->a,
                                           .a_stride = p->a_stride,
                                           .b = (const void *)p->b,
                                           .b_stride = p->b_stride,
                                           .c_stride = p->c_stride,
                                           .c = {p->c, floats ? ZR_PRECISION_FP32 : context->precision},
                                           .bias = (const void *)p->bias});
}

zr_result zr_cpu_linear_forward(struct zr_kernel_context *context, const struct zr_linear_forward *args)
{
    const struct zr_linear *shape = &args->shape;
    if (shape->fp8 && zr_fp8_suits(shape))
        return zr_cpu_fp8_forward(context, args);
    return multiply(context,
                    &(struct zr_gemm){.m = shape->rows,
                                      .n = shape->out,
                                      .k = shape->in,
                                      .b_turned = shape->turned,
                                      .a = args->x,
                                      .a_stride = shape->x_stride,
                                      .b = args->w,
                                      .c = args->y,
                                      .c_stride = shape->y_stride,
                                      .bias = args->bias},
                    args->floats);
}

zr_result zr_cpu_linear_backward(struct zr_kernel_context *context, const struct zr_linear_backward *args)
{
    const struct zr_linear *shape = &args->shape;
    if (shape->fp8 && zr_fp8_suits(shape))
        return zr_cpu_fp8_backward(context, args);
    struct zr_gemm weights = {.m = shape->in,
                              .n = shape->out,
                              .k = shape->rows,
                              .a_turned = true,
                              .accumulate = args->accumulate,
                              .a = args->x,
                              .a_stride = shape->x_stride,
                              .b = args->dy,
                              .b_stride = shape->y_stride,
                              .c = args->dw};
    zr_result result = ZR_OK;
    if (args->dx != NULL)
        result = multiply(context,
                          &(struct zr_gemm){.m = shape->rows,
                                            .n = shape->in,
                                            .k = shape->out,
                                            .b_turned = !shape->turned,
                                            .accumulate = args->accumulate_dx,
                                            .a = args->dy,
                                            .a_stride = shape->y_stride,
                                            .b = args->w,
                                            .c = args->dx,
                                            .c_stride = shape->x_stride},
                          false);
    if (shape->turned) { /* transposed weights */
        weights.m = shape->out;
        weights.n = shape->in;
        weights.a = args->dy;
        weights.a_stride = shape->y_stride;
        weights.b = args->x;
        weights.b_stride = shape->x_stride;
    }
    if (args->dw != NULL && result == ZR_OK)
        result = multiply(context, &weights, false);
    if (args->db != NULL && result == ZR_OK)
        result = zr_loop_run(context, loops_of(context)->bias_backward_columns, args, shape->out,
                             ZR_LINE_ELEMENTS);
    return result;
}

/* ---- The tables ---------------------------------------------------------------------------------------- */

/* The tables differ only in sum(), which may have no context. */
#define SUM(isa)                                                                                             \
    static zr_result sum_##isa(struct zr_kernel_context *context, const struct zr_sum *args)                 \
    {                                                                                                        \
        zr_loop *loop = zr_loops_of[isa][args->precision]->sum;                                              \
        if (context != NULL)                                                                                 \
            return zr_loop_run(context, loop, args, args->n, ZR_GRAIN);                                      \
        loop(args, 0, args->n);                                                                              \
        return ZR_OK;                                                                                        \
    }
SUM(ZR_ISA_PLAIN)
SUM(ZR_ISA_AVX2)
SUM(ZR_ISA_AVX512)

#define CPU_TABLE(isa)                                                                                       \
    {                                                                                                        \
        .version = ZR_KERNELS_VERSION, .name = "cpu", .executes = true, .host_visible = true,                \
        .deterministic_sums = true, .reads_probabilities = true, .workspace_bytes = zr_cpu_workspace_bytes,  \
        .orthogonalize_bytes = zr_orthogonalize_bytes, .open = zr_cpu_open, .close = zr_cpu_close,           \
        .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,                    \
        .positions_forward = positions_forward, .positions_backward = positions_backward,                    \
        .layernorm_forward = layernorm_forward, .layernorm_backward = layernorm_backward,                    \
        .rmsnorm_forward = rmsnorm_forward, .rmsnorm_backward = rmsnorm_backward,                            \
        .linear_forward = zr_cpu_linear_forward, .linear_backward = zr_cpu_linear_backward,                  \
        .rotary_table = rotary_table, .rotary = rotary, .attention_forward = zr_cpu_attention_forward,       \
        .attention_backward = zr_cpu_attention_backward, .gelu_forward = gelu_forward,                       \
        .gelu_backward = gelu_backward, .swiglu_forward = swiglu_forward,                                    \
        .swiglu_backward = swiglu_backward, .add = add, .dropout = dropout, .average = zr_cpu_average,       \
        .outer_step = zr_cpu_outer_step, .cross_entropy = cross_entropy, .softmax_merge = softmax_merge,     \
        .residual_layernorm = residual_layernorm, .residual_rmsnorm = residual_rmsnorm,                      \
        .gelu_bias_backward = gelu_bias_backward, .weigh_gradients = zr_cpu_weigh_gradients,                 \
        .update_adamw = zr_cpu_update_adamw, .update_sgd = zr_cpu_update_sgd,                                \
        .update_adamw8 = zr_cpu_update_adamw8, .block8_read = zr_cpu_block8_read,                            \
        .block8_write = zr_cpu_block8_write, .factor_sums = zr_cpu_factor_sums,                              \
        .factor_moments = zr_cpu_factor_moments, .factor_norm = zr_cpu_factor_norm,                          \
        .update_factored = zr_cpu_update_factored, .muon_direction = zr_cpu_muon_direction,                  \
        .orthogonalize = zr_cpu_orthogonalize, .apply_direction = zr_cpu_apply_direction,                    \
        .lamb_norms = zr_cpu_lamb_norms, .update_lamb = zr_cpu_update_lamb,                                  \
        .sum_of_squares = zr_cpu_sum_of_squares, .find_nonfinite = zr_cpu_find_nonfinite,                    \
        .checksum = zr_cpu_checksum, .init_normal = zr_cpu_init_normal, .convert = zr_cpu_convert,           \
        .clear = zr_cpu_clear, .copy_bytes = zr_cpu_copy_bytes, .sum = sum_##isa, .pack = zr_cpu_pack,       \
        .unpack = zr_cpu_unpack                                                                              \
    }

static const struct zr_kernels cpu_plain = CPU_TABLE(ZR_ISA_PLAIN), cpu_avx2 = CPU_TABLE(ZR_ISA_AVX2),
                               cpu_avx512 = CPU_TABLE(ZR_ISA_AVX512);

const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa)
{
    return isa >= ZR_ISA_AVX512 ? &cpu_avx512 : isa == ZR_ISA_AVX2 ? &cpu_avx2 : &cpu_plain;
}
