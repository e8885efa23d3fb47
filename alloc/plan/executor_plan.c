/* executor_plan.c: installs and retires plans, calls the observer, checks the records. Uses region.c and
 * index.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/core/index.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"

/* ---- Installing ---------------------------------------------------------------------------------------- */

void zr_executor_retire(struct zr_arena *arena, struct zr_executor_plan *plan)
{
    /* Streams may still use blocks freed in the region, and a free extent without a stream is reusable at
     * once. */
    zr_places_close(arena, plan);
    bool passed = zr_executor_wait(arena, plan);
    if (plan->must_remap)
        zr_executor_give_back_of(arena, plan, SIZE_MAX);
    if (passed && !plan->must_remap && (plan->pages_count == 0 || zr_pages_leave(arena, plan)))
        zr_region_release(arena, plan->region);
    else
        plan->region->kind = ZR_EXTENT_DEFERRED; /* never reused; destroying the arena unmaps again */
    plan->region = NULL;
    plan->next = arena->executor->dead;
    arena->executor->dead = plan;
}

static void spare(struct zr_arena *arena, size_t missing_bytes)
{
    zr_executor_spare(arena, missing_bytes, 0, true);
}

static void forked(struct zr_arena *arena)
{
    if (arena->executor->observer && arena->executor->observer->forked)
        arena->executor->observer->forked(arena->executor->state);
}

static const struct zr_plan_calls calls = {.freed = zr_executor_free,
                                           .spare = spare,
                                           .give_back = zr_executor_give_back,
                                           .retire_gone = zr_executor_retire_gone,
                                           .idle_bytes = zr_executor_idle_bytes,
                                           .forked = forked};

static zr_result create_executor(struct zr_arena *arena)
{
    if (arena->executor)
        return ZR_OK;
    struct zr_executor *executor = zr_pages_take(sizeof *executor);
    if (!executor)
        return ZR_ERR_HOST_MEMORY;
    zr_lock_acquire(&arena->lock);
    bool lost = arena->executor != NULL;
    if (!lost) {
        executor->pass_left = executor->pass_count = SIZE_MAX;
        arena->executor = executor;
        arena->plan_calls = &calls;
        zr_arena_note_debug(arena);
    }
    zr_lock_release(&arena->lock);
    if (lost)
        zr_pages_give(executor, sizeof *executor);
    return ZR_OK;
}

/* Derives `unstriped`. While a plan or an observer is active, all threads allocate from the first stripe,
 * because the executor sees no other stripe. With the lock. */
static void update_unstriped(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    bool unstriped = executor->plan || executor->observer;
    if (unstriped && !executor->unstriped)
        atomic_fetch_add(&arena->unstriped, 1);
    else if (!unstriped && executor->unstriped)
        atomic_fetch_sub(&arena->unstriped, 1);
    executor->unstriped = unstriped;
}

/* Whether each planned block is freed before its step comes again. */
static bool lifetimes_are_good(const struct zr_plan *plan, const struct zr_plan_sequence *sequence)
{
    const struct zr_plan_step *steps = plan->steps + sequence->first;
    for (size_t i = 0; i < sequence->count; i++)
        if (steps[i].offset_bytes != ZR_PLAN_NOWHERE &&
            (steps[i].alive_count == 0 || steps[i].alive_count > sequence->count))
            return false;
    return true;
}

static bool sequence_is_good(const struct zr_plan *plan, const struct zr_plan_sequence *sequence,
                             size_t first)
{
    return sequence->count > 0 && sequence->first == first && sequence->count <= plan->steps_count - first &&
           sequence->cursor < sequence->count && (!sequence->any || plan->sequences_count == 1) &&
           lifetimes_are_good(plan, sequence);
}

