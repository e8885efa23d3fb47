/* backend_cuda.c: a GPU's memory, or host memory pinned for it, through the driver's virtual memory calls.
 * Below backend.c; uses cuda_driver.c, cuda_events.c and, for host memory, cuda_host.c.
 *
 * Every call pushes the device's primary context and pops it at the end, so that the caller's current context
 * does not change. The driver orders an unmap with no stream: arenas and pools know by events that no stream
 * uses the memory. Handles and addresses that the driver refuses to release are kept and released later, so
 * that a single refusal loses nothing.
 *
 * The driver does not survive fork(). In a child every call fails with a message that says so. */
#define _GNU_SOURCE
#include "alloc/backend/backend.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/cuda_driver.h"
#include "alloc/backend/cuda_events.h"
#include "alloc/backend/cuda_host.h"
#include "alloc/backend/host_common.h"
#include "alloc/backend/lender.h"
#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"

/* The device itself, its host node, and the max number of peers in a machine. */
enum { PEERS_MAX = 62, ACCESS_MAX = PEERS_MAX + 2 };
/* An arena reserves this many times the size of the memory, up to what the device can address. */
#define RESERVE_FACTOR 8
#define RESERVE_MAX    ((size_t)1 << 43)

/* Memory from cuMemCreate() or an import. zr_handle.object points to it. */
struct cuda_memory {
    struct cuda_memory *next; /* the next one in `unreleased` */
    zr_cu_memory memory;
    int fd; /* the exported descriptor; -1: none yet */
};

/* A reservation of addresses. */
struct cuda_addresses {
    struct cuda_addresses *next;
    zr_cu_address address;
    size_t bytes;
    bool unwanted; /* released by the arena, and not yet by the driver */
};

struct cuda_backend {
    zr_backend front; /* first, because cuda_of() casts */
    /* Set at creation. */
    const struct zr_cuda_driver *driver;
    zr_cu_device device;
    zr_cu_context context; /* NULL: the context is not retained */
    pid_t owner;
    zr_cu_properties properties;
    char memory[96]; /* a description for messages */
    struct zr_cuda_events events;
    /* lock: front.lock */
    zr_cu_access access[ACCESS_MAX];
    size_t access_count;
    /* lock for all fields below: front.create_lock */
    struct zr_slab memory_records, address_records;
    struct cuda_memory *unreleased;
    struct cuda_addresses *reservations;
};

static struct cuda_backend *cuda_of(zr_backend *backend)
{
    return (struct cuda_backend *)backend;
}

static zr_cu_address address_of(const void *pointer)
{
    return (zr_cu_address)(uintptr_t)pointer;
}

static zr_cu_stream stream_of(uint64_t stream)
{
    return (zr_cu_stream)(uintptr_t)stream;
}

/* ---- The context --------------------------------------------------------------------------------------- */

static bool forked(const struct cuda_backend *cuda)
{
    return getpid() != cuda->owner;
}

/* Makes the device's context current. After success, leave() must follow. */
static zr_result enter(struct cuda_backend *cuda)
{
    if (forked(cuda))
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "the CUDA driver does not work after fork(): create the cuda backend in the child before the parent uses CUDA, or start the child with exec");
    zr_cu_result code = cuda->driver->context_push(cuda->context);
    return code == ZR_CU_SUCCESS
               ? ZR_OK
               : zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "the context of device %d", cuda->device);
}

static void leave(struct cuda_backend *cuda)
{
    zr_cu_context popped;
    /* A pop has no known cause of failure here. A second try costs nothing. */
    if (cuda->driver->context_pop(&popped) != ZR_CU_SUCCESS)
        cuda->driver->context_pop(&popped);
}

static zr_result cuda_enter(zr_backend *backend)
{
    return enter(cuda_of(backend));
}

static void cuda_leave(zr_backend *backend)
{
    leave(cuda_of(backend));
}

static bool succeeded(zr_cu_result code)
{
    return code == ZR_CU_SUCCESS;
}

