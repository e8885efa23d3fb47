/* schedule.h: a training step, an evaluation or an answer as a list of actions: the passes of its
 * micro-batches, then the end of the step, which the engine has made. One executor (engine/actions.c)
 * runs the list, in training as well as for the byte plan and the timeline. The list fully determines the
 * order of a step.
 *
 * Units are gathered before the module that reads them; the prefetch distance limits how many units are
 * gathered ahead. A unit smaller than a sixteenth of the next one is not gathered ahead, so that the prefetch
 * slot serves the larger unit. A unit is released after a module unless the next module that reads parameters
 * reads it too. For a module with parts, all this applies to each part; parts that recompute are gathered
 * once more. */
#ifndef ZR_STEP_SCHEDULE_H
#define ZR_STEP_SCHEDULE_H

#include "zero/engine/action_list.h"
#include "zero/step/pipeline.h"

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
    const struct zr_actions *end;          /* the end of a training step by the engine; NULL: none */
    zr_arena *host_arena;                  /* memory of the list */
};

/* A training step: its micro-batches one after another, or in the order of a pipeline, then DRAIN, AGREE and
 * `end`. In a pipeline, LOAD precedes each forward or backward whose micro-batch differs from the previous
 * one's. RECEIVE is issued one item before the tensor is read, if a frame is free. zr_actions_drop() frees a
 * list. */
zr_result zr_schedule_step(struct zr_actions *out, const struct zr_schedule_request *request);
/* Whether backward of a module computes only dx, because the order of a pipeline has items for the gradients
 * of parameters; NULL: no pipeline. */
static inline bool zr_schedule_splits(const struct zr_pipeline_order *order,
                                      const struct zr_module_type *type)
{
    return order && order->last == ZR_PIPELINE_WEIGHTS && type->weights;
}
/* Forward once: an evaluation. */
zr_result zr_schedule_forward(struct zr_actions *out, const struct zr_schedule_request *request);

/* Transforms of a training step: losses reach the host with the gradients; the host waits once, after the
 * whole step is queued, and then reads the losses; the same in a step that is captured as a graph and
 * launched; the same in a step that launches the graph again: both change a step that the second one has
 * made; reductions end before the ranks of a pipeline wait for one another, so that speculative updates run
 * meanwhile. */
extern const struct zr_action_transform zr_schedule_with_gradients, zr_schedule_deferred,
    zr_schedule_captured, zr_schedule_launched, zr_schedule_collected_first;

#endif