/* Whether each granule of the region has a valid page number. */
static bool pages_are_good(const struct zr_arena *arena, const struct zr_plan *plan)
{
    if (!plan->pages)
        return plan->pages_count == 0;
    if (!arena->backend->can.aliases || plan->pages_count > UINT32_MAX ||
        plan->region_bytes % arena->granule_bytes != 0)
        return false;
    for (size_t i = 0; i < plan->region_bytes / arena->granule_bytes; i++)
        if (plan->pages[i] >= plan->pages_count)
            return false;
    return true;
}

static zr_result check_plan(const struct zr_arena *arena, const struct zr_plan *plan)
{
    if (!plan->steps || !plan->sequences || plan->sequences_count == 0 ||
        plan->sequences_count > ZR_PLAN_SEQUENCES || plan->steps_count >= UINT32_MAX / 2 ||
        plan->region_bytes == 0)
        return zr_fail(ZR_ERR_INVALID,
                       "a plan of %zu sequences, %zu steps and %zu bytes is empty or too large",
                       plan->sequences_count, plan->steps_count, plan->region_bytes);
    if (!pages_are_good(arena, plan))
        return zr_fail(ZR_ERR_INVALID, "this backend cannot map the pages of the plan");
    size_t end = 0;
    for (size_t i = 0; i < plan->sequences_count; end += plan->sequences[i++].count)
        if (!sequence_is_good(plan, &plan->sequences[i], end))
            return zr_fail(ZR_ERR_INVALID,
                           "sequence %zu of the plan does not begin where the previous sequence ends", i);
    if (end != plan->steps_count)
        return zr_fail(ZR_ERR_INVALID, "the sequences of the plan have %zu steps, not %zu", end,
                       plan->steps_count);
    for (size_t i = 0; i < plan->steps_count; i++) {
        const struct zr_plan_step *step = &plan->steps[i];
        size_t alignment = step->request.alignment, bytes,
               most = step->gap_bytes > 0 ? arena->range_bytes : plan->region_bytes;
        if (step->request.bytes == 0 || step->request.bytes > most ||
            (unsigned)step->request.tag >= ZR_TAG_COUNT || alignment < ZR_UNIT_BYTES ||
            alignment > arena->granule_bytes || (alignment & (alignment - 1)) != 0) {
            if (step->offset_bytes != ZR_PLAN_NOWHERE || step->gap_bytes > 0)
                return zr_fail(ZR_ERR_INVALID, "step %zu of the plan is not a valid request", i);
            continue;
        }
        bytes = zr_round_up(step->request.bytes + arena->canary_bytes, ZR_UNIT_BYTES);
        if (step->offset_bytes != ZR_PLAN_NOWHERE &&
            (step->offset_bytes % alignment != 0 || bytes > plan->region_bytes ||
             step->offset_bytes > plan->region_bytes - bytes))
            return zr_fail(ZR_ERR_INVALID, "step %zu of the plan does not lie in its region of %zu bytes", i,
                           plan->region_bytes);
        if (step->gap_bytes > 0 &&
            (step->offset_bytes != ZR_PLAN_NOWHERE || step->gap_bytes % alignment != 0 ||
             bytes > arena->range_bytes || step->gap_bytes > arena->range_bytes - bytes))
            return zr_fail(ZR_ERR_INVALID, "step %zu of the plan does not lie in a gap of the arena", i);
    }
    return ZR_OK;
}

/* Links the slots of equal hash. Uses `ngrams` as scratch: the number of the last slot with a hash, plus 1.
 */
static void link_alike(struct zr_executor_plan *made)
{
    for (struct zr_executor_sequence *sequence = made->sequences;
         sequence < made->sequences + made->sequences_count; sequence++) {
        memset(made->ngrams, 0, made->ngrams_count * sizeof *made->ngrams);
        /* Two rounds, so that the first slot of a hash is linked to the last one. */
        for (unsigned round = 0; round < 2; round++)
            for (struct zr_plan_slot *slot = sequence->slots; slot < sequence->end; slot++) {
                uint32_t *last = &made->ngrams[slot->hash & (made->ngrams_count - 1)];
                while (*last && made->slots[*last - 1].hash != slot->hash)
                    last = last + 1 == made->ngrams + made->ngrams_count ? made->ngrams : last + 1;
                slot->alike = *last ? *last - 1 : slot->number;
                *last = slot->number + 1;
            }
    }
    memset(made->ngrams, 0, made->ngrams_count * sizeof *made->ngrams);
}

