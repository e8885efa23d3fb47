/* pack_internal.h: the parts of the packer. Private to defrag/pack/. README.md lists the files.
 *
 * Heights, offsets and sizes are in units: the greatest common divisor of the aligned sizes. */
#ifndef ZR_PACK_INTERNAL_H
#define ZR_PACK_INTERNAL_H

#include <stdatomic.h>

#include "defrag/trace/vector.h"
#include "alloc/base/sort.h"
#include "defrag/zr_defrag.h"

/* ---- In a caller's thread ------------------------------------------------------------------------------ */

/* zr_pack() in the caller's thread, within its stack, until cancelled. The placement of a cancelled run is
 * valid but may be high. The lifetimes may have no host arena: see trace/vector.h. */
struct zr_pack_here {
    const _Atomic bool *cancelled;
    size_t stack_bytes; /* stack for the packer: ZR_PACK_STACK_BYTES, or more for searches */
    bool no_search;     /* do not search: a search takes megabytes */
    bool placed; /* the offsets are a placement of the same sizes, which is the result unless a lower one is
                    found */
};
/* Stack for everything except searches; instrumented builds keep their own data on it. */
#define ZR_PACK_STACK_BYTES ((size_t)1 << 18)
zr_result zr_pack_in(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                     const struct zr_pack_here *here, struct zr_pack_report *report);

/* ---- The problem --------------------------------------------------------------------------------------- */

/* Items are the buffers that have bytes and a lifetime. Time is divided into sections; each section is a
 * point in time with its live items. Two items share a section exactly if their lifetimes overlap.
 *
 * In periodic time, the first section follows the last. An item that is alive across the boundary has `last`
 * above the number of sections, as a buffer has `upper` above the period. The boundary is where the fewest
 * bytes cross; if none cross, the problem is linear. */
struct zr_pack_problem {
    uint32_t count;          /* number of items */
    uint32_t sections_count; /* at most `count` + 1 */
    uint32_t crossing_count; /* items alive across the boundary */
    uint32_t *first, *last;  /* by item: alive in sections [first, last), at most sections_count of them */
    uint64_t *units;         /* by item: size, above 0 */
    uint64_t *hottest;       /* by item: the highest load of its sections */
    uint64_t *duration;      /* by item: last - first */
    uint32_t *buffer;        /* by item: its index in the lifetimes */
    uint64_t *load;          /* by section: sum of sizes */
    uint64_t bound_units;    /* highest load */
    uint64_t unit_bytes;
    uint64_t lives_count; /* sum of last - first */
};

/* Takes arrays from `scratch`. Requires measured lifetimes. */
zr_result zr_pack_problem_make(struct zr_pack_problem *out, const struct zr_lifetimes *lifetimes,
                               uint64_t alignment_bytes, struct zr_scratch *scratch);

/* An item that crosses the boundary has two ranges of sections: [first, zr_pack_last()) and [0,
 * zr_pack_around()). For other items zr_pack_around() is 0. */
static inline uint32_t zr_pack_last(const struct zr_pack_problem *problem, uint32_t item)
{
    return problem->last[item] < problem->sections_count ? problem->last[item] : problem->sections_count;
}

static inline uint32_t zr_pack_around(const struct zr_pack_problem *problem, uint32_t item)
{
    return problem->last[item] - zr_pack_last(problem, item);
}

/* Whether an item is alive in some of the sections [first, last); the range does not cross the boundary. */
static inline bool zr_pack_alive_in(const struct zr_pack_problem *problem, uint32_t item, uint32_t first,
                                    uint32_t last)
{
    return (problem->first[item] < last && problem->last[item] > first) ||
           (first < last && zr_pack_around(problem, item) > first);
}

/* The lowest placement so far. */
struct zr_pack_best {
    uint64_t *offset; /* by item */
    uint64_t height;  /* UINT64_MAX: none yet */
};

/* The budget of one job: the clock, and an amount of work. Without a time limit, a job depends on the work
 * only. */
struct zr_pack_budget {
    uint64_t until_ns;  /* UINT64_MAX: unlimited, and the clock is not read */
    uint64_t work_left; /* in steps: a check of a placed item, or of sixteen items that are no neighbours */
    const _Atomic bool *cancelled; /* true: stop; NULL: no cancellation */
};
bool zr_pack_time_up(const struct zr_pack_budget *budget);

