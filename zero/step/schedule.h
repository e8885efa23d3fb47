/* schedule.h: a step as data: the list of actions that the one executor (trainer.c) carries out, and that the
 * byte plan and the timeline go through by the same executor. Builders make lists; nothing else decides what
 * happens when.
 *
 * Before a module runs, the units that it reads are gathered; those of later modules are gathered ahead of
 * them, as many at a time as the prefetch distance allows. A unit of less than a sixteenth of the one after
 * it is gathered when it is needed: there is more to hide of the one after it. A unit is released after a
 * module unless the next one that reads parameters reads it too. Of a module with parts all this goes for
 * each part; those that it recomputes are gathered for that once more. */
#ifndef ZR_STEP_SCHEDULE_H
#define ZR_STEP_SCHEDULE_H

#include "zero/step/pipeline.h"

enum zr_action_kind {
    ZR_ACTION_LOAD = 0,  /* a micro-batch comes in */
    ZR_ACTION_GATHER,    /* a unit's parameters are asked for; whoever reads them waits */
    ZR_ACTION_FORWARD,   /* a module */
    ZR_ACTION_STORE,     /* a module's output: no forward reads it any more */
    ZR_ACTION_FETCH,     /* a module's output: backward will read it soon */
    ZR_ACTION_RECOMPUTE, /* a module's forward once more, for its slots */
    ZR_ACTION_BACKWARD,  /* a module; of the last one forward as well */
    ZR_ACTION_RELEASE,   /* a unit's parameters */
    ZR_ACTION_REDUCE,    /* a unit's gradients are handed over */
    ZR_ACTION_UPDATE,    /* gradients are awaited, and the optimizer runs */
    ZR_ACTION_SEND,      /* a port: what goes through it is handed to the rank behind it */
    ZR_ACTION_RECEIVE,   /* a port: what comes through it is asked for; whoever reads it waits */
    ZR_ACTION_KINDS
};
const char *zr_action_kind_name(enum zr_action_kind kind); /* "load", "gather", .. */

struct zr_action {
    enum zr_action_kind kind;
    unsigned index; /* of the unit (gather, release, reduce) or the module (all others) */
    unsigned part;  /* of the module: forward, recompute, backward */
    bool backward;  /* send, receive: of a gradient */
    unsigned micro_batch;
};

struct zr_schedule {
    zr_arena *host_arena;
    struct zr_action *actions; /* [count] */
    size_t count, room;
    bool one_pass; /* micro-batches of a pipeline lie within one another: the list repeats as a whole alone */
};

struct zr_schedule_request {
    const struct zr_model *model;
    unsigned micro_batches;
    unsigned prefetch_distance; /* units gathered ahead of the one in use; 0: 1 */
    const bool *recomputes;     /* [modules_count]; NULL: none does */
    /* How many modules ahead of backward their inputs are fetched, if these are checkpoints that are stored
     * after forward; 0: none is */
    unsigned fetch_distance;
    const struct zr_cut *cut;              /* whose model it is: a part of a pipeline; NULL: a whole model */
    const struct zr_pipeline_order *order; /* with a cut */
    zr_arena *host_arena;                  /* of the list */
};

/* The micro-batches of a step, one after the other or in the order of a pipeline, then the update. Of a
 * pipeline a micro-batch is loaded whenever an item is of another one than the item before. What comes from
 * another rank is asked for before the item ahead of the one that reads it, where there is a place for it. */
zr_result zr_schedule_step(struct zr_schedule *out, const struct zr_schedule_request *request);
/* Forward alone, once: an evaluation. */
zr_result zr_schedule_forward(struct zr_schedule *out, const struct zr_schedule_request *request);
void zr_schedule_end(struct zr_schedule *schedule);

#endif
