/* stock.c: see stock.h. Uses backend.c. */
#include "alloc/service/server/stock.h"

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

/* 2 TiB in granules. A number has the piece's place in its low bits. */
enum { PLACE_BITS = 20 };
#define PIECES_MAX   ((size_t)1 << PLACE_BITS)
#define PIECES_BYTES (PIECES_MAX * sizeof(struct zr_device_piece))

zr_result zr_stock_open(struct zr_stock *stock, int ordinal, uint64_t *total_bytes)
{
    struct zr_backend_memory memory;
    zr_result result =
        zr_backend_cuda_open(&stock->backend, &(struct zr_cuda_options){.device = ordinal}, NULL);
    if (result == ZR_OK && !stock->backend->can.exportable)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "device %d cannot share memory by file descriptor", ordinal);
    if (result == ZR_OK)
        result = zr_backend_memory_info(stock->backend, &memory);
    if (result == ZR_OK && !(stock->all = zr_pages_take(PIECES_BYTES)))
        result = ZR_ERR_HOST_MEMORY;
    if (result != ZR_OK) {
        zr_stock_close(stock);
        return result;
    }
    /* Clients have granules of any size that the device allows. */
    stock->backend->can.granule_bytes = stock->backend->can.least_granule_bytes;
    stock->serial = zr_os_now_ns() >> PLACE_BITS << 4;
    *total_bytes = memory.total_bytes;
    return ZR_OK;
}

void zr_stock_close(struct zr_stock *stock)
{
    if (stock->window)
        zr_backend_release(stock->window);
    if (stock->all)
        zr_pages_give(stock->all, PIECES_BYTES);
    if (stock->backend)
        zr_backend_destroy(stock->backend);
    *stock = (struct zr_stock){0};
}

/* ---- Clearing ------------------------------------------------------------------------------------------ */

static zr_result widen_window(struct zr_stock *stock, size_t bytes)
{
    struct zr_range *wider;
    if (stock->window && stock->window->bytes >= bytes)
        return ZR_OK;
    zr_result result = zr_backend_reserve(stock->backend, bytes, &wider);
    if (result != ZR_OK)
        return result;
    if (stock->window)
        zr_backend_release(stock->window);
    stock->window = wider;
    return ZR_OK;
}

/* The driver does not promise zeros. */
static zr_result clear(struct zr_stock *stock, struct zr_handle *handle)
{
    zr_backend *backend = stock->backend;
    struct zr_bounds all = {0, handle->bytes};
    zr_result result = widen_window(stock, handle->bytes);
    if (result == ZR_OK)
        result = zr_backend_map(stock->window, 0, handle);
    if (result != ZR_OK)
        return result;
    result = zr_backend_set_access(stock->window, all);
    if (result == ZR_OK)
        result =
            zr_backend_fill(backend, &(struct zr_fill){.to = stock->window->address, .bytes = handle->bytes});
    /* Each once more if it fails: an unmap while the fill runs would end the context, and a mapping that
     * stayed would leave no place for the next piece. */
    zr_result waited = zr_backend_synchronize(backend);
    if (waited != ZR_OK)
        waited = zr_backend_synchronize(backend);
    zr_result unmapped = zr_backend_unmap(stock->window, all);
    if (unmapped != ZR_OK)
        unmapped = zr_backend_unmap(stock->window, all);
    return result != ZR_OK ? result : waited != ZR_OK ? waited : unmapped;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

zr_result zr_stock_lend(struct zr_stock *stock, struct zr_pieces *owner, uint64_t bytes,
                        struct zr_device_piece **out)
{
    struct zr_handle *handle;
    struct zr_device_piece *piece = stock->free;
    *out = NULL;
    if (!piece && stock->used_count == PIECES_MAX)
        return zr_fail(ZR_ERR_HOST_MEMORY, "zrd lends at most %zu pieces: raise ZR_CONF=granule", PIECES_MAX);
    zr_result result = zr_backend_create(stock->backend, bytes, &handle);
    if (result != ZR_OK)
        return result;
    result = clear(stock, handle);
    if (result != ZR_OK) {
        zr_backend_destroy_handle(stock->backend, handle);
        return result;
    }
    if (piece)
        stock->free = piece->next;
    else
        piece = &stock->all[stock->used_count++];
    *piece =
        (struct zr_device_piece){.next = owner->first,
                                 .handle = handle,
                                 .owner = owner,
                                 .number = ++stock->serial << PLACE_BITS | (uint64_t)(piece - stock->all)};
    if (owner->first)
        owner->first->previous = piece;
    owner->first = piece;
    owner->bytes += bytes;
    *out = piece;
    return ZR_OK;
}

zr_result zr_piece_fd(struct zr_stock *stock, const struct zr_device_piece *piece, int *out)
{
    struct zr_segment segment;
    zr_result result = zr_backend_export(stock->backend, piece->handle, &segment);
    *out = result == ZR_OK ? segment.fd : -1;
    return result;
}

void zr_piece_close_fd(struct zr_stock *stock, const struct zr_device_piece *piece)
{
    zr_backend_export_end(stock->backend, piece->handle);
}

struct zr_device_piece *zr_stock_find(const struct zr_stock *stock, const struct zr_pieces *owner,
                                      uint64_t number)
{
    size_t place = number & (PIECES_MAX - 1);
    if (number == 0 || place >= stock->used_count)
        return NULL;
    struct zr_device_piece *piece = &stock->all[place];
    return piece->number == number && piece->owner == owner ? piece : NULL;
}

void zr_stock_take_back(struct zr_stock *stock, struct zr_pieces *owner, struct zr_device_piece *piece)
{
    if (piece->previous)
        piece->previous->next = piece->next;
    else
        owner->first = piece->next;
    if (piece->next)
        piece->next->previous = piece->previous;
    owner->bytes -= piece->handle->bytes;
    zr_backend_destroy_handle(stock->backend, piece->handle);
    *piece = (struct zr_device_piece){.next = stock->free};
    stock->free = piece;
}

void zr_stock_take_all(struct zr_stock *stock, struct zr_pieces *owner)
{
    while (owner->first)
        zr_stock_take_back(stock, owner, owner->first);
}