/* Whether the driver has released the memory, or has shut down. */
static bool is_released(zr_cu_result code)
{
    return code == ZR_CU_SUCCESS || code == ZR_CU_DEINITIALIZED;
}

/* Calls the driver in the device's context. A result that is not `good` becomes `failure`, with a message. */
#define IN_CONTEXT(cuda, call, good, failure, ...)                                                           \
    ({                                                                                                       \
        zr_result result_ = enter(cuda);                                                                     \
        if (result_ == ZR_OK) {                                                                              \
            zr_cu_result code_ = (cuda)->driver->call;                                                       \
            if (!good(code_))                                                                                \
                result_ = zr_cuda_error(code_, failure, __VA_ARGS__);                                        \
            leave(cuda);                                                                                     \
        }                                                                                                    \
        result_;                                                                                             \
    })

/* Retries the releases that the driver has refused. lock: create_lock; the context is current */
static void release_refused(struct cuda_backend *cuda)
{
    for (struct cuda_memory **link = &cuda->unreleased, *memory; (memory = *link);) {
        if (is_released(cuda->driver->release(memory->memory))) {
            *link = memory->next;
            zr_slab_give(&cuda->memory_records, memory);
        } else {
            link = &memory->next;
        }
    }
    for (struct cuda_addresses **link = &cuda->reservations, *addresses; (addresses = *link);) {
        if (addresses->unwanted &&
            is_released(cuda->driver->address_free(addresses->address, addresses->bytes))) {
            *link = addresses->next;
            zr_slab_give(&cuda->address_records, addresses);
        } else {
            link = &addresses->next;
        }
    }
}

/* ---- Addresses ----------------------------------------------------------------------------------------- */

static zr_result cuda_reserve(zr_backend *backend, size_t bytes, char **out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    zr_cu_address address = 0;
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->create_lock);
    release_refused(cuda);
    if (!zr_slab_reserve(&cuda->address_records, 1)) {
        result = ZR_ERR_HOST_MEMORY;
        goto unwind;
    }
    zr_cu_result code = cuda->driver->reserve(&address, bytes, backend->can.granule_bytes, 0, 0);
    if (code != ZR_CU_SUCCESS) {
        result =
            zr_cuda_error(code, ZR_ERR_ADDRESSES, "%zu bytes of addresses on device %d", bytes, cuda->device);
        goto unwind;
    }
    struct cuda_addresses *addresses = zr_slab_take(&cuda->address_records);
    *addresses = (struct cuda_addresses){.next = cuda->reservations, .address = address, .bytes = bytes};
    cuda->reservations = addresses;
    *out = (char *)(uintptr_t)address;
unwind:
    pthread_mutex_unlock(&backend->create_lock);
    leave(cuda);
    return result;
}

static void cuda_release(zr_backend *backend, char *address, size_t bytes)
{
    struct cuda_backend *cuda = cuda_of(backend);
    bool entered = enter(cuda) == ZR_OK;
    (void)bytes;
    pthread_mutex_lock(&backend->create_lock);
    for (struct cuda_addresses *each = cuda->reservations; each; each = each->next)
        if (each->address == address_of(address))
            each->unwanted = true;
    if (entered)
        release_refused(cuda);
    pthread_mutex_unlock(&backend->create_lock);
    if (entered)
        leave(cuda);
}

static size_t total_bytes(struct cuda_backend *cuda)
{
    struct zr_backend_memory memory;
    return zr_backend_memory_info(&cuda->front, &memory) == ZR_OK && memory.total_bytes != SIZE_MAX
               ? memory.total_bytes
               : RESERVE_MAX / RESERVE_FACTOR;
}

static zr_result cuda_lender_key(zr_backend *backend, char out[ZR_LENDER_KEY_BYTES])
{
    out[0] = '\0';
    return backend->can.host_visible || !backend->can.exportable
               ? ZR_OK
               : zr_cuda_device_key(cuda_of(backend)->device, out);
}

