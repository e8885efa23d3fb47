/* plan.h: placement plans for repeating sequences of allocations, and the observer for makers of plans.
 * Private to zr.
 *
 * alloc/ executes plans; defrag/ makes them (defrag/learn/learner.c, defrag/learn/rehearsal.c). A plan is a
 * list of steps per sequence: the requests in the order in which they repeat, and the place of each block in
 * the plan's region. Correctness never depends on the program repeating the sequence: other requests take the
 * dynamic path (alloc/plan/executor.c). */
#ifndef ZR_PLAN_H
#define ZR_PLAN_H

#include "alloc/zr.h"

/* ---- Threads ------------------------------------------------------------------------------------------- */

/* The calling thread's number, assigned at the first call and never reused. */
uint32_t zr_thread_number(void);
/* Changes the calling thread's number, so that a replay can act for several threads; returns the old number.
 */
uint32_t zr_thread_become(uint32_t number);

/* ---- Plans --------------------------------------------------------------------------------------------- */

/* Offset of a step on the dynamic path, because its block lives too long. */
#define ZR_PLAN_NOWHERE SIZE_MAX

/* One allocation of the sequence. */
struct zr_plan_step {
    struct zr_request request; /* with the effective alignment, at least 256 */
    uint32_t thread;
    size_t offset_bytes; /* in the region, or ZR_PLAN_NOWHERE */
    /* Of a step outside the region: its place on the dynamic path, from the arena's base, in granules that
     * hold other blocks. The step takes it if it is free and mapped, else any place. 0: any place. */
    size_t gap_bytes;
    /* Lifetime, in steps from this one: 1 to the sequence's count. No other step uses the place during it. */
    uint32_t alive_count;
};

/* One circular sequence of requests: of all threads, of one stream in all threads, or of one thread and one
 * stream. */
struct zr_plan_sequence {
    size_t first,
        count; /* index of the first step, and the number of steps, above 0; sequences follow one another */
    size_t cursor;   /* the next step, relative to `first` */
    bool any;        /* serves all threads and streams; allowed only as the only sequence */
    bool any_thread; /* serves the stream in every thread */
    bool any_stream; /* serves every stream of the thread */
    uint32_t thread;
    uint64_t stream;
};

struct zr_plan {
    const struct zr_plan_step *steps;
    size_t steps_count;
    const struct zr_plan_sequence *sequences;
    size_t sequences_count; /* up to ZR_PLAN_SEQUENCES */
    size_t region_bytes;
    /* On a backend with aliases: the number of the physical page under each granule of the region, from 0. A
     * page may lie under several granules, but never twice under one block, and during a step's lifetime no
     * other step uses its pages. NULL: each granule has its own page. */
    const uint32_t *pages;
    size_t pages_count;     /* 0 without pages */
    size_t unplanned_count; /* unplanned requests per sequence when the plan was made */
    /* For a maker that works while the program runs; NULL: none. Called under the arena's lock when the plan
     * comes into force. It sets the sequences' cursors to their current positions. False: the plan is out of
     * date, and the previous plan stays in force. With one sequence, the plan places no block until the arena
     * with all of the plan's memory would hold at most start_bytes or its peak, so starting a plan beside
     * unknown blocks adds no memory. With several sequences, each waits for its first step, where the fewest
     * of its earlier blocks are live. */
    bool (*begin)(void *state);
    void *state;
    size_t start_bytes;
};

/* The memory that a plan and all blocks beside it may take, if the dynamic path took `bytes`: one granule and
 * one part in 128 more, because blocks beside the plan cannot fill its gaps. If each step has unplanned
 * allocations, the dynamic path keeps calling the driver, so the plan may take one part in 64 more. */
static inline size_t zr_plan_allowed_bytes(size_t bytes, size_t granule_bytes, bool unplanned)
{
    return bytes + granule_bytes + bytes / (unplanned ? 64 : 128);
}

/* The physical memory of the plan when all of it is mapped. */
static inline size_t zr_plan_memory_bytes(const struct zr_plan *plan, size_t granule_bytes)
{
    return plan->pages ? plan->pages_count * granule_bytes : plan->region_bytes;
}

enum { ZR_PLAN_SEQUENCES = 64 };

/* Copies the plan and puts it in force, replacing the previous plan, whose blocks stay until they are freed.
 * NULL removes the plan. The plan's granules are mapped on first use. Any thread, with no lock held. After a
 * failure the previous plan stays in force. ZR_ERR_INVALID: a step does not fit its region, or the backend
 * cannot alias pages. ZR_ERR_UNAVAILABLE: begin() returned false. ZR_ERR_HOST_MEMORY, ZR_ERR_ADDRESSES: too
 * few records or addresses. */
