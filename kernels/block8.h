/* block8.h: the values of 8-bit optimizer state (struct zr_block8), for CPU and GPU.
 *
 * The maps are the dynamic exponent types of Dettmers et al. (8-bit Optimizers via Block-wise Quantization,
 * 2022) as the bitsandbytes library publishes them: decades below 1, each divided into twice as many equal
 * steps as the decade below; the values are 0, the middles of the steps, and 1. The variance's map has 256
 * magnitudes and is the published one. The momentum's map has 128 magnitudes and a sign, code = magnitude +
 * 128 if negative. It lacks the published map's smallest pair, +-5.5e-7, and has -1 instead, so the largest
 * magnitude of a block is exact at either sign, and a block that is read and written is the same block. Code
 * 128, -0, is never written. */
#ifndef ZR_KERNELS_BLOCK8_H
#define ZR_KERNELS_BLOCK8_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* Magnitudes in ascending order. A number is nearer to values[i + 1] than to values[i] if it is larger than
 * borders[i]; on the border itself the lower code is taken. */
struct zr_block8_map {
    float values[ZR_BLOCK8_NUMBERS], borders[ZR_BLOCK8_NUMBERS];
    unsigned count; /* magnitudes: 128 or 256 */
};

ZR_REAL uint32_t zr_block8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ZR_REAL float zr_block8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- Maps ---------------------------------------------------------------------------------------------- */

/* Magnitude i of a map of 2^(decades + 1). The decade of i + 1 = 2^k + j is 10^(k - decades), its step j. */
ZR_REAL float zr_block8_value(unsigned i, unsigned count)
{
    unsigned k = 0, decades = count == ZR_BLOCK8_NUMBERS ? 7 : 6;
    double power = 1;
    if (i == 0 || i + 1 >= count)
        return i == 0 ? 0.0f : 1.0f;
    while ((i + 1) >> (k + 1))
        k++;
    for (unsigned decade = k; decade < decades; decade++)
        power *= 10;
    return (float)((0.9 * (((double)i + 1.5) / (double)(1u << k)) - 0.8) / power);
}

/* The largest float up to the middle of two values; the sum of the values is exact in double. */
ZR_REAL float zr_block8_border(float low, float high)
{
    double middle = ((double)low + (double)high) / 2;
    float border = (float)middle;
    return (double)border > middle ? zr_block8_float(zr_block8_bits(border) - 1) : border;
}

/* Magnitude i of a map of `count`. */
ZR_REAL void zr_block8_map_set(struct zr_block8_map *map, unsigned i, unsigned count)
{
    map->values[i] = zr_block8_value(i, count);
    map->borders[i] = zr_block8_border(map->values[i], zr_block8_value(i + 1, count));
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

ZR_REAL float zr_block8_number(const struct zr_block8_map *map, float scale, unsigned code)
{
    float magnitude = scale * map->values[code & (map->count - 1)];
    return code >= map->count ? -magnitude : magnitude;
}

/* Scale of a block; `most`: bits of its largest magnitude, which are in the order of the magnitudes, with
 * infinity and NaN at the end. Products of a scale of 2^-100 or more and a value are normal floats. */
ZR_REAL float zr_block8_scale(uint32_t most)
{
    const uint32_t infinity = 0x7f800000, nan = 0x7fc00000, least = (127 - 100) << 23;
    return zr_block8_float(most >= infinity ? nan : most < least ? 0 : most);
}

/* Magnitude of a share of the scale: a binary search of the borders. */
ZR_REAL unsigned zr_block8_search(const struct zr_block8_map *map, float share)
{
    unsigned index = 0;
    for (unsigned step = map->count / 2; step > 0; step /= 2)
        index += share > map->borders[index + step - 1] ? step : 0;
    return index;
}

/* Code of a number of this magnitude, without a branch, which signs would make unpredictable. The sign's bit
 * is the map's number of magnitudes modulo 256. */
ZR_REAL uint8_t zr_block8_code(unsigned magnitude, unsigned count, float x)
{
    unsigned negative = zr_block8_bits(x) >> 31 & (magnitude > 0);
    return (uint8_t)(magnitude + negative * (count % ZR_BLOCK8_NUMBERS));
}

#endif
