/* fp8.cu: fp8 operands: finds the largest number of a bf16 tensor, then rounds the numbers into a copy, a
 * transposed copy, or both. Rows and columns are multiples of 16. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

#include "kernels/cuda/codes.h"

enum { PACK = 8, TILE = CUDA_FP8_TILE, PITCH = TILE + 4, RUN = 16 };

struct ALIGNED(16) pack_of_halves {
    uint32_t at[PACK / 2]; /* two numbers, the first in the lower half */
};
struct ALIGNED(8) pack_of_codes {
    uint32_t at[PACK / 4];
};
struct ALIGNED(16) run_of_codes {
    uint32_t at[RUN / 4];
};

DEVICE bool begins_on_packs(const struct cuda_fp8 *a)
{
    return ((uintptr_t)a->from | a->stride * sizeof(uint16_t)) % sizeof(struct pack_of_halves) == 0;
}

DEVICE struct pack_of_halves halves_get(const struct cuda_fp8 *a, size_t row, size_t column, bool aligned)
{
    const uint16_t *from = (const uint16_t *)a->from + row * a->stride + column;
    struct pack_of_halves pack;
    if (aligned)
        return *(const struct pack_of_halves *)(const void *)from;
    UNROLL
    for (int i = 0; i < PACK / 2; i++)
        pack.at[i] = from[2 * i] | (uint32_t)from[2 * i + 1] << 16;
    return pack;
}

/* ---- The largest number -------------------------------------------------------------------------------- */

/* Absolute values of bf16 numbers are in the order of their bits, with infinities and NaN at the end. The
 * maximum does not depend on the order of blocks. */
KERNEL(fp8_max, struct cuda_fp8, CUDA_THREADS)
{
    SHARED(float, of_warps, CUDA_WARPS);
    const size_t packs = a.columns / PACK;
    const bool aligned = begins_on_packs(&a);
    uint32_t most = 0;
    EACH(i, a.rows * packs)
    {
        struct pack_of_halves pack = halves_get(&a, i / packs, i % packs * PACK, aligned);
        UNROLL
        for (int j = 0; j < PACK / 2; j++) {
            uint32_t low = pack.at[j] & 0x7fff, high = pack.at[j] >> 16 & 0x7fff;
            most = low > most ? low : most;
            most = high > most ? high : most;
        }
    }
    float largest = warp_max((float)most);
    if (lane_of_thread() == 0)
        of_warps[warp_of_thread()] = largest;
    __syncthreads();
    for (unsigned warp = 0; warp < CUDA_WARPS && threadIdx.x == 0; warp++)
        largest = fmaxf(largest, of_warps[warp]);
    if (threadIdx.x == 0)
        zr_atomic_min(a.most, ~(unsigned long long)(uint32_t)largest);
}

/* ---- Rounding ------------------------------------------------------------------------------------------ */

/* Rounds two numbers, the first in the lower half. */
DEVICE uint32_t codes_of(uint32_t halves, float scale, enum zr_fp8 kind)
{
    const float low = float_of_bits(halves << 16) * scale, high = float_of_bits(halves & 0xffff0000) * scale;
    return fp8_codes(low, high, kind);
}

/* A block rounds one tile. Its codes pass through shared memory to the transposed copy: a thread reads 16
 * rows of a column there. */
KERNEL(fp8_round, struct cuda_fp8, CUDA_THREADS)
{
    SHARED(uint32_t, tile, TILE * PITCH / 4);
    const uint8_t *codes = (const uint8_t *)tile;
    const enum zr_fp8 kind = (enum zr_fp8)a.kind;
    const struct zr_fp8_scale scale = zr_fp8_scale_of((uint32_t) ~*a.most, kind);
    const size_t first_row = (size_t)blockIdx.y * TILE, first_column = (size_t)blockIdx.x * TILE;
    const bool aligned = begins_on_packs(&a);
    for (unsigned i = threadIdx.x; i < TILE * TILE / PACK; i += CUDA_THREADS) {
        unsigned tile_row = i / (TILE / PACK), tile_column = i % (TILE / PACK) * PACK;
        size_t row = first_row + tile_row, column = first_column + tile_column;
        struct pack_of_codes pack;
        if (row >= a.rows || column >= a.columns)
            continue;
        struct pack_of_halves halves = halves_get(&a, row, column, aligned);
        UNROLL
        for (int j = 0; j < PACK / 4; j++) {
            pack.at[j] = codes_of(halves.at[2 * j], scale.to, kind) |
                         codes_of(halves.at[2 * j + 1], scale.to, kind) << 16;
            tile[(tile_row * PITCH + tile_column) / 4 + (unsigned)j] = pack.at[j];
        }
        if (a.copy)
            *(struct pack_of_codes *)(void *)(a.copy + row * a.columns + column) = pack;
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *a.scale = scale.from;
    if (!a.turned)
        return;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < TILE * TILE / RUN; i += CUDA_THREADS) {
        unsigned tile_column = i / (TILE / RUN), tile_row = i % (TILE / RUN) * RUN;
        size_t row = first_row + tile_row, column = first_column + tile_column;
        struct run_of_codes run;
        if (row >= a.rows || column >= a.columns)
            continue;
        UNROLL
        for (unsigned j = 0; j < RUN / 4; j++) {
            const uint8_t *from = codes + (tile_row + 4 * j) * PITCH + tile_column;
            run.at[j] = from[0] | (uint32_t)from[PITCH] << 8 | (uint32_t)from[2 * PITCH] << 16 |
                        (uint32_t)from[3 * PITCH] << 24;
        }
        *(struct run_of_codes *)(void *)(a.turned + column * a.rows + row) = run;
    }
}
