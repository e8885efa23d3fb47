/* pack_improve.c: finds the items that make a placement high, and changes the order there. Uses pack_fit.c.
 *
 * Below the highest item there are gaps, usually in the section with the highest load. The item above a gap
 * lies on another item, its support, which it overlaps in another section. If the item preceded its support
 * in the order, it might have filled the gap. So a trial moves a few such items before their supports, or the
 * supports behind the items, and places again from the first changed item on. It is accepted if it is no
 * higher than the current placement or the one of sixteen trials ago. */
#include <string.h>

#include "defrag/pack/pack_internal.h"

zr_result zr_improve_make(struct zr_improve *out, const struct zr_pack_problem *problem,
                          struct zr_scratch *scratch)
{
    size_t count = problem->count;
    *out = (struct zr_improve){.height = ZR_FIT_FAILED, .best_height = ZR_FIT_FAILED};
    zr_fit_make(&out->fit, problem, scratch);
    out->order = zr_scratch_take(scratch, count, sizeof *out->order);
    out->sorted = zr_scratch_take(scratch, count, sizeof *out->sorted);
    out->offset = zr_scratch_take(scratch, count, sizeof *out->offset);
    out->best_offset = zr_scratch_take(scratch, count, sizeof *out->best_offset);
    out->gap_item = zr_scratch_take(scratch, count, sizeof *out->gap_item);
    out->gap_units = zr_scratch_take(scratch, count, sizeof *out->gap_units);
    return scratch->result;
}

/* Makes the trial's placement the current one. */
static void accept_trial(struct zr_improve *chain, uint64_t height)
{
    size_t count = chain->fit.problem->count;
    zr_fit_sort(&chain->fit);
    memcpy(chain->order, chain->fit.order, count * sizeof *chain->order);
    memcpy(chain->sorted, chain->fit.sorted, count * sizeof *chain->sorted);
    memcpy(chain->offset, chain->fit.offset, count * sizeof *chain->offset);
    chain->height = height;
    if (height < chain->best_height) {
        memcpy(chain->best_offset, chain->offset, count * sizeof *chain->offset);
        chain->best_height = height;
    }
}

void zr_improve_begin(struct zr_improve *chain, const struct zr_improve_start *start,
                      struct zr_pack_budget *budget)
{
    chain->random = UINT64_C(0x9e3779b97f4a7c15) + start->key * 2 + start->tightest;
    chain->fit.tightest = start->tightest;
    chain->wander = start->wander;
    zr_fit_order(&chain->fit, start->key);
    uint64_t height = zr_fit_run(&chain->fit, 0, ZR_FIT_FAILED - 1, budget);
    for (unsigned k = 0; k < ZR_IMPROVE_MEMORY; k++)
        chain->past_heights[k] = height;
    if (height != ZR_FIT_FAILED)
        accept_trial(chain, height);
}

/* ---- Choosing a move ----------------------------------------------------------------------------------- */

static uint32_t find_top(const struct zr_improve *chain)
{
    const struct zr_pack_problem *problem = chain->fit.problem;
    uint32_t top = 0;
    for (uint32_t i = 1; i < problem->count; i++)
        if (chain->offset[i] + problem->units[i] > chain->offset[top] + problem->units[top])
            top = i;
    return top;
}

/* A section of the highest item: usually the section with the highest load, sometimes any. */
static uint32_t choose_section(struct zr_improve *chain, uint32_t top)
{
    const struct zr_pack_problem *problem = chain->fit.problem;
    uint32_t section = problem->first[top], length = problem->last[top] - section;
    uint32_t count = problem->sections_count;
    if (zr_pack_random(&chain->random) % 4 == 0)
        return (section + (uint32_t)(zr_pack_random(&chain->random) % length)) % count;
    for (uint32_t s = problem->first[top]; s < problem->last[top]; s++)
        if (problem->load[s < count ? s : s - count] > problem->load[section])
            section = s < count ? s : s - count;
    return section;
}

/* Lists the gaps in a section, from below; returns their number and their sum. */
static uint32_t list_gaps(struct zr_improve *chain, uint32_t section, uint64_t *sum_units)
{
    const struct zr_pack_problem *problem = chain->fit.problem;
    uint32_t gaps = 0;
    uint64_t top = 0;
    *sum_units = 0;
    for (uint32_t k = 0; k < problem->count; k++) {
        uint32_t item = chain->sorted[k];
        if (!zr_pack_alive_in(problem, item, section, section + 1))
            continue;
        if (chain->offset[item] > top) {
            chain->gap_item[gaps] = item;
            chain->gap_units[gaps++] = chain->offset[item] - top;
            *sum_units += chain->offset[item] - top;
        }
        top = chain->offset[item] + problem->units[item];
    }
    return gaps;
}

