/* pack_search.c: enumerates placements until one fits a capacity or none can. Uses pack_internal.h.
 *
 * For every unplaced item, the search keeps a lower bound of its offset (`lowest`). A section's level is the
 * lowest `lowest` of its items. An item is grounded if the level of all its sections equals its own `lowest`:
 * placed there, it has no unplaced item below it.
 *
 * The search chooses a section whose lowest items are all grounded. Consider a placement that is pushed down
 * as far as possible. Either the section's first item lies at the section's level: then it is one of the
 * grounded items, and each of these is a branch. Or it lies higher, on an item outside the section or at its
 * own `lowest`: the last branch raises the level. In a nearly full section the last branch fails at once. So
 * every relevant placement is visited once for any choice of sections; the search chooses the section with
 * the fewest branches.
 *
 * A step fails if the items of some section, taken as jobs that become available at `lowest`, end above the
 * capacity. Items that cross an edge between two sections are raised to a height that both sections can reach
 * (pack_edge.c). The remainder is divided into parts that share no section, and the parts are solved one by
 * one. A table of 128-bit hashes remembers failed states.
 *
 * A section where steps fail gains weight and is decided earlier, also in later attempts. Without weights, a
 * search would try all changes elsewhere before it returns to the cause. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/pack/pack_internal.h"

#define MAX_ITEMS     8192
#define MAX_LIVES     (UINT64_C(1) << 20)
#define FRAME_BYTES   512 /* of solve() and the functions that it calls, with a margin */
#define WORK_PER_ITEM 4   /* units of work per item of a part, in each step */
#define TABLE_BITS    17
#define TRAIL_MAX     (UINT64_C(1) << 19) /* max entries */
#define CHOICES_MAX   (UINT64_C(1) << 18)

struct dead_state {
    uint64_t hash[2];
};

struct trail_entry {
    uint64_t lowest;
    uint32_t item;
};

struct zr_search {
    const struct zr_pack_problem *problem;
    struct zr_pack_budget *budget;
    uint64_t capacity, nodes_left;
    uint32_t depth, max_depth;

    uint32_t *list_start, *list; /* by section: its items, including placed ones, nearly sorted by lowest */
    uint64_t *lowest, *offset;   /* by item; of a placed item both are its offset */
    bool *placed, *grounded;     /* by item */
    uint64_t *preference;        /* by item: higher values are tried earlier */
    uint64_t *level,
        *rest; /* by section, in the current step: the level, and the sum of the unplaced items' sizes */
    uint32_t *weight;              /* by section: steps that failed there, in all attempts */
    uint32_t *begin_start, *begin; /* by section: the items that begin with it */
    uint32_t *end_start, *end;     /* by section: the items that end with it */

    uint32_t *placed_stack, placed_count;
    struct trail_entry *trail; /* replaced values of `lowest` */
    uint32_t trail_count;
    uint64_t trail_max, choices_max;
    uint32_t *choices, choices_count; /* the branches of all steps on the path to the current one */
    struct dead_state *table;
};

/* A part of time, [first, last), and the stack heights at the start of a step. */
struct part {
    uint32_t first, last;
};
struct checkpoint {
    uint32_t placed_count, trail_count, choices_count;
};

bool zr_search_able(const struct zr_pack_problem *problem)
{
    return problem->count > 0 && problem->count <= MAX_ITEMS && problem->lives_count <= MAX_LIVES &&
           problem->crossing_count == 0;
}

static uint32_t depth_for(const struct zr_pack_problem *problem)
{
    return 3 * problem->count + 64;
}

size_t zr_search_stack_bytes(const struct zr_pack_problem *problem)
{
    return (size_t)depth_for(problem) * FRAME_BYTES + (1 << 20);
}

/* Lists items by their first or last section. */
static void fill_edges(const struct zr_pack_problem *problem, const uint32_t *section, uint32_t *start,
                       uint32_t *items)
{
    for (uint32_t i = 0; i < problem->count; i++)
        start[section[i] + 2]++;
    for (uint32_t s = 2; s < problem->sections_count + 3; s++)
        start[s] += start[s - 1];
    for (uint32_t i = 0; i < problem->count; i++)
        items[start[section[i] + 1]++] = i;
}

