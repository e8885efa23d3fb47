/* checksum.h: the steps of zr_checksum, for CPU and GPU. A block of 64 KiB has eight lanes, to which its
 * 8-byte words are dealt in rotation. Each step of a lane is invertible, so a single changed word always
 * changes its lane. A block's hash depends on its index, so the hashes can be added in any order. */
#ifndef ZR_KERNELS_CHECKSUM_H
#define ZR_KERNELS_CHECKSUM_H

#include "kernels/real.h"

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

#endif
