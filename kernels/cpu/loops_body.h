/* loops_body.h: the inner loops, written once over simd.h's vector and compiled once per instruction set by
 * the loops_*.c files, which name the table (ZR_LOOPS). Everything but the table is static. */
#include "kernels/cpu/loops.h"
#include "kernels/cpu/real_log.h"
#include "kernels/cpu/simd.h"

#include <math.h>
#include <string.h>

#ifndef ZR_LOOPS
#error "loops_body.h is included by the loops_*.c files only"
#endif

/* ---- Element by element ---------------------------------------------------------------------- */

static void exponential(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        vf_put(y + i, n - i, vf_exp(vf_get(x + i, n - i)));
}

static const float gelu_root = 0.7978845608f; /* sqrt(2 / pi) */
static const float gelu_cubic = 0.044715f;

/* (1 + tanh u) / 2 is 1 / (1 + e^-2u): one exponential, and no cancellation where tanh nears -1. */
VF_INLINE vf gelu_gate(vf x)
{
    vf u = x * vf_fma(x * x, vf_set(gelu_root * gelu_cubic), vf_set(gelu_root));
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(vf_set(-2.0f) * u));
}

static void gelu_forward(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_get(x + i, n - i);
        vf_put(y + i, n - i, v * gelu_gate(v));
    }
}

static void gelu_backward(size_t n, const float *x, const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_get(x + i, n - i), gate = gelu_gate(v);
        vf slope = vf_fma(v * v, vf_set(6.0f * gelu_root * gelu_cubic), vf_set(2.0f * gelu_root));
        vf change = vf_fma(v * slope, gate * (vf_set(1.0f) - gate), gate);
        vf_put(dx + i, n - i, vf_get(dy + i, n - i) * change);
    }
}

static void add(size_t n, const float *a, const float *b, float *out)
{
    for (size_t i = 0; i < n; i += VF_LANES)
        vf_put(out + i, n - i, vf_get(a + i, n - i) + vf_get(b + i, n - i));
}

static void add_to_rows(const struct zr_tile *tile, const float *bias)
{
    for (size_t r = 0; r < tile->rows; r++)
        add(tile->columns, tile->at + r * tile->stride, bias, tile->at + r * tile->stride);
}

static void sum_rows(const struct zr_tile *tile, float *out, bool accumulate)
{
    enum { WIDE = 4, BLOCK = 64 };
    for (size_t c = 0; c < tile->columns; c += WIDE * VF_LANES) {
        size_t left = tile->columns - c, vectors = (left + VF_LANES - 1) / VF_LANES;
        vf total[WIDE];
        if (vectors > WIDE)
            vectors = WIDE;
        for (size_t v = 0; v < vectors; v++)
            total[v] = accumulate ? vf_get(out + c + v * VF_LANES, left - v * VF_LANES) : vf_set(0.0f);
        for (size_t block = 0; block < tile->rows; block += BLOCK) {
            size_t end = tile->rows - block < BLOCK ? tile->rows : block + BLOCK;
            vf sum[WIDE] = {0};
            for (size_t r = block; r < end; r++)
                for (size_t v = 0; v < vectors; v++)
                    sum[v] += vf_get(tile->at + r * tile->stride + c + v * VF_LANES, left - v * VF_LANES);
            for (size_t v = 0; v < vectors; v++)
                total[v] += sum[v];
        }
        for (size_t v = 0; v < vectors; v++)
            vf_put(out + c + v * VF_LANES, left - v * VF_LANES, total[v]);
    }
}

/* ---- Layer norm ------------------------------------------------------------------------------ */

