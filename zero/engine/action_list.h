/* action_list.h: a step as a list of actions. The engine makes the end of a step and runs lists
 * (actions.c); zero/step puts the passes of the micro-batches before it (schedule.c). A mode is a transform,
 * which makes one list from another. Private to zero/. */
#ifndef ZR_ENGINE_ACTION_LIST_H
#define ZR_ENGINE_ACTION_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/zr.h"

enum zr_action_kind {
    ZR_ACTION_NONE = 0,
    ZR_ACTION_LOAD,      /* load the inputs of a micro-batch */
    ZR_ACTION_GATHER,    /* start to gather a unit's parameters */
    ZR_ACTION_FORWARD,   /* forward of a module */
    ZR_ACTION_STORE,     /* store a module's output: the last forward that reads the output has run */
    ZR_ACTION_FETCH,     /* fetch a module's output, which backward will read soon */
    ZR_ACTION_RECOMPUTE, /* forward of a module once more, for its slots */
    ZR_ACTION_BACKWARD,  /* backward of a module; for the last module also forward */
    ZR_ACTION_WEIGHTS,   /* gradients of a module's parameters, if backward has computed only dx */
    ZR_ACTION_RELEASE,   /* release a unit's parameters */
    ZR_ACTION_REDUCE,    /* start to reduce a unit's gradients */
    ZR_ACTION_UPDATE,    /* update a unit: the engine's part */
    ZR_ACTION_SEND,      /* send a port's tensor */
    ZR_ACTION_RECEIVE,   /* start to receive a port's tensor */
    /* The trainer's part of the end of a step. */
    ZR_ACTION_DRAIN,  /* wait for sent tensors */
    ZR_ACTION_RATE,   /* the caller sets the learning rate */
    ZR_ACTION_LOSSES, /* add the losses that were copied to the host */
    ZR_ACTION_AGREE,  /* the caller agrees on the loss, and sets the rate unless RATE did */
    ZR_ACTION_INPUTS, /* load the inputs of a micro-batch of a step that launches a graph */
    ZR_ACTION_RECORD, /* end the capture of a graph */
    ZR_ACTION_LAUNCH, /* launch the graph */
    ZR_ACTION_READ,   /* read the results of WEIGH; the host waits only now */
    /* The engine's part. */
    ZR_ACTION_BEGIN,       /* begin the end of a step: the rate is known */
    ZR_ACTION_COLLECT,     /* wait for all gradients, and sum those that pipeline ranks share */
    ZR_ACTION_NORM,        /* norm and clipping: the arguments of the update, or a step that is skipped */
    ZR_ACTION_WEIGH,       /* the same in the kernels' queue: the host reads the result with READ */
    ZR_ACTION_REPEAT,      /* the rates of a step that launches a graph */
    ZR_ACTION_READERS,     /* wait for peers that gather parameters of this rank */
    ZR_ACTION_SKIP,        /* a skipped step ends here */
    ZR_ACTION_STASH,       /* keep the parameters as an earlier version, before the update */
    ZR_ACTION_OPEN,        /* begin a pass over the units in order; files are read ahead */
    ZR_ACTION_GATHER_SUMS, /* start to gather a unit's sums of gradients, which the update reads whole */
    ZR_ACTION_TAKE,        /* take a unit's gradients and state */
    ZR_ACTION_PREPARE,     /* make what the update of a unit needs of all ranks */
    ZR_ACTION_KEEP,        /* keep what PREPARE made for a delayed update */
    ZR_ACTION_CONFIRM,     /* keep the speculative update of a unit; update a unit that has none */
    ZR_ACTION_GIVE,        /* give a unit's gradients and state back */
    ZR_ACTION_CLEAR,       /* the next step may write the unit's gradients */
    ZR_ACTION_PUT,         /* start to copy a unit's new parameters from the buffer of a delayed update */
    ZR_ACTION_PUBLISH,     /* start the all-gather of a unit's new parameters; with momentum.h, update it */
    ZR_ACTION_CLOSE,       /* end the pass */
    ZR_ACTION_COUNT,       /* count the step */
    ZR_ACTION_SETTLE,      /* skip or fail according to these results */
    ZR_ACTION_LAND,        /* wait for the delayed update of the last step, and publish it */
    ZR_ACTION_HAND_OVER,   /* start the thread of a delayed update */
    ZR_ACTION_AWAIT,       /* wait for speculative updates of state in a file */
    ZR_ACTION_DECIDE,      /* kept memory: the step will be finished, also after the loss of a rank */
    ZR_ACTION_COMMIT,      /* kept memory: the step is complete */
    ZR_ACTION_BACK_UP,     /* start to copy the state to another rank */
    ZR_ACTION_BACKED_UP,   /* wait for the copy of the state that the step is about to update */
    ZR_ACTION_UNDO,        /* undo speculative updates that assumed other arguments */
    ZR_ACTION_EXCHANGE,    /* start to average a fragment's outer gradients over groups, see outer.h */
    ZR_ACTION_MERGE,       /* synchronise a fragment */
    ZR_ACTION_CLOCK,       /* tell the parameter servers that the step is complete, see served.h */
    ZR_ACTION_KINDS
};
const char *zr_action_kind_name(enum zr_action_kind kind); /* "load", "gather", .. */

struct zr_action {
    enum zr_action_kind kind;
    unsigned index; /* module (forward, store, fetch, recompute, backward, weights, send, receive) or unit
                       (all others) */
    unsigned part;  /* part of the module (forward, recompute, backward, weights) */
    bool backward;  /* send, receive: a gradient */
    bool begins;    /* load: a pass begins here, which repeats the allocations of every other pass. In a
                       pipeline, where micro-batches overlap, a step is one pass */
    unsigned micro_batch;
};

struct zr_actions {
    zr_arena *host_arena;      /* of `actions` */
    struct zr_action *actions; /* [count] */
    size_t count, capacity;
    zr_result result; /* of adding actions */
};

/* Appends an action; a failure is kept in list->result. */
void zr_actions_add(struct zr_actions *list, struct zr_action action);
/* Frees the actions; the list is empty then. */
void zr_actions_drop(struct zr_actions *list);

/* A transform: actions of kind `of` become actions of the kinds `by`, of the same unit, in this order. The
 * rules end with ZR_ACTION_NONE, as each `by` does. */
struct zr_action_rule {
    enum zr_action_kind of, by[5];
};
struct zr_action_transform {
    bool drops; /* actions without a rule; else they stay */
    struct zr_action_rule rules[10];
};
/* Appends to `out` what becomes of a list / changes a list. */
void zr_actions_derive(struct zr_actions *out, const struct zr_actions *from,
                       const struct zr_action_transform *by);
void zr_actions_change(struct zr_actions *list, const struct zr_action_transform *by);

#endif
