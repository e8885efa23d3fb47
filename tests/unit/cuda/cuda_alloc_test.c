/* cuda_alloc_test.c: the rules of the CUDA driver's own allocator that programs lean on: cuMemAlloc, managed
 * and host memory, and what a pointer says. Sources and verdicts: tests/support/cuda/cuda_rules.h.
 * cuda_pools_test.c has pools, cuda_contexts_test.c contexts and the way to a function by its name. */
#define _GNU_SOURCE
#include "tests/support/cuda/cuda_rules.h"

enum { LONG = 1000000 };

/* ---- cuMemAlloc ---------------------------------------------------------------------------------------- */

static zr_cu_result nothing(const struct world *w)
{
    zr_cu_address address;
    size_t pitch;
    return ALL_REFUSED(w->all.mem_alloc(&address, 0), w->all.mem_alloc_pitch(&address, &pitch, 0, 4, 4),
                       w->all.alloc_async(&address, 0, NULL), w->all.alloc_managed(&address, 0, 1));
}

static zr_cu_result too_much(const struct world *w)
{
    zr_cu_address address;
    size_t total;
    MUST(w->all.total_mem(&total, 0));
    return ALL_REFUSED(w->all.mem_alloc(&address, total + 1), w->all.mem_alloc(&address, SIZE_MAX),
                       w->all.alloc_async(&address, total + 1, NULL),
                       w->all.alloc_async(&address, SIZE_MAX, NULL));
}

/* Where nothing was allocated, inside, and twice. */
static zr_cu_result foreign_free(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    zr_cu_result inside = w->all.mem_free(address + 256), host = w->all.mem_free((uintptr_t)&address);
    zr_cu_result virtual = w->all.mem_free(w->base);
    MUST(w->all.mem_free(address));
    return ALL_REFUSED(inside, host, virtual, w->all.mem_free(address), w->all.free_async(address, NULL));
}

static zr_cu_result boundaries(const struct world *w)
{
    for (size_t bytes = 1; bytes < 3 * w->g; bytes = 3 * bytes + 1)
        if (plain(w, bytes) % 256 != 0)
            return VERDICT_BROKEN;
    return ZR_CU_SUCCESS;
}

static zr_cu_result counted(const struct world *w)
{
    size_t before = free_bytes(w), during;
    zr_cu_address address = plain(w, 8 * w->g);
    during = free_bytes(w);
    MUST(w->all.mem_free(address));
    return good(before - during >= 8 * w->g && free_bytes(w) == before);
}

static zr_cu_result past_the_end(const struct world *w)
{
    zr_cu_address address = plain(w, 1000);
    plain(w, 1000);
    MUST(w->cu->fill(address, 1, 1000, NULL));
    return w->cu->fill(address, 1, 1001, NULL);
}

static zr_cu_result after_free(const struct world *w)
{
    zr_cu_address address = plain(w, 1000);
    char byte;
    plain(w, 1000);
    MUST(w->all.mem_free(address));
    return ALL_REFUSED(w->cu->fill(address, 1, 1, NULL), w->all.copy_to_host(&byte, address, 1),
                       w->all.copy_to_device(address, &byte, 1));
}

static zr_cu_result range(const struct world *w)
{
    zr_cu_address address = plain(w, 5000), base;
    size_t bytes;
    MUST(w->all.address_range(&base, &bytes, address + 4999));
    MUST(w->all.address_range(NULL, NULL, address));
    return good(base == address && bytes == 5000);
}

static zr_cu_result range_of_virtual(const struct world *w)
{
    zr_cu_address base;
    size_t bytes;
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(map_at(w, 1, 2, memory_of(w, 2)));
    MUST(w->all.address_range(&base, &bytes, w->base + 2 * w->g));
    return good(base == w->base + w->g && bytes == 2 * w->g);
}

static zr_cu_result range_of_nothing(const struct world *w)
{
    zr_cu_address base;
    size_t bytes;
    return w->all.address_range(&base, &bytes, (uintptr_t)&base);
}

static zr_cu_result pitch(const struct world *w)
{
    zr_cu_address address;
    size_t row;
    MUST(w->all.mem_alloc_pitch(&address, &row, 700, 3, 4));
    MUST(w->cu->fill(address, 1, 3 * row, NULL));
    return good(row >= 700 && row % 256 == 0);
}

static zr_cu_result pitch_of_odd_elements(const struct world *w)
{
    zr_cu_address address;
    size_t row;
    return w->all.mem_alloc_pitch(&address, &row, 700, 3, 3);
}

