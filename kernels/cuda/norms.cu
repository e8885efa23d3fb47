/* norms.cu: layer norm and root mean square norm: a warp has a row; for the weights' gradients a block has 32
 * columns, each of its warps every eighth row of them. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

DEVICE size_t row_of_warp(void)
{
    return (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
}

/* Element c of the row at x; of a residual path's end, which is made here and now, as it is stored. */
struct residual {
    const el *a, *b; /* of the row; NULL: x is there */
    el *sum;
};

DEVICE float first_of(const struct residual *r, const el *x, size_t c)
{
    if (!r->sum)
        return el_get(x + c);
    el_put(r->sum + c, el_get(r->a + c) + el_get(r->b + c));
    return el_get(r->sum + c);
}

DEVICE void layernorm_row(const struct zr_layernorm_forward *a, size_t row, const struct residual *residual)
{
    size_t n = a->shape.channels;
    const el *x = residual->sum ? residual->sum : (const el *)a->x + row * n;
    const el *w = (const el *)a->w, *b = (const el *)a->b;
    el *y = (el *)a->y + row * n;
    float sum = 0, squares = 0;
    for (size_t c = lane_of_thread(); c < n; c += WARP)
        sum += first_of(residual, x, c);
    float mean = warp_sum(sum) / (float)n;
    for (size_t c = lane_of_thread(); c < n; c += WARP) {
        float d = el_get(x + c) - mean;
        squares = fmaf(d, d, squares);
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n + 1e-5f);
    for (size_t c = lane_of_thread(); c < n; c += WARP)
        el_put(y + c, fmaf((el_get(x + c) - mean) * rstd, el_get(w + c), el_get(b + c)));
    if (lane_of_thread() == 0) {
        a->mean[row] = mean;
        a->rstd[row] = rstd;
    }
}

DEVICE void rmsnorm_row(const struct zr_rmsnorm_forward *a, size_t row, const struct residual *residual)
{
    size_t n = a->channels;
    const el *x = residual->sum ? residual->sum : (const el *)a->x + row * n, *w = (const el *)a->w;
    el *y = (el *)a->y + row * n;
    float squares = 0;
    for (size_t c = lane_of_thread(); c < n; c += WARP) {
        float v = first_of(residual, x, c);
        squares = fmaf(v, v, squares);
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n + a->epsilon);
    for (size_t c = lane_of_thread(); c < n; c += WARP)
        el_put(y + c, el_get(x + c) * rstd * el_get(w + c));
    if (lane_of_thread() == 0)
        a->rstd[row] = rstd;
}

DEVICE struct residual residual_of(const void *a, const void *b, void *sum, size_t at)
{
    struct residual r = {(const el *)a + at, (const el *)b + at, (el *)sum + at};
    return r;
}

KERNEL(K(layernorm_forward), struct zr_layernorm_forward, CUDA_THREADS)
{
    const struct residual none = {NULL, NULL, NULL};
    if (row_of_warp() < a.shape.rows)
        layernorm_row(&a, row_of_warp(), &none);
}

KERNEL(K(residual_layernorm), struct zr_residual_layernorm, CUDA_THREADS)
{
    size_t row = row_of_warp();
    struct residual residual = residual_of(a.a, a.b, a.sum, row * a.norm.shape.channels);
    if (row < a.norm.shape.rows)
        layernorm_row(&a.norm, row, &residual);
}

KERNEL(K(rmsnorm_forward), struct zr_rmsnorm_forward, CUDA_THREADS)
{
    const struct residual none = {NULL, NULL, NULL};
    if (row_of_warp() < a.rows)
        rmsnorm_row(&a, row_of_warp(), &none);
}

KERNEL(K(residual_rmsnorm), struct zr_residual_rmsnorm, CUDA_THREADS)
{
    size_t row = row_of_warp();
    struct residual residual = residual_of(a.a, a.b, a.sum, row * a.norm.channels);
    if (row < a.norm.rows)
        rmsnorm_row(&a.norm, row, &residual);
}

KERNEL(K(layernorm_backward), struct zr_layernorm_backward, CUDA_THREADS)
{
    size_t row = row_of_warp(), n = a.shape.channels;
    const el *x = (const el *)a.x + row * n, *dy = (const el *)a.dy + row * n, *w = (const el *)a.w;
    el *dx = (el *)a.dx + row * n;
    if (row >= a.shape.rows)
        return;
    float mean = a.mean[row], rstd = a.rstd[row], plain = 0, along = 0;
    for (size_t c = lane_of_thread(); c < n; c += WARP) {
        float g = el_get(dy + c) * el_get(w + c);
        plain += g;
        along = fmaf(g, (el_get(x + c) - mean) * rstd, along);
    }
    plain = warp_sum(plain) / (float)n;
    along = warp_sum(along) / (float)n;
    for (size_t c = lane_of_thread(); c < n; c += WARP) {
        float g = el_get(dy + c) * el_get(w + c), normal = (el_get(x + c) - mean) * rstd;
        el_onto(dx + c, formula_layernorm_backward(rstd, g, normal, plain, along), a.accumulate_dx);
    }
}