static void fill_lists(struct zr_search *search)
{
    const struct zr_pack_problem *problem = search->problem;
    uint32_t *start = search->list_start; /* one entry ahead while filling */
    for (uint32_t i = 0; i < problem->count; i++)
        for (uint32_t s = problem->first[i]; s < problem->last[i]; s++)
            start[s + 2]++;
    for (uint32_t s = 2; s < problem->sections_count + 2; s++)
        start[s] += start[s - 1];
    for (uint32_t i = 0; i < problem->count; i++)
        for (uint32_t s = problem->first[i]; s < problem->last[i]; s++)
            search->list[start[s + 1]++] = i;
}

zr_result zr_search_make(struct zr_search **out, const struct zr_pack_problem *problem,
                         struct zr_scratch *scratch)
{
    size_t count = problem->count, sections = problem->sections_count;
    struct zr_search *search = zr_scratch_take(scratch, 1, sizeof *search);
    if (!search)
        return scratch->result;
    *search = (struct zr_search){.problem = problem, .max_depth = depth_for(problem)};
    uint64_t entries_max = (search->max_depth + 2) * (uint64_t)count;
    search->trail_max = entries_max < TRAIL_MAX ? entries_max : TRAIL_MAX;
    search->choices_max = entries_max < CHOICES_MAX ? entries_max : CHOICES_MAX;
    search->list_start = zr_scratch_take(scratch, sections + 2, sizeof *search->list_start);
    search->list = zr_scratch_take(scratch, problem->lives_count, sizeof *search->list);
    search->lowest = zr_scratch_take(scratch, count, sizeof *search->lowest);
    search->offset = zr_scratch_take(scratch, count, sizeof *search->offset);
    search->placed = zr_scratch_take(scratch, count, sizeof *search->placed);
    search->grounded = zr_scratch_take(scratch, count, sizeof *search->grounded);
    search->preference = zr_scratch_take(scratch, count, sizeof *search->preference);
    search->level = zr_scratch_take(scratch, sections, sizeof *search->level);
    search->rest = zr_scratch_take(scratch, sections, sizeof *search->rest);
    search->weight = zr_scratch_take(scratch, sections, sizeof *search->weight);
    search->begin_start = zr_scratch_take(scratch, sections + 3, sizeof *search->begin_start);
    search->begin = zr_scratch_take(scratch, count, sizeof *search->begin);
    search->end_start = zr_scratch_take(scratch, sections + 3, sizeof *search->end_start);
    search->end = zr_scratch_take(scratch, count, sizeof *search->end);
    search->placed_stack = zr_scratch_take(scratch, count, sizeof *search->placed_stack);
    search->trail = zr_scratch_take(scratch, search->trail_max, sizeof *search->trail);
    search->choices = zr_scratch_take(scratch, search->choices_max, sizeof *search->choices);
    search->table = zr_scratch_take(scratch, (size_t)1 << TABLE_BITS, sizeof *search->table);
    if (!scratch->result) {
        fill_lists(search);
        fill_edges(problem, problem->first, search->begin_start, search->begin);
        fill_edges(problem, problem->last, search->end_start, search->end);
    }
    *out = search;
    return scratch->result;
}

const uint64_t *zr_search_offsets(const struct zr_search *search)
{
    return search->offset;
}

/* ---- Doing and undoing --------------------------------------------------------------------------------- */

static struct checkpoint checkpoint_of(const struct zr_search *search)
{
    return (struct checkpoint){search->placed_count, search->trail_count, search->choices_count};
}

static void restore(struct zr_search *search, const struct checkpoint *checkpoint)
{
    while (search->placed_count > checkpoint->placed_count)
        search->placed[search->placed_stack[--search->placed_count]] = false;
    while (search->trail_count > checkpoint->trail_count) {
        const struct trail_entry *entry = &search->trail[--search->trail_count];
        search->lowest[entry->item] = entry->lowest;
    }
}

/* Whether the trail has space for the entries of one step, besides those of its survey. */
static bool trail_has_space(const struct zr_search *search)
{
    return search->trail_count + 2 * (uint64_t)search->problem->count < search->trail_max;
}

/* Raises an item's lower bound; false if the item cannot lie that high. */
static bool lift(struct zr_search *search, uint32_t item, uint64_t lowest)
{
    if (search->lowest[item] >= lowest)
        return true;
    if (lowest > search->capacity - search->problem->units[item])
        return false;
    search->trail[search->trail_count++] = (struct trail_entry){search->lowest[item], item};
    search->lowest[item] = lowest;
    return true;
}