/* The earliest item in the trial's order on which `item` lies; `item` if none precedes it. */
static uint32_t find_support(const struct zr_improve *chain, uint32_t item)
{
    const struct zr_pack_problem *problem = chain->fit.problem;
    uint32_t support = item, first = problem->first[item], last = zr_pack_last(problem, item);
    uint32_t around = zr_pack_around(problem, item);
    for (uint32_t i = 0; i < problem->count; i++)
        if (chain->offset[i] + problem->units[i] == chain->offset[item] &&
            (zr_pack_alive_in(problem, i, first, last) || zr_pack_alive_in(problem, i, 0, around)) &&
            chain->fit.rank[i] < chain->fit.rank[support])
            support = i;
    return support;
}

/* Moves the item at `from` to `to`, earlier or later, and shifts the items between. Returns the lower index.
 */
static uint32_t reorder(struct zr_improve *chain, uint32_t from, uint32_t to)
{
    uint32_t *order = chain->fit.order, *rank = chain->fit.rank, item = order[from];
    uint32_t first = from < to ? from : to, last = from < to ? to : from;
    if (from < to)
        memmove(order + from, order + from + 1, (to - from) * sizeof *order);
    else
        memmove(order + to + 1, order + to, (from - to) * sizeof *order);
    order[to] = item;
    for (uint32_t k = first; k <= last; k++)
        rank[order[k]] = k;
    return first;
}

/* Moves an item above a gap. Returns the first changed index, or the number of items if nothing changed. */
static uint32_t move_item(struct zr_improve *chain, uint32_t item)
{
    uint32_t *rank = chain->fit.rank, support = find_support(chain, item);
    uint64_t kind = zr_pack_random(&chain->random) % 24;
    if (chain->wander && kind < 6 &&
        rank[item] > 0) /* moves to any earlier index; near and far are equally likely */
        return reorder(chain, rank[item], rank[item] >> (1 + zr_pack_random(&chain->random) % 8));
    if (support == item)
        return chain->fit.problem->count;
    if (kind % 3 == 0)
        return reorder(chain, rank[support], rank[item]);
    return reorder(chain, rank[item], rank[support]);
}

/* Changes the trial's order at one to three gaps. Returns the first changed index, or the number of items if
 * nothing changed. */
static uint32_t change_order(struct zr_improve *chain)
{
    uint32_t from = chain->fit.problem->count;
    uint64_t sum_units;
    uint32_t top = find_top(chain), gaps = list_gaps(chain, choose_section(chain, top), &sum_units);
    uint64_t moves = 1 + zr_pack_random(&chain->random) % 3;
    while (gaps > 0 && moves-- > 0) {
        uint32_t gap = 0;
        uint64_t units = zr_pack_random(&chain->random) % sum_units;
        for (; units >= chain->gap_units[gap]; gap++)
            units -= chain->gap_units[gap];
        uint32_t place = move_item(
            chain, chain->wander && zr_pack_random(&chain->random) % 8 == 0 ? top : chain->gap_item[gap]);
        from = place < from ? place : from;
    }
    return from;
}

void zr_improve_run(struct zr_improve *chain, unsigned trials, uint64_t target, struct zr_pack_budget *budget)
{
    struct zr_fit *fit = &chain->fit;
    size_t count = fit->problem->count;

    if (chain->height == ZR_FIT_FAILED) /* the budget ended before the first placement */
        return;
    while (trials-- > 0 && chain->best_height > target && !zr_pack_time_up(budget)) {
        uint64_t *past = &chain->past_heights[chain->trials++ % ZR_IMPROVE_MEMORY];
        uint64_t limit = *past > chain->height ? *past : chain->height;
        memcpy(fit->order, chain->order, count * sizeof *fit->order);
        for (uint32_t k = 0; k < count; k++)
            fit->rank[fit->order[k]] = k;
        uint32_t from = change_order(chain);
        zr_pack_spend(budget, count);
        if (from < count) {
            memcpy(fit->offset, chain->offset, count * sizeof *fit->offset);
            memcpy(fit->sorted, chain->sorted, count * sizeof *fit->sorted);
            uint64_t height = zr_fit_run(fit, from, limit, budget);
            if (height != ZR_FIT_FAILED)
                accept_trial(chain, height);
        }
        *past = chain->height;
    }
}
