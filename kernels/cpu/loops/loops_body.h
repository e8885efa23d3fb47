/* loops_body.h: the inner loops, written once over simd.h's vector and element.h's element, and compiled once
 * per instruction set and precision by the loops_*.c files, which name the table (ZR_LOOPS) and the
 * precision. Everything but the table is static. */
#include "kernels/cpu/loops/element.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/real.h"
#include "kernels/cpu/loops/simd.h"
#include "kernels/dropout.h"
#include "kernels/packing.h"

#include <math.h>
#include <string.h>

#define FORMULA  VF_INLINE
#define num      vf
#define num_of   vf_set
#define num_fma  vf_fma
#define num_exp  vf_exp
#define num_sqrt vf_sqrt
#define num_max  vf_max
#include "kernels/formulas.h"

#ifndef ZR_LOOPS
#error "loops_body.h is included by the loops_*.c files only"
#endif

/* ---- Element by element -------------------------------------------------------------------------------- */

static void exponential(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        vf_put(y + i, n - i, vf_exp(vf_get(x + i, n - i)));
}

static void widen(size_t n, const void *from, float *to)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        vf_put(to + i, n - i, el_get((const el *)from + i, n - i));
}

static void narrow(size_t n, const float *from, void *to)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        el_put((el *)to + i, n - i, vf_get(from + i, n - i));
}

static void gelu_forward(const void *args, size_t from, size_t to)
{
    const struct zr_gelu_forward *a = args;
    for (size_t i = from; i < to; i += VF_LANES) {
        vf v = el_get((const el *)a->x + i, to - i);
        el_put((el *)a->y + i, to - i, formula_activate(a->activation, v));
    }
}

static void gelu_backward(const void *args, size_t from, size_t to)
{
    const struct zr_gelu_backward *a = args;
    for (size_t i = from; i < to; i += VF_LANES) {
        vf slope = formula_activation_slope(a->activation, el_get((const el *)a->x + i, to - i));
        el_put((el *)a->dx + i, to - i, el_get((const el *)a->dy + i, to - i) * slope);
    }
}

static void add_elements(size_t n, const el *a, const el *b, el *out)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        el_put(out + i, n - i, el_get(a + i, n - i) + el_get(b + i, n - i));
}

static void add(const void *args, size_t from, size_t to)
{
    const struct zr_add *a = args;
    add_elements(to - from, (const el *)a->a + from, (const el *)a->b + from, (el *)a->out + from);
}

/* The row of the micro-batch that is row `row` of x. */
static size_t dropped_row(const struct zr_dropout *a, size_t row)
{
    row += a->first_row;
    return a->part.ranks <= 1 ? row
                              : row / a->part.tokens * a->part.tokens * a->part.ranks +
                                    zr_context_token(a->part, row % a->part.tokens);
}

static void dropout(const void *args, size_t from, size_t to)
{
    const struct zr_dropout *a = args;
    _Static_assert(VF_LANES % 4 == 0, "the factors of a vector are whole groups");
    for (size_t row = from; row < to; row++)
        for (size_t c = 0; c < a->columns; c += VF_LANES) {
            size_t at = row * a->columns + c, left = a->columns - c;
            float factors[VF_LANES];
            for (size_t i = 0; i < VF_LANES; i += 4)
                zr_dropout_factors(a, dropped_row(a, row), (c + i) / 4, factors + i);
            el_put((el *)a->y + at, left, el_get((const el *)a->x + at, left) * vf_get(factors, VF_LANES));
        }
}

/* The sum remains in a register and is rounded once. */
static void add_chain(const struct zr_chain_sum *s)
{
    for (size_t c = 0; c < s->columns; c += VF_LANES) {
        const el *from = (const el *)s->from + c;
        el *to = (el *)s->to + c;
        size_t left = s->columns - c;
        vf sum = el_get(to, left);
        if (s->next != NULL)
            for (int32_t row = s->first; row >= 0; row = s->next[row])
                sum += el_get(from + (size_t)row * s->stride, left);
        else
            for (int32_t row = s->first; row < s->end; row += s->step)
                sum += el_get(from + (size_t)row * s->stride, left);
        el_put(to, left, sum);
    }
}