/* Places an item at its lowest offset. False: another item then has no place above it. */
static bool place(struct zr_search *search, uint32_t item)
{
    const struct zr_pack_problem *problem = search->problem;
    uint64_t top = search->lowest[item] + problem->units[item];
    search->placed[item] = true;
    search->placed_stack[search->placed_count++] = item;
    search->offset[item] = search->lowest[item];
    for (uint32_t s = problem->first[item]; s < problem->last[item]; s++)
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++)
            if (!search->placed[search->list[k]] && !lift(search, search->list[k], top))
                return false;
    return true;
}

/* ---- The state of a step ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

/* Insertion sort, for nearly sorted lists. */
static void sort_list(struct zr_search *search, uint32_t section)
{
    uint32_t *list = search->list + search->list_start[section];
    uint32_t count = search->list_start[section + 1] - search->list_start[section];
    const uint64_t *lowest = search->lowest;
    for (uint32_t k = 1; k < count; k++) {
        uint32_t item = list[k], at = k;
        for (; at > 0 && lowest[list[at - 1]] > lowest[item]; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
}

/* Computes the levels and the sums of unplaced sizes of a part, and its state's hash; false if some section
 * cannot end within the capacity. */
static bool survey(struct zr_search *search, const struct part *part, struct dead_state *state)
{
    const struct zr_pack_problem *problem = search->problem;
    uint64_t seed = mix(search->capacity ^ mix((uint64_t)part->first << 32 | part->last));
    state->hash[0] = seed;
    state->hash[1] = mix(seed + 1);
    for (uint32_t s = part->first; s < part->last; s++) {
        uint64_t end = 0, rest = 0, level = UINT64_MAX;
        sort_list(search, s);
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++) {
            uint32_t item = search->list[k];
            if (search->placed[item])
                continue;
            uint64_t lowest = search->lowest[item];
            level = level == UINT64_MAX ? lowest : level;
            end = (end > lowest ? end : lowest) + problem->units[item];
            rest += problem->units[item];
            if (problem->first[item] == s) {
                uint64_t hash = mix((item + 1) * UINT64_C(0xd6e8feb86659fd93) ^ mix(lowest));
                state->hash[0] += hash;
                state->hash[1] += mix(hash + UINT64_C(0x632be59bd9b4e019));
            }
        }
        if (end > search->capacity) {
            search->weight[s]++;
            return false;
        }
        search->level[s] = level;
        search->rest[s] = rest;
    }
    return true;
}

static uint64_t slack_of(const struct zr_search *search, uint32_t section)
{
    return search->capacity - search->level[section] - search->rest[section];
}

/* Describes a section as a side of an edge, with its unplaced items. False: too many items. */
static bool fill_side(const struct zr_search *search, uint32_t section, const uint32_t *items, uint32_t count,
                      struct zr_edge_side *out)
{
    out->count = 0;
    out->level = search->level[section];
    out->slack = slack_of(search, section);
    for (uint32_t k = 0; k < count; k++) {
        if (search->placed[items[k]])
            continue;
        if (out->count == ZR_EDGE_ITEMS)
            return false;
        out->units[out->count++] = search->problem->units[items[k]];
    }
    return true;
}

/* A lower bound for an item that crosses the edge where a section begins. */
static uint64_t lowest_crossing(const struct zr_search *search, uint32_t edge)
{
    struct zr_edge_side left, right;
    uint32_t ends = search->end_start[edge], begins = search->begin_start[edge];
    uint64_t a = search->level[edge - 1], b = search->level[edge];
    if (a <= b ? b - a <= slack_of(search, edge - 1) : a - b <= slack_of(search, edge))
        return a > b ? a : b; /* the lower side can stay empty up to the higher level */
    if (!fill_side(search, edge - 1, search->end + ends, search->end_start[edge + 1] - ends, &left) ||
        !fill_side(search, edge, search->begin + begins, search->begin_start[edge + 1] - begins, &right))
        return 0;
    return zr_edge_meeting(&left, &right);
}

/* Raises the items that cross edges. False: one of them has no place left. */
static bool lift_crossing(struct zr_search *search, const struct part *part, bool *lifted)
{
    for (uint32_t edge = part->first + 1; edge < part->last; edge++) {
        uint64_t lowest = lowest_crossing(search, edge);
        if (lowest <= search->level[edge] || lowest <= search->level[edge - 1])
            continue; /* the crossing items are that high already */
        for (uint32_t k = search->list_start[edge]; k < search->list_start[edge + 1]; k++) {
            uint32_t item = search->list[k];
            if (search->placed[item] || search->problem->first[item] == edge ||
                search->lowest[item] >= lowest)
                continue;
            if (!trail_has_space(search))
                return true; /* without space, a possible improvement is skipped */
            if (lowest > search->capacity || !lift(search, item, lowest)) {
                search->weight[edge - 1]++;
                search->weight[edge]++;
                return false;
            }
            *lifted = true;
        }
    }
    return true;
}

/* Raises bounds in a part until nothing changes. False: the part has no placement. */
static bool lift_all(struct zr_search *search, const struct part *part, struct dead_state *state)
{
    bool lifted = true;
    while (lifted) {
        lifted = false;
        zr_pack_spend(
            search->budget,
            (uint64_t)WORK_PER_ITEM * (search->list_start[part->last] - search->list_start[part->first]) + 1);
        if (!survey(search, part, state) || !lift_crossing(search, part, &lifted))
            return false;
    }
    return true;
}

static void find_grounded(struct zr_search *search, const struct part *part)
{
    const struct zr_pack_problem *problem = search->problem;
    for (uint32_t s = part->first; s < part->last; s++)
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++) {
            uint32_t item = search->list[k], t = s;
            if (search->placed[item] || problem->first[item] != s)
                continue;
            while (t < problem->last[item] && search->level[t] == search->lowest[item])
                t++;
            search->grounded[item] = t == problem->last[item];
        }
}