static void index_ngrams(struct zr_executor_plan *made)
{
    for (struct zr_executor_sequence *sequence = made->sequences;
         sequence < made->sequences + made->sequences_count; sequence++) {
        if (sequence->end - sequence->slots < ZR_EXECUTOR_RECENT)
            continue;
        for (struct zr_plan_slot *slot = sequence->slots; slot < sequence->end; slot++) {
            uint32_t hashes[ZR_EXECUTOR_RECENT];
            struct zr_plan_slot *back = slot;
            for (unsigned i = ZR_EXECUTOR_RECENT; i-- > 0; back = zr_step_previous(sequence, back))
                hashes[i] = back->hash;
            uint32_t ngram = zr_executor_ngram(hashes);
            for (size_t probe = 0; probe < ZR_EXECUTOR_PROBES; probe++) {
                uint32_t *entry = &made->ngrams[(ngram + probe) & (made->ngrams_count - 1)];
                if (*entry == 0) {
                    *entry = (uint32_t)(slot - made->slots) + 1;
                    break;
                }
            }
        }
    }
}

/* Offsets of the arrays in the one allocation of a copied plan. */
struct layout {
    size_t steps, slots, places, sequences, live, busy, handles, busy_pages, due_counts, due, ngrams, pages,
        overdue_counts, end;
    size_t ngrams_count;
};

static struct layout lay_out(const struct zr_arena *arena, const struct zr_plan *plan)
{
    struct layout at = {.steps = zr_round_up(sizeof(struct zr_executor_plan), 64), .ngrams_count = 16};
    while (at.ngrams_count < 2 * plan->steps_count)
        at.ngrams_count *= 2;
    at.places = at.steps + plan->steps_count * sizeof(struct zr_step);
    at.slots = zr_round_up(at.places + zr_places_lay_out(plan->steps_count).end, 64);
    at.sequences = at.slots + plan->steps_count * sizeof(struct zr_plan_slot);
    at.live = zr_round_up(at.sequences + plan->sequences_count * sizeof(struct zr_executor_sequence), 64);
    at.busy = at.live + zr_round_up(plan->steps_count, sizeof(uint64_t));
    size_t granules = plan->region_bytes / arena->granule_bytes + 1;
    at.handles = at.busy + (granules / 64 + 1) * sizeof(uint64_t);
    at.busy_pages = at.handles + plan->pages_count * sizeof(struct zr_handle *);
    at.due_counts = at.busy_pages + (plan->pages_count / 64 + 1) * sizeof(uint64_t);
    at.due = at.due_counts + zr_round_up(plan->steps_count, 2) * sizeof(uint32_t);
    at.ngrams = at.due + zr_round_up(plan->steps_count, 2) * sizeof(uint32_t);
    at.pages = at.ngrams + at.ngrams_count * sizeof(uint32_t);
    at.overdue_counts = at.pages + (plan->pages ? granules : 0) * sizeof(uint32_t);
    at.end = at.overdue_counts + plan->pages_count * sizeof(uint32_t);
    return at;
}

static struct zr_step step_of(const struct zr_arena *arena, const struct zr_plan_step *step)
{
    size_t alignment = step->request.alignment;
    bool good = alignment != 0 && (alignment & (alignment - 1)) == 0;
    return (struct zr_step){.requested_bytes = step->request.bytes,
                            .bytes = zr_round_up(step->request.bytes + arena->canary_bytes, ZR_UNIT_BYTES),
                            .stream = step->request.stream,
                            .offset_bytes = step->offset_bytes,
                            .thread = step->thread,
                            .tag = (uint8_t)step->request.tag,
                            .alignment_shift = good ? (uint8_t)__builtin_ctzl(alignment) : 63};
}

