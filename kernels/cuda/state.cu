/* state.cu: operations on optimizer state beside the optimizers, at the precision of their arguments, and
 * rotary tables. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

#include "kernels/state.h"

/* ---- Sums and searches --------------------------------------------------------------------------------- */

enum { AT_ONCE = 8 }; /* numbers that a lane loads before it adds them */

/* A warp sums a block of 4,096: lane l sums elements i with i % 32 == l, and the lanes are folded in halves.
 * Squares are exact in double, so the CPU's loops have the same bits. */
KERNEL(squares_of_blocks, struct cuda_squares, CUDA_THREADS)
{
    size_t block = (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread(),
           first = a.first + block * CUDA_SQUARES_BLOCK;
    double sum = 0;
    size_t here = first < a.all.n ? a.all.n - first : 0, i = lane_of_thread();
    here = here < CUDA_SQUARES_BLOCK ? here : CUDA_SQUARES_BLOCK;
    for (; i + (AT_ONCE - 1) * WARP < here; i += AT_ONCE * WARP) {
        float x[AT_ONCE];
        UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            x[k] = number_get(&a.all.x, first + i + (size_t)k * WARP);
        UNROLL
        for (int k = 0; k < AT_ONCE; k++)
            sum += (double)x[k] * (double)x[k];
    }
    for (; i < here; i += WARP) {
        double x = (double)number_get(&a.all.x, first + i);
        sum += x * x;
    }
    for (int half = WARP / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, half);
    if (lane_of_thread() == 0 && block < CUDA_SQUARES_BLOCKS)
        a.partial[block] = sum;
}

/* One block: each thread adds the blocks of a group in order, then thread 0 adds the groups in order. */
KERNEL(squares_together, struct cuda_squares, CUDA_THREADS)
{
    enum { GROUPS = CUDA_SQUARES_BLOCKS / CUDA_SQUARES_GROUP };
    SHARED(double, groups, GROUPS);
    size_t rest = a.all.n - a.first, blocks = (rest + CUDA_SQUARES_BLOCK - 1) / CUDA_SQUARES_BLOCK;
    blocks = blocks < CUDA_SQUARES_BLOCKS ? blocks : CUDA_SQUARES_BLOCKS;
    if (threadIdx.x < GROUPS) {
        size_t begin = (size_t)threadIdx.x * CUDA_SQUARES_GROUP, end = begin + CUDA_SQUARES_GROUP;
        double sum = 0;
        for (size_t block = begin; block < end && block < blocks; block++)
            sum += a.partial[block];
        groups[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = a.begins ? 0 : *a.all.sum;
        for (size_t group = 0; group * CUDA_SQUARES_GROUP < blocks; group++)
            sum += groups[group];
        *a.all.sum = sum;
    }
}

KERNEL(find_nonfinite_begin, struct zr_find_nonfinite, 1)
{
    *a.index = a.n;
}

KERNEL(find_nonfinite, struct zr_find_nonfinite, CUDA_THREADS)
{
    EACH(i, a.n)
    if (!isfinite(number_get(&a.x, i))) {
        zr_atomic_min((unsigned long long *)a.index, i);
        break;
    }
}

/* ---- Checksum: eight threads per block of 64 KiB, one per lane -------------------------------------------
 */

KERNEL(checksum_begin, struct zr_checksum, 1)
{
    *a.sum = zr_hash_mix(a.bytes);
}

KERNEL(checksum_end, struct zr_checksum, 1)
{
    *a.sum = zr_hash_mix(*a.sum);
}

DEVICE uint64_t word_of(const struct zr_checksum *a, size_t at)
{
    uint64_t word = 0;
    if (a->bytes >= 8 && at <= a->bytes - 8)
        return *(const uint64_t *)(const void *)((const char *)a->data + at);
    for (unsigned byte = 0; byte < 8 && at + byte < a->bytes; byte++)
        word |= (uint64_t)((const unsigned char *)a->data)[at + byte] << 8 * byte;
    return word;
}

KERNEL(checksum, struct zr_checksum, CUDA_THREADS)
{
    unsigned own = lane_of_thread() % CUDA_CHECKSUM_LANES, others = lane_of_thread() - own;
    size_t block = index_in_grid() / CUDA_CHECKSUM_LANES, first = block * CUDA_CHECKSUM_BLOCK;
    bool here = first < a.bytes;
    size_t bytes = !here ? 0 : a.bytes - first < CUDA_CHECKSUM_BLOCK ? a.bytes - first : CUDA_CHECKSUM_BLOCK;
    uint64_t hash = zr_hash_begin(block);
    unsigned long long lane = zr_hash_mix(hash + own);
    for (size_t i = 0; i < bytes; i += 8 * CUDA_CHECKSUM_LANES)
        lane = zr_hash_step(lane, word_of(&a, first + i + 8 * own));
    for (unsigned j = 0; j < CUDA_CHECKSUM_LANES; j++)
        hash = zr_hash_join(hash, __shfl_sync(ALL_LANES, lane, others + j), j);
    if (here && own == 0)
        zr_atomic_add((unsigned long long *)a.sum, zr_hash_mix(hash ^ bytes));
}

/* ---- Values -------------------------------------------------------------------------------------------- */

KERNEL(init_normal, struct zr_init_normal, CUDA_THREADS)
{
    EACH(i, a.n)
    a.x[i] = a.deviation == 0
                 ? a.mean
                 : (float)((double)a.mean + (double)a.deviation * zr_real_normal(a.seed, a.first_index + i));
}

KERNEL(convert, struct zr_convert, CUDA_THREADS)
{
    const size_t width = fours_begin(&a.from) && fours_begin(&a.to) ? FOUR : 1;
    EACH_PACK(i, count, a.n, width)
    {
        struct four x = four_get(&a.from, i, count);
        four_put(&a.to, i, &x, count);
    }
}

KERNEL(sum, struct cuda_sum, CUDA_THREADS)
{
    EACH(i, a.n)
    {
        float sum = 0;
        for (unsigned k = 0; k < a.count; k++) {
            struct zr_numbers from = {(void *)(uintptr_t)a.from[k], a.precision};
            float x = number_get(&from, i);
            sum = k == 0 ? x : sum + x;
        }
        sum *= a.scale;
        number_put(&a.to, i, a.accumulate ? number_get(&a.to, i) + sum : sum);
    }
}

/* ---- Tables -------------------------------------------------------------------------------------------- */

/* A block computes one pair, for all tokens. */
KERNEL(rotary_table, struct zr_rotary_table, CUDA_THREADS)
{
    size_t half = a.width / 2, i = blockIdx.x;
    double scale, frequency = zr_rotary_frequency(&a, i, &scale);
    for (size_t t = threadIdx.x; t < a.sequence; t += blockDim.x) {
        double sine, cosine;
        zr_real_sine_cosine((double)t * frequency, &sine, &cosine);
        a.cosines[t * half + i] = (float)(cosine * scale);
        a.sines[t * half + i] = (float)(sine * scale);
    }
}

/* A part without columns adds nothing; NaN propagates. */
KERNEL(softmax_merge, struct zr_softmax_merge, CUDA_THREADS)
{
    EACH(row, a.rows)
    {
        struct zr_softmax_part all = a.parts[row];
        for (unsigned i = 1; i < a.count; i++) {
            float most = a.parts[i * a.rows + row].most;
            all.most = most > all.most || most != most ? most : all.most;
        }
        all.sum = all.target = 0;
        for (unsigned i = 0; i < a.count; i++) {
            const struct zr_softmax_part *part = &a.parts[i * a.rows + row];
            double below = (double)part->most - (double)all.most;
            all.target += part->target;
            all.sum += part->sum * (below < -700 ? 0 : zr_real_exp(below));
        }
        a.all[row] = all;
    }
}