static void add_to_rows(const struct zr_tile *tile, const float *bias)
{
    for (size_t r = 0; r < tile->rows; r++) {
        float *row = (float *)tile->at + r * tile->stride;
        for (size_t i = 0; i < tile->columns; i += VF_LANES)
            vf_put(row + i, tile->columns - i,
                   vf_get(row + i, tile->columns - i) + vf_get(bias + i, tile->columns - i));
    }
}

/* Gradient of a bias: sums over the rows of dy, in blocks of 64 rows added in order. */
static void bias_backward_columns(const void *args, size_t from, size_t to)
{
    const struct zr_linear_backward *a = args;
    const el *at = a->dy;
    el *out = a->db;
    size_t rows = a->shape.rows, stride = a->shape.y_stride ? a->shape.y_stride : a->shape.out;
    enum { WIDE = 4, BLOCK = 64 };
    for (size_t c = from; c < to; c += WIDE * VF_LANES) {
        size_t left = to - c, vectors = (left + VF_LANES - 1) / VF_LANES;
        vf total[WIDE];
        if (vectors > WIDE)
            vectors = WIDE;
        for (size_t v = 0; v < vectors; v++)
            total[v] = a->accumulate ? el_get(out + c + v * VF_LANES, left - v * VF_LANES) : vf_set(0.0f);
        for (size_t block = 0; block < rows; block += BLOCK) {
            size_t end = rows - block < BLOCK ? rows : block + BLOCK;
            vf sum[WIDE] = {0};
            for (size_t r = block; r < end; r++)
                for (size_t v = 0; v < vectors; v++)
                    sum[v] += el_get(at + r * stride + c + v * VF_LANES, left - v * VF_LANES);
            for (size_t v = 0; v < vectors; v++)
                total[v] += sum[v];
        }
        for (size_t v = 0; v < vectors; v++)
            el_put(out + c + v * VF_LANES, left - v * VF_LANES, total[v]);
    }
}

/* Gradient of a bias: sums over the rows of dx, which is computed here, in a strip of columns that fits the
 * L1 cache. */
static void gelu_bias_backward_columns(const void *args, size_t from, size_t to)
{
    const struct zr_gelu_bias_backward *a = args;
    el *db = a->db;
    enum { STRIP = 32, BLOCK = 64 };
    for (size_t c = from; c < to; c += STRIP * VF_LANES) {
        size_t left = to - c < STRIP * VF_LANES ? to - c : STRIP * VF_LANES;
        vf total[STRIP];
        for (size_t i = 0, v = 0; i < left; i += VF_LANES, v++)
            total[v] = a->accumulate ? el_get(db + c + i, left - i) : vf_set(0.0f);
        for (size_t block = 0; block < a->rows; block += BLOCK) {
            size_t end = a->rows - block < BLOCK ? a->rows : block + BLOCK;
            vf sum[STRIP] = {0};
            for (size_t r = block; r < end; r++) {
                const el *x = (const el *)a->x + r * a->columns + c;
                const el *dy = (const el *)a->dy + r * a->columns + c;
                el *dx = (el *)a->dx + r * a->columns + c;
                for (size_t i = 0, v = 0; i < left; i += VF_LANES, v++) {
                    vf slope = formula_gelu_slope(el_get(x + i, left - i));
                    el_put(dx + i, left - i, el_get(dy + i, left - i) * slope);
                    sum[v] += el_get(dx + i, left - i);
                }
            }
            for (size_t v = 0; v * VF_LANES < left; v++)
                total[v] += sum[v];
        }
        for (size_t i = 0, v = 0; i < left; i += VF_LANES, v++)
            el_put(db + c + i, left - i, total[v]);
    }
}

/* ---- Embedding ----------------------------------------------------------------------------------------- */

