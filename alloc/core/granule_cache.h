/* granule_cache.h: handles that an arena owns and has mapped nowhere. Private to alloc/. The arena's lock
 * covers every call. Handles of one size are used in first-in, first-out order, so that neighbours in the
 * backend's memory stay neighbours. */
#ifndef ZR_GRANULE_CACHE_H
#define ZR_GRANULE_CACHE_H

#include "alloc/backend/backend.h"

/* A first-in, first-out list. `last` is NULL in an empty list, which may be zeroed memory. */
struct zr_handle_list {
    struct zr_handle *first, *last;
};

static inline void zr_handle_list_push(struct zr_handle_list *list, struct zr_handle *handle)
{
    handle->next = NULL;
    if (list->last)
        list->last->next = handle;
    else
        list->first = handle;
    list->last = handle;
}

static inline struct zr_handle *zr_handle_list_pop(struct zr_handle_list *list)
{
    struct zr_handle *handle = list->first;
    if (handle) {
        list->first = handle->next;
        if (!list->first)
            list->last = NULL;
    }
    return handle;
}

enum { ZR_GRANULE_CACHE_SIZES = 48 };

struct zr_granule_cache {
    size_t granule_bytes;
    size_t bytes;                                        /* of all handles in the cache */
    struct zr_handle_list sizes[ZR_GRANULE_CACHE_SIZES]; /* by log2 of the granules in a handle */
};

void zr_granule_cache_put(struct zr_granule_cache *cache, struct zr_handle *handle);
/* The largest handle of at most `bytes`; NULL if there is none. */
struct zr_handle *zr_granule_cache_take(struct zr_granule_cache *cache, size_t bytes);
/* The smallest handle of at least `bytes`; NULL if there is none. */
struct zr_handle *zr_granule_cache_take_larger(struct zr_granule_cache *cache, size_t bytes);

#endif
