/* vary.h: a sequence as a program would repeat it: with unplanned allocations, from several threads, in
 * another shape from some repeat on. Private to defrag/. */
#ifndef ZR_VARY_H
#define ZR_VARY_H

#include "defrag/trace/scratch.h"
#include "defrag/zr_defrag.h"

/* How repeats differ from the sequence and from each other, so that a policy meets what a program does. All
 * zero: not at all. What is drawn depends on the seed and the repeat, never on the policy. */
struct zr_variation {
    /* Of a hundred allocations, so many are followed by another one that is not in the sequence: size and tag
     * of a random allocation of the sequence, thread and stream of the one that it follows; it is freed after
     * as many events as another random one lives. Other unplanned allocations in each repeat. 0 to 100. */
    unsigned unplanned_percent;
    /* So many copies of the sequence run at once, each on threads of its own, and take turns of 1 to 64
     * events. 0: 1; 64 at most. The turns are the same in each repeat, or drawn anew. */
    unsigned copies;
    bool loose_turns;
    /* From this repeat on, counted from 1, every size is another: equal sizes stay equal, and each becomes
     * 3/4, 7/8, 9/8 or 5/4 of what it was. 0: never. */
    unsigned change_at;
    uint64_t seed;
};

enum { ZR_VARY_TURN_MOST = 64 }; /* events in a row, of one copy */

struct zr_vary {
    const struct zr_sequence *base; /* borrowed */
    struct zr_variation how;
    struct zr_scratch scratch;
    uint32_t threads_count;   /* of the base */
    uint32_t *number_of;      /* by block: of its allocation */
    uint32_t *sizes;          /* by number of an allocation: its event */
    uint32_t *ends;           /* by that number: the events until its free, or until the end */
    size_t allocations_count; /* of the base */
    size_t *at;               /* by copy: the next event */
    uint32_t *due,
        *next; /* unplanned allocations to be freed after so many events: the first, and the one after it */
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

/* zr_replay() of repeats that differ: for the tool. */
zr_result zr_replay_varied(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                           const struct zr_variation *how, struct zr_replay_report *out);

#endif