/* The number of lowest items of a section; 0 if one of them is not grounded. */
static uint32_t count_choices(const struct zr_search *search, uint32_t section)
{
    uint32_t count = 0;
    for (uint32_t k = search->list_start[section]; k < search->list_start[section + 1]; k++) {
        uint32_t item = search->list[k];
        if (search->placed[item])
            continue;
        if (search->lowest[item] > search->level[section])
            break; /* later items are higher: the list is sorted */
        if (!search->grounded[item])
            return 0;
        count++;
    }
    return count;
}

/* Chooses the section to decide next: a section without a choice, else the section with the fewest choices in
 * proportion to its weight. The smallest slack decides ties. */
static uint32_t choose_section(const struct zr_search *search, const struct part *part)
{
    uint32_t best = part->last;
    uint64_t best_choices = 0, best_weight = 1, best_slack = 0;
    for (uint32_t s = part->first; s < part->last; s++) {
        uint32_t count = search->rest[s] ? count_choices(search, s) : 0;
        uint64_t choices = count > 1 ? count : 0, weight = 1 + (uint64_t)search->weight[s];
        uint64_t slack = slack_of(search, s), here = choices * best_weight, there = best_choices * weight;
        if (count > 0 && (best == part->last || here < there || (here == there && slack < best_slack))) {
            best = s;
            best_choices = choices;
            best_weight = weight;
            best_slack = slack;
        }
    }
    zr_assert(best < part->last); /* the lowest of all items are grounded */
    return best;
}

/* An item that covers all sections of a part in which every item has the same lowest offset. Such an item can
 * lie at the bottom. UINT32_MAX: none. */
static uint32_t find_bottom(const struct zr_search *search, const struct part *part)
{
    const struct zr_pack_problem *problem = search->problem;
    uint32_t bottom = UINT32_MAX;
    for (uint32_t s = part->first; s < part->last; s++) {
        if (search->level[s] != search->level[part->first])
            return UINT32_MAX;
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++) {
            uint32_t item = search->list[k];
            if (search->placed[item])
                continue;
            if (search->lowest[item] != search->level[s])
                return UINT32_MAX;
            if (problem->first[item] == part->first && problem->last[item] == part->last)
                bottom = item;
        }
    }
    return bottom;
}

/* ---- Stepping ------------------------------------------------------------------------------------------ */

static enum zr_search_verdict solve(struct zr_search *search, struct part part);

