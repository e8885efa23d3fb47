/* reused.c: memory that PyTorch's caching allocator hands out again reads as zeros, as what a kernel has
 * computed does: a count of elements would be what a copy has left there, and a size of billions. The
 * allocator tells the profiler of each block by a function of libc10.so, which this one precedes. See
 * runtime.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>

#include "alloc/rehearse/driver/emulator.h"
#include "alloc/rehearse/runtime/runtime.h"

/* c10::Device, and CUDA in c10::DeviceType. */
struct device {
    signed char type, index;
};
enum { DEVICE_CUDA = 1 };

/* c10::reportMemoryUsageToProfiler(); negative bytes are a free. */
#define REPORT        _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)
typedef void report(void *address, int64_t bytes, size_t allocated_bytes, size_t reserved_bytes,
                    struct device device);

static report *reports_own(void)
{
    static _Atomic(report *) own;
    report *found = own;
    void *library = found ? NULL : dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    if (library) {
        *(void **)&found = dlsym(library, TEXT(REPORT));
        own = found;
        dlclose(library);
    }
    return found;
}

__attribute__((visibility("default"))) report REPORT;
void REPORT(void *address, int64_t bytes, size_t allocated_bytes, size_t reserved_bytes, struct device device)
{
    report *own = reports_own();
    if (bytes > 0 && device.type == DEVICE_CUDA)
        zr_emulator.forget((zr_cu_address)(uintptr_t)address, (size_t)bytes);
    if (bytes > 0 && device.type == DEVICE_CUDA)
        zr_emulator.torch(device.index, allocated_bytes, reserved_bytes);
    if (own)
        own(address, bytes, allocated_bytes, reserved_bytes, device);
}
