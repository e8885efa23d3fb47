/* torch.h: what torch.cuda.memory.CUDAPluggableAllocator calls, each with the signature of the setter that
 * takes it. The library may be preloaded besides, or not. Sizes of 0 give NULL; a failure gives NULL, which
 * PyTorch reports as out of memory. Private to alloc/preload/cuda/; the names are shown. */
#ifndef ZR_PRELOAD_CUDA_TORCH_H
#define ZR_PRELOAD_CUDA_TORCH_H

#include <sys/types.h>

#include "alloc/preload/cuda/cuda.h"

/* c10::cuda::MempoolId_t, a pair of 64-bit numbers, which goes in two registers. */
struct zr_torch_pool_id {
    uint64_t first, second;
};

/* The two of CUDAPluggableAllocator(path, alloc, free). */
ZR_EXPORT void *zr_torch_alloc(ssize_t bytes, int device, zr_cu_stream stream);
ZR_EXPORT void zr_torch_free(void *block, ssize_t bytes, int device, zr_cu_stream stream);
/* set_record_stream_fn: the block is not anybody's before the stream has passed its free. */
ZR_EXPORT void zr_torch_record_stream(void *block, zr_cu_stream stream);
/* set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool: between the first two, what the
 * calling thread allocates, and what is allocated in a stream that is being captured, comes from an arena of
 * the pool's own, whose memory serves no other request until the pool is released and its last block is free.
 * The filter is a C++ object and is not called. */
ZR_EXPORT void zr_torch_begin_allocate_to_pool(int device, struct zr_torch_pool_id id, void *filter);
ZR_EXPORT void zr_torch_end_allocate_to_pool(int device, struct zr_torch_pool_id id);
ZR_EXPORT void zr_torch_release_pool(int device, struct zr_torch_pool_id id);
/* set_memory_fraction_fn: of the device's memory; blocks beyond are refused. */
ZR_EXPORT void zr_torch_memory_fraction(double fraction, int device);
/* set_base_alloc_fn, set_init_fn, set_reset_fn: torch.cuda.empty_cache() comes to the last. */
ZR_EXPORT void *zr_torch_base_alloc(void *pointer, size_t *bytes);
ZR_EXPORT void zr_torch_init(int devices_count);
ZR_EXPORT void zr_torch_reset(void);
/* Writes what is live as a snapshot in PyTorch's format, which PyTorch itself cannot do of such an allocator:
 * for ctypes. 0, or a zr_result; zr_torch_error() has the words. */
ZR_EXPORT int zr_torch_snapshot(const char *path);
ZR_EXPORT const char *zr_torch_error(void);

#endif