static void embedding_forward(const void *args, size_t from, size_t to)
{
    const struct zr_embedding_forward *a = args;
    for (size_t row = from; row < to; row++) {
        size_t token = (size_t)a->tokens[row] - a->first_row;
        el *y = (el *)a->y + row * a->channels;
        if (a->w_rows == 0 || token < a->w_rows)
            memcpy(y, (const el *)a->w + token * a->channels, a->channels * sizeof(el));
        else if (!a->keeps)
            memset(y, 0, a->channels * sizeof(el));
    }
}

static void positions_forward(const void *args, size_t from, size_t to)
{
    const struct zr_positions_forward *a = args;
    for (size_t row = from; row < to; row++) {
        size_t position = a->positions ? (size_t)a->positions[row] : (a->first_row + row) % a->sequence;
        el *y = (el *)a->y + row * a->channels;
        add_elements(a->channels, y, (const el *)a->w + position * a->channels, y);
    }
}

static void positions_backward_columns(const void *args, size_t from, size_t to)
{
    const struct zr_positions_backward *a = args;
    for (size_t t = 0; t < a->sequence && t < a->rows; t++)
        add_chain(
            &(struct zr_chain_sum){.columns = to - from,
                                   .stride = a->channels,
                                   .to = (el *)a->dw + (a->first_row + t) % a->sequence * a->channels + from,
                                   .from = (const el *)a->dy + from,
                                   .first = (int32_t)t,
                                   .step = (int32_t)a->sequence,
                                   .end = (int32_t)a->rows});
}

/* ---- Layer norm ---------------------------------------------------------------------------------------- */

static void layernorm_forward(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_layernorm_forward *work = args;
    size_t n = work->shape.channels;
    for (size_t row = from_row; row < to_row; row++) {
        const el *x = (const el *)work->x + row * n, *w = work->w, *b = work->b;
        el *y = (el *)work->y + row * n;
        vf sum = vf_set(0.0f), squares = vf_set(0.0f);
        for (size_t i = 0; i < n; i += VF_LANES)
            sum += el_get(x + i, n - i);
        float mean = vf_sum(sum) / (float)n;
        size_t whole = n / VF_LANES * VF_LANES;
        for (size_t i = 0; i < whole; i += VF_LANES) {
            vf d = el_get(x + i, VF_LANES) - vf_set(mean);
            squares = vf_fma(d, d, squares);
        }
        float variance = vf_sum(squares);
        for (size_t i = whole; i < n; i++)
            variance += (el_one(x + i) - mean) * (el_one(x + i) - mean);
        variance /= (float)n;
        float rstd = 1.0f / sqrtf(variance + (work->shape.epsilon > 0 ? work->shape.epsilon : 1e-5f));
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf d = (el_get(x + i, n - i) - vf_set(mean)) * vf_set(rstd);
            el_put(y + i, n - i, vf_fma(d, el_get(w + i, n - i), el_get(b + i, n - i)));
        }
        work->mean[row] = mean;
        work->rstd[row] = rstd;
    }
}

/* The norm reads each row of the sum from the L1 cache. */
static void residual_layernorm(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_residual_layernorm *work = args;
    struct zr_layernorm_forward norm = work->norm;
    size_t n = norm.shape.channels;
    norm.x = work->sum;
    for (size_t row = from_row; row < to_row; row++) {
        add_elements(n, (const el *)work->a + row * n, (const el *)work->b + row * n,
                     (el *)work->sum + row * n);
        layernorm_forward(&norm, row, row + 1);
    }
}

