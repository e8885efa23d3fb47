/* executor.c: serves allocations from a plan. Uses executor_plan.c, region.c and supply.c.
 *
 * Each sequence has a cursor into its circular list of steps. A request gets the place of a step if it is the
 * step at the cursor, a step close to the cursor, or a step to which the last unknown requests lead. Any
 * other request is unplanned: it takes the dynamic path, and the plan stays in force.
 *
 * The executor never assumes the order of frees. Each step knows which blocks must be free when the step is
 * reached; a block that is still live then is overdue until it is freed. While a sequence has no overdue
 * blocks, each live block is within its planned lifetime, so no two blocks share addresses. Otherwise a place
 * is compared with each overdue block before it is used. So an outdated plan costs memory, not correctness.
 *
 * The region's granules are mapped when a step first needs them and stay mapped, so a repeated step maps
 * nothing. A step remembers the region's unmap count (epoch) at which all of its granules were mapped. */
#include "alloc/plan/executor_internal.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

enum {
    WINDOW = 32,      /* steps searched on either side of the cursor */
    ALIKE_MAX = 512,  /* steps with the same hash, searched for an unused place */
    ALIKE = 16,       /* consecutive steps that are compared with the live blocks */
    NEAR = 8,         /* steps on either side of the cursor, searched for another step with the same hash */
    OVERDUE_MAX = 64, /* overdue blocks that a place is compared with; with more, no place is used */
};

/* ---- Threads ------------------------------------------------------------------------------------------- */

static _Atomic uint32_t threads_count;
__thread uint32_t zr_thread_own_number __attribute__((tls_model("initial-exec")));

static uint32_t number_thread(void)
{
    return zr_thread_own_number = atomic_fetch_add(&threads_count, 1) + 1;
}

uint32_t zr_thread_number(void)
{
    uint32_t number = zr_thread_own_number;
    return __builtin_expect(number != 0, 1) ? number : number_thread();
}

uint32_t zr_thread_become(uint32_t number)
{
    uint32_t before = zr_thread_number();
    zr_thread_own_number = number;
    return before;
}

/* ---- Finding the step ---------------------------------------------------------------------------------- */

uint32_t zr_executor_hash(const struct zr_request *request, size_t alignment, uint32_t thread)
{
    uint64_t hash = request->bytes * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 29) ^ request->stream ^ ((uint64_t)thread << 32) ^
            ((uint64_t)request->tag << 24) ^ alignment) *
           UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(hash >> 32);
}

uint32_t zr_executor_ngram(const uint32_t *hashes)
{
    uint32_t ngram = 0;
    for (unsigned i = 0; i < ZR_EXECUTOR_RECENT; i++)
        ngram = (ngram ^ hashes[i]) * UINT32_C(0x9e3779b1);
    return ngram ^ ngram >> 15;
}

static inline bool serves(const struct zr_executor_sequence *sequence, uint32_t thread, uint64_t stream)
{
    return sequence->any || ((sequence->any_thread || sequence->thread == thread) &&
                             (sequence->any_stream || sequence->stream == stream));
}

struct zr_executor_sequence *zr_executor_sequence_of(struct zr_executor_plan *plan, uint32_t thread,
                                                     uint64_t stream)
{
    struct zr_executor_sequence *sequence = plan->last_sequence;
    if (__builtin_expect(serves(sequence, thread, stream), 1))
        return sequence;
    for (sequence = plan->sequences; sequence < plan->sequences + plan->sequences_count; sequence++)
        if (serves(sequence, thread, stream))
            return plan->last_sequence = sequence;
    return NULL;
}

/* The slot whose step, with the steps before it, matches the sequence's recent requests; NULL: none known. */
static struct zr_plan_slot *find_recent(const struct zr_executor_plan *plan,
                                        const struct zr_executor_sequence *sequence)
{
    uint32_t ngram = zr_executor_ngram(sequence->recent);
    for (size_t probe = 0; probe < ZR_EXECUTOR_PROBES; probe++) {
        uint32_t entry = plan->ngrams[(ngram + probe) & (plan->ngrams_count - 1)];
        if (entry == 0)
            return NULL;
        struct zr_plan_slot *slot = plan->slots + (entry - 1), *back = slot;
        if (slot < sequence->slots || slot >= sequence->end)
            continue;
        unsigned same = 0;
        while (same < ZR_EXECUTOR_RECENT && back->hash == sequence->recent[ZR_EXECUTOR_RECENT - 1 - same]) {
            same++;
            back = zr_step_previous(sequence, back);
        }
        if (same == ZR_EXECUTOR_RECENT)
            return slot;
    }
    return NULL;
}

