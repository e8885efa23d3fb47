/* norms.cu: layer norm and root mean square norm: a warp has a row; for the weights' gradients a block has 32
 * columns, each of its warps every eighth row of them. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

DEVICE size_t row_of_warp(void)
{
    return (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
}

/* ---- Rows ----------------------------------------------------------------------------------------------
 * A row is packs of 16 bytes: lane l has packs l, l + 32, .., so that a sum over the row has one order whether
 * the packs stay in registers or are read again. Each kernel is there for rows of at most 4, 8 and 16 packs per
 * lane, which stay in registers (for_rows() of cuda.c chooses, where all rows begin on 16 bytes and are whole
 * packs), and for any other row, of which each loop reads what it needs. */

/* The loops are unrolled to `packs` where that is a constant above 0; i: the pack's first element. */
#define EACH_PACK_OF_ROW(p, i, n, packs)                                                                     \
    UNROLL                                                                                                   \
    for (size_t p = 0, i = lane_of_thread() * (size_t)EL_PACK; (packs) ? p < (packs) : i < (n);              \
         p++, i += (size_t)WARP * EL_PACK)                                                                   \
        if (!(packs) || i < (n))

/* Of a row in registers whole packs, of another one up to EL_PACK elements one by one. */
DEVICE size_t pack_count(size_t i, size_t n)
{
    return n - i < EL_PACK ? n - i : EL_PACK;
}

DEVICE struct pack row_get(const el *row, size_t i, size_t n, unsigned packs)
{
    struct pack result;
    if (packs)
        return pack_get(row, i, EL_PACK);
    EACH_OF_PACK(j, pack_count(i, n)) result.at[j] = el_get(row + i + j);
    return result;
}

DEVICE void row_put(el *row, size_t i, size_t n, unsigned packs, const struct pack *pack)
{
    if (packs) {
        pack_put(row, i, pack, EL_PACK);
    } else {
        EACH_OF_PACK(j, pack_count(i, n)) el_put(row + i + j, pack->at[j]);
    }
}

/* A lane's packs of a row as they are stored, where they stay in registers. */
struct kept {
    union pack_bits at[CUDA_NORM_PACKS];
};

DEVICE struct pack pack_of(const union pack_bits *bits)
{
    struct pack result;
    EACH_OF_PACK(j, EL_PACK) result.at[j] = el_get(&bits->at[j]);
    return result;
}

/* Pack p of the row, kept or read again. */
DEVICE struct pack row_again(const struct kept *kept, size_t p, const el *row, size_t i, size_t n,
                             unsigned packs)
{
    return packs ? pack_of(&kept->at[p]) : row_get(row, i, n, packs);
}

/* Elements behind the row's end add nothing. */
#define EACH_OF_ROW(j, i, n, packs) EACH_OF_PACK(j, (packs) ? EL_PACK : pack_count(i, n))

/* ---- Forward ------------------------------------------------------------------------------------------- */

/* The end of a residual path, of the row; sum NULL: x is there. */
struct residual {
    const el *a, *b;
    el *sum;
};

DEVICE struct residual residual_of(const void *a, const void *b, void *sum, size_t at)
{
    struct residual r = {(const el *)a + at, (const el *)b + at, (el *)sum + at};
    return r;
}

/* Pack p of x, to be kept: read, or made of the residual path's end, as it is stored. */
DEVICE struct pack row_first(struct kept *kept, size_t p, const struct residual *residual, const el *x,
                             size_t i, size_t n, unsigned packs)
{
    struct pack pack;
    if (residual->sum) {
        struct pack b = row_get(residual->b, i, n, packs);
        pack = row_get(residual->a, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) pack.at[j] += b.at[j];
        row_put(residual->sum, i, n, packs, &pack);
        EACH_OF_ROW(j, i, n, packs)
        {
            el stored;
            el_put(&stored, pack.at[j]);
            pack.at[j] = el_get(&stored);
        }
    } else {
        pack = row_get(x, i, n, packs);
    }
    if (packs)
        EACH_OF_PACK(j, EL_PACK) el_put(&kept->at[p].at[j], pack.at[j]);
    return pack;
}

