/* cudart_calls.h: what NVIDIA's runtime asks of the driver as it starts, and a stand-in that does the same.
 *
 * A runtime, shared or static, opens libcuda.so.1, looks up one symbol there, cuGetProcAddress_v2, and asks
 * that for every function by name, version and flags, those that do not exist as well. The list was recorded
 * from the runtime of CUDA 12.9 (PyPI's nvidia-cuda-runtime-cu12 12.9.79, both kinds) on the emulated driver
 * with ZR_EMULATOR_ASKED. That of CUDA 11.8 begins with cuGetProcAddress and differs in one version; that of
 * 13.0 asks for cuCtxGetDevice and cuCtxSynchronize of 13.0 too, which take a parameter more.
 *
 * Then a runtime asks cuGetExportTable for the private tables of cudart_tables, which no page documents, and
 * fails every call with the code of the refusal. So the real one runs on a card alone, and this header stands
 * for it elsewhere. */
#ifndef ZR_TEST_CUDART_CALLS_H
#define ZR_TEST_CUDART_CALLS_H

#include <dlfcn.h>
#include <string.h>

#include "alloc/preload/cuda/driver_api.h"

static const unsigned char cudart_tables[2][16] = {
    {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9},
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}};

struct cudart_question {
    const char *name;
    int version;
    unsigned flags; /* ZR_CU_PROC_ */
};

