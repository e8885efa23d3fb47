/* hash.h: FNV-1a of 64 bits, for values that files, processes and ranks compare. Header only. */
#ifndef ZR_HASH_H
#define ZR_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ZR_HASH_START UINT64_C(0xcbf29ce484222325)

/* The hash after one more byte; or one more word, which is not FNV's. */
static inline uint64_t zr_hash_next(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

static inline uint64_t zr_hash_more(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        /* NOLINTNEXTLINE(clang-analyzer-*): callers pass initialized bytes */
        hash = zr_hash_next(hash, at[i]);
    return hash;
}

static inline uint64_t zr_hash_text(const char *text)
{
    return zr_hash_more(ZR_HASH_START, text, strlen(text));
}

#endif
