/* memory_calls.h: the driver's functions that yield device memory, and whether the library replaces each; and
 * allocators above the driver that cache freed memory. Private to paths.c, which checks a process, and to
 * defrag/tool/, which checks files (`zr doctor`). */
#ifndef ZR_PRELOAD_CUDA_MEMORY_CALLS_H
#define ZR_PRELOAD_CUDA_MEMORY_CALLS_H

#include <stddef.h>
#include <string.h>

struct zr_cuda_memory_call {
    const char *name; /* without a version */
    const char *why;  /* why the driver gets the call; NULL: the library replaces it */
};

static const struct zr_cuda_memory_call zr_cuda_memory_calls[] = {
    {"cuMemAlloc", NULL},
    {"cuMemAllocPitch", NULL},
    {"cuMemFree", NULL},
    {"cuMemAllocAsync", NULL},
    {"cuMemAllocFromPoolAsync", NULL},
    {"cuMemFreeAsync", NULL},
    {"cuMemGetInfo", NULL},
    {"cuDeviceTotalMem", NULL},
    {"cuMemGetAddressRange", NULL},
    {"cuPointerGetAttribute", NULL},
    {"cuPointerGetAttributes", NULL},
    {"cuPointerSetAttribute", NULL},
    {"cuIpcGetMemHandle", NULL},
    {"cuIpcOpenMemHandle", NULL},
    {"cuIpcCloseMemHandle", NULL},
    {"cuMemRetainAllocationHandle", NULL},
    {"cuMemGetHandleForAddressRange", NULL},
    {"cuMemPoolCreate", NULL},
    {"cuMemPoolDestroy", NULL},
    {"cuMemPoolTrimTo", NULL},
    {"cuMemPoolGetAttribute", NULL},
    {"cuMemPoolSetAttribute", NULL},
    {"cuMemPoolSetAccess", NULL},
    {"cuMemPoolExportPointer", NULL},
    {"cuStreamCreate", NULL},
    {"cuStreamCreateWithPriority", NULL},
    {"cuStreamDestroy", NULL},
    {"cuCtxCreate", NULL},
    {"cuCtxDestroy", NULL},
    {"cuCtxEnablePeerAccess", NULL},
    {"cuDevicePrimaryCtxReset", NULL},
    {"cuGetProcAddress", NULL},
    {"cuMemAllocManaged",
     "managed memory moves between host and device by page faults, which the driver handles"},
    {"cuMemAllocHost", "host memory"},
    {"cuMemHostAlloc", "host memory"},
    {"cuMemFreeHost", "host memory"},
    {"cuMemHostRegister", "host memory"},
    {"cuMemHostUnregister", "host memory"},
    {"cuMemHostGetDevicePointer", "host memory"},
    {"cuMemHostGetFlags", "host memory"},
    {"cuMemAddressReserve", "the program maps the memory itself"},
    {"cuMemAddressFree", "the program maps the memory itself"},
    {"cuMemCreate", "the program maps the memory itself"},
    {"cuMemRelease", "the program maps the memory itself"},
    {"cuMemMap", "the program maps the memory itself"},
    {"cuMemMapArrayAsync", "the program maps the memory itself"},
    {"cuMemUnmap", "the program maps the memory itself"},
    {"cuMemSetAccess", "the program maps the memory itself"},
    {"cuMemGetAccess", "a query that works for zr's mappings"},
    {"cuMemGetAllocationGranularity", "a query of the device"},
    {"cuMemGetAllocationPropertiesFromHandle", "the program maps the memory itself"},
    {"cuMemExportToShareableHandle",
     "handles of the program; cuMemRetainAllocationHandle returns those of blocks"},
    {"cuMemImportFromShareableHandle", "another process's memory"},
    {"cuMemPoolGetAccess", "the pool is also a pool of the driver"},
    {"cuMemPoolExportToShareableHandle", "only for pools that the driver serves"},
    {"cuMemPoolImportFromShareableHandle", "another process's memory"},
    {"cuMemPoolImportPointer", "another process's memory"},
    {"cuDeviceGetDefaultMemPool", "the pool is also a pool of the driver"},
    {"cuDeviceGetMemPool", "the pool is also a pool of the driver"},
    {"cuDeviceSetMemPool", "the pool is also a pool of the driver"},
    {"cuMemGetDefaultMemPool", "the pool is also a pool of the driver"},
    {"cuMemGetMemPool", "the pool is also a pool of the driver"},
    {"cuMemSetMemPool", "the pool is also a pool of the driver"},
    {"cuArrayCreate", "only the driver knows the layout of arrays"},
    {"cuArray3DCreate", "only the driver knows the layout of arrays"},
    {"cuMipmappedArrayCreate", "only the driver knows the layout of arrays"},
    {"cuGraphAddMemAllocNode", "memory of a graph belongs to the graph"},
    {"cuGraphAddMemFreeNode", "memory of a graph belongs to the graph"},
    {"cuMemAdvise", "managed memory"},
    {"cuMemPrefetchAsync", "managed memory"},
    {"cuMemPrefetchBatchAsync", "managed memory"},
    {"cuMemDiscardBatchAsync", "managed memory"},
    {"cuMemDiscardAndPrefetchBatchAsync", "managed memory"},
    {"cuMemRangeGetAttribute", "managed memory"},
    {"cuMemRangeGetAttributes", "managed memory"},
    {"cuMemBatchDecompressAsync", "allocates no memory"},
    {"cuIpcGetEventHandle", "events"},
    {"cuIpcOpenEventHandle", "events"},
};
enum { ZR_CUDA_MEMORY_CALLS_COUNT = sizeof zr_cuda_memory_calls / sizeof *zr_cuda_memory_calls };

/* Allocators that cache above the driver: their driver calls are replaced, but their free memory is not
 * reusable. */
struct zr_cuda_cache {
    const char *mark;    /* part of the library's path */
    const char *product; /* the product */
    const char *off;     /* the variable that turns caching off; NULL: none */
    const char *advice;  /* without a variable: how to turn caching off */
};

static const struct zr_cuda_cache zr_cuda_caches[] = {
    {"libc10_cuda.so", "PyTorch", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", NULL},
    {"/cupy/cuda/memory.", "CuPy", NULL, "cupy.cuda.set_allocator(None) in the program turns that off"},
    {"libcupy", "CuPy", NULL, "cupy.cuda.set_allocator(None) in the program turns that off"},
    {"xla_cuda_plugin", "XLA (JAX)", "XLA_PYTHON_CLIENT_ALLOCATOR=platform", NULL},
    {"xla_extension", "XLA (JAX)", "XLA_PYTHON_CLIENT_ALLOCATOR=platform", NULL},
    {"libtensorflow_framework.so", "TensorFlow", "TF_GPU_ALLOCATOR=cuda_malloc_async", NULL},
    {"librmm.so", "RMM", NULL, "the program chooses the memory resource"},
};

/* The known cache in the library of that path; NULL: none. */
static inline const struct zr_cuda_cache *zr_cuda_cache_of(const char *path)
{
    for (size_t i = 0; i < sizeof zr_cuda_caches / sizeof *zr_cuda_caches; i++)
        if (strstr(path, zr_cuda_caches[i].mark))
            return &zr_cuda_caches[i];
    return NULL;
}

#endif