static size_t cuda_reserve_hint(zr_backend *backend, size_t limit_bytes)
{
    size_t granule_bytes = backend->can.granule_bytes;
    size_t bytes = limit_bytes ? limit_bytes : total_bytes(cuda_of(backend));
    bytes = bytes > RESERVE_MAX / RESERVE_FACTOR ? RESERVE_MAX : bytes * RESERVE_FACTOR;
    return (bytes + granule_bytes - 1) & ~(granule_bytes - 1);
}

/* ---- Physical memory ----------------------------------------------------------------------------------- */

/* Called before the driver creates the memory, so that memory never lacks a record. */
static zr_result take_record(struct cuda_backend *cuda, struct cuda_memory **out)
{
    pthread_mutex_lock(&cuda->front.create_lock);
    release_refused(cuda);
    bool there = zr_slab_reserve(&cuda->memory_records, 1);
    if (there) {
        *out = zr_slab_take(&cuda->memory_records);
        **out = (struct cuda_memory){.fd = -1};
    }
    pthread_mutex_unlock(&cuda->front.create_lock);
    return there ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

static void give_record(struct cuda_backend *cuda, struct cuda_memory *memory)
{
    pthread_mutex_lock(&cuda->front.create_lock);
    zr_slab_give(&cuda->memory_records, memory);
    pthread_mutex_unlock(&cuda->front.create_lock);
}

static zr_result cuda_create(zr_backend *backend, struct zr_handle *handle)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_memory *memory = NULL;
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    result = take_record(cuda, &memory);
    if (result == ZR_OK) {
        zr_cu_result code = cuda->driver->create(&memory->memory, handle->bytes, &cuda->properties, 0);
        if (code != ZR_CU_SUCCESS) {
            result =
                zr_cuda_error(code, ZR_ERR_MEMORY, "%zu bytes of memory on %s", handle->bytes, cuda->memory);
            give_record(cuda, memory);
        }
    }
    if (result == ZR_OK)
        handle->object = (uintptr_t)memory;
    leave(cuda);
    return result;
}

static void cuda_destroy(zr_backend *backend, struct zr_handle *handle)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_memory *memory = (struct cuda_memory *)handle->object;
    bool entered = enter(cuda) == ZR_OK;
    if (memory->fd >= 0)
        close(memory->fd);
    pthread_mutex_lock(&backend->create_lock);
    memory->next = cuda->unreleased;
    cuda->unreleased = memory;
    if (entered)
        release_refused(cuda);
    pthread_mutex_unlock(&backend->create_lock);
    if (entered)
        leave(cuda);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static zr_result cuda_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    const struct cuda_memory *memory = (const struct cuda_memory *)handle->object;
    return IN_CONTEXT(cuda_of(backend), map(address_of(address), handle->bytes, 0, memory->memory, 0),
                      succeeded, ZR_ERR_ADDRESSES, "to map %zu bytes at %p", handle->bytes, (void *)address);
}

/* One call unmaps several whole mappings. The driver orders it with no stream: the caller has made sure that
 * all work in the part is complete. */
static zr_result cuda_unmap(zr_backend *backend, char *address, size_t bytes)
{
    return IN_CONTEXT(cuda_of(backend), unmap(address_of(address), bytes), is_released, ZR_ERR_ADDRESSES,
                      "to unmap %zu bytes at %p", bytes, (void *)address);
}

static zr_result cuda_set_access(zr_backend *backend, char *address, size_t bytes)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return IN_CONTEXT(cuda, set_access(address_of(address), bytes, cuda->access, cuda->access_count),
                      succeeded, ZR_ERR_ADDRESSES, "access for %zu devices to %zu bytes at %p",
                      cuda->access_count, bytes, (void *)address);
}

