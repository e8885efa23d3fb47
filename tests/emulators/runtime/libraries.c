/* libraries.c: functions of CUDA's libraries whose answer a program reads. See runtime.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulators/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

/* A handle or descriptor: an address that is not NULL and that nothing reads. */
static int create(void **out)
{
    static char handle[64];
    *out = handle;
    return 0;
}

#define HANDLE(name)                                                                                         \
    int ANSWER name(void **out);                                                                             \
    int ANSWER name(void **out)                                                                              \
    {                                                                                                        \
        return create(out);                                                                                  \
    }
HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cudnnCreate)
HANDLE(cudnnCreateTensorDescriptor)
HANDLE(cudnnCreateFilterDescriptor)
HANDLE(cudnnCreateConvolutionDescriptor)
HANDLE(cudnnCreateActivationDescriptor)
HANDLE(cudnnCreateDropoutDescriptor)
HANDLE(cudnnCreateRNNDescriptor)
HANDLE(cudnnCreateRNNDataDescriptor)
HANDLE(cudnnCreateCTCLossDescriptor)
HANDLE(cudnnCreateSpatialTransformerDescriptor)
HANDLE(cusparseCreate)
HANDLE(cusolverDnCreate)

/* struct cublasLtMatmulHeuristicResult_t: algorithm of 64 bytes, workspace, state, waves, reserved. */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

ANSWER int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d,
                                          void *preference, int most, struct heuristic *out, int *count);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d,
                                   void *preference, int most, struct heuristic *out, int *count)
{
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *count = most > 0;
    if (most > 0)
        *out = (struct heuristic){.waves = 1};
    return 0;
}

ANSWER size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return 91300;
}

ANSWER size_t cudnnGetCudartVersion(void);
size_t cudnnGetCudartVersion(void)
{
    return EMULATED_RUNTIME;
}

#define VERSION_OF_ALL(name, value)                                                                          \
    ANSWER int name(int *out);                                                                               \
    int name(int *out)                                                                                       \
    {                                                                                                        \
        *out = value;                                                                                        \
        return 0;                                                                                            \
    }
VERSION_OF_ALL(ncclGetVersion, 22800)

#define VERSION(name, value)                                                                                 \
    ANSWER int name(void *handle, int *out);                                                                 \
    int name(void *handle, int *out)                                                                         \
    {                                                                                                        \
        (void)handle;                                                                                        \
        *out = value;                                                                                        \
        return 0;                                                                                            \
    }
VERSION(cublasGetVersion_v2, 130000)
VERSION(cusparseGetVersion, 12000)

#define TEXT(name)                                                                                           \
    ANSWER const char *name(int code);                                                                       \
    const char *name(int code)                                                                               \
    {                                                                                                        \
        return code == 0 ? "success" : "error";                                                              \
    }
TEXT(cublasGetStatusString)
TEXT(cudnnGetErrorString)
TEXT(cusparseGetErrorString)
TEXT(ncclGetErrorString)
TEXT(nvrtcGetErrorString)

/* ---- NVML: PyTorch asks for peers over NVLink and for other processes ------------------------------------
 */

enum { NVML_UNSUPPORTED = 3 };

ANSWER int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
    (void)bus;
    return create(out);
}

ANSWER int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *out);
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *out)
{
    (void)device, (void)out;
    *count = 0;
    return 0;
}

#define UNSUPPORTED(name)                                                                                    \
    ANSWER int name(void);                                                                                   \
    int name(void)                                                                                           \
    {                                                                                                        \
        return NVML_UNSUPPORTED;                                                                             \
    }
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)

#define DONE(name)                                                                                           \
    ANSWER int name(void);                                                                                   \
    int name(void)                                                                                           \
    {                                                                                                        \
        return 0;                                                                                            \
    }
DONE(nvmlInit_v2)
DONE(nvmlDeviceGetGpuFabricInfoV) /* leaves the state at "not supported" */

VERSION_OF_ALL(nvmlSystemGetCudaDriverVersion_v2, EMULATED_RUNTIME)

/* ---- The driver's newer functions -----------------------------------------------------------------------
 */

static int nothing(void)
{
    return 0;
}

void *emulated_driver_call(const char *name)
{
    (void)name;
    return (void *)nothing;
}
