/* torch.h: functions that torch.cuda.memory.CUDAPluggableAllocator calls, with the signatures of its setters,
 * and functions that zr's Python package calls by ctypes. The library may also be preloaded. Private to
 * alloc/preload/cuda/; these functions are exported. */
#ifndef ZR_PRELOAD_CUDA_TORCH_H
#define ZR_PRELOAD_CUDA_TORCH_H

#include <sys/types.h>

#include "alloc/preload/cuda/cuda.h"

/* c10::cuda::MempoolId_t: a pair of 64-bit numbers, passed in two registers. */
struct zr_torch_pool_id {
    uint64_t first, second;
};

/* The functions for CUDAPluggableAllocator(path, alloc, free). PyTorch does not check for NULL, so a failure
 * throws: c10::OutOfMemoryError (torch.OutOfMemoryError) if memory is exhausted, after PyTorch's own callback
 * for this case had nothing to free, and c10::Error (RuntimeError) otherwise, with the reason as text. A size
 * of 0 returns NULL, as does a failure in a process without PyTorch's libraries; see torch_throw.c. */
ZR_EXPORT void *zr_torch_alloc(ssize_t bytes, int device, zr_cu_stream stream);
ZR_EXPORT void zr_torch_free(void *block, ssize_t bytes, int device, zr_cu_stream stream);
/* set_record_stream_fn: the block is not reused before the stream has passed its free. */
ZR_EXPORT void zr_torch_record_stream(void *block, zr_cu_stream stream);
/* set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool: between begin and end,
 * allocations of the calling thread and in streams that are being captured come from the pool's own arena.
 * That arena serves no other request, and is destroyed after the pool is released and its last block is
 * freed. The filter is a C++ object and is not called. */
ZR_EXPORT void zr_torch_begin_allocate_to_pool(int device, struct zr_torch_pool_id id, void *filter);
ZR_EXPORT void zr_torch_end_allocate_to_pool(int device, struct zr_torch_pool_id id);
ZR_EXPORT void zr_torch_release_pool(int device, struct zr_torch_pool_id id);
/* set_memory_fraction_fn: allocations beyond this fraction of the device's memory fail. */
ZR_EXPORT void zr_torch_memory_fraction(double fraction, int device);
/* set_base_alloc_fn, set_init_fn, set_reset_fn. torch.cuda.empty_cache() calls zr_torch_reset(). */
ZR_EXPORT void *zr_torch_base_alloc(void *pointer, size_t *bytes);
ZR_EXPORT void zr_torch_init(int devices_count);
ZR_EXPORT void zr_torch_reset(void);
/* Figures of a device by name, summed over its arena and its pools' arenas: the fields of struct
 * zr_arena_stats ("live_bytes"; the sum of peaks is an upper bound), "tag.NAME.live_bytes" for a name of
 * zr_torch_tag(), with the blocks' requested bytes, "allocated_bytes", the requested bytes of all blocks so
 * far, and "refused_count". A device that zr does not serve yet has zeros. Returns 0 or a zr_result. */
ZR_EXPORT int zr_torch_stat(int device, const char *name, uint64_t *out);
ZR_EXPORT void zr_torch_reset_peaks(int device);
/* The name of the blocks that the calling thread allocates from now on; NULL: none. A name of zr's tags
 * ("activation") also is the blocks' tag in zr's records. Returns 0, or a zr_result: the name is longer than
 * 31 bytes, or the process already has 255 names. */
ZR_EXPORT int zr_torch_tag(const char *name);
/* Writes the live blocks as a snapshot in PyTorch's format, because PyTorch cannot write a snapshot of a
 * pluggable allocator; called by ctypes. Returns 0 or a zr_result; zr_torch_error() returns the message. */
ZR_EXPORT int zr_torch_snapshot(const char *path);
ZR_EXPORT const char *zr_torch_error(void);

/* Throws PyTorch's exception for an allocation that failed, with zr_last_error() as text (torch_throw.c).
 * Returns if the process has none of PyTorch's libraries, or, after a line on standard error, libraries
 * without the functions that are needed. No lock is held, and callers are compiled with -fexceptions. */
void zr_torch_throw(zr_cu_result code);
/* Calls what PyTorch registers for memory that is exhausted. Whether memory was freed. */
bool zr_torch_collect(void);
/* Destroys the pools' arenas of a device that ends, while no call is inside. */
void zr_torch_device_end(struct zr_cuda_device *device);

#endif