/* Adds a device that later calls of set_access() include. */
static zr_result cuda_admit(zr_backend *backend, int ordinal)
{
    struct cuda_backend *cuda = cuda_of(backend);
    int can = 0;
    zr_cu_device peer;
    zr_cu_result code = cuda->driver->device_get(&peer, ordinal);
    if (code == ZR_CU_SUCCESS)
        code = cuda->driver->can_access_peer(&can, peer, cuda->device);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_INVALID, "peer device %d", ordinal);
    if (!can)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "device %d cannot reach the memory of device %d: see nvidia-smi topo -p2p rw", peer,
                       cuda->device);
    for (size_t i = 0; i < cuda->access_count; i++)
        if (cuda->access[i].location.type == ZR_CU_LOCATION_DEVICE && cuda->access[i].location.id == peer)
            return ZR_OK;
    if (cuda->access_count == ACCESS_MAX)
        return zr_fail(ZR_ERR_INVALID, "device %d has more than %d peers", cuda->device, PEERS_MAX);
    cuda->access[cuda->access_count++] =
        (zr_cu_access){{ZR_CU_LOCATION_DEVICE, peer}, ZR_CU_ACCESS_READ_WRITE};
    return ZR_OK;
}

/* ---- Copies and events --------------------------------------------------------------------------------- */

/* Addresses are unified, so the driver knows host from device memory by them. */
static zr_result cuda_copy(zr_backend *backend, const struct zr_copy *copy)
{
    return IN_CONTEXT(
        cuda_of(backend),
        copy(address_of(copy->to), address_of(copy->from), copy->bytes, stream_of(copy->stream)), succeeded,
        ZR_ERR_INVALID, "a copy of %zu bytes from %p to %p", copy->bytes, copy->from, copy->to);
}

static zr_result cuda_fill(zr_backend *backend, const struct zr_fill *fill)
{
    return IN_CONTEXT(cuda_of(backend),
                      fill(address_of(fill->to), fill->value, fill->bytes, stream_of(fill->stream)),
                      succeeded, ZR_ERR_INVALID, "to fill %zu bytes at %p", fill->bytes, fill->to);
}

static zr_result cuda_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    result = zr_cuda_events_record(&cuda->events, stream_of(stream), &out->ticket);
    leave(cuda);
    return result;
}

static bool cuda_event_done(zr_backend *backend, const struct zr_stream_point *event)
{
    struct cuda_backend *cuda = cuda_of(backend);
    if (enter(cuda) != ZR_OK)
        return false;
    bool done = zr_cuda_events_done(&cuda->events, event->ticket);
    leave(cuda);
    return done;
}

static zr_result cuda_event_wait(zr_backend *backend, const struct zr_stream_point *event)
{
    struct cuda_backend *cuda = cuda_of(backend);
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    result = zr_cuda_events_wait(&cuda->events, event->ticket);
    leave(cuda);
    return result;
}

/* The NULL stream and the default streams belong to the context that is current. */
static zr_result cuda_stream_home(zr_backend *backend, uint64_t stream, bool *here)
{
    struct cuda_backend *cuda = cuda_of(backend);
    zr_cu_context context = cuda->context;
    *here = true;
    if (stream <= ZR_CU_STREAM_PER_THREAD)
        return ZR_OK;
    zr_result result = IN_CONTEXT(cuda, stream_context(stream_of(stream), &context), succeeded,
                                  ZR_ERR_INVALID, "the context of stream %#llx", (unsigned long long)stream);
    *here = context == cuda->context;
    return result;
}

static zr_result cuda_synchronize(zr_backend *backend)
{
    struct cuda_backend *cuda = cuda_of(backend);
    return IN_CONTEXT(cuda, context_synchronize(), is_released, ZR_ERR_UNAVAILABLE, "to wait for device %d",
                      cuda->device);
}

static zr_result cuda_memory_info(zr_backend *backend, struct zr_backend_memory *out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    if (backend->can.host_visible) {
        struct zr_machine machine = {0};
        zr_os_machine_under("", &machine);
        out->total_bytes = machine.memory_bytes ? machine.memory_bytes : SIZE_MAX;
        out->free_bytes = machine.memory_bytes ? machine.memory_available_bytes : SIZE_MAX;
        return ZR_OK;
    }
    return IN_CONTEXT(cuda, memory_info(&out->free_bytes, &out->total_bytes), succeeded, ZR_ERR_UNAVAILABLE,
                      "to report the memory of device %d", cuda->device);
}

