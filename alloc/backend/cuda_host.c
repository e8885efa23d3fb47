/* cuda_host.c: host memory for a CUDA device (see cuda_host.h). Uses cuda_driver.c and host_common.c. */
#define _GNU_SOURCE
#include "alloc/backend/cuda_host.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#include "alloc/backend/host_common.h"
#include "alloc/base/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* ---- The choice of a kind ------------------------------------------------------------------------------ */

static bool has(const struct zr_cuda_driver *driver, zr_cu_attribute which, zr_cu_device device)
{
    int value = 0;
    return driver->device_attribute(&value, which, device) == ZR_CU_SUCCESS && value;
}

/* Creates one granule, and releases it, to see whether the driver grants it. */
static zr_cu_result try_create(const struct zr_cuda_driver *driver, const zr_cu_properties *properties)
{
    size_t bytes = 0;
    zr_cu_memory memory;
    zr_cu_result code = driver->granularity(&bytes, properties, ZR_CU_GRANULARITY_MINIMUM);
    if (code == ZR_CU_SUCCESS)
        code = driver->create(&memory, bytes, properties, 0);
    if (code == ZR_CU_SUCCESS && driver->release(memory) != ZR_CU_SUCCESS)
        driver->release(memory);
    return code;
}

/* Unlike the runtime's cudaHostRegister(), the driver's call keeps no error that a later launch would report.
 */
static zr_cu_result lock_pages(const struct zr_cuda_driver *driver, char *address, size_t bytes)
{
    return driver->register_host(address, bytes, ZR_CU_REGISTER_PORTABLE | ZR_CU_REGISTER_MAPPED);
}

/* Whether the driver has released the pages. */
static bool unlock_pages(const struct zr_cuda_driver *driver, char *address)
{
    zr_cu_result code = driver->unregister_host(address);
    return code == ZR_CU_SUCCESS || code == ZR_CU_NOT_REGISTERED || code == ZR_CU_DEINITIALIZED;
}

static zr_cu_result try_lock(const struct zr_cuda_driver *driver)
{
    size_t bytes = ZR_HOST_HUGE_BYTES;
    char *address = zr_host_reserve_aligned(bytes, bytes);
    if (!address)
        return ZR_CU_OPERATING_SYSTEM;
    zr_cu_result code = mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0
                            ? lock_pages(driver, address, bytes)
                            : (zr_cu_result)ZR_CU_OPERATING_SYSTEM;
    if (code != ZR_CU_SUCCESS || unlock_pages(driver, address) || unlock_pages(driver, address))
        munmap(address, bytes);
    return code;
}

static const char *name_of(const struct zr_cuda_driver *driver, zr_cu_result code)
{
    const char *name = NULL;
    return driver->error_name(code, &name) == ZR_CU_SUCCESS && name ? name : "an unnamed error";
}

/* What the driver must support for each kind, and the reason to report if it does not. */
static const struct {
    zr_cu_attribute attribute;
    const char *without;
} needs[] = {
    [ZR_CUDA_HOST_NODE] = {ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY, "not before CUDA 12.2"},
    [ZR_CUDA_HOST_ANYWHERE] = {ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY, "not before CUDA 13"},
    [ZR_CUDA_HOST_LOCKED] = {ZR_CU_ATTRIBUTE_REGISTERED_ADDRESSES,
                             "the device uses different addresses for page-locked pages"},
};
enum { KINDS = sizeof needs / sizeof *needs };

/* `refused`: why memory of a node is not available; used for the other kinds. */
static struct zr_cuda_host describe(enum zr_cuda_host_kind kind, int node, zr_cu_handle_type exported_as,
                                    const char *refused)
{
    struct zr_cuda_host out = {.kind = kind, .properties = {.type = ZR_CU_ALLOCATION_PINNED}};
    if (kind == ZR_CUDA_HOST_NODE) {
        out.properties.exported_as = exported_as;
        out.properties.location = (zr_cu_location){ZR_CU_LOCATION_HOST_NUMA, node};
        snprintf(out.description, sizeof out.description, "host node %d", node);
        return out;
    }
    out.properties.location = (zr_cu_location){ZR_CU_LOCATION_HOST, 0};
    snprintf(out.description, sizeof out.description, "%s (host node %d: %s)",
             kind == ZR_CUDA_HOST_LOCKED ? "page-locked pages" : "the host, without a node", node, refused);
    return out;
}

