/* cuda_kernel_rules.cu: small kernels for tests/unit/cuda/cuda_kernels_test.c, most of which break a rule.
 */
#include "kernels/cuda/device.h"
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

static const float table[4] = {1, 2, 3, 4};

KERNEL(into_constants, struct rule_arguments, 256)
{
    const float *volatile constants = table; /* the compiler does not know */
    ((float *)(uintptr_t)constants)[a.n % 4] = a.number + constants[a.n / 4 % 4];
}
