/* pointers.c: what the emulated driver says of a pointer. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2 };

/* What is known of an address, from either kind of memory. */
struct known {
    const struct emu_allocation *allocation;
    const struct emu_memory *memory;
    zr_cu_address start; /* of the allocation, or of one handle's mapping */
    size_t bytes;
    bool any, host, mapped;
    int device;
};

static struct known look_up(zr_cu_address address)
{
    struct known out = {.device = -2};
    out.allocation = emu_allocation_at(address);
    if (out.allocation) {
        enum emu_kind kind = out.allocation->kind;
        out.any = out.mapped = true;
        out.start = out.allocation->address;
        out.bytes = out.allocation->bytes;
        out.host = kind == EMU_PAGE_LOCKED || kind == EMU_REGISTERED;
        out.device = out.allocation->context->device;
    } else if (emu_reservation_at(address, &out.start, &out.bytes)) {
        out.memory = emu_mapping_at(address, &out.start, &out.bytes);
        out.any = out.mapped = out.memory;
        out.host = out.memory && out.memory->location.type != ZR_CU_LOCATION_DEVICE;
        out.device = out.memory && !out.host ? out.memory->location.id : 0;
    }
    return out;
}

static unsigned long long id_of(const struct known *known)
{
    /* Handles are not used again either; the two sorts of numbers do not meet. */
    return known->allocation ? known->allocation->id << 1 : known->memory->handle << 1 | 1;
}

static zr_cu_result attribute(void *value, zr_cu_pointer_attribute which, const struct known *known,
                              zr_cu_address address)
{
    const struct emu_allocation *allocation = known->allocation;
    switch (which) {
    case ZR_CU_POINTER_CONTEXT:
        *(zr_cu_context *)value = allocation ? allocation->context : NULL;
        return allocation ? ZR_CU_SUCCESS : ZR_CU_INVALID_VALUE;
    case ZR_CU_POINTER_MEMORY_TYPE:
        *(unsigned *)value = known->host ? HOST_MEMORY : DEVICE_MEMORY;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_DEVICE_POINTER:
        *(zr_cu_address *)value = address;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_HOST_POINTER:
        if (!known->host && (!allocation || allocation->kind != EMU_MANAGED))
            return ZR_CU_INVALID_VALUE;
        *(void **)value = (void *)(uintptr_t)address;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_SYNC_MEMOPS:
        *(int *)value = allocation && allocation->sync_copies;
        return allocation ? ZR_CU_SUCCESS : ZR_CU_INVALID_VALUE;
    case ZR_CU_POINTER_BUFFER_ID:
    case ZR_CU_POINTER_MEMORY_ID:
        *(unsigned long long *)value = id_of(known);
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_IS_MANAGED:
        *(int *)value = allocation && allocation->kind == EMU_MANAGED;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_DEVICE_ORDINAL:
        *(int *)value = known->device;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_IPC_CAPABLE:
        *(int *)value = allocation && allocation->kind == EMU_PLAIN;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_RANGE_START:
    case ZR_CU_POINTER_MAPPING_START:
        *(zr_cu_address *)value = known->start;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_RANGE_BYTES:
    case ZR_CU_POINTER_MAPPING_BYTES:
        *(size_t *)value = known->bytes;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_MAPPED:
        *(int *)value = known->mapped;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_HANDLE_TYPES:
        *(unsigned long long *)value = known->memory ? known->memory->exported_as : ZR_CU_HANDLE_NONE;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_RDMA_CAPABLE:
        *(int *)value = allocation && allocation->kind == EMU_PLAIN;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_ACCESS_FLAGS:
        *(unsigned *)value = allocation && allocation->kind == EMU_POOLED
                                 ? emu_pool_access(allocation, emu_current() ? emu_current()->device : 0)
                                 : ZR_CU_ACCESS_READ_WRITE;
        return ZR_CU_SUCCESS;
    case ZR_CU_POINTER_POOL:
        *(zr_cu_pool *)value = allocation ? allocation->pool : NULL;
        return allocation && allocation->pool ? ZR_CU_SUCCESS : ZR_CU_INVALID_VALUE;
    default:
        return ZR_CU_INVALID_VALUE;
    }
}

