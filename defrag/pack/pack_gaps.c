/* pack_gaps.c: places items in gaps, fixed places beside the packing. Uses pack_problem.c and pack_fit.c.
 *
 * The packing needs at least the highest load of any section, so only an item that is alive in that section
 * can lower the bound. The largest one that fits goes into the tightest place of all gaps; then another
 * section may have the highest load. The gaps only fill up, so each item is tried once. */
#include "defrag/pack/pack_internal.h"

#define NONE UINT32_MAX

struct gaps {
    const struct zr_pack_problem *problem;
    const struct zr_pack_gap *gaps;
    size_t count;
    struct zr_pack_budget *budget;
    uint64_t *load;  /* by section, of the items outside gaps */
    uint32_t *order; /* the items that were not tried yet, the largest first */
    uint32_t order_count;
    uint32_t *first, *next; /* by gap and by item: a gap's items in the order of their offsets */
    uint64_t *at;           /* by item in a gap: units from the gap's start */
};

struct place {
    size_t gap;
    uint64_t at, left; /* left: units that the item leaves free around it */
};

static bool alive_together(const struct zr_pack_problem *problem, uint32_t a, uint32_t b)
{
    return zr_pack_alive_in(problem, a, problem->first[b], zr_pack_last(problem, b)) ||
           zr_pack_alive_in(problem, a, 0, zr_pack_around(problem, b));
}

/* Replaces *best by the tightest place in the gap, if that is tighter. */
static void search_gap(const struct gaps *gaps, size_t gap, uint32_t item, struct place *best)
{
    const struct zr_pack_problem *problem = gaps->problem;
    uint64_t units = problem->units[item], end = gaps->gaps[gap].bytes / problem->unit_bytes, top = 0,
             work = 1;
    for (uint32_t other = gaps->first[gap];; other = gaps->next[other], work++) {
        bool last = other == NONE;
        if (!last && !alive_together(problem, other, item))
            continue;
        uint64_t low = last ? end : gaps->at[other];
        if (low >= top + units && low - top - units < best->left)
            *best = (struct place){gap, top, low - top - units};
        if (last)
            break;
        top = low + problem->units[other] > top ? low + problem->units[other] : top;
    }
    zr_pack_spend(gaps->budget, work);
}

/* Links the item into the gap's list, which is in the order of offsets. */
static void enter(struct gaps *gaps, uint32_t item, struct place place)
{
    uint32_t *link = &gaps->first[place.gap];
    while (*link != NONE && gaps->at[*link] <= place.at)
        link = &gaps->next[*link];
    gaps->at[item] = place.at;
    gaps->next[item] = *link;
    *link = item;
}

static void lower_load(struct gaps *gaps, uint32_t item)
{
    const struct zr_pack_problem *problem = gaps->problem;
    for (uint32_t s = problem->first[item]; s < zr_pack_last(problem, item); s++)
        gaps->load[s] -= problem->units[item];
    for (uint32_t s = 0; s < zr_pack_around(problem, item); s++)
        gaps->load[s] -= problem->units[item];
    zr_pack_spend(gaps->budget, problem->duration[item] / 16 + 1);
}

static uint32_t hottest_section(const struct gaps *gaps)
{
    uint32_t hottest = 0;
    for (uint32_t s = 1; s < gaps->problem->sections_count; s++)
        hottest = gaps->load[s] > gaps->load[hottest] ? s : hottest;
    zr_pack_spend(gaps->budget, gaps->problem->sections_count / 16 + 1);
    return hottest;
}

/* Places the largest item that is alive in the section and fits. Drops the items that do not fit. False: none
 * fits. */
static bool place_one(struct gaps *gaps, uint32_t section, uint64_t *offsets)
{
    const struct zr_pack_problem *problem = gaps->problem;
    uint32_t kept = 0, k = 0;
    bool placed = false;
    for (; k < gaps->order_count && !placed && !zr_pack_time_up(gaps->budget); k++) {
        uint32_t item = gaps->order[k];
        struct place best = {.left = UINT64_MAX};
        if (!zr_pack_alive_in(problem, item, section, section + 1)) {
            gaps->order[kept++] = item;
            continue;
        }
        for (size_t gap = 0; gap < gaps->count; gap++)
            search_gap(gaps, gap, item, &best);
        if (best.left == UINT64_MAX)
            continue;
        enter(gaps, item, best);
        lower_load(gaps, item);
        offsets[problem->buffer[item]] = gaps->gaps[best.gap].offset_bytes + best.at * problem->unit_bytes;
        placed = true;
    }
    zr_pack_spend(gaps->budget, k / 16);
    while (k < gaps->order_count)
        gaps->order[kept++] = gaps->order[k++];
    gaps->order_count = kept;
    return placed;
}

static zr_result begin(struct gaps *gaps, struct zr_scratch *scratch)
{
    const struct zr_pack_problem *problem = gaps->problem;
    struct zr_sort_pair *pairs = zr_scratch_take(scratch, 2 * (size_t)problem->count, sizeof *pairs);
    gaps->load = problem->load;
    gaps->order = zr_scratch_take(scratch, problem->count, sizeof *gaps->order);
    gaps->next = zr_scratch_take(scratch, problem->count, sizeof *gaps->next);
    gaps->at = zr_scratch_take(scratch, problem->count, sizeof *gaps->at);
    gaps->first = zr_scratch_take(scratch, gaps->count, sizeof *gaps->first);
    if (scratch->result != ZR_OK)
        return scratch->result;
    for (size_t gap = 0; gap < gaps->count; gap++)
        gaps->first[gap] = NONE;
    for (uint32_t item = 0; item < problem->count; item++)
        gaps->order[gaps->order_count++] = item;
    zr_pack_sort_falling(gaps->order, problem->count, problem->duration,
                         pairs); /* decides ties of the sizes */
    zr_pack_sort_falling(gaps->order, problem->count, problem->units, pairs);
    return ZR_OK;
}

zr_result zr_pack_gaps(const struct zr_lifetimes *lifetimes, const struct zr_pack_gap *gaps,
                       size_t gaps_count, uint64_t alignment_bytes, struct zr_pack_budget *budget,
                       uint64_t *offsets)
{
    struct zr_scratch scratch = {.arena = lifetimes->host_arena};
    struct zr_pack_problem problem;
    struct gaps own = {.problem = &problem, .gaps = gaps, .count = gaps_count, .budget = budget};
    for (size_t i = 0; i < lifetimes->count; i++)
        offsets[i] = ZR_FIT_FAILED;
    zr_result result = zr_pack_problem_make(&problem, lifetimes, alignment_bytes, &scratch);
    if (result == ZR_OK)
        result = begin(&own, &scratch);
    while (result == ZR_OK && own.order_count > 0 && !zr_pack_time_up(budget) &&
           place_one(&own, hottest_section(&own), offsets))
        continue;
    zr_scratch_end(&scratch);
    return result;
}