KERNEL(K(rmsnorm_backward), struct zr_rmsnorm_backward, CUDA_THREADS)
{
    size_t row = row_of_warp(), n = a.channels;
    const el *x = (const el *)a.x + row * n, *dy = (const el *)a.dy + row * n, *w = (const el *)a.w;
    el *dx = (el *)a.dx + row * n;
    if (row >= a.rows)
        return;
    float rstd = a.rstd[row], along = 0;
    for (size_t c = lane_of_thread(); c < n; c += WARP)
        along = fmaf(el_get(dy + c) * el_get(w + c), el_get(x + c) * rstd, along);
    along = warp_sum(along) / (float)n;
    for (size_t c = lane_of_thread(); c < n; c += WARP)
        el_onto(dx + c,
                formula_rmsnorm_backward(rstd, el_get(dy + c) * el_get(w + c), el_get(x + c) * rstd, along),
                a.accumulate_dx);
}

/* ---- Columns ------------------------------------------------------------------------------------------- */

/* The block's sums of one column, in the order of its warps; every thread comes, those of the first warp get
 * it. `parts` has room for a number of every thread, and nobody else's before the next barrier. */
DEVICE float sum_over_warps(float *parts, float own)
{
    float sum = 0;
    parts[threadIdx.x] = own;
    __syncthreads();
    for (unsigned warp = 0; warp < CUDA_WARPS && threadIdx.x < WARP; warp++)
        sum += parts[warp * WARP + threadIdx.x];
    return sum;
}

KERNEL(K(layernorm_backward_columns), struct zr_layernorm_backward, CUDA_THREADS)
{
    SHARED(float, dw_parts, CUDA_THREADS);
    SHARED(float, db_parts, CUDA_THREADS);
    size_t n = a.shape.channels, c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    float dw = 0, db = 0;
    for (size_t row = warp_of_thread(); c < n && row < a.shape.rows; row += CUDA_WARPS) {
        float g = el_get((const el *)a.dy + row * n + c);
        dw = fmaf(g, (el_get((const el *)a.x + row * n + c) - a.mean[row]) * a.rstd[row], dw);
        db += g;
    }
    dw = sum_over_warps(dw_parts, dw);
    db = sum_over_warps(db_parts, db);
    if (threadIdx.x < WARP && c < n) {
        el_onto((el *)a.dw + c, dw, a.accumulate);
        el_onto((el *)a.db + c, db, a.accumulate);
    }
}

KERNEL(K(rmsnorm_backward_columns), struct zr_rmsnorm_backward, CUDA_THREADS)
{
    SHARED(float, parts, CUDA_THREADS);
    size_t n = a.channels, c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    float dw = 0;
    for (size_t row = warp_of_thread(); c < n && row < a.rows; row += CUDA_WARPS)
        dw = fmaf(el_get((const el *)a.dy + row * n + c), el_get((const el *)a.x + row * n + c) * a.rstd[row],
                  dw);
    dw = sum_over_warps(parts, dw);
    if (threadIdx.x < WARP && c < n)
        el_onto((el *)a.dw + c, dw, a.accumulate);
}

KERNEL(K(bias_backward), struct cuda_bias, CUDA_THREADS)
{
    SHARED(float, parts, CUDA_THREADS);
    size_t c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    float sum = 0;
    for (size_t row = warp_of_thread(); c < a.columns && row < a.rows; row += CUDA_WARPS)
        sum += el_get((const el *)a.dy + row * a.stride + c);
    sum = sum_over_warps(parts, sum);
    if (threadIdx.x < WARP && c < a.columns)
        el_onto((el *)a.db + c, sum, a.accumulate);
}

/* The bias's gradient is of dx as it is stored. */
KERNEL(K(gelu_bias_backward), struct zr_gelu_bias_backward, CUDA_THREADS)
{
    SHARED(float, parts, CUDA_THREADS);
    size_t c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    float sum = 0;
    for (size_t row = warp_of_thread(); c < a.columns && row < a.rows; row += CUDA_WARPS) {
        size_t at = row * a.columns + c;
        float slope = formula_gelu_slope(el_get((const el *)a.x + at));
        el_put((el *)a.dx + at, el_get((const el *)a.dy + at) * slope);
        sum += el_get((const el *)a.dx + at);
    }
    sum = sum_over_warps(parts, sum);
    if (threadIdx.x < WARP && c < a.columns)
        el_onto((el *)a.db + c, sum, a.accumulate);
}
