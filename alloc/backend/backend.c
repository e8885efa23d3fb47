/* backend.c: the front of every backend: checks the contract, keeps the counters, injects faults. Uses
 * slots.c and slab.c. The implementations are below it. */
#define _GNU_SOURCE
#include "alloc/backend/backend.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/lender.h"
#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"

/* ---- Create and destroy -------------------------------------------------------------------------------- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static zr_backend *all_backends; /* lock: all_lock */

zr_result zr_backend_granule(size_t requested_bytes, size_t *out)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    zr_result result = zr_option_result();
    zr_folders_prepare();
    if (result != ZR_OK)
        return result;
    *out = requested_bytes ? requested_bytes : zr_option_get(ZR_OPTION_GRANULE);
    if (*out == 0)
        *out = (size_t)2 << 20;
    if (*out < page_bytes || *out > (size_t)1 << 30 || (*out & (*out - 1)) != 0)
        return zr_fail(ZR_ERR_INVALID,
                       "granule size %zu: must be a power of two from the page size (%zu) to 1 GiB", *out,
                       page_bytes);
    return ZR_OK;
}

static void close_all(void)
{
    pthread_mutex_lock(&all_lock);
    for (zr_backend *backend = all_backends; backend; backend = backend->next) {
        pthread_mutex_lock(&backend->lock);
        pthread_mutex_lock(&backend->create_lock);
    }
}

static void open_all(bool child)
{
    (void)child;
    for (zr_backend *backend = all_backends; backend; backend = backend->next) {
        pthread_mutex_unlock(&backend->create_lock);
        pthread_mutex_unlock(&backend->lock);
    }
    pthread_mutex_unlock(&all_lock);
}

zr_result zr_backend_init(zr_backend *backend)
{
    static const struct zr_fork_room room = {.close = close_all, .open = open_all};
    zr_assert(backend->ops->version == ZR_BACKEND_VERSION);
    zr_fork_register(ZR_FORK_BACKENDS, &room);
    if (pthread_mutex_init(&backend->lock, NULL) != 0 || pthread_mutex_init(&backend->create_lock, NULL) != 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "the system refused to create a mutex");
    backend->can.least_granule_bytes = (size_t)sysconf(_SC_PAGESIZE); /* a device may require more */
    zr_slab_init(&backend->handles, sizeof(struct zr_handle), ZR_POOL_FAULTS);
    zr_slab_init(&backend->mappings, sizeof(struct zr_mapping), ZR_POOL_FAULTS);
    zr_slab_init(&backend->chunks, sizeof(struct zr_slot_chunk), ZR_POOL_FAULTS);
    zr_slab_init(&backend->range_records, sizeof(struct zr_range), ZR_POOL_FAULTS);
    pthread_mutex_lock(&all_lock);
    backend->next = all_backends;
    backend->previous = NULL;
    if (all_backends)
        all_backends->previous = backend;
    all_backends = backend;
    pthread_mutex_unlock(&all_lock);
    return ZR_OK;
}

void zr_backend_end(zr_backend *backend)
{
    pthread_mutex_lock(&all_lock);
    if (backend->previous)
        backend->previous->next = backend->next;
    else
        all_backends = backend->next;
    if (backend->next)
        backend->next->previous = backend->previous;
    pthread_mutex_unlock(&all_lock);
    zr_slab_end(&backend->handles);
    zr_slab_end(&backend->mappings);
    zr_slab_end(&backend->chunks);
    zr_slab_end(&backend->range_records);
    pthread_mutex_destroy(&backend->lock);
    pthread_mutex_destroy(&backend->create_lock);
}

zr_result zr_backend_destroy(zr_backend *backend)
{
    if (!backend)
        return ZR_OK;
    pthread_mutex_lock(&backend->lock);
    unsigned arenas = backend->arenas_count;
    bool ranges = backend->ranges != NULL;
    size_t handles = zr_slab_live_count(&backend->handles);
    pthread_mutex_unlock(&backend->lock);
    if (arenas > 0)
        return zr_fail(ZR_ERR_INVALID, "the %s backend still has %u arenas: destroy them first",
                       backend->ops->name, arenas);
    if (ranges || handles > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "the %s backend still has %s: release imports, ranges and handles first",
                       backend->ops->name, ranges ? "reserved addresses" : "handles");
    backend->ops->end(backend);
    return ZR_OK;
}

