/* product.cu: matrix products in tiles of 64 x 64 in shared memory, 4 x 4 results per thread, float sums in
 * the order of k, without tensor cores. Used for small and unaligned products, and without cuBLASLt. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

enum { TILE = CUDA_PRODUCT_TILE, STEP = CUDA_PRODUCT_STEP, PER_THREAD = 4, PITCH = TILE + PER_THREAD };

/* Layout of an operand's tile: line i of TILE, depth k of STEP. */
struct operand {
    const el *at;
    size_t line, depth;     /* strides in elements */
    unsigned lines, depths; /* remaining */
};

/* Neighbouring threads read neighbouring elements in both storage orders. */
DEVICE void load_tile(float *tile, const struct operand *o)
{
    for (unsigned e = threadIdx.x; e < TILE * STEP; e += CUDA_THREADS) {
        unsigned i = o->depth == 1 ? e / STEP : e % TILE, k = o->depth == 1 ? e % STEP : e / TILE;
        tile[k * PITCH + i] =
            i < o->lines && k < o->depths ? el_get(o->at + i * o->line + k * o->depth) : 0.0f;
    }
}

DEVICE void put_result(const struct cuda_product *p, unsigned row, unsigned column, float sum)
{
    size_t at = row * p->c_row + column;
    if (p->bias)
        sum += el_get((const el *)p->bias + column);
    if (!p->floats)
        el_onto((el *)p->c + at, sum, p->accumulate);
    else
        ((float *)p->c)[at] = p->accumulate ? ((float *)p->c)[at] + sum : sum;
}

KERNEL(K(product), struct cuda_product, CUDA_THREADS)
{
    SHARED(float, a_tile, STEP *PITCH);
    SHARED(float, b_tile, STEP *PITCH);
    unsigned row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    unsigned own_row = threadIdx.x / (TILE / PER_THREAD) * PER_THREAD,
             own_column = threadIdx.x % (TILE / PER_THREAD) * PER_THREAD;
    struct operand from_a = {(const el *)a.a + row * a.a_row, a.a_row, a.a_column, a.m - row, a.k};
    struct operand from_b = {(const el *)a.b + column * a.b_column, a.b_column, a.b_row, a.n - column, a.k};
    float sums[PER_THREAD][PER_THREAD] = {{0}};
    for (unsigned k = 0; k < a.k; k += STEP) {
        from_a.depths = from_b.depths = a.k - k;
        load_tile(a_tile, &from_a);
        load_tile(b_tile, &from_b);
        __syncthreads();
        for (unsigned step = 0; step < STEP; step++) {
            const float *left = a_tile + step * PITCH + own_row, *right = b_tile + step * PITCH + own_column;
            UNROLL
            for (int i = 0; i < PER_THREAD; i++)
                UNROLL
            for (int j = 0; j < PER_THREAD; j++)
                sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
        __syncthreads();
        from_a.at += STEP * from_a.depth;
        from_b.at += STEP * from_b.depth;
    }
    UNROLL
    for (int i = 0; i < PER_THREAD; i++)
        UNROLL
    for (int j = 0; j < PER_THREAD; j++)
        if (row + own_row + i < a.m && column + own_column + j < a.n)
            put_result(&a, row + own_row + i, column + own_column + j, sums[i][j]);
}
