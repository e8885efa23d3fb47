/* growing.h: memory on the heap that grows as elements are added. Header only. */
#ifndef ZR_TEXT_GROWING_H
#define ZR_TEXT_GROWING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "alloc/heap/heap.h"

/* Zeros: empty. The owner releases it with zr_growing_end(). */
struct zr_growing {
    char *data;
    size_t used_bytes, room_bytes;
};

/* Makes room for `bytes` more. False: no memory, and the content stays. */
static inline bool zr_growing_reserve(struct zr_growing *growing, size_t bytes)
{
    size_t needed, room;
    if (bytes <= growing->room_bytes - growing->used_bytes)
        return true;
    if (__builtin_add_overflow(growing->used_bytes, bytes, &needed) ||
        __builtin_add_overflow(needed, needed / 2 + 64, &room))
        return false;
    char *data = zr_heap_alloc(room);
    if (!data)
        return false;
    if (growing->used_bytes > 0)
        memcpy(data, growing->data, growing->used_bytes);
    zr_heap_free(growing->data);
    growing->data = data;
    growing->room_bytes = room;
    return true;
}

static inline bool zr_growing_add(struct zr_growing *growing, const void *data, size_t bytes)
{
    if (!zr_growing_reserve(growing, bytes))
        return false;
    if (bytes > 0)
        memcpy(growing->data + growing->used_bytes, data, bytes);
    growing->used_bytes += bytes;
    return true;
}

static inline bool zr_growing_add_token(struct zr_growing *growing, int32_t token)
{
    return zr_growing_add(growing, &token, sizeof token);
}

static inline void zr_growing_end(struct zr_growing *growing)
{
    zr_heap_free(growing->data);
    *growing = (struct zr_growing){.data = NULL};
}

#endif
