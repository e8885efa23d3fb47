/* executor_internal.h: the plan executor's records, shared by its files. Private to alloc/. */
#ifndef ZR_EXECUTOR_INTERNAL_H
#define ZR_EXECUTOR_INTERNAL_H

#include "alloc/plan/executor.h"
#include "alloc/core/calls.h"

enum {
    ZR_EXECUTOR_RECENT = 4,   /* consecutive unknown requests that identify a position in a sequence */
    ZR_EXECUTOR_PROBES = 8,   /* entries searched in the table of n-grams */
    ZR_EXECUTOR_LOST = 32,    /* consecutive unplanned allocations that end a pass */
    ZR_EXECUTOR_STREAMS = 16, /* streams of a plan that are waited for one by one */
};

/* The fields of a step that the common allocation and free read. Steps lie in the order of the plan, one per
 * cache line, so the processor prefetches the next one. The common case does not read the block's extent. */
struct zr_step {
    _Alignas(64) size_t requested_bytes;
    size_t bytes;
    uint64_t stream;
    size_t offset_bytes;
    uint64_t seen_epoch; /* plan->epoch when all granules were last known to be mapped; 0: never */
    uint32_t thread;
    uint32_t place, rank; /* indices into plan->places and plan->ranks */
    uint32_t due_at;      /* the step at which this step's block must be free */
    uint8_t tag;
    uint8_t alignment_shift;
    bool special_free; /* the free takes the general path: overdue, or other streams use the block */
};

/* A step's block. */
struct zr_plan_slot {
    /* Kind ZR_EXTENT_PLANNED, place, size, stream and tag of the block. These never change while the plan is
     * in force, so readers without a lock may hold a pointer. previous and next link the sequence's overdue
     * blocks. Of a slot that is not placed: the place of its dynamic block, as in zr_plan_step.gap_bytes. */
    _Alignas(64) struct zr_extent extent;
    struct zr_executor_plan *plan;
    uint32_t number; /* index into plan->slots and plan->steps */
    bool placed;
    bool overdue; /* live outside its planned lifetime */
    uint32_t hash;
    uint32_t alive_count;        /* planned lifetime, in steps from this one */
    uint32_t alike;              /* the previous slot with the same hash, circular in the sequence */
    uint32_t due_first, due_end; /* range in plan->due: slots that must be free at this step */
    size_t requested_bytes;
};

/* An address at which the plan places blocks, one at a time: an entry of a hash table whose keys never
 * change. See executor_places.c. */
struct zr_plan_start {
    uint32_t unit; /* from the start of the region, modulo 2^32 */
    /* enum zr_start_state, or ZR_START_FIRST plus the number of the slot whose block lies here */
    _Atomic uint32_t state;
};

enum zr_start_state {
    ZR_START_NONE = 0, /* empty entry, which ends a search */
    ZR_START_NEW,
    ZR_START_FREED,
    ZR_START_FIRST, /* plus a slot's number */
};

/* A place in the list that is sorted by address. */
struct zr_plan_rank {
    size_t offset_bytes; /* from the start of the region */
    uint32_t place;
    uint32_t number; /* a slot with this place; used while the table is built */
};

/* The zone of a plan's cover, by which readers recognise it. A reader cannot use the kind, which changes when
 * a block is freed. */
enum { ZR_ZONE_REGION = ZR_ZONE_COUNT + 1 };

struct zr_executor_sequence {
    struct zr_plan_slot *slots, *end, *cursor;
    struct zr_plan_slot *overdue;
    size_t overdue_count;
    uint32_t thread;
    bool any, any_thread, any_stream;
    bool deferred; /* no places used yet: the sequence waits for memory, or for its first step */
    uint64_t stream;
    uint32_t recent[ZR_EXECUTOR_RECENT]; /* hashes of the last consecutive requests that matched no step */
    uint32_t recent_count;
    struct zr_plan_slot *missed; /* the cursor at the last unknown request */
};

