/* actions.h: the end of a step as a list of actions. zr_engine_actions_make() makes the list when the engine
 * is created: a base list, changed by the transforms of results that are deferred (actions.c), and of an
 * update that is delayed (delayed.c) or speculative (speculate.c). A trainer runs the list behind the passes
 * of a step, zr_engine_step() runs it by itself. Private to zero/. */
#ifndef ZR_ENGINE_ACTIONS_H
#define ZR_ENGINE_ACTIONS_H

#include "zero/engine/update.h"

struct zr_window; /* see parameter_tier.h */

/* How a unit is taken, written and given back, in the step's thread, in the thread of a delayed update, or
 * ahead of the norm. */
struct zr_update_way {
    zr_result (*take)(struct zr_engine_run *run, size_t unit); /* sets the members of the run */
    zr_result (*give)(struct zr_engine_run *run, size_t unit);
};

/* One execution of a list of the engine's actions. */
struct zr_engine_run {
    struct zr_engine *engine;
    /* Carries out the trainer's part of a list; NULL: the list has the engine's actions only, and READ. */
    zr_result (*act)(struct zr_engine_run *run, const struct zr_action *action);
    /* Called before and after each action; NULL: not. */
    void (*observe)(void *state, const struct zr_action *action, bool done);
    void *observe_state;
    const struct zr_update_way *way;
    float rate;
    struct zr_step_report *report;
    struct zr_engine_update update;
    struct zr_numbers gradients; /* of the taken unit, from the first element that the rank updates */
    struct zr_owned owned;       /* likewise */
    struct zr_prepared prepared; /* likewise */
    /* Likewise: the window of new parameters, see struct zr_parameter_tier; NULL: they are not written. */
    zr_result (*open)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                      struct zr_window *out);
    zr_result (*close)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                       const struct zr_window *window);
    /* Momentum of a unit, by its number modulo 2, before the step moves it, from the first element that the
     * rank updates; NULL: the variance is not frozen, or the optimizer does not need it. */
    float *before[2];
    bool changed;     /* it was updated */
    bool begun;       /* BEGIN was carried out */
    uint64_t norm_ns; /* when NORM began; 0: it is not of this list */
    bool ended;       /* set by an action: no other follows */
    bool passes;      /* between OPEN and CLOSE */
    float *sums[2];   /* whole sums of the taken unit and of the next one, by unit modulo 2 */
    zr_ticket sums_tickets[2];
};

/* How the step's thread updates a unit. */
extern const struct zr_update_way zr_update_here;

/* Makes the engine's lists; freed by zr_engine_actions_end(). */
zr_result zr_engine_actions_make(struct zr_engine *engine);
void zr_engine_actions_end(struct zr_engine *engine);
/* Carries out one of the engine's actions, or READ. */
zr_result zr_engine_act(struct zr_engine_run *run, const struct zr_action *action);
/* Runs a list up to its end, to an action that ends it or to a failure, and cleans up. */
zr_result zr_engine_run_list(struct zr_engine_run *run, const struct zr_actions *list);
/* update.c: updates this rank's part of the taken unit, window by window / TAKE, UPDATE and GIVE of a unit.
 */
zr_result zr_engine_update_unit(struct zr_engine_run *run, size_t unit);
zr_result zr_engine_update_taking(struct zr_engine_run *run, size_t unit);
/* The arguments of a part of tensor `index` of the taken unit; the part lies in what this rank updates. No
 * parameter is written. */
struct zr_optimizer_call zr_engine_update_call(const struct zr_engine_run *run, size_t unit, size_t index,
                                               const struct zr_overlap *part);

/* delayed.c: moves the update of a list to a thread that runs during the next step, and opens the thread. */
zr_result zr_engine_delay(struct zr_engine *engine, struct zr_actions *list);

/* Make the results for whole tensors of the taken unit in run->prepared, from what all ranks have:
 * directions.c, tensor_sums.c. Collective. In a step that sends momentum (momentum.h) the first call of
 * zr_engine_sum_tensors() for a unit moves its momentum only. */
zr_result zr_engine_direct(struct zr_engine_run *run, size_t unit);
zr_result zr_engine_sum_tensors(struct zr_engine_run *run, size_t unit);
void zr_engine_drop_prepared(struct zr_engine_run *run);

/* norm.c: computes the norm, and sets the report and the scale of the update. */
zr_result zr_engine_norm(struct zr_engine *engine, struct zr_step_report *report, float *scale);
/* noise.c: measures a unit's gradients before their reduction, if they are those of the first micro-batch /
 * ends the measurement of a step, after the squares of all ranks are in engine->squares. Collective. Both do
 * nothing without zr_engine_options.measures_squares. */
zr_result zr_engine_note_squares(struct zr_engine *engine, size_t unit);
zr_result zr_engine_measure_squares(struct zr_engine *engine, float loss_scale, bool skipped);
/* Computes the squares of all units in engine->squares, or queues it. */
zr_result zr_engine_all_squares(struct zr_engine *engine);
/* Values of zr_engine.report_bad_gradient. Collective. */
zr_result zr_engine_report_bad_gradient(struct zr_engine *engine);
zr_result zr_engine_report_bad_graph(struct zr_engine *engine);

#endif
