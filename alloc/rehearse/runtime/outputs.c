/* outputs.c: functions of NVIDIA's libraries that do nothing and whose outputs a program reads: a handle, a
 * size of a workspace, a number. See runtime.h. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

/* A descriptor: an address that is not NULL, and an empty string. */
static char made[64];

/* A handle of a library is an address of its own: PyTorch keeps a workspace for each pair of handle and
 * stream. */
static void *new_handle(void)
{
    static char handles[1 << 16];
    static atomic_size_t made_count;
    return &handles[atomic_fetch_add_explicit(&made_count, 1, memory_order_relaxed) % sizeof handles];
}

typedef void *MADE, *HANDLE;
typedef int INT, NOWHERE, SPACE_INT;
typedef size_t SIZE, SPACE;
#define VALUE_OF_MADE    made
#define VALUE_OF_HANDLE  new_handle()
#define VALUE_OF_INT     0
#define VALUE_OF_NOWHERE (-1)
#define VALUE_OF_SIZE    0
/* Of a workspace. */
#define VALUE_OF_SPACE     emulated_no_workspace(__func__)
#define VALUE_OF_SPACE_INT (int)emulated_no_workspace(__func__)

/* f(name, what is written, to which parameters: up to three, counted from 0 among those that are no floating
 * point) */
