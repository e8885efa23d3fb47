/* fp8.h: fp8 numbers and the scale of an fp8 tensor, for CPU and GPU. E4M3 and E5M2 are defined by the Open
 * Compute Project's "8-bit Floating Point Specification" (2023). E4M3 has no infinity; in both, numbers out
 * of range saturate.
 */
#ifndef ZR_KERNELS_FP8_H
#define ZR_KERNELS_FP8_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

enum zr_fp8 { ZR_FP8_NONE = 0, ZR_FP8_E4M3, ZR_FP8_E5M2 };

/* Tensor cores require that all sizes of an fp8 product are multiples of 16. */
enum { ZR_FP8_MULTIPLE = 16 };
static inline bool zr_fp8_suits(const struct zr_linear *shape)
{
    return (shape->rows | shape->in | shape->out) % ZR_FP8_MULTIPLE == 0;
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

ZR_REAL uint32_t zr_fp8_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ZR_REAL float zr_fp8_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Bits of the fraction / biased float exponent of the smallest normal number. */
ZR_REAL unsigned zr_fp8_fraction(enum zr_fp8 kind)
{
    return kind == ZR_FP8_E4M3 ? 3 : 2;
}

ZR_REAL unsigned zr_fp8_min(enum zr_fp8 kind)
{
    return kind == ZR_FP8_E4M3 ? 127 - 6 : 127 - 14;
}

/* first ? a : b, without a branch: loops become vectors. */
ZR_REAL uint32_t zr_fp8_choose(bool first, uint32_t a, uint32_t b)
{
    const uint32_t mask = (uint32_t)0 - first;
    return (a & mask) | (b & ~mask);
}

/* Rounds to nearest even. Below the smallest normal number adding 2^23 steps rounds to whole steps; the low
 * bits of the sum are their number. */
ZR_REAL uint8_t zr_fp8_round(float x, enum zr_fp8 kind)
{
    const uint32_t bits = zr_fp8_float_bits(x), size = bits & 0x7fffffff, sign = bits >> 24 & 0x80,
                   most = kind == ZR_FP8_E4M3 ? 0x7e : 0x7b;
    const unsigned cut = 23 - zr_fp8_fraction(kind), min_exponent = zr_fp8_min(kind);
    const uint32_t steps = (min_exponent + cut) << 23,
                   small = zr_fp8_float_bits(zr_fp8_float_of(size) + zr_fp8_float_of(steps)) - steps,
                   normal =
                       (size - ((min_exponent - 1) << 23) + (1u << (cut - 1)) - 1 + (size >> cut & 1)) >> cut,
                   whole = zr_fp8_choose(size < min_exponent << 23, small, normal),
                   finite = whole < most ? whole : most;
    return (uint8_t)(sign | zr_fp8_choose(size > 0x7f800000, 0x7f, finite));
}

/* Exact. Numbers below the smallest normal one are differences to it. */
ZR_REAL float zr_fp8_value(uint8_t code, enum zr_fp8 kind)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7f;
    const unsigned cut = 23 - zr_fp8_fraction(kind), min_exponent = zr_fp8_min(kind);
    const uint32_t least = min_exponent << 23,
                   small = zr_fp8_float_bits(zr_fp8_float_of(least + (size << cut)) - zr_fp8_float_of(least)),
                   normal = least - (1u << 23) + (size << cut),
                   special = kind == ZR_FP8_E5M2 && size == 0x7c ? 0x7f800000 : 0x7fc00000,
                   finite = zr_fp8_choose(size << cut < 1u << 23, small, normal);
    return zr_fp8_float_of(sign |
                           zr_fp8_choose(size >= (kind == ZR_FP8_E4M3 ? 0x7fu : 0x7cu), special, finite));
}

/* ---- Scales -------------------------------------------------------------------------------------------- */

/* Factors before rounding and after the product. */
struct zr_fp8_scale {
    float to, from;
};

/* Scale of a tensor; `most`: bits of the largest absolute value in bf16. With an infinity or NaN the inverse
 * factor is NaN. */
ZR_REAL struct zr_fp8_scale zr_fp8_scale_of(uint32_t most, enum zr_fp8 kind)
{
    enum { BF16_INFINITY = 0x7f80, THREE_QUARTERS = 0x60, SCALE_MAX = 126 };
    const int exponent = (int)(most >> 7) - 127, largest = kind == ZR_FP8_E4M3 ? 8 : 15;
    /* In both formats the largest number is 1.75 times a power of two. Both factors are normal floats. */
    int scale = largest - exponent - ((most & 0x7f) > THREE_QUARTERS);
    struct zr_fp8_scale result = {1, 1};
    if (most >= BF16_INFINITY)
        result.from = zr_fp8_float_of(0x7fc00000);
    if (most >= BF16_INFINITY || most >> 7 == 0) /* all zeros, infinity or NaN */
        return result;
    scale = scale < SCALE_MAX ? scale : SCALE_MAX;
    result.to = zr_fp8_float_of((uint32_t)(127 + scale) << 23);
    result.from = zr_fp8_float_of((uint32_t)(127 - scale) << 23);
    return result;
}

#endif
