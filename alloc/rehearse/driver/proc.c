/* proc.c: cuGetProcAddress, with all forms of each function and the version of CUDA that each came with
 * (cudaTypedefs.h's numbers), and the private tables, of which there are none. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES_MAX = 64, IDENTIFIER_BYTES = 16, PER_THREAD_SINCE = 7000 };

static unsigned char tables[TABLES_MAX][IDENTIFIER_BYTES];
static size_t tables_count;

/* NULL functions are forms that this driver has no more, or not: a program that asks for an older form than
 * there is finds nothing. */
struct form {
    const char *name;
    int since;
    void *function, *per_thread;
};

#define ONE(name, since)             {#name, since, name, NULL},
#define FORM(name, since, suffix)    {#name, since, name##suffix, NULL},
#define GONE(name, since)            {#name, since, NULL, NULL},
#define TWO(name, since, suffix)     {#name, since, name##suffix, name##suffix##_ptsz},
#define TWO_NOW(name, since, suffix) {#name, since, name##suffix, name##suffix##_ptds},

// clang-format off
static const struct form forms[] = {
    ONE(cuInit, 2000) ONE(cuDriverGetVersion, 2020) ONE(cuGetErrorName, 6000) ONE(cuGetErrorString, 6000)
    ONE(cuDeviceGetCount, 2000) ONE(cuDeviceGet, 2000) ONE(cuDeviceGetAttribute, 2000)
    ONE(cuDeviceGetName, 2000) ONE(cuDeviceCanAccessPeer, 4000)
    GONE(cuDeviceTotalMem, 2000) FORM(cuDeviceTotalMem, 3020, _v2)
    ONE(cuDevicePrimaryCtxRetain, 7000)
    GONE(cuDevicePrimaryCtxRelease, 7000) FORM(cuDevicePrimaryCtxRelease, 11000, _v2)
    GONE(cuDevicePrimaryCtxReset, 7000) FORM(cuDevicePrimaryCtxReset, 11000, _v2)
    ONE(cuDevicePrimaryCtxGetState, 7000)
    GONE(cuCtxCreate, 2000) FORM(cuCtxCreate, 3020, _v2) FORM(cuCtxCreate, 11040, _v3)
    FORM(cuCtxCreate, 12050, _v4)
    GONE(cuCtxDestroy, 2000) FORM(cuCtxDestroy, 4000, _v2)
    GONE(cuCtxPushCurrent, 2000) FORM(cuCtxPushCurrent, 4000, _v2)
    GONE(cuCtxPopCurrent, 2000) FORM(cuCtxPopCurrent, 4000, _v2)
    ONE(cuCtxSetCurrent, 4000) ONE(cuCtxGetCurrent, 4000) ONE(cuCtxGetDevice, 2000) GONE(cuCtxGetDevice, 13000)
    ONE(cuCtxSetFlags, 12010) ONE(cuCtxGetFlags, 7000)
    ONE(cuCtxSynchronize, 2000) GONE(cuCtxSynchronize, 13000) ONE(cuCtxEnablePeerAccess, 4000)
    ONE(cuGetExportTable, 3000) ONE(cuGetProcAddress, 11030) FORM(cuGetProcAddress, 12000, _v2)
    GONE(cuMemGetInfo, 2000) FORM(cuMemGetInfo, 3020, _v2)
    GONE(cuMemAlloc, 2000) FORM(cuMemAlloc, 3020, _v2)
    GONE(cuMemAllocPitch, 2000) FORM(cuMemAllocPitch, 3020, _v2)
    GONE(cuMemFree, 2000) FORM(cuMemFree, 3020, _v2)
    GONE(cuMemGetAddressRange, 2000) FORM(cuMemGetAddressRange, 3020, _v2)
    GONE(cuMemAllocHost, 2000) FORM(cuMemAllocHost, 3020, _v2)
    ONE(cuMemHostAlloc, 2020) ONE(cuMemFreeHost, 2000) ONE(cuMemAllocManaged, 6000)
    GONE(cuMemHostRegister, 4000) FORM(cuMemHostRegister, 6050, _v2) ONE(cuMemHostUnregister, 4000)
    GONE(cuMemHostGetDevicePointer, 2020) FORM(cuMemHostGetDevicePointer, 3020, _v2)
    TWO(cuMemAllocAsync, 11020, ) TWO(cuMemFreeAsync, 11020, ) TWO(cuMemAllocFromPoolAsync, 11020, )
    ONE(cuMemPoolCreate, 11020) ONE(cuMemPoolDestroy, 11020) ONE(cuMemPoolTrimTo, 11020)
    ONE(cuMemPoolGetAttribute, 11020) ONE(cuMemPoolSetAttribute, 11020) ONE(cuMemPoolSetAccess, 11020)
    ONE(cuMemPoolGetAccess, 11020) ONE(cuMemPoolExportToShareableHandle, 11020)
    ONE(cuMemPoolExportPointer, 11020) ONE(cuDeviceGetDefaultMemPool, 11020)
    ONE(cuDeviceGetMemPool, 11020) ONE(cuDeviceSetMemPool, 11020)
    ONE(cuPointerGetAttribute, 4000) ONE(cuPointerGetAttributes, 7000) ONE(cuPointerSetAttribute, 6000)
    ONE(cuIpcGetMemHandle, 4010) GONE(cuIpcOpenMemHandle, 4010) FORM(cuIpcOpenMemHandle, 11000, _v2)
    ONE(cuIpcCloseMemHandle, 4010)
    ONE(cuMemGetAllocationGranularity, 10020) ONE(cuMemAddressReserve, 10020)
    ONE(cuMemAddressFree, 10020) ONE(cuMemCreate, 10020) ONE(cuMemRelease, 10020) ONE(cuMemMap, 10020)
    ONE(cuMemUnmap, 10020) ONE(cuMemSetAccess, 10020) ONE(cuMemGetAccess, 10020)
    ONE(cuMemExportToShareableHandle, 10020) ONE(cuMemImportFromShareableHandle, 10020)
    ONE(cuMemGetAllocationPropertiesFromHandle, 10020) ONE(cuMemRetainAllocationHandle, 11000)
    ONE(cuMemGetHandleForAddressRange, 11070)
    {"cuMemcpy", 4000, cuMemcpy, cuMemcpy_ptds}, GONE(cuMemcpyHtoD, 2000) TWO_NOW(cuMemcpyHtoD, 3020, _v2)
    GONE(cuMemcpyDtoH, 2000) TWO_NOW(cuMemcpyDtoH, 3020, _v2) GONE(cuMemsetD8, 2000)
    TWO_NOW(cuMemsetD8, 3020, _v2) TWO(cuMemcpyAsync, 4000, ) TWO(cuMemsetD8Async, 3020, )
    ONE(cuStreamCreate, 2000) ONE(cuStreamCreateWithPriority, 5050)
    GONE(cuStreamDestroy, 2000) FORM(cuStreamDestroy, 4000, _v2)
    TWO(cuStreamSynchronize, 2000, ) TWO(cuStreamQuery, 2000, ) TWO(cuStreamWaitEvent, 3020, )
    FORM(cuStreamWaitValue32, 12000, _v2) FORM(cuStreamWriteValue32, 12000, _v2)
    TWO(cuStreamGetCtx, 9020, ) GONE(cuStreamGetCtx, 12050)
    ONE(cuEventCreate, 2000) TWO(cuEventRecord, 2000, ) ONE(cuEventQuery, 2000)
    ONE(cuEventSynchronize, 2000) GONE(cuEventDestroy, 2000) FORM(cuEventDestroy, 4000, _v2)
    TWO(cuStreamIsCapturing, 10000, ) GONE(cuStreamBeginCapture, 10000)
    TWO(cuStreamBeginCapture, 10010, _v2) TWO(cuStreamEndCapture, 10000, )
    ONE(cuThreadExchangeStreamCaptureMode, 10010)
    ONE(cuGraphInstantiateWithFlags, 11040)
    ONE(cuModuleLoadData, 2000) ONE(cuModuleUnload, 2000) ONE(cuModuleGetFunction, 2000)
    ONE(cuLibraryLoadData, 12000) ONE(cuLibraryUnload, 12000) ONE(cuLibraryGetKernel, 12000)
    ONE(cuKernelGetFunction, 12000) ONE(cuFuncGetAttribute, 2020) ONE(cuFuncSetAttribute, 9000)
    TWO(cuLaunchKernel, 4000, ) TWO(cuLaunchKernelEx, 11060, )
    TWO(cuGraphLaunch, 10000, ) ONE(cuGraphExecDestroy, 10000) ONE(cuGraphDestroy, 10000)
};
// clang-format on

