/* learner.h: between the learner's parts: learner.c records and finds the period, learner_plan.c turns two
 * occurrences of it into steps, learner_place.c places them, learner_check.c checks that. All of them work on
 * private pages. Private to defrag/. */
#ifndef ZR_LEARNER_H
#define ZR_LEARNER_H

#include "alloc/plan/plan.h"
#include "defrag/pack/pack_internal.h"
#include "defrag/zr_defrag.h"

#define ZR_SEEN_LIVE UINT32_MAX /* not freed yet */

/* An allocation as it was seen, in the coordinates of its sequence: the number of allocations before it
 * there. */
struct zr_seen {
    uint64_t bytes, stream; /* as requested */
    uint32_t alignment;
    uint32_t thread;
    uint32_t hash;  /* of all of the above and the tag */
    uint32_t upper; /* freed before the allocation of that number; ZR_SEEN_LIVE */
    uint8_t tag;
};

/* One sequence: what came before, for lead_count allocations; an occurrence of the period, about first_count
 * long; the next one, about second_count long; and what came after those two. */
struct zr_seen_sequence {
    struct zr_seen *seen;
    uint32_t position;                                   /* in the sequence, of what was seen first */
    size_t lead_count, first_count, second_count, count; /* count: of all */
    uint64_t rest_bytes;                                 /* live at the start, whatever it was */
    bool any;
    uint32_t thread;
    uint64_t stream;
    bool any_stream;
};

/* A plan under way. Its arrays are the scratch's. */
struct zr_candidate {
    struct zr_scratch scratch;
    struct zr_pack_here here; /* whose thread it is */
    struct zr_plan_step *steps;
    struct zr_plan_sequence sequences[ZR_PLAN_SEQUENCES];
    struct zr_plan plan;
    struct zr_lifetimes lifetimes[ZR_PLAN_SEQUENCES]; /* of the sequences' placed steps; ids are steps */
    uint64_t seen_count; /* allocations in second occurrences: the plan's steps and unplanned allocations */
    uint64_t outlive_bytes, step_bytes; /* of steps that stay dynamic; of all */
    uint64_t rest_bytes;                /* beside the plan */
    uint64_t memory_bytes;              /* that the plan takes: zr_plan_memory_bytes() */
};

/* Aligns the two occurrences of each sequence; the steps and lifetimes of what they have in common.
 * ZR_ERR_UNAVAILABLE: they differ too much to be one period, or a second one is not whole yet. The caller
 * ends the candidate in any case. */
zr_result zr_candidate_make(struct zr_candidate *out, const struct zr_seen_sequence *sequences,
                            size_t sequences_count, struct zr_pack_here here);
/* The least memory that a plan of the steps can take, however they are placed: before any are. */
zr_result zr_candidate_measure(struct zr_candidate *candidate, struct zr_plan_rules rules,
                               uint64_t *least_bytes);
/* Places the steps, doing no more than so much work in the packer (struct zr_pack_options), and what a round
 * of it does that has begun. Fills in the plan. Where the rules allow aliases, blocks of whole granules have
 * pages of their own at several addresses if that takes less memory. */
zr_result zr_candidate_pack(struct zr_candidate *candidate, struct zr_plan_rules rules, uint64_t work);
/* A part of a work above 0, never nothing. */
static inline uint64_t zr_candidate_part(uint64_t work, unsigned parts)
{
    return (work - 1) / parts + 1;
}
/* The independent checker of the plan that was made: no two blocks that may be live at one time have a byte
 * of memory in common, and sequences have none at any time. ZR_ERR_CORRUPT names two that do. */
zr_result zr_candidate_check(const struct zr_candidate *candidate, struct zr_plan_rules rules);
void zr_candidate_end(struct zr_candidate *candidate);

/* From now on the learner's thread begins nothing but in zr_learner_wait(), so that what a replay or a test
 * comes to does not depend on how far the thread was at which allocation. */
void zr_learner_hold(zr_learner *learner);

#endif
