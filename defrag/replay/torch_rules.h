/* torch_rules.h: the numbers of PyTorch's caching allocator, for the two policies that model it. Private to
 * defrag/.
 *
 * Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
 * kMinLargeAlloc, kRoundLarge; round_size, get_pool, get_allocation_size, get_free_block), and the "CUDA
 * semantics, Memory management" of its documentation. */
#ifndef ZR_TORCH_RULES_H
#define ZR_TORCH_RULES_H

#include "defrag/replay/model.h"

#define ZR_TORCH_MIN_BLOCK    UINT64_C(512)        /* every size is rounded up to a multiple of this */
#define ZR_TORCH_SMALL_SIZE   (UINT64_C(1) << 20)  /* the largest request of the small pool */
#define ZR_TORCH_SMALL_BUFFER (UINT64_C(2) << 20)  /* segments of the small pool */
#define ZR_TORCH_LARGE_BUFFER (UINT64_C(20) << 20) /* segments for requests below .. */
#define ZR_TORCH_MIN_LARGE    (UINT64_C(10) << 20) /* .. this */
#define ZR_TORCH_ROUND_LARGE  (UINT64_C(2) << 20)  /* all other segments are a multiple of this */

/* A request with rounding: roundup_power2_divisions, then ZR_TORCH_MIN_BLOCK. */
static inline uint64_t zr_torch_rounded(const struct zr_model_options *options, uint64_t bytes)
{
    unsigned log = bytes ? 63 - (unsigned)__builtin_clzll(bytes) : 0, last = 15;
    uint32_t division = options->roundup_divisions[log < 20 ? 0 : log - 20 < last ? log - 20 : last];
    if (division > 1 && bytes > ZR_TORCH_MIN_BLOCK * division && log < 62)
        bytes = zr_model_round(bytes, (UINT64_C(1) << log) / division);
    return bytes < ZR_TORCH_MIN_BLOCK ? ZR_TORCH_MIN_BLOCK : zr_model_round(bytes, ZR_TORCH_MIN_BLOCK);
}

/* max_split_size; without one no block is as large. */
static inline uint64_t zr_torch_max_split(const struct zr_model_options *options)
{
    return options->max_split_bytes ? options->max_split_bytes : UINT64_MAX;
}

/* Free blocks beyond max_split_size serve only requests of about their size. */
static inline bool zr_torch_may_serve(const struct zr_model_options *options, uint64_t free_bytes,
                                      uint64_t bytes)
{
    uint64_t most = zr_torch_max_split(options);
    return bytes < most ? free_bytes < most : free_bytes - bytes < ZR_TORCH_LARGE_BUFFER;
}

/* Whether a rounded size belongs to the small pool. */
static inline bool zr_torch_is_small(uint64_t bytes)
{
    return bytes <= ZR_TORCH_SMALL_SIZE;
}

/* The size of the segment requested from the driver for a rounded size. */
static inline uint64_t zr_torch_segment(uint64_t bytes)
{
    if (zr_torch_is_small(bytes))
        return ZR_TORCH_SMALL_BUFFER;
    return bytes < ZR_TORCH_MIN_LARGE ? ZR_TORCH_LARGE_BUFFER : zr_model_round(bytes, ZR_TORCH_ROUND_LARGE);
}

#endif
