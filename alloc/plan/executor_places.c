/* executor_places.c: finds blocks of plans by address. Uses index.c.
 *
 * The index has one entry for the whole region of a plan. Within the region, the plan's own table lists the
 * addresses at which blocks can begin, which touches fewer cache lines than the tree's path to each block.
 *
 * A free finds its address in a hash table; the entry holds the slot whose block lies there now. A reader may
 * ask for any byte: it finds the last address at or before the byte in the sorted list, then goes back to the
 * last occupied address. Readers are safe beside writers by the rule in index.h: while a block is live its
 * bit is set, and no other block begins between its first byte and any byte in it. The plan's records outlast
 * its readers. */
#include "alloc/base/error.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/base/sort.h"

/* ---- Making the table ---------------------------------------------------------------------------------- */

struct zr_places_layout zr_places_lay_out(size_t steps_count)
{
    size_t places_count = 16;
    while (places_count < 2 * steps_count)
        places_count *= 2;
    struct zr_places_layout at = {.ranks = places_count * sizeof(struct zr_plan_start)};
    at.occupied = at.ranks + steps_count * sizeof(struct zr_plan_rank);
    at.end = at.occupied + (steps_count / 64 + 1) * sizeof(uint64_t);
    return at;
}

static bool lies_before(const void *a, const void *b)
{
    return ((const struct zr_plan_rank *)a)->offset_bytes < ((const struct zr_plan_rank *)b)->offset_bytes;
}

/* Adds an entry for the address to the table. */
static uint32_t add_place(struct zr_executor_plan *plan, size_t offset_bytes)
{
    size_t unit = offset_bytes >> ZR_UNIT_SHIFT, mask = ~UINT64_C(0) >> plan->places_shift;
    size_t at = zr_place_hash(plan, unit);
    while (atomic_load_explicit(&plan->places[at].state, memory_order_relaxed) != ZR_START_NONE)
        at = (at + 1) & mask;
    plan->places[at].unit = (uint32_t)unit;
    atomic_store_explicit(&plan->places[at].state, ZR_START_NEW, memory_order_relaxed);
    return (uint32_t)at;
}

void zr_places_make(struct zr_executor_plan *plan, const struct zr_plan *from)
{
    struct zr_places_layout at = zr_places_lay_out(from->steps_count);
    size_t count = 0, last = 0;
    plan->ranks = (struct zr_plan_rank *)((char *)plan->places + at.ranks);
    plan->occupied = (_Atomic uint64_t *)((char *)plan->places + at.occupied);
    for (size_t i = 0; i < from->steps_count; i++)
        if (from->steps[i].offset_bytes != ZR_PLAN_NOWHERE)
            plan->ranks[count++] =
                (struct zr_plan_rank){.offset_bytes = from->steps[i].offset_bytes, .number = (uint32_t)i};
    zr_sort_in_place(&(struct zr_sort_records){plan->ranks, count, sizeof *plan->ranks, lies_before});
    for (size_t i = 0; i < count; i++)
        plan->ranks_count += i == 0 || plan->ranks[i].offset_bytes != plan->ranks[i - 1].offset_bytes;
    /* At most half of the entries are used. The table may be smaller than its memory, and the rest is never
     * touched. */
    for (plan->places_shift = 60; UINT64_C(1) << (64 - plan->places_shift) < 2 * plan->ranks_count;)
        plan->places_shift--;
    for (size_t i = 0; i < count; i++) {
        struct zr_plan_rank own = plan->ranks[i];
        if (i == 0 || own.offset_bytes != plan->ranks[last - 1].offset_bytes) {
            own.place = add_place(plan, own.offset_bytes);
            plan->ranks[last++] = own;
        }
        plan->steps[own.number].place = plan->ranks[last - 1].place;
        plan->steps[own.number].rank = (uint32_t)(last - 1);
    }
}

/* ---- In force ------------------------------------------------------------------------------------------ */

