/* driver_api.h: zr's declarations of the CUDA driver functions by which programs allocate, besides those that
 * zr uses (alloc/backend/cuda_driver.h). libzr_cuda.so replaces the first list and calls the second; the
 * emulated driver defines both; cuda_declarations_test compares them with cuda.h if it is installed. Private
 * to alloc/preload/cuda/ and the tests. */
#ifndef ZR_CUDA_DRIVER_API_H
#define ZR_CUDA_DRIVER_API_H

#include "alloc/backend/cuda_driver.h"

/* ---- Types --------------------------------------------------------------------------------------------- */

typedef struct zr_cu_pool_st *zr_cu_pool;
typedef struct zr_cu_graph_st *zr_cu_graph;
typedef struct zr_cu_graph_exec_st *zr_cu_graph_exec;

/* Results of these calls, besides those of cuda_driver.h. */
enum {
    ZR_CU_CONTEXT_IN_USE = 216, /* the primary context is active */
    ZR_CU_NOT_FOUND = 500,
    ZR_CU_CAPTURE_INVALIDATED = 901,
    ZR_CU_CAPTURE_IMPLICIT = 906 /* the call would depend on a stream that is being captured */
};

typedef struct zr_cu_ipc_handle {
    char bytes[64];
} zr_cu_ipc_handle;

typedef struct zr_cu_pool_properties {
    zr_cu_allocation_type type;
    zr_cu_handle_type exported_as;
    zr_cu_location location;
    void *windows_only;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
} zr_cu_pool_properties;

typedef enum zr_cu_pool_attribute {
    ZR_CU_POOL_REUSE_FOLLOW_EVENT = 1,
    ZR_CU_POOL_REUSE_OPPORTUNISTIC = 2,
    ZR_CU_POOL_REUSE_INTERNAL = 3,
    ZR_CU_POOL_RELEASE_THRESHOLD = 4, /* uint64_t bytes, like the following attributes */
    ZR_CU_POOL_RESERVED_NOW = 5,
    ZR_CU_POOL_RESERVED_HIGH = 6,
    ZR_CU_POOL_USED_NOW = 7,
    ZR_CU_POOL_USED_HIGH = 8
} zr_cu_pool_attribute;

typedef enum zr_cu_pointer_attribute {
    ZR_CU_POINTER_CONTEXT = 1,
    ZR_CU_POINTER_MEMORY_TYPE = 2, /* unsigned: 1 host, 2 device */
    ZR_CU_POINTER_DEVICE_POINTER = 3,
    ZR_CU_POINTER_HOST_POINTER = 4,
    ZR_CU_POINTER_P2P_TOKENS = 5,
    ZR_CU_POINTER_SYNC_MEMOPS = 6,
    ZR_CU_POINTER_BUFFER_ID = 7, /* unsigned long long, never reused in the process */
    ZR_CU_POINTER_IS_MANAGED = 8,
    ZR_CU_POINTER_DEVICE_ORDINAL = 9,
    ZR_CU_POINTER_IPC_CAPABLE = 10,
    ZR_CU_POINTER_RANGE_START = 11,
    ZR_CU_POINTER_RANGE_BYTES = 12,
    ZR_CU_POINTER_MAPPED = 13,
    ZR_CU_POINTER_HANDLE_TYPES = 14,
    ZR_CU_POINTER_RDMA_CAPABLE = 15,
    ZR_CU_POINTER_ACCESS_FLAGS = 16,
    ZR_CU_POINTER_POOL = 17,
    ZR_CU_POINTER_MAPPING_BYTES = 18,
    ZR_CU_POINTER_MAPPING_START = 19,
    ZR_CU_POINTER_MEMORY_ID = 20 /* unsigned long long, of the physical memory */
} zr_cu_pointer_attribute;

typedef enum zr_cu_capture_status {
    ZR_CU_CAPTURE_NONE = 0,
    ZR_CU_CAPTURE_ACTIVE = 1,
    ZR_CU_CAPTURE_BROKEN = 2
} zr_cu_capture_status;

/* Flag of a context: synchronous copies have finished when they return, for all kinds of memory. */
enum { ZR_CU_CONTEXT_SYNC_MEMOPS = 0x80 };

/* Flags of cuGetProcAddress. */
enum { ZR_CU_PROC_DEFAULT = 0, ZR_CU_PROC_LEGACY_STREAM = 1, ZR_CU_PROC_PER_THREAD_STREAM = 2 };
typedef enum zr_cu_proc_status {
    ZR_CU_PROC_FOUND = 0,
    ZR_CU_PROC_NOT_FOUND = 1,
    ZR_CU_PROC_VERSION_TOO_OLD = 2
} zr_cu_proc_status;

/* ---- Functions: f(member, the driver's name, the suffix of the version, parameters) -------------------- */

