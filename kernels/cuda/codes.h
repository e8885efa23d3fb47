/* codes.h: two fp8 numbers at a time. GPUs of compute capability 8.9 and later have instructions for them,
 * with the results of kernels/fp8.h. */
#ifndef ZR_CUDA_CODES_H
#define ZR_CUDA_CODES_H

#include "kernels/cuda/element.h"

#include "kernels/fp8.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

/* The first number is in the lower half. */
DEVICE uint32_t fp8_codes(float low, float high, enum zr_fp8 kind)
{
    uint16_t codes;
    if (kind == ZR_FP8_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}

/* E4M3 numbers. Halves have them all. */
DEVICE void fp8_values(uint32_t codes, float *low, float *high)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
    *low = float_of_fp16((uint16_t)halves);
    *high = float_of_fp16((uint16_t)(halves >> 16));
}

#else

DEVICE uint32_t fp8_codes(float low, float high, enum zr_fp8 kind)
{
    return zr_fp8_round(low, kind) | (uint32_t)zr_fp8_round(high, kind) << 8;
}

DEVICE void fp8_values(uint32_t codes, float *low, float *high)
{
    *low = zr_fp8_value((uint8_t)codes, ZR_FP8_E4M3);
    *high = zr_fp8_value((uint8_t)(codes >> 8), ZR_FP8_E4M3);
}

#endif

#endif
