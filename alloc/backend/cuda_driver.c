/* cuda_driver.c: loads libcuda.so.1 at run time and turns its errors into messages. Uses error.c and fork.c.
 */
#define _GNU_SOURCE
#include "alloc/backend/cuda_driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"

enum { PATH_BYTES = 4096, OPERATION_BYTES = 256 };

static struct zr_lock load_lock;
static __thread bool loading __attribute__((tls_model("initial-exec"))); /* this thread holds load_lock */
static char path[PATH_BYTES] = "libcuda.so.1";                           /* lock: load_lock */
static struct zr_cuda_driver driver; /* lock: load_lock until `loaded`, constant afterwards */
static void *library;                /* lock: as `driver` */
static _Atomic bool loaded;

/* ---- Words --------------------------------------------------------------------------------------------- */

bool zr_cuda_context_dead(zr_cu_result code)
{
    switch (code) {
    case ZR_CU_ECC_UNCORRECTABLE:
    case ZR_CU_ILLEGAL_ADDRESS:
    case ZR_CU_LAUNCH_TIMEOUT:
    case ZR_CU_CONTEXT_IS_DESTROYED:
    case ZR_CU_ASSERT:
    case ZR_CU_HARDWARE_STACK_ERROR:
    case ZR_CU_ILLEGAL_INSTRUCTION:
    case ZR_CU_MISALIGNED_ADDRESS:
    case ZR_CU_INVALID_ADDRESS_SPACE:
    case ZR_CU_INVALID_PC:
    case ZR_CU_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

static zr_result meaning(zr_cu_result code, zr_result otherwise)
{
    switch (code) {
    case ZR_CU_INVALID_VALUE:
    case ZR_CU_OUT_OF_MEMORY:
    case ZR_CU_NOT_READY:
    case ZR_CU_UNKNOWN:
        return otherwise;
    case ZR_CU_INVALID_DEVICE:
    case ZR_CU_INVALID_CONTEXT:
    case ZR_CU_INVALID_HANDLE:
        return ZR_ERR_INVALID;
    case ZR_CU_OPERATING_SYSTEM:
        return ZR_ERR_HOST_MEMORY;
    default:
        return ZR_ERR_UNAVAILABLE;
    }
}

static const char *remedy(zr_cu_result code)
{
    if (zr_cuda_context_dead(code))
        return "an earlier kernel failed and destroyed the context: find the first error of the run with compute-sanitizer, and restart the process";
    switch (code) {
    case ZR_CU_OUT_OF_MEMORY:
        return "nvidia-smi shows which processes hold the memory; use a smaller batch, model or limit";
    case ZR_CU_NO_DEVICE:
        return "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case ZR_CU_STUB_LIBRARY:
        return "the toolkit's stub was loaded instead of the driver: remove the stubs folder from LD_LIBRARY_PATH";
    case ZR_CU_SYSTEM_DRIVER_MISMATCH:
        return "the kernel module and libcuda.so.1 differ: reload the module or restart the machine";
    case ZR_CU_INVALID_DEVICE:
        return "no such device: see nvidia-smi -L and CUDA_VISIBLE_DEVICES";
    case ZR_CU_INVALID_CONTEXT:
    case ZR_CU_INVALID_HANDLE:
        return "does the stream belong to this device's primary context, and does it still exist?";
    case ZR_CU_NOT_SUPPORTED:
    case ZR_CU_NOT_PERMITTED:
        return "this device, driver or container does not allow it";
    case ZR_CU_OPERATING_SYSTEM:
        return "the system refused a request of the driver: see `ulimit -a` and dmesg";
    case ZR_CU_STREAM_CAPTURE_UNSUPPORTED:
        return "a stream is being captured into a graph: allocate and trim before the capture begins";
    case ZR_CU_NOT_INITIALIZED:
    case ZR_CU_DEINITIALIZED:
        return "the driver is not initialized in this process: was it forked from a process that used CUDA, or is it exiting?";
    default:
        return "see dmesg for the driver's own messages (NVRM, Xid)";
    }
}

zr_result zr_cuda_error(zr_cu_result code, zr_result otherwise, const char *format, ...)
{
    char operation[OPERATION_BYTES];
    const char *name = NULL, *text = NULL;
    va_list list;
    va_start(list, format);
    vsnprintf(operation, sizeof operation, format, list);
    va_end(list);
    if (driver.error_name)
        driver.error_name(code, &name);
    if (driver.error_text)
        driver.error_text(code, &text);
    return zr_fail(meaning(code, otherwise), "the CUDA driver refused %s: %s (%u, %s); %s", operation,
                   name ? name : "error", code, text ? text : "no text", remedy(code));
}

/* ---- Loading ------------------------------------------------------------------------------------------- */

#define ENTRY(member, name, suffix, parameters) {#name #suffix, offsetof(struct zr_cuda_driver, member)},
static const struct {
    const char *name;
    size_t offset_bytes;
} entries[] = {ZR_CUDA_FUNCTIONS(ENTRY)};
#undef ENTRY

/* Fills the table. Returns the name of the first function that is missing; NULL: none. */
static const char *resolve(void)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *found = dlsym(library, entries[i].name);
        if (!found)
            return entries[i].name;
        *(void **)((char *)&driver + entries[i].offset_bytes) = found;
    }
    return NULL;
}