/* A kernel that still runs when its memory is freed. */
static zr_cu_result freed_while_working(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(NULL, address, w->g, 9));
    MUST(w->all.mem_free(address));
    return w->cu->context_synchronize();
}

static zr_cu_result freed_while_working_lazily(const struct world *w)
{
    w->emulator->lazy_free(true);
    return freed_while_working(w);
}

/* ---- Managed and host memory --------------------------------------------------------------------------- */

static zr_cu_result managed(const struct world *w)
{
    zr_cu_address address;
    char got;
    MUST(w->all.alloc_managed(&address, 4096, 1));
    *(char *)(uintptr_t)address = 41;
    MUST(w->all.copy_to_host(&got, address, 1));
    MUST(w->cu->fill(address + 1, 42, 1, NULL));
    MUST(w->cu->context_synchronize());
    return got == 41 && ((char *)(uintptr_t)address)[1] == 42 ? w->all.mem_free(address) : VERDICT_BROKEN;
}

static zr_cu_result managed_for_nobody(const struct world *w)
{
    zr_cu_address address;
    return w->all.alloc_managed(&address, 4096, 0);
}

/* A copy to page-locked memory is no more behind than any other work. */
static zr_cu_result page_locked(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    volatile char *host;
    MUST(w->all.host_alloc((void **)&host, 4096, 0));
    host[0] = 1;
    w->emulator->work_ticks(LONG);
    MUST(w->cu->fill(address, 7, 4096, NULL));
    MUST(w->cu->copy((uintptr_t)host, address, 4096, NULL));
    if (host[0] != 1)
        return VERDICT_BROKEN;
    MUST(w->cu->stream_synchronize(NULL));
    return host[0] == 7 ? w->all.host_free((void *)host) : VERDICT_BROKEN;
}

static zr_cu_result host_free_of_others(const struct world *w)
{
    void *own = malloc(4096);
    MUST(w->all.host_register(own, 4096, 0));
    return ALL_REFUSED(w->all.host_free(own), w->all.host_free((void *)(uintptr_t)plain(w, 4096)),
                       w->all.host_free(NULL));
}

static zr_cu_result registered_twice(const struct world *w)
{
    char *own = aligned_alloc(4096, 8192);
    MUST(w->all.host_register(own, 8192, 0));
    return w->all.host_register(own + 4096, 4096, 0);
}

static zr_cu_result not_registered(const struct world *w)
{
    return w->all.host_unregister(malloc(4096));
}

/* ---- Pointers ------------------------------------------------------------------------------------------ */

static zr_cu_result pointer_says(const struct world *w)
{
    zr_cu_address address = plain(w, 5000), start;
    zr_cu_context context;
    unsigned type;
    int ordinal, is_managed, ipc;
    unsigned long long id, next;
    size_t bytes;
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_CONTEXT,     ZR_CU_POINTER_MEMORY_TYPE,
                                       ZR_CU_POINTER_BUFFER_ID,   ZR_CU_POINTER_DEVICE_ORDINAL,
                                       ZR_CU_POINTER_RANGE_START, ZR_CU_POINTER_RANGE_BYTES,
                                       ZR_CU_POINTER_IS_MANAGED,  ZR_CU_POINTER_IPC_CAPABLE};
    void *values[] = {&context, &type, &id, &ordinal, &start, &bytes, &is_managed, &ipc};
    MUST(w->all.pointer_attributes(sizeof which / sizeof *which, which, values, address + 99));
    MUST(w->all.mem_free(address));
    MUST(w->all.pointer_attribute(&next, ZR_CU_POINTER_BUFFER_ID, plain(w, 5000)));
    return good(context == w->context && type == 2 && ordinal == 0 && start == address && bytes == 5000 &&
                !is_managed && ipc && next != id);
}

/* Of virtual memory: no context, no legacy IPC, one handle's mapping as the range. */
static zr_cu_result pointer_says_virtual(const struct world *w)
{
    zr_cu_address start;
    size_t bytes;
    int ipc;
    ONE_MAPPED;
    MUST(map_at(w, 1, 2, memory_of(w, 2)));
    MUST(w->all.pointer_attribute(&ipc, ZR_CU_POINTER_IPC_CAPABLE, w->base + 5));
    MUST(w->all.pointer_attribute(&start, ZR_CU_POINTER_RANGE_START, w->base + 2 * w->g + 5));
    MUST(w->all.pointer_attribute(&bytes, ZR_CU_POINTER_RANGE_BYTES, w->base + 2 * w->g + 5));
    return good(!ipc && start == w->base + w->g && bytes == 2 * w->g);
}