// clang-format off
static const struct cudart_question cudart_questions[] = {
    {"cuInit", 2000, 0}, {"cuGetProcAddress", 11030, 0}, {"cuGetProcAddress", 12000, 0},
    {"cuDeviceGet", 2000, 0}, {"cuDeviceGetCount", 2000, 0}, {"cuDeviceGetName", 2000, 0},
    {"cuDeviceTotalMem", 3020, 0}, {"cuDeviceGetAttribute", 2000, 0}, {"cuDeviceGetP2PAttribute", 8000, 0},
    {"cuDriverGetVersion", 2020, 0}, {"cuDeviceGetByPCIBusId", 4010, 0}, {"cuDeviceGetPCIBusId", 4010, 0},
    {"cuDeviceGetUuid", 9020, 0}, {"cuDeviceGetTexture1DLinearMaxWidth", 11010, 0},
    {"cuDeviceGetDefaultMemPool", 11020, 0}, {"cuDeviceSetMemPool", 11020, 0},
    {"cuDeviceGetMemPool", 11020, 0}, {"cuFlushGPUDirectRDMAWrites", 11030, 0},
    {"cuDevicePrimaryCtxRetain", 7000, 0}, {"cuDevicePrimaryCtxRelease", 7000, 0},
    {"cuDevicePrimaryCtxSetFlags", 11000, 0}, {"cuDevicePrimaryCtxGetState", 7000, 0},
    {"cuDevicePrimaryCtxReset", 7000, 0}, {"cuCtxCreate", 3020, 0}, {"cuCtxGetFlags", 7000, 0},
    {"cuCtxSetCurrent", 4000, 0}, {"cuCtxGetCurrent", 4000, 0}, {"cuCtxDetach", 2000, 0},
    {"cuCtxGetApiVersion", 3020, 0}, {"cuCtxGetDevice", 2000, 0}, {"cuCtxGetLimit", 3010, 0},
    {"cuCtxSetLimit", 3010, 0}, {"cuCtxGetCacheConfig", 3020, 0}, {"cuCtxSetCacheConfig", 3020, 0},
    {"cuCtxGetSharedMemConfig", 4020, 0}, {"cuCtxGetStreamPriorityRange", 5050, 0},
    {"cuCtxSetSharedMemConfig", 4020, 0}, {"cuCtxSynchronize", 2000, 0},
    {"cuCtxResetPersistingL2Cache", 11000, 0}, {"cuCtxPopCurrent", 4000, 0}, {"cuCtxPushCurrent", 4000, 0},
    {"cuModuleLoad", 2000, 0}, {"cuModuleLoadData", 2000, 0}, {"cuModuleLoadFatBinary", 2000, 0},
    {"cuModuleUnload", 2000, 0}, {"cuModuleGetFunction", 2000, 0}, {"cuModuleGetGlobal", 3020, 0},
    {"cuModuleGetTexRef", 2000, 0}, {"cuModuleGetSurfRef", 3000, 0}, {"cuModuleGetLoadingMode", 11070, 0},
    {"cuLibraryLoadData", 12000, 0}, {"cuLibraryLoadFromFile", 12000, 0}, {"cuLibraryUnload", 12000, 0},
    {"cuLibraryGetKernel", 12000, 0}, {"cuLibraryGetModule", 12000, 0}, {"cuKernelGetFunction", 12000, 0},
    {"cuLibraryGetGlobal", 12000, 0}, {"cuLibraryGetManaged", 12000, 0},
    {"cuLibraryGetUnifiedFunction", 12000, 0}, {"cuLibraryGetKernelCount", 12040, 0},
    {"cuLibraryEnumerateKernels", 12040, 0}, {"cuKernelGetAttribute", 12000, 0},
    {"cuKernelSetAttribute", 12000, 0}, {"cuKernelSetCacheConfig", 12000, 0}, {"cuKernelGetName", 12030, 0},
    {"cuKernelGetParamInfo", 12040, 0}, {"cuLinkCreate", 5050, 0}, {"cuLinkAddData", 5050, 0},
    {"cuLinkAddFile", 5050, 0}, {"cuLinkComplete", 5050, 0}, {"cuLinkDestroy", 5050, 0},
    {"cuMemGetInfo", 3020, 0}, {"cuMemAllocManaged", 6000, 0}, {"cuMemAlloc", 3020, 0},
    {"cuMemAllocPitch", 3020, 0}, {"cuMemFree", 3020, 0}, {"cuMemGetAddressRange", 3020, 0},
    {"cuMemFreeHost", 2000, 0}, {"cuMemHostAlloc", 2020, 0}, {"cuMemHostGetDevicePointer", 3020, 0},
    {"cuMemHostGetFlags", 2030, 0}, {"cuMemHostRegister", 6050, 0}, {"cuMemHostUnregister", 4000, 0},
    {"cuPointerGetAttribute", 4000, 0}, {"cuPointerGetAttributes", 7000, 0}, {"cuMemAllocAsync", 11020, 0},
    {"cuMemAllocAsync", 11020, 2}, {"cuMemAllocFromPoolAsync", 11020, 0},
    {"cuMemAllocFromPoolAsync", 11020, 2}, {"cuMemFreeAsync", 11020, 0}, {"cuMemFreeAsync", 11020, 2},
    {"cuMemPoolTrimTo", 11020, 0}, {"cuMemPoolSetAttribute", 11020, 0}, {"cuMemPoolGetAttribute", 11020, 0},
    {"cuMemPoolSetAccess", 11020, 0}, {"cuMemPoolGetAccess", 11020, 0}, {"cuMemPoolCreate", 11020, 0},
    {"cuMemPoolDestroy", 11020, 0}, {"cuMemPoolExportToShareableHandle", 11020, 0},
    {"cuMemPoolImportFromShareableHandle", 11020, 0}, {"cuMemPoolExportPointer", 11020, 0},
    {"cuMemPoolImportPointer", 11020, 0}, {"cuMemcpy", 4000, 0}, {"cuMemcpy", 7000, 2},
    {"cuMemcpyAsync", 4000, 0}, {"cuMemcpyAsync", 7000, 2}, {"cuMemcpyPeer", 4000, 0},
    {"cuMemcpyPeer", 7000, 2}, {"cuMemcpyPeerAsync", 4000, 0}, {"cuMemcpyPeerAsync", 7000, 2},
    {"cuMemcpyHtoD", 3020, 0}, {"cuMemcpyHtoD", 7000, 2}, {"cuMemcpyHtoDAsync", 3020, 0},
    {"cuMemcpyHtoDAsync", 7000, 2}, {"cuMemcpyDtoH", 3020, 0}, {"cuMemcpyDtoH", 7000, 2},
    {"cuMemcpyDtoHAsync", 3020, 0}, {"cuMemcpyDtoHAsync", 7000, 2}, {"cuMemcpyDtoD", 3020, 0},
    {"cuMemcpyDtoD", 7000, 2}, {"cuMemcpyDtoDAsync", 3020, 0}, {"cuMemcpyDtoDAsync", 7000, 2},
    {"cuMemcpy2DUnaligned", 3020, 0}, {"cuMemcpy2DUnaligned", 7000, 2}, {"cuMemcpy2DAsync", 3020, 0},
    {"cuMemcpy2DAsync", 7000, 2}, {"cuMemcpy3D", 3020, 0}, {"cuMemcpy3D", 7000, 2},
    {"cuMemcpy3DAsync", 3020, 0}, {"cuMemcpy3DAsync", 7000, 2}, {"cuMemcpy3DPeer", 4000, 0},
    {"cuMemcpy3DPeer", 7000, 2}, {"cuMemcpy3DPeerAsync", 4000, 0}, {"cuMemcpy3DPeerAsync", 7000, 2},
    {"cuMemcpyBatchAsync", 12080, 0}, {"cuMemcpyBatchAsync", 12080, 2}, {"cuMemcpy3DBatchAsync", 12080, 0},
    {"cuMemcpy3DBatchAsync", 12080, 2}, {"cuMemsetD8", 3020, 0}, {"cuMemsetD8", 7000, 2},
    {"cuMemsetD8Async", 3020, 0}, {"cuMemsetD8Async", 7000, 2}, {"cuMemsetD2D8", 3020, 0},
    {"cuMemsetD2D8", 7000, 2}, {"cuMemsetD2D8Async", 3020, 0}, {"cuMemsetD2D8Async", 7000, 2},
    {"cuFuncSetCacheConfig", 3000, 0}, {"cuFuncSetSharedMemConfig", 4020, 0},
    {"cuFuncGetAttribute", 2020, 0}, {"cuFuncSetAttribute", 9000, 0}, {"cuFuncGetName", 12030, 0},
    {"cuFuncGetParamInfo", 12040, 0}, {"cuArrayCreate", 3020, 0}, {"cuArrayGetDescriptor", 3020, 0},
    {"cuArrayGetSparseProperties", 11010, 0}, {"cuArrayGetPlane", 11020, 0}, {"cuArray3DCreate", 3020, 0},
    {"cuArray3DGetDescriptor", 3020, 0}, {"cuArrayDestroy", 2000, 0}, {"cuMipmappedArrayCreate", 5000, 0},
    {"cuMipmappedArrayGetLevel", 5000, 0}, {"cuMipmappedArrayGetSparseProperties", 11010, 0},
    {"cuMipmappedArrayDestroy", 5000, 0}, {"cuArrayGetMemoryRequirements", 11060, 0},
    {"cuMipmappedArrayGetMemoryRequirements", 11060, 0}, {"cuTexObjectCreate", 5000, 0},
    {"cuTexObjectDestroy", 5000, 0}, {"cuTexObjectGetResourceDesc", 5000, 0},
    {"cuTexObjectGetTextureDesc", 5000, 0}, {"cuTexObjectGetResourceViewDesc", 5000, 0},
    {"cuSurfObjectCreate", 5000, 0}, {"cuSurfObjectDestroy", 5000, 0},
    {"cuSurfObjectGetResourceDesc", 5000, 0}, {"cuImportExternalMemory", 10000, 0},
    {"cuExternalMemoryGetMappedBuffer", 10000, 0}, {"cuExternalMemoryGetMappedMipmappedArray", 10000, 0},
    {"cuDestroyExternalMemory", 10000, 0}, {"cuImportExternalSemaphore", 10000, 0},
    {"cuSignalExternalSemaphoresAsync", 10000, 0}, {"cuSignalExternalSemaphoresAsync", 10000, 2},
    {"cuWaitExternalSemaphoresAsync", 10000, 0}, {"cuWaitExternalSemaphoresAsync", 10000, 2},
    {"cuDestroyExternalSemaphore", 10000, 0}, {"cuDeviceGetNvSciSyncAttributes", 10020, 0},
    {"cuLaunchKernel", 4000, 0}, {"cuLaunchKernel", 7000, 2}, {"cuLaunchCooperativeKernel", 9000, 0},
    {"cuLaunchCooperativeKernel", 9000, 2}, {"cuLaunchCooperativeKernelMultiDevice", 9000, 0},
    {"cuLaunchHostFunc", 10000, 0}, {"cuLaunchHostFunc", 10000, 2}, {"cuLaunchKernelEx", 11060, 0},
    {"cuLaunchKernelEx", 11060, 2}, {"cuEventCreate", 2000, 0}, {"cuEventRecord", 2000, 0},
    {"cuEventRecord", 7000, 2}, {"cuEventRecordWithFlags", 11010, 0}, {"cuEventRecordWithFlags", 11010, 2},
    {"cuEventQuery", 2000, 0}, {"cuEventSynchronize", 2000, 0}, {"cuEventDestroy", 4000, 0},
    {"cuEventElapsedTime", 2000, 0}, {"cuEventElapsedTime", 12080, 0}, {"cuStreamWaitValue32", 8000, 0},
    {"cuStreamWaitValue32", 8000, 2}, {"cuStreamWriteValue32", 8000, 0}, {"cuStreamWriteValue32", 8000, 2},
    {"cuStreamWaitValue64", 9000, 0}, {"cuStreamWaitValue64", 9000, 2}, {"cuStreamWriteValue64", 9000, 0},
    {"cuStreamWriteValue64", 9000, 2}, {"cuStreamBatchMemOp", 8000, 0}, {"cuStreamBatchMemOp", 8000, 2},
    {"cuStreamCreate", 2000, 0}, {"cuStreamCreateWithPriority", 5050, 0}, {"cuStreamGetPriority", 5050, 0},
    {"cuStreamGetPriority", 7000, 2}, {"cuStreamGetFlags", 5050, 0}, {"cuStreamGetDevice", 12080, 0},
    {"cuStreamGetDevice", 12080, 2}, {"cuStreamGetCtx", 9020, 0}, {"cuStreamGetFlags", 7000, 2},
    {"cuStreamGetId", 12000, 0}, {"cuStreamGetId", 12000, 2}, {"cuStreamDestroy", 4000, 0},
    {"cuStreamWaitEvent", 3020, 0}, {"cuStreamWaitEvent", 7000, 2}, {"cuStreamAddCallback", 5000, 0},
    {"cuStreamAddCallback", 7000, 2}, {"cuStreamSynchronize", 2000, 0}, {"cuStreamSynchronize", 7000, 2},
    {"cuStreamQuery", 2000, 0}, {"cuStreamQuery", 7000, 2}, {"cuStreamAttachMemAsync", 6000, 0},
    {"cuStreamAttachMemAsync", 7000, 2}, {"cuStreamCopyAttributes", 11000, 0},
    {"cuStreamCopyAttributes", 11000, 2}, {"cuStreamGetAttribute", 11000, 0},
    {"cuStreamGetAttribute", 11000, 2}, {"cuStreamSetAttribute", 11000, 0},
    {"cuStreamSetAttribute", 11000, 2}, {"cuDeviceCanAccessPeer", 4000, 0},
    {"cuCtxEnablePeerAccess", 4000, 0}, {"cuCtxDisablePeerAccess", 4000, 0},
    {"cuIpcGetEventHandle", 4010, 0}, {"cuIpcOpenEventHandle", 4010, 0}, {"cuIpcGetMemHandle", 4010, 0},
    {"cuIpcOpenMemHandle", 4010, 0}, {"cuIpcOpenMemHandle", 11000, 0}, {"cuIpcCloseMemHandle", 4010, 0},
    {"cuGLCtxCreate", 3020, 0}, {"cuGLInit", 2000, 0}, {"cuGLGetDevices", 4010, 0},
    {"cuGLRegisterBufferObject", 2000, 0}, {"cuGLMapBufferObject", 3020, 0},
    {"cuGLMapBufferObject", 7000, 2}, {"cuGLMapBufferObjectAsync", 3020, 0},
    {"cuGLMapBufferObjectAsync", 7000, 2}, {"cuGLUnmapBufferObject", 2000, 0},
    {"cuGLUnmapBufferObjectAsync", 2030, 0}, {"cuGLUnregisterBufferObject", 2000, 0},
    {"cuGLSetBufferObjectMapFlags", 2030, 0}, {"cuGraphicsGLRegisterImage", 3000, 0},
    {"cuGraphicsGLRegisterBuffer", 3000, 0}, {"cuGraphicsEGLRegisterImage", 7000, 0},
    {"cuEGLStreamConsumerConnect", 7000, 0}, {"cuEGLStreamConsumerDisconnect", 7000, 0},
    {"cuEGLStreamConsumerAcquireFrame", 7000, 0}, {"cuEGLStreamConsumerReleaseFrame", 7000, 0},
    {"cuEGLStreamProducerConnect", 7000, 0}, {"cuEGLStreamProducerDisconnect", 7000, 0},
    {"cuEGLStreamProducerPresentFrame", 7000, 0}, {"cuEGLStreamProducerReturnFrame", 7000, 0},
    {"cuGraphicsResourceGetMappedEglFrame", 7000, 0}, {"cuEGLStreamConsumerConnectWithFlags", 8000, 0},
    {"cuGraphicsUnregisterResource", 3000, 0}, {"cuGraphicsMapResources", 3000, 0},
    {"cuGraphicsMapResources", 7000, 2}, {"cuGraphicsUnmapResources", 3000, 0},
    {"cuGraphicsUnmapResources", 7000, 2}, {"cuGraphicsResourceSetMapFlags", 6050, 0},
    {"cuGraphicsSubResourceGetMappedArray", 3000, 0},
    {"cuGraphicsResourceGetMappedMipmappedArray", 5000, 0}, {"cuGraphicsResourceGetMappedPointer", 3020, 0},
    {"cuProfilerInitialize", 4000, 0}, {"cuProfilerStart", 4000, 0}, {"cuProfilerStop", 4000, 0},
    {"cuVDPAUGetDevice", 3010, 0}, {"cuVDPAUCtxCreate", 3020, 0},
    {"cuGraphicsVDPAURegisterVideoSurface", 3010, 0}, {"cuGraphicsVDPAURegisterOutputSurface", 3010, 0},
    {"cuGetExportTable", 3000, 0}, {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000, 0},
    {"cuOccupancyAvailableDynamicSMemPerBlock", 10020, 0}, {"cuOccupancyMaxPotentialClusterSize", 11070, 0},
    {"cuOccupancyMaxActiveClusters", 11070, 0}, {"cuMemAdvise", 8000, 0}, {"cuMemPrefetchAsync", 8000, 0},
    {"cuMemPrefetchAsync", 8000, 2}, {"cuMemAdvise", 12020, 0}, {"cuMemPrefetchAsync", 12020, 0},
    {"cuMemPrefetchAsync", 12020, 2}, {"cuMemRangeGetAttribute", 8000, 0},
    {"cuMemRangeGetAttributes", 8000, 0}, {"cuGetErrorString", 6000, 0}, {"cuGetErrorName", 6000, 0},
    {"cuGraphCreate", 10000, 0}, {"cuGraphAddKernelNode", 12000, 0},
    {"cuGraphKernelNodeGetParams", 12000, 0}, {"cuGraphKernelNodeSetParams", 12000, 0},
    {"cuGraphAddMemcpyNode", 10000, 0}, {"cuGraphMemcpyNodeGetParams", 10000, 0},
    {"cuGraphMemcpyNodeSetParams", 10000, 0}, {"cuGraphAddMemsetNode", 10000, 0},
    {"cuGraphMemsetNodeGetParams", 10000, 0}, {"cuGraphMemsetNodeSetParams", 10000, 0},
    {"cuGraphAddHostNode", 10000, 0}, {"cuGraphHostNodeGetParams", 10000, 0},
    {"cuGraphHostNodeSetParams", 10000, 0}, {"cuGraphAddChildGraphNode", 10000, 0},
    {"cuGraphChildGraphNodeGetGraph", 10000, 0}, {"cuGraphAddEmptyNode", 10000, 0},
    {"cuGraphAddEventRecordNode", 11010, 0}, {"cuGraphEventRecordNodeGetEvent", 11010, 0},
    {"cuGraphEventRecordNodeSetEvent", 11010, 0}, {"cuGraphAddEventWaitNode", 11010, 0},
    {"cuGraphEventWaitNodeGetEvent", 11010, 0}, {"cuGraphEventWaitNodeSetEvent", 11010, 0},
    {"cuGraphAddExternalSemaphoresSignalNode", 11020, 0},
    {"cuGraphExternalSemaphoresSignalNodeGetParams", 11020, 0},
    {"cuGraphExternalSemaphoresSignalNodeSetParams", 11020, 0},
    {"cuGraphAddExternalSemaphoresWaitNode", 11020, 0},
    {"cuGraphExternalSemaphoresWaitNodeGetParams", 11020, 0},
    {"cuGraphExternalSemaphoresWaitNodeSetParams", 11020, 0},
    {"cuGraphExecExternalSemaphoresSignalNodeSetParams", 11020, 0},
    {"cuGraphExecExternalSemaphoresWaitNodeSetParams", 11020, 0}, {"cuGraphAddMemAllocNode", 11040, 0},
    {"cuGraphMemAllocNodeGetParams", 11040, 0}, {"cuGraphAddMemFreeNode", 11040, 0},
    {"cuGraphMemFreeNodeGetParams", 11040, 0}, {"cuDeviceGraphMemTrim", 11040, 0},
    {"cuDeviceGetGraphMemAttribute", 11040, 0}, {"cuDeviceSetGraphMemAttribute", 11040, 0},
    {"cuGraphClone", 10000, 0}, {"cuGraphNodeFindInClone", 10000, 0}, {"cuGraphNodeGetType", 10000, 0},
    {"cuGraphGetNodes", 10000, 0}, {"cuGraphGetRootNodes", 10000, 0}, {"cuGraphGetEdges", 10000, 0},
    {"cuGraphGetEdges", 12030, 0}, {"cuGraphNodeGetDependencies", 10000, 0},
    {"cuGraphNodeGetDependencies", 12030, 0}, {"cuGraphNodeGetDependentNodes", 10000, 0},
    {"cuGraphNodeGetDependentNodes", 12030, 0}, {"cuGraphAddDependencies", 10000, 0},
    {"cuGraphAddDependencies", 12030, 0}, {"cuGraphRemoveDependencies", 10000, 0},
    {"cuGraphRemoveDependencies", 12030, 0}, {"cuGraphDestroyNode", 10000, 0},
    {"cuGraphInstantiate", 10000, 0}, {"cuGraphInstantiate", 11000, 0},
    {"cuGraphInstantiateWithFlags", 11040, 0}, {"cuGraphUpload", 11010, 0}, {"cuGraphUpload", 11010, 2},
    {"cuGraphLaunch", 10000, 0}, {"cuGraphLaunch", 10000, 2}, {"cuGraphExecDestroy", 10000, 0},
    {"cuGraphDestroy", 10000, 0}, {"cuStreamBeginCapture", 10000, 0}, {"cuStreamBeginCapture", 10000, 2},
    {"cuStreamBeginCapture", 10010, 0}, {"cuStreamBeginCapture", 10010, 2},
    {"cuStreamBeginCaptureToGraph", 12030, 0}, {"cuStreamBeginCaptureToGraph", 12030, 2},
    {"cuStreamEndCapture", 10000, 0}, {"cuStreamEndCapture", 10000, 2}, {"cuStreamIsCapturing", 10000, 0},
    {"cuStreamIsCapturing", 10000, 2}, {"cuStreamGetCaptureInfo", 10010, 0},
    {"cuStreamGetCaptureInfo", 10010, 2}, {"cuStreamGetCaptureInfo", 11030, 0},
    {"cuStreamGetCaptureInfo", 11030, 2}, {"cuStreamGetCaptureInfo", 12030, 0},
    {"cuStreamGetCaptureInfo", 12030, 2}, {"cuStreamUpdateCaptureDependencies", 11030, 0},
    {"cuStreamUpdateCaptureDependencies", 11030, 2}, {"cuStreamUpdateCaptureDependencies", 12030, 0},
    {"cuStreamUpdateCaptureDependencies", 12030, 2}, {"cuGraphExecKernelNodeSetParams", 12000, 0},
    {"cuGraphExecMemcpyNodeSetParams", 10020, 0}, {"cuGraphExecMemsetNodeSetParams", 10020, 0},
    {"cuGraphExecHostNodeSetParams", 10020, 0}, {"cuGraphExecChildGraphNodeSetParams", 11010, 0},
    {"cuGraphExecEventRecordNodeSetEvent", 11010, 0}, {"cuGraphExecEventWaitNodeSetEvent", 11010, 0},
    {"cuThreadExchangeStreamCaptureMode", 10010, 0}, {"cuGraphExecUpdate", 12000, 0},
    {"cuGraphKernelNodeCopyAttributes", 11000, 0}, {"cuGraphKernelNodeGetAttribute", 11000, 0},
    {"cuGraphKernelNodeSetAttribute", 11000, 0}, {"cuGraphDebugDotPrint", 11030, 0},
    {"cuUserObjectCreate", 11030, 0}, {"cuUserObjectRetain", 11030, 0}, {"cuUserObjectRelease", 11030, 0},
    {"cuGraphRetainUserObject", 11030, 0}, {"cuGraphReleaseUserObject", 11030, 0},
    {"cuGraphNodeSetEnabled", 11060, 0}, {"cuGraphNodeGetEnabled", 11060, 0},
    {"cuGraphInstantiateWithParams", 12000, 0}, {"cuGraphInstantiateWithParams", 12000, 2},
    {"cuGraphExecGetFlags", 12000, 0}, {"cuGraphAddNode", 12020, 0}, {"cuGraphAddNode", 12030, 0},
    {"cuGraphNodeSetParams", 12020, 0}, {"cuGraphExecNodeSetParams", 12020, 0},
    {"cuGraphConditionalHandleCreate", 12030, 0}, {"cuDeviceRegisterAsyncNotification", 12040, 0},
    {"cuDeviceUnregisterAsyncNotification", 12040, 0},
};
// clang-format on

