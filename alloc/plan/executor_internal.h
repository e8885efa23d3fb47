/* executor_internal.h: the follower's records, shared by the files that work on them. Private to alloc/.
 *
 *   executor.c         the step that a request is, and its place; here: the step that comes next, and a free
 *   executor_plan.c    plans in and out of force, the observer, the checks
 *   executor_memory.c  granules that regions do not need
 *   executor_commit.c  what a plan has made idle
 *   executor_pages.c   granules of regions that lie at several addresses
 *   executor_places.c  blocks by address */
#ifndef ZR_EXECUTOR_INTERNAL_H
#define ZR_EXECUTOR_INTERNAL_H

#include "alloc/plan/executor.h"
#include "alloc/core/calls.h"

enum {
    ZR_EXECUTOR_RECENT = 4,   /* requests in a row that tell where a sequence is */
    ZR_EXECUTOR_PROBES = 8,   /* in the table of places */
    ZR_EXECUTOR_LOST = 32,    /* unplanned allocations in a row that end a pass */
    ZR_EXECUTOR_STREAMS = 16, /* of a plan, that are waited for one by one */
};

/* What the usual allocation and free read of a step: a cache line of its own, in the order of the plan, so
 * that the processor fetches ahead what comes next. Its block's extent is not looked at. */
struct zr_step {
    _Alignas(64) size_t requested_bytes;
    size_t bytes;
    uint64_t stream;
    size_t offset_bytes;
    uint64_t seen_epoch; /* plan->epoch when its granules were last seen mapped; 0: never */
    uint32_t thread;
    uint32_t place, rank; /* where its block is entered: of plan->places, and by address */
    uint32_t due_at;      /* the number of the step when its block is to be gone */
    uint8_t tag;
    uint8_t alignment_shift;
    bool special_free; /* the block's free is not the usual one: it is late, or other streams use it */
};

/* A step and the block on it. */
struct zr_plan_slot {
    /* As it will be asked for: kind ZR_EXTENT_PLANNED, place, requested bytes, stream, tag. Never changes
     * while the plan is in force, so readers without a lock may hold it. previous and next: among the
     * sequence's late ones. */
    _Alignas(64) struct zr_extent extent;
    struct zr_executor_plan *plan;
    uint32_t number; /* among plan->slots and plan->steps */
    bool placed;
    bool overdue; /* live outside of its time */
    uint32_t hash;
    uint32_t alive_count; /* freed before so many steps on, counted from this one */
    uint32_t alike;       /* the number of the slot before it, round the sequence, that has the same hash */
    uint32_t due_first, due_end; /* of plan->due: the slots that are to be free when this step comes */
    size_t requested_bytes;
};

/* An address at which steps of the plan have their blocks, one at a time. In a table that is hashed by the
 * address and never changes but for who is there; see executor_places.c. */
struct zr_plan_start {
    uint32_t unit;          /* from the start of the region, modulo 2^32 */
    _Atomic uint32_t state; /* enum zr_start_state, or that and the number of the slot whose block is there */
};

enum zr_start_state {
    ZR_START_NONE = 0, /* the table ends a search here */
    ZR_START_NEW,
    ZR_START_FREED,
    ZR_START_FIRST, /* and a slot's number */
};

/* The same by address. */
struct zr_plan_rank {
    size_t offset_bytes; /* from the start of the region */
    uint32_t place;
    uint32_t number; /* of a slot there; while the table is made */
};

/* The zone of a plan's cover. By this readers know it: a block's zone stays as it is, its kind changes when
 * it is freed under their eyes. */
enum { ZR_ZONE_REGION = ZR_ZONE_COUNT + 1 };

struct zr_executor_sequence {
    struct zr_plan_slot *slots, *end, *cursor;
    struct zr_plan_slot *overdue;
    size_t overdue_count;
    uint32_t thread;
    bool any, any_stream;
    bool deferred; /* its steps have no places yet: it waits for memory, or for its first step */
    uint64_t stream;
    uint32_t recent[ZR_EXECUTOR_RECENT]; /* hashes of the last requests in a row that were not steps */
    uint32_t recent_count;
    struct zr_plan_slot *missed; /* the cursor at the last of them */
};

