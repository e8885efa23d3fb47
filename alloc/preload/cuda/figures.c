/* figures.c: the devices' figures for `zr run --stats`, in the process's record (alloc/preload/usage.h),
 * which libzr_malloc.so shares. See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/backend/backend.h"
#include "alloc/base/system/lock.h"
#include "alloc/base/option.h"
#include "alloc/preload/usage.h"

enum { DEVICES_COUNT = ZR_USAGE_MEMORIES - ZR_USAGE_DEVICE };

static struct {
    struct zr_usage *_Atomic record; /* NULL: no record was requested */
    bool opened;                     /* guarded by the lock of opening devices */
    struct zr_lock lock;             /* serializes writers of a record's figures */
} own;

/* The record if it has figures for the device; NULL: none. */
static struct zr_usage *record_of(const struct zr_cuda_device *device)
{
    struct zr_usage *record = atomic_load_explicit(&own.record, memory_order_acquire);
    return device->ordinal < DEVICES_COUNT ? record : NULL;
}

void zr_cuda_figures_start(const struct zr_cuda_device *device)
{
    const char *reason = NULL;
    if (!own.opened) {
        own.opened = true;
        atomic_store_explicit(&own.record, zr_usage_open(&reason), memory_order_release);
    }
    if (reason)
        zr_say("ZR_RECORD=%s: %s: the figures of zr run exclude this process's devices",
               secure_getenv("ZR_RECORD"), reason);
    struct zr_usage *record = record_of(device);
    if (record)
        record->memory[ZR_USAGE_DEVICE + device->ordinal].limit_bytes = zr_option_get(ZR_OPTION_LIMIT);
}

void zr_cuda_figures_note(const struct zr_cuda_device *device)
{
    struct zr_usage *record = record_of(device);
    if (!record)
        return;
    zr_lock_acquire(&own.lock);
    zr_usage_note(record, ZR_USAGE_DEVICE + (unsigned)device->ordinal,
                  atomic_load_explicit(&device->live_bytes, memory_order_relaxed),
                  device->backend ? zr_backend_held_bytes(device->backend) : 0);
    zr_lock_release(&own.lock);
}

void zr_cuda_figures_refused(const struct zr_cuda_device *device, size_t bytes)
{
    struct zr_usage *record = record_of(device);
    if (!record)
        return;
    zr_lock_acquire(&own.lock);
    zr_usage_failure(record, ZR_USAGE_DEVICE + (unsigned)device->ordinal, bytes);
    zr_lock_release(&own.lock);
}

/* The child must not end the parent's record, and it can use no device. */
void zr_cuda_figures_forked(void)
{
    memset(&own.lock, 0, sizeof own.lock);
    atomic_store(&own.record, NULL);
}

/* Ends the record at exit, unless libzr_malloc.so took the record and ends it with its last figures. */
static __attribute__((destructor)) void end(void)
{
    struct zr_usage *record = atomic_load(&own.record);
    if (record && zr_usage_is_own(record))
        zr_usage_end(record);
}