static zr_result too_old(const char *why)
{
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "the CUDA driver is too old (%s): its virtual memory calls came with CUDA 10.2; update the "
        "NVIDIA driver",
        why);
}

/* lock: load_lock */
static zr_result load(void)
{
    int version = 0;
    char text[64];
    zr_result result = ZR_OK;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "cannot load %s (%s): install the NVIDIA driver, or start the container with the GPU (`--gpus all`); the host backend needs neither",
            path, reason ? reason : "no reason given");
    }
    const char *missing = resolve();
    if (missing) {
        snprintf(text, sizeof text, "%s is missing", missing);
        result = too_old(text);
        goto unwind;
    }
    zr_cu_result code = driver.init(0);
    if (code != ZR_CU_SUCCESS) {
        result = zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "to start (cuInit)");
        goto unwind;
    }
    code = driver.driver_version(&version);
    if (code != ZR_CU_SUCCESS) {
        result = zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "to tell its version");
        goto unwind;
    }
    if (version < ZR_CUDA_OLDEST_VERSION) {
        snprintf(text, sizeof text, "it is for CUDA %d.%d", version / 1000, version % 1000 / 10);
        result = too_old(text);
    }
unwind:
    if (result != ZR_OK) {
        driver = (struct zr_cuda_driver){0};
        dlclose(library);
        library = NULL;
    }
    return result;
}

/* NVIDIA's driver forks while it starts, for nvidia-modprobe. The thread that loads the driver must not wait
 * for its own lock. */
static void before_fork(struct zr_fork_locks *locks)
{
    if (!loading)
        zr_fork_take(locks, &load_lock);
}

static void after_fork(struct zr_fork_locks *locks)
{
    if (!loading)
        zr_fork_give(locks, &load_lock);
}

static void lock_driver(void)
{
    static const struct zr_fork_room room = {.before = before_fork, .after = after_fork};
    zr_fork_register(ZR_FORK_DRIVER, &room);
    zr_lock_acquire(&load_lock);
    loading = true;
}

static void unlock_driver(void)
{
    loading = false;
    zr_lock_release(&load_lock);
}

zr_result zr_cuda_driver_get(const struct zr_cuda_driver **out)
{
    zr_result result = ZR_OK;
    *out = NULL;
    if (!atomic_load_explicit(&loaded, memory_order_acquire)) {
        lock_driver();
        if (!atomic_load_explicit(&loaded, memory_order_relaxed)) {
            result = load();
            if (result == ZR_OK)
                atomic_store_explicit(&loaded, true, memory_order_release);
        }
        unlock_driver();
    }
    if (result == ZR_OK)
        *out = &driver;
    return result;
}

zr_result zr_cuda_driver_path_set(const char *file)
{
    zr_result result = ZR_OK;
    lock_driver();
    if (atomic_load(&loaded))
        result = zr_fail(ZR_ERR_INVALID, "a CUDA driver is already loaded: %s", path);
    else
        snprintf(path, sizeof path, "%s", file);
    unlock_driver();
    return result;
}

zr_result zr_cuda_driver_find(const char *name, void **out)
{
    *out = atomic_load_explicit(&loaded, memory_order_acquire) ? dlsym(library, name) : NULL;
    return *out ? ZR_OK
                : zr_fail(ZR_ERR_UNAVAILABLE, "the CUDA driver lacks %s: update the NVIDIA driver", name);
}
