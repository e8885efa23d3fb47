/* learner_gaps.c: gaps beside older blocks, and the steps that use them. Uses pack_gaps.c.
 *
 * Blocks that are older than the period, parameters and optimizer state for example, hold granules that the
 * plan cannot have. What is free in these granules is a gap. Blocks of the step lie in gaps while the plan is
 * made, and are gone after the last step without the plan. A block in a gap is a block of the dynamic path
 * with a given place. If the place is not free, the block goes elsewhere. Nothing is reserved, so nothing is
 * to be returned when an older block is freed or the plan ends. */
#include "defrag/learn/learner_state.h"

#include "defrag/trace/lifetimes.h"

enum { GRAIN = 256, WORK_DIVISOR = 8 /* one part in 8 of the work is for gaps */ };

/* ---- Finding gaps -------------------------------------------------------------------------------------- */

struct finding {
    struct zr_candidate *candidate;
    uint64_t end; /* of the last older block; 0: none yet */
};

static uint64_t granule_start(const struct zr_candidate *candidate, uint64_t offset)
{
    return offset / candidate->granule_bytes * candidate->granule_bytes;
}

static uint64_t granule_end(const struct zr_candidate *candidate, uint64_t offset)
{
    return granule_start(candidate, offset + candidate->granule_bytes - 1);
}

/* A plan has no name for a place at offset 0. */
static void add_gap(struct zr_candidate *candidate, uint64_t start, uint64_t end)
{
    if (start > 0 && end >= start + candidate->granule_bytes / GAP_DIVISOR &&
        candidate->gaps_count < GAPS_MAX)
        candidate->gaps[candidate->gaps_count++] = (struct zr_pack_gap){start, end - start};
}

/* Adds the gap after the last older block, and the one before this block. The two are one if no granule
 * between them is free. */
static void pass_block(struct finding *finding, struct zr_plan_block block)
{
    struct zr_candidate *candidate = finding->candidate;
    uint64_t low = granule_start(candidate, block.offset_bytes), high = granule_end(candidate, finding->end);
    if (finding->end > 0 && low <= high) {
        add_gap(candidate, finding->end, block.offset_bytes);
    } else {
        add_gap(candidate, finding->end, high);
        add_gap(candidate, low, block.offset_bytes);
    }
    finding->end = block.offset_bytes + block.bytes;
}

/* Whether the live block was allocated with this record or later. Blocks without a record are older. Lock
 * held.
 */
static bool is_younger(const struct zr_learner *learner, size_t offset_bytes, uint32_t record)
{
    uint64_t key = offset_bytes / GRAIN + 1;
    size_t mask = learner->live_capacity - 1, at = zr_learner_live_home(learner, key);
    while (learner->live[at].key && learner->live[at].key != key)
        at = (at + 1) & mask;
    return learner->live[at].key == key && learner->live[at].record >= record;
}

/* Lists the gaps of the blocks that are older than the period, a few blocks per hold of the lock. Leaves none
 * if recording restarted, because then no block's age is known. */
static zr_result find_gaps(struct zr_learner *learner, const struct zr_learner_view *view)
{
    struct zr_plan_block blocks[COPIED_MAX];
    struct zr_candidate *candidate = &learner->candidate;
    struct finding finding = {.candidate = candidate};
    size_t count = COPIED_MAX, from = 0;
    candidate->gaps = zr_scratch_take(&candidate->scratch, GAPS_MAX, sizeof *candidate->gaps);
    bool known = candidate->gaps != NULL;
    while (known && count == COPIED_MAX) {
        size_t older_count = 0;
        zr_arena_hold(learner->arena);
        known = learner->forgotten_count == view->forgotten_count && !zr_learner_cancelled(learner);
        count = zr_arena_list_blocks(learner->arena, from, blocks, COPIED_MAX);
        from = count > 0 ? blocks[count - 1].offset_bytes + blocks[count - 1].bytes : from;
        for (size_t i = 0; i < count; i++)
            if (!is_younger(learner, blocks[i].offset_bytes, view->first_record))
                blocks[older_count++] = blocks[i];
        zr_arena_unhold(learner->arena);
        for (size_t i = 0; i < older_count; i++)
            pass_block(&finding, blocks[i]);
    }
    add_gap(candidate, finding.end, granule_end(candidate, finding.end));
    candidate->gaps_count = known ? candidate->gaps_count : 0;
    return candidate->scratch.result;
}