static struct zr_plan_slot slot_of(const struct zr_arena *arena, const struct zr_plan_step *step,
                                   struct zr_executor_plan *plan)
{
    const struct zr_request *request = &step->request;
    size_t bytes = zr_round_up(request->bytes + arena->canary_bytes, ZR_UNIT_BYTES);
    bool placed = step->offset_bytes != ZR_PLAN_NOWHERE;
    return (struct zr_plan_slot){.extent = {.bytes = bytes,
                                            .slack_bytes = (uint32_t)(bytes - request->bytes),
                                            .stream = request->stream,
                                            .kind = ZR_EXTENT_PLANNED,
                                            .tag = (uint8_t)request->tag,
                                            .zone = ZR_ZONE_COUNT,
                                            .offset_bytes = step->gap_bytes},
                                 .plan = plan,
                                 .requested_bytes = request->bytes,
                                 .hash = zr_executor_hash(request, request->alignment, step->thread),
                                 .alive_count = placed ? step->alive_count : 0,
                                 .placed = placed};
}

static void note_stream(struct zr_executor_plan *made, uint64_t stream)
{
    size_t i = 0, count = made->streams_count;
    while (i < count && i < ZR_EXECUTOR_STREAMS && made->streams[i] != stream)
        i++;
    if (i < count)
        return; /* already listed, or the list has overflowed */
    if (i < ZR_EXECUTOR_STREAMS)
        made->streams[i] = stream;
    made->streams_count++;
}

/* Sorts the placed steps of each sequence by the step at which their blocks must be free. */
static void find_due(struct zr_executor_plan *made)
{
    for (struct zr_executor_sequence *sequence = made->sequences;
         sequence < made->sequences + made->sequences_count; sequence++) {
        size_t count = (size_t)(sequence->end - sequence->slots);
        for (struct zr_plan_slot *slot = sequence->slots; slot < sequence->end; slot++) {
            struct zr_plan_slot *at =
                &sequence->slots[((size_t)(slot - sequence->slots) + slot->alive_count) % count];
            zr_step_of(slot)->due_at = at->number;
            at->due_end += slot->placed;
        }
    }
    /* Turn the counts into ends of ranges. Filling then moves due_first down to each start. */
    uint32_t sum = 0;
    for (size_t i = 0; i < made->slots_count; i++)
        made->slots[i].due_first = made->slots[i].due_end = sum += made->slots[i].due_end;
    for (size_t i = 0; i < made->slots_count; i++)
        if (made->slots[i].placed)
            made->due[--made->slots[made->steps[i].due_at].due_first] = (uint32_t)i;
}

