/* learner.h: the interfaces between the parts of the learner: learner.c and learner_record.c find the period,
 * learner_plan.c converts two occurrences to steps, learner_place.c places the steps, learner_check.c checks
 * the places. All use private pages. Private to defrag/. */
#ifndef ZR_LEARNER_H
#define ZR_LEARNER_H

#include "alloc/plan/plan.h"
#include "defrag/pack/pack_internal.h"
#include "defrag/zr_defrag.h"

#define ZR_SEEN_LIVE UINT32_MAX /* not freed yet */

/* A recorded allocation. Positions count the allocations of its sequence. */
struct zr_seen {
    uint64_t bytes, stream; /* bytes: requested */
    uint32_t alignment;
    uint32_t thread;
    uint32_t hash;  /* of all fields above and the tag */
    uint32_t upper; /* freed before the allocation with this number; ZR_SEEN_LIVE: not freed yet */
    uint8_t tag;
};

/* A recorded sequence: lead_count allocations before the period, one occurrence of the period of about
 * first_count allocations, the next occurrence of about second_count, and the later allocations. */
struct zr_seen_sequence {
    struct zr_seen *seen;
    uint32_t position; /* position in the sequence of the first recorded allocation */
    size_t lead_count, first_count, second_count, count; /* count: all records */
    uint64_t rest_bytes;                                 /* bytes that were live at the start */
    bool any, any_thread, any_stream;                    /* as in struct zr_plan_sequence */
    uint32_t thread;
    uint64_t stream;
};

/* A plan in progress. The scratch owns its arrays. */
struct zr_candidate {
    struct zr_scratch scratch;
    struct zr_pack_here here; /* for the thread that makes the plan */
    size_t granule_bytes;
    struct zr_plan_step *steps;
    struct zr_plan_sequence sequences[ZR_PLAN_SEQUENCES];
    struct zr_plan plan;
    struct zr_lifetimes lifetimes[ZR_PLAN_SEQUENCES]; /* of the sequences' placed steps; ids are steps */
    uint64_t seen_count; /* allocations in second occurrences: steps and unplanned allocations */
    uint64_t outlive_bytes, step_bytes; /* outlive: of steps that stay dynamic; step: of all steps */
    uint64_t rest_bytes;                /* outside the plan */
    struct zr_pack_gap *gaps;           /* in which steps may lie, in order of address */
    size_t gaps_count;
    size_t plain_granules; /* that the plan would take at least without gaps; 0: no step lies in a gap */
    uint64_t memory_bytes; /* the plan's memory: zr_plan_memory_bytes() */
};

/* Aligns the two occurrences of each sequence, and derives the steps and lifetimes of their common part.
 * ZR_ERR_UNAVAILABLE: the occurrences differ too much, or the second one is incomplete. The caller ends the
 * candidate in any case. */
zr_result zr_candidate_make(struct zr_candidate *out, const struct zr_seen_sequence *sequences,
                            size_t sequences_count, size_t granule_bytes, struct zr_pack_here here);
/* Computes the least memory that a placement of the steps can take. */
zr_result zr_candidate_measure(struct zr_candidate *candidate, struct zr_plan_rules rules,
                               uint64_t *least_bytes);
/* The memory that a block takes: its request, a canary, and bytes for an alignment above the grain. */
static inline uint64_t zr_step_memory_bytes(const struct zr_plan_step *step, struct zr_plan_rules rules)
{
    size_t alignment = step->request.alignment, grain = 256;
    return step->request.bytes + rules.canary_bytes + (alignment > grain ? alignment - grain : 0);
}
/* Places the steps within `work` (see struct zr_pack_options) and fills in the plan. A round that has begun
 * is completed beyond `work`. If the rules allow aliases, blocks of whole granules get pages of their own at
 * several addresses where this takes less memory. */
zr_result zr_candidate_pack(struct zr_candidate *candidate, struct zr_plan_rules rules, uint64_t work);
/* The fraction 1/parts of `work`, at least 1. `work` is above 0. */
static inline uint64_t zr_candidate_part(uint64_t work, unsigned parts)
{
    return (work - 1) / parts + 1;
}
/* Checks a plan independently of its construction. No two blocks that may be live at the same time share a
 * byte of memory, and no two sequences share a byte at any time. ZR_ERR_CORRUPT names two blocks or sequences
 * that do. */
zr_result zr_candidate_check(const struct zr_candidate *candidate, struct zr_plan_rules rules);
void zr_candidate_end(struct zr_candidate *candidate);

/* Makes the helper start work only in zr_learner_wait(), so that the result of a replay or a test does not
 * depend on thread timing. */
void zr_learner_hold(zr_learner *learner);

#endif