/* ---- Using gaps ---------------------------------------------------------------------------------------- */

/* Sets the place of each step in a gap, and removes it from the blocks to pack. */
static void move_out(struct zr_candidate *candidate, const uint64_t *offsets)
{
    struct zr_lifetimes *lifetimes = &candidate->lifetimes[0];
    size_t kept = 0;
    for (size_t i = 0; i < lifetimes->count; i++) {
        struct zr_plan_step *step = &candidate->steps[lifetimes->buffers[i].id];
        size_t mask = step->request.alignment - 1;
        if (offsets[i] == ZR_FIT_FAILED)
            lifetimes->buffers[kept++] = lifetimes->buffers[i];
        else
            step->gap_bytes = (offsets[i] + mask) & ~mask;
    }
    lifetimes->count = kept;
}

/* The granules that the blocks without a place in a gap take at least. */
static zr_result measure(const struct zr_candidate *candidate, const uint64_t *offsets, size_t *granules)
{
    struct zr_lifetimes rest = candidate->lifetimes[0];
    struct zr_scratch scratch = {0};
    rest.buffers = zr_scratch_take(&scratch, rest.count, sizeof *rest.buffers);
    zr_result result = scratch.result;
    for (size_t i = rest.count = 0; result == ZR_OK && i < candidate->lifetimes[0].count; i++)
        if (offsets[i] == ZR_FIT_FAILED)
            rest.buffers[rest.count++] = candidate->lifetimes[0].buffers[i];
    if (result == ZR_OK)
        result = zr_lifetimes_measure(&rest);
    *granules = (size_t)(granule_end(candidate, rest.lower_bound_bytes) / candidate->granule_bytes);
    zr_scratch_end(&scratch);
    return result;
}

zr_result zr_learner_use_gaps(struct zr_learner *learner, const struct zr_learner_view *view)
{
    struct zr_candidate *candidate = &learner->candidate;
    struct zr_lifetimes *lifetimes = &candidate->lifetimes[0];
    struct zr_scratch scratch = {0};
    if (candidate->plan.sequences_count > 1)
        return ZR_OK;
    zr_result result = find_gaps(learner, view);
    if (result != ZR_OK || candidate->gaps_count == 0)
        return result;
    uint64_t *offsets = zr_scratch_take(&scratch, lifetimes->count, sizeof *offsets);
    size_t before, after;
    struct zr_pack_budget budget = {UINT64_MAX,
                                    zr_candidate_part(learner->options.work, WORK_DIVISOR << view->refusals),
                                    &learner->helper.cancelled};
    for (size_t i = 0; i < lifetimes->count; i++)
        lifetimes->buffers[i].bytes =
            zr_step_memory_bytes(&candidate->steps[lifetimes->buffers[i].id], learner->rules);
    result = offsets ? zr_lifetimes_measure(lifetimes) : scratch.result;
    if (result == ZR_OK)
        result = zr_pack_gaps(lifetimes, candidate->gaps, candidate->gaps_count, GRAIN, &budget, offsets);
    before = (size_t)(granule_end(candidate, lifetimes->lower_bound_bytes) / candidate->granule_bytes);
    if (result == ZR_OK)
        result = measure(candidate, offsets, &after);
    if (result == ZR_OK && after < before) {
        candidate->plain_granules = before;
        move_out(candidate, offsets);
    }
    zr_scratch_end(&scratch);
    return result;
}
