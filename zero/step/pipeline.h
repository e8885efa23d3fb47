/* pipeline.h: pipeline schedules: the order in which ranks run forward and backward of micro-batches. Each
 * stage runs micro-batches in their order in both directions, so gradient sums have the same bits under every
 * schedule.
 *
 *   naive   each micro-batch forward and backward, then the next
 *
 *   gpipe   all forward, then all backward (Huang et al., arXiv 1811.06965)
 *   1f1b    p - 1 - r forward on rank r, then one forward and one backward alternately (PipeDream-Flush,
 *           Narayanan et al., arXiv 2104.04473); with several stages per rank, rounds of p micro-batches
 *   vhalf   stages r and 2 p - 1 - r on rank r; at most p + 1 halves of a micro-batch's activations at a
 *           time (Qi et al., arXiv 2405.15362); a greedy simulation in which backward takes twice as long as
 *           forward, and backward and later stages have priority
 *   zb-h1   1f1b, where the gradients of parameters are items of their own, which rank r delays by r
 *           micro-batches to fill its idle time (Qi et al., arXiv 2401.10241); at most p micro-batches
 *   zb-v    the stages of vhalf and the items of zb-h1; at most 2 p halves; a greedy simulation in which all
 *           items take equal time, and the gradients of parameters run while a rank would be idle
 *
 * Asynchronous schedules have the order of 1f1b, but run first micro-batches of the next steps within a step,
 * so that ranks are only idle when the pipeline fills and drains:
 *
 *   2bw        one update per step; a step's micro-batches read the parameters before the last update
 *              (PipeDream-2BW, Narayanan et al., arXiv 2006.09503)
 *   pipedream  an update per micro-batch, whose backward reads the version that its forward has read
 *              (Narayanan et al., SOSP 2019). With vertical sync (3.3 there) all stages read the version that
 *              stage 0 has when the micro-batch begins; forward of rank r runs r updates after that */
#ifndef ZR_STEP_PIPELINE_H
#define ZR_STEP_PIPELINE_H

#include "zero/model/cut.h"

/* What a stage runs of a micro-batch. BACKWARD: the gradient of the stage's input and, unless WEIGHTS
 * follows, those of its parameters. */
enum zr_pipeline_kind {
    ZR_PIPELINE_FORWARD = 0,
    ZR_PIPELINE_BACKWARD,
    ZR_PIPELINE_WEIGHTS,
    ZR_PIPELINE_KINDS
};

struct zr_pipeline_item {
    unsigned part, micro_batch; /* part: index among the rank's stages */
    enum zr_pipeline_kind kind;
};

struct zr_pipeline_order {
    zr_arena *host_arena;
    struct zr_pipeline_item *items; /* [count]: parts * micro_batches of each kind */
    size_t count;
    enum zr_pipeline_kind last; /* the last kind of a micro-batch in a stage, which frees its activations */
    unsigned held_max[ZR_PIPELINE_PARTS_MAX]; /* by part: maximum of micro-batches between forward and
                                                   `last` */
};

struct zr_pipeline_request {
    const struct zr_pipeline *pipeline;
    unsigned ranks, rank, micro_batches;
    zr_arena *host_arena;
    /* Asynchronous schedules: micro-batches whose forward an earlier step has run / steps that are known to
     * follow. A micro-batch from micro_batches on is of a step that follows. */
    unsigned begun, following;
    /* Only zr_pipeline_walk() of an asynchronous schedule: the first and the last rank share a tensor and
     * wait for one another after a step. */
    bool shares;
};

/* The order of one rank. ZR_ERR_INVALID: several stages per rank, and the ranks do not divide the
 * micro-batches; an asynchronous schedule with another number of micro-batches than it takes. */
zr_result zr_pipeline_order_make(struct zr_pipeline_order *out, const struct zr_pipeline_request *request);
void zr_pipeline_order_end(struct zr_pipeline_order *order);
/* Change of the number of micro-batches that a part holds by an item: 1, 0 or -1. */
static inline int zr_pipeline_holds(const struct zr_pipeline_order *order,
                                    const struct zr_pipeline_item *item)
{
    return (item->kind == ZR_PIPELINE_FORWARD) - (item->kind == order->last);
}

/* Number of micro-batches whose forward an order runs or finds done. */
static inline unsigned zr_pipeline_forward_end(const struct zr_pipeline_request *request)
{
    unsigned ahead = request->ranks - 1 - request->rank, known = request->following;
    return request->micro_batches * (1 + known) < request->micro_batches + ahead
               ? request->micro_batches * (1 + known)
               : request->micro_batches + ahead;
}

bool zr_pipeline_is_asynchronous(const struct zr_pipeline *pipeline);
/* Earlier versions of the parameters that a rank keeps; also the staleness of its gradients, in updates. */
unsigned zr_pipeline_stashed(const struct zr_pipeline *pipeline, unsigned ranks, unsigned rank);

/* Seconds per item of a stage. */
struct zr_pipeline_times {
    double seconds[ZR_PIPELINE_KINDS];
    double hand_on; /* transfer to or from the next stage, if on another rank */
};

/* Simulation of all ranks: an item begins when its rank is idle and its input has arrived. */
struct zr_pipeline_walk {
    double seconds;                              /* from the begin of the first item to the end of the last */
    double busy_seconds;                         /* sum over all ranks */
    double rank_seconds[ZR_PIPELINE_STAGES_MAX]; /* busy, by rank */
    struct zr_pipeline_times mean;               /* of all items, without hand_on */
};
/* Simulates all ranks. `times`: [stages]. Of an asynchronous schedule: a step between filling and draining.
 * ZR_ERR_CORRUPT: deadlock. */
zr_result zr_pipeline_walk(struct zr_pipeline_walk *out, const struct zr_pipeline_request *request,
                           const struct zr_pipeline_times *times);

/* Idle share of the ranks' time by the schedule's formula for equal stages: naive 1 - 1 / p; gpipe and 1f1b
 * (p - 1) / (m + p - 1), with v stages per rank (p - 1) / (m v + p - 1); zb-h1 with m >= p: an idle time of
 * (p - 1) (F + B - W) if W <= F, else (p - 1) B; asynchronous schedules 0. `times`: F, B and W of a stage;
 * NULL: equal. Negative: no formula (vhalf, zb-v). */
double zr_pipeline_idle_share(const struct zr_pipeline *pipeline, unsigned ranks, unsigned micro_batches,
                              const struct zr_pipeline_times *times);

const char *zr_pipeline_schedule_name(enum zr_pipeline_schedule schedule); /* "1f1b" */

#endif