// clang-format off
#define OUTPUTS(f) \
    f(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, SPACE, 8, 8, 8) \
    f(cudnnGetCTCLossWorkspaceSize, SPACE, 8, 8, 8) \
    f(cudnnGetBatchNormalizationBackwardExWorkspaceSize, SPACE, 10, 10, 10) \
    f(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, SPACE, 5, 5, 5) \
    f(cudnnGetCTCLossWorkspaceSize_v8, SPACE, 5, 5, 5) \
    f(cudnnDropoutGetStatesSize, SIZE, 1, 1, 1) \
    f(nvrtcGetProgramLogSize, SIZE, 1, 1, 1) \
    f(cudnnGetConvolutionForwardWorkspaceSize, SPACE, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardDataWorkspaceSize, SPACE, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardFilterWorkspaceSize, SPACE, 6, 6, 6) \
    f(cusparseXcoosort_bufferSizeExt, SPACE, 6, 6, 6) \
    f(cusparseXcsrsort_bufferSizeExt, SPACE, 6, 6, 6) \
    f(cudnnGetStream, SIZE, 1, 1, 1) \
    f(cusolverDnXgeqrf_bufferSize, SPACE, 10, 11, 10) \
    f(cusolverDnXpotrf_bufferSize, SPACE, 8, 9, 8) \
    f(cusolverDnXsyevd_bufferSize, SPACE, 11, 12, 11) \
    f(cusolverDnXsyevBatched_bufferSize, SPACE, 11, 12, 11) \
    f(cusolverDnXsytrs_bufferSize, SPACE, 11, 12, 11) \
    f(cusolverDnXgeev_bufferSize, SPACE, 17, 18, 17) \
    f(cusparseSpMM_bufferSize, SPACE, 10, 10, 10) \
    f(cusparseSDDMM_bufferSize, SPACE, 10, 10, 10) \
    f(cusparseSpSM_bufferSize, SPACE, 10, 10, 10) \
    f(cusparseSpMV_bufferSize, SPACE, 9, 9, 9) \
    f(cusparseSpSV_bufferSize, SPACE, 9, 9, 9) \
    f(cusparseScsrgeam2_bufferSizeExt, SPACE, 19, 19, 19) \
    f(cusparseDcsrgeam2_bufferSizeExt, SPACE, 19, 19, 19) \
    f(cusparseCcsrgeam2_bufferSizeExt, SPACE, 19, 19, 19) \
    f(cusparseZcsrgeam2_bufferSizeExt, SPACE, 19, 19, 19) \
    f(cufftXtMakePlanMany, SPACE, 12, 12, 12) \
    f(cusparseSpMatGetSize, SIZE, 1, 2, 3) \
    f(cuCtxGetLimit, SIZE, 0, 0, 0) \
    f(cublasGetPointerMode_v2, INT, 1, 1, 1) \
    f(nvmlDeviceGetComputeRunningProcesses, INT, 1, 1, 1) \
    f(cufftCreate, INT, 0, 0, 0) \
    f(cudaLibraryGetKernelCount, INT, 0, 0, 0) \
    f(cuptiGetVersion, INT, 0, 0, 0) \
    f(cusolverDnSgeqrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnDgeqrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnCgeqrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnZgeqrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnSgesvd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusolverDnDgesvd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusolverDnCgesvd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusolverDnZgesvd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusolverDnSgesvdaStridedBatched_bufferSize, SPACE_INT, 16, 16, 16) \
    f(cusolverDnDgesvdaStridedBatched_bufferSize, SPACE_INT, 16, 16, 16) \
    f(cusolverDnCgesvdaStridedBatched_bufferSize, SPACE_INT, 16, 16, 16) \
    f(cusolverDnZgesvdaStridedBatched_bufferSize, SPACE_INT, 16, 16, 16) \
    f(cusolverDnSgesvdjBatched_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnDgesvdjBatched_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnCgesvdjBatched_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnZgesvdjBatched_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnSgesvdj_bufferSize, SPACE_INT, 12, 12, 12) \
    f(cusolverDnDgesvdj_bufferSize, SPACE_INT, 12, 12, 12) \
    f(cusolverDnCgesvdj_bufferSize, SPACE_INT, 12, 12, 12) \
    f(cusolverDnZgesvdj_bufferSize, SPACE_INT, 12, 12, 12) \
    f(cusolverDnSgetrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnDgetrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnCgetrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnZgetrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnSpotrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnDpotrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnCpotrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnZpotrf_bufferSize, SPACE_INT, 5, 5, 5) \
    f(cusolverDnSsyevd_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnDsyevd_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnCheevd_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnZheevd_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnSsyevj_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnDsyevj_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnCheevj_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnZheevj_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnSsyevjBatched_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnDsyevjBatched_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnCheevjBatched_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnZheevjBatched_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnSsytrf_bufferSize, SPACE_INT, 4, 4, 4) \
    f(cusolverDnDsytrf_bufferSize, SPACE_INT, 4, 4, 4) \
    f(cusolverDnCsytrf_bufferSize, SPACE_INT, 4, 4, 4) \
    f(cusolverDnZsytrf_bufferSize, SPACE_INT, 4, 4, 4) \
    f(cusolverDnSorgqr_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnDorgqr_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnCungqr_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnZungqr_bufferSize, SPACE_INT, 7, 7, 7) \
    f(cusolverDnSormqr_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnDormqr_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnCunmqr_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusolverDnZunmqr_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusparseSbsrsm2_bufferSize, SPACE_INT, 13, 13, 13) \
    f(cusparseDbsrsm2_bufferSize, SPACE_INT, 13, 13, 13) \
    f(cusparseCbsrsm2_bufferSize, SPACE_INT, 13, 13, 13) \
    f(cusparseZbsrsm2_bufferSize, SPACE_INT, 13, 13, 13) \
    f(cusparseSbsrsv2_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusparseDbsrsv2_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusparseCbsrsv2_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cusparseZbsrsv2_bufferSize, SPACE_INT, 11, 11, 11) \
    f(cudnnGetConvolutionForwardAlgorithm_v7, INT, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardDataAlgorithm_v7, INT, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardFilterAlgorithm_v7, INT, 6, 6, 6) \
    f(cublasLtMatmulPreferenceCreate, MADE, 0, 0, 0) \
    f(cudnnCreate, HANDLE, 0, 0, 0) \
    f(cudnnCreateFilterDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreateConvolutionDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreateActivationDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreateDropoutDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreateCTCLossDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreateSpatialTransformerDescriptor, MADE, 0, 0, 0) \
    f(cudnnCreatePoolingDescriptor, MADE, 0, 0, 0) \
    f(cusparseCreate, HANDLE, 0, 0, 0) \
    f(cusparseCreateBsrsm2Info, MADE, 0, 0, 0) \
    f(cusparseCreateBsrsv2Info, MADE, 0, 0, 0) \
    f(cusparseCreateCoo, MADE, 0, 0, 0) \
    f(cusparseCreateCsr, MADE, 0, 0, 0) \
    f(cusparseCreateDnMat, MADE, 0, 0, 0) \
    f(cusparseCreateDnVec, MADE, 0, 0, 0) \
    f(cusparseCreateMatDescr, MADE, 0, 0, 0) \
    f(cusparseSpGEMM_createDescr, MADE, 0, 0, 0) \
    f(cusparseSpSM_createDescr, MADE, 0, 0, 0) \
    f(cusparseSpSV_createDescr, MADE, 0, 0, 0) \
    f(cusolverDnCreate, HANDLE, 0, 0, 0) \
    f(cusolverDnCreateGesvdjInfo, MADE, 0, 0, 0) \
    f(cusolverDnCreateParams, MADE, 0, 0, 0) \
    f(cusolverDnCreateSyevjInfo, MADE, 0, 0, 0) \
    f(nvrtcCreateProgram, MADE, 0, 0, 0) \
    f(cuModuleLoadDataEx, MADE, 0, 0, 0) \
    f(cudaLibraryLoadData, MADE, 0, 0, 0) \
    f(cudaLibraryGetKernel, MADE, 0, 0, 0) \
    f(cudnnBackendCreateDescriptor, MADE, 1, 1, 1) \
    f(nvmlDeviceGetHandleByPciBusId_v2, MADE, 1, 1, 1) \
    f(nvmlDeviceGetHandleByIndex_v2, MADE, 1, 1, 1) \
    f(cuLinkComplete, MADE, 1, 1, 1) \
    f(nvrtcGetLoweredName, MADE, 2, 2, 2) \
    f(cuLinkCreate_v2, MADE, 3, 3, 3) \
    f(cufftMakePlan1d, SPACE, 4, 4, 4) \
    f(cufftMakePlanMany, SPACE, 11, 11, 11) \
    f(cufftGetVersion, INT, 0, 0, 0) \
    f(curandCreateGenerator, HANDLE, 0, 0, 0) \
    f(curandGetVersion, INT, 0, 0, 0) \
    f(cusolverSpCreate, HANDLE, 0, 0, 0) \
    f(cusparseCreateBsric02Info, MADE, 0, 0, 0) \
    f(cusparseCreateBsrilu02Info, MADE, 0, 0, 0) \
    f(cusparseCreateCsric02Info, MADE, 0, 0, 0) \
    f(cusparseCreateCsrilu02Info, MADE, 0, 0, 0) \
    f(cusparseCreateSpVec, MADE, 0, 0, 0) \
    f(cusparseSgtsv2_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseSgtsv2_nopivot_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseSgtsv2StridedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseSgtsvInterleavedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseSgpsvInterleavedBatch_bufferSizeExt, SPACE, 10, 10, 10) \
    f(cusparseScsric02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseScsrilu02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseSbsric02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusparseSbsrilu02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusolverDnSgebrd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusparseDgtsv2_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseDgtsv2_nopivot_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseDgtsv2StridedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseDgtsvInterleavedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseDgpsvInterleavedBatch_bufferSizeExt, SPACE, 10, 10, 10) \
    f(cusparseDcsric02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseDcsrilu02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseDbsric02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusparseDbsrilu02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusolverDnDgebrd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusparseCgtsv2_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseCgtsv2_nopivot_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseCgtsv2StridedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseCgtsvInterleavedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseCgpsvInterleavedBatch_bufferSizeExt, SPACE, 10, 10, 10) \
    f(cusparseCcsric02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseCcsrilu02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseCbsric02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusparseCbsrilu02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusolverDnCgebrd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusparseZgtsv2_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseZgtsv2_nopivot_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseZgtsv2StridedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseZgtsvInterleavedBatch_bufferSizeExt, SPACE, 8, 8, 8) \
    f(cusparseZgpsvInterleavedBatch_bufferSizeExt, SPACE, 10, 10, 10) \
    f(cusparseZcsric02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseZcsrilu02_bufferSize, SPACE_INT, 8, 8, 8) \
    f(cusparseZbsric02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusparseZbsrilu02_bufferSize, SPACE_INT, 10, 10, 10) \
    f(cusolverDnZgebrd_bufferSize, SPACE_INT, 3, 3, 3) \
    f(cusparseCsr2cscEx2_bufferSize, SPACE, 14, 14, 14) \
    f(cusparseSpVV_bufferSize, SPACE, 6, 6, 6) \
    f(cusolverDnCCgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnCCgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnCKgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnCKgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnCYgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnCYgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnDDgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnDDgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnDHgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnDHgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnDSgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnDSgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnDXgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnDXgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnSHgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnSHgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnSSgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnSSgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnSXgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnSXgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnZCgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnZCgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnZKgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnZKgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnZYgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnZYgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cusolverDnZZgels_bufferSize, SPACE, 12, 12, 12) \
    f(cusolverDnZZgesv_bufferSize, SPACE, 11, 11, 11) \
    f(cudaStreamGetFlags, INT, 1, 1, 1) \
    f(cudaStreamGetId, SIZE, 1, 1, 1) \
    f(cudaStreamGetDevice, INT, 1, 1, 1) \
    f(cudaGetDeviceFlags, INT, 0, 0, 0) \
    f(cudaChooseDevice, INT, 0, 0, 0) \
    f(cudaHostGetFlags, INT, 0, 0, 0) \
    f(cudaDeviceGetLimit, SIZE, 0, 0, 0) \
    f(cudaCreateTextureObject, MADE, 0, 0, 0) \
    f(cudaCreateSurfaceObject, MADE, 0, 0, 0) \
    f(cudaGetKernel, MADE, 0, 0, 0) \
    f(cudaGetFuncBySymbol, MADE, 0, 0, 0)
