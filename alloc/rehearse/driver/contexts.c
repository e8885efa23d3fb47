/* contexts.c: the emulated driver's devices and contexts. Each device has a primary context, and as many
 * others as programs create; memory from cuMemAlloc, streams and events go with their context, virtual memory
 * and pools are the device's. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTES_MAX = 256 };
/* What is not supported: handles of Windows, of pools, for dma-buf, and of fabrics. */
enum {
    ATTRIBUTE_WIN32 = 104,
    ATTRIBUTE_WIN32_KMT = 105,
    ATTRIBUTE_POOL_HANDLE_TYPES = 119,
    ATTRIBUTE_DMA_BUF = 124,
    ATTRIBUTE_FABRIC = 128
};

struct zr_cu_context_st *emu_contexts; /* the last made first; the primary ones end it */
static struct zr_cu_context_st primaries[EMU_DEVICES_MAX];
static int overrides[ATTRIBUTES_MAX], overridden[ATTRIBUTES_MAX];
static bool one_way;

static __thread struct zr_cu_context_st *stack[EMU_STACK_MAX];
static __thread size_t depth;

void emu_contexts_begin(void)
{
    for (int i = emu.devices_count - 1; i >= 0; i--) {
        primaries[i] = (struct zr_cu_context_st){.next = emu_contexts, .device = i, .primary = true};
        emu_contexts = &primaries[i];
    }
}

struct zr_cu_context_st *emu_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

void emu_contexts_one_way(bool on)
{
    one_way = on;
}

/* Of the tests' card neighbours reach one another, unless it is one way only: 0 and 1, 2 and 3. */
bool emu_peers(int device, int peer)
{
    return device == peer || emu.card || ((device ^ 1) == peer && (!one_way || device > peer));
}

bool emu_no_device(int device)
{
    return device < 0 || device >= emu.devices_count;
}

int emu_device_here(int machine_device)
{
    for (int i = 0; i < emu.devices_count; i++)
        if (emu.machine_device[i] == machine_device)
            return i;
    return EMU_DEVICES_MAX;
}

bool emu_no_context(const struct zr_cu_context_st *context)
{
    const struct zr_cu_context_st *each = emu_contexts;
    while (each && each != context)
        each = each->next;
    return !each || each->gone || (each->primary && each->retained_count == 0);
}

void emu_contexts_state(struct zr_emulator_state *out)
{
    for (const struct zr_cu_context_st *each = emu_contexts; each; each = each->next) {
        out->retained_count += each->retained_count;
        out->contexts_count += !each->primary && !each->gone;
    }
    out->stack_depth = depth;
}

