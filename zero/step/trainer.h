/* trainer.h: the one executor of a step's actions, over an engine and an activation store. Private to zero/:
 * what zr_zero.h promises of zr_trainer is trainer_create.c's, of creation, and trainer.c's.
 *
 * One thread, that of zr_trainer_create()'s caller, calls whatever has a trainer. */
#ifndef ZR_STEP_TRAINER_H
#define ZR_STEP_TRAINER_H

#include "zero/engine/engine.h"
#include "zero/model/activations.h"
#include "zero/step/channels.h"
#include "zero/step/graph.h"
#include "zero/step/schedule.h"
#include "zero/step/staging.h"

struct zr_trainer {
    const struct zr_model *model; /* what this rank has: the caller's, or the cut's */
    bool pipelined;
    /* Of a pipeline. */
    struct zr_cut cut;
    struct zr_channels channels;
    struct zr_pipeline_order order;
    unsigned first_frame[ZR_PIPELINE_PARTS_MOST]; /* of each part: as many as it holds micro-batches */
    zr_ticket *inputs, *gradients;                /* [frames]: what a part receives, on its way */

    zr_engine *engine;
    struct zr_activations activations;
    struct zr_schedule step, forward;
    const void **parameters; /* [units_count]: where a unit's are while it is in use, else NULL */
    struct zr_staging staging;
    double loss_sum;     /* of the step's micro-batches */
    uint64_t host_waits; /* for the card, between the first operation of the last step and its end */
    struct zr_step_graph graph;
    bool together; /* the step is at its update */
    bool inspects; /* every result is looked at for a value that is not finite */

    /* Called before and after each action: the byte plan, the timeline and tests listen. NULL: nobody. */
    void (*observe)(void *state, const struct zr_action *action, bool done);
    void *observe_state;
};

/* Of the model that this rank has. */
static inline bool zr_trainer_is_last(const zr_trainer *trainer, size_t module)
{
    return zr_module_is_last(&trainer->model->modules[module]);
}

/* Gives back whatever a run through a list holds: units, what is on its way to other ranks, activations.
 * After one that went well there is nothing. */
void zr_trainer_drop_pass(zr_trainer *trainer);

#endif
