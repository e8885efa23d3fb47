/* device.h: the environment of every .cu source. Sources are written in the common subset of C and C++: nvcc
 * compiles them for GPUs, and gcc for the emulated driver of the tests (device_processor.h). No CUDA header
 * is included. PTX is wrapped in inline functions, here or in element.h, with a version for the CPU.
 *
 * KERNEL(name, struct arguments, threads) { ... } defines a kernel with at most `threads` per block and one
 * argument `a`. SHARED(type, name, count) is an array in shared memory, SHARED_DYNAMIC(type, name) the
 * dynamic shared memory of the launch. UNROLL and ROLLED precede loops that must or must not be unrolled,
 * which controls the number of registers. ALIGNED() precedes the name of a struct. CUDA's names have CUDA's
 * meaning: threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(), __ballot_sync(),
 * __shfl_sync() (whole warps), __popc(). Atomics are zr_atomic_add() and zr_atomic_min() of unsigned long
 * long, and zr_atomic_add_float(). */
#ifndef ZR_CUDA_DEVICE_H
#define ZR_CUDA_DEVICE_H

#ifdef __CUDACC__

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL(name, arguments, threads) KERNEL_NAMED(name, arguments, threads)
#define KERNEL_NAMED(name, arguments, threads)                                                               \
    extern "C" __global__ void __launch_bounds__(threads) name(const arguments a)
#define UNROLL                    _Pragma("unroll")
#define ROLLED                    _Pragma("unroll 1")
#define ALIGNED(bytes)            __align__(bytes)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define SHARED_DYNAMIC(type, name)                                                                           \
    extern __shared__ __align__(16) unsigned char zr_dynamic_shared[];                                       \
    type *name = (type *)zr_dynamic_shared

static __device__ __forceinline__ unsigned long long zr_atomic_add(unsigned long long *at,
                                                                   unsigned long long x)
{
    return atomicAdd(at, x);
}
static __device__ __forceinline__ unsigned long long zr_atomic_min(unsigned long long *at,
                                                                   unsigned long long x)
{
    return atomicMin(at, x);
}
static __device__ __forceinline__ float zr_atomic_add_float(float *at, float x)
{
    return atomicAdd(at, x);
}

#else
#include "kernels/cuda/device_processor.h"
#define UNROLL
#define ROLLED
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif

#define DEVICE static __device__ __forceinline__

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

DEVICE unsigned lane_of_thread(void)
{
    return threadIdx.x % WARP;
}

DEVICE unsigned warp_of_thread(void)
{
    return threadIdx.x / WARP;
}

DEVICE size_t index_in_grid(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* A grid-stride loop over [0, n). */
#define EACH(i, n)                                                                                           \
    for (size_t i = index_in_grid(), grid_ = (size_t)gridDim.x * blockDim.x; i < (n); i += grid_)

#endif
