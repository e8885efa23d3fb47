/* learner.h: between the learner's parts: learner.c records and finds the period, learner_plan.c turns two
 * occurrences of it into steps, learner_place.c places them. Private to defrag/. */
#ifndef ZR_LEARNER_H
#define ZR_LEARNER_H

#include "alloc/plan.h"
#include "defrag/scratch.h"
#include "defrag/zr_defrag.h"

#define ZR_SEEN_LIVE UINT32_MAX /* not freed yet */

/* An allocation as it was seen, in the coordinates of its lane: the number of allocations before it there. */
struct zr_seen {
    uint64_t bytes, stream; /* as requested */
    uint32_t alignment;
    uint32_t thread;
    uint32_t hash;  /* of all of the above and the tag */
    uint32_t upper; /* freed before the allocation of that number; ZR_SEEN_LIVE */
    uint8_t tag;
};

/* One lane: what came before, for lead_count allocations; an occurrence of the period, about first_count
 * long; the next one, about second_count long; and what came after those two. */
struct zr_seen_lane {
    struct zr_seen *seen;
    size_t lead_count, first_count, second_count, count; /* count: of all */
    uint64_t rest_bytes;                                 /* live at the start, whatever it was */
    bool any;
    uint32_t thread;
    uint64_t stream;
    bool any_stream;
};

/* A plan under way. Its arrays are blocks of the scratch's arena. */
struct zr_candidate {
    struct zr_scratch scratch;
    struct zr_plan_step *steps;
    struct zr_plan_lane lanes[ZR_PLAN_LANES];
    struct zr_plan plan;
    struct zr_lifetimes lifetimes[ZR_PLAN_LANES]; /* of the lanes' placed steps; ids are steps */
    uint64_t seen_count;                /* allocations in second occurrences: the plan's steps and strays */
    uint64_t outlive_bytes, step_bytes; /* of steps that stay dynamic; of all */
    uint64_t rest_bytes;                /* beside the plan */
    uint64_t memory_bytes;              /* that the plan takes: zr_plan_memory_bytes() */
    uint64_t left_count;                /* allocations until the second occurrence is whole */
    bool tight;                         /* within one granule of the lower bound: nothing to refine */
};

/* Aligns the two occurrences of each lane; the steps and lifetimes of what they have in common.
 * ZR_ERR_UNAVAILABLE: they differ too much to be one period, or
 * left_count says that a second one is not whole yet. The caller ends the candidate in any case. */
zr_result zr_candidate_make(struct zr_candidate *out, const struct zr_seen_lane *lanes, size_t lanes_count,
                            zr_arena *host_arena);
/* The least memory that a plan of the steps can take, however they are placed: before any are. */
zr_result zr_candidate_measure(struct zr_candidate *candidate, struct zr_plan_rules rules,
                               uint64_t *least_bytes);
/* Places the steps, taking at most the time given (some milliseconds more, where packing is in the middle of
 * something). Fills in the plan. Where the rules allow aliases, blocks of whole granules have pages of their
 * own at several addresses if that takes less memory. */
zr_result zr_candidate_pack(struct zr_candidate *candidate, struct zr_plan_rules rules,
                            const struct zr_pack_options *budget);
/* A part of a budget. Never nothing, which would be another budget; a work of 0 is none. */
static inline struct zr_pack_options zr_candidate_budget(uint64_t time_ns, uint64_t work, unsigned threads,
                                                         unsigned parts)
{
    return (struct zr_pack_options){.time_ns = time_ns ? (time_ns - 1) / parts + 1 : 1,
                                    .work = work ? (work - 1) / parts + 1 : 0,
                                    .threads = threads};
}
/* What strays may hold at most, if they are of the sizes and lifetimes of the plan's steps and come as often
 * as when those were seen: into the plan. */
void zr_candidate_expect_strays(struct zr_candidate *candidate);
void zr_candidate_end(struct zr_candidate *candidate);

#endif
