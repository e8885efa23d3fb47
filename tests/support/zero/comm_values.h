/* comm_values.h: the inputs of tests of communicators. All come from a seed, so that each rank makes by
 * itself what all of them should get; elements of two bytes are rounded here by arithmetic of another kind
 * (frexp and nearbyint). */
#ifndef ZR_TEST_COMM_VALUES_H
#define ZR_TEST_COMM_VALUES_H

#include <math.h>
#include <string.h>

#include "tests/support/kernels/half.h"
#include "zero/comm/zr_comm.h"

static inline uint64_t trial_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* To the nearest number of a format with `digits` binary digits and least exponent `least`, ties to even. */
static inline double trial_round(double x, int digits, int least, double most)
{
    int exponent;
    if (x == 0 || isnan(x))
        return x;
    frexp(x, &exponent);
    int unit = exponent - digits > least ? exponent - digits : least;
    double rounded = ldexp(nearbyint(ldexp(x, -unit)), unit);
    return fabs(rounded) > most ? copysign(INFINITY, x) : rounded;
}

static inline float trial_rounded(enum zr_comm_type type, float x)
{
    if (type == ZR_COMM_BF16)
        return (float)trial_round(x, 8, -133, 0x1.fep127);
    if (type == ZR_COMM_FP16)
        return (float)trial_round(x, 11, -24, 65504);
    return x;
}

static inline void trial_store(enum zr_comm_type type, void *to, size_t index, float x)
{
    float rounded = trial_rounded(type, x);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    if (type == ZR_COMM_FP32) {
        memcpy((char *)to + 4 * index, &bits, 4);
        return;
    }
    uint16_t half = type == ZR_COMM_FP16 ? half_of(rounded) : (uint16_t)(bits >> 16);
    memcpy((char *)to + 2 * index, &half, 2);
}

/* A number whose sums depend on their order; some are so small or large that a format of two bytes is at its
 * end, which shows in sums, not in single ones. */
static inline float trial_value(enum zr_comm_type type, uint64_t seed, unsigned rank, size_t index)
{
    uint64_t bits = trial_mix(trial_mix(seed * 1000003 + rank) + index);
    float mantissa = (float)(int32_t)(bits >> 32) / 2147483648.0f;
    float x = mantissa * (float)(1u << (bits & 15));
    if ((bits >> 4 & 15) == 0)
        x = mantissa * 0x1p-14f;
    if ((bits >> 4 & 15) == 1)
        x = mantissa * 60000;
    return trial_rounded(type, x);
}

static inline float trial_sum(unsigned world, enum zr_comm_type type, uint64_t seed, size_t index,
                              float scale)
{
    float sum = trial_value(type, seed, 0, index);
    for (unsigned p = 1; p < world; p++)
        sum += trial_value(type, seed, p, index);
    return sum * scale;
}

static inline unsigned char trial_byte(uint64_t seed, unsigned rank, size_t index)
{
    return (unsigned char)trial_mix(seed * 77 + rank * 1000000007ull + index);
}

#endif
