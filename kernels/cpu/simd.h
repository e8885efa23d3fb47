/* simd.h: one vector of floats, whatever the instruction set this file is compiled for.
 *
 * The loops_*.c files are compiled once per instruction set; here is all that differs between them. Operators
 * (+ - * /) work on `vf` directly. Loads need no alignment, so results do not depend on addresses. The
 * partial forms touch only the first `n` floats (0 < n < VF_LANES); missing lanes read as 0. Horizontal sums
 * have a fixed tree. NaN passes through every function. */
#ifndef ZR_KERNELS_SIMD_H
#define ZR_KERNELS_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#define VF_LANES 16
typedef __m512 vf;

VF_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VF_INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
VF_INLINE vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VF_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
/* The larger / smaller; b where either is NaN. */
VF_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
/* v, but 0 in the lanes where x < limit. */
VF_INLINE vf vf_zero_below(vf v, vf x, vf limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}
VF_INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in [-126, 127]. */
VF_INLINE vf vf_exp2_whole(vf n)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

/* Half as many doubles. */
#define VD_LANES 8
typedef __m512d vd;

VF_INLINE vd vd_zero(void)
{
    return _mm512_setzero_pd();
}
VF_INLINE vd vd_widen(const float *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
VF_INLINE void vd_store(double *p, vd v)
{
    _mm512_storeu_pd(p, v);
}

#elif defined(__AVX2__)

#define VF_LANES 8
typedef __m256 vf;

VF_INLINE __m256i vf_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VF_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VF_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, vf_mask(n));
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    _mm256_maskstore_ps(p, vf_mask(n), v);
}
VF_INLINE vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VF_INLINE vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VF_INLINE vf vf_zero_below(vf v, vf x, vf limit)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), v);
}
VF_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF_INLINE vf vf_exp2_whole(vf n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}

/* Half as many doubles. */
#define VD_LANES 4
typedef __m256d vd;

VF_INLINE vd vd_zero(void)
{
    return _mm256_setzero_pd();
}
VF_INLINE vd vd_widen(const float *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
VF_INLINE void vd_store(double *p, vd v)
{
    _mm256_storeu_pd(p, v);
}

#else /* SSE2, which every x86-64 has */

#define VF_LANES 4
typedef __m128 vf;

VF_INLINE vf vf_load(const float *p)
{
    return _mm_loadu_ps(p);
}
VF_INLINE void vf_store(float *p, vf v)
{
    _mm_storeu_ps(p, v);
}
VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm_setr_ps(p[0], n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    for (size_t i = 0; i < n; i++)
        p[i] = v[i];
}
VF_INLINE vf vf_set(float x)
{
    return _mm_set1_ps(x);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
VF_INLINE vf vf_sqrt(vf a)
{
    return _mm_sqrt_ps(a);
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return _mm_max_ps(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return _mm_min_ps(a, b);
}
VF_INLINE vf vf_zero_below(vf v, vf x, vf limit)
{
    return _mm_and_ps(_mm_cmpnlt_ps(x, limit), v);
}
VF_INLINE vf vf_round(vf a)
{
    return _mm_cvtepi32_ps(_mm_cvtps_epi32(a));
}
VF_INLINE vf vf_exp2_whole(vf n)
{
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(n), _mm_set1_epi32(127)), 23));
}

/* Half as many doubles. */
#define VD_LANES 2
typedef __m128d vd;

VF_INLINE vd vd_zero(void)
{
    return _mm_setzero_pd();
}
VF_INLINE vd vd_widen(const float *p)
{
    return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p)));
}
VF_INLINE void vd_store(double *p, vd v)
{
    _mm_storeu_pd(p, v);
}

#endif

/* The first min(n, VF_LANES) floats. */
VF_INLINE vf vf_get(const float *p, size_t n)
{
    return n >= VF_LANES ? vf_load(p) : vf_load_part(p, n);
}
VF_INLINE void vf_put(float *p, size_t n, vf v)
{
    if (n >= VF_LANES)
        vf_store(p, v);
    else
        vf_store_part(p, n, v);
}

/* v, or with `accumulate` what is there plus v. */
VF_INLINE vf vf_onto(const float *p, size_t n, vf v, bool accumulate)
{
    return accumulate ? (vf)(vf_get(p, n) + v) : v;
}

/* Sum and maximum over the lanes, halves folded onto each other. */
VF_INLINE float vf_sum(vf v)
{
    float lane[VF_LANES];
    vf_store(lane, v);
    for (size_t half = VF_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}
VF_INLINE float vf_largest(vf v)
{
    float lane[VF_LANES];
    vf_store(lane, v);
    for (size_t half = VF_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] || lane[i] != lane[i] ? lane[i] : lane[i + half];
    return lane[0];
}

/* e^x to within 2 ulp (tests/kernels_test.c measures it). Below -87.33 it is 0 (no denormals), above 88.37 it
 * stays at 2.4e38. x = n ln 2 + r with |r| <= 0.35; Taylor's series to r^7 leaves 5e-9. */
VF_INLINE vf vf_exp(vf x)
{
    const vf least = vf_set(-87.33f);
    vf bounded = vf_max(least, vf_min(vf_set(88.37f), x));
    vf n = vf_round(bounded * vf_set(1.44269504f));
    vf r = vf_fma(n, vf_set(-0.693359375f), bounded);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf y = vf_set(1.0f / 5040.0f);
    y = vf_fma(y, r, vf_set(1.0f / 720.0f));
    y = vf_fma(y, r, vf_set(1.0f / 120.0f));
    y = vf_fma(y, r, vf_set(1.0f / 24.0f));
    y = vf_fma(y, r, vf_set(1.0f / 6.0f));
    y = vf_fma(y, r, vf_set(0.5f));
    y = vf_fma(y, r, vf_set(1.0f));
    y = vf_fma(y, r, vf_set(1.0f));
    return vf_zero_below(y * vf_exp2_whole(n), x, least);
}

#endif
