/* pack_ends.c: places items from both ends of the addresses. Uses pack_skyline.c and sort.h.
 *
 * Long-lived items lie at the bottom, longest first, each on the highest item that it overlaps in time. In a
 * training step these are nested (a layer's memory for backward outlives that of all later layers), so no
 * gaps arise. Short-lived items lie at the top, each in the highest gap that is free during its lifetime; an
 * item overlaps few others, so a search among its neighbours in time finds the gap. The top is then lowered
 * until the items meet at the fullest point in time. Several limits between long and short lifetimes, and
 * several orders, are tried.
 *
 * Items are numbered by birth, and time is counted in births: an item is alive from its own birth on. */
#include <string.h>

#include "defrag/pack/pack_internal.h"

enum {
    SHORT_MAX = 256, /* longest lifetime of an item at the top, in births */
    SHORT_MIN = 8,   /* smaller limits have no significant effect */
    SCANNED = 4      /* neighbours checked per unit of work */
};

#define FREE UINT64_MAX

/* A range of addresses, from the top down. */
struct range {
    uint64_t begin, end;
};

struct ends {
    const struct zr_pack_problem *problem;
    struct zr_pack_budget *budget;
    uint32_t count;
    uint32_t *item;          /* by birth: the item that is born */
    uint64_t *units, *alive; /* by birth: the item's size; its lifetime in births, including its own */
    uint64_t *offset;        /* by birth; of an item at the top: the distance of its lower end from the top */
    uint32_t *by_duration, *by_size; /* births, in descending order */
    struct zr_skyline sky;
    struct range overlaps[2 * SHORT_MAX];
};

/* ---- Births -------------------------------------------------------------------------------------------- */

/* Numbers the items by birth. Items of one section are alive together, so their order is arbitrary. */
static void number_items(struct ends *ends, uint32_t *births_before)
{
    const struct zr_pack_problem *problem = ends->problem;
    for (uint32_t i = 0; i < ends->count; i++)
        births_before[problem->first[i] + 1]++;
    for (uint32_t s = 0; s < problem->sections_count; s++)
        births_before[s + 1] += births_before[s]; /* number of births before the section */
    for (uint32_t i = 0; i < ends->count; i++)
        ends->item[births_before[problem->first[i]]++] = i; /* then includes the section's own births */
    for (uint32_t m = 0; m < ends->count; m++) {
        uint32_t last = problem->last[ends->item[m]], around = zr_pack_around(problem, ends->item[m]);
        ends->units[m] = problem->units[ends->item[m]];
        ends->alive[m] = (around > 0 ? ends->count + births_before[around - 1] : births_before[last - 1]) - m;
    }
}

/* Sorts the births by descending size and by descending duration, with the other as second key. */
static void sort_items(struct ends *ends, struct zr_sort_pair *pairs)
{
    for (uint32_t m = 0; m < ends->count; m++)
        ends->by_size[m] = ends->by_duration[m] = m;
    zr_pack_sort_falling(ends->by_size, ends->count, ends->alive, pairs);
    zr_pack_sort_falling(ends->by_size, ends->count, ends->units, pairs);
    zr_pack_sort_falling(ends->by_duration, ends->count, ends->units, pairs);
    zr_pack_sort_falling(ends->by_duration, ends->count, ends->alive, pairs);
}

/* ---- Placing ------------------------------------------------------------------------------------------- */

/* Places an item on the highest of the items that it overlaps in time. */
static void place_at_bottom(struct ends *ends, uint32_t birth)
{
    size_t end = (size_t)birth + ends->alive[birth];
    ends->offset[birth] = zr_skyline_highest(&ends->sky, birth, end);
    zr_skyline_raise(&ends->sky, birth, end, ends->offset[birth] + ends->units[birth]);
}

/* Finds the items at the top that overlap the item in time: born during its lifetime, or born before and
 * still alive. */
static uint32_t find_overlaps(struct ends *ends, uint32_t birth, uint32_t short_max)
{
    uint32_t alive = (uint32_t)ends->alive[birth], count = ends->count, overlaps_count = 0;
    uint32_t before = short_max < count - alive ? short_max : count - alive;
    uint32_t other = birth >= before ? birth - before : birth + count - before;

    for (uint32_t i = 0; i < before + alive; i++, other = other + 1 == count ? 0 : other + 1) {
        if (ends->alive[other] > short_max || ends->offset[other] == FREE ||
            (i < before && ends->alive[other] <= before - i))
            continue;
        ends->overlaps[overlaps_count++] =
            (struct range){ends->offset[other] - ends->units[other], ends->offset[other]};
    }
    zr_pack_spend(ends->budget, (before + alive) / SCANNED + overlaps_count);
    return overlaps_count;
}