DEVICE void layernorm_row(const struct zr_layernorm_forward *a, size_t row, const struct residual *residual,
                          const unsigned packs)
{
    size_t n = a->shape.channels;
    const el *x = residual->sum ? residual->sum : (const el *)a->x + row * n;
    el *y = (el *)a->y + row * n;
    struct kept kept;
    float sum = 0, squares = 0;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_first(&kept, p, residual, x, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) sum += v.at[j];
    }
    float mean = warp_sum(sum) / (float)n;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_again(&kept, p, x, i, n, packs);
        EACH_OF_ROW(j, i, n, packs)
        {
            float d = v.at[j] - mean;
            squares = fmaf(d, d, squares);
        }
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n + 1e-5f);
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_again(&kept, p, x, i, n, packs), w = row_get((const el *)a->w, i, n, packs),
                    b = row_get((const el *)a->b, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) v.at[j] = fmaf((v.at[j] - mean) * rstd, w.at[j], b.at[j]);
        row_put(y, i, n, packs, &v);
    }
    if (lane_of_thread() == 0) {
        a->mean[row] = mean;
        a->rstd[row] = rstd;
    }
}

DEVICE void rmsnorm_row(const struct zr_rmsnorm_forward *a, size_t row, const struct residual *residual,
                        const unsigned packs)
{
    size_t n = a->channels;
    const el *x = residual->sum ? residual->sum : (const el *)a->x + row * n;
    el *y = (el *)a->y + row * n;
    struct kept kept;
    float squares = 0;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_first(&kept, p, residual, x, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) squares = fmaf(v.at[j], v.at[j], squares);
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n + a->epsilon);
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_again(&kept, p, x, i, n, packs), w = row_get((const el *)a->w, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) v.at[j] = v.at[j] * rstd * w.at[j];
        row_put(y, i, n, packs, &v);
    }
    if (lane_of_thread() == 0)
        a->rstd[row] = rstd;
}

/* ---- Backward of x ------------------------------------------------------------------------------------- */

/* x and dy of a row in registers. */
struct kept_pair {
    struct kept x, dy;
};

/* Pack p of both, to be kept. */
DEVICE void pair_first(struct kept_pair *kept, size_t p, const el *x, const el *dy, size_t i, unsigned packs)
{
    if (packs) {
        kept->x.at[p].words = *(const struct pack_words *)(const void *)(x + i);
        kept->dy.at[p].words = *(const struct pack_words *)(const void *)(dy + i);
    }
}

DEVICE void layernorm_row_backward(const struct zr_layernorm_backward *a, size_t row, const unsigned packs)
{
    size_t n = a->shape.channels;
    const el *x = (const el *)a->x + row * n, *dy = (const el *)a->dy + row * n, *w = (const el *)a->w;
    el *dx = (el *)a->dx + row * n;
    float mean = a->mean[row], rstd = a->rstd[row], plain = 0, along = 0;
    struct kept_pair kept;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        pair_first(&kept, p, x, dy, i, packs);
        struct pack v = row_again(&kept.x, p, x, i, n, packs), g = row_again(&kept.dy, p, dy, i, n, packs),
                    factor = row_get(w, i, n, packs);
        EACH_OF_ROW(j, i, n, packs)
        {
            float t = g.at[j] * factor.at[j];
            plain += t;
            along = fmaf(t, (v.at[j] - mean) * rstd, along);
        }
    }
    plain = warp_sum(plain) / (float)n;
    along = warp_sum(along) / (float)n;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_again(&kept.x, p, x, i, n, packs), g = row_again(&kept.dy, p, dy, i, n, packs),
                    factor = row_get(w, i, n, packs), sum = {{0}};
        if (a->accumulate_dx)
            sum = row_get(dx, i, n, packs);
        EACH_OF_ROW(j, i, n, packs)
        {
            float own = formula_layernorm_backward(rstd, g.at[j] * factor.at[j], (v.at[j] - mean) * rstd,
                                                   plain, along);
            sum.at[j] = a->accumulate_dx ? sum.at[j] + own : own;
        }
        row_put(dx, i, n, packs, &sum);
    }
}

