/* module_pass.h: the computing actions: forward, recompute, backward and weights of one module, and the loss
 * of the last one.
 *
 * A struct zr_list_run is one execution of a list of actions: a training step, an evaluation or an answer.
 * After a failed pass, zr_trainer_drop_pass() releases its activations and units. Trainer's thread only.
 * Private to zero/step/. */
#ifndef ZR_STEP_MODULE_PASS_H
#define ZR_STEP_MODULE_PASS_H

#include "zero/engine/actions.h"
#include "zero/model/activations.h"
#include "zero/step/schedule.h"

struct zr_list_run;

/* One execution of a list. The caller owns everything that it points to. */
struct zr_list_run {
    struct zr_engine_run engine; /* the first member; its rate and report: of a training step */
    zr_trainer *trainer;
    const struct zr_step_calls *calls; /* NULL unless a training step */
    zr_result (*add_loss)(const struct zr_list_run *run,
                          unsigned micro_batch); /* after backward of the loss */
    size_t rows;
    bool keeps;    /* keep activations for backward */
    float *answer; /* not NULL: the last module writes its answer after `answer_row` here instead of losses */
    size_t answer_row;
    uint64_t waits; /* of the host for the GPU, before the step */
};

/* Fills in *out except outputs, units and gradients. Allocates nothing. */
void zr_module_pass_open(const struct zr_list_run *run, size_t module, struct zr_activation_place place,
                         struct zr_module_pass *out);

/* The actions FORWARD, RECOMPUTE (`again`), BACKWARD and WEIGHTS. They gather the module's units if needed;
 * the units remain in use until the action RELEASE. ZR_ERR_CORRUPT: forward found a value that is not finite
 * (only if the trainer inspects; zr_last_error() names it), or backward found that the loss is not finite
 * (zr_last_error() is not set). */
zr_result zr_module_pass_forward(const struct zr_list_run *run, const struct zr_action *action, bool again);
zr_result zr_module_pass_backward(const struct zr_list_run *run, const struct zr_action *action);
zr_result zr_module_pass_weights(const struct zr_list_run *run, const struct zr_action *action);

/* ---- The loss ------------------------------------------------------------------------------------------ */

/* For zr_list_run.add_loss: waits for a micro-batch's loss and adds it / queues its copy to the host. */
zr_result zr_list_run_add_loss(const struct zr_list_run *run, unsigned micro_batch);
zr_result zr_list_run_bring_loss(const struct zr_list_run *run, unsigned micro_batch);
/* Mean loss of the run's rows; waits for the kernels. */
zr_result zr_list_run_mean_loss(const struct zr_list_run *run, double *mean);
/* Adds a micro-batch's loss to the step's. ZR_ERR_CORRUPT, without an error message: the loss is not finite.
 */
zr_result zr_list_run_count_loss(const struct zr_list_run *run, double loss);

#endif