/* Numbers of elements and of a pivot. The pointer may be the device's: what kernels make there is left. */
#define COUNTS(f) \
    f(cusparseSnnz, INT, 8, 8, 8) \
    f(cusparseSnnz_compress, INT, 6, 6, 6) \
    f(cusparseDnnz, INT, 8, 8, 8) \
    f(cusparseDnnz_compress, INT, 6, 6, 6) \
    f(cusparseCnnz, INT, 8, 8, 8) \
    f(cusparseCnnz_compress, INT, 6, 6, 6) \
    f(cusparseZnnz, INT, 8, 8, 8) \
    f(cusparseZnnz_compress, INT, 6, 6, 6) \
    f(cusparseXcsric02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXcsrilu02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXbsric02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXbsrilu02_zeroPivot, NOWHERE, 2, 2, 2)
// clang-format on

enum { DEVICE_MEMORY = 2 }; /* CUmemorytype */

static bool is_for_host(uintptr_t pointer)
{
    unsigned type;
    return cuPointerGetAttribute(&type, ZR_CU_POINTER_MEMORY_TYPE, pointer) != ZR_CU_SUCCESS ||
           type != DEVICE_MEMORY;
}

enum { PARAMETERS_MAX = 20 };
#define PARAMETERS                                                                                           \
    uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h,  \
        uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l, uintptr_t m, uintptr_t n, uintptr_t o,           \
        uintptr_t p, uintptr_t q, uintptr_t r, uintptr_t s, uintptr_t t

/* A caller gives as many as the function has; only the outputs are read here. */
#define DEFINE_IF(is_written, name, kind, first, second, third)                                              \
    ANSWER int name(PARAMETERS);                                                                             \
    int name(PARAMETERS)                                                                                     \
    {                                                                                                        \
        const uintptr_t all[PARAMETERS_MAX] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t};  \
        kind *const out[] = {(kind *)all[first], (kind *)all[second], (kind *)all[third]};                   \
        const kind value = VALUE_OF_##kind;                                                                  \
        for (unsigned each = 0; each < sizeof out / sizeof *out; each++)                                     \
            if (out[each] && is_written((uintptr_t)out[each]))                                               \
                *out[each] = value;                                                                          \
        return 0;                                                                                            \
    }
#define ALWAYS(pointer)   true
#define DEFINE(...)       DEFINE_IF(ALWAYS, __VA_ARGS__)
#define DEFINE_COUNT(...) DEFINE_IF(is_for_host, __VA_ARGS__)
OUTPUTS(DEFINE)
COUNTS(DEFINE_COUNT)
