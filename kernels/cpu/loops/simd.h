/* simd.h: a vector of floats for the instruction set of the compilation unit, with loads and stores of float,
 * bf16 and fp16.
 *
 * The loops_*.c files are compiled once per instruction set; all their differences are here. Operators
 * (+ - * /) work on `vf` directly. Loads need no alignment, so results do not depend on addresses. The
 * partial forms touch only the first `n` floats (0 < n < VF_LANES); missing lanes read as 0. Horizontal sums
 * have a fixed tree. NaN passes through every function. Conversions to two bytes round to nearest even, keep
 * denormals whatever mode the thread is in, and have the same bits on every instruction set. */
#ifndef ZR_KERNELS_SIMD_H
#define ZR_KERNELS_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_INLINE static inline __attribute__((always_inline))

/* SIMD() adds the prefix of the instruction set to the name of an intrinsic. */
#if defined(__AVX512F__)
#define VF_LANES   16
#define VD_LANES   8 /* half as many doubles */
#define SIMD(name) _mm512_##name
typedef __m512 vf;
typedef __m512i vi;
typedef __m512d vd;
#elif defined(__AVX2__)
#define VF_LANES   8
#define VD_LANES   4
#define SIMD(name) _mm256_##name
typedef __m256 vf;
typedef __m256i vi;
typedef __m256d vd;
#else /* SSE2, part of x86-64 */
#define VF_LANES   4
#define VD_LANES   2
#define SIMD(name) _mm_##name
typedef __m128 vf;
typedef __m128i vi;
typedef __m128d vd;
#endif
typedef uint32_t vu __attribute__((vector_size(4 * VF_LANES))); /* the bits of a vf */