/* ---- Other processes ----------------------------------------------------------------------------------- */

/* A handle has one descriptor, created at its first export and kept until the handle is destroyed. */
static zr_result cuda_export(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_memory *memory = (struct cuda_memory *)handle->object;
    zr_cu_result code = ZR_CU_SUCCESS;
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&backend->create_lock);
    if (memory->fd < 0) {
        int fd = -1;
        code = cuda->driver->export_handle(&fd, memory->memory, ZR_CU_HANDLE_POSIX_FD, 0);
        if (code == ZR_CU_SUCCESS) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            memory->fd = fd;
        }
    }
    /* The driver may refuse to export memory that the process has imported. The lender can send a descriptor.
     */
    if (code != ZR_CU_SUCCESS && handle->leased_granule &&
        backend->lender->ops->piece(backend->lender, handle->leased_granule, &memory->fd) == ZR_OK)
        code = ZR_CU_SUCCESS;
    *out = (struct zr_segment){.fd = memory->fd, .offset_bytes = 0, .bytes = handle->bytes};
    pthread_mutex_unlock(&backend->create_lock);
    if (code != ZR_CU_SUCCESS)
        result = zr_cuda_error(code, ZR_ERR_HOST_MEMORY, "a file descriptor (`ulimit -n`?) for %zu bytes",
                               handle->bytes);
    leave(cuda);
    return result;
}

static void cuda_export_end(zr_backend *backend, const struct zr_handle *handle)
{
    struct cuda_memory *memory = (struct cuda_memory *)handle->object;
    pthread_mutex_lock(&backend->create_lock);
    if (memory->fd >= 0)
        close(memory->fd);
    memory->fd = -1;
    pthread_mutex_unlock(&backend->create_lock);
}

static zr_result cuda_import(zr_backend *backend, const struct zr_segment *segment, struct zr_handle *out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    struct cuda_memory *memory = NULL;
    if (segment->offset_bytes != 0)
        return zr_fail(ZR_ERR_INVALID, "a CUDA segment must be imported whole, from offset 0, not %llu",
                       (unsigned long long)segment->offset_bytes);
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    result = take_record(cuda, &memory);
    if (result == ZR_OK) {
        zr_cu_result code = cuda->driver->import_handle(&memory->memory, (void *)(intptr_t)segment->fd,
                                                        ZR_CU_HANDLE_POSIX_FD);
        if (code != ZR_CU_SUCCESS) {
            result = zr_cuda_error(code, ZR_ERR_INVALID,
                                   "to import descriptor %d (is it a segment from zr_block_export()?)",
                                   segment->fd);
            give_record(cuda, memory);
        }
    }
    if (result == ZR_OK)
        out->object = (uintptr_t)memory;
    leave(cuda);
    return result;
}

/* ---- Create and destroy -------------------------------------------------------------------------------- */

static void cuda_end(zr_backend *backend)
{
    struct cuda_backend *cuda = cuda_of(backend);
    /* No later call can retry, so each step is tried twice. */
    bool entered = cuda->context && (enter(cuda) == ZR_OK || enter(cuda) == ZR_OK);
    for (unsigned i = 0; entered && i < 2; i++)
        release_refused(cuda);
    zr_cuda_events_end(&cuda->events, entered);
    if (entered)
        leave(cuda);
    if (cuda->context && !forked(cuda) && cuda->driver->context_release(cuda->device) != ZR_CU_SUCCESS)
        cuda->driver->context_release(cuda->device);
    zr_slab_end(&cuda->memory_records);
    zr_slab_end(&cuda->address_records);
    zr_backend_end(backend);
    zr_pages_give(cuda, sizeof *cuda);
}

