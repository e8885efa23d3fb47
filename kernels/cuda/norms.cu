/* norms.cu: layer norm and root mean square norm. A warp handles one row. For gradients of weights and
 * biases, a block handles as many columns as a warp is wide, and each of its warps every eighth row of a
 * part. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

DEVICE size_t row_of_warp(void)
{
    return (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
}

/* ---- Rows ----------------------------------------------------------------------------------------------
 * A row consists of packs of 16 bytes: lane l has packs l, l + 32, .., so that a sum over the row has the
 * same order whether the packs remain in registers or are read again. Each kernel has a version for rows of
 * up to 4, 8 and 16 packs per lane, which remain in registers, and one for other rows, whose loops read the
 * row again. for_rows() of cuda.c selects the version; rows in registers must be aligned to 16 bytes and
 * consist of whole packs. */

/* Loops over a lane's packs of a row, and is unrolled if `packs` is a constant above 0. i: the pack's first
 * element. */
#define EACH_PACK_OF_ROW(p, i, n, packs)                                                                     \
    UNROLL                                                                                                   \
    for (size_t p = 0, i = lane_of_thread() * (size_t)EL_PACK; (packs) ? p < (packs) : i < (n);              \
         p++, i += (size_t)WARP * EL_PACK)                                                                   \
        if (!(packs) || i < (n))

/* The number of elements of a pack that are read one by one: rows in registers have whole packs only. */
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

/* A lane's packs of a row in registers, as stored in memory. */
struct kept {
    union pack_bits at[CUDA_NORM_PACKS];
};

DEVICE struct pack pack_of(const union pack_bits *bits)
{
    struct pack result;
    EACH_OF_PACK(j, EL_PACK) result.at[j] = el_get(&bits->at[j]);
    return result;
}

/* Pack p of the row, from registers or read again. */
DEVICE struct pack row_again(const struct kept *kept, size_t p, const el *row, size_t i, size_t n,
                             unsigned packs)
{
    return packs ? pack_of(&kept->at[p]) : row_get(row, i, n, packs);
}

/* Elements after the row's end add nothing. */
#define EACH_OF_ROW(j, i, n, packs) EACH_OF_PACK(j, (packs) ? EL_PACK : pack_count(i, n))

/* ---- Forward ------------------------------------------------------------------------------------------- */

/* The sum at the end of a residual path, for one row; sum NULL: x is an input. */
struct residual {
    const el *a, *b;
    el *sum;
};

DEVICE struct residual residual_of(const void *a, const void *b, void *sum, size_t at)
{
    struct residual r = {(const el *)a + at, (const el *)b + at, (el *)sum + at};
    return r;
}

/* Pack p of x, which is kept in registers: read from memory, or the residual sum rounded as stored. */
DEVICE struct pack row_first(struct kept *kept, size_t p, const struct residual *residual, const el *x,
                             size_t i, size_t n, unsigned packs)
{
    struct pack pack;
    if (residual->sum) {
        struct pack b = row_get(residual->b, i, n, packs);
        pack = row_get(residual->a, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) pack.at[j] += b.at[j];
        row_put(residual->sum, i, n, packs, &pack);
        EACH_OF_ROW(j, i, n, packs) pack.at[j] = el_rounded(pack.at[j]);
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
    float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n + (a->shape.epsilon > 0 ? a->shape.epsilon : 1e-5f));
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

/* Offset of a norm's row. */
DEVICE size_t norm_row(const struct zr_norm_heads *heads, size_t stride, size_t row, size_t channels)
{
    return heads->heads ? row / heads->heads * stride + row % heads->heads * channels : row * channels;
}

DEVICE void rmsnorm_row(const struct zr_rmsnorm_forward *a, size_t row, const struct residual *residual,
                        const unsigned packs)
{
    size_t n = a->channels;
    const el *x = residual->sum ? residual->sum
                                : (const el *)a->x + norm_row(&a->heads, a->heads.x_stride, row, n);
    el *y = (el *)a->y + norm_row(&a->heads, a->heads.y_stride, row, n);
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
        EACH_OF_ROW(j, i, n, packs) v.at[j] = v.at[j] * rstd * (w.at[j] + a->w_offset);
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

/* Reads pack p of both into registers. */
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
    size_t n = a->channels, at = norm_row(&a->heads, a->heads.x_stride, row, n);
    const el *x = (const el *)a->x + at, *w = (const el *)a->w,
             *dy = (const el *)a->dy + norm_row(&a->heads, a->heads.y_stride, row, n);
    el *dx = (el *)a->dx + at;
    float rstd = a->rstd[row], along = 0;
    struct kept_pair kept;
    EACH_PACK_OF_ROW(p, i, n, packs)
    {
        pair_first(&kept, p, x, dy, i, packs);
        struct pack v = row_again(&kept.x, p, x, i, n, packs), g = row_again(&kept.dy, p, dy, i, n, packs),
                    factor = row_get(w, i, n, packs);
        EACH_OF_ROW(j, i, n, packs) along = fmaf(g.at[j] * (factor.at[j] + a->w_offset), v.at[j] * rstd, along);
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
            float own = formula_rmsnorm_backward(rstd, g.at[j] * (factor.at[j] + a->w_offset), v.at[j] * rstd, along);
            sum.at[j] = a->accumulate_dx ? sum.at[j] + own : own;
        }
        row_put(dx, i, n, packs, &sum);
    }
}

