/* learner_state.h: the learner's state, shared by its files. Private to defrag/learn/.
 *
 * Functions require the watched arena's lock unless they say otherwise. */
#ifndef ZR_LEARNER_STATE_H
#define ZR_LEARNER_STATE_H

#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "defrag/learn/learner.h"

enum {
    RECORDS_MAX = 1 << 18, /* allocations */
    NGRAM = 8,             /* allocations that identify a position */
    LIVE_FIRST = 1 << 14,  /* initial capacity for live blocks, twice their number */
    FETCHED_AHEAD = 16,    /* records that are prefetched before they are written */
    PLACES = 1 << 15,      /* remembered positions, per sequence */
    SEQUENCES_MAX = 16,    /* sequences beside the one of all threads */
    SHIFT_MAX = 16,        /* unplanned allocations at one place that a run tolerates */
    ASTRAY = 3 * NGRAM,    /* consecutive misses after which a run may continue at another place */
    MISSES_MAX = 64,       /* consecutive misses that end a run, plus one part in 64 of its distance */
    RUN_ENOUGH = 4096,     /* allocations: a run of this length gets a plan whatever preceded it */
    RETRIES_MAX = 4,       /* attempts with later occurrences, after a plan that took too much memory */
    LOOSE_MAX = 20,        /* per thousand: allocations in which two occurrences of `all` may differ */
    UNPLANNED_MAX = 50,    /* per thousand: unplanned allocations in a pass that counts as planned */
    CONFLICTS_MAX = 250,
    COPIED_MAX = 64, /* records or blocks per hold of the lock */
    GAPS_MAX = 4096,
    GAP_DIVISOR = 64, /* smaller gaps than this part of a granule are not used */
};

/* Live bytes, and bytes allocated since recording began. */
struct zr_learner_level {
    uint64_t live_bytes, total_bytes;
};

struct zr_learner_record {
    uint64_t bytes, stream;
    struct zr_learner_level arena, sequence; /* after this allocation */
    uint32_t alignment, thread, hash;
    uint32_t free_at;       /* the number of the first record after the free; ZR_SEEN_LIVE: not freed */
    uint8_t tag, recording; /* index of its recording; SEQUENCES_MAX: none */
};

struct zr_learner_place {
    uint32_t ngram, at; /* at: 1 + position */
};

/* An allocation of a sequence. */
struct zr_learner_position {
    uint32_t record; /* number of its record */
    uint32_t ngram;  /* hash of the last NGRAM allocations */
    uint32_t match;  /* its earlier position + 1; 0: none within the run */
};

/* A sequence during recording. Positions count its allocations. */
struct zr_learner_recording {
    uint32_t thread; /* `all`: the only one until `split` is set */
    uint64_t stream;
    struct zr_learner_position *positions;
    struct zr_learner_place *places;
    uint32_t count;
    struct zr_learner_level level; /* of its recorded blocks */
    uint32_t recent[NGRAM], sum;   /* recent: hashes of the last allocations; sum: their combination */

    bool running, found, planned;
    bool loose; /* only for `all`: a period exists, but its interleaving varies too much for one plan */
    uint32_t run_start, distance, hits, misses;
    uint32_t first, second, third; /* start of each of the three occurrences, if found */
    struct zr_learner_found {
        bool due;
        uint32_t first, second, third;
    } due;                      /* the state when the helper was requested; the run may have ended since */
    uint32_t retries, retry_at; /* after a refused plan: position of the next attempt; 0: none */
    uint32_t refusals;          /* plans of this period that were packed and not used */
};

struct zr_learner_live_entry {
    uint64_t key;    /* 1 + offset in units; 0: none */
    uint32_t record; /* number of its record */
};

/* The learner's thread. It starts when there is work, and exits after a time without work. Any thread may
 * access atomic fields. */
enum zr_learner_helper_state {
    HELPER_NONE = 0,
    HELPER_STARTING,
    HELPER_WORKING,
    HELPER_IDLE,
    HELPER_ENDED,   /* the thread must be joined */
    HELPER_REFUSED, /* the system refused a thread */
};
struct zr_learner_helper {
    _Atomic uint32_t state;     /* enum zr_learner_helper_state */
    _Atomic uint32_t requested; /* 1: work is due, and no thread has taken it */
    _Atomic uint32_t go;        /* futex: 1: the helper has work */
    _Atomic bool held;          /* starts work only in zr_learner_wait() */
    _Atomic bool cancelled;     /* stop at once */
    struct zr_thread thread;    /* owned by the thread that set the state to STARTING */
    struct zr_stack stack;
};

/* Counts for debuggers and tests. */
struct zr_learner_stats {
    uint64_t periods_count;       /* periods found */
    uint64_t plans_count;         /* plans installed */
    uint64_t refused_plans_count; /* plans not installed because they would take more memory than no plan */
    uint64_t passes_count;        /* repetitions of plans */
    uint64_t overruns_count;      /* times that RECORDS_MAX allocations were recorded without a period */
    uint64_t max_copied_count;    /* max records copied while an allocation had to wait */
    uint64_t spent_ns;            /* time that the helper worked */
    bool no_thread;               /* the system refused to create a thread, so nothing is learned */
};

struct zr_learner {
    zr_arena *arena;
    struct zr_learner_options options;
    struct zr_plan_rules rules;
    struct zr_learner_helper helper;
    struct zr_candidate candidate; /* used by the helper only */

