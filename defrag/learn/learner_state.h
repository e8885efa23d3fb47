/* learner_state.h: what the learner knows, shared by the files that work on it. Private to defrag/learner*.c.
 *
 * learner_record.c listens and finds recurrences; learner_helper.c is the thread that learns, learner_view.c
 * copies for it what was recorded, learner.c plans that; learner_plan.c aligns, learner_place.c packs and
 * learner_check.c checks. All of it under the watched arena's lock unless a function says otherwise. */
#ifndef ZR_LEARNER_STATE_H
#define ZR_LEARNER_STATE_H

#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "defrag/learn/learner.h"

enum {
    RECORDS_MOST = 1 << 18, /* allocations */
    NGRAM = 8,              /* allocations that make a place recognisable */
    LIVE_FIRST = 1 << 14,   /* room for live blocks, twice as many as there may be; grows */
    FETCHED_AHEAD = 16,     /* records whose memory the processor fetches before they are written */
    PLACES = 1 << 15,       /* places that are remembered, per sequence */
    SEQUENCES_MOST = 16,    /* sequences beside the one of all threads */
    SHIFT_MOST = 16,        /* unplanned allocations that a run gets over at one place */
    ASTRAY = 3 * NGRAM,     /* misses in a row after which a run may go on elsewhere */
    MISSES_MOST = 64,       /* in a row, within a run */
    RUN_ENOUGH = 4096,      /* allocations: a run this long is worth a plan whatever came before it */
    MARKS = 3,
    RETRIES_MOST = 4,    /* with later occurrences, of a plan that took too much memory */
    LOOSE_MOST = 20,     /* of a thousand: allocations that two joint occurrences do not have in common */
    UNPLANNED_MOST = 50, /* of a thousand, in a pass that counts as planned */
    CONFLICTS_MOST = 250,
    COPIED_MOST = 64, /* records, in one hold of the lock */
};

/* How much is live, and how much has been allocated since recording began. */
struct zr_learner_level {
    uint64_t live_bytes, total_bytes;
};

struct zr_learner_record {
    uint64_t bytes, stream;
    struct zr_learner_level arena, sequence; /* with it */
    uint32_t alignment, thread, hash;
    uint32_t free_at;       /* freed before the record of that number; ZR_SEEN_LIVE */
    uint8_t tag, recording; /* recording: SEQUENCES_MOST: none */
};

struct zr_learner_place {
    uint32_t ngram, at; /* at: 1 + position */
};

/* An allocation of a sequence. */
struct zr_learner_position {
    uint32_t record; /* number */
    uint32_t ngram;  /* of the last NGRAM allocations */
    uint32_t match;  /* where it was before, 1 + position; 0: nowhere within the run */
};

/* A sequence as it is recorded. Positions count its allocations. */
struct zr_learner_recording {
    uint32_t thread;
    uint64_t stream;
    struct zr_learner_position *positions;
    struct zr_learner_place *places;
    uint32_t count;
    struct zr_learner_level level; /* of its recorded blocks */
    uint32_t recent[NGRAM], sum;   /* hashes of its last allocations, and what stands for them */

    bool running, found, planned;
    bool loose; /* of all threads: found, and their interleaving varies too much to plan them together */
    uint32_t run_start, distance, hits, misses;
    uint32_t first, second, third; /* found: where three occurrences begin */
    struct zr_learner_found {
        bool due;
        uint32_t first, second, third;
    } due;                      /* what was found when the helper was asked: the run may have ended since */
    uint32_t retries, retry_at; /* a plan was refused: tried anew from that position on; 0: no more */
    uint32_t refusals;          /* of the retries: plans of this period that were packed in vain */
};

struct zr_learner_live_entry {
    uint64_t key;    /* 1 + offset in units; 0: none */
    uint32_t record; /* number */
};

/* The thread that learns. It begins when there is something to learn, and ends when there has been nothing
 * for a while. Words that any thread may look at. */
enum zr_learner_helper_state {
    HELPER_NONE = 0,
    HELPER_STARTING,
    HELPER_WORKING,
    HELPER_IDLE,
    HELPER_ENDED,   /* to be joined */
    HELPER_REFUSED, /* the system gave no thread */
};
struct zr_learner_helper {
    _Atomic uint32_t state;  /* enum zr_learner_helper_state */
    _Atomic uint32_t asked;  /* 1: something is due that nobody has looked at yet */
    _Atomic uint32_t go;     /* 1: the helper is to look; it sleeps on this word */
    _Atomic bool held;       /* it begins nothing but in zr_learner_wait() */
    _Atomic bool cancelled;  /* it is to end, whatever it is doing */
    struct zr_thread thread; /* of whoever made the state STARTING */
    struct zr_stack stack;
};

struct zr_learner {
    zr_arena *arena;
    struct zr_learner_options options;
    struct zr_plan_rules rules;
    struct zr_learner_helper helper;
    struct zr_candidate candidate; /* the helper's */

