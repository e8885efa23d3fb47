/* schedule.h: a step as a list of actions. One executor (trainer.c) runs the list, in training as well as for
 * the byte plan and the timeline. The list fully determines the order of a step.
 *
 * Units are gathered before the module that reads them; the prefetch distance limits how many units are
 * gathered ahead. A unit smaller than a sixteenth of the next one is not gathered ahead, so that the prefetch
 * slot serves the larger unit. A unit is released after a module unless the next module that reads parameters
 * reads it too. For a module with parts, all this applies to each part; parts that recompute are gathered
 * once more. */
#ifndef ZR_STEP_SCHEDULE_H
#define ZR_STEP_SCHEDULE_H

#include "zero/step/pipeline.h"

enum zr_action_kind {
    ZR_ACTION_LOAD = 0,  /* load the inputs of a micro-batch */
    ZR_ACTION_GATHER,    /* start to gather a unit's parameters */
    ZR_ACTION_FORWARD,   /* forward of a module */
    ZR_ACTION_STORE,     /* store a module's output: the last forward that reads the output has run */
    ZR_ACTION_FETCH,     /* fetch a module's output, which backward will read soon */
    ZR_ACTION_RECOMPUTE, /* forward of a module once more, for its slots */
    ZR_ACTION_BACKWARD,  /* backward of a module; for the last module also forward */
    ZR_ACTION_RELEASE,   /* release a unit's parameters */
    ZR_ACTION_REDUCE,    /* start to reduce a unit's gradients */
    ZR_ACTION_UPDATE,    /* wait for the gradients and run the optimizer */
    ZR_ACTION_SEND,      /* send a port's tensor */
    ZR_ACTION_RECEIVE,   /* start to receive a port's tensor */
    ZR_ACTION_KINDS
};
const char *zr_action_kind_name(enum zr_action_kind kind); /* "load", "gather", .. */

struct zr_action {
    enum zr_action_kind kind;
    unsigned index; /* unit (gather, release, reduce) or module (all others) */
    unsigned part;  /* part of the module (forward, recompute, backward) */
    bool backward;  /* send, receive: a gradient */
    bool begins;    /* load: a pass begins here, which repeats the allocations of every other pass. In a
                       pipeline, where micro-batches overlap, a step is one pass */
    unsigned micro_batch;
};

struct zr_schedule {
    zr_arena *host_arena;
    struct zr_action *actions; /* [count] */
    size_t count, capacity;
};

struct zr_schedule_request {
    const struct zr_model *model;
    unsigned micro_batches;
    unsigned prefetch_distance; /* units gathered ahead of the one in use; 0: 1 */
    const bool *recomputes;     /* [modules_count]; NULL: none recomputes */
    /* Number of modules ahead of backward for which stored checkpoints are fetched; 0: no checkpoint is
     * stored. */
    unsigned fetch_distance;
    const struct zr_cut *cut;              /* the pipeline part that `model` is; NULL: a whole model */
    const struct zr_pipeline_order *order; /* set if `cut` is set */
    zr_arena *host_arena;                  /* memory of the list */
};

/* A training step: its micro-batches one after another, or in the order of a pipeline, then the update. In a
 * pipeline, LOAD precedes each item whose micro-batch differs from the previous item's. RECEIVE is issued one
 * item before the tensor is read, if a frame is free. */
zr_result zr_schedule_step(struct zr_schedule *out, const struct zr_schedule_request *request);
/* Forward once: an evaluation. */
zr_result zr_schedule_forward(struct zr_schedule *out, const struct zr_schedule_request *request);
void zr_schedule_end(struct zr_schedule *schedule);

#endif
