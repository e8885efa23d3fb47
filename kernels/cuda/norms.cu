/* norms.cu: layer norm and root mean square norm: a warp has a row; for the weights' gradients and
 * biases' a block has a warp's width of columns, each of its warps every eighth row of a part of them. */
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

/* The block's columns that this thread has: how many, and the first of them. */
DEVICE size_t own_columns(const struct cuda_columns *a, size_t *first)
{
    *first = ((size_t)blockIdx.x * WARP + lane_of_thread()) * a->width;
    size_t left = *first < a->columns ? a->columns - *first : 0;
    return left < a->width ? left : a->width;
}

/* A loop over the rows of the warp: every eighth of the block's part. */
#define EACH_OWN_ROW(row, count)                                                                             \
    for (size_t row = blockIdx.y * a.part_rows + warp_of_thread(),                                           \
                end_ = (blockIdx.y + 1) * a.part_rows < a.rows ? (blockIdx.y + 1) * a.part_rows : a.rows;    \
         (count) > 0 && row < end_; row += CUDA_WARPS)

/* The block's sums in the order of its warps: the result, or a part of it. Every thread comes, with the sums
 * of its columns; `room` has a number for each of them, and is free again behind it. */
DEVICE void end_columns(const struct cuda_columns *a, unsigned which, const struct pack *own, float *room)
{
    unsigned columns = WARP * a->width;
    size_t c = (size_t)blockIdx.x * columns + threadIdx.x;
    float sum = 0;
    EACH_OF_PACK(j, a->width)
    room[warp_of_thread() * columns + lane_of_thread() * a->width + j] = own->at[j];
    __syncthreads();
    if (threadIdx.x < columns && c < a->columns) {
        for (unsigned warp = 0; warp < CUDA_WARPS; warp++)
            sum += room[warp * columns + threadIdx.x];
        if (a->parts == 1)
            el_onto((el *)a->sums[which] + c, sum, a->accumulate);
        else
            a->partial[((size_t)which * a->parts + blockIdx.y) * a->columns + c] = sum;
    }
    __syncthreads();
}

KERNEL(K(layernorm_backward_columns), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, room, CUDA_THREADS *EL_PACK);
    struct pack dw = {{0}}, db = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        struct pack x = pack_get(a.x, row * a.stride + first, count),
                    dy = pack_get(a.dy, row * a.stride + first, count);
        float mean = a.mean[row], rstd = a.rstd[row];
        EACH_OF_PACK(j, count)
        {
            dw.at[j] = fmaf(dy.at[j], (x.at[j] - mean) * rstd, dw.at[j]);
            db.at[j] += dy.at[j];
        }
    }
    end_columns(&a, 0, &dw, room);
    end_columns(&a, 1, &db, room);
}

KERNEL(K(rmsnorm_backward_columns), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, room, CUDA_THREADS *EL_PACK);
    struct pack dw = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        struct pack x = pack_get(a.x, row * a.stride + first, count),
                    dy = pack_get(a.dy, row * a.stride + first, count);
        float rstd = a.rstd[row];
        EACH_OF_PACK(j, count) dw.at[j] = fmaf(dy.at[j], x.at[j] * rstd, dw.at[j]);
    }
    end_columns(&a, 0, &dw, room);
}

KERNEL(K(bias_backward), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, room, CUDA_THREADS *EL_PACK);
    struct pack db = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        struct pack dy = pack_get(a.dy, row * a.stride + first, count);
        EACH_OF_PACK(j, count) db.at[j] += dy.at[j];
    }
    end_columns(&a, 0, &db, room);
}

/* The bias's gradient is of dx as it is stored. */
KERNEL(K(gelu_bias_backward), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, room, CUDA_THREADS *EL_PACK);
    struct pack db = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        size_t at = row * a.stride + first;
        struct pack x = pack_get(a.x, at, count), dx = pack_get(a.dy, at, count);
        EACH_OF_PACK(j, count)
        {
            el stored;
            el_put(&stored, dx.at[j] * formula_gelu_slope(x.at[j]));
            dx.at[j] = el_get(&stored);
            db.at[j] += dx.at[j];
        }
        pack_put(a.dx, at, &dx, count);
    }
    end_columns(&a, 0, &db, room);
}

/* Parts of columns into their sums, y of them: the warps of a block have every eighth part, and are added in
 * their order. */
KERNEL(K(columns_together), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, room, CUDA_THREADS);
    size_t c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    const float *partial = a.partial + (size_t)blockIdx.y * a.parts * a.columns + c;
    float sum = 0;
    for (unsigned part = warp_of_thread(); c < a.columns && part < a.parts; part += CUDA_WARPS)
        sum += partial[part * a.columns];
    room[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP || c >= a.columns)
        return;
    for (unsigned warp = 1; warp < CUDA_WARPS; warp++)
        sum += room[warp * WARP + threadIdx.x];
    el *to =
        (el *)(blockIdx.y == 0 ? a.sums[0] : a.sums[1]); /* indexed, it would be a copy in local memory */
    el_onto(to + c, sum, a.accumulate);
}