enum { CUDART_QUESTIONS = sizeof cudart_questions / sizeof *cudart_questions };

/* The calls that the stand-in makes of the driver: f(member, name, version, parameters). */
// clang-format off
#define CUDART_CALLS(f)                                                                             \
    f(init, cuInit, 2000, (unsigned flags))                                                         \
    f(device_get, cuDeviceGet, 2000, (zr_cu_device *out, int ordinal))                              \
    f(device_count, cuDeviceGetCount, 2000, (int *out))                                             \
    f(retain, cuDevicePrimaryCtxRetain, 7000, (zr_cu_context *out, zr_cu_device device))            \
    f(set_current, cuCtxSetCurrent, 4000, (zr_cu_context context))                                  \
    f(get_current, cuCtxGetCurrent, 4000, (zr_cu_context *out))                                     \
    f(synchronize, cuCtxSynchronize, 2000, (void))                                                  \
    f(memory_info, cuMemGetInfo, 3020, (size_t *free_bytes, size_t *total_bytes))                   \
    f(allocate, cuMemAlloc, 3020, (zr_cu_address *out, size_t bytes))                               \
    f(free, cuMemFree, 3020, (zr_cu_address address))                                               \
    f(host_allocate, cuMemHostAlloc, 2020, (void **out, size_t bytes, unsigned flags))              \
    f(host_free, cuMemFreeHost, 2000, (void *address))                                              \
    f(managed, cuMemAllocManaged, 6000, (zr_cu_address *out, size_t bytes, unsigned flags))         \
    f(pointer_attributes, cuPointerGetAttributes, 7000,                                             \
      (unsigned count, zr_cu_pointer_attribute *which, void **values, zr_cu_address address))       \
    f(address_range, cuMemGetAddressRange, 3020,                                                    \
      (zr_cu_address *base, size_t *bytes, zr_cu_address address))                                  \
    f(stream_new, cuStreamCreate, 2000, (zr_cu_stream *out, unsigned flags))                        \
    f(stream_end, cuStreamDestroy, 4000, (zr_cu_stream stream))                                     \
    f(export_table, cuGetExportTable, 3000, (const void **out, const void *identifier))             \
    f(default_pool, cuDeviceGetDefaultMemPool, 11020, (zr_cu_pool *out, zr_cu_device device))       \
    f(pool_set, cuMemPoolSetAttribute, 11020,                                                       \
      (zr_cu_pool pool, zr_cu_pool_attribute which, void *value))