struct zr_executor_plan {
    /* The region's entry in the arena's index, in zone ZR_ZONE_REGION, which leads readers to the plan. Empty
     * until the entry is inserted. */
    _Alignas(64) struct zr_extent cover;
    struct zr_step *steps;
    struct zr_plan_slot *slots;
    uint8_t *live;        /* by slot: 1 while its block is live */
    uint32_t *due_counts; /* by step: live slots that must be free at this step */
    uint32_t *due;
    struct zr_plan_start *places;
    unsigned places_shift;      /* shift of a 64-bit hash */
    _Atomic uint64_t *occupied; /* by rank, a bit: a block begins at this address */
    uint64_t epoch;             /* counts unmaps in the region, from 1 */
    struct zr_executor_sequence *sequences, *last_sequence;
    size_t sequences_count;
    struct zr_plan_rank *ranks;
    size_t ranks_count;
    struct zr_executor_plan *next; /* in the list of retired or dead plans */
    size_t pages_bytes;            /* of this struct and the arrays behind it */
    struct zr_extent *region;
    size_t live_count; /* maintained only while the plan is retired */
    size_t slots_count;
    /* A hash table of n-grams of ZR_EXECUTOR_RECENT hashes: the number of the last slot, plus 1; 0: empty. */
    uint32_t *ngrams;
    size_t ngrams_count;
    uint64_t *busy;                        /* scratch: bit per granule of the region */
    uint64_t streams[ZR_EXECUTOR_STREAMS]; /* of the steps, without duplicates */
    size_t streams_count; /* above ZR_EXECUTOR_STREAMS: the executor waits for the whole device */
    size_t start_bytes;   /* as in struct zr_plan */
    bool must_remap;      /* without pages: the driver kept granules without access after a failed step */

    /* Pages: granules that lie at one or more addresses of the region. */
    size_t pages_count;         /* 0: each granule of the region has its own page */
    uint32_t *pages;            /* by granule of the region */
    struct zr_handle **handles; /* by page; NULL: mapped nowhere */
    uint32_t *overdue_counts;   /* by page: the number of overdue blocks' granules on it */
    uint64_t *busy_pages;       /* scratch: bit per page */
};

struct zr_executor {
    struct zr_executor_plan *plan;    /* in force; NULL: none */
    struct zr_executor_plan *retired; /* replaced plans that had live blocks when they were replaced */
    bool gone;                        /* a retired plan has no live block; zr_executor_retire_gone() is due */
    struct zr_executor_plan *dead;    /* replaced plans without blocks, kept until readers have finished */
    size_t pass_left, pass_count;     /* allocations left in the pass, and allocations per pass */
    size_t unplanned_run;             /* consecutive unplanned allocations */
    uint64_t pass_calls_count;
    struct zr_pass pass;
    struct zr_executor_counts counts; /* planned_count includes all allocations of finished passes */

    size_t allowed_bytes; /* reserved bytes up to which dynamic blocks do not take granules from the plan */
    bool unplanned;       /* the plan was made from a sequence with unplanned requests */
    bool committed;       /* memory that the plan made idle was returned to the driver */

    const struct zr_observer *observer;
    void *state;
    bool unstriped; /* all threads use the first stripe, because of the plan or the observer */
    bool awake;
    bool work_due;
};

/* The number of the plan's live blocks. */
size_t zr_executor_live_count(const struct zr_executor_plan *plan);
/* The first live slot at or after `number`; plan->slots_count if none. */
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

/* 0: not assigned. Initial-exec TLS, small enough for a library that dlopen() loads. */
extern __thread uint32_t zr_thread_own_number __attribute__((tls_model("initial-exec")));

/* Whether the request is this step. */
static inline bool zr_step_matches(const struct zr_step *step, const struct zr_request *request,
                                   size_t alignment, uint32_t thread)
{
    return step->requested_bytes == request->bytes && step->stream == request->stream &&
           step->tag == (uint8_t)request->tag && (size_t)1 << step->alignment_shift == alignment &&
           step->thread == thread;
}

/* Whether the slot is free and the request is its step. */
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

/* Inserts the step's block into the table of addresses, or removes it. */
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

/* Whether the offset lies in the plan's region. */
static inline bool zr_plan_holds(const struct zr_executor_plan *plan, size_t offset_bytes)
{
    return offset_bytes - plan->cover.offset_bytes < plan->cover.bytes;
}

/* The number of the slot whose block begins at the offset, which lies in the plan's region. slots_count: no
 * block begins there, and *freed tells whether an earlier block did. With the lock. */
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

/* The sequence of this thread and stream, NULL if none. Sets plan->last_sequence. */
struct zr_executor_sequence *zr_executor_sequence_of(struct zr_executor_plan *plan, uint32_t thread,
                                                     uint64_t stream);

/* Whether an unchecked request is this step. An invalid request matches no step. A request that names an
 * alignment below a unit is not matched here. */
static inline bool zr_step_matches_unchecked(const struct zr_step *step, const struct zr_request *request)
{
    return step->requested_bytes == request->bytes && step->tag == (unsigned)request->tag &&
           (__builtin_expect(request->alignment == 0, 1)
                ? step->alignment_shift == ZR_UNIT_SHIFT
                : (size_t)1 << step->alignment_shift == request->alignment);
}

/* The common case of zr_executor_alloc(): the request is the next step of its sequence, the step's granules
 * are mapped, no block of the sequence is overdue, no block due at this step is live, and the pass does not
 * end. Sets the block live and inserts it. NULL: the general case. `sequence` is the request's sequence or
 * the one used last. */