/* clang-format off */
#define STREAM_OPS                                                                                           \
    .version = ZR_BACKEND_VERSION, .name = "cuda", .end = cuda_end, .copy = cuda_copy, .fill = cuda_fill,    \
    .enter = cuda_enter, .leave = cuda_leave, .event_record = cuda_event_record,                             \
    .event_done = cuda_event_done, .event_wait = cuda_event_wait, .synchronize = cuda_synchronize,           \
    .stream_home = cuda_stream_home, .memory_info = cuda_memory_info, .reserve_hint = cuda_reserve_hint
/* clang-format on */

static const struct zr_backend_ops cuda_ops = {
    STREAM_OPS,
    .reserve = cuda_reserve,
    .release = cuda_release,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .set_access = cuda_set_access,
    .admit = cuda_admit,
    .lender_key = cuda_lender_key,
    .export_fd = cuda_export,
    .export_end = cuda_export_end,
    .import_fd = cuda_import,
};

/* All devices can access locked pages, so there is no admit(). */
static const struct zr_backend_ops locked_ops = {
    STREAM_OPS,
    .reserve = zr_host_reserve,
    .release = zr_host_release,
    .create = zr_cuda_locked_create,
    .destroy = zr_cuda_locked_destroy,
    .map = zr_cuda_locked_map,
    .unmap = zr_cuda_locked_unmap,
    .set_access = zr_cuda_locked_set_access,
};

/* ---- Creation ------------------------------------------------------------------------------------------ */

static zr_result attribute(struct cuda_backend *cuda, zr_cu_attribute which, int *out)
{
    zr_cu_result code = cuda->driver->device_attribute(out, which, cuda->device);
    return code == ZR_CU_SUCCESS ? ZR_OK
                                 : zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "attribute %d of device %d",
                                                 (int)which, cuda->device);
}

static zr_result find_device(struct cuda_backend *cuda, int ordinal)
{
    int count = 0;
    zr_cu_result code = cuda->driver->device_count(&count);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "the number of devices");
    if (ordinal < 0 || ordinal >= count)
        return zr_fail(count ? ZR_ERR_INVALID : ZR_ERR_UNAVAILABLE,
                       "there is no CUDA device %d: %d are visible (see nvidia-smi -L and "
                       "CUDA_VISIBLE_DEVICES)",
                       ordinal, count);
    code = cuda->driver->device_get(&cuda->device, ordinal);
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_INVALID, "device %d", ordinal);
}

/* Queries what the device can do, and sets the properties of its own memory. */
static zr_result query_device(struct cuda_backend *cuda)
{
    int unified = 0, virtual_memory = 0, fds = 0, rdma = 0;
    zr_result result = attribute(cuda, ZR_CU_ATTRIBUTE_UNIFIED_ADDRESSING, &unified);
    if (result == ZR_OK)
        result = attribute(cuda, ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY, &virtual_memory);
    if (result == ZR_OK)
        result = attribute(cuda, ZR_CU_ATTRIBUTE_POSIX_FD, &fds);
    if (result != ZR_OK)
        return result;
    if (!unified || !virtual_memory)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "device %d has no %s: a GPU and driver with CUDA virtual memory management are needed "
                       "(in a virtual machine, pass-through rather than a vGPU)",
                       cuda->device, unified ? "virtual memory calls" : "unified addresses");
    /* A driver that does not know the attribute lacks the feature. */
    if (cuda->driver->device_attribute(&rdma, ZR_CU_ATTRIBUTE_RDMA_VIRTUAL_MEMORY, cuda->device) !=
        ZR_CU_SUCCESS)
        rdma = 0;
    cuda->properties = (zr_cu_properties){
        .type = ZR_CU_ALLOCATION_PINNED,
        .exported_as = fds ? ZR_CU_HANDLE_POSIX_FD : ZR_CU_HANDLE_NONE,
        .location = {.type = ZR_CU_LOCATION_DEVICE, .id = cuda->device},
        .flags = {.rdma = rdma != 0},
    };
    cuda->front.can.exportable = fds != 0;
    snprintf(cuda->memory, sizeof cuda->memory, "device %d", cuda->device);
    return ZR_OK;
}