// clang-format off
/* Functions that libzr_cuda.so replaces. */
#define ZR_CUDA_REPLACED(f)                                                                                   \
    f(proc_address, cuGetProcAddress, ,                                                                       \
      (const char *symbol, void **function, int version, unsigned long long flags))                           \
    f(proc_address_v2, cuGetProcAddress, _v2,                                                                 \
      (const char *symbol, void **function, int version, unsigned long long flags, zr_cu_proc_status *status)) \
    f(mem_info, cuMemGetInfo, _v2, (size_t *free_bytes, size_t *total_bytes))                                 \
    f(total_mem, cuDeviceTotalMem, _v2, (size_t *bytes, zr_cu_device device))                                 \
    f(mem_alloc, cuMemAlloc, _v2, (zr_cu_address *out, size_t bytes))                                         \
    f(mem_alloc_pitch, cuMemAllocPitch, _v2,                                                                  \
      (zr_cu_address *out, size_t *pitch, size_t width, size_t height, unsigned int element_bytes))           \
    f(mem_free, cuMemFree, _v2, (zr_cu_address address))                                                      \
    f(address_range, cuMemGetAddressRange, _v2,                                                               \
      (zr_cu_address *base, size_t *bytes, zr_cu_address address))                                            \
    f(alloc_async, cuMemAllocAsync, , (zr_cu_address *out, size_t bytes, zr_cu_stream stream))                \
    f(alloc_async_ptsz, cuMemAllocAsync, _ptsz, (zr_cu_address *out, size_t bytes, zr_cu_stream stream))      \
    f(free_async, cuMemFreeAsync, , (zr_cu_address address, zr_cu_stream stream))                             \
    f(free_async_ptsz, cuMemFreeAsync, _ptsz, (zr_cu_address address, zr_cu_stream stream))                   \
    f(alloc_from_pool, cuMemAllocFromPoolAsync, ,                                                             \
      (zr_cu_address *out, size_t bytes, zr_cu_pool pool, zr_cu_stream stream))                               \
    f(alloc_from_pool_ptsz, cuMemAllocFromPoolAsync, _ptsz,                                                   \
      (zr_cu_address *out, size_t bytes, zr_cu_pool pool, zr_cu_stream stream))                               \
    f(pool_create, cuMemPoolCreate, , (zr_cu_pool *out, const zr_cu_pool_properties *properties))             \
    f(pool_destroy, cuMemPoolDestroy, , (zr_cu_pool pool))                                                    \
    f(pool_trim, cuMemPoolTrimTo, , (zr_cu_pool pool, size_t keep_bytes))                                     \
    f(pool_get, cuMemPoolGetAttribute, , (zr_cu_pool pool, zr_cu_pool_attribute which, void *value))          \
    f(pool_set, cuMemPoolSetAttribute, , (zr_cu_pool pool, zr_cu_pool_attribute which, void *value))          \
    f(pool_set_access, cuMemPoolSetAccess, , (zr_cu_pool pool, const zr_cu_access *access, size_t count))     \
    f(pool_export_pointer, cuMemPoolExportPointer, , (void *out, zr_cu_address address))                      \
    f(pointer_attribute, cuPointerGetAttribute, ,                                                             \
      (void *value, zr_cu_pointer_attribute which, zr_cu_address address))                                    \
    f(pointer_attributes, cuPointerGetAttributes, ,                                                           \
      (unsigned int count, zr_cu_pointer_attribute *which, void **values, zr_cu_address address))             \
    f(pointer_set, cuPointerSetAttribute, ,                                                                   \
      (const void *value, zr_cu_pointer_attribute which, zr_cu_address address))                              \
    f(ipc_get, cuIpcGetMemHandle, , (zr_cu_ipc_handle *out, zr_cu_address address))                           \
    f(ipc_open, cuIpcOpenMemHandle, _v2, (zr_cu_address *out, zr_cu_ipc_handle handle, unsigned int flags))   \
    f(ipc_close, cuIpcCloseMemHandle, , (zr_cu_address address))                                              \
    f(retain_handle, cuMemRetainAllocationHandle, , (zr_cu_memory *out, void *address))                       \
    f(handle_for_range, cuMemGetHandleForAddressRange, ,                                                      \
      (void *out, zr_cu_address address, size_t bytes, int type, unsigned long long flags))                   \
    f(stream_new, cuStreamCreate, , (zr_cu_stream *out, unsigned int flags))                                  \
    f(stream_new_priority, cuStreamCreateWithPriority, ,                                                      \
      (zr_cu_stream *out, unsigned int flags, int priority))                                                  \
    f(stream_end, cuStreamDestroy, _v2, (zr_cu_stream stream))                                                \
    f(context_new, cuCtxCreate, _v2, (zr_cu_context *out, unsigned int flags, zr_cu_device device))           \
    f(context_new_v3, cuCtxCreate, _v3,                                                                       \
      (zr_cu_context *out, void *affinity, int count, unsigned int flags, zr_cu_device device))               \
    f(context_new_v4, cuCtxCreate, _v4,                                                                       \
      (zr_cu_context *out, void *parameters, unsigned int flags, zr_cu_device device))                        \
    f(context_end, cuCtxDestroy, _v2, (zr_cu_context context))                                                \
    f(context_peer, cuCtxEnablePeerAccess, , (zr_cu_context peer, unsigned int flags))                        \
    f(primary_reset, cuDevicePrimaryCtxReset, _v2, (zr_cu_device device))

