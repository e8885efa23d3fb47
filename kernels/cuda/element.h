/* element.h: the element type of a .cu source's tensors: float, bf16 or fp16, by ZR_PRECISION (a value of
 * enum zr_precision for the preprocessor), and struct zr_numbers, whose precision is a field. Arithmetic is
 * always in floats; stores round to nearest even. Conversions use integer arithmetic unless the GPU has an
 * instruction. */
#ifndef ZR_CUDA_ELEMENT_H
#define ZR_CUDA_ELEMENT_H

#include "kernels/cuda/device.h"
#include "kernels/zr_kernels.h"

DEVICE uint32_t bits_of_float(float x)
{
    union {
        float number;
        uint32_t bits;
    } both;
    both.number = x;
    return both.bits;
}

DEVICE float float_of_bits(uint32_t bits)
{
    union {
        float number;
        uint32_t bits;
    } both;
    both.bits = bits;
    return both.number;
}

DEVICE float float_of_bf16(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}

/* NaN keeps its upper half and becomes quiet. */
DEVICE uint16_t bf16_of_float(float x)
{
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(__CUDA_ARCH__)

DEVICE float float_of_fp16(uint16_t x)
{
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
    return result;
}

DEVICE uint16_t fp16_of_float(float x)
{
    uint16_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
    return result;
}

#else

/* The exponent bias of a float exceeds that of a half by 112. A denormal half is a multiple of 2^-24, and the
 * product with 2^-24 is exact. */
DEVICE float float_of_fp16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    if (rest >= 0x7c00)
        return float_of_bits(sign | 0x7f800000 | rest << 13);
    if (rest >= 0x400)
        return float_of_bits(sign | (rest + (112 << 10)) << 13);
    float size = (float)rest * 0x1p-24f;
    return float_of_bits(sign | bits_of_float(size));
}

