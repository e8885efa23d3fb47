/* actions.h: the end of a step as a list of actions. zr_engine_actions_make() builds the lists when the
 * engine is created: a base list, changed by the transforms of results that are deferred (actions.c), and of
 * an update that is delayed (delayed.c) or speculative (speculate.c). One executor runs them; it knows
 * actions and no modes. Private to engine/. */
#ifndef ZR_ENGINE_ACTIONS_H
#define ZR_ENGINE_ACTIONS_H

#include "zero/engine/update.h"

enum zr_engine_action_kind {
    ZR_ENGINE_COLLECT = 0, /* wait for all gradients, and sum those that pipeline ranks share */
    ZR_ENGINE_NORM,        /* norm and clipping: the arguments of the update, or a step that is skipped */
    ZR_ENGINE_WEIGH,       /* the same in the kernels' queue: the host reads the result with READ */
    ZR_ENGINE_READERS,     /* wait for peers that gather parameters of this rank */
    ZR_ENGINE_SKIP,        /* a skipped step ends here */
    ZR_ENGINE_OPEN,        /* begin a pass over the units in order; files are read ahead */
    ZR_ENGINE_GATHER,      /* start to gather a unit's sums of gradients, which the update reads whole */
    ZR_ENGINE_FETCH,       /* take a unit's gradients and state */
    ZR_ENGINE_PREPARE,     /* make what the update of a unit needs of all ranks */
    ZR_ENGINE_KEEP,        /* keep what PREPARE made for a delayed update */
    ZR_ENGINE_UPDATE,      /* update a unit */
    ZR_ENGINE_CONFIRM,     /* keep the speculative update of a unit; update a unit that has none */
    ZR_ENGINE_STORE,       /* give a unit's gradients and state back */
    ZR_ENGINE_CLEAR,       /* the next step may write the unit's gradients */
    ZR_ENGINE_PUT,         /* start to copy a unit's new parameters from the buffer of a delayed update */
    ZR_ENGINE_PUBLISH,     /* start the all-gather of a unit's new parameters */
    ZR_ENGINE_CLOSE,       /* end the pass */
    ZR_ENGINE_COUNT,       /* count the step */
    ZR_ENGINE_READ,        /* read the results of WEIGH */
    ZR_ENGINE_SETTLE,      /* skip or fail according to these results */
    ZR_ENGINE_LAND,        /* wait for the delayed update of the last step, and publish it */
    ZR_ENGINE_HAND_OVER,   /* start the thread of a delayed update */
    ZR_ENGINE_AWAIT,       /* wait for speculative updates of state in a file */
    ZR_ENGINE_UNDO,        /* undo speculative updates that assumed other arguments */
};

struct zr_engine_action {
    enum zr_engine_action_kind kind;
    unsigned unit;
};

/* How a unit is fetched, written and stored, in the step's thread, in the thread of a delayed update, or
 * ahead of the norm. */
struct zr_engine_run;
struct zr_update_way {
    zr_result (*fetch)(struct zr_engine_run *run, size_t unit); /* sets run->gradients and run->owned */
    /* The window of new parameters: see struct zr_parameter_tier; NULL: parameters are not written. */
    zr_result (*open)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                      struct zr_window *out);
    zr_result (*close)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                       const struct zr_window *window);
    zr_result (*store)(struct zr_engine_run *run, size_t unit);
};

/* One execution of a list. */
struct zr_engine_run {
    struct zr_engine *engine;
    const struct zr_update_way *way;
    float rate;
    struct zr_step_report *report;
    struct zr_engine_update update;
    struct zr_numbers gradients; /* of the fetched unit, from the first element that the rank updates */
    struct zr_owned owned;       /* likewise */
    struct zr_prepared prepared; /* likewise */
    bool changed;                /* it was updated */
    bool passes;                 /* between OPEN and CLOSE */
    bool ended;                  /* the step is skipped */
    float *sums[2];              /* whole sums of the fetched unit and of the next one, by unit modulo 2 */
    zr_ticket sums_tickets[2];
};

/* Makes the engine's lists; freed by zr_engine_actions_end(). */
zr_result zr_engine_actions_make(struct zr_engine *engine);
void zr_engine_actions_end(struct zr_engine *engine);
/* Appends an action; a failure is kept in list->result. */
void zr_engine_actions_add(struct zr_engine *engine, struct zr_engine_actions *list,
                           enum zr_engine_action_kind kind, size_t unit);
void zr_engine_actions_drop(struct zr_engine *engine, struct zr_engine_actions *list);
/* Frees `list`, which becomes `by`. */
void zr_engine_actions_replace(struct zr_engine *engine, struct zr_engine_actions *list,
                               const struct zr_engine_actions *by);

/* delayed.c: moves the update of a list to a thread that runs during the next step, and opens the thread. */
zr_result zr_engine_delay(struct zr_engine *engine, struct zr_engine_actions *list);
/* speculate.c: lets the updates of a list confirm what was updated before the norm was known. */
void zr_engine_anticipate(struct zr_engine *engine, struct zr_engine_actions *list);

/* Make the results for whole tensors of the fetched unit in run->prepared, from what all ranks have:
 * directions.c, tensor_sums.c. Collective. */
zr_result zr_engine_direct(struct zr_engine_run *run, size_t unit);
zr_result zr_engine_sum_tensors(struct zr_engine_run *run, size_t unit);

/* norm.c: computes the norm, and sets the report and the scale of the update. */
zr_result zr_engine_norm(struct zr_engine *engine, struct zr_step_report *report, float *scale);
/* Computes the squares of all units in engine->squares, or queues it. */
zr_result zr_engine_all_squares(struct zr_engine *engine);
/* Values of zr_engine.report_bad_gradient. Collective. */
zr_result zr_engine_report_bad_gradient(struct zr_engine *engine);
zr_result zr_engine_report_bad_graph(struct zr_engine *engine);

#endif