DEVICE void rmsnorm_row_backward(const struct zr_rmsnorm_backward *a, size_t row, const unsigned packs)
{
    size_t n = a->channels;
    const el *x = (const el *)a->x + row * n, *dy = (const el *)a->dy + row * n, *w = (const el *)a->w;
    el *dx = (el *)a->dx + row * n;
    float rstd = a->rstd[row], along = 0;
    struct kept_pair kept;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        pair_first(&kept, p, x, dy, i, packs);
        struct pack v = row_again(&kept.x, p, x, i, n, packs), g = row_again(&kept.dy, p, dy, i, n, packs),
                    factor = row_get(w, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) along = fmaf(g.at[j] * factor.at[j], v.at[j] * rstd, along);
    }
    along = warp_sum(along) / (float)n;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        struct pack v = row_again(&kept.x, p, x, i, n, packs), g = row_again(&kept.dy, p, dy, i, n, packs),
                    factor = row_get(w, i, n, packs), sum = {{0}};
        if (a->accumulate_dx)
            sum = row_get(dx, i, n, packs);
        EACH_OF_ROW(j, i, n, packs)
        {
            float own = formula_rmsnorm_backward(rstd, g.at[j] * factor.at[j], v.at[j] * rstd, along);
            sum.at[j] = a->accumulate_dx ? sum.at[j] + own : own;
        }
        row_put(dx, i, n, packs, &sum);
    }
}

/* ---- Kernels of rows ----------------------------------------------------------------------------------- */

/* Those of rows of at most so many packs per lane; 0: of any. */
#define ROW_KERNELS(suffix, packs)                                                                           \
    KERNEL(K(layernorm_forward##suffix), struct zr_layernorm_forward, CUDA_THREADS)                          \
    {                                                                                                        \
        const struct residual none = {NULL, NULL, NULL};                                                     \
        if (row_of_warp() < a.shape.rows)                                                                    \
            layernorm_row(&a, row_of_warp(), &none, packs);                                                  \
    }                                                                                                        \
    KERNEL(K(residual_layernorm##suffix), struct zr_residual_layernorm, CUDA_THREADS)                        \
    {                                                                                                        \
        size_t row = row_of_warp();                                                                          \
        struct residual residual = residual_of(a.a, a.b, a.sum, row *a.norm.shape.channels);                 \
        if (row < a.norm.shape.rows)                                                                         \
            layernorm_row(&a.norm, row, &residual, packs);                                                   \
    }                                                                                                        \
    KERNEL(K(rmsnorm_forward##suffix), struct zr_rmsnorm_forward, CUDA_THREADS)                              \
    {                                                                                                        \
        const struct residual none = {NULL, NULL, NULL};                                                     \
        if (row_of_warp() < a.rows)                                                                          \
            rmsnorm_row(&a, row_of_warp(), &none, packs);                                                    \
    }                                                                                                        \
    KERNEL(K(residual_rmsnorm##suffix), struct zr_residual_rmsnorm, CUDA_THREADS)                            \
    {                                                                                                        \
        size_t row = row_of_warp();                                                                          \
        struct residual residual = residual_of(a.a, a.b, a.sum, row *a.norm.channels);                       \
        if (row < a.norm.rows)                                                                               \
            rmsnorm_row(&a.norm, row, &residual, packs);                                                     \
    }                                                                                                        \
    KERNEL(K(layernorm_backward##suffix), struct zr_layernorm_backward, CUDA_THREADS)                        \
    {                                                                                                        \
        if (row_of_warp() < a.shape.rows)                                                                    \
            layernorm_row_backward(&a, row_of_warp(), packs);                                                \
    }                                                                                                        \
    KERNEL(K(rmsnorm_backward##suffix), struct zr_rmsnorm_backward, CUDA_THREADS)                            \
    {                                                                                                        \
        if (row_of_warp() < a.rows)                                                                          \
            rmsnorm_row_backward(&a, row_of_warp(), packs);                                                  \
    }
ROW_KERNELS(, 0)
ROW_KERNELS(_4, 4)
ROW_KERNELS(_8, 8)
ROW_KERNELS(_16, CUDA_NORM_PACKS)

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
