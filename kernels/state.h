/* state.h: formulas of rotary angles and of the operations on optimizer state, for CPU and GPU. */
#ifndef ZR_KERNELS_STATE_H
#define ZR_KERNELS_STATE_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* ---- Rotary angles ------------------------------------------------------------------------------------- */

/* Frequency of a pair; *scale: factor of its cosines and sines. */
ZR_REAL double zr_rotary_frequency(const struct zr_rotary_table *table, size_t pair, double *scale)
{
    const struct zr_rotary_scaling *s = &table->scaling;
    double plain = zr_real_exp(-2.0 * (double)pair / (double)table->width * zr_real_log(table->theta));
    double m = s->offset + s->slope * (s->by_pair ? (double)pair : plain);
    m = m < 0 ? 0 : m > 1 ? 1 : m;
    *scale = s->factor > 0 ? s->scale : 1;
    plain = s->factor > 0 ? plain * (m + (1 - m) / s->factor) : plain;
    return s->divisors[0] > 0 ? plain / (double)s->divisors[pair] : plain;
}

/* ---- Checksums ----------------------------------------------------------------------------------------- */

/* The steps of zr_checksum. A block of 64 KiB has eight lanes, which take its 8-byte words in turn. Each step
 * of a lane is invertible, so a single changed word always changes its lane. A block's hash depends on its
 * index, so the hashes can be added in any order. */

ZR_REAL uint64_t zr_hash_mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 29) * 0x9fb21c651e98df25;
    return x ^ x >> 32;
}

/* Start value of a block; lane j starts with zr_hash_mix(start + j). */
ZR_REAL uint64_t zr_hash_begin(uint64_t block)
{
    return zr_hash_mix(block + 0x9e3779b97f4a7c15);
}

ZR_REAL uint64_t zr_hash_step(uint64_t lane, uint64_t word)
{
    uint64_t x = (lane ^ word) * 0x9e3779b97f4a7c15;
    return x ^ x >> 29;
}

ZR_REAL uint64_t zr_hash_join(uint64_t hash, uint64_t lane, uint64_t number)
{
    return zr_hash_mix(hash ^ lane) + number;
}

/* ---- The weight of gradients --------------------------------------------------------------------------- */

/* `norm`: norm of all gradients, including the loss scale. */
ZR_REAL struct zr_gradient_weight zr_weight_of(double norm, double loss_scale, double clip)
{
    struct zr_gradient_weight weight;
    weight.norm = norm / loss_scale;
    weight.skips = !(norm - norm == 0); /* infinite or NaN */
    weight.clip_scale = clip > 0 && !weight.skips && weight.norm > clip ? (float)(clip / weight.norm) : 1;
    weight.scale = weight.clip_scale / (float)loss_scale;
    return weight;
}

#endif
