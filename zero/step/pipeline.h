/* pipeline.h: in which order the ranks of a pipeline take micro-batches forward and backward. Micro-batches
 * go through each stage in their order, both ways: so the sums of a stage's gradients are the same bits
 * whatever the schedule.
 *
 *   naive   each micro-batch forward and backward, then the next
 *
 *   gpipe   all forward, then all backward (Huang et al., arXiv 1811.06965)
 *
 *   1f1b    p - 1 - r forward on rank r, then one forward and one backward by turns (PipeDream-Flush,
 *           Narayanan et al., arXiv 2104.04473); with several stages per rank, micro-batches go in rounds
 *           of p
 *
 *   vhalf   stage r and stage 2 p - 1 - r on rank r; at most p + 1 halves of a micro-batch's activations at a
 *           time (Qi et al., arXiv 2405.15362): whatever can run does, backward before forward, later stages
 *           before earlier ones, by a clock where backward takes twice as long as forward */
#ifndef ZR_STEP_PIPELINE_H
#define ZR_STEP_PIPELINE_H

#include "zero/model/cut.h"

/* A micro-batch through a stage. */
struct zr_pipeline_item {
    unsigned part, micro_batch; /* part: of the rank's stages, in order */
    bool backward;
};

struct zr_pipeline_order {
    zr_arena *host_arena;
    struct zr_pipeline_item *items; /* [count]: 2 * parts * micro_batches */
    size_t count;
    unsigned held_most[ZR_PIPELINE_PARTS_MOST]; /* micro-batches of a part, forward done and backward not */
};

struct zr_pipeline_request {
    const struct zr_pipeline *pipeline;
    unsigned ranks, rank, micro_batches;
    zr_arena *host_arena;
};

/* The items of one rank. ZR_ERR_INVALID: several stages per rank, and the ranks do not divide the
 * micro-batches.
 */
zr_result zr_pipeline_order_make(struct zr_pipeline_order *out, const struct zr_pipeline_request *request);
void zr_pipeline_order_end(struct zr_pipeline_order *order);

/* Seconds that items take, by stage; *_bytes / bandwidth of what it hands on. */
struct zr_pipeline_times {
    double forward, backward, hand_on; /* hand_on: to the next stage, if that is another rank's; or back */
};

/* All ranks by a clock: an item begins when its rank is free and what it reads has come. */
struct zr_pipeline_walk {
    double seconds;                               /* from the first item's beginning to the last one's end */
    double busy_seconds;                          /* of all ranks together */
    double rank_seconds[ZR_PIPELINE_STAGES_MOST]; /* by rank: busy */
};
/* `times`: [stages]. ZR_ERR_CORRUPT: the ranks wait for one another for ever. */
zr_result zr_pipeline_walk(struct zr_pipeline_walk *out, const struct zr_pipeline_request *request,
                           const struct zr_pipeline_times *times);

/* The share of their time that ranks are idle, by the schedule's formula, where all stages take as long: of
 * naive 1 - 1 / p, of gpipe and 1f1b (p - 1) / (m + p - 1), with v stages per rank (p - 1) / (m v + p - 1);
 * below 0: there is no formula (vhalf). */
double zr_pipeline_idle_share(const struct zr_pipeline *pipeline, unsigned ranks, unsigned micro_batches);

const char *zr_pipeline_schedule_name(enum zr_pipeline_schedule schedule); /* "1f1b" */

#endif
