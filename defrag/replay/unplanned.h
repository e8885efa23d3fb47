/* unplanned.h: repeats of a sequence with allocations in between that come once, as a program has them.
 * Private to defrag/. */
#ifndef ZR_UNPLANNED_H
#define ZR_UNPLANNED_H

#include "defrag/trace/scratch.h"
#include "defrag/zr_defrag.h"

/* Of a hundred allocations of the sequence, `percent` are followed by one more: size and tag of a random one
 * of the sequence, thread and stream of the one that it follows, freed after as many events as another random
 * one lives. Others in each repeat. What is drawn depends on the seed and the repeat, never on the policy. */
struct zr_unplanned {
    const struct zr_sequence *base; /* borrowed */
    unsigned percent;
    uint64_t seed;
    struct zr_scratch scratch;
    size_t allocations_count; /* of the base */
    uint32_t *events,
        *lives;           /* by allocation of the base: its event; the events until its free, or the end */
    uint32_t *due, *next; /* what is to be freed after so many events: the first, and the one after it */
    struct zr_sequence repeat; /* the one that zr_unplanned_make() made */
    size_t events_most;        /* of any repeat */
    uint32_t blocks_most;
};

/* Room for any repeat, taken from the base's host arena. ZR_ERR_INVALID: more than 100 per cent, or more
 * than a sequence can hold; with 0 per cent the repeats are the base itself. The caller ends it in any case.
 */
zr_result zr_unplanned_begin(struct zr_unplanned *out, const struct zr_sequence *base, unsigned percent,
                             uint64_t seed);
/* The sequence of a repeat, from 0 on: the same each time it is asked for. Valid until the next. */
const struct zr_sequence *zr_unplanned_make(struct zr_unplanned *unplanned, unsigned repeat);
void zr_unplanned_end(struct zr_unplanned *unplanned);

/* zr_replay() of repeats that differ: for the tool. */
zr_result zr_replay_unplanned(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                              unsigned percent, uint64_t seed, struct zr_replay_report *out);

#endif
