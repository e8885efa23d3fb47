/* flow.h: an asynchronous pipeline between steps: which micro-batches have begun, which list the next step
 * runs, and which version of the parameters an action reads. Private to zero/. */
#ifndef ZR_STEP_FLOW_H
#define ZR_STEP_FLOW_H

#include "zero/engine/action_list.h"
#include "zero/step/pipeline.h"

struct zr_flow {
    struct zr_pipeline pipeline; /* its comm and modules are not used */
    bool asynchronous;           /* else the rest is unused */
    unsigned announced;          /* zr_trainer_expect_steps(), for the next step */
    unsigned following;          /* steps that follow the current or last step; 0: the pipeline is drained */
    unsigned begun;              /* micro-batches of later steps whose forward has run */
    unsigned first_micro_batch;  /* of the step, since the pipeline was filled, modulo the frames */
    struct zr_actions list;      /* of the last step, made for: */
    struct zr_pipeline_request made;
};

void zr_flow_open(zr_trainer *trainer, const struct zr_pipeline *pipeline);
void zr_flow_close(zr_trainer *trainer);
/* Number of micro-batches that the list of a step loads at most. */
unsigned zr_flow_loaded(const zr_trainer *trainer);
/* Makes the list of the step that begins; the versions restart if the pipeline is drained. */
zr_result zr_flow_begin(zr_trainer *trainer);
/* The step has ended. */
void zr_flow_end(zr_trainer *trainer);
/* ZR_ERR_INVALID: micro-batches of later steps have begun. */
zr_result zr_flow_check_drained(const zr_trainer *trainer, const char *call);
/* Number of updates between the version of the parameters that an action of a training step reads and the
 * newest. */
unsigned zr_flow_age(const zr_trainer *trainer, const struct zr_action *action);

#endif