/* The newest form that came with the version or before. */
static zr_cu_proc_status find(const char *symbol, void **function, int version, unsigned long long flags)
{
    const struct form *found = NULL;
    bool known = false;
    *function = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(forms[i].name, symbol) != 0 || forms[i].since > emu_version())
            continue;
        known = true;
        if (forms[i].since <= version && (!found || found->since < forms[i].since))
            found = &forms[i];
    }
    if (!found || !found->function)
        return known ? ZR_CU_PROC_VERSION_TOO_OLD : ZR_CU_PROC_NOT_FOUND;
    bool per_thread = flags & ZR_CU_PROC_PER_THREAD_STREAM && version >= PER_THREAD_SINCE;
    *function = per_thread && found->per_thread ? found->per_thread : found->function;
    return ZR_CU_PROC_FOUND;
}

/* ZR_EMULATOR_ASKED names a file that gets a line for each question: the name, the version, the flags, and
 * what was answered. */
static void write_down(const char *name, int version, unsigned long long flags, const char *answer)
{
    const char *path = getenv("ZR_EMULATOR_ASKED");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %d %llu %s\n", name, version, flags, answer);
    fclose(file);
}

static void write_down_table(const unsigned char *identifier)
{
    char name[2 * IDENTIFIER_BYTES + 1];
    for (unsigned i = 0; i < IDENTIFIER_BYTES; i++)
        snprintf(name + 2 * i, 3, "%02x", identifier[i]);
    write_down(name, 0, 0, "table");
}