/* Whether at most one step near the cursor has this hash. */
static bool is_unique_nearby(const struct zr_executor_sequence *sequence, uint32_t hash)
{
    struct zr_plan_slot *ahead = sequence->cursor, *behind = sequence->cursor;
    unsigned count = 0;
    for (size_t i = 0; i < NEAR && 2 * i + 2 < (size_t)(sequence->end - sequence->slots); i++) {
        ahead = zr_step_next(sequence, ahead);
        behind = zr_step_previous(sequence, behind);
        count += (ahead->hash == hash) + (behind->hash == hash);
    }
    return count <= 1;
}

/* Whether a matching step near the cursor is accepted at once. Requests of the cursor's thread and stream
 * arrive in order, except that two neighbours may swap, so a single request that matches another step is more
 * likely unplanned. A second consecutive match is accepted. */
static bool is_likely(const struct zr_executor_sequence *sequence, const struct zr_plan_slot *slot,
                      size_t distance, const uint32_t *before)
{
    const struct zr_step *step = zr_step_of(slot), *next = zr_step_of(sequence->cursor);
    if (step->thread != next->thread || step->stream != next->stream)
        return true;
    if (distance <= 1 && is_unique_nearby(sequence, slot->hash))
        return true;
    return before && zr_step_previous(sequence, (struct zr_plan_slot *)slot)->hash == *before;
}

/* Finds the step of a request that is not the step at the cursor: a step close to the cursor, or the step to
 * which the last unknown requests lead. NULL: the request is unplanned. */
