/* runtime.c: the CUDA runtime (libcudart) above the emulated driver. See runtime.h.
 *
 * Memory, streams, events and capture are the emulated driver's. A kernel launch is checked and does nothing.
 * Functions that have no answer in alloc/rehearse/runtime/ are stand_ins.c's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/rehearse/runtime/runtime.h"

/* ---- Types of the runtime ------------------------------------------------------------------------------ */

/* The runtime's error numbers are the driver's. */
typedef zr_cu_result error;

struct extent {
    unsigned x, y, z;
};

/* enum cudaMemoryType, cudaMemcpyKind */
enum { TYPE_UNREGISTERED = 0, TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_MANAGED = 3 };

/* CUDA 13 has eight reserved numbers behind these, which CUDA 12's callers have no space for. */
struct pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
};

struct function_attributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int threads_max, registers, ptx_version, binary_version, cache_all, dynamic_shared_max, carveout;
    int cluster_required, cluster[3], cluster_policy, non_portable_cluster, reserved[16];
};

#define ANSWER __attribute__((visibility("default")))

/* ---- Errors -------------------------------------------------------------------------------------------- */

static __thread error last_error;

static error keep(error code)
{
    if (code != ZR_CU_SUCCESS && code != ZR_CU_NOT_READY)
        last_error = code;
    return code;
}

ANSWER error cudaGetLastError(void)
{
    error code = last_error;
    last_error = ZR_CU_SUCCESS;
    return code;
}

ANSWER error cudaPeekAtLastError(void)
{
    return last_error;
}

ANSWER const char *cudaGetErrorName(error code)
{
    const char *name = NULL;
    return cuGetErrorName(code, &name) == ZR_CU_SUCCESS && name ? name : "cudaErrorUnknown";
}

ANSWER const char *cudaGetErrorString(error code)
{
    const char *text = NULL;
    if (code == ZR_CU_OUT_OF_MEMORY)
        return "out of memory";
    return cuGetErrorString(code, &text) == ZR_CU_SUCCESS && text ? text : "unknown error";
}

/* ---- Devices and contexts ------------------------------------------------------------------------------ */

enum { DEVICES_MAX = 64 };

static __thread int thread_device;
static _Atomic(zr_cu_context) primaries[DEVICES_MAX];

static zr_cu_context primary_of(int device)
{
    zr_cu_context context = atomic_load(&primaries[device]), none = NULL;
    if (context || cuDevicePrimaryCtxRetain(&context, device) != ZR_CU_SUCCESS)
        return context;
    if (!atomic_compare_exchange_strong(&primaries[device], &none, context))
        cuDevicePrimaryCtxRelease_v2(device);
    return context;
}

/* Makes the primary context of the thread's device current unless the program has set another context. */
static error begin(void)
{
    zr_cu_context context = NULL;
    error code = cuInit(0);
    if (code == ZR_CU_SUCCESS)
        code = cuCtxGetCurrent(&context);
    if (code != ZR_CU_SUCCESS || context)
        return keep(code);
    context = primary_of(thread_device);
    return keep(context ? cuCtxSetCurrent(context) : ZR_CU_OUT_OF_MEMORY);
}

/* Begins a call, runs it and keeps its error. */
#define CALL(call)                                                                                           \
    do {                                                                                                     \
        error begun = begin();                                                                               \
        return begun != ZR_CU_SUCCESS ? begun : keep(call);                                                  \
    } while (0)

ANSWER error cudaGetDeviceCount(int *count)
{
    error code = cuInit(0);
    return keep(code == ZR_CU_SUCCESS ? cuDeviceGetCount(count) : code);
}

ANSWER error cudaSetDevice(int device)
{
    int count = 0;
    error code = cudaGetDeviceCount(&count);
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_cu_context context = device >= 0 && device < count ? primary_of(device) : NULL;
    if (!context)
        return keep(ZR_CU_INVALID_DEVICE);
    thread_device = device;
    return keep(cuCtxSetCurrent(context));
}

ANSWER error cudaGetDevice(int *device)
{
    zr_cu_context context = NULL;
    *device = thread_device;
    if (cuInit(0) == ZR_CU_SUCCESS && cuCtxGetCurrent(&context) == ZR_CU_SUCCESS && context)
        return keep(cuCtxGetDevice(device));
    return ZR_CU_SUCCESS;
}

