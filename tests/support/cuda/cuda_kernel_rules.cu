/* cuda_kernel_rules.cu: small kernels for tests/unit/cuda/cuda_kernels_test.c, most of which break a rule.
 */
#define ZR_PRECISION 1 /* matrices are of bf16 */
#include "kernels/cuda/mma.h"
#include "tests/support/cuda/cuda_kernel_rules.h"

/* ---- In order ------------------------------------------------------------------------------------------ */

KERNEL(add_number, struct rule_arguments, 256)
{
    EACH(i, a.n)
    a.x[i] += a.number;
}

KERNEL(copy_numbers, struct rule_arguments, 256)
{
    EACH(i, a.n)
    a.x[i] = a.y[i];
}

/* x[block] = the sum of the block's numbers of y, through shuffles, static and dynamic shared memory. */
KERNEL(sum_blocks, struct rule_arguments, 256)
{
    SHARED(float, partial, WARP);
    SHARED_DYNAMIC(float, all);
    unsigned warps = blockDim.x / WARP;
    float sum = a.y[index_in_grid()];
    for (int other = WARP / 2; other > 0; other /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, other);
    if (lane_of_thread() == 0)
        partial[warp_of_thread()] = sum;
    __syncthreads();
    all[threadIdx.x] = threadIdx.x < warps ? partial[threadIdx.x] : 0;
    __syncthreads();
    sum = 0;
    for (unsigned i = 0; i < blockDim.x; i++)
        sum += all[i];
    if (threadIdx.x == 0)
        a.x[blockIdx.x] = sum;
}

/* Up, down, from a lane, votes; lanes that have ended are not waited for. */
KERNEL(exchange, struct rule_arguments, 64)
{
    unsigned lane = lane_of_thread();
    float own = (float)lane, up = __shfl_up_sync(ALL_LANES, own, 1),
          down = __shfl_down_sync(ALL_LANES, own, 3);
    unsigned odd = __ballot_sync(ALL_LANES, lane % 2);
    float last = __shfl_sync(ALL_LANES, own, WARP - 1);
    bool good = up == (lane ? own - 1 : 0) && down == (lane < 29 ? own + 3 : own) && odd == 0xaaaaaaaau &&
                last == WARP - 1;
    if (lane >= 16)
        return;
    good = good && __popc(__ballot_sync(ALL_LANES, true)) == 16;
    a.x[index_in_grid()] = good ? 1 : 0;
}

KERNEL(count, struct rule_arguments, 256)
{
    zr_atomic_add_float(a.x, 1);
    zr_atomic_add(a.counter, index_in_grid());
}

/* Neighbours in a warp hand numbers on through shared memory. */
KERNEL(hand_on, struct rule_arguments, 32)
{
    SHARED(float, room, WARP);
    room[lane_of_thread()] = (float)lane_of_thread();
    __syncwarp(ALL_LANES);
    a.x[lane_of_thread()] = room[WARP - 1 - lane_of_thread()];
}

enum { MATRIX = 16 }; /* rows and columns */

DEVICE float in_matrix(unsigned row, unsigned column)
{
    return (float)((row * MATRIX + column) * 7 % 13) - 6;
}

DEVICE bool holds(uint32_t pair, float first, float second)
{
    return pair == el_pair(first, second);
}

/* x[16, 8] = the left half of m m, then x[16, 8] = that of m m^T, then whether each lane had what PTX says of
 * the fragments of m16n8k16. */
KERNEL(multiply, struct rule_arguments, 32)
{
    SHARED(el, tile, MATRIX * MATRIX);
    unsigned lane = lane_of_thread(), g = lane / 4, t = lane % 4 * 2;
    for (unsigned i = lane; i < MATRIX * MATRIX; i += WARP)
        el_put(&tile[i], in_matrix(i / MATRIX, i % MATRIX));
    __syncwarp(ALL_LANES);
    const el *row = tile + matrices_offset(MATRIX), *column = tile + matrices_offset_of_columns(MATRIX);
    struct matrices m = matrices_load(row, 0), right = matrices_load_transposed(row, 0),
                    turned = matrices_load(column, 0);
    float products[2][4] = {{0}};
    bool good = true;
    for (unsigned i = 0; i < 4; i++) {
        unsigned down = g + i % 2 * 8, along = t + i / 2 * 8, k = t + i % 2 * 8, n = g + i / 2 * 8;
        good = good && holds(m.part[i], in_matrix(down, along), in_matrix(down, along + 1)) &&
               holds(right.part[i], in_matrix(k, n), in_matrix(k + 1, n)) &&
               holds(turned.part[i], in_matrix(n, k), in_matrix(n, k + 1));
    }
    mma(products[0], &m, right.part[0], right.part[1]);
    mma(products[1], &m, turned.part[0], turned.part[1]);
    for (unsigned i = 0; i < 8; i++)
        a.x[i / 4 * MATRIX * 8 + (g + i / 2 % 2 * 8) * 8 + t + i % 2] = products[i / 4][i % 4];
    a.x[2 * MATRIX * 8 + lane] = good ? 1 : 0;
}

