/* module_pass.h: the actions of a list that are arithmetic: forward, recompute and backward of one module,
 * from its places and units to the loss of the last one.
 *
 * A list is gone through once for each training step, evaluation and answer; struct zr_list_run is one such
 * run, and outlives the calls that are given it. What a pass takes of the activation store and of the engine
 * stays there when it fails: zr_trainer_drop_pass() gives it back. All calls are of the trainer's thread.
 * Private to zero/step/. */
#ifndef ZR_STEP_MODULE_PASS_H
#define ZR_STEP_MODULE_PASS_H

#include "zero/model/activations.h"
#include "zero/step/schedule.h"

/* One run through a list. All that it points to is the caller's. */
struct zr_list_run {
    zr_trainer *trainer;
    const struct zr_step_calls *calls; /* of a step; else NULL */
    struct zr_step_report *report;     /* of a step; else NULL */
    size_t rows;
    bool keeps;    /* what backward needs */
    float *answer; /* instead of the last module's forward: what it says after `answer_row` */
    size_t answer_row;
};

/* Fills *out but for what it writes, units and gradients. Takes nothing. */
void zr_module_pass_open(const struct zr_list_run *run, size_t module, struct zr_activation_place place,
                         struct zr_module_pass *out);

/* Carry out FORWARD, or RECOMPUTE (`again`), and BACKWARD. Units that are not gathered yet are, and are in
 * use until the action RELEASE. ZR_ERR_CORRUPT: of forward, a value is not finite, where the trainer
 * inspects, and the words say which; of backward, the loss is not, and there are no words yet. */
zr_result zr_module_pass_forward(const struct zr_list_run *run, const struct zr_action *action, bool again);
zr_result zr_module_pass_backward(const struct zr_list_run *run, const struct zr_action *action);

/* ---- The loss ------------------------------------------------------------------------------------------ */

/* The step's numbers are the host's when all of it has been asked for: its caller can do without the loss
 * until then. Of a step. */
bool zr_list_run_defers(const struct zr_list_run *run);
/* The losses at least, where the step's thread waits for all gradients before it updates. */
bool zr_list_run_defers_losses(const struct zr_list_run *run);
/* The mean loss of the run's rows, which the host waits for at once where the step's end does not tell. */
zr_result zr_list_run_mean_loss(const struct zr_list_run *run, double *mean);
/* Adds a micro-batch's loss to the step's. ZR_ERR_CORRUPT, without words: it is not finite. */
zr_result zr_list_run_count_loss(const struct zr_list_run *run, double loss);

#endif
