/* plan.h: a plan for a repeating sequence of allocations, and a window for whoever makes one. Private to zr.
 *
 * alloc/ follows plans and does not make them; defrag/ does (defrag/learn/learner.c,
 * defrag/learn/rehearsal.c). A plan is a list of steps per sequence: what will be asked for, in order and
 * over and over, and where in the plan's region it goes. Nothing depends on the program keeping to it: what
 * differs takes the dynamic path (alloc/plan/follow.c). */
#ifndef ZR_PLAN_H
#define ZR_PLAN_H

#include "alloc/zr.h"

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* A small number for the calling thread, given at its first call; never given twice. */
uint32_t zr_thread_number(void);
/* From now on the calling thread counts as that one, so that a replay can speak for several; returns the
 * number it had. */
uint32_t zr_thread_become(uint32_t number);

/* ---- Plans --------------------------------------------------------------------------------------------- */

#define ZR_PLAN_NOWHERE                                                                                      \
    SIZE_MAX /* the offset of a step that is known and stays dynamic: its block lives too long */

/* One allocation of the sequence. */
struct zr_plan_step {
    struct zr_request request; /* alignment as it is kept: at least 256 */
    uint32_t thread;
    size_t offset_bytes; /* in the region; or ZR_PLAN_NOWHERE */
    /* The block is to be gone when the sequence is so many steps on from this one: 1 to the sequence's count.
     * Within that time its place is no other step's. */
    uint32_t alive_count;
};

/* One circular sequence. A sequence hears every thread, or one thread and one stream. */
struct zr_plan_sequence {
    size_t first, count; /* of the plan's steps, sequence after sequence; count above 0 */
    size_t cursor;       /* the step that comes next, from `first` */
    bool any;            /* every thread and stream; only as the only sequence */
    bool any_stream;     /* every stream of the thread */
    uint32_t thread;
    uint64_t stream;
};

struct zr_plan {
    const struct zr_plan_step *steps;
    size_t steps_count;
    const struct zr_plan_sequence *sequences;
    size_t sequences_count; /* up to ZR_PLAN_SEQUENCES */
    size_t region_bytes;
    /* Where the backend has aliases: the page of memory under each granule of the region, in colours from 0
     * on. A page may lie under several granules, never twice under one block; what holds for a step's place
     * then holds for its pages too: within its time they are no other step's. NULL: each granule has its own.
     */
    const uint32_t *pages;
    size_t pages_count;     /* 0 without pages */
    size_t unplanned_count; /* what came beside the steps when they were seen */
    /* Of a maker who works while the program goes on; NULL: none. Asked under the arena's lock when the plan
     * comes into force: sets the sequences' cursors to where they are by now. False: it is out of date, and
     * the plan before stays. Such a plan gives out no place until the arena would hold no more than
     * start_bytes, or its peak, with all of the plan: a plan starts beside blocks that it does not know
     * without adding memory. Of several sequences each waits for its first step instead, where the least is
     * live of what it allocated before. */
    bool (*begin)(void *state);
    void *state;
    size_t start_bytes;
};

/* The memory that the plan takes once all of it is mapped. */
static inline size_t zr_plan_memory_bytes(const struct zr_plan *plan, size_t granule_bytes)
{
    return plan->pages ? plan->pages_count * granule_bytes : plan->region_bytes;
}

enum { ZR_PLAN_SEQUENCES = 64 };

/* Copies the plan and follows it from now on in place of the one before, whose blocks live on until they are
 * freed. NULL: follows none. The plan's addresses are reserved and mapped as they are first used.
 * ZR_ERR_INVALID: a step that does not fit its region, or pages that the backend cannot alias;
 * ZR_ERR_UNAVAILABLE: begin() says no;
 * ZR_ERR_HOST_MEMORY, ZR_ERR_ADDRESSES: no room for it; the plan before stays in force. Any thread, with no
 * lock held: it is made ready without the lock, which is taken for reserving its addresses and for the
 * change. */