/* Pushes the choices of a section, the most preferred first. Of items with equal sections and sizes, only one
 * is pushed. Returns their number. */
static uint32_t push_choices(struct zr_search *search, uint32_t section)
{
    const struct zr_pack_problem *problem = search->problem;
    uint32_t *choices = search->choices + search->choices_count, count = 0;
    for (uint32_t k = search->list_start[section]; k < search->list_start[section + 1]; k++) {
        uint32_t item = search->list[k], at = count;
        if (search->placed[item] || search->lowest[item] != search->level[section])
            continue;
        bool twin = false;
        for (uint32_t c = 0; c < count && !twin; c++)
            twin = problem->first[choices[c]] == problem->first[item] &&
                   problem->last[choices[c]] == problem->last[item] &&
                   problem->units[choices[c]] == problem->units[item];
        if (twin)
            continue;
        for (; at > 0 && search->preference[choices[at - 1]] < search->preference[item]; at--)
            choices[at] = choices[at - 1];
        choices[at] = item;
        count++;
    }
    search->choices_count += count;
    return count;
}

/* The lowest offset of `item` on top of an item outside `section`. */
static uint64_t lowest_on_top(const struct zr_search *search, uint32_t item, uint32_t section)
{
    const struct zr_pack_problem *problem = search->problem;
    uint64_t best = UINT64_MAX;
    for (uint32_t s = problem->first[item]; s < problem->last[item]; s++)
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++) {
            uint32_t other = search->list[k];
            if (search->placed[other] || (problem->first[other] <= section && problem->last[other] > section))
                continue;
            uint64_t top = search->lowest[other] + problem->units[other];
            best = top < best ? top : best;
        }
    return best;
}

/* The last branch: no item of `section` lies at its level. False: impossible. */
static bool raise_level(struct zr_search *search, uint32_t section, uint64_t level)
{
    const struct zr_pack_problem *problem = search->problem;
    uint64_t next = UINT64_MAX, smallest = UINT64_MAX, rest = 0;
    uint32_t begin = search->list_start[section], end = search->list_start[section + 1];

    for (uint32_t k = begin; k < end; k++) {
        uint32_t item = search->list[k];
        if (search->placed[item])
            continue;
        uint64_t lowest = search->lowest[item];
        lowest = lowest == level ? lowest_on_top(search, item, section) : lowest;
        next = lowest < next ? lowest : next;
        smallest = problem->units[item] < smallest ? problem->units[item] : smallest;
        rest += problem->units[item];
    }
    if (next == UINT64_MAX || next > search->capacity - rest)
        return false;
    for (uint32_t k = begin; k < end; k++) {
        uint32_t item = search->list[k];
        if (search->placed[item] || search->lowest[item] != level)
            continue;
        /* The item is either the first of the section, on top of another item, or lies above the first. */
        uint64_t lowest = lowest_on_top(search, item, section);
        if (!lift(search, item, lowest < next + smallest ? lowest : next + smallest))
            return false;
    }
    return true;
}

/* Tries the branches of one step. */
static enum zr_search_verdict branch(struct zr_search *search, const struct part *part)
{
    struct checkpoint checkpoint = checkpoint_of(search);
    uint32_t bottom = find_bottom(search, part);
    uint32_t section = bottom == UINT32_MAX ? choose_section(search, part) : part->first;
    uint64_t level = search->level[section], slack = slack_of(search, section);
    uint32_t count = 1;
    enum zr_search_verdict verdict = ZR_SEARCH_IMPOSSIBLE;

    if (bottom == UINT32_MAX)
        count = push_choices(search, section);
    else
        search->choices[search->choices_count++] = bottom;
    for (uint32_t c = 0; c < count && verdict == ZR_SEARCH_IMPOSSIBLE; c++) {
        if (place(search, search->choices[checkpoint.choices_count + c]))
            verdict = solve(search, *part);
        if (verdict != ZR_SEARCH_FOUND)
            restore(search, &checkpoint);
    }
    if (verdict == ZR_SEARCH_IMPOSSIBLE && bottom == UINT32_MAX && slack > 0) {
        if (raise_level(search, section, level))
            verdict = solve(search, *part);
        if (verdict != ZR_SEARCH_FOUND)
            restore(search, &checkpoint);
    }
    search->choices_count = checkpoint.choices_count;
    return verdict;
}