static void layernorm_forward(const struct zr_layernorm_work *work, size_t from_row, size_t to_row)
{
    size_t n = work->channels;
    for (size_t row = from_row; row < to_row; row++) {
        const float *x = work->x + row * n;
        float *y = work->y + row * n;
        vf sum = vf_set(0.0f), squares = vf_set(0.0f);
        for (size_t i = 0; i < n; i += VF_LANES)
            sum += vf_get(x + i, n - i);
        float mean = vf_sum(sum) / (float)n;
        size_t whole = n / VF_LANES * VF_LANES;
        for (size_t i = 0; i < whole; i += VF_LANES) {
            vf d = vf_load(x + i) - vf_set(mean);
            squares = vf_fma(d, d, squares);
        }
        float variance = vf_sum(squares);
        for (size_t i = whole; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean);
        variance /= (float)n;
        float rstd = 1.0f / sqrtf(variance + 1e-5f);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf d = (vf_get(x + i, n - i) - vf_set(mean)) * vf_set(rstd);
            vf_put(y + i, n - i, vf_fma(d, vf_get(work->w + i, n - i), vf_get(work->b + i, n - i)));
        }
        work->mean[row] = mean;
        work->rstd[row] = rstd;
    }
}

static void layernorm_backward_rows(const struct zr_layernorm_work *work, size_t from_row, size_t to_row)
{
    size_t n = work->channels;
    for (size_t row = from_row; row < to_row; row++) {
        const float *x = work->x + row * n, *dy = work->dy + row * n;
        float *dx = work->dx + row * n;
        vf mean = vf_set(work->mean[row]), rstd = vf_set(work->rstd[row]);
        vf plain = vf_set(0.0f), along = vf_set(0.0f);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf g = vf_get(dy + i, n - i) * vf_get(work->w + i, n - i);
            plain += g;
            along = vf_fma(g, (vf_get(x + i, n - i) - mean) * rstd, along);
        }
        vf plain_mean = vf_set(vf_sum(plain) / (float)n), along_mean = vf_set(vf_sum(along) / (float)n);
        for (size_t i = 0; i < n; i += VF_LANES) {
            vf g = vf_get(dy + i, n - i) * vf_get(work->w + i, n - i);
            vf normal = (vf_get(x + i, n - i) - mean) * rstd;
            vf d = rstd * (g - plain_mean - normal * along_mean);
            vf_put(dx + i, n - i, vf_onto(dx + i, n - i, d, work->accumulate_dx));
        }
    }
}

/* dw and db of the channels [from, to), over all rows in blocks of 64 added in order. */
static void layernorm_backward_columns(const struct zr_layernorm_work *work, size_t from, size_t to)
{
    enum { BLOCK = 64 };
    for (size_t c = from; c < to; c += VF_LANES) {
        size_t left = to - c;
        vf dw = work->accumulate ? vf_get(work->dw + c, left) : vf_set(0.0f);
        vf db = work->accumulate ? vf_get(work->db + c, left) : vf_set(0.0f);
        for (size_t block = 0; block < work->rows; block += BLOCK) {
            size_t end = work->rows - block < BLOCK ? work->rows : block + BLOCK;
            vf block_dw = vf_set(0.0f), block_db = vf_set(0.0f);
            for (size_t row = block; row < end; row++) {
                vf g = vf_get(work->dy + row * work->channels + c, left);
                vf normal = (vf_get(work->x + row * work->channels + c, left) - vf_set(work->mean[row])) *
                            vf_set(work->rstd[row]);
                block_dw = vf_fma(g, normal, block_dw);
                block_db += g;
            }
            dw += block_dw;
            db += block_db;
        }
        vf_put(work->dw + c, left, dw);
        vf_put(work->db + c, left, db);
    }
}

#include "kernels/cpu/loops_attention.h"
#include "kernels/cpu/loops_reduce.h"

const struct zr_loops ZR_LOOPS = {
    .exponential = exponential,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .add = add,
    .add_to_rows = add_to_rows,
    .sum_rows = sum_rows,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward_rows = layernorm_backward_rows,
    .layernorm_backward_columns = layernorm_backward_columns,
    .small_product = small_product,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .softmax_row = softmax_row,
    .dot = dot,
    .adamw = adamw,
    .sum_of_squares = sum_of_squares,
    .find_nonfinite = find_nonfinite,
    .sum_in_order = sum_in_order,
    .bf16_from_float = bf16_from_float,
    .bf16_to_float = bf16_to_float,
};
