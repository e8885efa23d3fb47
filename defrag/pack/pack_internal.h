/* pack_internal.h: the parts of the packer. Private to defrag/pack*.c.
 *
 * pack_problem.c turns lifetimes into items over few sections of time. pack_ends.c places nested lifetimes
 * from both ends of the addresses, at little cost. pack_fit.c places items in a given order, each where it
 * fits. pack_improve.c changes the order where a placement wastes memory. pack_search.c looks through all
 * placements worth looking at, with the help of pack_edge.c. pack.c conducts them and writes the answer back.
 *
 * Heights, offsets and sizes are in units here: the greatest common divisor of the aligned sizes. */
#ifndef ZR_PACK_INTERNAL_H
#define ZR_PACK_INTERNAL_H

#include <stdatomic.h>

#include "defrag/trace/scratch.h"
#include "alloc/base/sort.h"
#include "defrag/zr_defrag.h"

/* ---- In a caller's thread ------------------------------------------------------------------------------ */

/* zr_pack() in the caller's own thread, as far as its stack is long enough, until it is cancelled; what is
 * left in the offsets then is a placement, not a good one. The lifetimes may be without a host arena: see
 * scratch.h. */
struct zr_pack_here {
    const _Atomic bool *cancelled;
    size_t stack_bytes; /* for the packer alone: ZR_PACK_STACK_BYTES, or more for searches */
    bool no_search;     /* a search takes megabytes */
    bool placed;        /* the offsets are a placement of the same sizes: it is the answer if none is lower */
};
#define ZR_PACK_STACK_BYTES                                                                                  \
    ((size_t)1 << 18) /* for all but searches; instrumented builds keep their own data on it */
zr_result zr_pack_in(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                     const struct zr_pack_here *here, struct zr_pack_report *report);

/* ---- The problem --------------------------------------------------------------------------------------- */

/* Buffers with bytes and a lifetime are items. Time falls into sections, each a moment of items that are
 * alive together: two items share a section exactly if they share a moment.
 *
 * Where time is periodic, the first section follows the last. An item that is alive across that boundary has
 * `last` above the sections' count, as a buffer has `upper` above the period. The boundary lies where the
 * fewest bytes cross it: where none do, the problem is one on a line. */
struct zr_pack_problem {
    uint32_t count;          /* items */
    uint32_t sections_count; /* at most `count` + 1 */
    uint32_t crossing_count; /* items alive across the boundary */
    uint32_t *first, *last;  /* by item: alive in sections [first, last), at most all of them */
    uint64_t *units;         /* by item: size, above 0 */
    uint64_t *hottest;       /* by item: the highest load of its sections */
    uint64_t *duration;      /* by item: last - first */
    uint32_t *buffer;        /* by item: its place in the lifetimes */
    uint64_t *load;          /* by section: sum of sizes */
    uint64_t bound_units;    /* highest load */
    uint64_t unit_bytes;
    uint64_t lives_count; /* sum of last - first */
};

/* Arrays come from `scratch`. The lifetimes have been measured. */
zr_result zr_pack_problem_make(struct zr_pack_problem *out, const struct zr_lifetimes *lifetimes,
                               uint64_t alignment_bytes, struct zr_scratch *scratch);

/* The sections of an item up to the boundary end here, and those behind it: none, as for most, or the first
 * so many. */
static inline uint32_t zr_pack_last(const struct zr_pack_problem *problem, uint32_t item)
{
    return problem->last[item] < problem->sections_count ? problem->last[item] : problem->sections_count;
}

static inline uint32_t zr_pack_around(const struct zr_pack_problem *problem, uint32_t item)
{
    return problem->last[item] - zr_pack_last(problem, item);
}

/* Whether an item is alive in some of the sections [first, last), which do not cross the boundary. */
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

/* What a job watches, each its own: the clock, and how much work it may do. What a job does depends on the
 * work alone where there is no end of the time. */
