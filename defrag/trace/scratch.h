/* scratch.h: arrays from the caller's host arena that live until the end of one call. Private to defrag/.
 *
 * Without an arena, the arrays are private pages that a child after fork() does not inherit: the learner's
 * helper thread uses these, because the child repeats the thread's work. */
#ifndef ZR_SCRATCH_H
#define ZR_SCRATCH_H

#include "alloc/zr.h"

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
