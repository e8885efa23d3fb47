/* paths.c: the ways in which a program can come by device memory, and which of them this driver and this
 * library leave open. See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/option.h"

struct path {
    const char *name; /* without a version */
    const char *why;  /* it is passed on; NULL: it is taken */
};

static const struct path paths[] = {
    {"cuMemAlloc", NULL},
    {"cuMemAllocPitch", NULL},
    {"cuMemFree", NULL},
    {"cuMemAllocAsync", NULL},
    {"cuMemAllocFromPoolAsync", NULL},
    {"cuMemFreeAsync", NULL},
    {"cuMemGetInfo", NULL},
    {"cuDeviceTotalMem", NULL},
    {"cuMemGetAddressRange", NULL},
    {"cuPointerGetAttribute", NULL},
    {"cuPointerGetAttributes", NULL},
    {"cuPointerSetAttribute", NULL},
    {"cuIpcGetMemHandle", NULL},
    {"cuIpcOpenMemHandle", NULL},
    {"cuIpcCloseMemHandle", NULL},
    {"cuMemRetainAllocationHandle", NULL},
    {"cuMemGetHandleForAddressRange", NULL},
    {"cuMemPoolCreate", NULL},
    {"cuMemPoolDestroy", NULL},
    {"cuMemPoolTrimTo", NULL},
    {"cuMemPoolGetAttribute", NULL},
    {"cuMemPoolSetAttribute", NULL},
    {"cuMemPoolSetAccess", NULL},
    {"cuMemPoolExportPointer", NULL},
    {"cuStreamCreate", NULL},
    {"cuStreamCreateWithPriority", NULL},
    {"cuStreamDestroy", NULL},
    {"cuCtxCreate", NULL},
    {"cuCtxDestroy", NULL},
    {"cuDevicePrimaryCtxReset", NULL},
    {"cuGetProcAddress", NULL},
    {"cuMemAllocManaged",
     "managed memory moves between host and device by page faults, which are the driver's"},
    {"cuMemAllocHost", "host memory"},
    {"cuMemHostAlloc", "host memory"},
    {"cuMemFreeHost", "host memory"},
    {"cuMemHostRegister", "host memory"},
    {"cuMemHostUnregister", "host memory"},
    {"cuMemHostGetDevicePointer", "host memory"},
    {"cuMemHostGetFlags", "host memory"},
    {"cuMemAddressReserve", "the program maps by itself"},
    {"cuMemAddressFree", "the program maps by itself"},
    {"cuMemCreate", "the program maps by itself"},
    {"cuMemRelease", "the program maps by itself"},
    {"cuMemMap", "the program maps by itself"},
    {"cuMemMapArrayAsync", "the program maps by itself"},
    {"cuMemUnmap", "the program maps by itself"},
    {"cuMemSetAccess", "the program maps by itself"},
    {"cuMemGetAccess", "asks, and our memory is a mapping like others"},
    {"cuMemGetAllocationGranularity", "asks of the device"},
    {"cuMemGetAllocationPropertiesFromHandle", "the program maps by itself"},
    {"cuMemExportToShareableHandle", "of handles that the program has; those of blocks come by "
                                     "cuMemRetainAllocationHandle"},
    {"cuMemImportFromShareableHandle", "another process's memory"},
    {"cuMemPoolGetAccess", "the pool is a pool of the driver's, too"},
    {"cuMemPoolExportToShareableHandle", "only of pools that the driver serves"},
    {"cuMemPoolImportFromShareableHandle", "another process's memory"},
    {"cuMemPoolImportPointer", "another process's memory"},
    {"cuDeviceGetDefaultMemPool", "the pool is a pool of the driver's, too"},
    {"cuDeviceGetMemPool", "the pool is a pool of the driver's, too"},
    {"cuDeviceSetMemPool", "the pool is a pool of the driver's, too"},
    {"cuMemGetDefaultMemPool", "the pool is a pool of the driver's, too"},
    {"cuMemGetMemPool", "the pool is a pool of the driver's, too"},
    {"cuMemSetMemPool", "the pool is a pool of the driver's, too"},
    {"cuArrayCreate", "arrays have layouts that only the driver knows"},
    {"cuArray3DCreate", "arrays have layouts that only the driver knows"},
    {"cuMipmappedArrayCreate", "arrays have layouts that only the driver knows"},
    {"cuGraphAddMemAllocNode", "memory of a graph is the graph's"},
    {"cuGraphAddMemFreeNode", "memory of a graph is the graph's"},
    {"cuMemAdvise", "managed memory"},
    {"cuMemPrefetchAsync", "managed memory"},
    {"cuMemPrefetchBatchAsync", "managed memory"},
    {"cuMemDiscardBatchAsync", "managed memory"},
    {"cuMemDiscardAndPrefetchBatchAsync", "managed memory"},
    {"cuMemRangeGetAttribute", "managed memory"},
    {"cuMemRangeGetAttributes", "managed memory"},
    {"cuMemBatchDecompressAsync", "works on memory, and allocates none"},
    {"cuIpcGetEventHandle", "events"},
    {"cuIpcOpenEventHandle", "events"},
};
enum { PATHS_COUNT = sizeof paths / sizeof *paths };

