/* half.h: fp16 numbers in 32-bit arithmetic, for references: not the kernels' way, and no compiler's type,
 * which not every compiler has here. */
#ifndef ZR_TEST_HALF_H
#define ZR_TEST_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* To nearest, ties to even; what is too large is infinite. */
static inline uint16_t half_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7e00; /* not a number */
    if (bits >= 0x477ff000)
        return sign | 0x7c00; /* from 65520 on */
    if (bits < 0x38800000)    /* below 2^-14: multiples of 2^-24 */
        return sign | (uint16_t)lrintf(fabsf(x) * 0x1p24f);
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

static inline float float_of_half(uint16_t half)
{
    unsigned exponent = half >> 10 & 31, fraction = half & 1023;
    float x = exponent == 31  ? (fraction ? NAN : INFINITY)
              : exponent == 0 ? (float)fraction * 0x1p-24f
                              : ldexpf((float)(1024 + fraction), (int)exponent - 25);
    return half & 0x8000 ? -x : x;
}

#endif