static const char *const answers[] = {"found", "unknown", "too-old"};

static bool senseless(const char *symbol, void **function, unsigned long long flags)
{
    return !symbol || !function || flags > ZR_CU_PROC_PER_THREAD_STREAM;
}

/* Of 11.3: what is not there is an error. */
PUBLIC zr_cu_result cuGetProcAddress(const char *symbol, void **function, int version,
                                     unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_proc_address, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS && (senseless(symbol, function, flags) || version > emu_version()))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        zr_cu_proc_status found = find(symbol, function, version, flags);
        write_down(symbol, version, flags, answers[found]);
        code = found == ZR_CU_PROC_FOUND ? ZR_CU_SUCCESS : ZR_CU_NOT_FOUND;
    }
    return emu_leave(code);
}

/* Of 12.0: what is not there is NULL, and the status says why. */
PUBLIC zr_cu_result cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                        unsigned long long flags, zr_cu_proc_status *status)
{
    zr_cu_result code = emu_enter(EMU_proc_address_v2, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS && (senseless(symbol, function, flags) || version > emu_version()))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        zr_cu_proc_status found = find(symbol, function, version, flags);
        write_down(symbol, version, flags, answers[found]);
        if (status)
            *status = found;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuGetExportTable(const void **table, const void *identifier)
{
    zr_cu_result code = emu_enter(EMU_export_table, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS && (!table || !identifier))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        if (tables_count < TABLES_MAX)
            memcpy(tables[tables_count], identifier, IDENTIFIER_BYTES);
        tables_count++;
        write_down_table(identifier);
        if (emu.card) /* the stand-in of the CUDA runtime asks for none */
            emu_account_static_runtime();
        *table = NULL;
        code = ZR_CU_INVALID_VALUE;
    }
    return emu_leave(code);
}

size_t emu_tables_asked(unsigned char (*out)[16], size_t most)
{
    for (size_t i = 0; i < most && i < tables_count && i < TABLES_MAX; i++)
        memcpy(out[i], tables[i], IDENTIFIER_BYTES);
    return tables_count;
}