/* Functions that libzr_cuda.so or the tests' programs call. */
#define ZR_CUDA_USED(f)                                                                                       \
    f(alloc_managed, cuMemAllocManaged, , (zr_cu_address *out, size_t bytes, unsigned int flags))             \
    f(host_alloc, cuMemHostAlloc, , (void **out, size_t bytes, unsigned int flags))                           \
    f(host_alloc_plain, cuMemAllocHost, _v2, (void **out, size_t bytes))                                      \
    f(host_free, cuMemFreeHost, , (void *address))                                                            \
    f(host_register, cuMemHostRegister, _v2, (void *address, size_t bytes, unsigned int flags))               \
    f(host_unregister, cuMemHostUnregister, , (void *address))                                                \
    f(host_device_pointer, cuMemHostGetDevicePointer, _v2,                                                    \
      (zr_cu_address *out, void *address, unsigned int flags))                                                \
    f(pool_default, cuDeviceGetDefaultMemPool, , (zr_cu_pool *out, zr_cu_device device))                      \
    f(pool_current, cuDeviceGetMemPool, , (zr_cu_pool *out, zr_cu_device device))                             \
    f(pool_make_current, cuDeviceSetMemPool, , (zr_cu_device device, zr_cu_pool pool))                        \
    f(pool_get_access, cuMemPoolGetAccess, ,                                                                  \
      (zr_cu_access_flags *out, zr_cu_pool pool, zr_cu_location *location))                                   \
    f(pool_export, cuMemPoolExportToShareableHandle, ,                                                        \
      (void *out, zr_cu_pool pool, zr_cu_handle_type type, unsigned long long flags))                         \
    f(handle_properties, cuMemGetAllocationPropertiesFromHandle, ,                                            \
      (zr_cu_properties *out, zr_cu_memory memory))                                                           \
    f(access_of, cuMemGetAccess, ,                                                                            \
      (unsigned long long *flags, const zr_cu_location *location, zr_cu_address address))                     \
    f(context_get, cuCtxGetCurrent, , (zr_cu_context *out))                                                   \
    f(context_set, cuCtxSetCurrent, , (zr_cu_context context))                                                \
    f(context_device, cuCtxGetDevice, , (zr_cu_device *out))                                                  \
    f(context_set_flags, cuCtxSetFlags, , (unsigned int flags))                                               \
    f(context_get_flags, cuCtxGetFlags, , (unsigned int *flags))                                              \
    f(primary_state, cuDevicePrimaryCtxGetState, , (zr_cu_device device, unsigned int *flags, int *active))   \
    f(device_name, cuDeviceGetName, , (char *name, int bytes, zr_cu_device device))                           \
    f(stream_query, cuStreamQuery, , (zr_cu_stream stream))                                                   \
    f(stream_wait_event, cuStreamWaitEvent, ,                                                                 \
      (zr_cu_stream stream, zr_cu_event event, unsigned int flags))                                           \
    f(stream_capturing, cuStreamIsCapturing, , (zr_cu_stream stream, zr_cu_capture_status *out))              \
    f(capture_begin, cuStreamBeginCapture, _v2, (zr_cu_stream stream, zr_cu_capture_mode mode))               \
    f(capture_end, cuStreamEndCapture, , (zr_cu_stream stream, zr_cu_graph *out))                             \
    f(capture_mode, cuThreadExchangeStreamCaptureMode, , (zr_cu_capture_mode *mode))                          \
    f(graph_instantiate, cuGraphInstantiateWithFlags, ,                                                       \
      (zr_cu_graph_exec *out, zr_cu_graph graph, unsigned long long flags))                                   \
    f(graph_launch, cuGraphLaunch, , (zr_cu_graph_exec graph, zr_cu_stream stream))                           \
    f(graph_exec_destroy, cuGraphExecDestroy, , (zr_cu_graph_exec graph))                                     \
    f(graph_destroy, cuGraphDestroy, , (zr_cu_graph graph))                                                   \
    f(copy_now, cuMemcpy, , (zr_cu_address to, zr_cu_address from, size_t bytes))                             \
    f(copy_to_device, cuMemcpyHtoD, _v2, (zr_cu_address to, const void *from, size_t bytes))                  \
    f(copy_to_host, cuMemcpyDtoH, _v2, (void *to, zr_cu_address from, size_t bytes))                          \
    f(fill_now, cuMemsetD8, _v2, (zr_cu_address to, unsigned char value, size_t bytes))                       \
    f(export_table, cuGetExportTable, , (const void **table, const void *identifier))
// clang-format on

#endif