static void layernorm_backward(const void *args, size_t from_row, size_t to_row)
{
    const struct zr_layernorm_backward *work = args;
    size_t n = work->shape.channels;
    for (size_t row = from_row; row < to_row; row++) {
        const el *x = (const el *)work->x + row * n, *dy = (const el *)work->dy + row * n, *w = work->w;
        el *dx = (el *)work->dx + row * n;
        vf mean = vf_set(work->mean[row]), rstd = vf_set(work->rstd[row]);
        vf plain = vf_set(0.0f), along = vf_set(0.0f);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf g = el_get(dy + i, n - i) * el_get(w + i, n - i);
            plain += g;
            along = vf_fma(g, (el_get(x + i, n - i) - mean) * rstd, along);
        }
        vf plain_mean = vf_set(vf_sum(plain) / (float)n), along_mean = vf_set(vf_sum(along) / (float)n);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf g = el_get(dy + i, n - i) * el_get(w + i, n - i);
            vf normal = (el_get(x + i, n - i) - mean) * rstd;
            vf d = formula_layernorm_backward(rstd, g, normal, plain_mean, along_mean);
            el_put(dx + i, n - i, el_onto(dx + i, n - i, d, work->accumulate_dx));
        }
    }
}

/* dw and db of the channels [from, to), over all rows in blocks of 64 added in order. */
static void layernorm_backward_columns(const void *args, size_t from, size_t to)
{
    const struct zr_layernorm_backward *work = args;
    enum { BLOCK = 64 };
    const el *x = work->x, *dy = work->dy;
    el *dw_out = work->dw, *db_out = work->db;
    for (size_t c = from; c < to; c += VF_LANES) {
        size_t left = to - c;
        vf dw = work->accumulate && dw_out ? el_get(dw_out + c, left) : vf_set(0.0f);
        vf db = work->accumulate && db_out ? el_get(db_out + c, left) : vf_set(0.0f);
        for (size_t block = 0; block < work->shape.rows; block += BLOCK) {
            size_t end = work->shape.rows - block < BLOCK ? work->shape.rows : block + BLOCK;
            vf block_dw = vf_set(0.0f), block_db = vf_set(0.0f);
            for (size_t row = block; row < end; row++) {
                vf g = el_get(dy + row * work->shape.channels + c, left);
                vf normal = (el_get(x + row * work->shape.channels + c, left) - vf_set(work->mean[row])) *
                            vf_set(work->rstd[row]);
                block_dw = vf_fma(g, normal, block_dw);
                block_db += g;
            }
            dw += block_dw;
            db += block_db;
        }
        if (dw_out)
            el_put(dw_out + c, left, dw);
        if (db_out)
            el_put(db_out + c, left, db);
    }
}

#include "kernels/cpu/loops/loops_attention.h"
#include "kernels/cpu/loops/loops_llama.h"
#include "kernels/cpu/loops/loops_optimizers.h"
#include "kernels/cpu/loops/loops_pack.h"
#include "kernels/cpu/loops/loops_reduce.h"

const struct zr_loops ZR_LOOPS = {
    .element_bytes = sizeof(el),
    .exponential = exponential,
    .widen = widen,
    .narrow = narrow,
    .add_chain = add_chain,
    .add_to_rows = add_to_rows,
    .small_product = small_product,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .sum_of_squares = sum_of_squares,
    .find_nonfinite = find_nonfinite,
    .embedding_forward = embedding_forward,
    .positions_forward = positions_forward,
    .positions_backward_columns = positions_backward_columns,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .layernorm_backward_columns = layernorm_backward_columns,
    .rmsnorm_forward = rmsnorm_forward,
    .residual_layernorm = residual_layernorm,
    .residual_rmsnorm = residual_rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rmsnorm_backward_columns = rmsnorm_backward_columns,
    .bias_backward_columns = bias_backward_columns,
    .gelu_bias_backward_columns = gelu_bias_backward_columns,
    .rotary = rotary,
    .cross_entropy = cross_entropy,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .add = add,
    .dropout = dropout,
    .update_adamw = update_adamw,
    .update_sgd = update_sgd,
    .update_adamw8 = update_adamw8,
    .factor_columns = factor_columns,
    .factor_quotients = factor_quotients,
    .update_factored = update_factored,
    .muon_direction = muon_direction,
    .apply_direction = apply_direction,
    .lamb_steps = lamb_steps,
    .update_lamb = update_lamb,
    .sum = sum,
    .pack = pack,
    .unpack = unpack,
};
