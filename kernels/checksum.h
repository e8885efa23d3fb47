/* checksum.h: the steps of zr_checksum, for processors and cards. A block of 64 KiB has eight lanes, which
 * take its words of eight bytes in turn; every step of a lane can be undone, so one changed word always
 * changes its lane. The blocks' sums, which know their blocks' numbers, are added up in any order. */
#ifndef ZR_KERNELS_CHECKSUM_H
#define ZR_KERNELS_CHECKSUM_H

#include "kernels/real.h"

ZR_REAL uint64_t zr_hash_mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 29) * 0x9fb21c651e98df25;
    return x ^ x >> 32;
}

/* Of a block; its lane j begins with zr_hash_mix() of this + j. */
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