zr_result zr_arena_install_plan(zr_arena *arena, const struct zr_plan *plan);
/* The sequence begins anew: what each sequence hears next is its first step. Without a plan nothing happens.
 * Any thread, with no lock held. */
void zr_arena_rewind_plan(zr_arena *arena);

/* ---- Watching ------------------------------------------------------------------------------------------ */

/* A block that was allocated, under the arena's lock. */
struct zr_observation {
    const struct zr_request *request; /* borrowed for the call */
    size_t offset_bytes;              /* of the block, from the arena's base: its name until it is freed */
    size_t bytes;                     /* with rounding */
    size_t alignment;
    size_t live_bytes, reserved_bytes; /* of the arena, with the block */
    uint32_t thread;
    bool planned;
};

/* How a plan has served since the last pass ended: as many allocations as the plan has steps, or fewer where
 * too many in a row were unknown. */
struct zr_pass {
    size_t allocations_count;
    size_t unplanned_count; /* not in the plan */
    size_t conflicts_count; /* in the plan, and another block lay in the way */
    size_t refused_count;   /* in the plan, and no memory could be mapped there */
    uint64_t driver_calls_count;
    bool whole; /* not cut short by unplanned allocations */
};

/* The observer's answers, which may be joined. */
enum zr_observer_wish {
    ZR_OBSERVER_NOTHING = 0,
    ZR_OBSERVER_WORK = 1,  /* call work() as soon as the lock is open */
    ZR_OBSERVER_SLEEP = 2, /* no more calls but passed() */
};

/* Called under the arena's lock, so they only record; work() is called without, from the thread whose
 * allocation found something to do. */
struct zr_observer {
    unsigned (*allocated)(void *state, const struct zr_observation *what);
    void (*freed)(void *state, size_t offset_bytes, size_t live_bytes);
    /* Also while asleep. Any answer but sleep wakes the observer. */
    unsigned (*passed)(void *state, const struct zr_pass *pass);
    void (*work)(void *state);
    void (*forked)(void *state); /* in the child, under the lock */
};

/* One observer per arena, awake from the start; NULL removes it, when no other thread is in a call on the
 * arena. `observer` is borrowed. ZR_ERR_INVALID: it has one. ZR_ERR_HOST_MEMORY. */
zr_result zr_arena_observe(zr_arena *arena, const struct zr_observer *observer, void *state);
/* Holds the arena's lock, so that the observer's own state may be read and changed. Not recursive. */
void zr_arena_hold(zr_arena *arena);
void zr_arena_unhold(zr_arena *arena);
/* Wakes the observer or lets it sleep. Held. */
void zr_arena_observe_awake(zr_arena *arena, bool awake);

/* After the first pass of a plan: gives back what the dynamic path held before it and needs no longer. What
 * comes beside the plan from then on takes its memory from the driver once, and keeps it. Takes the lock
 * itself. */
void zr_arena_commit_plan(zr_arena *arena);

struct zr_follow_counts {
    uint64_t planned_count, unplanned_count, unplaced_count, conflicts_count, refused_count, passes_count,
        plans_count, deferred_count; /* deferred: steps that came before the plan could start */
    size_t region_bytes;             /* of the plan in force; 0: none */
    size_t memory_bytes; /* that it takes: less than its region where pages lie at several addresses */
    size_t steps_count;
};
void zr_arena_follow_counts(zr_arena *arena, struct zr_follow_counts *out);
/* The arena's facts that a maker of plans needs: the canary's bytes, the granule, whether streams are in
 * program order, whether a page may lie at several addresses, and how many mappings a plan may make then
 * (0: any number). Set at creation. */
struct zr_plan_rules {
    size_t canary_bytes, granule_bytes;
    bool synchronous, aliases;
    size_t mappings_most;
};
struct zr_plan_rules zr_arena_plan_rules(const zr_arena *arena);

#endif