/* Halves below 2^-14 are multiples of 2^-24. Adding 1/2 to a smaller float rounds it to such a multiple. */
DEVICE uint16_t fp16_of_float(float x)
{
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (size >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000)
        return (uint16_t)(sign | (bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13);
}

#endif

/* A grid-stride loop over n elements, `width` at a time: i is the first element, count their number. */
#define EACH_PACK(i, count, n, width)                                                                        \
    for (size_t i = index_in_grid() * (width), count; count = (n)-i < (width) ? (n)-i : (width), i < (n);    \
         i += (size_t)gridDim.x * blockDim.x * (width))
/* ---- The tensors' elements ----------------------------------------------------------------------------- */

#ifdef ZR_PRECISION

#if ZR_PRECISION == 0
typedef float el;
#define K(name) name##_fp32
DEVICE float el_get(const el *at)
{
    return *at;
}
DEVICE void el_put(el *at, float x)
{
    *at = x;
}
#elif ZR_PRECISION == 1
typedef uint16_t el;
#define K(name) name##_bf16
DEVICE float el_get(const el *at)
{
    return float_of_bf16(*at);
}
DEVICE void el_put(el *at, float x)
{
    *at = bf16_of_float(x);
}
#else
typedef uint16_t el;
#define K(name) name##_fp16
DEVICE float el_get(const el *at)
{
    return float_of_fp16(*at);
}
DEVICE void el_put(el *at, float x)
{
    *at = fp16_of_float(x);
}
#endif

/* The value after a store and a load. */
DEVICE float el_rounded(float x)
{
    el stored;
    el_put(&stored, x);
    return el_get(&stored);
}

/* A pack: 16 bytes that a thread loads or stores at once. */
enum { EL_PACK = 16 / sizeof(el) };
struct pack {
    float at[EL_PACK];
};
struct ALIGNED(16) pack_words {
    uint32_t x, y, z, w;
};
union pack_bits {
    struct pack_words words;
    el at[EL_PACK];
};

/* Elements per pack; 1 unless all tensors (addresses or-ed) are aligned to 16 bytes. */
DEVICE size_t pack_width(uintptr_t addresses)
{
    return addresses % 16 == 0 ? EL_PACK : 1;
}

#define EACH_OF_PACK(j, count)                                                                               \
    UNROLL                                                                                                   \
    for (unsigned j = 0; j < EL_PACK; j++)                                                                   \
        if (j < (count))

DEVICE struct pack pack_get(const void *tensor, size_t i, size_t count)
{
    const el *from = (const el *)tensor + i;
    union pack_bits bits;
    struct pack result;
    if (count == EL_PACK) {
        bits.words = *(const struct pack_words *)(const void *)from;
    } else {
        EACH_OF_PACK(j, count) bits.at[j] = from[j];
    }
    EACH_OF_PACK(j, count) result.at[j] = el_get(&bits.at[j]);
    return result;
}

DEVICE void pack_put(void *tensor, size_t i, const struct pack *pack, size_t count)
{
    el *to = (el *)tensor + i;
    union pack_bits bits;
    EACH_OF_PACK(j, count) el_put(&bits.at[j], pack->at[j]);
    if (count == EL_PACK) {
        *(struct pack_words *)(void *)to = bits.words;
    } else {
        EACH_OF_PACK(j, count) to[j] = bits.at[j];
    }
}

/* accumulate: adds x to the value in memory. */
DEVICE void el_onto(el *at, float x, bool accumulate)
{
    el_put(at, accumulate ? el_get(at) + x : x);
}

#endif

/* ---- Numbers of the engine's state --------------------------------------------------------------------- */

DEVICE float number_get(const struct zr_numbers *numbers, size_t i)
{
    switch (numbers->precision) {
    case ZR_PRECISION_FP32:
        return ((const float *)numbers->at)[i];
    case ZR_PRECISION_BF16:
        return float_of_bf16(((const uint16_t *)numbers->at)[i]);
    default:
        return float_of_fp16(((const uint16_t *)numbers->at)[i]);
    }
}

DEVICE void number_put(const struct zr_numbers *numbers, size_t i, float x)
{
    switch (numbers->precision) {
    case ZR_PRECISION_FP32:
        ((float *)numbers->at)[i] = x;
        break;
    case ZR_PRECISION_BF16:
        ((uint16_t *)numbers->at)[i] = bf16_of_float(x);
        break;
    default:
        ((uint16_t *)numbers->at)[i] = fp16_of_float(x);
    }
}

/* Four numbers at a time if the array is aligned to four numbers; otherwise one by one. */
enum { FOUR = 4 };
struct ALIGNED(16) four {
    float at[FOUR];
};
struct ALIGNED(8) four_narrow {
    uint16_t at[FOUR];
};
#define EACH_OF_FOUR(j, count)                                                                               \
    UNROLL                                                                                                   \
    for (unsigned j = 0; j < FOUR; j++)                                                                      \
        if (j < (count))

/* Whether an array is aligned to four numbers; true for NULL. */
DEVICE bool fours_begin(const struct zr_numbers *numbers)
{
    return (uintptr_t)numbers->at % (numbers->precision == ZR_PRECISION_FP32 ? 16 : 8) == 0;
}

/* Numbers from i on; count FOUR requires fours_begin(). */
DEVICE struct four four_get(const struct zr_numbers *numbers, size_t i, size_t count)
{
    struct four result;
    if (count < FOUR) {
        EACH_OF_FOUR(j, count) result.at[j] = number_get(numbers, i + j);
    } else if (numbers->precision == ZR_PRECISION_FP32) {
        result = *(const struct four *)(const void *)((const float *)numbers->at + i);
    } else {
        struct four_narrow narrow =
            *(const struct four_narrow *)(const void *)((const uint16_t *)numbers->at + i);
        EACH_OF_FOUR(j, FOUR)
        result.at[j] = numbers->precision == ZR_PRECISION_BF16 ? float_of_bf16(narrow.at[j])
                                                               : float_of_fp16(narrow.at[j]);
    }
    return result;
}

DEVICE void four_put(const struct zr_numbers *numbers, size_t i, const struct four *x, size_t count)
{
    if (count < FOUR) {
        EACH_OF_FOUR(j, count) number_put(numbers, i + j, x->at[j]);
    } else if (numbers->precision == ZR_PRECISION_FP32) {
        *(struct four *)(void *)((float *)numbers->at + i) = *x;
    } else {
        struct four_narrow narrow;
        EACH_OF_FOUR(j, FOUR)
        narrow.at[j] =
            numbers->precision == ZR_PRECISION_BF16 ? bf16_of_float(x->at[j]) : fp16_of_float(x->at[j]);
        *(struct four_narrow *)(void *)((uint16_t *)numbers->at + i) = narrow;
    }
}

/* ---- Formulas ------------------------------------------------------------------------------------------ */

#define FORMULA          DEVICE
#define num              float
#define num_of(x)        (x)
#define num_fma(a, b, c) fmaf(a, b, c)
#define num_exp(x)       expf(x)
#define num_sqrt(x)      sqrtf(x)
#define num_max(a, b)    ((a) > (b) ? (a) : (b))
#include "kernels/formulas.h"

#define ZR_REAL       DEVICE
#define ZR_REAL_TABLE const
#include "kernels/normal.h"

/* ---- Reductions over warps, in an order that does not depend on timing -----------------------------------
 */

DEVICE float warp_sum(float x)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, other);
    return x;
}

DEVICE float warp_max(float x)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, other));
    return x;
}

DEVICE uint32_t warp_max_bits(uint32_t x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, x);
#else
    for (int other = WARP / 2; other > 0; other /= 2) {
        uint32_t theirs = __shfl_xor_sync(ALL_LANES, x, other);
        x = theirs > x ? theirs : x;
    }
    return x;
#endif
}

#endif