zr_result zr_cuda_host_choose(const struct zr_cuda_driver *driver, const struct zr_cuda_host_request *request,
                              struct zr_cuda_host *out)
{
    const char *why[KINDS] = {NULL};
    int node = request->node;
    if (node < 0 &&
        driver->device_attribute(&node, ZR_CU_ATTRIBUTE_HOST_NUMA_ID, request->device) != ZR_CU_SUCCESS)
        node = 0;
    node = node < 0 ? 0 : node; /* a system without NUMA has node 0 */
    for (unsigned kind = 0; kind < KINDS; kind++) {
        *out = describe((enum zr_cuda_host_kind)kind, node, request->exported_as, why[ZR_CUDA_HOST_NODE]);
        why[kind] = needs[kind].without;
        if (!has(driver, needs[kind].attribute, request->device))
            continue;
        zr_cu_result code =
            kind == ZR_CUDA_HOST_LOCKED ? try_lock(driver) : try_create(driver, &out->properties);
        if (code == ZR_CU_SUCCESS)
            return ZR_OK;
        if (kind == ZR_CUDA_HOST_NODE && request->node > 0 && code == ZR_CU_INVALID_VALUE)
            return zr_cuda_error(code, ZR_ERR_INVALID, "memory on %s", out->description);
        why[kind] = name_of(driver, code);
    }
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "device %d cannot use memory of this machine: cuMemCreate on host node %d: %s; without a node: %s; page-locked pages: %s. In a container allow them (--cap-add SYS_NICE, `ulimit -l unlimited`), update the NVIDIA driver, or offload nothing",
        request->device, node, why[ZR_CUDA_HOST_NODE], why[ZR_CUDA_HOST_ANYWHERE], why[ZR_CUDA_HOST_LOCKED]);
}

size_t zr_cuda_host_granule(size_t bytes, size_t least_bytes)
{
    const size_t max_granule_bytes = (size_t)1 << 30;
    size_t mappings = zr_host_vma_budget() / 4;
    while (bytes / least_bytes > mappings && least_bytes < max_granule_bytes)
        least_bytes *= 2;
    return least_bytes;
}

/* ---- Locked pages -------------------------------------------------------------------------------------- */

/* Locking more pages than are free would swap out other processes, so the machine's free memory is checked.
 */
zr_result zr_cuda_locked_create(zr_backend *backend, struct zr_handle *handle)
{
    struct zr_backend_memory memory;
    zr_result result = zr_backend_enter(backend); /* fails in a child after fork() */
    if (result != ZR_OK)
        return result;
    zr_backend_leave(backend);
    result = zr_host_memory_info(backend, &memory);
    return result != ZR_OK || handle->bytes <= memory.free_bytes
               ? result
               : zr_fail(
                     ZR_ERR_MEMORY,
                     "this machine has %zu bytes left, and %zu must be page-locked: free memory, or offload less",
                     memory.free_bytes, handle->bytes);
}

void zr_cuda_locked_destroy(zr_backend *backend, struct zr_handle *handle)
{
    (void)backend, (void)handle;
}

/* The reserved addresses are private anonymous memory already. */
zr_result zr_cuda_locked_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    (void)backend, (void)address, (void)handle;
    return ZR_OK;
}

/* The range that contains the address. lock: backend->lock */
static struct zr_range *range_of(const zr_backend *backend, const char *address)
{
    struct zr_range *range = backend->ranges;
    while (address < range->address || address >= range->address + range->bytes)
        range = range->next;
    return range;
}

/* MADV_DONTFORK: if a child had copies of the pages, the parent would write to other pages than the device
 * reads. */