struct zr_pack_budget {
    uint64_t until_ns;  /* UINT64_MAX: no end, and the clock is not read */
    uint64_t work_left; /* in steps: looks at a placed item, or at sixteen that are none of the neighbours */
    const _Atomic bool *cancelled; /* true: time is up; NULL: never */
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

/* xorshift: cheap, and the same everywhere. */
static inline uint64_t zr_pack_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Sorts an order by falling key, stably. `pairs`: scratch of 2 count. */
void zr_pack_sort_falling(uint32_t *order, uint32_t count, const uint64_t *key, struct zr_sort_pair *pairs);

/* ---- From both ends ------------------------------------------------------------------------------------ */

/* The highest so far at each moment. What passes the last moment goes on at the first. */
struct zr_skyline {
    size_t moments, leaves;    /* leaves: a power of two */
    uint64_t *highest, *whole; /* by node of a tree: the highest anywhere in it; at least that all over it */
};
zr_result zr_skyline_make(struct zr_skyline *out, size_t moments, struct zr_scratch *scratch);
void zr_skyline_clear(struct zr_skyline *sky);
/* Of [first, end), which is not empty; first < moments, end <= first + moments. */
uint64_t zr_skyline_highest(const struct zr_skyline *sky, size_t first, size_t end);
void zr_skyline_raise(struct zr_skyline *sky, size_t first, size_t end, uint64_t height);

/* Several placements from both ends until one is no higher than `target`; the lowest of them goes to `best`
 * if it is lower than that. The first is made however little time there is. The work is count x log count,
 * and scratch from the arena some hundred bytes an item. */
zr_result zr_pack_from_ends(const struct zr_pack_problem *problem, uint64_t target,
                            struct zr_pack_budget *budget, struct zr_pack_best *best, zr_arena *arena);

/* ---- Fitting in order ---------------------------------------------------------------------------------- */

#define ZR_FIT_TILE 256
struct zr_fit_tile {
    uint32_t used;
    uint32_t first[ZR_FIT_TILE], last[ZR_FIT_TILE]; /* sections, for a scan without a look at the items */
    uint32_t item[ZR_FIT_TILE];
};

/* One placement in the making: items in `order`, those placed so far in order of offset in tiles, one that
 * crosses the boundary twice: before and behind it. */
struct zr_fit {
    const struct zr_pack_problem *problem;
    uint32_t *order, *rank; /* each the inverse of the other */
    uint64_t *offset;       /* by item */
    bool tightest;          /* the smallest gap that fits, else the lowest */
    struct zr_fit_tile *tiles;
    uint32_t *row; /* the tiles in order */
    uint32_t row_count, tiles_count;
    uint32_t *sorted;           /* scratch: the placed items in order of offset */
    struct zr_sort_pair *pairs; /* scratch of zr_fit_order() */
    uint64_t *keys;
};

#define ZR_FIT_FAILED UINT64_MAX

zr_result zr_fit_make(struct zr_fit *out, const struct zr_pack_problem *problem, struct zr_scratch *scratch);
/* Places order[from..]; order[..from) stay where `offset` has them, `sorted` lists the items by offset
 * (ignored when from is 0). Returns the height, ZR_FIT_FAILED as soon as it would pass `limit`, or when
 * `budget` says so. */
uint64_t zr_fit_run(struct zr_fit *fit, uint32_t from, uint64_t limit, struct zr_pack_budget *budget);
/* Lists the placed items by offset in fit->sorted, all of them after a run that did not fail. */
void zr_fit_sort(struct zr_fit *fit);

/* Orders worth trying. */
enum zr_fit_key {
    ZR_FIT_BY_SIZE = 0,
    ZR_FIT_BY_DURATION,
    ZR_FIT_BY_AREA,
    ZR_FIT_BY_SIZE_THEN_DURATION, /* size by powers of two */
    ZR_FIT_BY_HEAT,               /* hottest section first, then the longer */
    ZR_FIT_BY_HEAT_THEN_SIZE,
    ZR_FIT_KEY_COUNT
};
/* Fills order and rank. */
void zr_fit_order(struct zr_fit *fit, enum zr_fit_key key);

/* ---- Improving the order ------------------------------------------------------------------------------- */

/* A chain of changed orders, each judged by the height that it leads to. One thread. */
#define ZR_IMPROVE_MEMORY 16
struct zr_improve {
    struct zr_fit fit;        /* the trial */
    uint32_t *order, *sorted; /* of the placement that stands */
    uint64_t *offset;
    uint64_t height;
    uint64_t *best_offset;
    uint64_t best_height;
    uint64_t
        past_heights[ZR_IMPROVE_MEMORY]; /* a trial no worse than the height of so many trials ago stands */
    uint64_t random, trials;
    bool wander;
    uint32_t *free_item; /* scratch: who lies above a gap, and how high that is */
    uint64_t *free_units;
};

zr_result zr_improve_make(struct zr_improve *out, const struct zr_pack_problem *problem,
                          struct zr_scratch *scratch);
/* Where the chain begins: the placement that an order gives. */
struct zr_improve_start {
    enum zr_fit_key key;
    bool tightest;
    bool wander; /* now and then an item moves anywhere earlier */
};
void zr_improve_begin(struct zr_improve *chain, const struct zr_improve_start *start,
                      struct zr_pack_budget *budget);
/* Tries `trials` changes, fewer when the best height comes down to `target`. */
void zr_improve_run(struct zr_improve *chain, unsigned trials, uint64_t target,
                    struct zr_pack_budget *budget);

/* ---- Edges of sections --------------------------------------------------------------------------------- */

#define ZR_EDGE_ITEMS 6 /* on a side; sums of more would be at nearly every height */

/* One of two sections that meet: how high it is filled, how much of it can stay empty, and the sizes that may
 * come between there and the lowest item that both sections hold. */
struct zr_edge_side {
    uint64_t level, slack;
    uint32_t count;
    uint64_t units[ZR_EDGE_ITEMS];
};

/* The lowest height that both sides can come to; UINT64_MAX if there is none. Sums stay below 2^63. */
uint64_t zr_edge_meeting(const struct zr_edge_side *left, const struct zr_edge_side *right);

/* ZR_ERR_INVALID: the lifetimes' buffers, rounded up to it, could pass 2^62 bytes in sum. */
zr_result zr_pack_check_alignment(const struct zr_lifetimes *lifetimes, uint64_t alignment_bytes);

/* ---- Searching ----------------------------------------------------------------------------------------- */

enum zr_search_verdict { ZR_SEARCH_UNDECIDED = 0, ZR_SEARCH_FOUND, ZR_SEARCH_IMPOSSIBLE };

struct zr_search;

/* True if the problem is of a size that a search can cope with. */
bool zr_search_able(const struct zr_pack_problem *problem);
zr_result zr_search_make(struct zr_search **out, const struct zr_pack_problem *problem,
                         struct zr_scratch *scratch);
/* Looks for a placement within `capacity` units, at most `nodes` steps, with the preferences numbered
 * `attempt`. */
struct zr_search_task {
    uint64_t capacity, nodes, attempt;
};
enum zr_search_verdict zr_search_run(struct zr_search *search, const struct zr_search_task *task,
                                     struct zr_pack_budget *budget);
/* By item, after ZR_SEARCH_FOUND. */
const uint64_t *zr_search_offsets(const struct zr_search *search);
/* Bytes of stack that zr_search_run() needs. */
size_t zr_search_stack_bytes(const struct zr_pack_problem *problem);

#endif