struct zr_executor_plan {
    /* The region as the arena's index has it, in zone ZR_ZONE_REGION: what leads readers here. Empty until it
     * is entered. */
    _Alignas(64) struct zr_extent cover;
    struct zr_step *steps;
    struct zr_plan_slot *slots;
    uint8_t *live;        /* by slot: 1 while its block is */
    uint32_t *due_counts; /* by step: how many of the slots that are to be free when it comes are live */
    uint32_t *due;
    struct zr_plan_start *places;
    unsigned places_shift;      /* of a hash of 64 bits */
    _Atomic uint64_t *occupied; /* bit per rank: a block is entered there */
    uint64_t epoch;             /* of unmaps in the region, from 1 */
    struct zr_executor_sequence *sequences, *last_sequence;
    size_t sequences_count;
    struct zr_plan_rank *ranks;
    size_t ranks_count;
    struct zr_executor_plan *next; /* among the retired or the dead */
    size_t pages_bytes;            /* of this struct and all behind it */
    struct zr_extent *region;
    size_t live_count; /* once it is retired */
    size_t slots_count;
    uint32_t
        *ngrams; /* of ZR_EXECUTOR_RECENT hashes: the number of the slot where they end, and 1; 0: none */
    size_t ngrams_count;
    uint64_t *busy;                        /* scratch: bit per granule of the region */
    uint64_t streams[ZR_EXECUTOR_STREAMS]; /* of the steps, each once */
    size_t streams_count;                  /* more than there is room for: the whole device is waited for */
    size_t start_bytes;                    /* of struct zr_plan */
    bool must_remap; /* without pages: the driver kept granules here, without access, for which a step failed
                      */

    /* Pages: granules of memory that lie at one or more addresses of the region. */
    size_t pages_count;         /* 0: none, each granule of the region has its own */
    uint32_t *pages;            /* by granule of the region */
    struct zr_handle **handles; /* by page: NULL while it is mapped nowhere */
    uint32_t *overdue_counts;   /* by page: granules of late blocks that it lies under */
    uint64_t *busy_pages;       /* scratch: bit per page */
};

struct zr_executor {
    struct zr_executor_plan *plan;    /* in force; NULL: none */
    struct zr_executor_plan *retired; /* replaced, with blocks that are still live, or were until `gone` */
    bool gone;                        /* zr_executor_retire_gone() is due */
    struct zr_executor_plan *dead;    /* without, their records until readers have passed */
    size_t pass_left, pass_count;     /* allocations until the pass is over, and when it began */
    size_t unplanned_run;             /* in a row */
    uint64_t pass_calls_count;
    struct zr_pass pass;
    struct zr_executor_counts counts; /* planned_count: all allocations of passes that are over */

    size_t allowed_bytes; /* reserved beside a plan, before dynamic blocks take from it */
    bool unplanned;       /* something came beside the plan's steps when they were seen */
    bool committed;       /* what the plan has made idle is given back */

    const struct zr_observer *observer;
    void *state;
    bool unstriped; /* the arena's threads, for the plan or the observer */
    bool awake;
    bool work_due;
};

/* Blocks of the plan that are live. */
size_t zr_executor_live_count(const struct zr_executor_plan *plan);
/* The first live slot from this number on; plan->slots_count: there is none. */
size_t zr_executor_live_from(const struct zr_executor_plan *plan, size_t number);

static inline bool zr_step_live(const struct zr_executor_plan *plan, size_t number)
{
    return plan->live[number];
}

static inline bool zr_slot_live(const struct zr_executor_plan *plan, const struct zr_plan_slot *slot)
{
    return zr_step_live(plan, slot->number);
}

static inline struct zr_step *zr_step_of(const struct zr_plan_slot *slot)
{
    return &slot->plan->steps[slot->number];
}

static inline struct zr_plan_slot *zr_step_next(const struct zr_executor_sequence *sequence,
                                                struct zr_plan_slot *slot)
{
    return slot + 1 == sequence->end ? sequence->slots : slot + 1;
}

static inline struct zr_plan_slot *zr_step_previous(const struct zr_executor_sequence *sequence,
                                                    struct zr_plan_slot *slot)
{
    return slot == sequence->slots ? sequence->end - 1 : slot - 1;
}

/* 0: none yet. Static TLS, but so little that the library can be loaded late. */
extern __thread uint32_t zr_thread_own_number __attribute__((tls_model("initial-exec")));

/* Whether the step is this request. */
static inline bool zr_step_matches(const struct zr_step *step, const struct zr_request *request,
                                   size_t alignment, uint32_t thread)
{
    return step->requested_bytes == request->bytes && step->stream == request->stream &&
           step->tag == (uint8_t)request->tag && (size_t)1 << step->alignment_shift == alignment &&
           step->thread == thread;
}

/* Whether the slot is free and its step is this request. */
static inline bool zr_slot_serves(const struct zr_plan_slot *slot, const struct zr_request *request,
                                  size_t alignment, uint32_t thread)
{
    return zr_step_matches(zr_step_of(slot), request, alignment, thread) && !zr_slot_live(slot->plan, slot);
}

