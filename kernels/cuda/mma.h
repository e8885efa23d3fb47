/* mma.h: matrix products of a warp on tensor cores (PTX's mma.m16n8k16), the loads of their fragments, and
 * asynchronous copies to shared memory. For two-byte elements, on compute capability 8.0 and later.
 *
 * A fragment is a lane's part of a matrix. With g = lane / 4 and t = lane % 4, element pairs of
 *   A (16 x 16), four registers: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
 *   B (16 x 8), two registers: (2t, g), (2t + 8, g), pairs down a column
 *   sums (16 x 8), four floats: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
 * "All lanes": the lanes of a warp call the function together. */
#ifndef ZR_CUDA_MMA_H
#define ZR_CUDA_MMA_H

#include "kernels/cuda/element.h"

/* Four 8 x 8 matrices of a 16 x 16 part of a tile in shared memory. The rows that the lanes pass decide
 * whether they form an A or two B side by side. */
struct matrices {
    uint32_t part[4];
};

/* Offset of a lane's row for an A, and for the B of a transposed load. */
DEVICE unsigned matrices_offset(unsigned row_stride)
{
    return lane_of_thread() % 16 * row_stride + lane_of_thread() / 16 * 8;
}

/* Offset of a lane's row for the B whose columns are the tile's rows. */
DEVICE unsigned matrices_offset_of_columns(unsigned row_stride)
{
    return (lane_of_thread() / 16 * 8 + lane_of_thread() % 8) * row_stride + lane_of_thread() / 8 % 2 * 8;
}

#ifdef __CUDACC__

DEVICE unsigned shared_address(const void *at)
{
    return (unsigned)__cvta_generic_to_shared(at);
}

/* Address of an element in shared memory. */
typedef uint32_t shared_el;

DEVICE shared_el shared_el_of(const el *at)
{
    return shared_address(at);
}

DEVICE shared_el shared_el_behind(shared_el at, int count)
{
    return at + (uint32_t)count * sizeof(el);
}

/* All lanes: each passes its row of 16 bytes, and `behind` moves all rows by that many elements. */
DEVICE struct matrices matrices_load(shared_el row, int behind)
{
    struct matrices m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3])
                 : "r"(shared_el_behind(row, behind)));
    return m;
}

/* All lanes: like matrices_load(), but each of the four matrices is transposed in place. */
DEVICE struct matrices matrices_load_transposed(shared_el row, int behind)
{
    struct matrices m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3])
                 : "r"(shared_el_behind(row, behind)));
    return m;
}

/* All lanes: sums += a b, in floats. */
DEVICE void mma(float *sums, const struct matrices *a, uint32_t b0, uint32_t b1)
{
#if ZR_PRECISION == 1
#define ZR_MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define ZR_MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
    asm(ZR_MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a->part[0]), "r"(a->part[1]), "r"(a->part[2]), "r"(a->part[3]), "r"(b0), "r"(b1));
#undef ZR_MMA
}

/* Copies 16 bytes to shared memory, zeros if `there` is false. The bytes have arrived after the thread's
 * copies_wait(). */
DEVICE void copy_16_bytes(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

DEVICE void copy_8_bytes(void *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}

DEVICE void copies_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Two elements, the first in the lower half. */
DEVICE uint32_t el_pair(float first, float second)
{
    uint32_t pair;
#if ZR_PRECISION == 1
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
    return pair;
}

/* 2^x, with an error of up to two units in the last place. */
DEVICE float exp2_approximate(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

#else

typedef const el *shared_el;

DEVICE shared_el shared_el_of(const el *at)
{
    return at;
}

DEVICE shared_el shared_el_behind(shared_el at, int count)
{
    return at + count;
}

DEVICE struct matrices matrices_load(shared_el row, int behind)
{
    struct zr_device_matrices loaded = zr_device_load_matrices(row + behind, false, __LINE__);
    struct matrices m = {{loaded.part[0], loaded.part[1], loaded.part[2], loaded.part[3]}};
    return m;
}

DEVICE struct matrices matrices_load_transposed(shared_el row, int behind)
{
    struct zr_device_matrices loaded = zr_device_load_matrices(row + behind, true, __LINE__);
    struct matrices m = {{loaded.part[0], loaded.part[1], loaded.part[2], loaded.part[3]}};
    return m;
}

DEVICE float el_of_pair(uint32_t pair, unsigned which)
{
    el one = (el)(pair >> 16 * which);
    return el_get(&one);
}

DEVICE void mma(float *sums, const struct matrices *a, uint32_t b0, uint32_t b1)
{
    struct zr_device_fragments own;
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned r = 0; r < 4; r++)
            own.a[2 * r + half] = el_of_pair(a->part[r], half);
        own.b[half] = el_of_pair(b0, half);
        own.b[2 + half] = el_of_pair(b1, half);
    }
    for (unsigned i = 0; i < 4; i++)
        own.sums[i] = sums[i];
    own = zr_device_multiply(own, __LINE__);
    for (unsigned i = 0; i < 4; i++)
        sums[i] = own.sums[i];
}

DEVICE void copy_16_bytes(void *to, const void *from, bool there)
{
    zr_device_copy(to, from, 16, there);
}

DEVICE void copy_8_bytes(void *to, const void *from, bool there)
{
    zr_device_copy(to, from, 8, there);
}

DEVICE void copies_wait(void)
{
    zr_device_copies_wait();
}

DEVICE uint32_t el_pair(float first, float second)
{
    el pair[2];
    el_put(&pair[0], first);
    el_put(&pair[1], second);
    return (uint32_t)pair[1] << 16 | pair[0];
}

DEVICE float exp2_approximate(float x)
{
    return exp2f(x);
}

#endif

#endif
