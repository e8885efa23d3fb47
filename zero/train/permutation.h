/* permutation.h: orders of n things as a function of a key: nothing is stored, and any place is computed in
 * constant time. Any thread. */
#ifndef ZR_TRAIN_PERMUTATION_H
#define ZR_TRAIN_PERMUTATION_H

#include <stdint.h>

/* The finalizer of splitmix64: every bit of the result depends on every bit of x. */
static inline uint64_t zr_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct zr_permutation {
    uint64_t key;
    uint64_t count; /* from 1 to 2^62 */
};

/* What stands at a place below count; each number below count stands at one place. A Feistel network over the
 * least power of four that is not below count; a result that is not below count is permuted again, fewer
 * than four times on average (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). */
static inline uint64_t zr_permute(const struct zr_permutation *permutation, uint64_t place)
{
    enum { ROUNDS = 6 };
    unsigned half = 1;
    while (half < 31 && UINT64_C(1) << 2 * half < permutation->count)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = place >> half, right = place & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (zr_mix(permutation->key ^ (round << 58) ^ right) & mask);
            left = right;
            right = next;
        }
        place = left << half | right;
    } while (place >= permutation->count);
    return place;
}

#endif