/* More than any processor can address, and no more than bins.h and index.h support. */
#define RANGE_MAX_BYTES ((size_t)1 << 54)

/* ---- Ranges -------------------------------------------------------------------------------------------- */

static bool whole_granules(const zr_backend *backend, size_t bytes)
{
    return (bytes & (backend->can.granule_bytes - 1)) == 0;
}

void zr_backend_raise_limit(zr_backend *backend, size_t bytes)
{
    size_t granule_bytes = backend->can.granule_bytes;
    pthread_mutex_lock(&backend->lock);
    if (backend->limit_bytes > 0)
        backend->limit_bytes += (bytes + granule_bytes - 1) & ~(granule_bytes - 1);
    pthread_mutex_unlock(&backend->lock);
}

size_t zr_backend_held_bytes(struct zr_backend *backend)
{
    pthread_mutex_lock(&backend->lock);
    size_t bytes = backend->held_bytes;
    pthread_mutex_unlock(&backend->lock);
    return bytes;
}

size_t zr_backend_vmas_count(struct zr_backend *backend)
{
    pthread_mutex_lock(&backend->lock);
    size_t count = backend->vmas_count;
    pthread_mutex_unlock(&backend->lock);
    return count;
}

zr_result zr_backend_reserve(zr_backend *backend, size_t bytes, struct zr_range **out)
{
    struct zr_range *range = NULL;
    char *address = NULL;
    zr_result result;

    *out = NULL;
    if (bytes == 0 || !whole_granules(backend, bytes))
        return zr_fail(ZR_ERR_INVALID, "a reservation of %zu bytes is not a multiple of the granule size %zu",
                       bytes, backend->can.granule_bytes);
    if (bytes > RANGE_MAX_BYTES)
        return zr_fail(ZR_ERR_ADDRESSES, "a reservation of %zu bytes exceeds the address space", bytes);
    pthread_mutex_lock(&backend->lock);
    if (!zr_slab_reserve(&backend->range_records, 1)) {
        result = ZR_ERR_HOST_MEMORY;
        goto unwind;
    }
    range = zr_slab_take(&backend->range_records);
    *range = (struct zr_range){.backend = backend, .bytes = bytes};
    result = zr_slots_init(&range->slots, &backend->chunks, bytes / backend->can.granule_bytes);
    if (result != ZR_OK)
        goto unwind;
    result = zr_fault(ZR_FAULT_RESERVE)
                 ? zr_fail(ZR_ERR_ADDRESSES, "the system refused to reserve %zu bytes of addresses", bytes)
                 : backend->ops->reserve(backend, bytes, &address);
    if (result != ZR_OK)
        goto unwind;
    range->address = address;
    range->next = backend->ranges;
    backend->ranges = range;
    *out = range;
unwind:
    if (result != ZR_OK && range) {
        if (range->slots.top)
            zr_slots_end(&range->slots);
        zr_slab_give(&backend->range_records, range);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

zr_result zr_backend_release(struct zr_range *range)
{
    zr_backend *backend = range->backend;
    zr_result result = ZR_OK;
    pthread_mutex_lock(&backend->lock);
    struct zr_range **link = &backend->ranges;
    while (*link && *link != range)
        link = &(*link)->next;
    if (range->mappings_count > 0) {
        result = zr_fail(ZR_ERR_INVALID, "the range to release still has %zu mappings: unmap them first",
                         range->mappings_count);
    } else {
        zr_assert(*link == range);
        *link = range->next;
        backend->ops->release(backend, range->address, range->bytes);
        zr_slots_end(&range->slots);
        zr_slab_give(&backend->range_records, range);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* A granule is a power of two. A division would cost more than the rest of a look-up. */
static inline size_t granules_in(const zr_backend *backend, size_t bytes)
{
    return bytes >> __builtin_ctzl(backend->can.granule_bytes);
}

struct zr_mapping *zr_range_mapping(const struct zr_range *range, size_t offset_bytes)
{
    return zr_slots_get(&range->slots, granules_in(range->backend, offset_bytes));
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

/* Counts the bytes before the memory exists, so that two threads cannot both get the last of the limit. */
static zr_result add_handle(zr_backend *backend, size_t bytes, struct zr_handle **out)
{
    zr_result result = ZR_OK;
    pthread_mutex_lock(&backend->lock);
    if (backend->limit_bytes &&
        (bytes > backend->limit_bytes || backend->held_bytes > backend->limit_bytes - bytes))
        result = zr_fail(ZR_ERR_MEMORY,
                         "the %s backend holds %zu bytes; its limit is %zu, and %zu more do not fit",
                         backend->ops->name, backend->held_bytes, backend->limit_bytes, bytes);
    else if (!zr_slab_reserve(&backend->handles, 1))
        result = ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK) {
        *out = zr_slab_take(&backend->handles);
        **out = (struct zr_handle){.bytes = bytes};
        backend->held_bytes += bytes;
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* Ends a handle's lease. The handle's memory is already released. */
static void end_lease(zr_backend *backend, struct zr_handle *handle)
{
    if (backend->lender)
        backend->lender->ops->take_back(backend->lender, handle->bytes,
                                        &(struct zr_lease){handle->lease, handle->leased_granule, -1});
    handle->lease = 0;
}

/* lock: backend->lock, unless no other thread has seen the handle */
static void remove_handle(zr_backend *backend, struct zr_handle *handle)
{
    if (!handle->imported && !handle->vacant)
        backend->held_bytes -= handle->bytes;
    end_lease(backend, handle);
    handle->destroyed = true; /* still readable in the free record, so that a second destroy is detected */
    zr_slab_give(&backend->handles, handle);
}

/* Imports leased memory that came with a descriptor, else creates memory. */
static zr_result create_or_import(zr_backend *backend, struct zr_handle *handle, const struct zr_lease *lease)
{
    if (zr_fault(ZR_FAULT_CREATE))
        return zr_fail(ZR_ERR_MEMORY, "the %s backend has no %zu bytes left", backend->ops->name,
                       handle->bytes);
    return lease->fd < 0
               ? backend->ops->create(backend, handle)
               : backend->ops->import_fd(
                     backend, &(struct zr_segment){.fd = lease->fd, .bytes = handle->bytes}, handle);
}

/* A zrd that ends may destroy the memory that it has just sent. The import then fails, and the next zrd is
 * asked. */
static zr_result lease_and_create(zr_backend *backend, struct zr_handle *handle)
{
    enum { TRIES = 3 };
    struct zr_lease lease = {.fd = -1};
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < TRIES; i++) {
        if (backend->lender)
            result = backend->lender->ops->lease(backend->lender, handle->bytes, &lease);
        handle->lease = lease.number;
        handle->leased_granule = lease.granule;
        if (result == ZR_OK)
            result = create_or_import(backend, handle, &lease);
        if (lease.fd < 0)
            break;
        close(lease.fd);
        if (result != ZR_ERR_INVALID || i + 1 == TRIES)
            break;
        backend->lender->ops->take_back(backend->lender, handle->bytes, &lease);
        handle->lease = 0;
    }
    return result;
}

zr_result zr_backend_create(zr_backend *backend, size_t bytes, struct zr_handle **out)
{
    struct zr_handle *handle = NULL;
    *out = NULL;
    if (bytes == 0 || !whole_granules(backend, bytes))
        return zr_fail(ZR_ERR_INVALID, "a handle of %zu bytes is not a multiple of the granule size %zu",
                       bytes, backend->can.granule_bytes);
    if (bytes > RANGE_MAX_BYTES) /* so that sums of sizes and offsets do not overflow */
        return zr_fail(ZR_ERR_MEMORY, "a handle of %zu bytes exceeds any machine's memory", bytes);
    zr_result result = add_handle(backend, bytes, &handle);
    if (result != ZR_OK)
        return result;
    result = lease_and_create(backend, handle);
    if (result != ZR_OK) {
        pthread_mutex_lock(&backend->lock);
        remove_handle(backend, handle);
        pthread_mutex_unlock(&backend->lock);
        return result;
    }
    *out = handle;
    return ZR_OK;
}

zr_result zr_backend_destroy_handle(zr_backend *backend, struct zr_handle *handle)
{
    zr_result result = ZR_OK;
    pthread_mutex_lock(&backend->lock);
    if (handle->destroyed) {
        result = zr_fail(ZR_ERR_INVALID, "destroying a handle that was destroyed before");
    } else if (handle->mappings_count > 0) {
        handle->destroyed = true;
    } else {
        backend->ops->destroy(backend, handle);
        remove_handle(backend, handle);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

/* Checks that an extent is whole granules within the range. */
static zr_result check_extent(const struct zr_range *range, struct zr_bounds extent, const char *verb)
{
    if (!whole_granules(range->backend, extent.offset_bytes | extent.bytes) || extent.bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "%s of %zu bytes at %zu: both must be multiples of the granule, %zu",
                       verb, extent.bytes, extent.offset_bytes, range->backend->can.granule_bytes);
    if (extent.bytes > range->bytes || extent.offset_bytes > range->bytes - extent.bytes)
        return zr_fail(ZR_ERR_INVALID, "%s of %zu bytes at %zu leaves the range of %zu bytes", verb,
                       extent.bytes, extent.offset_bytes, range->bytes);
    return ZR_OK;
}

static struct zr_slot_run run_of(const struct zr_mapping *mapping, const zr_backend *backend)
{
    return (struct zr_slot_run){granules_in(backend, mapping->offset_bytes),
                                granules_in(backend, mapping->handle->bytes)};
}

/* Whether `second` continues `first` in the same object, so that one VMA holds both. */
static bool continues(const struct zr_mapping *first, const struct zr_mapping *second)
{
    return first && second && first->handle->object == second->handle->object &&
           first->access == second->access &&
           first->handle->offset_bytes + first->handle->bytes == second->handle->offset_bytes;
}

/* The VMAs that this mapping adds to those of its neighbours: -1, 0 or 1; 0 without a budget. */
static long vmas_added(const struct zr_range *range, const struct zr_mapping *mapping)
{
    if (range->backend->can.vma_budget == 0)
        return 0;
    size_t end = mapping->offset_bytes + mapping->handle->bytes;
    const struct zr_mapping *before =
        mapping->offset_bytes ? zr_range_mapping(range, mapping->offset_bytes - 1) : NULL;
    const struct zr_mapping *after = end < range->bytes ? zr_range_mapping(range, end) : NULL;
    return 1 - continues(before, mapping) - continues(mapping, after);
}

/* Whether no granule of the extent is mapped. */
static bool extent_empty(const struct zr_range *range, struct zr_bounds extent)
{
    for (size_t done = 0; done < extent.bytes; done += range->backend->can.granule_bytes)
        if (zr_range_mapping(range, extent.offset_bytes + done))
            return false;
    return true;
}

/* Checks that the extent consists of whole mappings without a gap. */
static zr_result check_whole(const struct zr_range *range, struct zr_bounds extent, const char *verb)
{
    size_t at = extent.offset_bytes, end = extent.offset_bytes + extent.bytes;
    while (at < end) {
        const struct zr_mapping *mapping = zr_range_mapping(range, at);
        if (!mapping)
            return zr_fail(ZR_ERR_INVALID, "%s at %zu, where nothing is mapped", verb, at);
        if (mapping->offset_bytes != at || mapping->handle->bytes > end - at)
            return zr_fail(ZR_ERR_INVALID, "%s covers only a part of the mapping of %zu bytes at %zu", verb,
                           mapping->handle->bytes, mapping->offset_bytes);
        at += mapping->handle->bytes;
    }
    return ZR_OK;
}

static zr_result check_map(struct zr_range *range, struct zr_bounds extent, const struct zr_handle *handle)
{
    zr_backend *backend = range->backend;
    zr_result result = check_extent(range, extent, "a mapping");
    if (result != ZR_OK)
        return result;
    if (handle->destroyed)
        return zr_fail(ZR_ERR_INVALID, "mapping a handle that was destroyed before");
    if (handle->mappings_count > 0 && !backend->can.aliases)
        return zr_fail(ZR_ERR_INVALID, "the %s backend maps a handle at one address only",
                       backend->ops->name);
    if (!extent_empty(range, extent))
        return zr_fail(ZR_ERR_INVALID, "a mapping of %zu bytes at %zu overlaps an existing mapping",
                       extent.bytes, extent.offset_bytes);
    if (backend->can.vma_budget && backend->vmas_count >= backend->can.vma_budget)
        return zr_fail(
            ZR_ERR_ADDRESSES,
            "the budget of %zu mappings is used up; raise it with `sysctl vm.max_map_count=...` or ZR_CONF=vma_budget, or choose a larger granule",
            backend->can.vma_budget);
    if (!zr_slab_reserve(&backend->mappings, 1) || !zr_slots_reserve(&range->slots, 1))
        return ZR_ERR_HOST_MEMORY;
    return ZR_OK;
}

zr_result zr_backend_map(struct zr_range *range, size_t offset_bytes, struct zr_handle *handle)
{
    zr_backend *backend = range->backend;
    pthread_mutex_lock(&backend->lock);
    zr_result result = check_map(range, (struct zr_bounds){offset_bytes, handle->bytes}, handle);
    if (result == ZR_OK)
        result = zr_fault(ZR_FAULT_MAP) ? zr_fail(ZR_ERR_ADDRESSES, "the system refused a mapping")
                                        : backend->ops->map(backend, range->address + offset_bytes, handle);
    if (result == ZR_OK) {
        struct zr_mapping *mapping = zr_slab_take(&backend->mappings);
        *mapping = (struct zr_mapping){.handle = handle, .offset_bytes = offset_bytes};
        backend->vmas_count += (size_t)vmas_added(range, mapping);
        zr_slots_set(&range->slots, run_of(mapping, backend), mapping);
        handle->mappings_count++;
        range->mappings_count++;
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* Removes one mapping, and frees its handle if that was destroyed and has no other mapping. */
static void remove_mapping(struct zr_range *range, struct zr_mapping *mapping)
{
    zr_backend *backend = range->backend;
    struct zr_handle *handle = mapping->handle;
    zr_slots_set(&range->slots, run_of(mapping, backend), NULL);
    backend->vmas_count -= (size_t)vmas_added(range, mapping);
    zr_slab_give(&backend->mappings, mapping);
    range->mappings_count--;
    if (--handle->mappings_count == 0 && handle->destroyed) {
        backend->ops->destroy(backend, handle);
        remove_handle(backend, handle);
    }
}

size_t zr_backend_abandon(struct zr_range *range)
{
    zr_backend *backend = range->backend;
    size_t bytes = 0;
    pthread_mutex_lock(&backend->lock);
    for (size_t at = 0; range->mappings_count > 0 && at < range->bytes;) {
        struct zr_mapping *mapping = zr_range_mapping(range, at);
        at += mapping ? mapping->handle->bytes : backend->can.granule_bytes;
        if (mapping) {
            bytes += mapping->handle->bytes;
            remove_mapping(range, mapping);
        }
    }
    struct zr_range **link = &backend->ranges;
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    zr_slots_end(&range->slots);
    zr_slab_give(&backend->range_records, range);
    pthread_mutex_unlock(&backend->lock);
    return bytes;
}

zr_result zr_backend_unmap(struct zr_range *range, struct zr_bounds extent)
{
    zr_backend *backend = range->backend;
    zr_result result = check_extent(range, extent, "an unmap");
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->lock);
    result = check_whole(range, extent, "an unmap");
    if (result == ZR_OK)
        result = backend->ops->unmap(backend, range->address + extent.offset_bytes, extent.bytes);
    for (size_t done = 0; result == ZR_OK && done < extent.bytes;) {
        struct zr_mapping *mapping = zr_range_mapping(range, extent.offset_bytes + done);
        done += mapping->handle->bytes;
        remove_mapping(range, mapping);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

zr_result zr_backend_set_access(struct zr_range *range, struct zr_bounds extent)
{
    zr_backend *backend = range->backend;
    zr_result result = check_extent(range, extent, "setting access");
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->lock);
    result = check_whole(range, extent, "setting access");
    if (result == ZR_OK)
        result = zr_fault(ZR_FAULT_ACCESS)
                     ? zr_fail(ZR_ERR_ADDRESSES, "the system refused to set access to a mapping")
                     : backend->ops->set_access(backend, range->address + extent.offset_bytes, extent.bytes);
    for (size_t done = 0; result == ZR_OK && done < extent.bytes;) {
        struct zr_mapping *mapping = zr_range_mapping(range, extent.offset_bytes + done);
        backend->vmas_count -= (size_t)vmas_added(range, mapping);
        mapping->access = true;
        backend->vmas_count += (size_t)vmas_added(range, mapping);
        done += mapping->handle->bytes;
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* The next run of mappings with access, from the offset on; empty: none. */
static struct zr_bounds next_accessible(const struct zr_range *range, size_t at)
{
    size_t granule_bytes = range->backend->can.granule_bytes;
    struct zr_bounds out = {0};
    while (at < range->bytes) {
        const struct zr_mapping *mapping = zr_range_mapping(range, at);
        if (mapping && mapping->access) {
            out.offset_bytes = out.bytes ? out.offset_bytes : at;
            out.bytes += mapping->handle->bytes;
        } else if (out.bytes) {
            break;
        }
        at = mapping ? at + mapping->handle->bytes
                     : zr_slots_skip(&range->slots, granules_in(range->backend, at)) * granule_bytes;
    }
    return out;
}

zr_result zr_backend_admit(zr_backend *backend, int ordinal)
{
    if (!backend->ops->admit)
        return ZR_OK;
    pthread_mutex_lock(&backend->lock);
    zr_result result = backend->ops->admit(backend, ordinal);
    for (const struct zr_range *range = backend->ranges; range; range = range->next)
        for (struct zr_bounds part = next_accessible(range, 0); result == ZR_OK && part.bytes > 0;
             part = next_accessible(range, part.offset_bytes + part.bytes))
            result = backend->ops->set_access(backend, range->address + part.offset_bytes, part.bytes);
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* ---- Copies, events ------------------------------------------------------------------------------------ */

/* Checks that the bytes are mapped with access, or lie outside every range in the program's own memory, if
 * the backend allows that. */
static zr_result check_bytes(zr_backend *backend, const void *address, size_t bytes)
{
    const char *first = address;
    for (const struct zr_range *range = backend->ranges; range; range = range->next) {
        if (first < range->address || first >= range->address + range->bytes)
            continue;
        size_t offset = (size_t)(first - range->address);
        if (bytes > range->bytes - offset)
            return zr_fail(ZR_ERR_INVALID, "a copy of %zu bytes crosses the end of its range", bytes);
        for (size_t done = 0; done < bytes;) {
            const struct zr_mapping *mapping = zr_range_mapping(range, offset + done);
            if (!mapping || !mapping->access)
                return zr_fail(ZR_ERR_INVALID, "a copy touches %p, which %s", (void *)(first + done),
                               mapping ? "has no access set" : "is not mapped");
            done = mapping->offset_bytes + mapping->handle->bytes - offset;
        }
        return ZR_OK;
    }
    return backend->can.host_visible || backend->can.host_copies
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "a copy touches %p, which is in no range of the %s backend", address,
                         backend->ops->name);
}

static zr_result check_copy(zr_backend *backend, const struct zr_copy *copy)
{
    zr_result result = ZR_OK;
    if (zr_option_get(ZR_OPTION_CHECK) < ZR_CHECK_CALLS)
        return ZR_OK;
    pthread_mutex_lock(&backend->lock);
    if (copy->from)
        result = check_bytes(backend, copy->from, copy->bytes);
    if (result == ZR_OK)
        result = check_bytes(backend, copy->to, copy->bytes);
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* Finds the mapping of an extent that is one whole handle, mapped once. lock: backend->lock */
static zr_result find_whole(const struct zr_range *range, struct zr_bounds extent, bool vacant,
                            struct zr_mapping **out)
{
    zr_result result = check_whole(range, extent, "vacate or occupy");
    if (result != ZR_OK)
        return result;
    *out = zr_range_mapping(range, extent.offset_bytes);
    if ((*out)->handle->bytes != extent.bytes || (*out)->handle->mappings_count != 1 ||
        (*out)->handle->vacant != vacant || (*out)->access == vacant)
        return zr_fail(ZR_ERR_INVALID, "vacate or occupy at %zu: not one whole, singly mapped handle",
                       extent.offset_bytes);
    return ZR_OK;
}

/* Returns a handle's memory and its lease. The mapping has no access. lock: backend->lock */
static void vacate_handle(zr_backend *backend, struct zr_handle *handle)
{
    backend->ops->vacate(backend, handle);
    handle->vacant = true;
    backend->held_bytes -= handle->bytes;
    end_lease(backend, handle);
}

zr_result zr_backend_vacate(struct zr_range *range, struct zr_bounds extent)
{
    zr_backend *backend = range->backend;
    struct zr_mapping *mapping = NULL;
    if (!backend->ops->vacate)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the %s backend cannot vacate memory", backend->ops->name);
    zr_result result = check_extent(range, extent, "vacated memory");
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->lock);
    result = find_whole(range, extent, false, &mapping);
    if (result == ZR_OK) /* a new mapping has no access */
        result = backend->ops->map(backend, range->address + extent.offset_bytes, mapping->handle);
    if (result == ZR_OK) {
        backend->vmas_count -= (size_t)vmas_added(range, mapping);
        mapping->access = false;
        backend->vmas_count += (size_t)vmas_added(range, mapping);
        vacate_handle(backend, mapping->handle);
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}

/* The lease may take long, and other threads use the backend meanwhile. Only the caller uses the mapping. */
zr_result zr_backend_occupy(struct zr_range *range, struct zr_bounds extent)
{
    zr_backend *backend = range->backend;
    struct zr_mapping *mapping = NULL;
    struct zr_lease lease = {.fd = -1};
    zr_result result = check_extent(range, extent, "occupied memory");
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->lock);
    result = find_whole(range, extent, true, &mapping);
    pthread_mutex_unlock(&backend->lock);
    if (result == ZR_OK && backend->lender)
        result = backend->lender->ops->lease(backend->lender, extent.bytes, &lease);
    if (result != ZR_OK)
        return result;
    result = zr_fault(ZR_FAULT_CREATE) ? zr_fail(ZR_ERR_MEMORY, "the %s backend has no %zu bytes left",
                                                 backend->ops->name, extent.bytes)
                                       : backend->ops->occupy(backend, mapping->handle);
    if (result != ZR_OK) {
        if (backend->lender)
            backend->lender->ops->take_back(backend->lender, extent.bytes, &lease);
        return result;
    }
    pthread_mutex_lock(&backend->lock);
    mapping->handle->vacant = false;
    mapping->handle->lease = lease.number;
    backend->held_bytes += extent.bytes;
    pthread_mutex_unlock(&backend->lock);
    result = zr_backend_set_access(range, extent);
    if (result != ZR_OK) { /* restore the vacant state */
        pthread_mutex_lock(&backend->lock);
        vacate_handle(backend, mapping->handle);
        pthread_mutex_unlock(&backend->lock);
    }
    return result;
}

zr_result zr_backend_copy(zr_backend *backend, const struct zr_copy *copy)
{
    if (copy->bytes == 0)
        return ZR_OK;
    if (!copy->to || !copy->from)
        return zr_fail(ZR_ERR_INVALID, "a copy of %zu bytes from or to NULL", copy->bytes);
    zr_result result = check_copy(backend, copy);
    return result == ZR_OK ? backend->ops->copy(backend, copy) : result;
}

zr_result zr_backend_fill(zr_backend *backend, const struct zr_fill *fill)
{
    if (fill->bytes == 0)
        return ZR_OK;
    if (!fill->to)
        return zr_fail(ZR_ERR_INVALID, "a fill of %zu bytes at NULL", fill->bytes);
    zr_result result = check_copy(backend, &(struct zr_copy){.to = fill->to, .bytes = fill->bytes});
    return result == ZR_OK ? backend->ops->fill(backend, fill) : result;
}

zr_result zr_backend_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    *out = (struct zr_stream_point){.stream = stream};
    return backend->ops->event_record(backend, stream, out);
}

bool zr_backend_event_done(zr_backend *backend, const struct zr_stream_point *event)
{
    return backend->ops->event_done(backend, event);
}

zr_result zr_backend_event_wait(zr_backend *backend, const struct zr_stream_point *event)
{
    return backend->ops->event_wait(backend, event);
}

zr_result zr_backend_synchronize(zr_backend *backend)
{
    return backend->ops->synchronize(backend);
}

zr_result zr_backend_stream_default(uint64_t *stream)
{
    if (*stream == 2)
        return zr_fail(
            ZR_ERR_INVALID,
            "stream 2 (CU_STREAM_PER_THREAD, cudaStreamPerThread) is a different stream in each thread and cannot order memory: use a stream that the program created, or 0, the default stream");
    *stream = 0;
    return ZR_OK;
}

zr_result zr_backend_stream_check(zr_backend *backend, uint64_t stream)
{
    bool here = true;
    zr_result result = backend->ops->stream_home ? backend->ops->stream_home(backend, stream, &here) : ZR_OK;
    return result != ZR_OK || here
               ? result
               : zr_fail(
                     ZR_ERR_INVALID,
                     "stream %#llx belongs to another device or context than the %s backend: wait for its work before the free, or let a stream of this device wait for an event of the other stream, and name the former",
                     (unsigned long long)stream, backend->ops->name);
}

bool zr_backend_stream_elsewhere(zr_backend *backend, uint64_t stream)
{
    bool here = true;
    return backend->ops->stream_home && backend->ops->stream_home(backend, stream, &here) == ZR_OK && !here;
}

zr_result zr_backend_stream_wait(zr_backend *backend, uint64_t stream)
{
    struct zr_stream_point point;
    zr_result result = zr_backend_event_record(backend, stream, &point);
    if (result == ZR_OK)
        result = zr_backend_event_wait(backend, &point);
    if (result == ZR_OK)
        return ZR_OK;
    /* No event: the stream was destroyed, or synchronizing reports the error. */
    return zr_backend_stream_elsewhere(backend, stream) ? zr_backend_stream_check(backend, stream)
                                                        : zr_backend_synchronize(backend);
}

zr_result zr_backend_enter(zr_backend *backend)
{
    return backend->ops->enter ? backend->ops->enter(backend) : ZR_OK;
}

void zr_backend_leave(zr_backend *backend)
{
    if (backend->ops->leave)
        backend->ops->leave(backend);
}

zr_result zr_backend_memory_info(zr_backend *backend, struct zr_backend_memory *out)
{
    *out = (struct zr_backend_memory){0};
    return backend->ops->memory_info
               ? backend->ops->memory_info(backend, out)
               : zr_fail(ZR_ERR_UNAVAILABLE, "the %s backend cannot report its free memory",
                         backend->ops->name);
}

/* ---- Other processes ----------------------------------------------------------------------------------- */

zr_result zr_backend_export(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out)
{
    if (!backend->can.exportable || !backend->ops->export_fd)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the %s backend cannot share memory with other processes",
                       backend->ops->name);
    return backend->ops->export_fd(backend, handle, out);
}

void zr_backend_export_end(zr_backend *backend, const struct zr_handle *handle)
{
    if (backend->ops->export_end)
        backend->ops->export_end(backend, handle);
}

zr_result zr_backend_import(zr_backend *backend, const struct zr_segment *segment, struct zr_handle **out)
{
    zr_result result = ZR_OK;
    struct zr_handle *handle = NULL;
    *out = NULL;
    if (!backend->can.exportable || !backend->ops->import_fd)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the %s backend cannot share memory with other processes",
                       backend->ops->name);
    if (segment->bytes == 0 || !whole_granules(backend, segment->bytes) ||
        !whole_granules(backend, (size_t)segment->offset_bytes))
        return zr_fail(ZR_ERR_INVALID,
                       "an imported segment of %zu bytes is not a multiple of the granule size %zu",
                       segment->bytes, backend->can.granule_bytes);
    pthread_mutex_lock(&backend->lock);
    if (!zr_slab_reserve(&backend->handles, 1)) {
        result = ZR_ERR_HOST_MEMORY;
    } else {
        handle = zr_slab_take(&backend->handles);
        *handle = (struct zr_handle){.bytes = segment->bytes, .imported = true};
        result = backend->ops->import_fd(backend, segment, handle);
        if (result != ZR_OK)
            remove_handle(backend, handle);
        else
            *out = handle;
    }
    pthread_mutex_unlock(&backend->lock);
    return result;
}