static struct zr_executor_plan *copy_plan(const struct zr_arena *arena, const struct zr_plan *plan)
{
    struct layout at = lay_out(arena, plan);
    char *pages = zr_pages_take(at.end);
    if (!pages)
        return NULL;
    struct zr_executor_plan *made = (struct zr_executor_plan *)pages;
    *made = (struct zr_executor_plan){.pages_bytes = at.end,
                                      .start_bytes = plan->start_bytes,
                                      .epoch = 1,
                                      .slots_count = plan->steps_count,
                                      .steps = (struct zr_step *)(pages + at.steps),
                                      .slots = (struct zr_plan_slot *)(pages + at.slots),
                                      .places = (struct zr_plan_start *)(pages + at.places),
                                      .live = (uint8_t *)(pages + at.live),
                                      .due_counts = (uint32_t *)(pages + at.due_counts),
                                      .due = (uint32_t *)(pages + at.due),
                                      .sequences = (struct zr_executor_sequence *)(pages + at.sequences),
                                      .sequences_count = plan->sequences_count,
                                      .ngrams = (uint32_t *)(pages + at.ngrams),
                                      .ngrams_count = at.ngrams_count,
                                      .busy = (uint64_t *)(pages + at.busy),
                                      .pages_count = plan->pages_count,
                                      .pages = (uint32_t *)(pages + at.pages),
                                      .handles = (struct zr_handle **)(pages + at.handles),
                                      .overdue_counts = (uint32_t *)(pages + at.overdue_counts),
                                      .busy_pages = (uint64_t *)(pages + at.busy_pages)};
    if (plan->pages)
        memcpy(made->pages, plan->pages, plan->region_bytes / arena->granule_bytes * sizeof *plan->pages);
    made->last_sequence = made->sequences;
    for (size_t i = 0; i < plan->steps_count; i++) {
        made->slots[i] = slot_of(arena, &plan->steps[i], made);
        made->slots[i].number = (uint32_t)i;
        made->steps[i] = step_of(arena, &plan->steps[i]);
        if (made->slots[i].placed)
            note_stream(made, made->slots[i].extent.stream);
    }
    for (size_t i = 0; i < plan->sequences_count; i++) {
        const struct zr_plan_sequence *sequence = &plan->sequences[i];
        struct zr_plan_slot *first = made->slots + sequence->first;
        made->sequences[i] = (struct zr_executor_sequence){.slots = first,
                                                           .end = first + sequence->count,
                                                           .cursor = first,
                                                           .thread = sequence->thread,
                                                           .any = sequence->any,
                                                           .any_thread = sequence->any_thread,
                                                           .any_stream = sequence->any_stream,
                                                           .stream = sequence->stream};
    }
    zr_places_make(made, plan);
    find_due(made);
    link_alike(made);
    index_ngrams(made);
    return made;
}

/* Sets each sequence's cursor to the position that the plan's maker gives. */
static void set_cursors(struct zr_executor_plan *made, const struct zr_plan *plan)
{
    for (size_t i = 0; i < made->sequences_count; i++) {
        struct zr_executor_sequence *sequence = &made->sequences[i];
        sequence->cursor = sequence->slots + plan->sequences[i].cursor;
        sequence->deferred = plan->begin != NULL;
    }
}

/* Reserves the plan's addresses and sets the fields that depend on them. Acquires the lock only for the
 * reservation: the region has no other user. */
static zr_result reserve(struct zr_arena *arena, struct zr_executor_plan *made, const struct zr_plan *plan)
{
    size_t bytes = zr_round_up(plan->region_bytes, arena->granule_bytes);
    zr_arena_acquire(arena);
    zr_result result = plan->begin             ? zr_region_reserve_unused(arena, bytes, &made->region)
                       : made->pages_count > 0 ? zr_region_reserve_clear(arena, bytes, &made->region)
                                               : zr_region_reserve(arena, bytes, &made->region);
    zr_arena_release(arena);
    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < made->slots_count; i++)
        if (made->slots[i].placed)
            made->steps[i].offset_bytes = made->slots[i].extent.offset_bytes =
                made->region->offset_bytes + plan->steps[i].offset_bytes;
    return made->pages_count == 0 || zr_pages_are_good(arena, made)
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "a step of the plan uses one page at two addresses");
}

/* Puts the plan in force. With the lock. */
static zr_result put_in_force(struct zr_arena *arena, struct zr_executor_plan *made,
                              const struct zr_plan *plan)
{
    struct zr_executor *executor = arena->executor;
    struct zr_executor_plan *old = executor->plan;
    if (made && !zr_index_reserve(&arena->index))
        return ZR_ERR_HOST_MEMORY;
    if (made && plan->begin && !plan->begin(plan->state))
        return zr_fail(ZR_ERR_UNAVAILABLE, "the plan is out of date");
    if (made) {
        zr_places_open(arena, made);
        set_cursors(made, plan);
    }
    executor->plan = made;
    if (made)
        executor->unplanned = plan->unplanned_count > 0;
    executor->committed = false;
    executor->allowed_bytes = 0;
    zr_executor_allow(arena, arena->reserved_bytes);
    zr_executor_allow(arena, arena->peak_reserved_bytes);
    executor->counts.plans_count += made != NULL;
    executor->counts.region_bytes = made ? made->region->bytes : 0;
    executor->counts.memory_bytes = made ? zr_plan_memory_bytes(plan, arena->granule_bytes) : 0;
    executor->counts.steps_count = made ? made->slots_count : 0;
    if (old && (old->live_count = zr_executor_live_count(old)) > 0) {
        old->next = executor->retired;
        executor->retired = old;
    } else if (old) {
        zr_executor_retire(arena, old);
    }
    /* Unused granules of the new and the retired regions move to the cache, for the first request that needs
     * them. */
    zr_executor_give_back(arena);
    zr_executor_begin_pass(arena);
    update_unstriped(arena);
    return ZR_OK;
}