zr_result zr_arena_install_plan(zr_arena *arena, const struct zr_plan *plan);
/* Moves every sequence's cursor to its first step. Without a plan it does nothing. Any thread, with no lock
 * held. */
void zr_arena_rewind_plan(zr_arena *arena);

/* ---- Watching ------------------------------------------------------------------------------------------ */

/* An allocated block, as the observer sees it under the arena's lock. */
struct zr_observation {
    const struct zr_request *request; /* borrowed for the call */
    size_t offset_bytes;              /* from the arena's base; identifies the block until its free */
    size_t bytes;                     /* with rounding */
    size_t alignment;
    size_t live_bytes, reserved_bytes; /* of the arena, with the block */
    uint32_t thread;
    bool planned;
};

/* Results of a plan since the last pass. A pass ends after as many allocations as the plan has steps, or
 * earlier after too many consecutive unplanned allocations. */
struct zr_pass {
    size_t allocations_count;
    size_t unplanned_count; /* not in the plan */
    size_t conflicts_count; /* planned, but another block occupied the place */
    size_t refused_count;   /* planned, but mapping the place failed */
    uint64_t driver_calls_count;
    bool whole; /* not ended early */
};

/* The observer's answers, a bit mask. */
enum zr_observer_wish {
    ZR_OBSERVER_NOTHING = 0,
    ZR_OBSERVER_WORK = 1,  /* call work() after the lock is released */
    ZR_OBSERVER_SLEEP = 2, /* call only passed() from now on */
};

/* Functions called under the arena's lock, which must only record. work() is called without the lock, in the
 * thread whose allocation requested it. */
struct zr_observer {
    unsigned (*allocated)(void *state, const struct zr_observation *what);
    void (*freed)(void *state, size_t offset_bytes, size_t live_bytes);
    /* Also called while the observer sleeps. Any answer except ZR_OBSERVER_SLEEP wakes the observer. */
    unsigned (*passed)(void *state, const struct zr_pass *pass);
    void (*work)(void *state);
    void (*forked)(void *state); /* in the child, under the lock */
};

/* Sets the arena's observer, initially awake; NULL removes it, while no other thread calls the arena.
 * `observer` is borrowed. ZR_ERR_INVALID: the arena has an observer. ZR_ERR_HOST_MEMORY. */
zr_result zr_arena_observe(zr_arena *arena, const struct zr_observer *observer, void *state);
/* Acquire and release the arena's lock, which protects the observer's state. Not recursive. */
void zr_arena_hold(zr_arena *arena);
void zr_arena_unhold(zr_arena *arena);
/* A block outside of plans' regions, from the arena's base. */
struct zr_plan_block {
    size_t offset_bytes, bytes;
};
/* Lists the live blocks from the offset on, in order of address, at most `max`. Returns their number. The
 * caller holds the lock by zr_arena_hold(). */
size_t zr_arena_list_blocks(const zr_arena *arena, size_t from_bytes, struct zr_plan_block *out, size_t max);
/* Wakes the observer or puts it to sleep. The caller holds the lock by zr_arena_hold(). */
void zr_arena_observe_awake(zr_arena *arena, bool awake);

/* Called after the first pass of a plan: returns idle memory of the dynamic path to the driver. Later
 * unplanned requests take memory from the driver and keep it. Acquires the lock itself. */
void zr_arena_commit_plan(zr_arena *arena);

struct zr_executor_counts {
    uint64_t planned_count, unplanned_count, unplaced_count, conflicts_count, refused_count, passes_count,
        plans_count, deferred_count; /* deferred: steps that were requested before the plan could start */
    size_t region_bytes;             /* of the plan in force; 0: none */
    size_t
        memory_bytes; /* physical memory of that plan; below region_bytes if pages lie at several addresses */
    size_t steps_count;
};
void zr_arena_executor_counts(zr_arena *arena, struct zr_executor_counts *out);
/* The arena's properties for makers of plans, set at creation. aliases: a page may lie at several addresses;
 * mappings_max: the most mappings a plan with pages may make (0: unlimited). */
struct zr_plan_rules {
    size_t canary_bytes, granule_bytes;
    bool synchronous, aliases;
    size_t mappings_max;
};
struct zr_plan_rules zr_arena_plan_rules(const zr_arena *arena);

#endif
