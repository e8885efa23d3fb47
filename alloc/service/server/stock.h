/* stock.h: the memory of a CUDA device that zrd lends: pieces, each of which it makes for a lease, clears and
 * exports. Private to alloc/service/. One thread.
 *
 * A piece is lent once: what comes back is the driver's again, which keeps its pages while a process maps
 * them still. So nobody can read through an old mapping what the next owner writes. */
#ifndef ZR_SERVICE_STOCK_H
#define ZR_SERVICE_STOCK_H

#include "alloc/backend/backend.h"

struct zr_device_piece {
    struct zr_device_piece *next, *previous; /* of a client; next: of the free ones */
    struct zr_handle *handle;
    uint64_t number; /* no other piece has it, of a zrd before neither; 0: free */
    const void *owner;
};

/* The pieces of a client, the last first. */
struct zr_pieces {
    struct zr_device_piece *first;
    uint64_t bytes;
};

struct zr_stock {
    zr_backend *backend;     /* NULL: zrd lends the host's memory */
    struct zr_range *window; /* where pieces are cleared; as large as the largest so far */
    struct zr_device_piece *all, *free;
    size_t used_count; /* of `all`, ever */
    uint64_t serial;
};

/* Takes a context of the device. *capacity_bytes: 7/8 of its memory. ZR_ERR_UNAVAILABLE: there is no driver,
 * or the device cannot share memory. */
zr_result zr_stock_open(struct zr_stock *stock, int ordinal, uint64_t *total_bytes);
void zr_stock_close(struct zr_stock *stock);
/* A piece of zeros, added to `owner`'s. ZR_ERR_MEMORY: the device has less left than zrd may lend. */
zr_result zr_stock_lend(struct zr_stock *stock, struct zr_pieces *owner, uint64_t bytes,
                        struct zr_device_piece **out);
/* A descriptor of it, the piece's, until zr_piece_close_fd(). */
zr_result zr_piece_fd(struct zr_stock *stock, const struct zr_device_piece *piece, int *out);
void zr_piece_close_fd(struct zr_stock *stock, const struct zr_device_piece *piece);
/* Which of the owner's has the number; NULL: none. */
struct zr_device_piece *zr_stock_find(const struct zr_stock *stock, const struct zr_pieces *owner,
                                      uint64_t number);
void zr_stock_take_back(struct zr_stock *stock, struct zr_pieces *owner, struct zr_device_piece *piece);
void zr_stock_take_all(struct zr_stock *stock, struct zr_pieces *owner);

#endif