/* Frees the records of dead plans after their readers have finished. */
static void free_dead(struct zr_executor_plan *dead)
{
    if (dead)
        zr_readers_wait();
    while (dead) {
        struct zr_executor_plan *next = dead->next;
        zr_pages_give(dead, dead->pages_bytes);
        dead = next;
    }
}

zr_result zr_arena_install_plan(zr_arena *arena, const struct zr_plan *plan)
{
    struct zr_executor_plan *made = NULL, *dead;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "installing a plan: arena is NULL");
    zr_result result = plan ? check_plan(arena, plan) : ZR_OK;
    if (result == ZR_OK)
        result = create_executor(arena);
    if (result == ZR_OK && plan && !(made = copy_plan(arena, plan)))
        result = ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK && made)
        result = reserve(arena, made, plan);
    if (result == ZR_OK || (made && made->region)) {
        zr_arena_acquire(arena);
        if (result == ZR_OK)
            result = put_in_force(arena, made, plan);
        if (result != ZR_OK)
            zr_region_release(arena, made->region);
        dead = arena->executor->dead;
        arena->executor->dead = NULL;
        zr_arena_release(arena);
        free_dead(dead);
    }
    if (result != ZR_OK && made)
        zr_pages_give(made, made->pages_bytes);
    return result;
}

void zr_executor_end(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    if (!executor)
        return;
    struct zr_executor_plan *lists[3] = {executor->plan, executor->retired, executor->dead};
    if (lists[0])
        lists[0]->next = NULL;
    for (unsigned i = 0; i < 3; i++)
        while (lists[i]) {
            struct zr_executor_plan *next = lists[i]->next;
            zr_pages_give(lists[i], lists[i]->pages_bytes);
            lists[i] = next;
        }
    zr_pages_give(executor, sizeof *executor);
    arena->executor = NULL;
    arena->plan_calls = NULL;
    zr_arena_note_debug(arena);
}

/* ---- Watching ------------------------------------------------------------------------------------------ */

zr_result zr_arena_observe(zr_arena *arena, const struct zr_observer *observer, void *state)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "observing an arena: arena is NULL");
    zr_result result = create_executor(arena);
    if (result != ZR_OK)
        return result;
    zr_lock_acquire(&arena->lock);
    if (observer && arena->executor->observer) {
        result =
            zr_fail(ZR_ERR_INVALID,
                    "arena \"%s\" already has a learner or a rehearsal: destroy that one first", arena->name);
    } else {
        arena->executor->observer = observer;
        arena->executor->state = state;
        arena->executor->awake = observer != NULL;
        update_unstriped(arena);
    }
    zr_lock_release(&arena->lock);
    return result;
}

void zr_arena_hold(zr_arena *arena)
{
    zr_lock_acquire(&arena->lock);
}

void zr_arena_unhold(zr_arena *arena)
{
    zr_lock_release(&arena->lock);
}

size_t zr_arena_list_blocks(const zr_arena *arena, size_t from_bytes, struct zr_plan_block *out, size_t max)
{
    size_t count = 0;
    for (const struct zr_extent *extent = zr_core_extent_before(arena, from_bytes); extent && count < max;
         extent = extent->next)
        if (extent->kind == ZR_EXTENT_BLOCK && extent->offset_bytes >= from_bytes)
            out[count++] = (struct zr_plan_block){extent->offset_bytes, extent->bytes};
    return count;
}