/* Places an item in the highest gap at the top that is free during its lifetime. */
static void place_at_top(struct ends *ends, uint32_t birth, uint32_t short_max)
{
    uint32_t overlaps_count = find_overlaps(ends, birth, short_max);
    uint64_t units = ends->units[birth], end = units;

    /* Ends after a full cycle without a conflict. */
    for (uint32_t i = 0, clear = 0; clear < overlaps_count; i = i + 1 == overlaps_count ? 0 : i + 1) {
        clear++;
        if (ends->overlaps[i].begin < end && end - units < ends->overlaps[i].end) {
            end = ends->overlaps[i].end + units;
            clear = 0;
        }
    }
    ends->offset[birth] = end;
}

/* Lowers the top until the items from both ends meet at the fullest point in time; returns its height. */
static uint64_t close_up(struct ends *ends, uint32_t short_max)
{
    uint64_t height = ends->sky.highest[1];
    for (uint32_t m = 0; m < ends->count; m++) {
        if (ends->alive[m] > short_max)
            continue;
        uint64_t end = zr_skyline_highest(&ends->sky, m, (size_t)m + ends->alive[m]) + ends->offset[m];
        height = end > height ? end : height;
    }
    for (uint32_t m = 0; m < ends->count; m++)
        if (ends->alive[m] <= short_max)
            ends->offset[m] = height - ends->offset[m];
    return height;
}

/* Places all items: those that live longer than `short_max` births at the bottom, the others at the top in
 * the given order. */
static uint64_t place(struct ends *ends, uint32_t short_max, const uint32_t *order)
{
    zr_skyline_clear(&ends->sky);
    memset(ends->offset, 0xff, ends->count * sizeof *ends->offset); /* sets all to FREE */
    zr_pack_spend(ends->budget, 4 * (uint64_t)ends->count);
    for (uint32_t k = 0; k < ends->count && ends->alive[ends->by_duration[k]] > short_max; k++)
        place_at_bottom(ends, ends->by_duration[k]);
    for (uint32_t k = 0; k < ends->count; k++)
        if (ends->alive[order[k]] <= short_max)
            place_at_top(ends, order[k], short_max);
    return close_up(ends, short_max);
}

static void place_all(struct ends *ends, uint64_t target, struct zr_pack_best *best)
{
    bool first = true;
    for (uint32_t short_max = SHORT_MAX; short_max >= SHORT_MIN; short_max /= 4)
        for (unsigned by_duration = 0; by_duration < 2; by_duration++, first = false) {
            if (!first && (best->height <= target || zr_pack_time_up(ends->budget)))
                return;
            uint64_t height = place(ends, short_max, by_duration ? ends->by_duration : ends->by_size);
            if (height >= best->height)
                continue;
            best->height = height;
            for (uint32_t m = 0; m < ends->count; m++)
                best->offset[ends->item[m]] = ends->offset[m];
        }
}

zr_result zr_pack_from_ends(const struct zr_pack_problem *problem, uint64_t target,
                            struct zr_pack_budget *budget, struct zr_pack_best *best, zr_arena *arena)
{
    struct zr_scratch scratch = {.arena = arena};
    struct ends ends = {.problem = problem, .budget = budget, .count = problem->count};
    size_t count = problem->count;

    ends.item = zr_scratch_take(&scratch, count, sizeof *ends.item);
    ends.units = zr_scratch_take(&scratch, count, sizeof *ends.units);
    ends.alive = zr_scratch_take(&scratch, count, sizeof *ends.alive);
    ends.offset = zr_scratch_take(&scratch, count, sizeof *ends.offset);
    ends.by_duration = zr_scratch_take(&scratch, count, sizeof *ends.by_duration);
    ends.by_size = zr_scratch_take(&scratch, count, sizeof *ends.by_size);
    uint32_t *births_before = zr_scratch_take(&scratch, problem->sections_count + 1, sizeof *births_before);
    struct zr_sort_pair *pairs = zr_scratch_take(&scratch, 2 * count, sizeof *pairs);
    zr_result result = zr_skyline_make(&ends.sky, count, &scratch);
    if (result == ZR_OK) {
        number_items(&ends, births_before);
        sort_items(&ends, pairs);
        place_all(&ends, target, best);
    }
    zr_scratch_end(&scratch);
    return result;
}