/* One question is refused, several are answered by nothing. */
static zr_cu_result pointer_of_nobody(const struct world *w)
{
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_CONTEXT, ZR_CU_POINTER_MEMORY_TYPE};
    zr_cu_context context = w->context;
    unsigned type = 7;
    void *values[] = {&context, &type};
    MUST(w->all.pointer_attributes(2, which, values, (uintptr_t)&type));
    if (context || type)
        return VERDICT_BROKEN;
    return w->all.pointer_attribute(&type, ZR_CU_POINTER_MEMORY_TYPE, (uintptr_t)&type);
}

static zr_cu_result retained_handle(const struct world *w)
{
    zr_cu_memory again;
    zr_cu_properties properties;
    ONE_MAPPED;
    MUST(w->cu->release(first));
    MUST(w->all.retain_handle(&again, (void *)(uintptr_t)(w->base + 9)));
    MUST(w->all.handle_properties(&properties, again));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(map_at(w, 3, 1, again));
    MUST(w->cu->release(again));
    return properties.exported_as == ZR_CU_HANDLE_POSIX_FD ? w->cu->release(again) : VERDICT_BROKEN;
}

static zr_cu_result handle_of_nothing(const struct world *w)
{
    zr_cu_memory memory;
    return ALL_REFUSED(w->all.retain_handle(&memory, (void *)(uintptr_t)w->base),
                       w->all.retain_handle(&memory, (void *)(uintptr_t)plain(w, 4096)));
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

static const struct rule rules[] = {
    {"no bytes are no allocation", "MEM cuMemAlloc; MALLOC__ASYNC cuMemAllocAsync", nothing,
     ZR_CU_INVALID_VALUE, 0},
    {"memory ends", "MEM cuMemAlloc", too_much, ZR_CU_OUT_OF_MEMORY, 0},
    {"a free is for what was allocated, from its start, once", "MEM cuMemFree", foreign_free,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"memory lies on boundaries for any type", "MEM cuMemAlloc", boundaries, ZR_CU_SUCCESS, 0},
    {"and counts as used", "MEM cuMemGetInfo", counted, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"it has an end", "MEM cuMemsetD8Async", past_the_end, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"and is gone after its free", "MEM cuMemFree", after_free, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"an address tells its allocation; either answer may be left out", "MEM cuMemGetAddressRange", range,
     ZR_CU_SUCCESS, 0},
    {"of virtual memory the mapping", "UNIFIED CU_POINTER_ATTRIBUTE_RANGE_SIZE", range_of_virtual,
     ZR_CU_SUCCESS, 0},
    {"an address of the program's tells none", "MEM cuMemGetAddressRange", range_of_nothing, ZR_CU_NOT_FOUND,
     0},
    {"rows begin on boundaries", "MEM cuMemAllocPitch", pitch, ZR_CU_SUCCESS, 0},
    {"for elements of 4, 8 or 16 bytes", "MEM cuMemAllocPitch", pitch_of_odd_elements, ZR_CU_INVALID_VALUE,
     0},
    {"cuMemFree may wait for work, as here", "MEM cuMemFree", freed_while_working, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"and may not, as here", "MEM cuMemFree", freed_while_working_lazily, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"managed memory is the host's and the device's", "MEM cuMemAllocManaged", managed, ZR_CU_SUCCESS, 0},
    {"and says for whom", "MEM cuMemAllocManaged", managed_for_nobody, ZR_CU_INVALID_VALUE, 0},
    {"a copy to page-locked memory is late", "API synchronization behavior", page_locked, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"cuMemFreeHost is for cuMemHostAlloc", "MEM cuMemFreeHost", host_free_of_others, ZR_CU_INVALID_VALUE, 0},
    {"memory is registered once", "MEM cuMemHostRegister", registered_twice, 712, 0},
    {"before it is no longer", "MEM cuMemHostUnregister", not_registered, 713, 0},
    {"a pointer tells its context, kind, device, range, and an identifier of its own",
     "UNIFIED cuPointerGetAttributes", pointer_says, ZR_CU_SUCCESS, 0},
    {"virtual memory is not for legacy IPC; its range is the reservation", "UNIFIED cuPointerGetAttribute",
     pointer_says_virtual, ZR_CU_SUCCESS, 0},
    {"a pointer of nobody's tells nothing", "UNIFIED cuPointerGetAttribute(s)", pointer_of_nobody,
     ZR_CU_INVALID_VALUE, 0},
    {"a handle is had again from an address, and released", "VA cuMemRetainAllocationHandle", retained_handle,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"of what cuMemCreate made", "VA cuMemRetainAllocationHandle", handle_of_nothing, ZR_CU_INVALID_VALUE, 0},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