void zr_places_open(struct zr_arena *arena, struct zr_executor_plan *plan)
{
    plan->cover = (struct zr_extent){.offset_bytes = plan->region->offset_bytes,
                                     .bytes = plan->region->bytes,
                                     .kind = ZR_EXTENT_REGION,
                                     .zone = ZR_ZONE_REGION};
    zr_index_insert(&arena->index, &plan->cover);
}

void zr_places_close(struct zr_arena *arena, struct zr_executor_plan *plan)
{
    bool freed;
    struct zr_extent *cover = zr_index_take(&arena->index, plan->cover.offset_bytes, &freed);
    zr_assert(cover == &plan->cover);
    zr_index_note(&arena->index, plan->cover.offset_bytes, false);
    for (size_t i = 0; i < plan->ranks_count; i++) {
        const struct zr_plan_rank *rank = &plan->ranks[i];
        if (atomic_load_explicit(&plan->places[rank->place].state, memory_order_relaxed) == ZR_START_FREED)
            zr_index_note(&arena->index, plan->cover.offset_bytes + rank->offset_bytes, true);
    }
}

struct zr_executor_plan *zr_executor_plan_at(const struct zr_arena *arena, size_t offset_bytes)
{
    const struct zr_executor *executor = arena->executor;
    if (!executor)
        return NULL;
    if (executor->plan && zr_plan_holds(executor->plan, offset_bytes))
        return executor->plan;
    struct zr_executor_plan *plan = executor->retired;
    while (plan && !zr_plan_holds(plan, offset_bytes))
        plan = plan->next;
    return plan;
}

void zr_executor_note_use(struct zr_extent *block)
{
    zr_step_of((const struct zr_plan_slot *)block)->special_free = true;
}

/* ---- Finding ------------------------------------------------------------------------------------------- */

struct zr_extent *zr_block_exact(const struct zr_arena *arena, size_t offset_bytes, bool *freed)
{
    const struct zr_executor_plan *plan = zr_executor_plan_at(arena, offset_bytes);
    if (!plan)
        return zr_index_exact(&arena->index, offset_bytes, freed);
    size_t number = zr_plan_exact(plan, offset_bytes, freed);
    return number < plan->slots_count ? &plan->slots[number].extent : NULL;
}

/* The last block of the plan that begins at or before the offset, which lies in the region. */
static struct zr_extent *block_of_plan(const struct zr_executor_plan *plan, size_t offset_bytes)
{
    size_t place_bytes = offset_bytes - plan->cover.offset_bytes, low = 0, high = plan->ranks_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->ranks[middle].offset_bytes <= place_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    for (ptrdiff_t at = zr_index_bit_before(plan->occupied, low); at >= 0;
         at = zr_index_bit_before(plan->occupied, (size_t)at)) {
        const struct zr_plan_start *place = &plan->places[plan->ranks[at].place];
        uint32_t state = atomic_load_explicit(&place->state, memory_order_acquire);
        if (state >= ZR_START_FIRST)
            return &plan->slots[state - ZR_START_FIRST].extent;
    }
    return NULL;
}

struct zr_extent *zr_block_before(const struct zr_arena *arena, size_t offset_bytes, struct zr_extent *copy)
{
    struct zr_extent *block = zr_index_before(&arena->index, offset_bytes, copy);
    if (!block || copy->zone != ZR_ZONE_REGION)
        return block;
    const struct zr_executor_plan *plan = (const struct zr_executor_plan *)block;
    block = zr_plan_holds(plan, offset_bytes) ? block_of_plan(plan, offset_bytes) : NULL;
    if (block) /* these fields do not change while the plan exists */
        *copy = (struct zr_extent){.offset_bytes = block->offset_bytes,
                                   .bytes = block->bytes,
                                   .slack_bytes = block->slack_bytes,
                                   .stream = block->stream,
                                   .tag = block->tag,
                                   .zone = block->zone};
    return block;
}
