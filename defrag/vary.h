/* vary.h: a sequence as a program would repeat it: with strays, from several threads, in another shape from
 * some repeat on. Private to defrag/. */
#ifndef ZR_VARY_H
#define ZR_VARY_H

#include "defrag/scratch.h"
#include "defrag/zr_defrag.h"

enum { ZR_VARY_TURN_MOST = 64 }; /* events in a row, of one copy */

struct zr_vary {
    const struct zr_sequence *base; /* borrowed */
    struct zr_variation how;
    struct zr_scratch scratch;
    uint32_t threads_count;    /* of the base */
    uint32_t *number_of;       /* by block: of its allocation */
    uint32_t *sizes;           /* by number of an allocation: its event */
    uint32_t *ends;            /* by that number: the events until its free, or until the end */
    size_t allocations_count;  /* of the base */
    size_t *at;                /* by copy: the next event */
    uint32_t *due, *next;      /* strays to be freed after so many events: the first, and the one after it */
    struct zr_sequence repeat; /* the one that zr_vary_make() made */
    size_t events_most;
};

/* Room for any repeat, taken from the base's host arena. ZR_ERR_INVALID: the variation has no such values, or
 * the threads are too many; `how` without any is fine, and the repeats are the base itself. The caller ends
 * it in any case. */
zr_result zr_vary_begin(struct zr_vary *vary, const struct zr_sequence *base, const struct zr_variation *how);
/* The sequence of a repeat, from 0 on: the same each time it is asked for. Valid until the next. */
const struct zr_sequence *zr_vary_make(struct zr_vary *vary, unsigned repeat);
/* Blocks in any repeat, at most. */
uint32_t zr_vary_blocks_most(const struct zr_vary *vary);
void zr_vary_end(struct zr_vary *vary);

#endif