void emu_attribute_set(zr_cu_attribute which, int value)
{
    overridden[which] = 1;
    overrides[which] = value;
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

PUBLIC zr_cu_result cuDeviceGetCount(int *count)
{
    zr_cu_result code = emu_enter(EMU_device_count, EMU_INIT);
    if (code == ZR_CU_SUCCESS)
        *count = emu.devices_count;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceGet(zr_cu_device *device, int ordinal)
{
    zr_cu_result code = emu_enter(EMU_device_get, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(ordinal))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *device = ordinal;
    return emu_leave(code);
}

/* The same in every process. */
PUBLIC zr_cu_result cuDeviceGetUuid_v2(unsigned char out[16], zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_device_name, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        emu_device_uuid(emu.machine_device[device], out);
    return emu_leave(code);
}

static zr_cu_result attribute(zr_cu_attribute which, int *value)
{
    if ((unsigned)which >= ATTRIBUTES_MAX)
        return ZR_CU_INVALID_VALUE;
    if (emu.card && zr_card_attribute(emu.card, (int)which, value))
        return ZR_CU_SUCCESS;
    switch ((int)which) {
    case ZR_CU_ATTRIBUTE_HOST_NUMA_ID:
    case ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY:
    case ATTRIBUTE_WIN32:
    case ATTRIBUTE_WIN32_KMT:
    case ATTRIBUTE_POOL_HANDLE_TYPES:
    case ATTRIBUTE_DMA_BUF:
    case ATTRIBUTE_FABRIC:
        *value = 0;
        break;
    case ZR_CU_CAPABILITY_MAJOR:
        *value = emu.capability / 10;
        break;
    case ZR_CU_CAPABILITY_MINOR:
        *value = emu.capability % 10;
        break;
    default:
        *value = 1;
    }
    if (which == ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY && emu.host_memory >= ZR_EMULATOR_HOST_NO_CREATE)
        *value = 0;
    if (overridden[which])
        *value = overrides[which];
    return ZR_CU_SUCCESS;
}

int emu_attribute_of(zr_cu_attribute which)
{
    int value = 0;
    attribute(which, &value);
    return value;
}

PUBLIC zr_cu_result cuDeviceGetAttribute(int *value, zr_cu_attribute which, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_device_attribute, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        code = attribute(which, value);
    if (code == ZR_CU_SUCCESS && which == ZR_CU_ATTRIBUTE_PCI_BUS)
        *value += emu.machine_device[device];
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceGetName(char *name, int bytes, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_device_name, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && (!name || bytes <= 0))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        snprintf(name, (size_t)bytes, "%s", emu.card ? emu.card->title : "Emulated GPU");
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceTotalMem_v2(size_t *bytes, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_total_mem, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && !bytes)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *bytes = emu.capacity_bytes;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceCanAccessPeer(int *can, zr_cu_device device, zr_cu_device peer)
{
    zr_cu_result code = emu_enter(EMU_can_access_peer, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (emu_no_device(device) || emu_no_device(peer)))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *can = device != peer && emu_peers(device, peer);
    return emu_leave(code);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

/* All that is the context's ends. Work that runs is not waited for: it ends where it is. */
static void clear(struct zr_cu_context_st *context)
{
    emu_drop_work(context);
    emu_allocations_end(context);
    emu_streams_end(context);
    context->dead = ZR_CU_SUCCESS;
    context->peers = context->flags = 0;
}

PUBLIC zr_cu_result cuDevicePrimaryCtxRetain(zr_cu_context *context, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_context_retain, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && primaries[device].retained_count == 0 &&
        !emu_take_bytes(device, emu.context_bytes))
        code = ZR_CU_OUT_OF_MEMORY;
    if (code == ZR_CU_SUCCESS) {
        if (primaries[device].retained_count++ == 0)
            emu_account_context(device, 1);
        *context = &primaries[device];
    }
    return emu_leave(code);
}

/* What is still there when a primary context ends, in the file that ZR_EMULATOR_LEFT names: a line for each.
 */
static void note_left(void)
{
    const char *path = getenv("ZR_EMULATOR_LEFT");
    struct zr_emulator_state state = {0};
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    emu_memory_state(&state);
    emu_streams_state(&state);
    emu_allocations_state(&state);
    fprintf(
        file,
        "%zu memories, %zu mappings, %zu reservations, %zu allocations, %zu streams, %zu events, %zu graphs\n",
        state.memories_count, state.mappings_count, state.reservations_count, state.allocations_count,
        state.streams_count, state.events_count, emu_graphs_count());
    fclose(file);
}

PUBLIC zr_cu_result cuDevicePrimaryCtxRelease_v2(zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_context_release, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && primaries[device].retained_count == 0)
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS && --primaries[device].retained_count == 0) {
        note_left();
        clear(&primaries[device]);
        emu_give_bytes(device, emu.context_bytes);
        emu_account_context(device, -1);
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDevicePrimaryCtxReset_v2(zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_primary_reset, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        clear(&primaries[device]);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDevicePrimaryCtxGetState(zr_cu_device device, unsigned int *flags, int *active)
{
    zr_cu_result code = emu_enter(EMU_primary_state, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && (!flags || !active))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        *flags = 0;
        *active = primaries[device].retained_count > 0;
    }
    return emu_leave(code);
}

static zr_cu_result create(enum emu_call call, zr_cu_context *out, zr_cu_device device)
{
    zr_cu_result code = emu_enter(call, EMU_INIT);
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && (!out || depth == EMU_STACK_MAX))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct zr_cu_context_st *made = emu_must(calloc(1, sizeof *made));
        *made = (struct zr_cu_context_st){.next = emu_contexts, .device = device};
        emu_contexts = *out = stack[depth++] = made;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxCreate_v2(zr_cu_context *out, unsigned int flags, zr_cu_device device)
{
    (void)flags;
    return create(EMU_context_new, out, device);
}

PUBLIC zr_cu_result cuCtxCreate_v3(zr_cu_context *out, void *affinity, int count, unsigned int flags,
                                   zr_cu_device device)
{
    (void)affinity, (void)count, (void)flags;
    return create(EMU_context_new_v3, out, device);
}

PUBLIC zr_cu_result cuCtxCreate_v4(zr_cu_context *out, void *parameters, unsigned int flags,
                                   zr_cu_device device)
{
    (void)parameters, (void)flags;
    return create(EMU_context_new_v4, out, device);
}

/* Current in this thread it is popped; in others it stays and is of no use. */
PUBLIC zr_cu_result cuCtxDestroy_v2(zr_cu_context context)
{
    zr_cu_result code = emu_enter(EMU_context_end, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (emu_no_context(context) || context->primary))
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS) {
        clear(context);
        context->gone = true;
        if (depth && stack[depth - 1] == context)
            depth--;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxPushCurrent_v2(zr_cu_context context)
{
    zr_cu_result code = emu_enter(EMU_context_push, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (emu_no_context(context) || depth == EMU_STACK_MAX))
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS)
        stack[depth++] = context;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxPopCurrent_v2(zr_cu_context *context)
{
    zr_cu_result code = emu_enter(EMU_context_pop, EMU_INIT);
    if (code == ZR_CU_SUCCESS && depth == 0)
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS) {
        depth--;
        if (context)
            *context = stack[depth];
    }
    return emu_leave(code);
}

/* Takes the place of the top one; NULL pops it. */
PUBLIC zr_cu_result cuCtxSetCurrent(zr_cu_context context)
{
    zr_cu_result code = emu_enter(EMU_context_set, EMU_INIT);
    if (code == ZR_CU_SUCCESS && context && emu_no_context(context))
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS && depth)
        depth--;
    if (code == ZR_CU_SUCCESS && context)
        stack[depth++] = context;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxGetCurrent(zr_cu_context *context)
{
    zr_cu_result code = emu_enter(EMU_context_get, EMU_INIT);
    if (code == ZR_CU_SUCCESS)
        *context = emu_current();
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxGetDevice(zr_cu_device *out)
{
    zr_cu_result code = emu_enter(EMU_context_device, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        *out = emu_current()->device;
    return emu_leave(code);
}

enum { CONTEXT_FLAGS = 0xff };

PUBLIC zr_cu_result cuCtxSetFlags(unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_context_set_flags, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && flags & ~(unsigned)CONTEXT_FLAGS)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        emu_current()->flags = flags;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxGetFlags(unsigned int *flags)
{
    zr_cu_result code = emu_enter(EMU_context_get_flags, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && !flags)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *flags = emu_current()->flags;
    return emu_leave(code);
}

/* For memory from cuMemAlloc; virtual memory and pools have access lists of their own. */
PUBLIC zr_cu_result cuCtxEnablePeerAccess(zr_cu_context peer, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_context_peer, EMU_CONTEXT);
    struct zr_cu_context_st *own = emu_current();
    if (code == ZR_CU_SUCCESS && flags)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && (emu_no_context(peer) || peer->device == own->device))
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS && !emu_peers(own->device, peer->device))
        code = EMU_PEER_UNSUPPORTED;
    if (code == ZR_CU_SUCCESS && (own->peers >> peer->device & 1))
        code = EMU_PEER_ENABLED;
    if (code == ZR_CU_SUCCESS)
        own->peers |= UINT64_C(1) << peer->device;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    zr_cu_result code = emu_enter(EMU_memory_info, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && total_bytes)
        *total_bytes = emu.capacity_bytes;
    if (code == ZR_CU_SUCCESS && free_bytes)
        *free_bytes = emu_free_bytes(emu_current()->device);
    return emu_leave(code);
}
