/* vector.h: growing arrays in a host arena, and arrays of one call. Private to defrag/.
 *
 * Items move when an array grows: keep indices, not pointers. One thread at a time. */
#ifndef ZR_VECTOR_H
#define ZR_VECTOR_H

#include "alloc/zr.h"

struct zr_vector {
    zr_arena *arena; /* borrowed */
    void *items;     /* a block of `arena`, tag other; NULL: none yet */
    size_t count, room;
    size_t item_bytes;
};

/* Makes an empty array; allocates nothing, so it cannot fail. */
static inline void zr_vector_init(struct zr_vector *vector, zr_arena *arena, size_t item_bytes)
{
    *vector = (struct zr_vector){.arena = arena, .item_bytes = item_bytes};
}

/* Frees the memory; the array is empty and reusable. */
void zr_vector_end(struct zr_vector *vector);
/* Makes room for the next `count` pushes. Returns the arena's error if there is no memory. */
zr_result zr_vector_reserve(struct zr_vector *vector, size_t count);
/* Appends a copy of one item. */
zr_result zr_vector_add(struct zr_vector *vector, const void *item);

static inline void *zr_vector_at(const struct zr_vector *vector, size_t index)
{
    return (char *)vector->items + index * vector->item_bytes;
}

/* ---- Arrays of one call (scratch.c) -------------------------------------------------------------------- */

/* Arrays from the caller's host arena that live until the end of one call. Without an arena, the arrays are
 * private pages that a child after fork() does not inherit: the learner's helper thread uses these, because
 * the child repeats the thread's work. */

#define ZR_SCRATCH_ROOM 512

/* {.arena = arena} uses the arena, {0} private pages. One thread at a time. */
struct zr_scratch {
    zr_arena *arena;
    size_t count;
    void *blocks[ZR_SCRATCH_ROOM];
    zr_result result; /* the first error; every later take fails, too */
};

/* Allocates a zeroed array of `count` elements (0 counts as 1). NULL: failed, and `result` has the error, so
 * a caller may take several arrays and check `result` once. Freed by zr_scratch_end(). */
void *zr_scratch_take(struct zr_scratch *scratch, size_t count, size_t element_bytes);
/* Frees all arrays. */
void zr_scratch_end(struct zr_scratch *scratch);

#endif
