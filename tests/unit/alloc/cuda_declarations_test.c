/* cuda_declarations_test.c: zr's own declarations of the CUDA driver (alloc/backend/cuda_driver.h) beside
 * those of cuda.h: names, versions and types of the functions, sizes and places of the structs, numbers of
 * the enums. Where there is no cuda.h this is skipped; where there is, a difference is a failure. */
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

#include "alloc/backend/cuda_driver.h"

#define TEXT_OF(macro)  #macro
#define EXPANDED(macro) TEXT_OF(macro)

/* The name that a program compiled with this cuda.h asks the driver for. */
static void test_names(void)
{
#define CHECK_NAME(member, name, suffix, parameters)                                                         \
    tap_ok(strcmp(EXPANDED(name), #name #suffix) == 0, "%s is the version that cuda.h means (%s)",           \
           #name #suffix, EXPANDED(name));
    ZR_CUDA_FUNCTIONS(CHECK_NAME)
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

static void test_prototypes(void);

int main(void)
{
    tap_note("compared with %s, CUDA %d.%d", ZR_TEST_CUDA_HEADER, CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10);
    test_names();
    test_codes();
    test_enums();
    test_structs();
    test_prototypes();
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

static void test_prototypes(void)
{
#define CHECK_PROTOTYPE(member, name, suffix, parameters)                                                    \
    tap_ok(__builtin_types_compatible_p(__typeof__(&name), zr_cu_result(*) parameters), "%s takes %s",       \
           #name, #parameters);
    ZR_CUDA_FUNCTIONS(CHECK_PROTOTYPE)
}

#endif
