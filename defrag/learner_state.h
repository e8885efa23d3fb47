/* learner_state.h: what the learner knows, shared by the files that work on it. Private to defrag/learner*.c.
 *
 * learner_record.c listens and finds recurrences; learner.c plans what was found; learner_plan.c aligns and
 * packs. All of it under the watched arena's lock unless a function says otherwise. */
#ifndef ZR_LEARNER_STATE_H
#define ZR_LEARNER_STATE_H

#include <stdatomic.h>

#include "defrag/learner.h"

enum {
    RECORDS_MOST = 1 << 18, /* allocations */
    GRAM = 8,               /* allocations that make a place recognisable */
    PLACES = 1 << 15,       /* places that are remembered, per lane */
    LANES_MOST = 16,        /* lanes beside the one of all threads */
    SHIFT_MOST = 16,        /* strays that a run gets over at one place */
    ASTRAY = 3 * GRAM,      /* misses in a row after which a run may go on elsewhere */
    OTHER_ENOUGH = 6,       /* in a row elsewhere, and the run goes on there as a new one */
    MISSES_MOST = 64,       /* in a row, within a run */
    RUN_ENOUGH = 4096,      /* allocations: a run this long is worth a plan whatever came before it */
    MARKS = 3,
    RETRIES_MOST = 4, /* with later occurrences, of a plan that took too much memory */
    LOOSE_MOST = 20,  /* of a thousand: allocations that two joint occurrences do not have in common */
    STRAYS_MOST = 50, /* of a thousand, in a pass that counts as planned */
    CONFLICTS_MOST = 250,
    LOUD_ENOUGH = 2, /* passes with driver calls: more is kept for strays */
};

/* How much is live, and how much has been allocated since recording began. */
struct level {
    uint64_t live_bytes, total_bytes;
};

struct record {
    uint64_t bytes, stream;
    struct level arena, lane; /* with it */
    uint32_t alignment, thread, hash;
    uint32_t free_at;   /* freed before the record of that number; ZR_SEEN_LIVE */
    uint8_t tag, track; /* track: LANES_MOST: none */
};

struct place {
    uint32_t gram, at; /* at: 1 + position */
};

/* A lane as it is recorded. Positions count its allocations. */
struct track {
    uint32_t thread;
    uint64_t stream;
    uint32_t *records; /* by position */
    uint32_t *grams;
    uint32_t *matches; /* by position: where it was before, 1 + position; 0: nowhere within the run */
    struct place *places;
    uint32_t count;
    struct level level; /* of its recorded blocks */

    bool running, found, planned;
    bool loose; /* of all threads: found, and their interleaving varies too much to plan them together */
    uint32_t run_start, distance, hits, misses;
    uint32_t other_distance, other_hits; /* in a row, somewhere else than where the run would be */
    uint32_t first, second, third;       /* found: where three occurrences begin */
    uint32_t retries, retry_at; /* a plan was refused: tried anew from that position on; 0: no more */
    uint32_t refusals;          /* of the retries: plans of this period that were packed in vain */
    uint32_t whole_at;          /* the second occurrence is whole at that position; 0: it is */
};

struct live_entry {
    uint64_t key;    /* 1 + offset in units; 0: none */
    uint32_t record; /* number */
};

struct zr_learner {
    zr_arena *arena, *host_arena;
    zr_backend *own_backend; /* with the host arena; NULL: the caller's arena is used */
    struct zr_learner_options options;
    struct zr_plan_rules rules;

    /* All below: the watched arena's lock. */
    struct record *records;
    uint32_t records_count;
    struct live_entry *live;
    size_t live_count, live_room;
    uint64_t most_reserved_bytes, total_bytes; /* since recording began; total: allocated */
    uint64_t live_bytes;    /* of the arena now, recorded or not */
    uint64_t refused_bytes; /* that the last plan, and all beside it, would have taken; 0: none was refused */
    struct track all, tracks[LANES_MOST];
    size_t tracks_count;
    uint32_t only_thread; /* until `split` */
    uint64_t only_stream;
    bool split;    /* more than one thread or stream has been heard: each has a lane */
    bool too_many; /* lanes */
    uint32_t marks[MARKS];
    size_t marks_count;
    struct zr_pass last_pass;
    uint32_t changed_at;     /* record: since then what comes is not what is planned */
    size_t planned_at;       /* allocations that were recorded when the plan in force was made */
    size_t lost_count;       /* and when recording began anew because it had rested too early */
    size_t good_count;       /* allocations in a row in good passes */
    size_t bad_sum, all_sum; /* allocations of passes since the plan is in force */
    bool asleep;
    bool fresh;          /* the plan has not been gone through yet */
    bool settle_due;     /* it has: what it left idle can go */
    unsigned loud_count; /* passes that called the driver since it was settled */
    struct zr_learner_stats stats;

    _Atomic bool working;
    struct zr_candidate candidate; /* of the working thread: kept while there is something to refine */
    bool refinable;
};

/* ---- learner_record.c ---------------------------------------------------------------------------------- */

/* Room for twice as many live blocks. ZR_ERR_HOST_MEMORY's words when false. */
bool zr_learner_grow_live(struct zr_learner *learner);
/* Takes a lane's pages, and gives them back; false with words. */
bool zr_track_begin(struct track *track);
void zr_track_end(struct track *track);
/* What the lane was asked for at a position. */
const struct record *zr_track_record(const struct zr_learner *learner, const struct track *track,
                                     uint32_t position);
/* What a plan and all beside it may take where the dynamic path took no more than that: a sixty-fourth more,
 * which is what never calling the driver is worth. */
static inline uint64_t zr_learner_allowed_bytes(const struct zr_learner *learner,
                                                uint64_t most_reserved_bytes)
{
    uint64_t bytes = most_reserved_bytes + learner->rules.granule_bytes;
    return bytes + bytes / 64;
}
/* Whether all threads may share addresses in one lane. */
bool zr_learner_may_join(const struct zr_learner *learner);
/* A plan may be made: of all threads together, or of each that counts for something. */
bool zr_learner_is_due(const struct zr_learner *learner);
/* The observer's calls, see alloc/plan.h. */
unsigned zr_learner_allocated(void *state, const struct zr_observation *what);
void zr_learner_freed(void *state, size_t offset_bytes, size_t live_bytes);
/* Strays of the last pass, or of all since the plan is in force if those are more, of a thousand. */
unsigned zr_learner_bad_share(const struct zr_learner *learner);
/* A new plan's first pass maps its granules; what was there before it is settled at its end. */
unsigned zr_learner_passed(void *state, const struct zr_pass *pass);
void zr_learner_forked(void *state);

#endif
