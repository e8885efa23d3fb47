/* outputs.c: functions of NVIDIA's libraries that do nothing and whose outputs a program reads: a handle, a
 * size of a workspace, a number. A real library may want a workspace where these want none. See runtime.h. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

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
typedef int INT, NOWHERE;
typedef size_t SIZE;
#define VALUE_OF_MADE    made
#define VALUE_OF_HANDLE  new_handle()
#define VALUE_OF_INT     0
#define VALUE_OF_NOWHERE (-1)
#define VALUE_OF_SIZE    0

/* f(name, what is written, to which parameters: up to three, counted from 0 among those that are no floating
 * point) */
// clang-format off
#define OUTPUTS(f) \
    f(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, SIZE, 8, 8, 8) \
    f(cudnnGetCTCLossWorkspaceSize, SIZE, 8, 8, 8) \
    f(cudnnGetBatchNormalizationBackwardExWorkspaceSize, SIZE, 10, 10, 10) \
    f(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, SIZE, 5, 5, 5) \
    f(cudnnGetCTCLossWorkspaceSize_v8, SIZE, 5, 5, 5) \
    f(cudnnDropoutGetStatesSize, SIZE, 1, 1, 1) \
    f(nvrtcGetProgramLogSize, SIZE, 1, 1, 1) \
    f(cudnnGetConvolutionForwardWorkspaceSize, SIZE, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardDataWorkspaceSize, SIZE, 6, 6, 6) \
    f(cudnnGetConvolutionBackwardFilterWorkspaceSize, SIZE, 6, 6, 6) \
    f(cusparseXcoosort_bufferSizeExt, SIZE, 6, 6, 6) \
    f(cusparseXcsrsort_bufferSizeExt, SIZE, 6, 6, 6) \
    f(cudnnGetStream, SIZE, 1, 1, 1) \
    f(cusolverDnXgeqrf_bufferSize, SIZE, 10, 11, 10) \
    f(cusolverDnXpotrf_bufferSize, SIZE, 8, 9, 8) \
    f(cusolverDnXsyevd_bufferSize, SIZE, 11, 12, 11) \
    f(cusolverDnXsyevBatched_bufferSize, SIZE, 11, 12, 11) \
    f(cusolverDnXsytrs_bufferSize, SIZE, 11, 12, 11) \
    f(cusolverDnXgeev_bufferSize, SIZE, 17, 18, 17) \
    f(cusparseSpMM_bufferSize, SIZE, 10, 10, 10) \
    f(cusparseSDDMM_bufferSize, SIZE, 10, 10, 10) \
    f(cusparseSpSM_bufferSize, SIZE, 10, 10, 10) \
    f(cusparseSpMV_bufferSize, SIZE, 9, 9, 9) \
    f(cusparseSpSV_bufferSize, SIZE, 9, 9, 9) \
    f(cusparseScsrgeam2_bufferSizeExt, SIZE, 19, 19, 19) \
    f(cusparseDcsrgeam2_bufferSizeExt, SIZE, 19, 19, 19) \
    f(cusparseCcsrgeam2_bufferSizeExt, SIZE, 19, 19, 19) \
    f(cusparseZcsrgeam2_bufferSizeExt, SIZE, 19, 19, 19) \
    f(cufftXtMakePlanMany, SIZE, 12, 12, 12) \
    f(cusparseSpMatGetSize, SIZE, 1, 2, 3) \
    f(cuCtxGetLimit, SIZE, 0, 0, 0) \
    f(cublasGetPointerMode_v2, INT, 1, 1, 1) \
    f(nvmlDeviceGetComputeRunningProcesses, INT, 1, 1, 1) \
    f(cufftCreate, INT, 0, 0, 0) \
    f(cudaLibraryGetKernelCount, INT, 0, 0, 0) \
    f(cuptiGetVersion, INT, 0, 0, 0) \
    f(cusolverDnSgeqrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnDgeqrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnCgeqrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnZgeqrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnSgesvd_bufferSize, INT, 3, 3, 3) \
    f(cusolverDnDgesvd_bufferSize, INT, 3, 3, 3) \
    f(cusolverDnCgesvd_bufferSize, INT, 3, 3, 3) \
    f(cusolverDnZgesvd_bufferSize, INT, 3, 3, 3) \
    f(cusolverDnSgesvdaStridedBatched_bufferSize, INT, 16, 16, 16) \
    f(cusolverDnDgesvdaStridedBatched_bufferSize, INT, 16, 16, 16) \
    f(cusolverDnCgesvdaStridedBatched_bufferSize, INT, 16, 16, 16) \
    f(cusolverDnZgesvdaStridedBatched_bufferSize, INT, 16, 16, 16) \
    f(cusolverDnSgesvdjBatched_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnDgesvdjBatched_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnCgesvdjBatched_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnZgesvdjBatched_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnSgesvdj_bufferSize, INT, 12, 12, 12) \
    f(cusolverDnDgesvdj_bufferSize, INT, 12, 12, 12) \
    f(cusolverDnCgesvdj_bufferSize, INT, 12, 12, 12) \
    f(cusolverDnZgesvdj_bufferSize, INT, 12, 12, 12) \
    f(cusolverDnSgetrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnDgetrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnCgetrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnZgetrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnSpotrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnDpotrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnCpotrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnZpotrf_bufferSize, INT, 5, 5, 5) \
    f(cusolverDnSsyevd_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnDsyevd_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnCheevd_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnZheevd_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnSsyevj_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnDsyevj_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnCheevj_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnZheevj_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnSsyevjBatched_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnDsyevjBatched_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnCheevjBatched_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnZheevjBatched_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnSsytrf_bufferSize, INT, 4, 4, 4) \
    f(cusolverDnDsytrf_bufferSize, INT, 4, 4, 4) \
    f(cusolverDnCsytrf_bufferSize, INT, 4, 4, 4) \
    f(cusolverDnZsytrf_bufferSize, INT, 4, 4, 4) \
    f(cusolverDnSorgqr_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnDorgqr_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnCungqr_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnZungqr_bufferSize, INT, 7, 7, 7) \
    f(cusolverDnSormqr_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnDormqr_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnCunmqr_bufferSize, INT, 11, 11, 11) \
    f(cusolverDnZunmqr_bufferSize, INT, 11, 11, 11) \
    f(cusparseSbsrsm2_bufferSize, INT, 13, 13, 13) \
    f(cusparseDbsrsm2_bufferSize, INT, 13, 13, 13) \
    f(cusparseCbsrsm2_bufferSize, INT, 13, 13, 13) \
    f(cusparseZbsrsm2_bufferSize, INT, 13, 13, 13) \
    f(cusparseSbsrsv2_bufferSize, INT, 11, 11, 11) \
    f(cusparseDbsrsv2_bufferSize, INT, 11, 11, 11) \
    f(cusparseCbsrsv2_bufferSize, INT, 11, 11, 11) \
    f(cusparseZbsrsv2_bufferSize, INT, 11, 11, 11) \
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
    f(cufftMakePlan1d, SIZE, 4, 4, 4) \
    f(cufftMakePlanMany, SIZE, 11, 11, 11) \
    f(cufftGetVersion, INT, 0, 0, 0) \
    f(curandCreateGenerator, HANDLE, 0, 0, 0) \
    f(curandGetVersion, INT, 0, 0, 0) \
    f(cusolverSpCreate, HANDLE, 0, 0, 0) \
    f(cusparseCreateBsric02Info, MADE, 0, 0, 0) \
    f(cusparseCreateBsrilu02Info, MADE, 0, 0, 0) \
    f(cusparseCreateCsric02Info, MADE, 0, 0, 0) \
    f(cusparseCreateCsrilu02Info, MADE, 0, 0, 0) \
    f(cusparseCreateSpVec, MADE, 0, 0, 0) \
    f(cusparseSnnz, INT, 8, 8, 8) \
    f(cusparseSnnz_compress, INT, 6, 6, 6) \
    f(cusparseSgtsv2_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseSgtsv2_nopivot_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseSgtsv2StridedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseSgtsvInterleavedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseSgpsvInterleavedBatch_bufferSizeExt, SIZE, 10, 10, 10) \
    f(cusparseScsric02_bufferSize, INT, 8, 8, 8) \
    f(cusparseScsrilu02_bufferSize, INT, 8, 8, 8) \
    f(cusparseSbsric02_bufferSize, INT, 10, 10, 10) \
    f(cusparseSbsrilu02_bufferSize, INT, 10, 10, 10) \
    f(cusolverDnSgebrd_bufferSize, INT, 3, 3, 3) \
    f(cusparseDnnz, INT, 8, 8, 8) \
    f(cusparseDnnz_compress, INT, 6, 6, 6) \
    f(cusparseDgtsv2_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseDgtsv2_nopivot_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseDgtsv2StridedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseDgtsvInterleavedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseDgpsvInterleavedBatch_bufferSizeExt, SIZE, 10, 10, 10) \
    f(cusparseDcsric02_bufferSize, INT, 8, 8, 8) \
    f(cusparseDcsrilu02_bufferSize, INT, 8, 8, 8) \
    f(cusparseDbsric02_bufferSize, INT, 10, 10, 10) \
    f(cusparseDbsrilu02_bufferSize, INT, 10, 10, 10) \
    f(cusolverDnDgebrd_bufferSize, INT, 3, 3, 3) \
    f(cusparseCnnz, INT, 8, 8, 8) \
    f(cusparseCnnz_compress, INT, 6, 6, 6) \
    f(cusparseCgtsv2_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseCgtsv2_nopivot_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseCgtsv2StridedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseCgtsvInterleavedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseCgpsvInterleavedBatch_bufferSizeExt, SIZE, 10, 10, 10) \
    f(cusparseCcsric02_bufferSize, INT, 8, 8, 8) \
    f(cusparseCcsrilu02_bufferSize, INT, 8, 8, 8) \
    f(cusparseCbsric02_bufferSize, INT, 10, 10, 10) \
    f(cusparseCbsrilu02_bufferSize, INT, 10, 10, 10) \
    f(cusolverDnCgebrd_bufferSize, INT, 3, 3, 3) \
    f(cusparseZnnz, INT, 8, 8, 8) \
    f(cusparseZnnz_compress, INT, 6, 6, 6) \
    f(cusparseZgtsv2_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseZgtsv2_nopivot_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseZgtsv2StridedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseZgtsvInterleavedBatch_bufferSizeExt, SIZE, 8, 8, 8) \
    f(cusparseZgpsvInterleavedBatch_bufferSizeExt, SIZE, 10, 10, 10) \
    f(cusparseZcsric02_bufferSize, INT, 8, 8, 8) \
    f(cusparseZcsrilu02_bufferSize, INT, 8, 8, 8) \
    f(cusparseZbsric02_bufferSize, INT, 10, 10, 10) \
    f(cusparseZbsrilu02_bufferSize, INT, 10, 10, 10) \
    f(cusolverDnZgebrd_bufferSize, INT, 3, 3, 3) \
    f(cusparseXcsric02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXcsrilu02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXbsric02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseXbsrilu02_zeroPivot, NOWHERE, 2, 2, 2) \
    f(cusparseCsr2cscEx2_bufferSize, SIZE, 14, 14, 14) \
    f(cusparseSpVV_bufferSize, SIZE, 6, 6, 6) \
    f(cusolverDnCCgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnCCgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnCKgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnCKgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnCYgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnCYgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnDDgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnDDgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnDHgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnDHgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnDSgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnDSgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnDXgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnDXgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnSHgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnSHgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnSSgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnSSgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnSXgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnSXgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnZCgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnZCgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnZKgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnZKgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnZYgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnZYgesv_bufferSize, SIZE, 11, 11, 11) \
    f(cusolverDnZZgels_bufferSize, SIZE, 12, 12, 12) \
    f(cusolverDnZZgesv_bufferSize, SIZE, 11, 11, 11) \
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
// clang-format on

enum { PARAMETERS_MAX = 20 };
#define PARAMETERS                                                                                           \
    uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h,  \
        uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l, uintptr_t m, uintptr_t n, uintptr_t o,           \
        uintptr_t p, uintptr_t q, uintptr_t r, uintptr_t s, uintptr_t t

/* A caller gives as many as the function has; only the outputs are read here. */
#define DEFINE(name, kind, first, second, third)                                                             \
    ANSWER int name(PARAMETERS);                                                                             \
    int name(PARAMETERS)                                                                                     \
    {                                                                                                        \
        const uintptr_t all[PARAMETERS_MAX] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t};  \
        kind *const out[] = {(kind *)all[first], (kind *)all[second], (kind *)all[third]};                   \
        const kind value = VALUE_OF_##kind;                                                                  \
        for (unsigned each = 0; each < sizeof out / sizeof *out; each++)                                     \
            if (out[each])                                                                                   \
                *out[each] = value;                                                                          \
        return 0;                                                                                            \
    }
OUTPUTS(DEFINE)
