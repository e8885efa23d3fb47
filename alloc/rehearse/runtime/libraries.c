/* libraries.c: functions of CUDA's libraries whose answer a program reads. See runtime.h. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

/* ---- Workspaces ---------------------------------------------------------------------------------------- */

/* NVIDIA publishes no rule for the sizes of these libraries' workspaces: they depend on shape, version and
 * the algorithm that a heuristic chooses. */
static const char *const libraries[] = {"cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE"};
enum { LIBRARIES_COUNT = sizeof libraries / sizeof *libraries };
static atomic_ullong asked[LIBRARIES_COUNT];

size_t emulated_no_workspace(const char *function)
{
    for (size_t i = 0; i < LIBRARIES_COUNT; i++)
        if (strncasecmp(function, libraries[i], strlen(libraries[i])) == 0)
            atomic_fetch_add_explicit(&asked[i], 1, memory_order_relaxed);
    return 0;
}

void emulated_put_workspaces(FILE *file)
{
    for (size_t i = 0; i < LIBRARIES_COUNT; i++)
        if (asked[i])
            fprintf(file, "workspaces:%s %llu\n", libraries[i], asked[i]);
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

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

/* cuDNN's backend: a plan is one engine without workspace. cudnnBackendAttributeName_t,
 * cudnnBackendAttributeType_t. */
enum { CUDNN_HEURISTIC_RESULTS = 202, CUDNN_PLAN_WORKSPACE_BYTES = 402, CUDNN_INT64 = 3, CUDNN_INT32 = 23 };

ANSWER int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count,
                                    void *out);
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *out)
{
    (void)descriptor;
    bool number = type == CUDNN_INT64 || type == CUDNN_INT32;
    if (count)
        *count = (number || name == CUDNN_HEURISTIC_RESULTS) && (most > 0 || !out);
    if (name == CUDNN_PLAN_WORKSPACE_BYTES)
        emulated_no_workspace(__func__);
    if (out && number && most > 0)
        memset(out, 0, type == CUDNN_INT64 ? sizeof(int64_t) : sizeof(int32_t));
    return 0;
}

enum { CUDNN_MAJOR = 9, CUDNN_MINOR = 26 };

ANSWER size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100;
}

/* libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL. */
ANSWER int cudnnGetProperty(unsigned which, int *out);
int cudnnGetProperty(unsigned which, int *out)
{
    *out = which == 0 ? CUDNN_MAJOR : which == 1 ? CUDNN_MINOR : 0;
    return 0;
}

ANSWER int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
    *major = EMULATED_RUNTIME / 1000;
    *minor = EMULATED_RUNTIME % 1000 / 10;
    return 0;
}

/* What NVRTC compiles is an empty string, and zeros as long as an ELF file's header: CuPy takes a cubin of
 * one byte for none. Nothing reads either. */
enum { PTX_BYTES = 1, CUBIN_BYTES = 64 };
#define COMPILED(name, bytes)                                                                                \
    ANSWER int name##Size(void *program, size_t *out);                                                       \
    int name##Size(void *program, size_t *out)                                                               \
    {                                                                                                        \
        (void)program;                                                                                       \
        *out = bytes;                                                                                        \
        return 0;                                                                                            \
    }                                                                                                        \
    ANSWER int name(void *program, char *out);                                                               \
    int name(void *program, char *out)                                                                       \
    {                                                                                                        \
        (void)program;                                                                                       \
        memset(out, 0, bytes);                                                                               \
        return 0;                                                                                            \
    }
COMPILED(nvrtcGetPTX, PTX_BYTES)
COMPILED(nvrtcGetCUBIN, CUBIN_BYTES)

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
    ANSWER const char *name(uintptr_t code);                                                                 \
    const char *name(uintptr_t code)                                                                         \
    {                                                                                                        \
        return code == 0 ? "success" : "error";                                                              \
    }
TEXT(cublasGetStatusString)
TEXT(cudnnGetErrorString)
TEXT(cusparseGetErrorString)
TEXT(nvrtcGetErrorString)

/* ---- NVML: PyTorch asks for peers over NVLink and for other processes ------------------------------------
 */

enum { NVML_UNSUPPORTED = 3 };

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
DONE(nvmlShutdown)
DONE(nvmlDeviceGetGpuFabricInfoV) /* leaves the state at "not supported" */

VERSION_OF_ALL(nvmlSystemGetCudaDriverVersion_v2, EMULATED_RUNTIME)
