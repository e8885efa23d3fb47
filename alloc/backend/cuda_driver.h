/* cuda_driver.h: the part of the CUDA driver that zr uses, in zr's own declarations. Private to the project.
 *
 * A build needs no CUDA header and no toolkit: this file declares the few types and functions, and
 * tests/unit/cuda/cuda_declarations_test.c compares them with cuda.h if that is installed. The driver,
 * libcuda.so.1, is loaded at run time, so that one binary serves machines with and without a GPU. */
#ifndef ZR_CUDA_DRIVER_H
#define ZR_CUDA_DRIVER_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* ---- Types --------------------------------------------------------------------------------------------- */

typedef unsigned int zr_cu_result; /* enum zr_cu_code, or a code that a newer driver adds */
typedef int zr_cu_device;
typedef unsigned long long zr_cu_address;
typedef unsigned long long zr_cu_memory; /* a handle from cuMemCreate */
typedef struct zr_cu_context_st *zr_cu_context;
typedef struct zr_cu_stream_st *zr_cu_stream;
typedef struct zr_cu_event_st *zr_cu_event;

/* The results that zr handles. Messages show the others by the driver's own names. */
enum zr_cu_code {
    ZR_CU_SUCCESS = 0,
    ZR_CU_INVALID_VALUE = 1,
    ZR_CU_OUT_OF_MEMORY = 2,
    ZR_CU_NOT_INITIALIZED = 3,
    ZR_CU_DEINITIALIZED = 4,
    ZR_CU_STUB_LIBRARY = 34,
    ZR_CU_NO_DEVICE = 100,
    ZR_CU_INVALID_DEVICE = 101,
    ZR_CU_INVALID_CONTEXT = 201,
    ZR_CU_ECC_UNCORRECTABLE = 214,
    ZR_CU_OPERATING_SYSTEM = 304,
    ZR_CU_INVALID_HANDLE = 400,
    ZR_CU_NOT_READY = 600,
    ZR_CU_ILLEGAL_ADDRESS = 700,
    ZR_CU_LAUNCH_TIMEOUT = 702,
    ZR_CU_CONTEXT_IS_DESTROYED = 709,
    ZR_CU_ASSERT = 710,
    ZR_CU_HARDWARE_STACK_ERROR = 714,
    ZR_CU_ILLEGAL_INSTRUCTION = 715,
    ZR_CU_MISALIGNED_ADDRESS = 716,
    ZR_CU_INVALID_ADDRESS_SPACE = 717,
    ZR_CU_INVALID_PC = 718,
    ZR_CU_NOT_REGISTERED = 713, /* the memory is not page-locked */
    ZR_CU_LAUNCH_FAILED = 719,
    ZR_CU_NOT_PERMITTED = 800,
    ZR_CU_NOT_SUPPORTED = 801,
    ZR_CU_SYSTEM_DRIVER_MISMATCH = 803,
    ZR_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
    ZR_CU_UNKNOWN = 999
};

typedef enum zr_cu_attribute {
    ZR_CU_ATTRIBUTE_PCI_BUS = 33,
    ZR_CU_ATTRIBUTE_PCI_DEVICE = 34,
    ZR_CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    ZR_CU_ATTRIBUTE_PCI_DOMAIN = 50,
    ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY = 88,      /* kernels may use the program's own memory */
    ZR_CU_ATTRIBUTE_REGISTERED_ADDRESSES = 91, /* the device uses the host's addresses of locked pages */
    ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY = 102,
    ZR_CU_ATTRIBUTE_POSIX_FD = 103,
    ZR_CU_ATTRIBUTE_RDMA_VIRTUAL_MEMORY = 110, /* GPUDirect RDMA on memory from cuMemCreate */
    ZR_CU_ATTRIBUTE_HOST_NUMA_ID = 134,        /* the node closest to the device; -1: no NUMA */
    ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY = 141,
    ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY = 145 /* without a node */
} zr_cu_attribute;

typedef enum zr_cu_location_type {
    ZR_CU_LOCATION_DEVICE = 1,
    ZR_CU_LOCATION_HOST = 2,
    ZR_CU_LOCATION_HOST_NUMA = 3
} zr_cu_location_type;