static inline __attribute__((always_inline)) struct zr_step *
zr_executor_next(struct zr_executor *executor, struct zr_executor_sequence *sequence,
                 const struct zr_request *request)
{
    struct zr_executor_plan *plan = executor->plan;
    size_t number = (size_t)(sequence->cursor - plan->slots);
    struct zr_step *step = &plan->steps[number];
    /* A thread number is never 0. A step has the thread and stream of its sequence. */
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

/* Offsets of the arrays in the memory of the table, and the size of the memory. */
struct zr_places_layout {
    size_t places, ranks, occupied, end;
};
struct zr_places_layout zr_places_lay_out(size_t steps_count);
/* Builds the table of places from the steps' offsets, which are relative to the region. */
void zr_places_make(struct zr_executor_plan *plan, const struct zr_plan *from);
/* Make the plan's blocks visible to readers, and no longer visible. Before opening, the caller has reserved
 * space in the index. */
void zr_places_open(struct zr_arena *arena, struct zr_executor_plan *plan);
void zr_places_close(struct zr_arena *arena, struct zr_executor_plan *plan);
/* The plan, in force or retired, whose region contains the offset; NULL: none. */
struct zr_executor_plan *zr_executor_plan_at(const struct zr_arena *arena, size_t offset_bytes);

/* ---- executor_pages.c: of a plan with pages --------------------------------------------------------------
 */

/* False: a page under the step's place also lies under an overdue block at another address. The caller has
 * checked that no overdue block overlaps the place itself. */
bool zr_pages_clear_of_overdue(const struct zr_arena *arena, const struct zr_executor_sequence *sequence,
                               const struct zr_plan_slot *slot);
/* Counts the pages of a block that becomes overdue (true) or ceases to be (false). */
void zr_pages_count_overdue(const struct zr_arena *arena, const struct zr_plan_slot *slot, bool overdue);
/* Maps the unmapped granules under the step's place. After a failure the counters are unchanged. */
zr_result zr_pages_map(struct zr_arena *arena, const struct zr_plan_slot *slot);
/* Marks the pages that live blocks use in busy_pages, and all granules of the region that show those pages in
 * busy. Returns the bytes of mapped pages that are not marked. */
size_t zr_pages_mark_busy(const struct zr_arena *arena, struct zr_executor_plan *plan);
/* Unmaps granules of the region. Pages without another mapping go to the cache; their bytes are added to
 * *bytes. */
zr_result zr_pages_unmap(struct zr_arena *arena, struct zr_executor_plan *plan, struct zr_granule_range where,
                         size_t *bytes);
/* Unmaps the whole region, before it becomes free space. False: some granules stay mapped, so the region
 * cannot be released. */
bool zr_pages_leave(struct zr_arena *arena, struct zr_executor_plan *plan);
/* Whether no block shows one page twice. Uses overdue_counts as scratch and clears it. */
bool zr_pages_are_good(const struct zr_arena *arena, const struct zr_executor_plan *plan);
zr_result zr_pages_check(const struct zr_arena *arena, const struct zr_executor_plan *plan);

uint32_t zr_executor_hash(const struct zr_request *request, size_t alignment, uint32_t thread);
uint32_t zr_executor_ngram(const uint32_t *hashes);
void zr_executor_begin_pass(struct zr_arena *arena);
/* Moves granules in `where` that the driver kept without access into the cache. False: the driver still keeps
 * some, and no step may use them. */
bool zr_executor_collect(struct zr_arena *arena, struct zr_executor_plan *plan,
                         struct zr_granule_range where);
/* Waits for the work that the plan's streams were given before the call. False: waiting failed, and memory
 * freed in the region may still be in use. */
bool zr_executor_wait(struct zr_arena *arena, const struct zr_executor_plan *plan);
/* Releases at least wanted_bytes of the plan's granules, if the plan has that many unused; returns the bytes.
 * See zr_executor_give_back(). */
size_t zr_executor_give_back_of(struct zr_arena *arena, struct zr_executor_plan *plan, size_t wanted_bytes);
/* The unused bytes in regions of replaced plans. */
size_t zr_executor_retired_idle_bytes(struct zr_arena *arena);
/* Retires a plan without live blocks: the region becomes free space; the records wait for readers. */
void zr_executor_retire(struct zr_arena *arena, struct zr_executor_plan *plan);
/* Raises allowed_bytes to what a plan may take where the dynamic path took `bytes`. */
void zr_executor_allow(struct zr_arena *arena, size_t bytes);

/* The granules under an extent. */
static inline struct zr_granule_range zr_granules_under(const struct zr_arena *arena,
                                                        const struct zr_extent *extent)
{
    return (struct zr_granule_range){extent->offset_bytes / arena->granule_bytes,
                                     (zr_extent_end(extent) - 1) / arena->granule_bytes + 1};
}

#endif
