/* vector.h: arrays that grow, in a host arena. Private to defrag/.
 *
 * Items move when an array grows, so keep indices, not pointers. One thread at a time. */
#ifndef ZR_VECTOR_H
#define ZR_VECTOR_H

#include "alloc/zr.h"

struct zr_vector {
    zr_arena *arena; /* borrowed */
    void *items;     /* a block of `arena`, tag other; NULL: none yet */
    size_t count, room;
    size_t item_bytes;
};

/* An empty array; takes no memory yet, so it cannot fail. */
static inline void zr_vector_init(struct zr_vector *vector, zr_arena *arena, size_t item_bytes)
{
    *vector = (struct zr_vector){.arena = arena, .item_bytes = item_bytes};
}

/* Gives the memory back; the array is empty and can be used again. */
void zr_vector_end(struct zr_vector *vector);
/* Makes sure that the next `count` pushes find room. The arena's failure if there is none. */
zr_result zr_vector_reserve(struct zr_vector *vector, size_t count);
/* Copies one item to the end. */
zr_result zr_vector_add(struct zr_vector *vector, const void *item);

static inline void *zr_vector_at(const struct zr_vector *vector, size_t index)
{
    return (char *)vector->items + index * vector->item_bytes;
}

#endif