typedef enum zr_cu_allocation_type { ZR_CU_ALLOCATION_PINNED = 1 } zr_cu_allocation_type;

typedef enum zr_cu_handle_type { ZR_CU_HANDLE_NONE = 0, ZR_CU_HANDLE_POSIX_FD = 1 } zr_cu_handle_type;

typedef enum zr_cu_granularity {
    ZR_CU_GRANULARITY_MINIMUM = 0,
    ZR_CU_GRANULARITY_RECOMMENDED = 1
} zr_cu_granularity;

typedef enum zr_cu_access_flags {
    ZR_CU_ACCESS_NONE = 0,
    ZR_CU_ACCESS_READ = 1,
    ZR_CU_ACCESS_READ_WRITE = 3
} zr_cu_access_flags;

typedef enum zr_cu_capture_mode {
    ZR_CU_CAPTURE_GLOBAL = 0,
    ZR_CU_CAPTURE_THREAD_LOCAL = 1,
    ZR_CU_CAPTURE_RELAXED = 2
} zr_cu_capture_mode;

/* Page-locked memory for every context, with an address on the device. */
enum { ZR_CU_REGISTER_PORTABLE = 1, ZR_CU_REGISTER_MAPPED = 2 };
enum { ZR_CU_EVENT_DISABLE_TIMING = 2, ZR_CU_STREAM_NON_BLOCKING = 1 };
/* The highest handle of a default stream. 0: default, 1: legacy, 2: per-thread. */
enum { ZR_CU_STREAM_PER_THREAD = 2 };

typedef struct zr_cu_location {
    zr_cu_location_type type;
    int id; /* device ordinal or NUMA node */
} zr_cu_location;

typedef struct zr_cu_properties {
    zr_cu_allocation_type type;
    zr_cu_handle_type exported_as;
    zr_cu_location location;
    void *windows_only;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} zr_cu_properties;

typedef struct zr_cu_access {
    zr_cu_location location;
    zr_cu_access_flags flags;
} zr_cu_access;

/* ---- Functions ----------------------------------------------------------------------------------------- */

/* f(member of struct zr_cuda_driver, the driver's name, the suffix of the version, parameters). This list
 * generates the table of pointers, their names, the emulator's entries and the comparison with cuda.h. */