static inline void zr_step_set_live(struct zr_executor_plan *plan, const struct zr_step *step, size_t number)
{
    plan->live[number] = 1;
    plan->due_counts[step->due_at]++;
}

static inline void zr_step_clear_live(struct zr_executor_plan *plan, const struct zr_step *step,
                                      size_t number)
{
    plan->live[number] = 0;
    plan->due_counts[step->due_at]--;
}

/* The block of the step can be found by its address from now on, and no longer. */
static inline void zr_step_enter(struct zr_executor_plan *plan, const struct zr_step *step, size_t number)
{
    atomic_store_explicit(&plan->places[step->place].state, (uint32_t)number + ZR_START_FIRST,
                          memory_order_release);
    zr_index_set_bit(&plan->occupied[step->rank / 64], step->rank);
}

static inline void zr_step_leave(struct zr_executor_plan *plan, const struct zr_step *step)
{
    zr_index_clear_bit(&plan->occupied[step->rank / 64], step->rank);
    atomic_store_explicit(&plan->places[step->place].state, ZR_START_FREED, memory_order_release);
}

static inline size_t zr_place_hash(const struct zr_executor_plan *plan, size_t unit)
{
    return (size_t)(unit * UINT64_C(0x9e3779b97f4a7c15) >> plan->places_shift);
}

/* True in the plan's region. */
static inline bool zr_plan_holds(const struct zr_executor_plan *plan, size_t offset_bytes)
{
    return offset_bytes - plan->cover.offset_bytes < plan->cover.bytes;
}

/* The number of the slot whose block begins at the offset, in the plan's region; slots_count: none does, and
 * *freed says whether one did before. With the lock. */
static inline size_t zr_plan_exact(const struct zr_executor_plan *plan, size_t offset_bytes, bool *freed)
{
    size_t place_bytes = offset_bytes - plan->cover.offset_bytes, unit = place_bytes >> ZR_UNIT_SHIFT;
    size_t mask = (~UINT64_C(0) >> plan->places_shift), at = zr_place_hash(plan, unit);
    *freed = false;
    for (;; at = (at + 1) & mask) {
        const struct zr_plan_start *place = &plan->places[at];
        uint32_t state = atomic_load_explicit(&place->state, memory_order_relaxed);
        if (__builtin_expect(place->unit == (uint32_t)unit && state >= ZR_START_FIRST, 1)) {
            if (__builtin_expect(plan->steps[state - ZR_START_FIRST].offset_bytes == offset_bytes, 1))
                return state - ZR_START_FIRST;
        } else if (state == ZR_START_NONE) {
            return plan->slots_count;
        } else {
            *freed |=
                place->unit == (uint32_t)unit && state == ZR_START_FREED && offset_bytes % ZR_UNIT_BYTES == 0;
        }
    }
}

/* The sequence that hears the thread and stream, NULL if none does; the plan's last sequence from now on. */
struct zr_executor_sequence *zr_executor_sequence_of(struct zr_executor_plan *plan, uint32_t thread,
                                                     uint64_t stream);

/* Whether the step is this request, which has not been checked yet: an invalid request matches no step.
 * A request that names an alignment below a unit is not recognised here. */
static inline bool zr_step_matches_unchecked(const struct zr_step *step, const struct zr_request *request)
{
    return step->requested_bytes == request->bytes && step->tag == (unsigned)request->tag &&
           (__builtin_expect(request->alignment == 0, 1)
                ? step->alignment_shift == ZR_UNIT_SHIFT
                : (size_t)1 << step->alignment_shift == request->alignment);
}

/* The common case of zr_executor_alloc(): the request is the next step of its sequence, its granules are
 * mapped and everybody is in time, the block of this step a lap ago too. The block is entered. NULL: it is
 * not. The sequence is the request's, or the one that was asked last. */
static inline __attribute__((always_inline)) struct zr_step *
zr_executor_next(struct zr_executor *executor, struct zr_executor_sequence *sequence,
                 const struct zr_request *request)
{
    struct zr_executor_plan *plan = executor->plan;
    size_t number = (size_t)(sequence->cursor - plan->slots);
    struct zr_step *step = &plan->steps[number];
    /* A thread's number is never 0. A step's thread and stream are its sequence's. */
    if (__builtin_expect(step->thread != zr_thread_own_number, 0) ||
        __builtin_expect(step->stream != request->stream, 0) ||
        __builtin_expect(!zr_step_matches_unchecked(step, request), 0) ||
        __builtin_expect(step->seen_epoch != plan->epoch, 0) ||
        __builtin_expect(sequence->overdue_count > 0, 0) || __builtin_expect(executor->pass_left <= 1, 0) ||
        __builtin_expect(plan->due_counts[number] > 0, 0))
        return NULL;
    zr_step_set_live(plan, step, number);
    zr_step_enter(plan, step, number);
    sequence->cursor =
        __builtin_expect(sequence->cursor + 1 == sequence->end, 0) ? sequence->slots : sequence->cursor + 1;
    executor->pass_left--;
    executor->unplanned_run = 0;
    return step;
}

