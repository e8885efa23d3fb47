/* cuda_declarations_test.c: zr's own declarations of the CUDA driver (alloc/backend/cuda_driver.h,
 * alloc/preload/cuda/driver_api.h, kernels/cuda/driver_launch.h and driver_streams.h) beside those of cuda.h:
 * names, versions and types of the functions, sizes and places of the structs, numbers of the enums; and
 * those of cuBLASLt (kernels/cuda/cublaslt.h) beside cublasLt.h's. Where there is no such header this is
 * skipped; where there is, a difference is a failure. */
#include "tests/support/tap.h"

#ifndef ZR_TEST_CUDA_HEADER

int main(void)
{
    tap_skip("no cuda.h: install the CUDA toolkit or set CUDA_HOME to compare zr's declarations with it");
    return tap_done();
}

#else

#include <cuda.h>
#include <stddef.h>
#include <string.h>

#include "alloc/preload/cuda/driver_api.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/driver_streams.h"
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

#define TEXT_OF(macro)  #macro
#define EXPANDED(macro) TEXT_OF(macro)

/* The name that a program compiled with this cuda.h asks the driver for. */
static void test_names(void)
{
#define CHECK_NAME(member, name, suffix, parameters)                                                         \
    tap_ok(strcmp(EXPANDED(name), #name #suffix) == 0, "%s is the version that cuda.h means (%s)",           \
           #name #suffix, EXPANDED(name));
    ZR_CUDA_FUNCTIONS(CHECK_NAME)
#if CUDA_VERSION >= 12050
    ZR_CUDA_LAUNCHING(CHECK_NAME)
    ZR_CUDA_WORDS(CHECK_NAME)
    ZR_CUDA_STREAMS(CHECK_NAME)
#endif
}

#define SAME(ours, theirs) tap_is((long long)(ours), (long long)(theirs), "%s is %s", #ours, #theirs)

static void test_codes(void)
{
    SAME(ZR_CU_SUCCESS, CUDA_SUCCESS);
    SAME(ZR_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
    SAME(ZR_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
    SAME(ZR_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
    SAME(ZR_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
    SAME(ZR_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
    SAME(ZR_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
    SAME(ZR_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
    SAME(ZR_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
    SAME(ZR_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
    SAME(ZR_CU_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
    SAME(ZR_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
    SAME(ZR_CU_NOT_READY, CUDA_ERROR_NOT_READY);
    SAME(ZR_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
    SAME(ZR_CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
    SAME(ZR_CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    SAME(ZR_CU_ASSERT, CUDA_ERROR_ASSERT);
    SAME(ZR_CU_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
    SAME(ZR_CU_ILLEGAL_INSTRUCTION, CUDA_ERROR_ILLEGAL_INSTRUCTION);
    SAME(ZR_CU_MISALIGNED_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS);
    SAME(ZR_CU_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_ADDRESS_SPACE);
    SAME(ZR_CU_INVALID_PC, CUDA_ERROR_INVALID_PC);
    SAME(ZR_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
    SAME(ZR_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
    SAME(ZR_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
    SAME(ZR_CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    SAME(ZR_CU_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    SAME(ZR_CU_UNKNOWN, CUDA_ERROR_UNKNOWN);
}

/* Numbers that a cuda.h of 10.2 does not have yet are compared where it has them. */
static void test_enums(void)
{
    SAME(ZR_CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    SAME(ZR_CU_ATTRIBUTE_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    SAME(ZR_CU_ATTRIBUTE_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    SAME(ZR_CU_ATTRIBUTE_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    SAME(ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED);
    SAME(ZR_CU_ATTRIBUTE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
#if CUDA_VERSION >= 12020
    SAME(ZR_CU_ATTRIBUTE_RDMA_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    SAME(ZR_CU_ATTRIBUTE_HOST_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    SAME(ZR_CU_LOCATION_HOST, CU_MEM_LOCATION_TYPE_HOST);
    SAME(ZR_CU_LOCATION_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA);
#endif
#if CUDA_VERSION >= 13000
    SAME(ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY,
         CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    SAME(ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#endif
    SAME(ZR_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
    SAME(ZR_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
    SAME(ZR_CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    SAME(ZR_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    SAME(ZR_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SAME(ZR_CU_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    SAME(ZR_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
    SAME(ZR_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    SAME(ZR_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
    SAME(ZR_CU_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
    SAME(ZR_CU_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
    SAME(ZR_CU_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    SAME(ZR_CU_ATTRIBUTE_REGISTERED_ADDRESSES, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    SAME(ZR_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
}

#define SAME_FIELD(ours, our_field, theirs, their_field)                                                     \
    tap_ok(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                                     \
               sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),                         \
           "%s.%s lies where %s.%s does", #ours, #our_field, #theirs, #their_field)

static void test_structs(void)
{
    SAME(sizeof(zr_cu_result), sizeof(CUresult));
    SAME(sizeof(zr_cu_context), sizeof(CUcontext));
    SAME(sizeof(zr_cu_stream), sizeof(CUstream));
    SAME(sizeof(zr_cu_event), sizeof(CUevent));
    SAME(sizeof(zr_cu_location), sizeof(CUmemLocation));
    SAME(sizeof(zr_cu_properties), sizeof(CUmemAllocationProp));
    SAME(sizeof(zr_cu_access), sizeof(CUmemAccessDesc));
    SAME_FIELD(zr_cu_location, type, CUmemLocation, type);
    SAME_FIELD(zr_cu_location, id, CUmemLocation, id);
    SAME_FIELD(zr_cu_properties, type, CUmemAllocationProp, type);
    SAME_FIELD(zr_cu_properties, exported_as, CUmemAllocationProp, requestedHandleTypes);
    SAME_FIELD(zr_cu_properties, location, CUmemAllocationProp, location);
    SAME_FIELD(zr_cu_properties, windows_only, CUmemAllocationProp, win32HandleMetaData);
    SAME_FIELD(zr_cu_properties, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
    SAME_FIELD(zr_cu_properties, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
    SAME_FIELD(zr_cu_properties, flags.usage, CUmemAllocationProp, allocFlags.usage);
    SAME_FIELD(zr_cu_properties, flags.reserved, CUmemAllocationProp, allocFlags.reserved);
    SAME_FIELD(zr_cu_access, location, CUmemAccessDesc, location);
    SAME_FIELD(zr_cu_access, flags, CUmemAccessDesc, flags);
}

/* Of what programs allocate by. A header of 12.5 or later has it all. */
#if CUDA_VERSION >= 12050
static void test_program_types(void)
{
    SAME(ZR_CU_CONTEXT_IN_USE, CUDA_ERROR_CONTEXT_ALREADY_IN_USE);
    SAME(ZR_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
    SAME(ZR_CU_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    SAME(ZR_CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    SAME(ZR_CU_POOL_REUSE_FOLLOW_EVENT, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
    SAME(ZR_CU_POOL_REUSE_OPPORTUNISTIC, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
    SAME(ZR_CU_POOL_REUSE_INTERNAL, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
    SAME(ZR_CU_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    SAME(ZR_CU_POOL_RESERVED_NOW, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    SAME(ZR_CU_POOL_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
    SAME(ZR_CU_POOL_USED_NOW, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    SAME(ZR_CU_POOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    SAME(ZR_CU_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
    SAME(ZR_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    SAME(ZR_CU_POINTER_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
    SAME(ZR_CU_POINTER_HOST_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER);
    SAME(ZR_CU_POINTER_P2P_TOKENS, CU_POINTER_ATTRIBUTE_P2P_TOKENS);
    SAME(ZR_CU_POINTER_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    SAME(ZR_CU_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
    SAME(ZR_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
    SAME(ZR_CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    SAME(ZR_CU_POINTER_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
    SAME(ZR_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
    SAME(ZR_CU_POINTER_RANGE_BYTES, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
    SAME(ZR_CU_POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
    SAME(ZR_CU_POINTER_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
    SAME(ZR_CU_POINTER_RDMA_CAPABLE, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
    SAME(ZR_CU_POINTER_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
    SAME(ZR_CU_POINTER_POOL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
#if CUDA_VERSION >= 12000
    SAME(ZR_CU_POINTER_MAPPING_BYTES, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
    SAME(ZR_CU_POINTER_MAPPING_START, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
    SAME(ZR_CU_POINTER_MEMORY_ID, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);
#endif
    SAME(ZR_CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    SAME(ZR_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    SAME(ZR_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
    SAME(ZR_CU_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    SAME(ZR_CU_CAPTURE_BROKEN, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    SAME(ZR_CU_PROC_LEGACY_STREAM, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    SAME(ZR_CU_PROC_PER_THREAD_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    SAME(ZR_CU_PROC_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    SAME(ZR_CU_PROC_VERSION_TOO_OLD, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    SAME(sizeof(zr_cu_pool), sizeof(CUmemoryPool));
    SAME(sizeof(zr_cu_graph), sizeof(CUgraph));
    SAME(sizeof(zr_cu_graph_exec), sizeof(CUgraphExec));
    SAME(sizeof(zr_cu_ipc_handle), sizeof(CUipcMemHandle));
    SAME(sizeof(zr_cu_pool_properties), sizeof(CUmemPoolProps));
    SAME_FIELD(zr_cu_pool_properties, type, CUmemPoolProps, allocType);
    SAME_FIELD(zr_cu_pool_properties, exported_as, CUmemPoolProps, handleTypes);
    SAME_FIELD(zr_cu_pool_properties, location, CUmemPoolProps, location);
    SAME_FIELD(zr_cu_pool_properties, windows_only, CUmemPoolProps, win32SecurityAttributes);
    SAME_FIELD(zr_cu_pool_properties, max_bytes, CUmemPoolProps, maxSize);
    SAME_FIELD(zr_cu_pool_properties, usage, CUmemPoolProps, usage);
    SAME(ZR_CU_CONTEXT_SYNC_MEMOPS, CU_CTX_SYNC_MEMOPS);
}

static void test_launch_types(void)
{
    SAME(ZR_CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
    SAME(ZR_CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
    SAME(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    SAME(ZR_CU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    SAME(ZR_CU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    SAME(ZR_CU_FUNCTION_THREADS_MAX, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    SAME(ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    SAME(sizeof(zr_cu_launch_config), sizeof(CUlaunchConfig));
    SAME_FIELD(zr_cu_launch_config, grid_x, CUlaunchConfig, gridDimX);
    SAME_FIELD(zr_cu_launch_config, block_z, CUlaunchConfig, blockDimZ);
    SAME_FIELD(zr_cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
    SAME_FIELD(zr_cu_launch_config, stream, CUlaunchConfig, hStream);
    SAME_FIELD(zr_cu_launch_config, attributes, CUlaunchConfig, attrs);
    SAME_FIELD(zr_cu_launch_config, attributes_count, CUlaunchConfig, numAttrs);
}
#endif

static void test_prototypes(void);

/* ---- cuBLASLt ------------------------------------------------------------------------------------------ */

#ifdef CUBLAS_VERSION

static void test_cublaslt(void)
{
    SAME(ZR_LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
    SAME(ZR_LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
    SAME(ZR_LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
    SAME(ZR_LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
    SAME(ZR_LT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
    SAME(ZR_LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
    SAME(ZR_LT_FLOAT, CUDA_R_32F);
    SAME(ZR_LT_HALF, CUDA_R_16F);
    SAME(ZR_LT_BFLOAT, CUDA_R_16BF);
    SAME(ZR_LT_E4M3, CUDA_R_8F_E4M3);
    SAME(ZR_LT_E5M2, CUDA_R_8F_E5M2);
    SAME(ZR_LT_COMPUTE_FLOAT, CUBLAS_COMPUTE_32F);
    SAME(ZR_LT_AS_IT_IS, CUBLAS_OP_N);
    SAME(ZR_LT_TRANSPOSED, CUBLAS_OP_T);
    SAME(ZR_LT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT);
    SAME(ZR_LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
    SAME(ZR_LT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX);
    SAME(ZR_LT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    SAME(ZR_LT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU);
    SAME(ZR_LT_REDUCTION_NONE, CUBLASLT_REDUCTION_SCHEME_NONE);
    SAME(ZR_LT_REDUCTION_IN_FLOATS, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    SAME(ZR_LT_OPERATION_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA);
    SAME(ZR_LT_OPERATION_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB);
    SAME(ZR_LT_OPERATION_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
    SAME(ZR_LT_OPERATION_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    SAME(ZR_LT_OPERATION_AUX, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    SAME(ZR_LT_OPERATION_AUX_LEADING, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
    SAME(ZR_LT_OPERATION_SCALE_A, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
    SAME(ZR_LT_OPERATION_SCALE_B, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    SAME(ZR_LT_PREFERENCE_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
    SAME(ZR_LT_PREFERENCE_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
    SAME(ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
    SAME(ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES + 1, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
    SAME(ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES + 2, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
    SAME(ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
    SAME(sizeof(zr_lt_algorithm), sizeof(cublasLtMatmulAlgo_t));
    SAME(sizeof(zr_lt_choice), sizeof(cublasLtMatmulHeuristicResult_t));
    SAME(offsetof(zr_lt_choice, workspace_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
    SAME(offsetof(zr_lt_choice, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}

#else

static void test_cublaslt(void)
{
    tap_skip("no cublasLt.h beside cuda.h: install cuBLAS to compare zr's declarations with it");
}

#endif

int main(void)
{
    tap_note("compared with %s, CUDA %d.%d", ZR_TEST_CUDA_HEADER, CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10);
    test_names();
    test_codes();
    test_enums();
    test_structs();
#if CUDA_VERSION >= 12050
    test_program_types();
    test_launch_types();
#endif
    test_prototypes();
    test_cublaslt();
    return tap_done();
}

/* From here on zr's names of types stand for cuda.h's, so that the list of functions can be compared with the
 * header's own declarations, parameter by parameter. That the types themselves agree was shown above. */
#define zr_cu_result      CUresult
#define zr_cu_device      CUdevice
#define zr_cu_address     CUdeviceptr
#define zr_cu_memory      CUmemGenericAllocationHandle
#define zr_cu_context     CUcontext
#define zr_cu_stream      CUstream
#define zr_cu_event       CUevent
#define zr_cu_attribute   CUdevice_attribute
#define zr_cu_properties  CUmemAllocationProp
#define zr_cu_granularity CUmemAllocationGranularity_flags
#define zr_cu_access      CUmemAccessDesc
#define zr_cu_handle_type CUmemAllocationHandleType

#define zr_cu_pool              CUmemoryPool
#define zr_cu_pool_properties   CUmemPoolProps
#define zr_cu_pool_attribute    CUmemPool_attribute
#define zr_cu_pointer_attribute CUpointer_attribute
#define zr_cu_graph             CUgraph
#define zr_cu_graph_exec        CUgraphExec
#define zr_cu_ipc_handle        CUipcMemHandle
#define zr_cu_location          CUmemLocation
#define zr_cu_access_flags      CUmemAccess_flags
#define zr_cu_capture_mode      CUstreamCaptureMode
#define zr_cu_capture_status    CUstreamCaptureStatus
#define zr_cu_proc_status       CUdriverProcAddressQueryResult

#define zr_cu_module             CUmodule
#define zr_cu_library            CUlibrary
#define zr_cu_kernel             CUkernel
#define zr_cu_function           CUfunction
#define zr_cu_function_attribute CUfunction_attribute
#define zr_cu_launch_config      CUlaunchConfig

#define zr_lt_handle     cublasLtHandle_t
#define zr_lt_operation  cublasLtMatmulDesc_t
#define zr_lt_layout     cublasLtMatrixLayout_t
#define zr_lt_preference cublasLtMatmulPreference_t
#define zr_lt_status     cublasStatus_t
#define zr_lt_algorithm  cublasLtMatmulAlgo_t
#define zr_lt_choice     cublasLtMatmulHeuristicResult_t

/* A header of 13 has left some forms out. */
#if CUDA_VERSION >= 12050 && CUDA_VERSION < 13000
/* The forms that are named with their suffix, whatever the header's own name stands for. Those for per-thread
 * streams take what the legacy ones take, and cuGetProcAddress without a suffix is what 11.3 had. */
#undef cuGetProcAddress
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);
#define cuMemAllocAsync_ptsz         cuMemAllocAsync
#define cuMemFreeAsync_ptsz          cuMemFreeAsync
#define cuMemAllocFromPoolAsync_ptsz cuMemAllocFromPoolAsync

/* Parameters whose types nobody here looks into, and unsigned long for unsigned long long. */
static bool differs_on_purpose(const char *form)
{
    static const char *const forms[] = {
        "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemPoolExportPointer", "cuMemGetHandleForAddressRange",
        "cuCtxCreate_v3",   "cuCtxCreate_v4",      "cuGetExportTable"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i], form) == 0)
            return true;
    return false;
}

#define CHECK_FORM(member, name, suffix, parameters)                                                         \
    tap_ok(__builtin_types_compatible_p(__typeof__(&name##suffix), zr_cu_result(*) parameters) !=            \
               differs_on_purpose(#name #suffix),                                                            \
           "%s takes %s", #name #suffix, #parameters);

#endif

static void test_prototypes(void)
{
#define CHECK_PROTOTYPE(member, name, suffix, parameters)                                                    \
    tap_ok(__builtin_types_compatible_p(__typeof__(&name), zr_cu_result(*) parameters), "%s takes %s",       \
           #name, #parameters);
    ZR_CUDA_FUNCTIONS(CHECK_PROTOTYPE)
#if CUDA_VERSION >= 12050
/* Of a library's options nobody here looks into the types. */
#define CHECK_LAUNCHING(member, name, suffix, parameters)                                                    \
    tap_ok(__builtin_types_compatible_p(__typeof__(&name), zr_cu_result(*) parameters) !=                    \
               (strcmp(#name, "cuLibraryLoadData") == 0),                                                    \
           "%s takes %s", #name, #parameters);
    ZR_CUDA_LAUNCHING(CHECK_LAUNCHING)
    ZR_CUDA_WORDS(CHECK_LAUNCHING)
    ZR_CUDA_STREAMS(CHECK_LAUNCHING)
#endif
#ifdef CUBLAS_VERSION
#define CHECK_CUBLASLT(member, name, type, parameters)                                                       \
    tap_ok(__builtin_types_compatible_p(__typeof__(&name), type(*) parameters), "%s takes %s", #name,        \
           #parameters);
    ZR_LT_FUNCTIONS(CHECK_CUBLASLT)
#endif
#if CUDA_VERSION >= 12050 && CUDA_VERSION < 13000
    ZR_CUDA_REPLACED(CHECK_FORM)
    ZR_CUDA_USED(CHECK_FORM)
#endif
}

#endif
