/* paths.c: checks which calls that yield device memory (memory_calls.h) this library misses with this driver.
 * See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/option.h"
#include "alloc/preload/cuda/memory_calls.h"

/* ---- The driver's functions ---------------------------------------------------------------------------- */

/* The driver's newest function of the name, for one kind of default stream; NULL: none. */
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

/* Whether the library replaces the call but does not know the driver's newest version of it. */
static bool is_missed(const struct zr_cuda_memory_call *path, int version)
{
    static const unsigned long long kinds[] = {ZR_CU_PROC_LEGACY_STREAM, ZR_CU_PROC_PER_THREAD_STREAM};
    bool missed = false;
    for (size_t i = 0; !path->why && i < 2; i++) {
        void *function = newest(path->name, version, kinds[i]);
        missed |= function && zr_cuda_replaced_index(function) == ZR_CUDA_REPLACED_COUNT;
    }
    return missed;
}

/* ---- The process's libraries --------------------------------------------------------------------------- */

/* Whether the dynamic linker binds CUDA functions of other libraries to this library. */
static bool is_first_in_order(void)
{
    Dl_info first, own;
    void *found = zr_real_dlsym()(RTLD_DEFAULT, "cuMemAlloc_v2");
    return found && dladdr(found, &first) && dladdr((void *)zr_cuda_find_driver, &own) &&
           first.dli_fbase == own.dli_fbase;
}

/* Reports a library that caches freed memory. */
static int report_cache(struct dl_phdr_info *library, size_t bytes, void *argument)
{
    (void)bytes;
    (void)argument;
    const struct zr_cuda_cache *cache = library->dlpi_name ? zr_cuda_cache_of(library->dlpi_name) : NULL;
    if (cache)
        zr_say("%s: %s caches freed memory, so zr cannot see its free memory: %s%s",
               strrchr(library->dlpi_name, '/') ? strrchr(library->dlpi_name, '/') + 1 : library->dlpi_name,
               cache->product, cache->off ? cache->off : cache->advice, cache->off ? " turns that off" : "");
    return 0;
}

/* ---- The check ----------------------------------------------------------------------------------------- */

void zr_cuda_paths_check(void)
{
    int version = 0;
    unsigned missed = 0, replaced = 0;
    bool verbose = zr_option_get(ZR_OPTION_VERBOSE);
    const char *strict = secure_getenv("ZR_STRICT");
    if (!verbose && !(strict && *strict == '1'))
        return;
    zr_cu_result (*driver_version)(int *) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        *(void **)&driver_version = zr_real_dlsym()(library, "cuDriverGetVersion");
    if (driver_version)
        driver_version(&version);
    for (size_t i = 0; i < ZR_CUDA_MEMORY_CALLS_COUNT; i++) {
        bool out = is_missed(&zr_cuda_memory_calls[i], version);
        missed += out;
        replaced += !zr_cuda_memory_calls[i].why && !out;
        if (verbose)
            zr_say("%s: %s%s", zr_cuda_memory_calls[i].name,
                   out ? "missed: this driver has a newer version than libzr_cuda.so knows"
                   : !zr_cuda_memory_calls[i].why ? "replaced"
                                                  : "passed on: ",
                   zr_cuda_memory_calls[i].why ? zr_cuda_memory_calls[i].why : "");
    }
    if (!is_first_in_order()) {
        missed++;
        zr_say("libzr_cuda.so is loaded after another library that defines CUDA functions: preload it first");
    }
    if (verbose)
        dl_iterate_phdr(report_cache, NULL);
    if (verbose)
        zr_say(
            "%u calls replaced, %u missed; cuGetExportTable and libraries loaded with RTLD_DEEPBIND are not checked",
            replaced, missed);
    if (missed > 0 && strict && *strict == '1') {
        zr_say(
            "--strict ends the process: zr misses %u calls that yield device memory; ZR_CONF=verbose:true lists them",
            missed);
        _exit(2);
    }
}

void zr_cuda_paths_start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        zr_cuda_find_driver();
}
