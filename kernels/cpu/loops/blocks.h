/* blocks.h: whole blocks of 8-bit optimizer state to floats and back. Private to kernels/cpu. */
#ifndef ZR_KERNELS_BLOCKS_H
#define ZR_KERNELS_BLOCKS_H

#include "kernels/block8.h"

static inline void zr_block8_get(const struct zr_block8_map *map, const struct zr_block8 *block, size_t count,
                                 float *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = zr_block8_number(map, block->scale, block->codes[i]);
}

static inline void zr_block8_put(const struct zr_block8_map *map, size_t count, const float *from,
                                 struct zr_block8 *block)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = zr_block8_bits(from[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    block->scale = zr_block8_scale(most);
    memset(block->codes, 0, sizeof block->codes);
    for (size_t i = 0; i < count && block->scale > 0; i++)
        block->codes[i] = zr_block8_code(map, block->scale, from[i]);
}

#endif