ANSWER error cudaDeviceSynchronize(void)
{
    CALL(cuCtxSynchronize());
}

ANSWER error cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CALL(cuMemGetInfo_v2(free_bytes, total_bytes));
}

ANSWER error cudaDeviceGetAttribute(int *value, int which, int device)
{
    *value = emulated_attribute(which, device);
    return ZR_CU_SUCCESS;
}

ANSWER error cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    CALL(cuDeviceCanAccessPeer(can, device, peer));
}

ANSWER error cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CALL(cuCtxEnablePeerAccess(primary_of(peer), flags));
}

ANSWER error cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", emulated_attribute(ZR_CU_ATTRIBUTE_PCI_BUS, device));
    return ZR_CU_SUCCESS;
}

ANSWER error cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return ZR_CU_SUCCESS;
}

static error properties(void *out, int device, int version)
{
    int count = 0;
    error code = cudaGetDeviceCount(&count);
    if (code != ZR_CU_SUCCESS || device < 0 || device >= count)
        return keep(code != ZR_CU_SUCCESS ? code : ZR_CU_INVALID_DEVICE);
    emulated_properties(out, device, version);
    return ZR_CU_SUCCESS;
}

ANSWER error cudaGetDeviceProperties(void *out, int device)
{
    return properties(out, device, EMULATED_RUNTIME);
}

/* CUDA 12's. */
ANSWER error cudaGetDeviceProperties_v2(void *out, int device)
{
    return properties(out, device, EMULATED_RUNTIME_OLD);
}

ANSWER error cudaDriverGetVersion(int *version)
{
    return keep(cuDriverGetVersion(version));
}

ANSWER error cudaRuntimeGetVersion(int *version)
{
    *version = EMULATED_RUNTIME;
    return ZR_CU_SUCCESS;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

ANSWER error cudaMalloc(void **out, size_t bytes)
{
    zr_cu_address address = 0;
    error code = begin();
    if (code == ZR_CU_SUCCESS && bytes > 0)
        code = cuMemAlloc_v2(&address, bytes);
    *out = (void *)(uintptr_t)address;
    return keep(code);
}

ANSWER error cudaFree(void *pointer)
{
    CALL(pointer ? cuMemFree_v2((uintptr_t)pointer) : ZR_CU_SUCCESS);
}

ANSWER error cudaMallocAsync(void **out, size_t bytes, zr_cu_stream stream)
{
    zr_cu_address address = 0;
    error code = begin();
    if (code == ZR_CU_SUCCESS)
        code = cuMemAllocAsync(&address, bytes, stream);
    *out = (void *)(uintptr_t)address;
    return keep(code);
}

ANSWER error cudaFreeAsync(void *pointer, zr_cu_stream stream)
{
    CALL(cuMemFreeAsync((uintptr_t)pointer, stream));
}

ANSWER error cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    enum { ELEMENT_BYTES = 4 };
    CALL(cuMemAllocPitch_v2((zr_cu_address *)out, pitch, width, height, ELEMENT_BYTES));
}

ANSWER error cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    CALL(cuMemAllocManaged((zr_cu_address *)out, bytes, flags));
}

ANSWER error cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CALL(cuMemHostAlloc(out, bytes, flags));
}

ANSWER error cudaMallocHost(void **out, size_t bytes)
{
    CALL(cuMemHostAlloc(out, bytes, 0));
}

ANSWER error cudaFreeHost(void *pointer)
{
    CALL(pointer ? cuMemFreeHost(pointer) : ZR_CU_SUCCESS);
}

ANSWER error cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    CALL(cuMemHostRegister_v2(pointer, bytes, flags & (ZR_CU_REGISTER_PORTABLE | ZR_CU_REGISTER_MAPPED)));
}

ANSWER error cudaHostGetDevicePointer(void **out, void *pointer, unsigned flags)
{
    CALL(cuMemHostGetDevicePointer_v2((zr_cu_address *)out, pointer, flags));
}

ANSWER error cudaHostUnregister(void *pointer)
{
    CALL(cuMemHostUnregister(pointer));
}

