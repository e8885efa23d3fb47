/* blocks.h: whole blocks of 8-bit optimizer state to floats and back, without a search for each number.
 * Private to kernels/cpu. */
#ifndef ZR_KERNELS_BLOCKS_H
#define ZR_KERNELS_BLOCKS_H

#include "kernels/block8.h"

/* The upper 16 bits of a share of the scale, from 2^-23 to 1, are its key. All borders are above 2^-23. A key
 * has at most one border: from 0.5 to 1 the numbers of a key span 0.004 and the borders are 0.005 or more
 * apart, and for smaller numbers the distance of the borders is a larger multiple of the span. */
enum {
    ZR_BLOCK8_KEY_SHIFT = 16,
    ZR_BLOCK8_KEY_FIRST = (127 - 23) << 7,
    ZR_BLOCK8_KEYS = (127 << 7) - ZR_BLOCK8_KEY_FIRST + 1
};

struct zr_block8_index {
    struct zr_block8_map map;
    float numbers[ZR_BLOCK8_NUMBERS];   /* by code, with their signs */
    uint8_t magnitudes[ZR_BLOCK8_KEYS]; /* of the smallest number of a key */
};

static inline void zr_block8_index_make(struct zr_block8_index *index, bool is_signed)
{
    const unsigned count = is_signed ? ZR_BLOCK8_NUMBERS / 2 : ZR_BLOCK8_NUMBERS;
    unsigned magnitude = 0;
    index->map.count = count;
    for (unsigned i = 0; i < count; i++)
        zr_block8_map_set(&index->map, i, count);
    for (unsigned code = 0; code < ZR_BLOCK8_NUMBERS; code++)
        index->numbers[code] = zr_block8_number(&index->map, 1, code);
    for (uint32_t key = 0; key < ZR_BLOCK8_KEYS; key++) {
        const float least = zr_block8_float((key + ZR_BLOCK8_KEY_FIRST) << ZR_BLOCK8_KEY_SHIFT);
        while (least > index->map.borders[magnitude])
            magnitude++;
        index->magnitudes[key] = (uint8_t)magnitude;
    }
}

static inline void zr_block8_get(const struct zr_block8_index *index, const struct zr_block8 *block,
                                 size_t count, float *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = block->scale * index->numbers[block->codes[i]];
}

static inline void zr_block8_put(const struct zr_block8_index *index, size_t count, const float *from,
                                 struct zr_block8 *block)
{
    float shares[ZR_BLOCK8_NUMBERS];
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = zr_block8_bits(from[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    block->scale = zr_block8_scale(most);
    memset(block->codes, 0, sizeof block->codes);
    if (!(block->scale > 0))
        return;
    for (size_t i = 0; i < count; i++)
        shares[i] = zr_block8_float(zr_block8_bits(from[i]) & 0x7fffffff) / block->scale;
    for (size_t i = 0; i < count; i++) {
        uint32_t key = zr_block8_bits(shares[i]) >> ZR_BLOCK8_KEY_SHIFT;
        unsigned magnitude = index->magnitudes[key > ZR_BLOCK8_KEY_FIRST ? key - ZR_BLOCK8_KEY_FIRST : 0];
        magnitude += shares[i] > index->map.borders[magnitude];
        block->codes[i] = zr_block8_code(magnitude, index->map.count, from[i]);
    }
}

#endif
