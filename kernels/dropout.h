/* dropout.h: the random numbers of dropout, for CPU and GPU: Philox4x32-10 of Salmon et al. 2011. */
#ifndef ZR_KERNELS_DROPOUT_H
#define ZR_KERNELS_DROPOUT_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* Words of a counter, in its place. */
ZR_REAL void zr_philox(uint32_t words[4], const uint32_t key[2])
{
    uint32_t low = key[0], high = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t first = (uint64_t)words[0] * 0xd2511f53u, second = (uint64_t)words[2] * 0xcd9e8d57u;
        const uint32_t one = words[1], three = words[3];
        words[0] = (uint32_t)(second >> 32) ^ one ^ low;
        words[1] = (uint32_t)second;
        words[2] = (uint32_t)(first >> 32) ^ three ^ high;
        words[3] = (uint32_t)first;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
}

/* Factors of four elements of row `row` of a micro-batch, from column 4 * group on: 0, or 1 / (1 - rate). */
ZR_REAL void zr_dropout_factors(const struct zr_dropout *args, size_t row, size_t group, float out[4])
{
    const uint32_t least = (uint32_t)((double)args->rate * 4294967296.0);
    const float kept = 1.0f / (1.0f - args->rate);
    uint32_t words[4] = {(uint32_t)group, (uint32_t)(args->draw->row + row), args->site, args->draw->step};
    zr_philox(words, args->draw->key);
    for (int i = 0; i < 4; i++)
        out[i] = words[i] >= least ? kept : 0.0f;
}

#endif
