/* backend_file.c: granules at fixed offsets of a file that another module owns. Below backend.c; uses
 * host_common.c.
 *
 * The backend has one range. Byte n of the range is always byte n of a part of the file, so an address keeps
 * its contents while no granule is mapped there, and the same offsets mean the same bytes in every process
 * that maps the file. A handle only counts against the limit. Mapping commits the file's pages, so that a
 * shortage is an error instead of a SIGBUS. No page leaves the file: its owner frees it. */
#define _GNU_SOURCE
#include "alloc/backend/host_common.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "alloc/base/error.h"

struct file_backend {
    zr_backend front; /* first, because file_of() casts */
    int fd;           /* borrowed */
    uint64_t first_bytes;
    char *base; /* of the range; NULL: none. lock: front.lock */
};

static struct file_backend *file_of(zr_backend *backend)
{
    return (struct file_backend *)backend;
}

/* The front holds backend->lock in reserve() and release(). */
static zr_result file_reserve(zr_backend *backend, size_t bytes, char **out)
{
    struct file_backend *file = file_of(backend);
    if (file->base || bytes > backend->limit_bytes)
        return zr_fail(
            ZR_ERR_ADDRESSES,
            "kept memory has one range of %zu bytes: contiguous pools and stripes need an arena on another backend",
            backend->limit_bytes);
    zr_result result = zr_host_reserve(backend, bytes, &file->base);
    *out = file->base;
    return result;
}

static void file_release(zr_backend *backend, char *address, size_t bytes)
{
    file_of(backend)->base = NULL;
    zr_host_release(backend, address, bytes);
}

static zr_result file_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    const struct file_backend *file = file_of(backend);
    off_t offset = (off_t)(file->first_bytes + (size_t)(address - file->base));
    int error;
    do
        error = fallocate(file->fd, 0, offset, (off_t)handle->bytes) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error != 0)
        return zr_fail(ZR_ERR_MEMORY, "the system refuses %zu bytes for kept memory (error %d): free memory",
                       handle->bytes, error);
    if (mmap(address, handle->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd, offset) != address)
        return zr_host_addresses_error(handle->bytes, errno);
    return ZR_OK;
}

/* Large granules become huge pages, if the kernel has MADV_COLLAPSE and a free huge page; contents stay. */
static zr_result file_set_access(zr_backend *backend, char *address, size_t bytes)
{
    zr_result result = zr_host_set_access(backend, address, bytes);
    if (result == ZR_OK && backend->can.granule_bytes % ZR_HOST_HUGE_BYTES == 0)
        madvise(address, bytes, MADV_COLLAPSE);
    return result;
}

static size_t file_reserve_hint(zr_backend *backend, size_t limit_bytes)
{
    (void)limit_bytes;
    return backend->limit_bytes;
}

static void file_end(zr_backend *backend)
{
    zr_backend_end(backend);
    zr_pages_give(backend, sizeof(struct file_backend));
}

static const struct zr_backend_ops file_ops = {
    .version = ZR_BACKEND_VERSION,
    .name = "kept memory",
    .end = file_end,
    .reserve = file_reserve,
    .release = file_release,
    .create = zr_host_create_nothing,
    .destroy = zr_host_destroy_nothing,
    .map = file_map,
    .unmap = zr_host_unmap,
    .set_access = file_set_access,
    .copy = zr_host_copy,
    .fill = zr_host_fill,
    .event_record = zr_host_event_record,
    .event_done = zr_host_event_done,
    .event_wait = zr_host_event_wait,
    .synchronize = zr_host_synchronize,
    .memory_info = zr_host_memory_info,
    .reserve_hint = file_reserve_hint,
};

zr_result zr_backend_file_create(zr_backend **out, const struct zr_file_part *part)
{
    struct file_backend *file = zr_pages_take(sizeof *file);
    *out = NULL;
    if (!file)
        return ZR_ERR_HOST_MEMORY;
    file->front.ops = &file_ops;
    file->front.can = zr_host_capabilities(part->granule_bytes);
    file->front.limit_bytes = part->bytes;
    file->fd = part->fd;
    file->first_bytes = part->first_bytes;
    zr_result result = zr_backend_init(&file->front);
    if (result == ZR_OK)
        *out = &file->front;
    else
        zr_pages_give(file, sizeof *file);
    return result;
}