void zr_arena_observe_awake(zr_arena *arena, bool awake)
{
    arena->executor->awake = awake && arena->executor->observer;
}

bool zr_executor_note_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_extent *block,
                            size_t alignment)
{
    struct zr_executor *executor = arena->executor;
    bool due = executor->work_due;
    executor->work_due = false;
    if (!executor->awake)
        return due;
    unsigned wish = executor->observer->allocated(
        executor->state, &(struct zr_observation){.request = request,
                                                  .offset_bytes = block->offset_bytes,
                                                  .bytes = block->bytes,
                                                  .alignment = alignment,
                                                  .live_bytes = arena->live_bytes,
                                                  .reserved_bytes = arena->reserved_bytes,
                                                  .thread = zr_thread_number(),
                                                  .planned = block->kind == ZR_EXTENT_PLANNED});
    executor->awake = !(wish & ZR_OBSERVER_SLEEP);
    return due || (wish & ZR_OBSERVER_WORK);
}

void zr_executor_note_free(struct zr_arena *arena, struct zr_extent *block)
{
    struct zr_executor *executor = arena->executor;
    if (__builtin_expect(executor->awake, 0))
        executor->observer->freed(executor->state, block->offset_bytes, arena->live_bytes);
}

void zr_executor_work(struct zr_arena *arena)
{
    /* Observers are set and removed only while no other thread calls the arena, so this needs no lock. */
    if (arena->executor->observer && arena->executor->observer->work)
        arena->executor->observer->work(arena->executor->state);
}

void zr_arena_executor_counts(zr_arena *arena, struct zr_executor_counts *out)
{
    *out = (struct zr_executor_counts){0};
    zr_lock_acquire(&arena->lock);
    if (arena->executor) {
        *out = arena->executor->counts;
        /* All allocations of the current pass that have no other counter. */
        out->planned_count += arena->executor->pass_count - arena->executor->pass_left -
                              out->unplanned_count - out->unplaced_count - out->conflicts_count -
                              out->refused_count;
    }
    zr_lock_release(&arena->lock);
}

struct zr_plan_rules zr_arena_plan_rules(const zr_arena *arena)
{
    const struct zr_capabilities *can = &arena->backend->can;
    return (struct zr_plan_rules){.canary_bytes = arena->canary_bytes,
                                  .granule_bytes = arena->granule_bytes,
                                  .synchronous = can->synchronous,
                                  .aliases = can->aliases,
                                  .mappings_max = (can->vma_budget + 1) / 2};
}

struct zr_extent *zr_executor_next_block(struct zr_arena *arena, const struct zr_extent *block)
{
    struct zr_executor *executor = arena->executor;
    const struct zr_plan_slot *slot = (const struct zr_plan_slot *)block;
    struct zr_executor_plan *plan = slot ? slot->plan : executor ? executor->plan : NULL;
    bool in_force = executor && plan == executor->plan;
    if (!slot && executor && !plan) {
        plan = executor->retired;
        in_force = false;
    }
    while (plan) {
        for (struct zr_plan_slot *next = slot ? plan->slots + (slot - plan->slots) + 1 : plan->slots;
             next < plan->slots + plan->slots_count; next++)
            if (zr_slot_live(plan, next) && next->extent.kind == ZR_EXTENT_PLANNED)
                return &next->extent;
        slot = NULL;
        plan = in_force ? executor->retired : plan->next;
        in_force = false;
    }
    return NULL;
}

/* ---- Checking ------------------------------------------------------------------------------------------ */

/* Whether each live block of the sequence is overdue or within its planned lifetime. zr_executor_alloc()
 * relies on this. */