VF_INLINE vf vf_load(const float *p)
{
    return SIMD(loadu_ps)(p);
}
VF_INLINE void vf_store(float *p, vf v)
{
    SIMD(storeu_ps)(p, v);
}
VF_INLINE vf vf_set(float x)
{
    return SIMD(set1_ps)(x);
}
VF_INLINE vf vf_sqrt(vf a)
{
    return SIMD(sqrt_ps)(a);
}
/* The larger / smaller; b where either is NaN. */
VF_INLINE vf vf_max(vf a, vf b)
{
    return SIMD(max_ps)(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return SIMD(min_ps)(a, b);
}
/* 2^n for integers n in [-126, 127]. */
VF_INLINE vf vf_exp2_whole(vf n)
{
    return (vf)(((vu)SIMD(cvtps_epi32)(n) + 127) << 23);
}
/* Rounds to bf16, to nearest even, except NaN. Integer arithmetic, because AVX512_BF16's conversion flushes
 * denormals.
 */
VF_INLINE vi vf_upper_half(vf v)
{
    vu bits = (vu)v, odd = bits >> 16 & 1;
    return (vi)((bits + (odd + 0x7fff)) >> 16);
}
/* NaN keeps its upper half and becomes quiet. */
VF_INLINE vi vf_quiet_half(vf v)
{
    return (vi)((vu)v >> 16 | 0x40);
}
VF_INLINE vd vd_zero(void)
{
    return SIMD(setzero_pd)();
}
VF_INLINE void vd_store(double *p, vd v)
{
    SIMD(storeu_pd)(p, v);
}

#if defined(__AVX512F__)

VF_INLINE __mmask16 vf_first(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}
VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(vf_first(n), p);
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    _mm512_mask_storeu_ps(p, vf_first(n), v);
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

VF_INLINE vd vd_widen(const float *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
VF_INLINE __m256i vf_load_narrow(const uint16_t *p, size_t n)
{
    return n >= VF_LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(vf_first(n), p);
}
VF_INLINE void vf_store_narrow(uint16_t *p, size_t n, __m256i narrow)
{
    if (n >= VF_LANES)
        _mm256_storeu_si256((__m256i *)p, narrow);
    else
        _mm256_mask_storeu_epi16(p, vf_first(n), narrow);
}
VF_INLINE __m256i vf_to_bf16(vf v)
{
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(vf_upper_half(v), nan, vf_quiet_half(v)));
}
VF_INLINE void vf_put_bf16(uint16_t *p, size_t n, vf v)
{
    vf_store_narrow(p, n, vf_to_bf16(v));
}

/* Lane j of row[i] and lane i of row[j] change places. */
VF_INLINE void vf_transpose(vf row[VF_LANES])
{
    vf half[VF_LANES];
    for (int i = 0; i < VF_LANES; i += 4) {
        __m512d low0 = _mm512_castps_pd(_mm512_unpacklo_ps(row[i], row[i + 1]));
        __m512d low1 = _mm512_castps_pd(_mm512_unpacklo_ps(row[i + 2], row[i + 3]));
        __m512d high0 = _mm512_castps_pd(_mm512_unpackhi_ps(row[i], row[i + 1]));
        __m512d high1 = _mm512_castps_pd(_mm512_unpackhi_ps(row[i + 2], row[i + 3]));
        half[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
        half[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
        half[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
        half[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
    }
    for (int i = 0; i < 4; i++) { /* half[4 q + i] has lanes i, 4 + i, 8 + i, 12 + i of the rows 4 q .. */
        vf a = _mm512_shuffle_f32x4(half[i], half[4 + i], 0x44),
           b = _mm512_shuffle_f32x4(half[i], half[4 + i], 0xee);
        vf c = _mm512_shuffle_f32x4(half[8 + i], half[12 + i], 0x44),
           d = _mm512_shuffle_f32x4(half[8 + i], half[12 + i], 0xee);
        row[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        row[4 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
        row[8 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
        row[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

#elif defined(__AVX2__)

VF_INLINE __m256i vf_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, vf_mask(n));
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    _mm256_maskstore_ps(p, vf_mask(n), v);
}
VF_INLINE vf vf_zero_below(vf v, vf x, vf limit)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), v);
}
VF_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

VF_INLINE vd vd_widen(const float *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
}

VF_INLINE __m128i vf_load_narrow(const uint16_t *p, size_t n)
{
    uint16_t all[VF_LANES] = {0};
    if (n >= VF_LANES)
        return _mm_loadu_si128((const __m128i *)p);
    for (size_t i = 0; i < n; i++)
        all[i] = p[i];
    return _mm_loadu_si128((const __m128i *)all);
}
VF_INLINE void vf_store_narrow(uint16_t *p, size_t n, __m128i narrow)
{
    uint16_t all[VF_LANES];
    if (n >= VF_LANES) {
        _mm_storeu_si128((__m128i *)p, narrow);
        return;
    }
    _mm_storeu_si128((__m128i *)all, narrow);
    for (size_t i = 0; i < n; i++)
        p[i] = all[i];
}
VF_INLINE void vf_put_bf16(uint16_t *p, size_t n, vf v)
{
    vi nan = (vi)_mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    vi rounded = _mm256_blendv_epi8(vf_upper_half(v), vf_quiet_half(v), nan);
    vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    vf_store_narrow(p, n, _mm256_castsi256_si128(packed));
}

/* Lane j of row[i] and lane i of row[j] change places. */
VF_INLINE void vf_transpose(vf row[VF_LANES])
{
    vf half[VF_LANES];
    for (int i = 0; i < VF_LANES; i += 4) {
        vf low0 = _mm256_unpacklo_ps(row[i], row[i + 1]), high0 = _mm256_unpackhi_ps(row[i], row[i + 1]);
        vf low1 = _mm256_unpacklo_ps(row[i + 2], row[i + 3]),
           high1 = _mm256_unpackhi_ps(row[i + 2], row[i + 3]);
        half[i] = _mm256_shuffle_ps(low0, low1, 0x44);
        half[i + 1] = _mm256_shuffle_ps(low0, low1, 0xee);
        half[i + 2] = _mm256_shuffle_ps(high0, high1, 0x44);
        half[i + 3] = _mm256_shuffle_ps(high0, high1, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        row[i] = _mm256_permute2f128_ps(half[i], half[4 + i], 0x20);
        row[4 + i] = _mm256_permute2f128_ps(half[i], half[4 + i], 0x31);
    }
}

#else

VF_INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm_setr_ps(p[0], n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}
VF_INLINE void vf_store_part(float *p, size_t n, vf v)
{
    for (size_t i = 0; i < n; i++)
        p[i] = v[i];
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
VF_INLINE vf vf_zero_below(vf v, vf x, vf limit)
{
    return _mm_and_ps(_mm_cmpnlt_ps(x, limit), v);
}
VF_INLINE vf vf_round(vf a)
{
    return _mm_cvtepi32_ps(_mm_cvtps_epi32(a));
}

VF_INLINE vd vd_widen(const float *p)
{
    return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p)));
}

VF_INLINE __m128i vf_load_narrow(const uint16_t *p, size_t n)
{
    uint16_t all[VF_LANES] = {0};
    for (size_t i = 0; i < n && i < VF_LANES; i++)
        all[i] = p[i];
    return _mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)all), _mm_setzero_si128());
}
/* The low halves of four words. */
VF_INLINE void vf_store_narrow(uint16_t *p, size_t n, __m128i words)
{
    uint32_t all[VF_LANES];
    _mm_storeu_si128((__m128i *)all, words);
    for (size_t i = 0; i < n && i < VF_LANES; i++)
        p[i] = (uint16_t)all[i];
}
VF_INLINE __m128i vf_choose(__m128i mask, __m128i yes, __m128i no)
{
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}
VF_INLINE vf vf_get_bf16(const uint16_t *p, size_t n)
{
    return _mm_castsi128_ps(_mm_slli_epi32(vf_load_narrow(p, n), 16));
}
VF_INLINE void vf_put_bf16(uint16_t *p, size_t n, vf v)
{
    vf_store_narrow(p, n, vf_choose((vi)_mm_cmpunord_ps(v, v), vf_quiet_half(v), vf_upper_half(v)));
}
/* An fp16 denormal is an integer multiple of 2^-24. */
VF_INLINE vf vf_get_fp16(const uint16_t *p, size_t n)
{
    __m128i half = vf_load_narrow(p, n), size = _mm_and_si128(half, _mm_set1_epi32(0x7fff));
    __m128i sign = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x8000)), 16);
    __m128i normal = _mm_add_epi32(_mm_slli_epi32(size, 13), _mm_set1_epi32(112 << 23));
    __m128i small = _mm_castps_si128(_mm_cvtepi32_ps(size) * _mm_set1_ps(0x1p-24f));
    __m128i huge = _mm_add_epi32(normal, _mm_set1_epi32(112 << 23)),
            nan = _mm_cmpgt_epi32(size, _mm_set1_epi32(0x7c00));
    huge = _mm_or_si128(huge, _mm_and_si128(nan, _mm_set1_epi32(0x400000)));
    __m128i wide = vf_choose(_mm_cmplt_epi32(size, _mm_set1_epi32(0x400)), small, normal);
    wide = vf_choose(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x7bff)), huge, wide);
    return _mm_castsi128_ps(_mm_or_si128(wide, sign));
}
/* Below 2^-14, adding 0.5 rounds to multiples of 2^-24. 65520 and more become infinite. */
VF_INLINE void vf_put_fp16(uint16_t *p, size_t n, vf v)
{
    __m128i bits = _mm_castps_si128(v), size = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
    __m128i sign = _mm_srli_epi32(_mm_andnot_si128(_mm_set1_epi32(0x7fffffff), bits), 16);
    __m128i odd = _mm_and_si128(_mm_srli_epi32(size, 13), _mm_set1_epi32(1));
    __m128i normal = _mm_add_epi32(size, _mm_add_epi32(odd, _mm_set1_epi32(0xfff - (112 << 23))));
    normal = _mm_srli_epi32(normal, 13);
    __m128i half_bits = _mm_set1_epi32(0x3f000000);
    __m128i small = _mm_castps_si128(_mm_castsi128_ps(size) + _mm_castsi128_ps(half_bits));
    small = _mm_sub_epi32(small, half_bits);
    __m128i nan = _mm_and_si128(_mm_srli_epi32(size, 13), _mm_set1_epi32(0x3ff));
    nan = _mm_or_si128(nan, _mm_set1_epi32(0x7e00));
    __m128i narrow = vf_choose(_mm_cmplt_epi32(size, _mm_set1_epi32(0x38800000)), small, normal);
    narrow = vf_choose(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x477fefff)), _mm_set1_epi32(0x7c00), narrow);
    narrow = vf_choose(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x7f800000)), nan, narrow);
    vf_store_narrow(p, n, _mm_or_si128(narrow, sign));
}

/* Lane j of row[i] and lane i of row[j] change places. */
VF_INLINE void vf_transpose(vf row[VF_LANES])
{
    _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
}

#endif

#if defined(__AVX2__)
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return SIMD(fmadd_ps)(a, b, c);
}
VF_INLINE vf vf_get_bf16(const uint16_t *p, size_t n)
{
    return (vf)SIMD(slli_epi32)(SIMD(cvtepu16_epi32)(vf_load_narrow(p, n)), 16);
}
VF_INLINE vf vf_get_fp16(const uint16_t *p, size_t n)
{
    return SIMD(cvtph_ps)(vf_load_narrow(p, n));
}
VF_INLINE void vf_put_fp16(uint16_t *p, size_t n, vf v)
{
    vf_store_narrow(p, n, SIMD(cvtps_ph)(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
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

/* v; with `accumulate` the value in memory plus v. */
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

/* e^x to within 2 ulp (measured by tests/unit/kernels/kernels_test.c). Below -87.33 the result is 0 (no
 * denormals), above 88.37 it is 2.4e38. x = n ln 2 + r with |r| <= 0.35; Taylor series to r^7 leaves 5e-9. */
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