    /* All below: the watched arena's lock. */
    struct zr_learner_record *records;
    uint32_t records_count;
    struct zr_learner_live_entry *live;
    size_t live_count, live_room;
    uint64_t most_reserved_bytes, total_bytes; /* since recording began; total: allocated */
    uint64_t live_bytes;                       /* of the arena now, recorded or not */
    uint64_t refused_bytes; /* that the last plan, and all beside it, would have taken; 0: none was refused */
    bool refused_unplanned; /* there were some beside it */
    struct zr_learner_recording all, recordings[SEQUENCES_MOST];
    size_t recordings_count;
    uint32_t forgotten_count; /* times that the records began anew */
    uint32_t only_thread;     /* until `split` */
    uint64_t only_stream;
    bool split;    /* more than one thread or stream has been heard: each has a sequence */
    bool too_many; /* sequences */
    bool due;      /* for the helper: what the recordings have under that name */
    uint32_t marks[MARKS];
    size_t marks_count;
    struct zr_pass last_pass;
    uint32_t changed_at;     /* record: since then what comes is not what is planned */
    size_t planned_at;       /* allocations that were recorded when the plan in force was made */
    size_t lost_count;       /* and when recording began anew because it had rested too early */
    size_t good_count;       /* allocations in a row in good passes */
    size_t bad_sum, all_sum; /* allocations of passes since the plan is in force */
    bool asleep;
    bool fresh;      /* the plan has not been gone through yet */
    bool commit_due; /* it has: what it left idle can go */
    bool at_work;    /* the helper, on something that was due */
    struct zr_learner_stats stats;
};

/* What is known of the watched arena when a plan is made: a copy, as of one moment. */
struct zr_learner_view {
    struct zr_scratch scratch;
    struct zr_seen_sequence sequences[ZR_PLAN_SEQUENCES];
    struct zr_learner_recording *recordings[ZR_PLAN_SEQUENCES]; /* of the sequences */
    size_t sequences_count;
    uint64_t others_bytes; /* live at once in sequences without a period, and in none */
    uint64_t most_reserved_bytes;
    bool following;
    uint32_t records_count, forgotten_count;
    size_t steps_count;           /* of the plan in force */
    unsigned bad_share, refusals; /* refusals: plans that were packed for these sequences before, in vain */
};

/* ---- learner.c ----------------------------------------------------------------------------------------- */

/* Whatever is due, in the helper. No lock held. */
void zr_learner_work(struct zr_learner *learner);
static inline bool zr_learner_cancelled(const struct zr_learner *learner)
{
    return atomic_load_explicit(&learner->helper.cancelled, memory_order_relaxed);
}

/* ---- learner_view.c: no lock held ---------------------------------------------------------------------- */

/* Copies the sequences that have a period, a few records at a time. ZR_ERR_UNAVAILABLE: they have none any
 * more.
 */
zr_result zr_learner_look(struct zr_learner *learner, struct zr_learner_view *view);
/* From the number of a record to that of the sequence's first position at or after it, from `low` on. Held.
 */
uint32_t zr_learner_position_of(const struct zr_learner_recording *recording, uint32_t record, uint32_t low);

/* ---- learner_helper.c: no lock held -------------------------------------------------------------------- */

zr_result zr_helper_begin(struct zr_learner_helper *helper);
/* Bytes of its stack that are the packer's. */
size_t zr_helper_room(const struct zr_learner_helper *helper);
/* Something is due. Returns at once; the first time, and after a fork, it makes the thread. */
void zr_helper_wake(struct zr_learner *learner);
/* Until the helper has looked at all that was due. */
void zr_helper_wait(struct zr_learner *learner);
/* Ends the thread, which stops what it is doing. Nobody wakes it any more. */
void zr_helper_end(struct zr_learner *learner);
/* In the child after a fork: there is no thread. */
void zr_helper_forked(struct zr_learner_helper *helper);

/* ---- learner_record.c ---------------------------------------------------------------------------------- */

/* Room for twice as many live blocks. ZR_ERR_HOST_MEMORY's words when false. */
bool zr_learner_grow_live(struct zr_learner *learner);
/* Takes a sequence's pages, and gives them back; false with words. */
bool zr_recording_begin(struct zr_learner_recording *recording);
void zr_recording_end(struct zr_learner_recording *recording);
/* What the sequence was asked for at a position. */
const struct zr_learner_record *zr_recording_record(const struct zr_learner *learner,
                                                    const struct zr_learner_recording *recording,
                                                    uint32_t position);
/* What a plan and all beside it may take where the dynamic path took no more than that. Where unplanned
 * allocations come beside the steps each time, the dynamic path calls the driver for ever: a sixty-fourth
 * more is what that is worth. */
static inline uint64_t zr_learner_allowed_bytes(const struct zr_learner *learner,
                                                uint64_t most_reserved_bytes, bool unplanned)
{
    return most_reserved_bytes + learner->rules.granule_bytes + (unplanned ? most_reserved_bytes / 64 : 0);
}
/* Whether all threads may share addresses in one sequence. */
bool zr_learner_may_join(const struct zr_learner *learner);
/* If a plan may be made, of all threads together, or of each that counts for something, that is noted for the
 * helper. Whether it is to be told of that. */
bool zr_learner_note_due(struct zr_learner *learner);
/* The observer's calls, see alloc/plan/plan.h. */
unsigned zr_learner_allocated(void *state, const struct zr_observation *what);
void zr_learner_freed(void *state, size_t offset_bytes, size_t live_bytes);
/* Unplanned allocations of the last pass, or of all since the plan is in force if those are more, of a
 * thousand. */
unsigned zr_learner_bad_share(const struct zr_learner *learner);
/* A new plan's first pass maps its granules; what was there before it is given back at its end. */
unsigned zr_learner_passed(void *state, const struct zr_pass *pass);
void zr_learner_forked(void *state);

#endif