static inline void zr_pack_spend(struct zr_pack_budget *budget, uint64_t work)
{
    budget->work_left -= work < budget->work_left ? work : budget->work_left;
}

static inline uint64_t zr_pack_common_divisor(uint64_t a, uint64_t b)
{
    while (b > 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* xorshift: fast, and equal on all machines. */
static inline uint64_t zr_pack_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Sorts `order` by descending key, stably. `pairs`: scratch of 2 count. */
void zr_pack_sort_falling(uint32_t *order, uint32_t count, const uint64_t *key, struct zr_sort_pair *pairs);

/* ---- From both ends ------------------------------------------------------------------------------------ */

/* The current height at each point in time. A range that passes the last point continues at the first. */
struct zr_skyline {
    size_t points_count, leaves; /* leaves: a power of two */
    uint64_t *highest, *whole;   /* by tree node: the max height within its range; a lower bound of the height
                                    at each point of its range */
};
zr_result zr_skyline_make(struct zr_skyline *out, size_t points_count, struct zr_scratch *scratch);
void zr_skyline_clear(struct zr_skyline *sky);
/* The max over [first, end), not empty; first < points_count, end <= first + points_count. */
uint64_t zr_skyline_highest(const struct zr_skyline *sky, size_t first, size_t end);
void zr_skyline_raise(struct zr_skyline *sky, size_t first, size_t end, uint64_t height);

/* Makes several placements from both ends until one is at most `target`, and stores the lowest one in `best`
 * if it is lower than `best`. The first placement ignores the budget. Work: count x log count; scratch: some
 * hundred bytes per item. */
zr_result zr_pack_from_ends(const struct zr_pack_problem *problem, uint64_t target,
                            struct zr_pack_budget *budget, struct zr_pack_best *best, zr_arena *arena);

/* ---- Fitting in a given order -------------------------------------------------------------------------- */

#define ZR_FIT_TILE 256
struct zr_fit_tile {
    uint32_t used;
    uint32_t first[ZR_FIT_TILE], last[ZR_FIT_TILE]; /* sections, to skip a tile without reading its items */
    uint32_t item[ZR_FIT_TILE];
};

/* A placement in progress: items in `order`; the placed ones by offset in tiles. An item that crosses the
 * boundary has two entries: before and after the boundary. */
struct zr_fit {
    const struct zr_pack_problem *problem;
    uint32_t *order, *rank; /* each the inverse of the other */
    uint64_t *offset;       /* by item */
    bool tightest;          /* choose the smallest gap that fits, instead of the lowest */
    struct zr_fit_tile *tiles;
    uint32_t *row; /* the tiles in order */
    uint32_t row_count, tiles_count;
    uint32_t *sorted;           /* scratch: the placed items by offset */
    struct zr_sort_pair *pairs; /* scratch of zr_fit_order() */
    uint64_t *keys;
};

#define ZR_FIT_FAILED UINT64_MAX

zr_result zr_fit_make(struct zr_fit *out, const struct zr_pack_problem *problem, struct zr_scratch *scratch);
/* Places order[from..]; order[..from) keep their `offset`, and `sorted` lists the items by offset (ignored if
 * from is 0). Returns the height, or ZR_FIT_FAILED if it would exceed `limit` or the budget ends. */
uint64_t zr_fit_run(struct zr_fit *fit, uint32_t from, uint64_t limit, struct zr_pack_budget *budget);
/* Lists the placed items by offset in fit->sorted; all items after a successful run. */
void zr_fit_sort(struct zr_fit *fit);

/* Orders that the packer tries. */
enum zr_fit_key {
    ZR_FIT_BY_SIZE = 0,
    ZR_FIT_BY_DURATION,
    ZR_FIT_BY_AREA,
    ZR_FIT_BY_SIZE_THEN_DURATION, /* size rounded to powers of two */
    ZR_FIT_BY_HEAT,               /* highest load first, then longest */
    ZR_FIT_BY_HEAT_THEN_SIZE,
    ZR_FIT_KEY_COUNT
};
/* Fills `order` and `rank`. */
void zr_fit_order(struct zr_fit *fit, enum zr_fit_key key);

/* ---- Improving the order ------------------------------------------------------------------------------- */

/* A sequence of changed orders, each judged by the height of its placement. One thread. */
#define ZR_IMPROVE_MEMORY 16
struct zr_improve {
    struct zr_fit fit;        /* the trial */
    uint32_t *order, *sorted; /* of the current placement */
    uint64_t *offset;
    uint64_t height;
    uint64_t *best_offset;
    uint64_t best_height;
    uint64_t past_heights[ZR_IMPROVE_MEMORY]; /* heights after the last trials; a trial is accepted if it is
                                                 no higher than the oldest of these or the current height */
    uint64_t random, trials;
    bool wander;
    uint32_t *gap_item; /* scratch: the item above a gap, and the height of the gap */
    uint64_t *gap_units;
};

zr_result zr_improve_make(struct zr_improve *out, const struct zr_pack_problem *problem,
                          struct zr_scratch *scratch);
/* The start of a chain: the placement of an order. */
struct zr_improve_start {
    enum zr_fit_key key;
    bool tightest;
    bool wander; /* occasionally move an item anywhere earlier */
};
void zr_improve_begin(struct zr_improve *chain, const struct zr_improve_start *start,
                      struct zr_pack_budget *budget);
/* Tries `trials` changes, or fewer if the best height reaches `target`. */
void zr_improve_run(struct zr_improve *chain, unsigned trials, uint64_t target,
                    struct zr_pack_budget *budget);

/* ---- Gaps beside the packing --------------------------------------------------------------------------- */

/* Free memory at a fixed place. */
struct zr_pack_gap {
    uint64_t offset_bytes, bytes;
};

/* Places buffers in the gaps so that the bound of the other buffers falls as far as it can this way. No two
 * buffers alive at once share a byte. offsets[i], by buffer: the place in a gap, or ZR_FIT_FAILED. Requires
 * measured lifetimes. Ends early, with fewer buffers in gaps, when the budget is spent. */
zr_result zr_pack_gaps(const struct zr_lifetimes *lifetimes, const struct zr_pack_gap *gaps,
                       size_t gaps_count, uint64_t alignment_bytes, struct zr_pack_budget *budget,
                       uint64_t *offsets);

/* ---- Edges of sections --------------------------------------------------------------------------------- */

#define ZR_EDGE_ITEMS 6 /* per side; sums of more items would reach nearly every height */

/* One of two adjacent sections: its filled height, the bytes that can stay empty, and the sizes that may lie
 * between the filled part and the lowest item that both sections contain. */
struct zr_edge_side {
    uint64_t level, slack;
    uint32_t count;
    uint64_t units[ZR_EDGE_ITEMS];
};

/* The lowest height that both sides can reach; UINT64_MAX: none. Sums stay below 2^63. */
uint64_t zr_edge_meeting(const struct zr_edge_side *left, const struct zr_edge_side *right);

/* ZR_ERR_INVALID: the sum of the buffers, rounded up to the alignment, could exceed 2^62 bytes. */
zr_result zr_pack_check_alignment(const struct zr_lifetimes *lifetimes, uint64_t alignment_bytes);

/* ---- Searching ----------------------------------------------------------------------------------------- */

enum zr_search_verdict { ZR_SEARCH_UNDECIDED = 0, ZR_SEARCH_FOUND, ZR_SEARCH_IMPOSSIBLE };

struct zr_search;

/* Whether the problem is small enough for a search. */
bool zr_search_able(const struct zr_pack_problem *problem);
zr_result zr_search_make(struct zr_search **out, const struct zr_pack_problem *problem,
                         struct zr_scratch *scratch);
/* One run of a search: within `capacity` units, in at most `nodes` steps, with the preferences of number
 * `attempt`. */
struct zr_search_task {
    uint64_t capacity, nodes, attempt;
};
enum zr_search_verdict zr_search_run(struct zr_search *search, const struct zr_search_task *task,
                                     struct zr_pack_budget *budget);
/* By item; valid after ZR_SEARCH_FOUND. */
const uint64_t *zr_search_offsets(const struct zr_search *search);
/* Stack bytes that zr_search_run() needs. */
size_t zr_search_stack_bytes(const struct zr_pack_problem *problem);

#endif