/* Replaces device memory by host memory, of the best kind that the driver grants. */
static zr_result choose_host_memory(struct cuda_backend *cuda, int node)
{
    struct zr_cuda_host host;
    zr_result result = enter(cuda);
    if (result != ZR_OK)
        return result;
    result = zr_cuda_host_choose(cuda->driver,
                                 &(struct zr_cuda_host_request){.device = cuda->device,
                                                                .node = node,
                                                                .exported_as = cuda->properties.exported_as},
                                 &host);
    leave(cuda);
    if (result != ZR_OK)
        return result;
    struct zr_capabilities *can = &cuda->front.can;
    cuda->properties = host.properties;
    snprintf(cuda->memory, sizeof cuda->memory, "%s", host.description);
    can->host_visible = true;
    can->vma_budget = zr_host_vma_budget();
    can->exportable = can->exportable && host.kind == ZR_CUDA_HOST_NODE;
    can->aliases = host.kind != ZR_CUDA_HOST_LOCKED;
    cuda->front.ops = host.kind == ZR_CUDA_HOST_LOCKED ? &locked_ops : &cuda_ops;
    return ZR_OK;
}

/* Gives access to the device, its peers, and for host memory the processor. */
static zr_result choose_access(struct cuda_backend *cuda, const struct zr_cuda_options *options)
{
    if (options->peers_count > PEERS_MAX || (options->peers_count && !options->peers))
        return zr_fail(ZR_ERR_INVALID, "peers: %zu devices in the list, at most %d allowed",
                       options->peers_count, PEERS_MAX);
    cuda->access[cuda->access_count++] =
        (zr_cu_access){{ZR_CU_LOCATION_DEVICE, cuda->device}, ZR_CU_ACCESS_READ_WRITE};
    if (cuda->front.can.host_visible)
        cuda->access[cuda->access_count++] =
            (zr_cu_access){cuda->properties.location, ZR_CU_ACCESS_READ_WRITE};
    zr_result result = ZR_OK;
    for (size_t i = 0; result == ZR_OK && i < options->peers_count; i++)
        result = cuda_admit(&cuda->front, options->peers[i]);
    return result;
}

/* The max bytes of host memory: the expected bytes, the limit, or the machine's memory. */
static size_t expected_max_bytes(struct cuda_backend *cuda, const struct zr_cuda_options *options)
{
    size_t bytes = options->expected_bytes ? options->expected_bytes : options->limit_bytes;
    return bytes ? bytes : total_bytes(cuda);
}

static zr_result choose_granule(struct cuda_backend *cuda, const struct zr_cuda_options *options)
{
    size_t least = (size_t)sysconf(_SC_PAGESIZE), recommended = ZR_HOST_HUGE_BYTES;
    size_t requested_bytes = options->granule_bytes;
    zr_cu_result code = ZR_CU_SUCCESS;
    if (cuda->front.ops == &cuda_ops)
        code = cuda->driver->granularity(&least, &cuda->properties, ZR_CU_GRANULARITY_MINIMUM);
    if (cuda->front.ops == &cuda_ops && code == ZR_CU_SUCCESS)
        code = cuda->driver->granularity(&recommended, &cuda->properties, ZR_CU_GRANULARITY_RECOMMENDED);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_INVALID, "the granularity of memory on %s", cuda->memory);
    if (requested_bytes == 0 && zr_option_get(ZR_OPTION_GRANULE) == 0)
        requested_bytes = cuda->front.can.host_visible
                              ? zr_cuda_host_granule(expected_max_bytes(cuda, options), recommended)
                              : recommended;
    zr_result result = zr_backend_granule(requested_bytes, &cuda->front.can.granule_bytes);
    if (result != ZR_OK)
        return result;
    if (least == 0 || cuda->front.can.granule_bytes % least != 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "granule size %zu: must be a multiple of the device's granularity, %zu; omit the size for the recommended %zu",
            cuda->front.can.granule_bytes, least, recommended);
    cuda->front.can.least_granule_bytes = least;
    return ZR_OK;
}

