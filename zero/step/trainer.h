/* trainer.h: the one executor of a step's actions, over an engine and an activation store. Private to zero/:
 * what zr_zero.h promises of zr_trainer is trainer.c's. */
#ifndef ZR_STEP_TRAINER_H
#define ZR_STEP_TRAINER_H

#include "zero/engine/engine.h"
#include "zero/model/activations.h"
#include "zero/step/schedule.h"

struct zr_trainer {
    const struct zr_model *model;
    zr_engine *engine;
    struct zr_activations activations;
    struct zr_schedule step, forward;
    const void **parameters; /* [units_count]: where a unit's are while it is in use, else NULL */
    double loss_sum;         /* of the step's micro-batches */
    bool inspects;           /* every result is looked at for a value that is not finite */

    /* Called before and after each action: the byte plan, the timeline and tests listen. NULL: nobody. */
    void (*observe)(void *state, const struct zr_action *action, bool done);
    void *observe_state;
};

#endif
