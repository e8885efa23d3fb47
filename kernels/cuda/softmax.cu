/* softmax.cu: cross-entropy over logits that are there, and their gradient in their place. A block has a row.
 */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

enum { PER_THREAD = 4, PASS = PER_THREAD * CUDA_THREADS };

/* Of all threads of the block; every thread gets it. */
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

/* What the columns of the row have; the logits stay. fmaxf() would lose what is no number. */
DEVICE struct zr_softmax_part own_part(const struct zr_cross_entropy *a, const float *x, size_t target)
{
    struct zr_softmax_part part;
    float most = -INFINITY;
    double sum = 0;
    for (size_t i = threadIdx.x; i < a->columns; i += CUDA_THREADS)
        most = fmaxf(most, x[i]);
    part.most = block_max(most);
    for (size_t i = threadIdx.x; i < a->columns; i += CUDA_THREADS)
        sum += (double)expf(x[i] - part.most);
    part.sum = block_sum(sum);
    part.target = target < a->columns ? x[target] : 0;
    return part;
}

/* Elements take the place of floats, each no further on than its own: a pass reads its floats before it
 * writes, and what it writes lies before the next pass's floats. */
DEVICE void put_gradient(const struct zr_cross_entropy *a, float *x, size_t target, float most, float factor)
{
    el *d = (el *)x;
    for (size_t from = 0; from < a->stride; from += PASS) {
        float gradient[PER_THREAD];
        UNROLL
        for (int i = 0; i < PER_THREAD; i++) {
            size_t c = from + threadIdx.x + (size_t)i * CUDA_THREADS;
            gradient[i] = c < a->columns ? expf(x[c] - most) * factor - (c == target ? a->scale : 0) : 0;
        }
        __syncthreads();
        UNROLL
        for (int i = 0; i < PER_THREAD; i++) {
            size_t c = from + threadIdx.x + (size_t)i * CUDA_THREADS;
            if (c < a->stride)
                el_put(d + c, gradient[i]);
        }
    }
}

KERNEL(K(cross_entropy), struct zr_cross_entropy, CUDA_THREADS)
{
    size_t row = blockIdx.x, target = (size_t)a.targets[row] - a.first_column;
    float *x = a.logits + row * a.stride;
    struct zr_softmax_part all;
    if (a.all) {
        all = a.all[row];
    } else {
        all = own_part(&a, x, target);
        if (a.parts) {
            if (threadIdx.x == 0)
                a.parts[row] = all;
            return;
        }
    }
    __syncthreads();
    if (a.gradient)
        put_gradient(&a, x, target, all.most, (float)((double)a.scale / all.sum));
    if (threadIdx.x == 0)
        a.losses[row] = (float)(zr_real_log(all.sum) + (double)all.most - (double)all.target);
}
