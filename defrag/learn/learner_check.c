/* learner_check.c: checks a finished plan. Uses zr_pack_check() and the plan in the form that the arena
 * receives, and no data from which the plan was made.
 *
 * A block is live for the steps in the plan, also across the end of its sequence. If granules have pages, a
 * block consists of one piece for each run of consecutive pages, at the place of those pages. */
#include "defrag/learn/learner.h"

#include "alloc/base/error.h"

enum { UNIT_BYTES = 256 };

/* The pieces of a plan's memory, as buffers. A first pass with buffers NULL counts them, a second fills them
 * in. */
struct pieces {
    struct zr_buffer *buffers;
    size_t count;
};

/* The memory under the region's byte `offset`. Reduces *bytes to the contiguous part. */
static uint64_t memory_at(const struct zr_plan *plan, size_t granule_bytes, uint64_t offset, uint64_t *bytes)
{
    uint64_t first = offset / granule_bytes, last = first;
    if (!plan->pages)
        return offset;
    while ((last + 1) * granule_bytes < offset + *bytes && plan->pages[last + 1] == plan->pages[last] + 1)
        last++;
    if (*bytes > (last + 1) * granule_bytes - offset)
        *bytes = (last + 1) * granule_bytes - offset;
    return plan->pages[first] * (uint64_t)granule_bytes + offset % granule_bytes;
}

static uint64_t block_bytes(const struct zr_plan_step *step, struct zr_plan_rules rules)
{
    return (step->request.bytes + rules.canary_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

/* Adds the block of step `at` of its sequence. */
static void add_block(struct pieces *pieces, const struct zr_plan *plan, struct zr_plan_rules rules,
                      const struct zr_plan_sequence *sequence, size_t at)
{
    const struct zr_plan_step *step = &plan->steps[sequence->first + at];
    uint64_t bytes = block_bytes(step, rules), left;
    for (uint64_t done = 0; done < bytes; done += left) {
        left = bytes - done;
        uint64_t offset = memory_at(plan, rules.granule_bytes, step->offset_bytes + done, &left);
        if (pieces->buffers)
            pieces->buffers[pieces->count] = (struct zr_buffer){.id = sequence->first + at,
                                                                .lower = at,
                                                                .upper = at + step->alive_count,
                                                                .bytes = left,
                                                                .offset_bytes = offset};
        pieces->count++;
    }
}

static void add_sequence(struct pieces *pieces, const struct zr_plan *plan, struct zr_plan_rules rules,
                         const struct zr_plan_sequence *sequence)
{
    for (size_t i = 0; i < sequence->count; i++)
        if (plan->steps[sequence->first + i].offset_bytes != ZR_PLAN_NOWHERE)
            add_block(pieces, plan, rules, sequence, i);
}

/* The memory from a sequence's first byte to its last, as one buffer. No other sequence may use it at any
 * time. */
static struct zr_buffer extent_of(const struct pieces *pieces, size_t number)
{
    struct zr_buffer all = {.id = number, .upper = 1};
    uint64_t end = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const struct zr_buffer *piece = &pieces->buffers[i];
        if (i == 0 || piece->offset_bytes < all.offset_bytes)
            all.offset_bytes = piece->offset_bytes;
        end = piece->offset_bytes + piece->bytes > end ? piece->offset_bytes + piece->bytes : end;
    }
    all.bytes = end - all.offset_bytes;
    return all;
}

static zr_result check_sequence(const struct zr_plan *plan, struct zr_plan_rules rules, size_t number,
                                struct zr_buffer *extent)
{
    struct zr_scratch scratch = {0};
    struct pieces counted = {0}, pieces = {0};
    add_sequence(&counted, plan, rules, &plan->sequences[number]);
    pieces.buffers = zr_scratch_take(&scratch, counted.count, sizeof *pieces.buffers);
    zr_result result = scratch.result;
    if (result == ZR_OK) {
        add_sequence(&pieces, plan, rules, &plan->sequences[number]);
        *extent = extent_of(&pieces, number);
        const struct zr_lifetimes lifetimes = {
            .buffers = pieces.buffers, .count = pieces.count, .period = plan->sequences[number].count};
        result = zr_pack_check(&lifetimes, zr_plan_memory_bytes(plan, rules.granule_bytes));
    }
    zr_scratch_end(&scratch);
    return result;
}

/* Checks the blocks of the only sequence that lie in gaps: between walls, which are always live. */
static zr_result check_gaps(const struct zr_candidate *candidate, struct zr_plan_rules rules)
{
    const struct zr_plan *plan = &candidate->plan;
    struct zr_scratch scratch = {0};
    struct zr_lifetimes lifetimes = {.period = plan->steps_count};
    uint64_t wall = 0;
    lifetimes.buffers =
        zr_scratch_take(&scratch, plan->steps_count + candidate->gaps_count, sizeof *lifetimes.buffers);
    zr_result result = scratch.result;
    for (size_t i = 0; i < candidate->gaps_count && result == ZR_OK; i++) {
        const struct zr_pack_gap *gap = &candidate->gaps[i];
        lifetimes.buffers[lifetimes.count++] = (struct zr_buffer){
            .id = i, .upper = plan->steps_count, .bytes = gap->offset_bytes - wall, .offset_bytes = wall};
        wall = gap->offset_bytes + gap->bytes;
    }
    for (size_t i = 0; i < plan->steps_count && result == ZR_OK; i++)
        if (plan->steps[i].gap_bytes > 0)
            lifetimes.buffers[lifetimes.count++] =
                (struct zr_buffer){.id = i,
                                   .lower = i,
                                   .upper = i + plan->steps[i].alive_count,
                                   .bytes = block_bytes(&plan->steps[i], rules),
                                   .offset_bytes = plan->steps[i].gap_bytes};
    if (result == ZR_OK)
        result = zr_pack_check(&lifetimes, wall);
    zr_scratch_end(&scratch);
    return result;
}

zr_result zr_candidate_check(const struct zr_candidate *candidate, struct zr_plan_rules rules)
{
    const struct zr_plan *plan = &candidate->plan;
    struct zr_buffer extents[ZR_PLAN_SEQUENCES] = {0};
    zr_result result = ZR_OK;
    for (size_t i = 0; i < plan->sequences_count && result == ZR_OK; i++)
        result = check_sequence(plan, rules, i, &extents[i]);
    if (result == ZR_OK)
        result = zr_pack_check(&(struct zr_lifetimes){.buffers = extents, .count = plan->sequences_count},
                               zr_plan_memory_bytes(plan, rules.granule_bytes));
    return result == ZR_OK && candidate->plain_granules > 0 ? check_gaps(candidate, rules) : result;
}