    /* Fields below: the watched arena's lock. */
    struct zr_learner_record *records;
    uint32_t records_count;
    struct zr_learner_live_entry *live;
    size_t live_count, live_capacity;
    uint64_t peak_reserved_bytes, total_bytes; /* since recording began; total: allocated */
    uint64_t live_bytes;                       /* the arena's live bytes, recorded or not */
    uint64_t refused_bytes; /* memory that the last refused plan and all blocks beside it would have taken; 0:
                               no plan was refused */
    bool refused_unplanned; /* the refused plan was made from sequences with unplanned allocations */
    /* all: of all threads. If streams are asynchronous, its requests are those of the stream that was used
     * first: memory that another stream has freed can be reused only after an event. */
    struct zr_learner_recording all, recordings[SEQUENCES_MAX];
    size_t recordings_count;
    uint32_t forgotten_count; /* times that recording was restarted */
    bool split;               /* several threads or streams allocate: each has a sequence */
    bool too_many;            /* more than SEQUENCES_MAX sequences */
    bool due;                 /* a plan may be made, from the recordings whose `due` is set */
    struct zr_pass last_pass;
    uint32_t changed_at; /* number of the record from which on allocations differ from the plan */
    size_t planned_at;   /* number of records when the current plan was made */
    size_t lost_count;   /* number of records when recording restarted after the learner slept too early */
    size_t good_count;   /* consecutive allocations in good passes */
    size_t bad_sum, all_sum; /* bad and all allocations in passes of the current plan */
    bool asleep;
    bool fresh;      /* the plan has not completed a pass */
    bool commit_due; /* the first pass ended: idle memory may be returned */
    bool at_work;    /* the helper is working */
    struct zr_learner_stats stats;
};

/* A consistent copy of the watched arena's state, for making a plan. */
struct zr_learner_view {
    struct zr_scratch scratch;
    struct zr_seen_sequence sequences[ZR_PLAN_SEQUENCES];
    struct zr_learner_recording *recordings[ZR_PLAN_SEQUENCES]; /* of the sequences */
    size_t sequences_count;
    uint64_t others_bytes; /* peak of sequences without a period, plus bytes outside all sequences */
    uint64_t peak_reserved_bytes;
    bool has_plan;
    uint32_t records_count, forgotten_count;
    uint32_t first_record;        /* of the sequences' first occurrences */
    size_t steps_count;           /* of the current plan */
    unsigned bad_share, refusals; /* refusals: plans for these sequences that were packed and not used */
};

/* ---- learner.c ----------------------------------------------------------------------------------------- */

/* Does all due work, in the helper. No lock held. */
void zr_learner_work(struct zr_learner *learner);
static inline bool zr_learner_cancelled(const struct zr_learner *learner)
{
    return atomic_load_explicit(&learner->helper.cancelled, memory_order_relaxed);
}

/* ---- learner_view.c: no lock held ---------------------------------------------------------------------- */

/* Copies the sequences that have a period, a few records per hold of the lock. ZR_ERR_UNAVAILABLE: the period
 * is gone. */
zr_result zr_learner_copy_view(struct zr_learner *learner, struct zr_learner_view *view);

/* ---- learner_gaps.c: no lock held ---------------------------------------------------------------------- */

/* Gives steps of a candidate with one sequence places in gaps beside older blocks, if the plan then takes
 * fewer granules. Call it once, before the candidate is measured. */
zr_result zr_learner_use_gaps(struct zr_learner *learner, const struct zr_learner_view *view);

/* ---- learner_helper.c: no lock held -------------------------------------------------------------------- */

zr_result zr_helper_begin(struct zr_learner_helper *helper);
/* Stack bytes reserved for the packer. */
size_t zr_helper_stack_bytes(const struct zr_learner_helper *helper);
/* Announces work and returns at once. The first call, and the first after a fork, creates the thread. */
void zr_helper_wake(struct zr_learner *learner);
/* Waits until the helper has done all due work. */
void zr_helper_wait(struct zr_learner *learner);
/* Stops the thread at once; later wakes have no effect. */
void zr_helper_end(struct zr_learner *learner);
/* In the child after a fork, which has no such thread. */
void zr_helper_forked(struct zr_learner_helper *helper);

/* ---- learner_record.c ---------------------------------------------------------------------------------- */

/* The entry at which a search in the table of live blocks begins. */
static inline size_t zr_learner_live_home(const struct zr_learner *learner, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (learner->live_capacity - 1);
}
/* Doubles the table of live blocks. False: no memory; sets a ZR_ERR_HOST_MEMORY message. */
bool zr_learner_grow_live(struct zr_learner *learner);
/* Take and free the pages of a sequence. False: no memory; sets a message. */
bool zr_recording_begin(struct zr_learner_recording *recording);
void zr_recording_end(struct zr_learner_recording *recording);
/* The record of the allocation at a position. */
const struct zr_learner_record *zr_recording_record(const struct zr_learner *learner,
                                                    const struct zr_learner_recording *recording,
                                                    uint32_t position);
/* See zr_plan_allowed_bytes(). */
static inline uint64_t zr_learner_allowed_bytes(const struct zr_learner *learner,
                                                uint64_t peak_reserved_bytes, bool unplanned)
{
    return zr_plan_allowed_bytes(peak_reserved_bytes, learner->rules.granule_bytes, unplanned);
}
/* The observer's callbacks; see alloc/plan/plan.h. */
unsigned zr_learner_allocated(void *state, const struct zr_observation *what);
void zr_learner_freed(void *state, size_t offset_bytes, size_t live_bytes);
/* Unplanned allocations per thousand: of the last pass or of all passes under the current plan, whichever is
 * more. */
unsigned zr_learner_bad_share(const struct zr_learner *learner);
/* Called after a pass; see judge() in learner_record.c. */
unsigned zr_learner_passed(void *state, const struct zr_pass *pass);
void zr_learner_forked(void *state);

#endif