/* Those that have a form for per-thread streams: f(member, name, version, version of that form, parameters). */
#define CUDART_STREAM_CALLS(f)                                                                      \
    f(allocate_async, cuMemAllocAsync, 11020, 11020,                                                \
      (zr_cu_address *out, size_t bytes, zr_cu_stream stream))                                      \
    f(free_async, cuMemFreeAsync, 11020, 11020, (zr_cu_address address, zr_cu_stream stream))       \
    f(copy_to_host, cuMemcpyDtoH, 3020, 7000, (void *to, zr_cu_address from, size_t bytes))         \
    f(copy_to_device, cuMemcpyHtoD, 3020, 7000, (zr_cu_address to, const void *from, size_t bytes)) \
    f(fill, cuMemsetD8Async, 3020, 7000,                                                            \
      (zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream))                   \
    f(stream_synchronize, cuStreamSynchronize, 2000, 7000, (zr_cu_stream stream))                   \
    f(event_record, cuEventRecord, 2000, 7000, (zr_cu_event event, zr_cu_stream stream))
// clang-format on

typedef zr_cu_result cudart_ask(const char *name, void **out, int version, unsigned long long flags,
                                zr_cu_proc_status *status);

struct cudart {
    void *answers[CUDART_QUESTIONS];
    zr_cu_proc_status statuses[CUDART_QUESTIONS];
#define CUDART_MEMBER(member, name, version, parameters) zr_cu_result(*member) parameters;
    CUDART_CALLS(CUDART_MEMBER)
#undef CUDART_MEMBER
#define CUDART_MEMBER(member, name, version, per_thread, parameters) zr_cu_result(*member) parameters;
    CUDART_STREAM_CALLS(CUDART_MEMBER)
#undef CUDART_MEMBER
};