/* ---- Kernels of rows ----------------------------------------------------------------------------------- */

/* The kernels for rows of at most `packs` packs per lane; 0: for any row. */
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
        struct residual residual = residual_of(a.a, a.b, a.sum, row * a.norm.shape.channels);                \
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
        struct residual residual = residual_of(a.a, a.b, a.sum, row * a.norm.channels);                      \
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

/* The number of columns of the block that this thread handles, and the first of them. */
DEVICE size_t own_columns(const struct cuda_columns *a, size_t *first)
{
    *first = ((size_t)blockIdx.x * WARP + lane_of_thread()) * a->width;
    size_t left = *first < a->columns ? a->columns - *first : 0;
    return left < a->width ? left : a->width;
}

/* A loop over the rows of the warp: every eighth row of the block's part. */
#define EACH_OWN_ROW(row, count)                                                                             \
    for (size_t row = blockIdx.y * a.part_rows + warp_of_thread(),                                           \
                end_ = (blockIdx.y + 1) * a.part_rows < a.rows ? (blockIdx.y + 1) * a.part_rows : a.rows;    \
         (count) > 0 && row < end_; row += CUDA_WARPS)

/* Adds the block's sums in the order of its warps, into the result or into a partial sum. Called by all
 * threads, each with the sums of its columns. `scratch` has a number for each of these, and is free again
 * afterwards. */
DEVICE void end_columns(const struct cuda_columns *a, unsigned which, const struct pack *own, float *scratch)
{
    unsigned columns = WARP * a->width;
    size_t c = (size_t)blockIdx.x * columns + threadIdx.x;
    float sum = 0;
    EACH_OF_PACK(j, a->width)
    scratch[warp_of_thread() * columns + lane_of_thread() * a->width + j] = own->at[j];
    __syncthreads();
    if (threadIdx.x < columns && c < a->columns) {
        for (unsigned warp = 0; warp < CUDA_WARPS; warp++)
            sum += scratch[warp * columns + threadIdx.x];
        if (a->parts == 1)
            el_onto((el *)a->sums[which] + c, sum, a->accumulate);
        else
            a->partial[((size_t)which * a->parts + blockIdx.y) * a->columns + c] = sum;
    }
    __syncthreads();
}

KERNEL(K(layernorm_backward_columns), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, scratch, CUDA_THREADS *EL_PACK);
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
    end_columns(&a, 0, &dw, scratch);
    end_columns(&a, 1, &db, scratch);
}

KERNEL(K(rmsnorm_backward_columns), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, scratch, CUDA_THREADS *EL_PACK);
    struct pack dw = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        struct pack x = pack_get(a.x, norm_row(&a.heads, a.heads.x_stride, row, a.stride) + first, count),
                    dy = pack_get(a.dy, norm_row(&a.heads, a.heads.y_stride, row, a.stride) + first, count);
        float rstd = a.rstd[row];
        EACH_OF_PACK(j, count) dw.at[j] = fmaf(dy.at[j], x.at[j] * rstd, dw.at[j]);
    }
    end_columns(&a, 0, &dw, scratch);
}

KERNEL(K(bias_backward), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, scratch, CUDA_THREADS *EL_PACK);
    struct pack db = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        struct pack dy = pack_get(a.dy, row * a.stride + first, count);
        EACH_OF_PACK(j, count) db.at[j] += dy.at[j];
    }
    end_columns(&a, 0, &db, scratch);
}

/* The gradient of the bias is the sum of dx as stored. */
KERNEL(K(gelu_bias_backward), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, scratch, CUDA_THREADS *EL_PACK);
    struct pack db = {{0}};
    size_t first, count = own_columns(&a, &first);
    EACH_OWN_ROW(row, count)
    {
        size_t at = row * a.stride + first;
        struct pack x = pack_get(a.x, at, count), dx = pack_get(a.dy, at, count);
        EACH_OF_PACK(j, count)
        {
            dx.at[j] = el_rounded(dx.at[j] * formula_gelu_slope(x.at[j]));
            db.at[j] += dx.at[j];
        }
        pack_put(a.dx, at, &dx, count);
    }
    end_columns(&a, 0, &db, scratch);
}

/* Adds the parts of columns; blockIdx.y is the number of the sum. Each warp of a block adds every eighth
 * part, and the warps' sums are added in order. */
KERNEL(K(columns_together), struct cuda_columns, CUDA_THREADS)
{
    SHARED(float, scratch, CUDA_THREADS);
    size_t c = (size_t)blockIdx.x * CUDA_COLUMNS + lane_of_thread();
    const float *partial = a.partial + (size_t)blockIdx.y * a.parts * a.columns + c;
    float sum = 0;
    for (unsigned part = warp_of_thread(); c < a.columns && part < a.parts; part += CUDA_WARPS)
        sum += partial[part * a.columns];
    scratch[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP || c >= a.columns)
        return;
    for (unsigned warp = 1; warp < CUDA_WARPS; warp++)
        sum += scratch[warp * WARP + threadIdx.x];
    el *to =
        (el *)(blockIdx.y == 0 ? a.sums[0] : a.sums[1]); /* an index would copy the array to local memory */
    el_onto(to + c, sum, a.accumulate);
}