ANSWER error cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    error code = begin();
    (void)kind;
    if (code == ZR_CU_SUCCESS && bytes > 0)
        code = cuMemcpy((uintptr_t)to, (uintptr_t)from, bytes);
    if (code == ZR_CU_SUCCESS)
        emulated_read(to, from, bytes);
    return keep(code);
}

ANSWER error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, zr_cu_stream stream)
{
    error code = begin();
    (void)kind;
    if (code == ZR_CU_SUCCESS && bytes > 0)
        code = cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream);
    if (code == ZR_CU_SUCCESS)
        emulated_read(to, from, bytes);
    return keep(code);
}

ANSWER error cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                 zr_cu_stream stream)
{
    (void)to_device;
    (void)from_device;
    CALL(cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream));
}

ANSWER error cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, int kind, zr_cu_stream stream)
{
    error code = begin();
    (void)kind;
    for (size_t row = 0; code == ZR_CU_SUCCESS && row < height; row++)
        code =
            cuMemcpyAsync((uintptr_t)to + row * to_pitch, (uintptr_t)from + row * from_pitch, width, stream);
    if (code == ZR_CU_SUCCESS && height > 0)
        emulated_read(to, from, (height - 1) * from_pitch + width);
    return keep(code);
}

ANSWER error cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    (void)to_device, (void)from_device;
    CALL(bytes > 0 ? cuMemcpy((uintptr_t)to, (uintptr_t)from, bytes) : ZR_CU_SUCCESS);
}

ANSWER error cudaMemset(void *pointer, int value, size_t bytes)
{
    CALL(bytes > 0 ? cuMemsetD8_v2((uintptr_t)pointer, (unsigned char)value, bytes) : ZR_CU_SUCCESS);
}

ANSWER error cudaMemsetAsync(void *pointer, int value, size_t bytes, zr_cu_stream stream)
{
    CALL(bytes > 0 ? cuMemsetD8Async((uintptr_t)pointer, (unsigned char)value, bytes, stream)
                   : ZR_CU_SUCCESS);
}

/* Not in the driver's list: a few words of a pattern are copied there, which a capture would read too late.
 */
ANSWER error cuMemsetD32Async(zr_cu_address to, unsigned value, size_t count, zr_cu_stream stream);
error cuMemsetD32Async(zr_cu_address to, unsigned value, size_t count, zr_cu_stream stream)
{
    enum { PATTERN_WORDS = 1024 };
    unsigned pattern[PATTERN_WORDS];
    zr_cu_capture_status capturing = ZR_CU_CAPTURE_NONE;
    unsigned char byte = (unsigned char)value;
    cuStreamIsCapturing(stream, &capturing);
    if (value == byte * 0x01010101u || count > PATTERN_WORDS || capturing != ZR_CU_CAPTURE_NONE)
        return cuMemsetD8Async(to, value == byte * 0x01010101u ? byte : 0, count * sizeof value, stream);
    for (size_t i = 0; i < count; i++)
        pattern[i] = value;
    return cuMemcpyAsync(to, (zr_cu_address)(uintptr_t)pattern, count * sizeof value, stream);
}