/* The answer to the question; NULL: there is none, or it was not asked. */
static inline void *cudart_answer(const struct cudart *cudart, const char *name, int version, unsigned flags)
{
    for (unsigned i = 0; i < CUDART_QUESTIONS; i++)
        if (cudart_questions[i].version == version && cudart_questions[i].flags == flags &&
            strcmp(cudart_questions[i].name, name) == 0)
            return cudart->answers[i];
    return NULL;
}

/* Asks all the questions; false: a call that the stand-in makes is not there. */
static inline bool cudart_start(struct cudart *out, void *library, bool per_thread)
{
    cudart_ask *ask;
    bool complete = true;
    memset(out, 0, sizeof *out);
    *(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
    if (!ask)
        return false;
    for (unsigned i = 0; i < CUDART_QUESTIONS; i++) {
        const struct cudart_question *each = &cudart_questions[i];
        if (ask(each->name, &out->answers[i], each->version, each->flags, &out->statuses[i]) != ZR_CU_SUCCESS)
            out->answers[i] = NULL; /* of a CUDA that is newer than the driver */
    }
    unsigned flags = per_thread ? ZR_CU_PROC_PER_THREAD_STREAM : ZR_CU_PROC_DEFAULT;
#define CUDART_FIND(member, name, version, parameters)                                                       \
    *(void **)&out->member = cudart_answer(out, #name, version, ZR_CU_PROC_DEFAULT);                         \
    complete &= out->member != NULL;
    CUDART_CALLS(CUDART_FIND)
#undef CUDART_FIND
#define CUDART_FIND(member, name, version, own_version, parameters)                                          \
    *(void **)&out->member = cudart_answer(out, #name, per_thread ? own_version : version, flags);           \
    complete &= out->member != NULL;
    CUDART_STREAM_CALLS(CUDART_FIND)
#undef CUDART_FIND
    return complete;
}

#endif