/* x: what comes of y when the thread waits for it, what is there before, zeros in the place of nothing. */
KERNEL(copy_late, struct rule_arguments, 32)
{
    SHARED_DYNAMIC(float, room);
    float *own = room + threadIdx.x * 8, soon;
    copy_16_bytes(own, a.y + threadIdx.x * 4, true);
    copy_8_bytes(own + 4, a.y + a.n, false);
    soon = own[1];
    copies_wait();
    a.x[threadIdx.x] = own[1];
    a.x[WARP + threadIdx.x] = soon;
    a.x[2 * WARP + threadIdx.x] = own[5];
}

/* ---- Out of order -------------------------------------------------------------------------------------- */

KERNEL(no_bound, struct rule_arguments, 256)
{
    a.x[index_in_grid()] = 1;
}

KERNEL(read_one, struct rule_arguments, 256)
{
    if (a.y[a.n] == 12345)
        a.x[0] = 1;
}

KERNEL(misaligned, struct rule_arguments, 256)
{
    a.x[0] = *(const float *)(const void *)((const char *)a.y + 2);
}

KERNEL(no_barrier, struct rule_arguments, 256)
{
    SHARED(float, room, 256);
    room[threadIdx.x] = 1;
    a.x[threadIdx.x] = room[(threadIdx.x + WARP) % blockDim.x];
}

KERNEL(no_second_barrier, struct rule_arguments, 256)
{
    SHARED(float, room, 256);
    for (int round = 0; round < 2; round++) {
        room[threadIdx.x] = (float)round;
        __syncthreads();
        a.x[threadIdx.x] = room[(threadIdx.x + WARP) % blockDim.x];
    }
}

KERNEL(no_warp_barrier, struct rule_arguments, 32)
{
    SHARED(float, room, WARP);
    room[lane_of_thread()] = 1;
    a.x[lane_of_thread()] = room[WARP - 1 - lane_of_thread()];
}

KERNEL(same_number, struct rule_arguments, 256)
{
    a.x[0] = (float)threadIdx.x;
}

KERNEL(blocks_meet, struct rule_arguments, 256)
{
    if (threadIdx.x == 0)
        a.x[0] = a.x[0] + 1;
}

KERNEL(not_written, struct rule_arguments, 256)
{
    SHARED(float, room, 512);
    room[threadIdx.x] = 1;
    __syncthreads();
    a.x[threadIdx.x] = room[threadIdx.x + blockDim.x];
}

KERNEL(past_dynamic, struct rule_arguments, 256)
{
    SHARED_DYNAMIC(float, room);
    room[threadIdx.x] = a.number;
}

KERNEL(left_out, struct rule_arguments, 256)
{
    if (threadIdx.x == 7)
        return;
    __syncthreads();
    a.x[threadIdx.x] = 1;
}

KERNEL(two_barriers, struct rule_arguments, 256)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();
    a.x[threadIdx.x] = 1;
}

KERNEL(half_a_warp, struct rule_arguments, 256)
{
    a.x[threadIdx.x] = __shfl_xor_sync(ALL_LANES, (float)threadIdx.x, 16);
}

KERNEL(past_the_warp, struct rule_arguments, 256)
{
    a.x[threadIdx.x] = __shfl_xor_sync(ALL_LANES, (float)threadIdx.x, 32);
}

KERNEL(in_a_branch, struct rule_arguments, 256)
{
    float x = 0;
    if (threadIdx.x % 2)
        x = __shfl_down_sync(ALL_LANES, (float)threadIdx.x, 2);
    __syncthreads();
    a.x[threadIdx.x] = x;
}

KERNEL(not_in_mask, struct rule_arguments, 256)
{
    a.x[threadIdx.x] = __shfl_down_sync(0xffffu, (float)threadIdx.x, 1);
}

KERNEL(masks_differ, struct rule_arguments, 256)
{
    unsigned mask = threadIdx.x % 2 ? ALL_LANES : 0x55555555u;
    a.x[threadIdx.x] = (float)__ballot_sync(mask, true);
}

KERNEL(matrix_of_half_a_warp, struct rule_arguments, 256)
{
    struct matrices m = {{0}};
    float sums[4] = {0};
    mma(sums, &m, 0, 0);
    a.x[threadIdx.x] = sums[0];
}

KERNEL(copy_without_barrier, struct rule_arguments, 256)
{
    SHARED_DYNAMIC(float, room);
    copy_16_bytes(room + threadIdx.x * 4, a.y, true);
    copies_wait();
    a.x[threadIdx.x] = room[(threadIdx.x + WARP) % blockDim.x * 4];
}

static const float table[4] = {1, 2, 3, 4};

KERNEL(into_constants, struct rule_arguments, 256)
{
    const float *volatile constants = table; /* the compiler does not know */
    ((float *)(uintptr_t)constants)[a.n % 4] = a.number + constants[a.n / 4 % 4];
}
