/* unplanned.h: repeats of a sequence with additional one-time allocations, as in real programs. Private to
 * defrag/. */
#ifndef ZR_UNPLANNED_H
#define ZR_UNPLANNED_H

#include "defrag/trace/vector.h"
#include "defrag/zr_defrag.h"

/* After `percent` of the sequence's allocations follows an additional one: its size and tag are those of a
 * random allocation, its thread and stream those of the allocation before it, and its lifetime in events that
 * of another random allocation. Each repeat has others. The choice depends on the seed and the repeat, not on
 * the policy. */
struct zr_unplanned {
    const struct zr_sequence *base; /* borrowed */
    unsigned percent;
    uint64_t seed;
    struct zr_scratch scratch;
    size_t allocations_count;  /* in the base */
    uint32_t *events;          /* by allocation of the base: its event */
    uint32_t *lives;           /* the events until its free, or the end */
    uint32_t *due;             /* by number of events: the first block to free then */
    uint32_t *next;            /* by block: the next one to free at the same time */
    struct zr_sequence repeat; /* the result of the last zr_unplanned_make() */
    size_t events_max;         /* of the longest repeat */
    uint32_t blocks_max;
};

/* Reserves memory for the longest repeat from the base's host arena. ZR_ERR_INVALID: more than 100 per cent,
 * or more events than a sequence can hold. With 0 per cent every repeat is the base itself. The caller ends
 * it in any case. */
zr_result zr_unplanned_begin(struct zr_unplanned *out, const struct zr_sequence *base, unsigned percent,
                             uint64_t seed);
/* The sequence of a repeat, from 0 on; deterministic. Valid until the next call. */
const struct zr_sequence *zr_unplanned_make(struct zr_unplanned *unplanned, unsigned repeat);
void zr_unplanned_end(struct zr_unplanned *unplanned);

/* zr_replay() with repeats that differ, for the tool. */
zr_result zr_replay_unplanned(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                              unsigned percent, uint64_t seed, struct zr_replay_report *out);

#endif