static bool in_time(const struct zr_executor_plan *plan, const struct zr_executor_sequence *sequence)
{
    ptrdiff_t count = sequence->end - sequence->slots;
    for (const struct zr_plan_slot *slot = sequence->slots; slot < sequence->end; slot++) {
        ptrdiff_t age = sequence->cursor - slot + (sequence->cursor <= slot ? count : 0); /* 1 to count */
        if (zr_slot_live(plan, slot) && !slot->overdue && (size_t)age > slot->alive_count)
            return false;
    }
    return true;
}

static zr_result check_one(struct zr_arena *arena, const struct zr_executor_plan *plan)
{
    size_t live_count = 0, overdue_count = 0;
    for (size_t i = 0; i < plan->slots_count; i++) {
        const struct zr_plan_slot *slot = &plan->slots[i];
        bool freed, live = zr_slot_live(plan, slot);
        uint32_t due_count = 0;
        for (uint32_t at = slot->due_first; at < slot->due_end; at++)
            due_count += zr_step_live(plan, plan->due[at]);
        if (due_count != plan->due_counts[i])
            return zr_fail(ZR_ERR_CORRUPT, "%u blocks due at step %zu are live; the counter has %u",
                           due_count, i, plan->due_counts[i]);
        live_count += live;
        overdue_count += slot->overdue;
        if (slot->overdue && !live)
            return zr_fail(ZR_ERR_CORRUPT, "the planned block of step %zu is overdue and not live", i);
        if (live && slot->extent.kind == ZR_EXTENT_PLANNED &&
            (!slot->placed || zr_block_exact(arena, slot->extent.offset_bytes, &freed) != &slot->extent))
            return zr_fail(ZR_ERR_CORRUPT, "the planned block of step %zu is live and not in the index", i);
        if (slot->placed && (slot->extent.offset_bytes < plan->region->offset_bytes ||
                             zr_extent_end(&slot->extent) > zr_extent_end(plan->region)))
            return zr_fail(ZR_ERR_CORRUPT, "step %zu lies outside its region", i);
        if (!slot->placed || (!live && zr_step_of(slot)->seen_epoch != plan->epoch))
            continue;
        struct zr_granule_range under = zr_granules_under(arena, &slot->extent);
        if (!zr_granules_all_mapped(arena->granules, under.first, under.end))
            return zr_fail(ZR_ERR_CORRUPT, "step %zu is marked as mapped and is not mapped", i);
        for (size_t at = under.first; plan->must_remap && at < under.end; at++)
            if (!zr_range_mapping(arena->range, at * arena->granule_bytes)->notified)
                return zr_fail(ZR_ERR_CORRUPT, "step %zu is marked as mapped and has no access", i);
    }
    if (plan->pages_count > 0) {
        zr_result result = zr_pages_check(arena, plan);
        if (result != ZR_OK)
            return result;
    }
    for (const struct zr_executor_sequence *sequence = plan->sequences;
         sequence < plan->sequences + plan->sequences_count; sequence++) {
        if (plan == arena->executor->plan && !in_time(plan, sequence))
            return zr_fail(ZR_ERR_CORRUPT,
                           "a planned block outlives its lifetime and is not in the overdue list");
        overdue_count -= sequence->overdue_count;
    }
    if (overdue_count != 0)
        return zr_fail(ZR_ERR_CORRUPT, "the overdue blocks of a plan differ from its lists");
    if (plan != arena->executor->plan && live_count != plan->live_count)
        return zr_fail(ZR_ERR_CORRUPT, "%zu planned blocks are live; the counter has %zu", live_count,
                       plan->live_count);
    return ZR_OK;
}

zr_result zr_executor_check(struct zr_arena *arena)
{
    struct zr_executor *executor = arena->executor;
    zr_result result = executor && executor->plan ? check_one(arena, executor->plan) : ZR_OK;
    for (struct zr_executor_plan *plan = executor ? executor->retired : NULL; plan && result == ZR_OK;
         plan = plan->next)
        result = plan->live_count || executor->gone
                     ? check_one(arena, plan)
                     : zr_fail(ZR_ERR_CORRUPT, "a plan without blocks is kept");
    return result;
}