static struct zr_plan_slot *resync(struct zr_executor_plan *plan, struct zr_executor_sequence *sequence,
                                   const struct zr_request *request, size_t alignment, uint32_t thread)
{
    struct zr_plan_slot *ahead = sequence->cursor, *behind = sequence->cursor;
    size_t reach_max = (size_t)(sequence->end - sequence->slots) / 2;
    uint32_t last = sequence->recent[ZR_EXECUTOR_RECENT - 1];
    if (sequence->missed != sequence->cursor)
        sequence->recent_count = 0; /* a step was matched since the last unknown request */
    const uint32_t *before = sequence->recent_count > 0 ? &last : NULL;
    for (size_t i = 0; i < WINDOW && i < reach_max; i++) {
        ahead = zr_step_next(sequence, ahead);
        behind = zr_step_previous(sequence, behind);
        if (zr_slot_serves(ahead, request, alignment, thread) && is_likely(sequence, ahead, i + 1, before))
            return ahead;
        if (zr_slot_serves(behind, request, alignment, thread) && is_likely(sequence, behind, i, before))
            return behind;
    }
    memmove(sequence->recent, sequence->recent + 1, sizeof sequence->recent - sizeof *sequence->recent);
    sequence->recent[ZR_EXECUTOR_RECENT - 1] = zr_executor_hash(request, alignment, thread);
    sequence->missed = sequence->cursor;
    if (sequence->recent_count < ZR_EXECUTOR_RECENT)
        sequence->recent_count++;
    if (sequence->recent_count < ZR_EXECUTOR_RECENT)
        return NULL;
    struct zr_plan_slot *slot = find_recent(plan, sequence);
    return slot && zr_slot_serves(slot, request, alignment, thread) ? slot : NULL;
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

static void mark_overdue(const struct zr_arena *arena, struct zr_executor_sequence *sequence,
                         struct zr_plan_slot *slot)
{
    if (slot->overdue)
        return;
    if (slot->plan->pages_count > 0)
        zr_pages_count_overdue(arena, slot, true);
    slot->overdue = true;
    zr_step_of(slot)->special_free = true;
    slot->extent.previous = NULL;
    slot->extent.next = (struct zr_extent *)sequence->overdue;
    if (sequence->overdue)
        sequence->overdue->extent.previous = &slot->extent;
    sequence->overdue = slot;
    sequence->overdue_count++;
}

static void clear_overdue(const struct zr_arena *arena, struct zr_executor_sequence *sequence,
                          struct zr_plan_slot *slot)
{
    if (slot->plan->pages_count > 0)
        zr_pages_count_overdue(arena, slot, false);
    slot->overdue = false;
    if (slot->extent.previous)
        slot->extent.previous->next = slot->extent.next;
    else
        sequence->overdue = (struct zr_plan_slot *)slot->extent.next;
    if (slot->extent.next)
        slot->extent.next->previous = slot->extent.previous;
    sequence->overdue_count--;
}

/* Reaches the step: blocks that must be free at this step and are live become overdue. */
static inline void reach(const struct zr_arena *arena, const struct zr_executor_plan *plan,
                         struct zr_executor_sequence *sequence, const struct zr_plan_slot *slot)
{
    if (__builtin_expect(plan->due_counts[slot->number] == 0, 1))
        return;
    for (uint32_t i = slot->due_first; i < slot->due_end; i++)
        if (zr_step_live(plan, plan->due[i]))
            mark_overdue(arena, sequence, plan->slots + plan->due[i]);
}

/* Moves the cursor to another step; blocks that are live outside their planned lifetime there become overdue.
 */
static void jump(const struct zr_arena *arena, const struct zr_executor_plan *plan,
                 struct zr_executor_sequence *sequence, struct zr_plan_slot *to)
{
    size_t count = (size_t)(sequence->end - sequence->slots);
    size_t ahead = (size_t)(to - sequence->cursor + (to < sequence->cursor ? (ptrdiff_t)count : 0));
    if (ahead <= WINDOW) {
        for (; sequence->cursor != to; sequence->cursor = zr_step_next(sequence, sequence->cursor))
            reach(arena, plan, sequence, sequence->cursor);
        return;
    }
    size_t end = (size_t)(sequence->end - plan->slots);
    for (size_t i = zr_executor_live_from(plan, (size_t)(sequence->slots - plan->slots)); i < end;
         i = zr_executor_live_from(plan, i + 1)) {
        struct zr_plan_slot *slot = &plan->slots[i];
        size_t age = (size_t)(to - slot + (to <= slot ? (ptrdiff_t)count : 0)); /* 1 to count */
        if (age >= slot->alive_count)
            mark_overdue(arena, sequence, slot);
    }
    sequence->cursor = to;
}

void zr_arena_rewind_plan(zr_arena *arena)
{
    zr_lock_acquire(&arena->lock);
    struct zr_executor_plan *plan = arena->executor ? arena->executor->plan : NULL;
    for (size_t i = 0; plan && i < plan->sequences_count; i++) {
        struct zr_executor_sequence *sequence = &plan->sequences[i];
        if (sequence->cursor != sequence->slots)
            jump(arena, plan, sequence, sequence->slots);
        sequence->recent_count = 0;
    }
    zr_lock_release(&arena->lock);
}

/* Counts the last steps with the hash of `next` that agree with the live blocks. `shift`: each slot's block
 * belongs to the step before the slot's own. */
static unsigned fit_of(const struct zr_executor_sequence *sequence, struct zr_plan_slot *next, bool shift)
{
    unsigned fit = 0;
    uint32_t age = 1;
    struct zr_plan_slot *slot = zr_step_previous(sequence, next);
    for (; age <= ALIKE && slot->hash == next->hash; age++, slot = zr_step_previous(sequence, slot)) {
        const struct zr_plan_slot *own = shift ? zr_step_previous(sequence, slot) : slot;
        fit += own->hash == next->hash && zr_slot_live(slot->plan, slot) == (age < own->alive_count);
    }
    return fit;
}

/* Whether an unplanned request took the place of a step with the same hash, so that each later request took
 * the place of the following step. In that case the live blocks fit the steps better when they are shifted by
 * one, and the current request is the step before `next`. */
static bool is_off_by_one(const struct zr_executor_sequence *sequence, struct zr_plan_slot *next)
{
    return zr_step_previous(sequence, next)->hash == next->hash &&
           fit_of(sequence, next, true) > fit_of(sequence, next, false);
}

/* ---- Passes -------------------------------------------------------------------------------------------- */

void zr_executor_begin_pass(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    executor->counts.planned_count += executor->pass_count - executor->pass_left;
    executor->pass = (struct zr_pass){0};
    executor->pass_left = executor->pass_count = executor->plan ? executor->plan->slots_count : SIZE_MAX;
    executor->pass_calls_count = arena->backend_calls_count;
    executor->unplanned_run = 0;
}

static void end_pass(struct zr_arena *arena, struct zr_executor *executor)
{
    executor->pass.allocations_count = executor->plan->slots_count - executor->pass_left;
    executor->pass.whole = executor->pass_left == 0;
    executor->pass.driver_calls_count = arena->backend_calls_count - executor->pass_calls_count;
    executor->counts.passes_count++;
    if (executor->observer) {
        unsigned wish = executor->observer->passed(executor->state, &executor->pass);
        executor->work_due |= (wish & ZR_OBSERVER_WORK) != 0;
        executor->awake = !(wish & ZR_OBSERVER_SLEEP);
    }
    zr_executor_begin_pass(arena);
}

static struct zr_extent *note_unplanned(struct zr_arena *arena, struct zr_executor *executor)
{
    executor->counts.unplanned_count++;
    executor->pass.unplanned_count++;
    executor->unplanned_run++;
    executor->pass_left--;
    if (executor->pass_left == 0 || executor->unplanned_run == ZR_EXECUTOR_LOST)
        end_pass(arena, executor);
    return NULL;
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

static bool clear_of_overdue(const struct zr_arena *arena, const struct zr_executor_sequence *sequence,
                             const struct zr_plan_slot *slot)
{
    if (sequence->overdue_count > OVERDUE_MAX)
        return false;
    for (const struct zr_plan_slot *overdue = sequence->overdue; overdue;
         overdue = (const struct zr_plan_slot *)overdue->extent.next)
        if (overdue->extent.offset_bytes < zr_extent_end(&slot->extent) &&
            slot->extent.offset_bytes < zr_extent_end(&overdue->extent))
            return false;
    return slot->plan->pages_count == 0 || zr_pages_clear_of_overdue(arena, sequence, slot);
}

/* Waits for memory that streams have freed while mapping the bytes would reserve more than the plan may take.
 * A plan that starts needs granules of the dynamic path, whose blocks were freed a moment ago. */
static void avoid_growth(struct zr_arena *arena, size_t bytes)
{
    zr_arena_flush_size_cache(arena);
    while (arena->asynchronous && arena->reserved_bytes + bytes > arena->executor->allowed_bytes &&
           arena->granule_cache.bytes + zr_space_idle_up_to(arena, bytes) < bytes &&
           zr_space_pending_bytes(arena) > 0 && zr_streams_wait(arena))
        continue;
}

/* Maps the unmapped granules under the step's place. False: mapping failed. */
static bool map_slot(struct zr_arena *arena, struct zr_plan_slot *slot)
{
    struct zr_granule_range under = zr_granules_under(arena, &slot->extent);
    struct zr_bounds extent = {under.first * arena->granule_bytes,
                               (under.end - under.first) * arena->granule_bytes};
    if (arena->executor->retired && !zr_granules_all_mapped(arena->granules, under.first, under.end))
        zr_executor_spare(arena, extent.bytes, 0, false);
    if (slot->plan->pages_count > 0) {
        if (zr_pages_map(arena, slot) != ZR_OK)
            return false;
    } else if (slot->plan->must_remap && !zr_executor_collect(arena, slot->plan, under)) {
        return false;
    } else if (!zr_granules_all_mapped(arena->granules, under.first, under.end)) {
        struct zr_bounds stuck;
        avoid_growth(arena, extent.bytes - zr_granules_mapped(arena->granules, under.first, under.end) *
                                               arena->granule_bytes);
        zr_result result = zr_map(arena, extent, &stuck);
        slot->plan->must_remap |= stuck.bytes > 0;
        if (result != ZR_OK)
            return false;
    }
    zr_step_of(slot)->seen_epoch = slot->plan->epoch;
    return true;
}

/* Finds the place of a similar step whose block was freed early or never allocated: the place is unused until
 * that step's lifetime ends. NULL: no such place lasts as long as this step. */
static struct zr_plan_slot *find_unused(const struct zr_arena *arena,
                                        const struct zr_executor_sequence *sequence,
                                        const struct zr_plan_slot *slot)
{
    struct zr_executor_plan *plan = slot->plan;
    struct zr_plan_slot *unused = plan->slots + slot->alike;
    size_t count = (size_t)(sequence->end - sequence->slots);
    for (unsigned i = 0; i < ALIKE_MAX && unused != slot; i++, unused = plan->slots + unused->alike) {
        size_t age = (size_t)(slot - unused + (slot < unused ? (ptrdiff_t)count : 0));
        const struct zr_step *step = zr_step_of(unused), *own = zr_step_of(slot);
        if (age + slot->alive_count <= unused->alive_count && !zr_slot_live(plan, unused) && unused->placed &&
            step->seen_epoch == plan->epoch && step->requested_bytes == own->requested_bytes &&
            step->stream == own->stream && step->thread == own->thread && step->tag == own->tag &&
            step->alignment_shift == own->alignment_shift && clear_of_overdue(arena, sequence, unused))
            return unused;
    }
    return NULL;
}

static struct zr_extent *enter(struct zr_executor_plan *plan, struct zr_plan_slot *slot)
{
    zr_step_set_live(plan, zr_step_of(slot), slot->number);
    zr_step_enter(plan, zr_step_of(slot), slot->number);
    return &slot->extent;
}

/* Undo the placement. */
static void withdraw(struct zr_arena *arena, struct zr_executor_sequence *sequence, struct zr_plan_slot *slot)
{
    struct zr_executor_plan *plan = slot->plan;
    zr_step_leave(plan, zr_step_of(slot));
    if (slot->overdue) /* steps at which the block must be free were reached while the lock was released */
        clear_overdue(arena, sequence, slot);
    zr_step_clear_live(plan, zr_step_of(slot), slot->number);
    zr_step_of(slot)->special_free = false;
}

static struct zr_extent *note_conflict(struct zr_executor *executor)
{
    executor->counts.conflicts_count++;
    executor->pass.conflicts_count++;
    return NULL;
}

/* Allocates the dynamic block of a step that has no place in the region. NULL: any place will do. */
static struct zr_extent *allocate_outside(struct zr_arena *arena, const struct zr_request *request,
                                          const struct zr_plan_slot *slot)
{
    struct zr_bounds place = {slot->extent.offset_bytes, slot->extent.bytes};
    if (place.offset_bytes == 0) {
        arena->executor->counts.unplaced_count++;
        return NULL;
    }
    struct zr_extent *block = zr_core_alloc_at(arena, request, place);
    return block ? block : note_conflict(arena->executor);
}

/* Allocates the block of a known step. NULL: the place cannot be used. */
static struct zr_extent *allocate_step(struct zr_arena *arena, const struct zr_request *request,
                                       struct zr_executor_sequence *sequence, struct zr_plan_slot *slot)
{
    struct zr_executor *executor = arena->executor;
    struct zr_executor_plan *plan = slot->plan;
    if (!slot->placed)
        return allocate_outside(arena, request, slot);
    if (__builtin_expect(sequence->overdue_count > 0, 0) && !clear_of_overdue(arena, sequence, slot)) {
        struct zr_plan_slot *unused = find_unused(arena, sequence, slot);
        return unused ? enter(plan, unused) : note_conflict(executor);
    }
    /* Mark the block live first, so that no other request gets its place while the driver maps it. */
    struct zr_extent *block = enter(plan, slot);
    if (__builtin_expect(zr_step_of(slot)->seen_epoch != plan->epoch, 0) && !map_slot(arena, slot)) {
        withdraw(arena, sequence, slot);
        executor->counts.refused_count++;
        executor->pass.refused_count++;
        return NULL;
    }
    return block;
}

/* The bytes of the blocks that the plan expects to be live before the sequence's first step. */
static size_t crossing_bytes(const struct zr_executor_sequence *sequence)
{
    size_t bytes = 0;
    for (const struct zr_plan_slot *slot = sequence->slots; slot < sequence->end; slot++)
        if (slot->placed && slot->alive_count > (size_t)(sequence->end - slot))
            bytes += slot->extent.bytes;
    return bytes;
}

/* Whether the plan's memory fits beside the memory in use. Memory that streams may still use counts as free,
 * because zr_streams_poll() records the events that release it. So does the memory of `crossing` bytes: these
 * blocks are freed before the steps at their places. */
static bool has_room(struct zr_arena *arena, const struct zr_executor_plan *plan, size_t crossing)
{
    size_t limit_bytes = arena->first_stripe->peak_reserved_bytes;
    limit_bytes = (limit_bytes > plan->start_bytes ? limit_bytes : plan->start_bytes) + crossing;
    if (arena->live_bytes + arena->executor->counts.memory_bytes > limit_bytes)
        return false; /* live bytes alone exceed the limit */
    zr_arena_flush_size_cache(arena);
    if (arena->asynchronous)
        zr_streams_poll(arena);
    size_t idle_bytes = arena->granule_cache.bytes + zr_space_idle_bytes(arena) +
                        zr_space_pending_bytes(arena) + zr_executor_retired_idle_bytes(arena);
    size_t used_bytes = arena->reserved_bytes > idle_bytes ? arena->reserved_bytes - idle_bytes : 0;
    return used_bytes + arena->executor->counts.memory_bytes <= limit_bytes;
}

/* Whether a deferred sequence may start at this step. With several sequences, the bytes that the others hold
 * are unknown, so each sequence starts at its first step, where its live bytes are lowest. */
static bool start_sequence(struct zr_arena *arena, struct zr_executor_plan *plan,
                           struct zr_executor_sequence *sequence, const struct zr_plan_slot *slot)
{
    bool first = slot == sequence->slots;
    if (plan->sequences_count > 1 ? !first : !has_room(arena, plan, first ? crossing_bytes(sequence) : 0))
        return false;
    sequence->deferred = false;
    zr_executor_begin_pass(arena);
    return true;
}

struct zr_extent *zr_executor_alloc(struct zr_arena *arena, const struct zr_request *request,
                                    struct zr_need need)
{
    struct zr_executor *executor = arena->executor;
    struct zr_executor_plan *plan = executor->plan;
    if (!plan)
        return NULL;
    uint32_t thread = zr_thread_number();
    struct zr_executor_sequence *sequence = zr_executor_sequence_of(plan, thread, request->stream);
    if (!sequence)
        return note_unplanned(arena, executor);
    struct zr_plan_slot *slot = sequence->cursor;
    if (__builtin_expect(!zr_slot_serves(slot, request, need.alignment, thread), 0)) {
        slot = resync(plan, sequence, request, need.alignment, thread);
        if (!slot)
            return note_unplanned(arena, executor);
        jump(arena, plan, sequence, slot);
        sequence->recent_count = 0;
    }
    size_t overdue_count = sequence->overdue_count;
    reach(arena, plan, sequence, slot);
    if (__builtin_expect(sequence->overdue_count > overdue_count, 0) && is_off_by_one(sequence, slot)) {
        sequence->cursor = slot;
        return note_unplanned(arena, executor);
    }
    sequence->cursor = zr_step_next(sequence, slot);
    executor->unplanned_run = 0;
    if (__builtin_expect(sequence->deferred, 0) && !start_sequence(arena, plan, sequence, slot)) {
        executor->counts.deferred_count++;
        return NULL;
    }
    struct zr_extent *block = allocate_step(arena, request, sequence, slot);
    if (__builtin_expect(--executor->pass_left == 0, 0))
        end_pass(arena, executor);
    return block;
}

/* ---- Freeing ------------------------------------------------------------------------------------------- */

static struct zr_executor_sequence *sequence_with(const struct zr_executor_plan *plan,
                                                  const struct zr_plan_slot *slot)
{
    struct zr_executor_sequence *sequence = plan->sequences;
    while (slot >= sequence->end)
        sequence++;
    return sequence;
}

size_t zr_executor_live_count(const struct zr_executor_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->slots_count; i++)
        count += plan->live[i];
    return count;
}

size_t zr_executor_live_from(const struct zr_executor_plan *plan, size_t number)
{
    const uint8_t *live =
        number < plan->slots_count ? memchr(plan->live + number, 1, plan->slots_count - number) : NULL;
    return live ? (size_t)(live - plan->live) : plan->slots_count;
}

void zr_executor_free(struct zr_arena *arena, struct zr_extent *block)
{
    struct zr_plan_slot *slot = (struct zr_plan_slot *)block;
    struct zr_executor_plan *plan = slot->plan;
    zr_assert(zr_slot_live(plan, slot));
    if (__builtin_expect(slot->overdue, 0))
        clear_overdue(arena, sequence_with(plan, slot), slot);
    zr_step_clear_live(plan, zr_step_of(slot), slot->number);
    zr_step_of(slot)->special_free = false;
    if (__builtin_expect(block->kind != ZR_EXTENT_PLANNED, 0)) {
        /* The block was used by other streams and waited in their queues, which changed these fields. */
        block->kind = ZR_EXTENT_PLANNED;
        block->slack_bytes = (uint32_t)(block->bytes - slot->requested_bytes);
    }
    if (plan == arena->executor->plan || --plan->live_count > 0)
        return;
    arena->executor->gone = true;
}

void zr_executor_retire_gone(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    executor->gone = false;
    for (struct zr_executor_plan **link = &executor->retired, *plan; (plan = *link);) {
        if (plan->live_count > 0) {
            link = &plan->next;
            continue;
        }
        *link = plan->next;
        zr_executor_retire(arena, plan);
        link = &executor->retired; /* zr_executor_retire() released the lock, so the list may have changed */
    }
}
