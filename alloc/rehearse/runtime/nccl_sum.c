/* nccl_sum.c: reductions of NCCL's types. See nccl_sum.h. */
#include "alloc/rehearse/runtime/nccl_sum.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum numbers { NO_ARITHMETIC, SIGNED, UNSIGNED, FLOATING, BRAIN };
static const struct {
    unsigned char bytes, numbers;
} types[NCCL_TYPES_COUNT] = {
    {1, SIGNED},   {1, UNSIGNED}, {4, SIGNED},   {4, UNSIGNED}, {8, SIGNED},        {8, UNSIGNED},
    {2, FLOATING}, {4, FLOATING}, {8, FLOATING}, {2, BRAIN},    {1, NO_ARITHMETIC}, {1, NO_ARITHMETIC},
};

size_t nccl_type_bytes(int type)
{
    return type >= 0 && type < NCCL_TYPES_COUNT ? types[type].bytes : 0;
}

bool nccl_can_reduce(int type)
{
    return nccl_type_bytes(type) && types[type].numbers != NO_ARITHMETIC;
}

union value {
    double f;
    int64_t i;
    uint64_t u;
};

static union value of_float(double value)
{
    return (union value){.f = value};
}

static union value of_word(uint64_t value)
{
    return (union value){.u = value};
}

static double from_half(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const double fraction = half & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
    if (exponent == 31)
        size = fraction > 0 ? NAN : INFINITY;
    return half >> 15 ? -size : size;
}

/* To the nearest, and even. */
static uint16_t to_half(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs(value), infinite = 65520;
    int exponent = 0;
    if (isnan(value) || size >= infinite)
        return sign | (isnan(value) ? 0x7e00 : 0x7c00);
    frexp(size, &exponent);
    const int normal = exponent >= -13;
    const double units = ldexp(size, normal ? 11 - exponent : 24);
    uint64_t whole = (uint64_t)units;
    const double rest = units - (double)whole;
    whole += rest > 0.5 || (rest == 0.5 && whole & 1);
    return (uint16_t)(sign | (normal && size > 0 ? ((uint64_t)(exponent + 13) << 10) + whole : whole));
}

static double load_float(size_t bytes, enum numbers numbers, const void *at)
{
    uint16_t half = 0;
    float single;
    double twice;
    if (bytes == sizeof twice)
        return memcpy(&twice, at, sizeof twice), twice;
    if (bytes == sizeof half)
        memcpy(&half, at, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&single, bytes == sizeof half ? (const void *)&bits : at, sizeof single);
    return bytes == sizeof half && numbers == FLOATING ? from_half(half) : (double)single;
}

static void store_float(size_t bytes, enum numbers numbers, void *at, double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits += isnan(value) ? 0 : 0x7fff + (bits >> 16 & 1); /* to the nearest, and even */
    const uint16_t half = numbers == BRAIN ? (uint16_t)(bits >> 16) : to_half(value);
    memcpy(at,
           bytes == sizeof half     ? (const void *)&half
           : bytes == sizeof single ? (const void *)&single
                                    : &value,
           bytes);
}

/* Integers lie in the low bytes of a little-endian word. */
static union value load(int type, const void *at)
{
    const size_t bytes = types[type].bytes;
    uint64_t word = 0;
    if (types[type].numbers >= FLOATING)
        return of_float(load_float(bytes, types[type].numbers, at));
    memcpy(&word, at, bytes);
    const unsigned above = 64 - 8 * (unsigned)bytes;
    return of_word(types[type].numbers == SIGNED ? (uint64_t)((int64_t)(word << above) >> above) : word);
}

static void store(int type, void *at, union value value)
{
    if (types[type].numbers >= FLOATING)
        store_float(types[type].bytes, types[type].numbers, at, value.f);
    else
        memcpy(at, &value, types[type].bytes);
}

double nccl_scalar(int type, const void *at)
{
    union value value = load(type, at);
    return types[type].numbers >= FLOATING ? value.f
           : types[type].numbers == SIGNED ? (double)value.i
                                           : (double)value.u;
}

/* Signed sums and products are those of the unsigned words: they wrap. */
static union value combine(enum nccl_operation operation, enum numbers numbers, union value a, union value b)
{
    const bool floating = numbers >= FLOATING;
    bool less = floating ? b.f < a.f : b.u < a.u;
    if (numbers == SIGNED)
        less = b.i < a.i;
    switch (operation) {
    case NCCL_PRODUCT:
        return floating ? of_float(a.f * b.f) : of_word(a.u * b.u);
    case NCCL_MAX:
        return less ? a : b;
    case NCCL_MIN:
        return less ? b : a;
    default:
        return floating ? of_float(a.f + b.f) : of_word(a.u + b.u);
    }
}

static union value multiply(enum numbers numbers, union value value, double by)
{
    if (numbers >= FLOATING)
        return of_float(value.f * by);
    return of_word(numbers == SIGNED ? (uint64_t)(int64_t)((double)value.i * by)
                                     : (uint64_t)((double)value.u * by));
}

static union value divide(enum numbers numbers, union value value, int by)
{
    if (numbers >= FLOATING)
        return of_float(value.f / by);
    return of_word(numbers == SIGNED ? (uint64_t)(value.i / by) : value.u / (unsigned)by);
}

void nccl_reduce(const struct nccl_reduction *reduction, void *out, const void *all, int ranks,
                 size_t elements)
{
    const size_t bytes = types[reduction->type].bytes;
    const enum numbers numbers = types[reduction->type].numbers;
    for (size_t i = 0; i < elements; i++) {
        union value sum = {.u = 0};
        for (int rank = 0; rank < ranks; rank++) {
            union value one =
                load(reduction->type, (const char *)all + ((size_t)rank * elements + i) * bytes);
            if (reduction->operation == NCCL_SCALED)
                one = multiply(numbers, one, reduction->scale);
            sum = rank ? combine(reduction->operation, numbers, sum, one) : one;
        }
        if (reduction->operation == NCCL_AVERAGE)
            sum = divide(numbers, sum, ranks);
        store(reduction->type, (char *)out + i * bytes, sum);
    }
}