/* Cuts off the first part of [first, last) that shares no section with the remainder. False: all items are
 * placed. */
static bool cut_part(const struct zr_search *search, struct part *part)
{
    const struct zr_pack_problem *problem = search->problem;
    uint32_t reach = 0;
    bool begun = false;
    for (uint32_t s = part->first; s < part->last; s++) {
        if (begun && reach <= s) {
            part->last = s;
            return true;
        }
        for (uint32_t k = search->list_start[s]; k < search->list_start[s + 1]; k++) {
            uint32_t item = search->list[k];
            if (search->placed[item])
                continue;
            if (!begun)
                part->first = s;
            begun = true;
            reach = problem->last[item] > reach ? problem->last[item] : reach;
        }
    }
    return begun;
}

/* Solves a part that cannot be divided. */
static enum zr_search_verdict solve_part(struct zr_search *search, const struct part *part)
{
    struct dead_state state;
    bool space = trail_has_space(search) &&
                 search->choices_count + search->problem->count < search->choices_max &&
                 search->depth < search->max_depth;
    if (search->nodes_left == 0 || !space)
        return ZR_SEARCH_UNDECIDED;
    search->nodes_left--;
    if (search->nodes_left % 64 == 0 && zr_pack_time_up(search->budget))
        return ZR_SEARCH_UNDECIDED;
    if (!lift_all(search, part, &state))
        return ZR_SEARCH_IMPOSSIBLE;
    struct dead_state *known = &search->table[state.hash[0] >> (64 - TABLE_BITS)];
    if (known->hash[0] == state.hash[0] && known->hash[1] == state.hash[1])
        return ZR_SEARCH_IMPOSSIBLE;
    find_grounded(search, part);
    search->depth++;
    enum zr_search_verdict verdict = branch(search, part);
    search->depth--;
    if (verdict == ZR_SEARCH_IMPOSSIBLE)
        *known = state;
    return verdict;
}

/* Places all remaining items of a range of sections, or restores the previous state. */
static enum zr_search_verdict solve(struct zr_search *search, struct part range)
{
    struct checkpoint checkpoint = checkpoint_of(search);
    struct part part = range;
    while (cut_part(search, &part)) {
        enum zr_search_verdict verdict = solve_part(search, &part);
        if (verdict != ZR_SEARCH_FOUND) {
            restore(search, &checkpoint);
            return verdict;
        }
        part = (struct part){part.last, range.last};
    }
    return ZR_SEARCH_FOUND;
}

/* ---- Attempts ------------------------------------------------------------------------------------------ */

/* Sets the preferences of an attempt: six exact ones, then the same with noise. */
static void set_preferences(struct zr_search *search, uint64_t attempt)
{
    const struct zr_pack_problem *problem = search->problem;
    uint64_t random = mix(attempt + 1) | 1;
    double noise = attempt < 6 ? 0 : 0.4;
    for (uint32_t i = 0; i < problem->count; i++) {
        double duration = (double)problem->duration[i] / (double)problem->sections_count;
        double size = (double)problem->units[i] / (double)problem->bound_units;
        double heat = (double)problem->hottest[i] / (double)problem->bound_units;
        double preference[6] = {duration,
                                duration * size,
                                size,
                                heat * 4 + duration,
                                heat * 4 + duration * size,
                                duration + size * 1e-3};
        double amount = preference[attempt % 6];
        amount *= 1 + noise * ((double)(zr_pack_random(&random) >> 11) * 0x1p-53);
        search->preference[i] = (uint64_t)(amount * 0x1p56);
    }
}

enum zr_search_verdict zr_search_run(struct zr_search *search, const struct zr_search_task *task,
                                     struct zr_pack_budget *budget)
{
    const struct zr_pack_problem *problem = search->problem;
    if (task->capacity < problem->bound_units)
        return ZR_SEARCH_IMPOSSIBLE;
    search->budget = budget;
    search->capacity = task->capacity;
    search->nodes_left = task->nodes;
    search->depth = search->placed_count = search->trail_count = search->choices_count = 0;
    memset(search->lowest, 0, problem->count * sizeof *search->lowest);
    memset(search->placed, 0, problem->count * sizeof *search->placed);
    set_preferences(search, task->attempt);
    return solve(search, (struct part){0, problem->sections_count});
}
