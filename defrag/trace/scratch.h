/* scratch.h: arrays that live as long as one call, from the caller's host arena. Private to defrag/.
 *
 * Without an arena they are private pages of the process that a child after fork() does not get: for the
 * learner's helper thread, whose work the child does not go on with. */
#ifndef ZR_SCRATCH_H
#define ZR_SCRATCH_H

#include "alloc/zr.h"

#define ZR_SCRATCH_ROOM 512

/* {.arena = arena} is an empty one, {0} one of private pages. One thread at a time. */
struct zr_scratch {
    zr_arena *arena;
    size_t count;
    void *blocks[ZR_SCRATCH_ROOM];
    zr_result result; /* the first failure; every later take fails too */
};

/* An array of `count` (0: as of 1) elements, cleared; NULL when that fails, and `result` says why. So a
 * caller may take all it needs and look at `result` once. Freed by zr_scratch_end(). */
void *zr_scratch_take(struct zr_scratch *scratch, size_t count, size_t element_bytes);
/* Gives everything back. */
void zr_scratch_end(struct zr_scratch *scratch);

#endif
