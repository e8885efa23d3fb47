/* trace.c: the traces of a rehearsal, one of each process and device that it uses, in the folder that
 * ZR_REHEARSE_TRACES names: deviceN.PID.zrt, by the machine's number. Blocks are the program's allocations,
 * granules those that the driver gave for them. See alloc/telemetry/trace.h. */
#include "alloc/rehearse/driver/inside.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"
#include "alloc/telemetry/trace_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ADDRESSES ((size_t)1 << 47) /* of user space */

static const struct emu_settings *settings;
/* lock: the driver's */
static struct {
    struct zr_trace *trace; /* NULL: none */
    bool tried;
    uint64_t reserved_bytes;
} devices[EMU_DEVICES_MAX];

/* The machine's device. */
static struct zr_trace *trace_of(int device)
{
    const char *folder = getenv("ZR_REHEARSE_TRACES");
    char path[4096], name[32];
    if (devices[device].tried)
        return devices[device].trace;
    devices[device].tried = true;
    snprintf(name, sizeof name, "device%d.%d.zrt", device, (int)getpid());
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return NULL;
    if (zr_trace_open(&devices[device].trace, path,
                      &(struct zr_trace_origin){.name = name,
                                                .reserve_bytes = ADDRESSES,
                                                .granule_bytes = settings->granularity_bytes}) != ZR_OK)
        fprintf(stderr, "zr: rehearse: %s\n", zr_last_error());
    return devices[device].trace;
}

void emu_trace_begin(const struct emu_settings *of)
{
    settings = of;
}

void emu_trace_refused(int machine_device, size_t bytes, size_t free_bytes)
{
    struct zr_trace *trace = trace_of(machine_device);
    const struct zr_refusal refusal = {.cause = ZRT_CAUSE_SHORTAGE,
                                       .need_bytes = bytes,
                                       .reserved_bytes = devices[machine_device].reserved_bytes,
                                       .device_bytes = settings->capacity_bytes,
                                       .device_free_bytes = free_bytes,
                                       .process_bytes = devices[machine_device].reserved_bytes};
    if (trace)
        zr_trace_write_refused(trace, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &refusal,
                               zr_call_stack_take_now());
}

void emu_trace(enum emu_traced what, int device, zr_cu_address address, size_t bytes)
{
    const bool here = device >= 0 && device < settings->devices_count;
    device = here ? settings->machine_device[device] : 0;
    struct zr_trace *trace = here ? trace_of(device) : NULL;
    void *first = (void *)(uintptr_t)address;
    const struct zr_block_info block = {.address = first,
                                        .bytes = bytes,
                                        .reserved_bytes = (bytes + 255) & ~(size_t)255,
                                        .tag = ZR_TAG_OTHER};
    if (!trace)
        return;
    switch (what) {
    case EMU_TRACE_MAP:
        devices[device].reserved_bytes += bytes;
        zr_trace_write_map(trace, first, bytes);
        break;
    case EMU_TRACE_UNMAP:
        devices[device].reserved_bytes -= bytes;
        zr_trace_write_unmap(trace, first, bytes);
        break;
    case EMU_TRACE_ALLOC:
        zr_trace_write_alloc(trace, &block, zr_call_stack_take_now());
        break;
    case EMU_TRACE_FREE:
        zr_trace_write_free(trace, &block);
        break;
    }
}

void emu_trace_end(void)
{
    for (int i = 0; i < EMU_DEVICES_MAX; i++) {
        if (devices[i].trace)
            zr_trace_close(devices[i].trace);
        devices[i].trace = NULL;
        devices[i].tried = true;
    }
}