static zr_result open_mapping(zr_backend *backend, const struct zr_cuda_driver *driver, char *address,
                              size_t bytes)
{
    zr_result result = zr_host_set_access(backend, address, bytes);
    if (result != ZR_OK)
        return result;
    madvise(address, bytes, MADV_HUGEPAGE);
    if (madvise(address, bytes, MADV_DONTFORK) != 0 ||
        (madvise(address, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)) {
        result =
            zr_fail(ZR_ERR_HOST_MEMORY, "the system refused %zu bytes of pages (error %d)", bytes, errno);
    } else {
        zr_cu_result code = lock_pages(driver, address, bytes);
        if (code == ZR_CU_SUCCESS)
            return ZR_OK;
        result = zr_cuda_error(code, ZR_ERR_MEMORY, "to lock the pages of %zu bytes at %p (`ulimit -l`?)",
                               bytes, (void *)address);
    }
    zr_host_unmap(backend, address, bytes);
    return result;
}

/* Unlocks the mappings of the extent, up to the first that the driver refuses to unlock. Returns the bytes
 * unlocked. */
static size_t unlock_extent(const struct zr_cuda_driver *driver, const struct zr_range *range,
                            struct zr_bounds extent)
{
    size_t done = 0;
    while (done < extent.bytes && unlock_pages(driver, range->address + extent.offset_bytes + done))
        done += zr_range_mapping(range, extent.offset_bytes + done)->handle->bytes;
    return done;
}

/* Unmap failed: lock again the pages that were unlocked for it. */
static void lock_again(const struct zr_cuda_driver *driver, const struct zr_range *range,
                       struct zr_bounds extent)
{
    for (size_t done = 0; done < extent.bytes;) {
        const struct zr_mapping *mapping = zr_range_mapping(range, extent.offset_bytes + done);
        if (mapping->access)
            lock_pages(driver, range->address + mapping->offset_bytes, mapping->handle->bytes);
        done += mapping->handle->bytes;
    }
}

zr_result zr_cuda_locked_set_access(zr_backend *backend, char *address, size_t bytes)
{
    const struct zr_range *range = range_of(backend, address);
    const struct zr_cuda_driver *driver;
    size_t first = (size_t)(address - range->address), at = first;
    zr_result result = zr_cuda_driver_get(&driver);
    if (result == ZR_OK)
        result = zr_backend_enter(backend);
    if (result != ZR_OK)
        return result;
    while (result == ZR_OK && at < first + bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(range, at);
        if (!mapping->access)
            result = open_mapping(backend, driver, range->address + at, mapping->handle->bytes);
        at += result == ZR_OK ? mapping->handle->bytes : 0;
    }
    for (size_t undone = first; result != ZR_OK && undone < at;) {
        const struct zr_mapping *mapping = zr_range_mapping(range, undone);
        size_t length = mapping->handle->bytes;
        if (!mapping->access &&
            (unlock_pages(driver, range->address + undone) || unlock_pages(driver, range->address + undone)))
            zr_host_unmap(backend, range->address + undone, length);
        undone += length;
    }
    zr_backend_leave(backend);
    return result;
}

zr_result zr_cuda_locked_unmap(zr_backend *backend, char *address, size_t bytes)
{
    const struct zr_range *range = range_of(backend, address);
    const struct zr_cuda_driver *driver;
    zr_result result = zr_cuda_driver_get(&driver);
    if (result == ZR_OK)
        result = zr_backend_enter(backend);
    if (result != ZR_OK)
        return result;
    struct zr_bounds extent = {(size_t)(address - range->address), bytes};
    extent.bytes = unlock_extent(driver, range, extent);
    result = extent.bytes == bytes
                 ? zr_host_unmap(backend, address, bytes)
                 : zr_fail(ZR_ERR_ADDRESSES,
                           "the CUDA driver keeps the pages at %p locked: see dmesg for its own messages "
                           "(NVRM, Xid)",
                           (void *)(address + extent.bytes));
    if (result != ZR_OK)
        lock_again(driver, range, extent);
    zr_backend_leave(backend);
    return result;
}
