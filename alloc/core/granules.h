/* granules.h: which granules of a range are mapped, one bit each. Private to alloc/. The arena's lock covers
 * every call. All ranges are granule numbers [first, end). */
#ifndef ZR_GRANULES_H
#define ZR_GRANULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A mask of those bits of the word that are in [first, end). */
static inline uint64_t zr_granules_mask(size_t word, size_t first, size_t end)
{
    uint64_t mask = ~UINT64_C(0);
    if (word == first / 64)
        mask &= ~UINT64_C(0) << (first % 64);
    if (word == end / 64)
        mask &= ~(~UINT64_C(0) << (end % 64));
    return mask;
}

static inline size_t zr_granules_mapped(const uint64_t *words, size_t first, size_t end)
{
    size_t count = 0;
    for (size_t word = first / 64; word * 64 < end; word++)
        count += (size_t)__builtin_popcountll(words[word] & zr_granules_mask(word, first, end));
    return count;
}

/* Requires first < end. */
static inline bool zr_granules_all_mapped(const uint64_t *words, size_t first, size_t end)
{
    if (__builtin_expect((end - 1) / 64 == first / 64, 1))
        return (~words[first / 64] >> (first % 64) & ~UINT64_C(0) >> (64 - (end - first))) == 0;
    for (size_t word = first / 64; word * 64 < end; word++)
        if (~words[word] & zr_granules_mask(word, first, end))
            return false;
    return true;
}

/* The first granule of [first, end) that is mapped (or that is not mapped); `end` if there is none. */
static inline size_t zr_granules_next(const uint64_t *words, size_t first, size_t end, bool mapped)
{
    for (size_t word = first / 64; word * 64 < end; word++) {
        uint64_t bits = (mapped ? words[word] : ~words[word]) & zr_granules_mask(word, first, end);
        if (bits)
            return word * 64 + (size_t)__builtin_ctzll(bits);
    }
    return end;
}

/* The number after the last mapped granule of [first, end); `first` if there is none. */
static inline size_t zr_granules_last(const uint64_t *words, size_t first, size_t end)
{
    if (first == end)
        return first;
    for (size_t word = (end - 1) / 64 + 1; word-- > first / 64;) {
        uint64_t bits = words[word] & zr_granules_mask(word, first, end);
        if (bits)
            return word * 64 + 64u - (size_t)__builtin_clzll(bits);
    }
    return first;
}

static inline void zr_granules_set(uint64_t *words, size_t first, size_t end, bool mapped)
{
    for (size_t word = first / 64; word * 64 < end; word++) {
        uint64_t mask = zr_granules_mask(word, first, end);
        words[word] = mapped ? words[word] | mask : words[word] & ~mask;
    }
}

#endif
