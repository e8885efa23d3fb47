/* allocate.c: the emulated driver's allocations: which there are, cuMemAlloc and its kin, managed memory, and
 * the host's. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>

enum { PITCH_BYTES = 512, MANAGED_GLOBAL = 1, MANAGED_HOST = 2, HOST_FLAGS = 7, REGISTER_FLAGS = 15 };

static struct emu_allocation **allocations; /* by address */
static size_t allocations_count, allocations_room;
static uint64_t last_id;

/* ---- Which there are ----------------------------------------------------------------------------------- */

/* The place of the first that ends behind the address. */
static size_t place_of(zr_cu_address address)
{
    size_t low = 0, high = allocations_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle]->address + allocations[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct emu_allocation *emu_allocation_at(zr_cu_address address)
{
    size_t place = place_of(address);
    return place < allocations_count && allocations[place]->address <= address ? allocations[place] : NULL;
}

/* That begins there. */
static struct emu_allocation *beginning(zr_cu_address address)
{
    struct emu_allocation *found = emu_allocation_at(address);
    return found && found->address == address ? found : NULL;
}

static void trace(enum emu_traced what, const struct emu_allocation *allocation)
{
    emu_trace(what, allocation->block ? allocation->block->device : -1, allocation->address,
              allocation->bytes);
}

struct emu_allocation *emu_allocation_add(struct emu_allocation allocation)
{
    struct emu_allocation *made = emu_must(malloc(sizeof *made));
    size_t place = place_of(allocation.address);
    if (allocations_count == allocations_room) {
        allocations_room = allocations_room ? 2 * allocations_room : 64;
        allocations = emu_must(realloc(allocations, allocations_room * sizeof *allocations));
    }
    memmove(&allocations[place + 1], &allocations[place],
            (allocations_count++ - place) * sizeof *allocations);
    *made = allocation;
    made->id = ++last_id;
    trace(EMU_TRACE_ALLOC, made);
    return allocations[place] = made;
}

void emu_allocation_freed(const struct emu_allocation *allocation)
{
    trace(EMU_TRACE_FREE, allocation);
}

void emu_allocation_remove(struct emu_allocation *allocation)
{
    size_t place = place_of(allocation->address);
    memmove(&allocations[place], &allocations[place + 1],
            (--allocations_count - place) * sizeof *allocations);
    free(allocation);
}

/* The record, and what it stands for. */
static void end(struct emu_allocation *allocation)
{
    emu_allocation_freed(allocation);
    if (allocation->kind == EMU_POOLED)
        emu_pool_give(allocation, allocation->context, 0, 0);
    else if (allocation->kind == EMU_GRAPH)
        emu_graph_memory_give(allocation);
    else if (allocation->kind == EMU_IMPORTED)
        emu_ipc_forget(allocation->address);
    if (allocation->kind != EMU_POOLED && allocation->kind != EMU_GRAPH &&
        !emu_small_give(allocation->block, allocation->address, allocation->bytes))
        emu_block_destroy(allocation->block);
    emu_allocation_remove(allocation);
}

void emu_allocations_end(struct zr_cu_context_st *context)
{
    for (size_t i = allocations_count; i > 0; i--)
        if (allocations[i - 1]->context == context)
            end(allocations[i - 1]);
}

void emu_allocations_state(struct zr_emulator_state *out)
{
    out->allocations_count = allocations_count;
}

/* What is freed outside of any stream's order. */
static zr_cu_result end_now(struct emu_allocation *allocation)
{
    zr_cu_result code = ZR_CU_SUCCESS;
    struct zr_cu_context_st *context = allocation->context;
    bool waits = allocation->kind != EMU_POOLED && allocation->kind != EMU_GRAPH && !emu.lazy_free;
    if (waits)
        code = emu_wait_until(context, context->last);
    if (code == ZR_CU_SUCCESS) {
        emu_unmapped(allocation->address, allocation->bytes);
        end(allocation);
    }
    return code;
}

static zr_cu_result end_of_kinds(zr_cu_address address, unsigned kinds)
{
    struct emu_allocation *found = beginning(address);
    return found && kinds & 1u << found->kind ? end_now(found) : ZR_CU_INVALID_VALUE;
}

zr_cu_result emu_free_imported(zr_cu_address address)
{
    return end_of_kinds(address, 1u << EMU_IMPORTED);
}

/* ---- The device's memory ------------------------------------------------------------------------------- */

static zr_cu_result allocate(zr_cu_address *out, size_t bytes)
{
    struct zr_cu_context_st *context = emu_current();
    struct emu_block *block;
    if (!out || bytes == 0)
        return ZR_CU_INVALID_VALUE;
    if (bytes <= emu.granularity_bytes / 2) {
        block = emu_small_take(context, bytes, out);
    } else {
        block = emu_block_create(context->device, bytes);
        *out = block ? block->address : *out;
    }
    if (!block)
        return ZR_CU_OUT_OF_MEMORY;
    emu_allocation_add((struct emu_allocation){
        .address = *out, .bytes = bytes, .kind = EMU_PLAIN, .block = block, .context = context});
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemAlloc_v2(zr_cu_address *out, size_t bytes)
{
    zr_cu_result code = emu_enter(EMU_mem_alloc, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? allocate(out, bytes) : code);
}

PUBLIC zr_cu_result cuMemAllocPitch_v2(zr_cu_address *out, size_t *pitch, size_t width, size_t height,
                                       unsigned int element_bytes)
{
    zr_cu_result code = emu_enter(EMU_mem_alloc_pitch, EMU_CONTEXT);
    size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes = 0;
    if (code == ZR_CU_SUCCESS &&
        (!pitch || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && (row < width || __builtin_mul_overflow(row, height, &bytes)))
        code = ZR_CU_OUT_OF_MEMORY;
    if (code == ZR_CU_SUCCESS)
        code = allocate(out, bytes);
    if (code == ZR_CU_SUCCESS)
        *pitch = row;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemFree_v2(zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_mem_free, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code =
            end_of_kinds(address, 1u << EMU_PLAIN | 1u << EMU_POOLED | 1u << EMU_MANAGED | 1u << EMU_GRAPH);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemGetAddressRange_v2(zr_cu_address *base, size_t *bytes, zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_address_range, EMU_CONTEXT);
    const struct emu_allocation *found = emu_allocation_at(address);
    zr_cu_address start = found ? found->address : 0;
    size_t length = found ? found->bytes : 0;
    if (code == ZR_CU_SUCCESS && !found && !emu_mapping_at(address, &start, &length))
        code = ZR_CU_NOT_FOUND;
    if (code == ZR_CU_SUCCESS && base)
        *base = start;
    if (code == ZR_CU_SUCCESS && bytes)
        *bytes = length;
    return emu_leave(code);
}

/* ---- Memory that the host reaches too ------------------------------------------------------------------ */

static zr_cu_result allocate_host(void **out, size_t bytes, enum emu_kind kind, unsigned flags)
{
    if (!out || bytes == 0)
        return ZR_CU_INVALID_VALUE;
    struct emu_block *block = emu_block_of_host(NULL, bytes);
    if (!block)
        return ZR_CU_OUT_OF_MEMORY;
    emu_allocation_add((struct emu_allocation){.address = block->address,
                                               .bytes = bytes,
                                               .kind = kind,
                                               .flags = flags,
                                               .block = block,
                                               .context = emu_current()});
    *out = (void *)(uintptr_t)block->address;
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemAllocManaged(zr_cu_address *out, size_t bytes, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_alloc_managed, EMU_CONTEXT);
    void *made = NULL;
    if (code == ZR_CU_SUCCESS && (!out || (flags != MANAGED_GLOBAL && flags != MANAGED_HOST)))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        code = allocate_host(&made, bytes, EMU_MANAGED, flags);
    if (code == ZR_CU_SUCCESS)
        *out = (zr_cu_address)(uintptr_t)made;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_host_alloc, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = flags > HOST_FLAGS ? ZR_CU_INVALID_VALUE : allocate_host(out, bytes, EMU_PAGE_LOCKED, flags);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemAllocHost_v2(void **out, size_t bytes)
{
    zr_cu_result code = emu_enter(EMU_host_alloc_plain, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? allocate_host(out, bytes, EMU_PAGE_LOCKED, 0) : code);
}

PUBLIC zr_cu_result cuMemFreeHost(void *address)
{
    zr_cu_result code = emu_enter(EMU_host_free, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = end_of_kinds((zr_cu_address)(uintptr_t)address, 1u << EMU_PAGE_LOCKED);
    return emu_leave(code);
}

static zr_cu_result register_host(void *pointer, size_t bytes, unsigned flags)
{
    zr_cu_address address = (zr_cu_address)(uintptr_t)pointer, base;
    size_t whole;
    if (!pointer || bytes == 0 || flags > REGISTER_FLAGS || bytes > SIZE_MAX - address)
        return ZR_CU_INVALID_VALUE;
    size_t place = place_of(address);
    if (emu.host_memory >= ZR_EMULATOR_HOST_NO_LOCK)
        return ZR_CU_NOT_PERMITTED;
    if (place < allocations_count && allocations[place]->address < address + bytes)
        return EMU_REGISTERED_ALREADY;
    if (emu_device_address(address) || emu_reservation_at(address, &base, &whole))
        return ZR_CU_INVALID_VALUE;
    emu_allocation_add((struct emu_allocation){.address = address,
                                               .bytes = bytes,
                                               .kind = EMU_REGISTERED,
                                               .flags = flags,
                                               .block = emu_block_of_host(pointer, bytes),
                                               .context = emu_current()});
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_host_register, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? register_host(address, bytes, flags) : code);
}

PUBLIC zr_cu_result cuMemHostUnregister(void *address)
{
    zr_cu_result code = emu_enter(EMU_host_unregister, EMU_CONTEXT);
    struct emu_allocation *found = beginning((zr_cu_address)(uintptr_t)address);
    if (code == ZR_CU_SUCCESS)
        code = found && found->kind == EMU_REGISTERED ? end_now(found) : (zr_cu_result)ZR_CU_NOT_REGISTERED;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemHostGetDevicePointer_v2(zr_cu_address *out, void *address, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_host_device_pointer, EMU_CONTEXT);
    const struct emu_allocation *found = emu_allocation_at((zr_cu_address)(uintptr_t)address);
    if (code == ZR_CU_SUCCESS &&
        (!out || flags || !found || (found->kind != EMU_PAGE_LOCKED && found->kind != EMU_REGISTERED)))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *out = (zr_cu_address)(uintptr_t)address;
    return emu_leave(code);
}
