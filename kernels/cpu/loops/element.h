/* element.h: the element type of the loops: float, bf16 or fp16, by ZR_LOOPS_PRECISION (a value of enum
 * zr_precision for the preprocessor). Arithmetic is always in floats, with simd.h's vector. */
#ifndef ZR_KERNELS_ELEMENT_H
#define ZR_KERNELS_ELEMENT_H

#include "kernels/cpu/loops/simd.h"
#include "kernels/zr_kernels.h"

#if ZR_LOOPS_PRECISION == 0

typedef float el;
typedef uint32_t el_bits;
static const enum zr_precision el_precision = ZR_PRECISION_FP32;
static const el_bits el_infinity = 0x7f800000;

VF_INLINE vf el_get(const el *p, size_t n)
{
    return vf_get(p, n);
}
VF_INLINE void el_put(el *p, size_t n, vf v)
{
    vf_put(p, n, v);
}
VF_INLINE vf el_round(vf v)
{
    return v;
}

#else

typedef uint16_t el;
typedef uint16_t el_bits;

#if ZR_LOOPS_PRECISION == 1
static const enum zr_precision el_precision = ZR_PRECISION_BF16;
static const el_bits el_infinity = 0x7f80;
#define EL(operation) operation##_bf16
#else
static const enum zr_precision el_precision = ZR_PRECISION_FP16;
static const el_bits el_infinity = 0x7c00;
#define EL(operation) operation##_fp16
#endif

VF_INLINE vf el_get(const el *p, size_t n)
{
    return EL(vf_get)(p, n);
}
VF_INLINE void el_put(el *p, size_t n, vf v)
{
    EL(vf_put)(p, n, v);
}
/* Rounds to the element type and back. */
VF_INLINE vf el_round(vf v)
{
    el kept[VF_LANES];
    el_put(kept, VF_LANES, v);
    return el_get(kept, VF_LANES);
}

#endif

/* Reads or writes the first min(n, VF_LANES) elements; n > 0. */
VF_INLINE vf el_onto(const el *p, size_t n, vf v, bool accumulate)
{
    return accumulate ? (vf)(el_get(p, n) + v) : v;
}
VF_INLINE float el_one(const el *p)
{
    return el_get(p, 1)[0];
}

#endif
