/* device_pool.c: see device_pool.h. Uses backend.c. */
#include "alloc/service/server/device_pool.h"

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

/* 2^20 pieces: 2 TiB in granules of 2 MiB. The low bits of a piece's number are its index in `all`. */
enum { INDEX_BITS = 20 };
#define PIECES_MAX   ((size_t)1 << INDEX_BITS)
#define PIECES_BYTES (PIECES_MAX * sizeof(struct zr_device_piece))

zr_result zr_device_pool_open(struct zr_device_pool *device_pool, int ordinal, uint64_t *total_bytes)
{
    struct zr_backend_memory memory;
    zr_result result =
        zr_backend_cuda_open(&device_pool->backend, &(struct zr_cuda_options){.device = ordinal}, NULL);
    if (result == ZR_OK && !device_pool->backend->can.exportable)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "device %d cannot share memory by file descriptor", ordinal);
    if (result == ZR_OK)
        result = zr_backend_memory_info(device_pool->backend, &memory);
    if (result == ZR_OK && !(device_pool->all = zr_pages_take(PIECES_BYTES)))
        result = ZR_ERR_HOST_MEMORY;
    if (result != ZR_OK) {
        zr_device_pool_close(device_pool);
        return result;
    }
    /* Clients may use any granule that the device allows. */
    device_pool->backend->can.granule_bytes = device_pool->backend->can.least_granule_bytes;
    device_pool->serial = zr_os_now_ns() >> INDEX_BITS << 4;
    *total_bytes = memory.total_bytes;
    return ZR_OK;
}

void zr_device_pool_close(struct zr_device_pool *device_pool)
{
    if (device_pool->window)
        zr_backend_release(device_pool->window);
    if (device_pool->all)
        zr_pages_give(device_pool->all, PIECES_BYTES);
    if (device_pool->backend)
        zr_backend_destroy(device_pool->backend);
    *device_pool = (struct zr_device_pool){0};
}

/* ---- Clearing ------------------------------------------------------------------------------------------ */

static zr_result widen_window(struct zr_device_pool *device_pool, size_t bytes)
{
    struct zr_range *wider;
    if (device_pool->window && device_pool->window->bytes >= bytes)
        return ZR_OK;
    zr_result result = zr_backend_reserve(device_pool->backend, bytes, &wider);
    if (result != ZR_OK)
        return result;
    if (device_pool->window)
        zr_backend_release(device_pool->window);
    device_pool->window = wider;
    return ZR_OK;
}

/* Clears the handle's memory, because the driver does not promise zeros. */
static zr_result clear(struct zr_device_pool *device_pool, struct zr_handle *handle)
{
    zr_backend *backend = device_pool->backend;
    struct zr_bounds all = {0, handle->bytes};
    zr_result result = widen_window(device_pool, handle->bytes);
    if (result == ZR_OK)
        result = zr_backend_map(device_pool->window, 0, handle);
    if (result != ZR_OK)
        return result;
    result = zr_backend_set_access(device_pool->window, all);
    if (result == ZR_OK)
        result = zr_backend_fill(
            backend, &(struct zr_fill){.to = device_pool->window->address, .bytes = handle->bytes});
    /* Retry each call once: an unmap during the fill ends the context, and a remaining mapping blocks the
     * window for the next piece. */
    zr_result waited = zr_backend_synchronize(backend);
    if (waited != ZR_OK)
        waited = zr_backend_synchronize(backend);
    zr_result unmapped = zr_backend_unmap(device_pool->window, all);
    if (unmapped != ZR_OK)
        unmapped = zr_backend_unmap(device_pool->window, all);
    return result != ZR_OK ? result : waited != ZR_OK ? waited : unmapped;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

zr_result zr_device_pool_lend(struct zr_device_pool *device_pool, struct zr_pieces *owner, uint64_t bytes,
                              struct zr_device_piece **out)
{
    struct zr_handle *handle;
    struct zr_device_piece *piece = device_pool->free;
    *out = NULL;
    if (!piece && device_pool->used_count == PIECES_MAX)
        return zr_fail(ZR_ERR_HOST_MEMORY, "zrd lends at most %zu pieces: raise ZR_CONF=granule", PIECES_MAX);
    zr_result result = zr_backend_create(device_pool->backend, bytes, &handle);
    if (result != ZR_OK)
        return result;
    result = clear(device_pool, handle);
    if (result != ZR_OK) {
        zr_backend_destroy_handle(device_pool->backend, handle);
        return result;
    }
    if (piece)
        device_pool->free = piece->next;
    else
        piece = &device_pool->all[device_pool->used_count++];
    *piece = (struct zr_device_piece){.next = owner->first,
                                      .handle = handle,
                                      .owner = owner,
                                      .number = ++device_pool->serial << INDEX_BITS |
                                                (uint64_t)(piece - device_pool->all)};
    if (owner->first)
        owner->first->previous = piece;
    owner->first = piece;
    owner->bytes += bytes;
    *out = piece;
    return ZR_OK;
}

zr_result zr_piece_fd(struct zr_device_pool *device_pool, const struct zr_device_piece *piece, int *out)
{
    struct zr_segment segment;
    zr_result result = zr_backend_export(device_pool->backend, piece->handle, &segment);
    *out = result == ZR_OK ? segment.fd : -1;
    return result;
}

void zr_piece_close_fd(struct zr_device_pool *device_pool, const struct zr_device_piece *piece)
{
    zr_backend_export_end(device_pool->backend, piece->handle);
}

struct zr_device_piece *zr_device_pool_find(const struct zr_device_pool *device_pool,
                                            const struct zr_pieces *owner, uint64_t number)
{
    size_t index = number & (PIECES_MAX - 1);
    if (number == 0 || index >= device_pool->used_count)
        return NULL;
    struct zr_device_piece *piece = &device_pool->all[index];
    return piece->number == number && piece->owner == owner ? piece : NULL;
}

void zr_device_pool_return(struct zr_device_pool *device_pool, struct zr_pieces *owner,
                           struct zr_device_piece *piece)
{
    if (piece->previous)
        piece->previous->next = piece->next;
    else
        owner->first = piece->next;
    if (piece->next)
        piece->next->previous = piece->previous;
    owner->bytes -= piece->handle->bytes;
    zr_backend_destroy_handle(device_pool->backend, piece->handle);
    *piece = (struct zr_device_piece){.next = device_pool->free};
    device_pool->free = piece;
}

void zr_device_pool_return_all(struct zr_device_pool *device_pool, struct zr_pieces *owner)
{
    while (owner->first)
        zr_device_pool_return(device_pool, owner, owner->first);
}
