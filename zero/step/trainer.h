/* trainer.h: struct zr_trainer, which runs a step's actions over an engine and an activation store.
 * Private to zero/; trainer_create.c and trainer.c implement the public functions of zr_zero.h.
 *
 * All functions are called by the thread that called zr_trainer_create(). */
#ifndef ZR_STEP_TRAINER_H
#define ZR_STEP_TRAINER_H

#include "zero/engine/engine.h"
#include "zero/model/activations.h"
#include "zero/step/channels.h"
#include "zero/step/flow.h"
#include "zero/step/graph.h"
#include "zero/step/schedule.h"
#include "zero/step/staging.h"

/* This rank's part of a step's micro-batches, which data ranks may divide unequally. Zeros: all of them have
 * weight. */
struct zr_step_share {
    unsigned weighted; /* this many of the rank's first micro-batches have weight; the others have none */
    double mean;       /* micro-batches with weight per data rank: the mean of all data ranks */
};

struct zr_list_run;
struct zr_trainer {
    const struct zr_model *model; /* the caller's model or the cut's */
    bool pipelined;
    bool frozen; /* the whole model: the trainer evaluates and answers only */
    /* Pipeline only. */
    struct zr_cut cut;
    struct zr_channels channels;
    struct zr_pipeline_order order;
    unsigned first_frame[ZR_PIPELINE_PARTS_MAX];   /* by part; a part has order.held_max frames */
    struct zr_channel_message *inputs, *gradients; /* [frames]: what a part receives */
    unsigned messages_count;                       /* of each */
    struct zr_flow flow;

    zr_comm *ring; /* of context ranks; NULL: one */
    zr_engine *engine;
    struct zr_activations activations;
    struct zr_actions step, forward;
    /* Steps whose results are deferred, by graph.now; empty: this engine's are not. */
    struct zr_actions deferred[ZR_GRAPH_STATES];
    zr_result (*add_loss)(const struct zr_list_run *run, unsigned micro_batch); /* of `step` */
    const void **parameters; /* [units_count]: parameters of units in use, else NULL */
    struct zr_staging staging;
    struct zr_step_share share;
    double loss_sum;     /* over the step's micro-batches */
    uint64_t host_waits; /* waits for the GPU during the last step */
    struct zr_step_graph graph;
    bool together; /* the step has reached its update: failures occur on all ranks */
    bool inspects; /* check every result for values that are not finite */

    /* Called before and after each action, for the byte plan, the timeline and tests; may be NULL. */
    void (*observe)(void *state, const struct zr_action *action, bool done);
    void *observe_state;
};

static inline bool zr_trainer_is_last(const zr_trainer *trainer, size_t module)
{
    return zr_module_is_last(&trainer->model->modules[module]);
}

/* Sets the share of later steps; not with an asynchronous pipeline. Sums of a measurement of the first
 * micro-batch (measures_squares) take shares as equal. */
void zr_trainer_set_share(zr_trainer *trainer, struct zr_step_share share);

static inline bool zr_trainer_weighs(const zr_trainer *trainer, unsigned micro_batch)
{
    return trainer->share.weighted == 0 || micro_batch < trainer->share.weighted;
}

static inline double zr_trainer_mean_micro_batches(const zr_trainer *trainer)
{
    return trainer->share.weighted > 0 ? trainer->share.mean : trainer->engine->options.micro_batches;
}

/* What the lists of a trainer have in common. */
struct zr_schedule_request zr_trainer_schedule_request(const zr_trainer *trainer);
/* Losses of the rows of the last evaluation, until the next call; NULL: another pipeline rank has them. */
const float *zr_trainer_losses(const zr_trainer *trainer);

/* After a failed list: releases its units, pending sends and activations. */
void zr_trainer_drop_pass(zr_trainer *trainer);

#endif