/* ---- executor_places.c -----------------------------------------------------------------------------------
 */

/* The bytes that the table needs for so many steps, and what it is made of: the offset of each in them. */
struct zr_places_layout {
    size_t places, ranks, occupied, end;
};
struct zr_places_layout zr_places_lay_out(size_t steps_count);
/* Finds the places of the steps, whose offsets count from the start of the region. */
void zr_places_make(struct zr_executor_plan *plan, const struct zr_plan *from);
/* The blocks of the plan are found by readers from now on, and no longer. The caller has reserved the index.
 */
void zr_places_open(struct zr_arena *arena, struct zr_executor_plan *plan);
void zr_places_close(struct zr_arena *arena, struct zr_executor_plan *plan);
/* The plan, in force or retired, in whose region the offset lies; NULL: none. */
struct zr_executor_plan *zr_executor_plan_at(const struct zr_arena *arena, size_t offset_bytes);

/* ---- executor_pages.c: of a plan with pages --------------------------------------------------------------
 */

/* False: a page under the step's place is under a late block at another address. The place itself is clear of
 * late blocks. */
bool zr_pages_clear_of_overdue(const struct zr_arena *arena, const struct zr_executor_sequence *sequence,
                               const struct zr_plan_slot *slot);
/* The block is late from now on, or no longer. */
void zr_pages_count_overdue(const struct zr_arena *arena, const struct zr_plan_slot *slot, bool overdue);
/* Maps what is not mapped under the step's place. A failure leaves the counters as they were. */
zr_result zr_pages_map(struct zr_arena *arena, const struct zr_plan_slot *slot);
/* Marks the pages that blocks touch, and all granules of the region that those lie under, in busy_pages and
 * busy; returns the bytes of mapped pages that are not marked. */
size_t zr_pages_mark_busy(const struct zr_arena *arena, struct zr_executor_plan *plan);
/* Unmaps granules of the region; pages that are mapped nowhere any more go to the cache. *bytes grows by
 * theirs. */
zr_result zr_pages_unmap(struct zr_arena *arena, struct zr_executor_plan *plan, struct zr_stretch where,
                         size_t *bytes);
/* Unmaps all, before the region becomes free space. False: something stays, and the region cannot. */
bool zr_pages_leave(struct zr_arena *arena, struct zr_executor_plan *plan);
/* No block has a page twice. Uses overdue_counts as scratch, and leaves it clear. */
bool zr_pages_are_good(const struct zr_arena *arena, const struct zr_executor_plan *plan);
zr_result zr_pages_check(const struct zr_arena *arena, const struct zr_executor_plan *plan);

uint32_t zr_executor_hash(const struct zr_request *request, size_t alignment, uint32_t thread);
uint32_t zr_executor_ngram(const uint32_t *hashes);
void zr_executor_begin_pass(struct zr_arena *arena);
/* Unmaps what the driver kept in granules of the region, into the cache; false if it keeps some of it still,
 * which no step may have. */
bool zr_executor_collect(struct zr_arena *arena, struct zr_executor_plan *plan, struct zr_stretch where);
/* Waits for all that the plan's streams were given before. False: that cannot be, and what was freed in the
 * region may be in use. */
bool zr_executor_wait(struct zr_arena *arena, const struct zr_executor_plan *plan);
/* At least so many bytes of the plan's, if there are, for zr_executor_give_back(). */
size_t zr_executor_give_back_of(struct zr_arena *arena, struct zr_executor_plan *plan, size_t wanted_bytes);
/* What regions of replaced plans hold and do not use. */
size_t zr_executor_retired_idle_bytes(struct zr_arena *arena);
/* The plan has no live block: its region becomes free space; the records wait for readers. */
void zr_executor_retire(struct zr_arena *arena, struct zr_executor_plan *plan);
/* The arena may hold so much, and a granule, without taking from its plan; and a sixty-fourth, where there
 * was something beside the plan's steps when they were seen. */
void zr_executor_allow(struct zr_arena *arena, size_t bytes);

/* The granules under an extent. */
static inline struct zr_stretch zr_granules_under(const struct zr_arena *arena,
                                                  const struct zr_extent *extent)
{
    return (struct zr_stretch){extent->offset_bytes / arena->granule_bytes,
                               (zr_extent_end(extent) - 1) / arena->granule_bytes + 1};
}

#endif