PUBLIC zr_cu_result cuPointerGetAttribute(void *value, zr_cu_pointer_attribute which, zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_pointer_attribute, EMU_INIT);
    struct known known = look_up(address);
    if (code == ZR_CU_SUCCESS && (!value || !known.any))
        code = ZR_CU_INVALID_VALUE;
    return emu_leave(code == ZR_CU_SUCCESS ? attribute(value, which, &known, address) : code);
}

/* Of a pointer that is not the driver's: what says "none", and no error. */
static void attribute_of_none(void *value, zr_cu_pointer_attribute which)
{
    static const unsigned char bytes[] = {
        [ZR_CU_POINTER_CONTEXT] = sizeof(void *),
        [ZR_CU_POINTER_MEMORY_TYPE] = sizeof(unsigned),
        [ZR_CU_POINTER_DEVICE_POINTER] = sizeof(zr_cu_address),
        [ZR_CU_POINTER_HOST_POINTER] = sizeof(void *),
        [ZR_CU_POINTER_SYNC_MEMOPS] = sizeof(int),
        [ZR_CU_POINTER_BUFFER_ID] = sizeof(unsigned long long),
        [ZR_CU_POINTER_IS_MANAGED] = sizeof(int),
        [ZR_CU_POINTER_IPC_CAPABLE] = sizeof(int),
        [ZR_CU_POINTER_RANGE_START] = sizeof(zr_cu_address),
        [ZR_CU_POINTER_RANGE_BYTES] = sizeof(size_t),
        [ZR_CU_POINTER_MAPPED] = sizeof(int),
        [ZR_CU_POINTER_HANDLE_TYPES] = sizeof(unsigned long long),
        [ZR_CU_POINTER_RDMA_CAPABLE] = sizeof(int),
        [ZR_CU_POINTER_ACCESS_FLAGS] = sizeof(unsigned),
        [ZR_CU_POINTER_POOL] = sizeof(void *),
        [ZR_CU_POINTER_MAPPING_BYTES] = sizeof(size_t),
        [ZR_CU_POINTER_MAPPING_START] = sizeof(zr_cu_address),
        [ZR_CU_POINTER_MEMORY_ID] = sizeof(unsigned long long),
    };
    if (which == ZR_CU_POINTER_DEVICE_ORDINAL)
        *(int *)value = -2;
    else
        for (unsigned i = 0; i < bytes[which]; i++)
            ((unsigned char *)value)[i] = 0;
}

PUBLIC zr_cu_result cuPointerGetAttributes(unsigned int count, zr_cu_pointer_attribute *which, void **values,
                                           zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_pointer_attributes, EMU_INIT);
    struct known known = look_up(address);
    if (code == ZR_CU_SUCCESS && (!which || !values || count == 0))
        code = ZR_CU_INVALID_VALUE;
    for (unsigned i = 0; code == ZR_CU_SUCCESS && i < count; i++)
        if (!values[i] || which[i] < ZR_CU_POINTER_CONTEXT || which[i] > ZR_CU_POINTER_MEMORY_ID ||
            which[i] == ZR_CU_POINTER_P2P_TOKENS)
            code = ZR_CU_INVALID_VALUE;
    for (unsigned i = 0; code == ZR_CU_SUCCESS && i < count; i++)
        if (!known.any || attribute(values[i], which[i], &known, address) != ZR_CU_SUCCESS)
            attribute_of_none(values[i], which[i]);
    return emu_leave(code);
}

/* Only cuMemAlloc's memory takes one, and only this one. */
PUBLIC zr_cu_result cuPointerSetAttribute(const void *value, zr_cu_pointer_attribute which,
                                          zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_pointer_set, EMU_INIT);
    struct emu_allocation *found = emu_allocation_at(address);
    if (code == ZR_CU_SUCCESS &&
        (!value || which != ZR_CU_POINTER_SYNC_MEMOPS || !found || found->kind != EMU_PLAIN))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        found->sync_copies = *(const int *)value != 0;
    return emu_leave(code);
}
