/* device_pool.h: the device pool: memory of a CUDA device that zrd lends. zrd creates a piece for each lease,
 * clears it and exports it. Private to alloc/service/. One thread.
 *
 * A piece is lent once. A returned piece is destroyed; the driver keeps its pages while a process still maps
 * them, so an old mapping never shows the next owner's data. */
#ifndef ZR_SERVICE_DEVICE_POOL_H
#define ZR_SERVICE_DEVICE_POOL_H

#include "alloc/backend/backend.h"

struct zr_device_piece {
    struct zr_device_piece *next, *previous; /* in a client's list; next: in the free list */
    struct zr_handle *handle;
    uint64_t number; /* unique, also among pieces of earlier zrds; 0: free */
    const void *owner;
};

/* The pieces of a client, newest first. */
struct zr_pieces {
    struct zr_device_piece *first;
    uint64_t bytes;
};

struct zr_device_pool {
    zr_backend *backend;     /* NULL: zrd lends the host's memory */
    struct zr_range *window; /* where pieces are mapped to be cleared; as large as the largest piece so far */
    struct zr_device_piece *all, *free;
    size_t used_count; /* records of `all` used so far */
    uint64_t serial;
};

/* Creates a context on the device. *total_bytes: the device's memory. ZR_ERR_UNAVAILABLE: no driver, or the
 * device cannot export memory. */
zr_result zr_device_pool_open(struct zr_device_pool *device_pool, int ordinal, uint64_t *total_bytes);
void zr_device_pool_close(struct zr_device_pool *device_pool);
/* Creates a cleared piece and adds it to `owner`. ZR_ERR_MEMORY: the device has less free memory. */
zr_result zr_device_pool_lend(struct zr_device_pool *device_pool, struct zr_pieces *owner, uint64_t bytes,
                              struct zr_device_piece **out);
/* A descriptor of the piece, owned by the piece, valid until zr_piece_close_fd(). */
zr_result zr_piece_fd(struct zr_device_pool *device_pool, const struct zr_device_piece *piece, int *out);
void zr_piece_close_fd(struct zr_device_pool *device_pool, const struct zr_device_piece *piece);
/* The owner's piece with the number; NULL: none. */
struct zr_device_piece *zr_device_pool_find(const struct zr_device_pool *device_pool,
                                            const struct zr_pieces *owner, uint64_t number);
void zr_device_pool_return(struct zr_device_pool *device_pool, struct zr_pieces *owner,
                           struct zr_device_piece *piece);
void zr_device_pool_return_all(struct zr_device_pool *device_pool, struct zr_pieces *owner);

#endif