ANSWER error cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer)
{
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    error code = begin();
    *out =
        (struct pointer_attributes){.type = TYPE_UNREGISTERED, .device = -1, .host_pointer = (void *)pointer};
    if (code != ZR_CU_SUCCESS ||
        cuPointerGetAttribute(&type, ZR_CU_POINTER_MEMORY_TYPE, (uintptr_t)pointer) != ZR_CU_SUCCESS)
        return code;
    cuPointerGetAttribute(&managed, ZR_CU_POINTER_IS_MANAGED, (uintptr_t)pointer);
    cuPointerGetAttribute(&ordinal, ZR_CU_POINTER_DEVICE_ORDINAL, (uintptr_t)pointer);
    bool device = type == TYPE_DEVICE;
    *out = (struct pointer_attributes){.type = managed ? TYPE_MANAGED : (int)type,
                                       .device = ordinal,
                                       .device_pointer = (void *)pointer,
                                       .host_pointer = device && !managed ? NULL : (void *)pointer};
    return ZR_CU_SUCCESS;
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

ANSWER error cudaDeviceGetDefaultMemPool(zr_cu_pool *out, int device)
{
    CALL(cuDeviceGetDefaultMemPool(out, device));
}

ANSWER error cudaMemPoolGetAttribute(zr_cu_pool pool, int which, void *value)
{
    CALL(cuMemPoolGetAttribute(pool, (zr_cu_pool_attribute)which, value));
}

ANSWER error cudaMemPoolSetAttribute(zr_cu_pool pool, int which, void *value)
{
    CALL(cuMemPoolSetAttribute(pool, (zr_cu_pool_attribute)which, value));
}

ANSWER error cudaMemPoolSetAccess(zr_cu_pool pool, const zr_cu_access *access, size_t count)
{
    CALL(cuMemPoolSetAccess(pool, access, count));
}

ANSWER error cudaMemPoolTrimTo(zr_cu_pool pool, size_t keep_bytes)
{
    CALL(cuMemPoolTrimTo(pool, keep_bytes));
}

/* The runtime's structures are the driver's. */
ANSWER error cudaMemPoolCreate(zr_cu_pool *out, const zr_cu_pool_properties *properties)
{
    CALL(cuMemPoolCreate(out, properties));
}

ANSWER error cudaMemPoolDestroy(zr_cu_pool pool)
{
    CALL(cuMemPoolDestroy(pool));
}

ANSWER error cudaDeviceGetMemPool(zr_cu_pool *out, int device)
{
    CALL(cuDeviceGetMemPool(out, device));
}

ANSWER error cudaDeviceSetMemPool(int device, zr_cu_pool pool)
{
    CALL(cuDeviceSetMemPool(device, pool));
}

ANSWER error cudaMallocFromPoolAsync(void **out, size_t bytes, zr_cu_pool pool, zr_cu_stream stream)
{
    zr_cu_address address = 0;
    error code = begin();
    if (code == ZR_CU_SUCCESS)
        code = cuMemAllocFromPoolAsync(&address, bytes, pool, stream);
    *out = (void *)(uintptr_t)address;
    return keep(code);
}

/* ---- Memory of other processes ------------------------------------------------------------------------- */

ANSWER error cudaIpcGetMemHandle(zr_cu_ipc_handle *out, void *pointer)
{
    CALL(cuIpcGetMemHandle(out, (uintptr_t)pointer));
}

ANSWER error cudaIpcOpenMemHandle(void **out, zr_cu_ipc_handle handle, unsigned flags)
{
    CALL(cuIpcOpenMemHandle_v2((zr_cu_address *)out, handle, flags));
}

ANSWER error cudaIpcCloseMemHandle(void *pointer)
{
    CALL(cuIpcCloseMemHandle((uintptr_t)pointer));
}

/* An event of another process: that process's work before it has ended. */
ANSWER error cudaIpcGetEventHandle(zr_cu_ipc_handle *out, zr_cu_event event)
{
    *out = (zr_cu_ipc_handle){0};
    CALL(event ? ZR_CU_SUCCESS : ZR_CU_INVALID_HANDLE);
}

ANSWER error cudaIpcOpenEventHandle(zr_cu_event *out, zr_cu_ipc_handle handle)
{
    (void)handle;
    CALL(cuEventCreate(out, 0));
}

/* ---- Streams and events -------------------------------------------------------------------------------- */

ANSWER error cudaStreamCreate(zr_cu_stream *out)
{
    CALL(cuStreamCreate(out, 0));
}

ANSWER error cudaStreamCreateWithFlags(zr_cu_stream *out, unsigned flags)
{
    CALL(cuStreamCreate(out, flags));
}

ANSWER error cudaStreamCreateWithPriority(zr_cu_stream *out, unsigned flags, int priority)
{
    CALL(cuStreamCreateWithPriority(out, flags, priority));
}

ANSWER error cudaStreamDestroy(zr_cu_stream stream)
{
    CALL(cuStreamDestroy_v2(stream));
}

ANSWER error cudaStreamQuery(zr_cu_stream stream)
{
    CALL(cuStreamQuery(stream));
}

ANSWER error cudaStreamSynchronize(zr_cu_stream stream)
{
    CALL(cuStreamSynchronize(stream));
}

ANSWER error cudaStreamWaitEvent(zr_cu_stream stream, zr_cu_event event, unsigned flags)
{
    CALL(cuStreamWaitEvent(stream, event, flags));
}

ANSWER error cudaStreamIsCapturing(zr_cu_stream stream, zr_cu_capture_status *out)
{
    CALL(cuStreamIsCapturing(stream, out));
}

/* CUDA 13's; the graph and its nodes are not given. */
ANSWER error cudaStreamGetCaptureInfo(zr_cu_stream stream, zr_cu_capture_status *status,
                                      unsigned long long *number, zr_cu_graph *graph, const void **nodes,
                                      const void **edges, size_t *count)
{
    (void)nodes, (void)edges;
    if (number)
        *number = (uintptr_t)stream;
    if (graph)
        *graph = NULL;
    if (count)
        *count = 0;
    CALL(cuStreamIsCapturing(stream, status));
}

/* CUDA 12's. */
ANSWER error cudaStreamGetCaptureInfo_v2(zr_cu_stream stream, zr_cu_capture_status *status,
                                         unsigned long long *number, zr_cu_graph *graph, const void **nodes,
                                         size_t *count)
{
    return cudaStreamGetCaptureInfo(stream, status, number, graph, nodes, NULL, count);
}

ANSWER error cudaStreamGetPriority(zr_cu_stream stream, int *out)
{
    (void)stream;
    *out = 0;
    return ZR_CU_SUCCESS;
}

/* Runs the function at once: the simulated stream's work before it has no results that the function could
 * read. */
ANSWER error cudaLaunchHostFunc(zr_cu_stream stream, void (*function)(void *), void *state)
{
    (void)stream;
    function(state);
    return ZR_CU_SUCCESS;
}

ANSWER error cudaStreamAddCallback(zr_cu_stream stream, void (*function)(zr_cu_stream, error, void *),
                                   void *state, unsigned flags)
{
    (void)flags;
    function(stream, ZR_CU_SUCCESS, state);
    return ZR_CU_SUCCESS;
}

ANSWER error cudaEventCreateWithFlags(zr_cu_event *out, unsigned flags)
{
    CALL(cuEventCreate(out, flags));
}

ANSWER error cudaEventCreate(zr_cu_event *out)
{
    CALL(cuEventCreate(out, 0));
}

ANSWER error cudaEventDestroy(zr_cu_event event)
{
    CALL(cuEventDestroy_v2(event));
}

ANSWER error cudaEventRecord(zr_cu_event event, zr_cu_stream stream)
{
    CALL(cuEventRecord(event, stream));
}

ANSWER error cudaEventRecordWithFlags(zr_cu_event event, zr_cu_stream stream, unsigned flags)
{
    (void)flags;
    CALL(cuEventRecord(event, stream));
}

ANSWER error cudaEventQuery(zr_cu_event event)
{
    CALL(cuEventQuery(event));
}

ANSWER error cudaEventSynchronize(zr_cu_event event)
{
    CALL(cuEventSynchronize(event));
}

ANSWER error cudaEventElapsedTime(float *ms, zr_cu_event start, zr_cu_event end)
{
    CALL(cuEventElapsedTime(ms, start, end));
}

/* ---- Capture and graphs -------------------------------------------------------------------------------- */

ANSWER error cudaStreamBeginCapture(zr_cu_stream stream, zr_cu_capture_mode mode)
{
    CALL(cuStreamBeginCapture_v2(stream, mode));
}

ANSWER error cudaStreamEndCapture(zr_cu_stream stream, zr_cu_graph *out)
{
    CALL(cuStreamEndCapture(stream, out));
}

ANSWER error cudaThreadExchangeStreamCaptureMode(zr_cu_capture_mode *mode)
{
    CALL(cuThreadExchangeStreamCaptureMode(mode));
}

ANSWER error cudaGraphInstantiate(zr_cu_graph_exec *out, zr_cu_graph graph, unsigned long long flags)
{
    CALL(cuGraphInstantiateWithFlags(out, graph, flags));
}

ANSWER error cudaGraphInstantiateWithFlags(zr_cu_graph_exec *out, zr_cu_graph graph, unsigned long long flags)
{
    CALL(cuGraphInstantiateWithFlags(out, graph, flags));
}

ANSWER error cudaGraphLaunch(zr_cu_graph_exec graph, zr_cu_stream stream)
{
    CALL(cuGraphLaunch(graph, stream));
}

ANSWER error cudaGraphDestroy(zr_cu_graph graph)
{
    CALL(cuGraphDestroy(graph));
}

ANSWER error cudaGraphExecDestroy(zr_cu_graph_exec graph)
{
    CALL(cuGraphExecDestroy(graph));
}

ANSWER error cudaGraphGetNodes(zr_cu_graph graph, void **nodes, size_t *count)
{
    (void)graph;
    (void)nodes;
    *count = 1; /* PyTorch warns about a graph without nodes */
    return ZR_CU_SUCCESS;
}

/* ---- Kernels ------------------------------------------------------------------------------------------- */

static __thread struct {
    struct extent grid, block;
    size_t shared_bytes;
    void *stream;
} configuration;

ANSWER void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

ANSWER unsigned __cudaPushCallConfiguration(struct extent grid, struct extent block, size_t shared_bytes,
                                            void *stream)
{
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return 0;
}

ANSWER error __cudaPopCallConfiguration(struct extent *grid, struct extent *block, size_t *shared_bytes,
                                        void *stream)
{
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(void **)stream = configuration.stream;
    return ZR_CU_SUCCESS;
}

ANSWER error __cudaGetKernel(void **out, const void *function)
{
    *out = (void *)function;
    return ZR_CU_SUCCESS;
}

ANSWER error cudaLaunchKernel(const void *function, struct extent grid, struct extent block, void **arguments,
                              size_t shared_bytes, zr_cu_stream stream)
{
    zr_cu_launch_config config = {grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes,
                                  stream, NULL,   0};
    CALL(cuLaunchKernelEx(&config, (zr_cu_function)(uintptr_t)function, arguments, NULL));
}

ANSWER error cudaLaunchCooperativeKernel(const void *function, struct extent grid, struct extent block,
                                         void **arguments, size_t shared_bytes, zr_cu_stream stream)
{
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

ANSWER error __cudaLaunchKernel(const void *function, struct extent grid, struct extent block,
                                void **arguments, size_t shared_bytes, zr_cu_stream stream)
{
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

struct launch {
    struct extent grid, block;
    size_t shared_bytes;
    zr_cu_stream stream;
};

ANSWER error cudaLaunchKernelExC(const struct launch *launch, const void *function, void **arguments)
{
    return cudaLaunchKernel(function, launch->grid, launch->block, arguments, launch->shared_bytes,
                            launch->stream);
}

ANSWER error cudaFuncGetAttributes(struct function_attributes *out, const void *function)
{
    (void)function;
    *out = (struct function_attributes){.threads_max = 1024,
                                        .registers = 32,
                                        .ptx_version = 90,
                                        .binary_version = 90,
                                        .dynamic_shared_max = emulated_attribute(97, thread_device)};
    return ZR_CU_SUCCESS;
}

ANSWER error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int threads,
                                                           size_t shared_bytes)
{
    (void)function;
    (void)shared_bytes;
    *out = threads > 0 && threads <= 1024 ? 2048 / threads : 0;
    return ZR_CU_SUCCESS;
}

ANSWER error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function,
                                                                    int threads, size_t shared_bytes,
                                                                    unsigned flags)
{
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(out, function, threads, shared_bytes);
}

ANSWER error cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                              unsigned long long flags, int *status)
{
    zr_cu_proc_status found = ZR_CU_PROC_NOT_FOUND;
    error code = cuGetProcAddress_v2(symbol, out, (int)version, flags, &found);
    if (code != ZR_CU_SUCCESS || !*out) {
        *out = dlsym(RTLD_DEFAULT, symbol); /* of these libraries, which are preloaded */
        found = *out ? ZR_CU_PROC_FOUND : ZR_CU_PROC_NOT_FOUND;
    }
    if (status)
        *status = (int)found;
    return ZR_CU_SUCCESS;
}

/* CUDA 12's. */
ANSWER error cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, out, EMULATED_RUNTIME_OLD, flags, status);
}