// clang-format off
#define ZR_CUDA_FUNCTIONS(f)                                                                                  \
    f(init, cuInit, , (unsigned int flags))                                                                   \
    f(driver_version, cuDriverGetVersion, , (int *version))                                                   \
    f(error_name, cuGetErrorName, , (zr_cu_result code, const char **name))                                   \
    f(error_text, cuGetErrorString, , (zr_cu_result code, const char **text))                                 \
    f(device_count, cuDeviceGetCount, , (int *count))                                                         \
    f(device_get, cuDeviceGet, , (zr_cu_device *device, int ordinal))                                         \
    f(device_attribute, cuDeviceGetAttribute, ,                                                               \
      (int *value, zr_cu_attribute attribute, zr_cu_device device))                                           \
    f(can_access_peer, cuDeviceCanAccessPeer, , (int *can, zr_cu_device device, zr_cu_device peer))           \
    f(context_retain, cuDevicePrimaryCtxRetain, , (zr_cu_context *context, zr_cu_device device))              \
    f(context_release, cuDevicePrimaryCtxRelease, _v2, (zr_cu_device device))                                 \
    f(context_push, cuCtxPushCurrent, _v2, (zr_cu_context context))                                           \
    f(context_pop, cuCtxPopCurrent, _v2, (zr_cu_context *context))                                            \
    f(context_synchronize, cuCtxSynchronize, , (void))                                                        \
    f(granularity, cuMemGetAllocationGranularity, ,                                                           \
      (size_t *bytes, const zr_cu_properties *properties, zr_cu_granularity which))                           \
    f(reserve, cuMemAddressReserve, ,                                                                         \
      (zr_cu_address *address, size_t bytes, size_t alignment, zr_cu_address hint, unsigned long long flags)) \
    f(address_free, cuMemAddressFree, , (zr_cu_address address, size_t bytes))                                \
    f(create, cuMemCreate, ,                                                                                  \
      (zr_cu_memory *memory, size_t bytes, const zr_cu_properties *properties, unsigned long long flags))     \
    f(release, cuMemRelease, , (zr_cu_memory memory))                                                         \
    f(map, cuMemMap, ,                                                                                        \
      (zr_cu_address address, size_t bytes, size_t offset, zr_cu_memory memory, unsigned long long flags))    \
    f(unmap, cuMemUnmap, , (zr_cu_address address, size_t bytes))                                             \
    f(set_access, cuMemSetAccess, ,                                                                           \
      (zr_cu_address address, size_t bytes, const zr_cu_access *access, size_t count))                        \
    f(export_handle, cuMemExportToShareableHandle, ,                                                          \
      (void *handle, zr_cu_memory memory, zr_cu_handle_type type, unsigned long long flags))                  \
    f(import_handle, cuMemImportFromShareableHandle, ,                                                        \
      (zr_cu_memory *memory, void *handle, zr_cu_handle_type type))                                           \
    f(register_host, cuMemHostRegister, _v2, (void *address, size_t bytes, unsigned int flags))               \
    f(unregister_host, cuMemHostUnregister, , (void *address))                                                \
    f(memory_info, cuMemGetInfo, _v2, (size_t *free_bytes, size_t *total_bytes))                              \
    f(copy, cuMemcpyAsync, , (zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream))       \
    f(fill, cuMemsetD8Async, , (zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream))    \
    f(stream_synchronize, cuStreamSynchronize, , (zr_cu_stream stream))                                       \
    f(stream_context, cuStreamGetCtx, , (zr_cu_stream stream, zr_cu_context *context))                        \
    f(event_create, cuEventCreate, , (zr_cu_event *event, unsigned int flags))                                \
    f(event_record, cuEventRecord, , (zr_cu_event event, zr_cu_stream stream))                                \
    f(event_query, cuEventQuery, , (zr_cu_event event))                                                       \
    f(event_synchronize, cuEventSynchronize, , (zr_cu_event event))                                           \
    f(event_destroy, cuEventDestroy, _v2, (zr_cu_event event))
// clang-format on

#define ZR_CUDA_MEMBER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
struct zr_cuda_driver {
    ZR_CUDA_FUNCTIONS(ZR_CUDA_MEMBER)
};
#undef ZR_CUDA_MEMBER

/* ---- Loading ------------------------------------------------------------------------------------------- */

/* The oldest driver with all of the above: CUDA 10.2. */
enum { ZR_CUDA_OLDEST_VERSION = 10020 };

/* The driver of this process. The first call that succeeds loads and initializes the driver, which stays
 * until the process ends. Any thread. ZR_ERR_UNAVAILABLE: no libcuda.so.1, too old a driver, or no device;
 * the message says which, and what to do. */
ZR_PRIVATE_API zr_result zr_cuda_driver_get(const struct zr_cuda_driver **out);

/* A function that only some drivers have, by its full name, from the driver that zr_cuda_driver_get() has
 * loaded. ZR_ERR_UNAVAILABLE: the driver lacks the function. */
ZR_PRIVATE_API zr_result zr_cuda_driver_find(const char *name, void **out);

/* For tests: the file to load instead of libcuda.so.1. The path is copied and cut at 4,095 bytes.
 * ZR_ERR_INVALID: a driver is already loaded. */
zr_result zr_cuda_driver_path_set(const char *path);

/* Sets the message for a call that the driver refused: the call, the driver's name for the error, and the
 * remedy. Returns the zr_result of the code; `otherwise` for codes whose meaning depends on the call (out of
 * memory, invalid value). */
ZR_PRIVATE_API zr_result zr_cuda_error(zr_cu_result code, zr_result otherwise, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Whether the error means that the context runs no more work and every call into it fails. */
bool zr_cuda_context_dead(zr_cu_result code);

#endif
