/* softmax.cu: cross-entropy, whose gradient overwrites the logits. A block has a row: one pass for the
 * running largest logit and sum of exponentials, one for the gradient, which reads the row from the cache. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

/* No logit yet: finite, so that exp(-infinity - it) is 0 and not NaN. */
#define LEAST (-3.402823466e38f)

/* Merges the parts of all threads of the block; every thread gets the result. */
DEVICE float block_max(float x)
{
    SHARED(float, parts, CUDA_WARPS);
    float most = warp_max(x);
    if (lane_of_thread() == 0)
        parts[warp_of_thread()] = most;
    __syncthreads();
    most = parts[0];
    for (unsigned warp = 1; warp < CUDA_WARPS; warp++)
        most = fmaxf(most, parts[warp]);
    return most;
}

DEVICE double block_sum(double x)
{
    SHARED(double, parts, CUDA_WARPS);
    for (int other = WARP / 2; other > 0; other /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, other);
    if (lane_of_thread() == 0)
        parts[warp_of_thread()] = x;
    __syncthreads();
    x = parts[0];
    for (unsigned warp = 1; warp < CUDA_WARPS; warp++)
        x += parts[warp];
    return x;
}

/* ---- Logits --------------------------------------------------------------------------------------------
 * Floats, or elements with `narrow`; either way a thread takes EL_PACK of them at a time, the same ones, so
 * that the sums of both have one order. */

/* A row of a->stride logits and its gradient, at the same address. */
DEVICE void *row_of(const struct zr_cross_entropy *a, size_t row)
{
    return (char *)a->logits + row * a->stride * (a->narrow ? sizeof(el) : sizeof(float));
}

/* Reads an element by the row's type. */
DEVICE float logit_get(const void *row, size_t i, bool narrow)
{
    return narrow ? el_get((const el *)row + i) : ((const float *)row)[i];
}

/* Elements per thread and turn of the block. */
DEVICE size_t count_from(size_t i, size_t n)
{
    return i >= n ? 0 : n - i < EL_PACK ? n - i : EL_PACK;
}
enum { TURN = CUDA_THREADS * EL_PACK };

/* Up to n elements from i on; `packs`: the row is aligned to 16 bytes. */
DEVICE struct pack logits_get(const void *row, size_t i, size_t n, bool narrow, bool packs)
{
    struct pack result;
    size_t count = count_from(i, n);
    if (narrow && packs && count == EL_PACK)
        return pack_get(row, i, EL_PACK);
    EACH_OF_PACK(j, count) result.at[j] = logit_get(row, i + j, narrow);
    return result;
}

/* Softmax part of the row; does not change the logits. fmaxf() drops NaN, but the sum keeps it. */
DEVICE struct zr_softmax_part own_part(const struct zr_cross_entropy *a, const void *row, size_t target)
{
    struct zr_softmax_part part;
    bool packs = (uintptr_t)row % CUDA_PACK_BYTES == 0;
    float most = LEAST, sum = 0;
    for (size_t i = threadIdx.x * (size_t)EL_PACK; i < a->columns; i += TURN) {
        struct pack x = logits_get(row, i, a->columns, a->narrow, packs);
        float before = most;
        EACH_OF_PACK(j, count_from(i, a->columns)) most = fmaxf(most, x.at[j]);
        sum *= expf(before - most);
        EACH_OF_PACK(j, count_from(i, a->columns)) sum += expf(x.at[j] - most);
    }
    part.most = block_max(most);
    part.sum = block_sum((double)(sum * expf(most - part.most)));
    part.target = target < a->columns ? logit_get(row, target, a->narrow) : 0;
    if (a->columns == 0)
        part.most = -INFINITY;
    return part;
}

/* In place, an element's address is at or below that of its float: a turn reads its floats before it writes,
 * and writes below the next turn's floats. */
DEVICE void put_gradient(const struct zr_cross_entropy *a, void *row, size_t target, float most, float factor)
{
    bool packs = (uintptr_t)row % CUDA_PACK_BYTES == 0;
    for (size_t turn = 0; turn < a->stride; turn += TURN) {
        size_t i = turn + threadIdx.x * (size_t)EL_PACK, count = count_from(i, a->stride);
        struct pack d = logits_get(row, i, a->columns, a->narrow, packs);
        EACH_OF_PACK(j, EL_PACK)
        d.at[j] = i + j < a->columns ? expf(d.at[j] - most) * factor - (i + j == target ? a->scale : 0) : 0;
        if (!a->narrow)
            __syncthreads();
        if (packs && count == EL_PACK) {
            pack_put(row, i, &d, EL_PACK);
        } else {
            EACH_OF_PACK(j, count) el_put((el *)row + i + j, d.at[j]);
        }
    }
}

KERNEL(K(cross_entropy), struct zr_cross_entropy, CUDA_THREADS)
{
    size_t row = blockIdx.x, target = (size_t)a.targets[row] - a.first_column;
    void *logits = row_of(&a, row);
    struct zr_softmax_part all;
    if (a.all) {
        all = a.all[row];
    } else {
        all = own_part(&a, logits, target);
        if (a.parts) {
            if (threadIdx.x == 0)
                a.parts[row] = all;
            return;
        }
    }
    __syncthreads();
    if (a.gradient)
        put_gradient(&a, logits, target, all.most, (float)((double)a.scale / all.sum));
    if (threadIdx.x == 0)
        a.losses[row] = (float)(zr_real_log(all.sum) + (double)all.most - (double)all.target);
}