/* Queries what zrd's ledger of a device uses; 0 if the driver does not say. Never fails. */
static void describe_device(struct cuda_backend *cuda)
{
    static const zr_cu_attribute parts[] = {ZR_CU_ATTRIBUTE_PCI_DOMAIN, ZR_CU_ATTRIBUTE_PCI_BUS,
                                            ZR_CU_ATTRIBUTE_PCI_DEVICE};
    struct zr_backend_memory memory;
    uint64_t number = 1;
    if (cuda->front.can.host_visible)
        return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int part = 0;
        bool known = cuda->driver->device_attribute(&part, parts[i], cuda->device) == ZR_CU_SUCCESS;
        number = known && number ? number << 16 | (uint16_t)part : 0;
    }
    cuda->front.device = number;
    if (cuda_memory_info(&cuda->front, &memory) == ZR_OK)
        cuda->front.before_bytes = memory.total_bytes - memory.free_bytes;
}

static zr_result retain_context(struct cuda_backend *cuda)
{
    zr_cu_result code = cuda->driver->context_retain(&cuda->context, cuda->device);
    if (code == ZR_CU_SUCCESS)
        return ZR_OK;
    cuda->context = NULL;
    return zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "the primary context of device %d", cuda->device);
}

static zr_result prepare(struct cuda_backend *cuda, const struct zr_cuda_options *options)
{
    zr_result result = find_device(cuda, options->device);
    if (result == ZR_OK)
        result = query_device(cuda);
    if (result == ZR_OK)
        result = retain_context(cuda);
    if (result == ZR_OK && options->kind == ZR_CUDA_HOST)
        result = choose_host_memory(cuda, options->numa_node);
    if (result == ZR_OK)
        result = choose_access(cuda, options);
    if (result == ZR_OK)
        result = choose_granule(cuda, options);
    if (result != ZR_OK)
        return result;
    size_t granule_bytes = cuda->front.can.granule_bytes;
    cuda->front.limit_bytes = options->limit_bytes & ~(granule_bytes - 1);
    if (options->limit_bytes && !cuda->front.limit_bytes)
        cuda->front.limit_bytes = 1; /* below one granule: no handle fits */
    describe_device(cuda);
    return zr_cuda_events_init(&cuda->events, cuda->driver);
}

zr_result zr_backend_cuda_open(zr_backend **out, const struct zr_cuda_options *options, zr_lender_find *find)
{
    struct zr_cuda_options own;
    const struct zr_cuda_driver *driver;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "creating a backend: `out` is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_cuda_options, peers_count, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (options->kind != ZR_CUDA_DEVICE && options->kind != ZR_CUDA_HOST)
        return zr_fail(ZR_ERR_INVALID, "kind %d: must be ZR_CUDA_DEVICE or ZR_CUDA_HOST", (int)options->kind);
    result = zr_cuda_driver_get(&driver);
    if (result != ZR_OK)
        return result;
    struct cuda_backend *cuda = zr_pages_take(sizeof *cuda);
    if (!cuda)
        return ZR_ERR_HOST_MEMORY;
    cuda->front.ops = &cuda_ops;
    cuda->front.memory = cuda->memory;
    cuda->front.can = (struct zr_capabilities){
        .descriptors = true, .host_copies = true, .aliases = true, .default_streams = true};
    cuda->driver = driver;
    cuda->owner = getpid();
    zr_slab_init(&cuda->memory_records, sizeof(struct cuda_memory), ZR_POOL_FAULTS);
    zr_slab_init(&cuda->address_records, sizeof(struct cuda_addresses), ZR_POOL_FAULTS);
    result = zr_backend_init(&cuda->front);
    if (result != ZR_OK) {
        zr_pages_give(cuda, sizeof *cuda);
        return result;
    }
    result = prepare(cuda, options);
    if (result == ZR_OK && find)
        result = find(&cuda->front, &cuda->front.lender);
    if (result != ZR_OK) {
        cuda_end(&cuda->front);
        return result;
    }
    *out = &cuda->front;
    return ZR_OK;
}
