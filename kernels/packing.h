/* packing.h: packed numbers (enum zr_packing) for CPU and GPU: the bytes of a block, scales, and codes of
 * single numbers. A block begins with its scales. Includers are compiled without contraction of
 * multiply-adds. */
#ifndef ZR_KERNELS_PACKING_H
#define ZR_KERNELS_PACKING_H

#include "kernels/fp8.h"

#define ZR_PACK_NAN 0x7fc00000u
enum {
    ZR_PACK_INFINITY = 0x7f800000,
    ZR_PACK_LEAST = (127 - 100) << 23, /* 2^-100 */
    ZR_PACK_LANES = 16, /* a sum of squares has so many parts, and numbers of a rotation that distance */
    ZR_MX_GROUP = 32,
    ZR_MX_GROUPS = ZR_PACK_BLOCK / ZR_MX_GROUP,
    ZR_MX_NAN = 0xff
};

ZR_REAL unsigned zr_pack_block_bytes(enum zr_packing packing)
{
    switch (packing) {
    case ZR_PACKING_ONEBIT:
        return 4 + ZR_PACK_BLOCK / 8;
    case ZR_PACKING_INT8:
        return 2 * 4 + ZR_PACK_BLOCK;
    case ZR_PACKING_MXFP8:
        return ZR_MX_GROUPS + ZR_PACK_BLOCK;
    default:
        return 4 * 4 + ZR_PACK_BLOCK / 2;
    }
}

/* Bits of the magnitude; those of infinity and NaN are larger than those of numbers. */
ZR_REAL uint32_t zr_pack_size(float x)
{
    return zr_fp8_float_bits(x) & 0x7fffffff;
}

/* ---- Integers ------------------------------------------------------------------------------------------ */

/* The scale of integers up to `levels` whose largest number has the size `most`, and its inverse, 0 if all of
 * them are packed as 0. */
ZR_REAL float zr_pack_scale(uint32_t most, float levels, float *inverse)
{
    float size = zr_fp8_float_of(most);
    *inverse = 0;
    if (most >= ZR_PACK_INFINITY)
        return zr_fp8_float_of(ZR_PACK_NAN);
    if (most < ZR_PACK_LEAST)
        return 0;
    *inverse = levels / size;
    return size / levels;
}

/* Adding 1.5 x 2^23 rounds to nearest even; the low bits of the sum are the integer's. */
ZR_REAL uint32_t zr_pack_integer(float share)
{
    return zr_fp8_float_bits(share + 0x1.8p23f);
}

/* The integer of four bits. */
ZR_REAL float zr_pack_nibble(uint32_t code)
{
    return (float)((int32_t)((code & 0xf) ^ 8) - 8);
}

/* ---- MX fp8 -------------------------------------------------------------------------------------------- */

/* Groups of 32 E4M3 numbers with a power of two each, by the Open Compute Project's Microscaling Formats
 * (2023): the exponent of the largest number less that of the format's largest, 8. Scale 2^-127 is left out,
 * because it is a denormal. */
ZR_REAL uint32_t zr_mx_exponent(uint32_t most)
{
    int32_t exponent = (int32_t)(most >> 23) - 8;
    return most >= ZR_PACK_INFINITY ? ZR_MX_NAN : exponent < 1 ? 1 : (uint32_t)exponent;
}

ZR_REAL float zr_mx_inverse(uint32_t exponent)
{
    return zr_fp8_float_of((254 - exponent) << 23);
}

ZR_REAL float zr_mx_scale(uint32_t exponent)
{
    return zr_fp8_float_of(exponent == ZR_MX_NAN ? ZR_PACK_NAN : exponent << 23);
}

#endif