/* ---- What the driver has ------------------------------------------------------------------------------- */

/* Its newest function of the name, for one kind of default stream; NULL: it has none. */
static void *newest(const char *name, int version, unsigned long long flags)
{
    void *function = NULL;
    zr_cu_proc_status status;
    zr_cu_result code = ZR_CU_NOT_SUPPORTED;
    if (zr_cuda_real.proc_address_v2)
        code = zr_cuda_real.proc_address_v2(name, &function, version, flags, &status);
    else if (zr_cuda_real.proc_address)
        code = zr_cuda_real.proc_address(name, &function, version, flags);
    return code == ZR_CU_SUCCESS ? function : NULL;
}

/* A path that is taken, and whose newest version this library does not know. */
static bool is_missed(const struct path *path, int version)
{
    static const unsigned long long kinds[] = {ZR_CU_PROC_LEGACY_STREAM, ZR_CU_PROC_PER_THREAD_STREAM};
    bool missed = false;
    for (size_t i = 0; !path->why && i < 2; i++) {
        void *function = newest(path->name, version, kinds[i]);
        missed |= function && !zr_cuda_instead(function);
    }
    return missed;
}

/* ---- What the process's libraries call ----------------------------------------------------------------- */

/* Whether what libraries are linked with is bound to this one. */
static bool is_in_front(void)
{
    Dl_info first, own;
    void *found = zr_real_dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    return found && dladdr(found, &first) && dladdr((void *)zr_cuda_see, &own) &&
           first.dli_fbase == own.dli_fbase;
}

/* ---- The test ------------------------------------------------------------------------------------------ */

void zr_cuda_paths_check(void)
{
    int version = 0;
    unsigned missed = 0, taken = 0;
    bool verbose = zr_option_get(ZR_OPTION_VERBOSE);
    const char *strict = getenv("ZR_STRICT");
    if (!verbose && !(strict && *strict == '1'))
        return;
    zr_cu_result (*driver_version)(int *) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        *(void **)&driver_version = zr_real_dlsym(library, "cuDriverGetVersion");
    if (driver_version)
        driver_version(&version);
    for (size_t i = 0; i < PATHS_COUNT; i++) {
        bool out = is_missed(&paths[i], version);
        missed += out;
        taken += !paths[i].why && !out;
        if (verbose)
            zr_say("%s: %s%s", paths[i].name,
                   out             ? "missed: this driver has a newer version than libzr_cuda.so knows"
                   : !paths[i].why ? "taken"
                                   : "passed on: ",
                   paths[i].why ? paths[i].why : "");
    }
    if (!is_in_front()) {
        missed++;
        zr_say("libzr_cuda.so comes behind another library that has CUDA's names: preload it first");
    }
    if (verbose)
        zr_say(
            "%u paths taken, %u missed; cuGetExportTable and libraries loaded with RTLD_DEEPBIND are not seen",
            taken, missed);
    if (missed > 0 && strict && *strict == '1') {
        zr_say(
            "ends, since --strict was asked for and %u ways to device memory are missed: ZR_CONF=verbose:true "
            "lists them",
            missed);
        _exit(2);
    }
}

void zr_cuda_paths_start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        zr_cuda_see();
}
