/* timeline.h: the duration of a step at given speeds, from the rehearsal that makes the byte plan. The
 * executor runs the step's actions on the null kernels, which count operations (kernels/null.c says
 * which), and on the null communicator, which uses a simulated clock (zero/comm/clock.h). Dependencies are
 * therefore those of the schedule, including prefetches and the communicator's queue. A collective sends S
 * (N - 1) / N of its S bytes at `bytes_per_second`.
 *
 * Events are the computing actions (forward, recompute, backward; the end of the step from BEGIN to COUNT as
 * one update; each starts after its waits) and the gathers and reductions of the communicator, including
 * those that an update starts. */
#ifndef ZR_TIMELINE_H
#define ZR_TIMELINE_H

#include "zero/comm/clock.h"
#include "zero/step/schedule.h"

/* Seconds count from the start of the step. Communication may end after the step, during the next one. */
struct zr_timeline_event {
    enum zr_action_kind kind;
    unsigned micro_batch;
    uint32_t order; /* order of recording */
    char name[24];  /* module or unit: "h.0"; "" for the update */
    double begin_seconds, end_seconds;
};

struct zr_timeline_phase {
    uint64_t count; /* events */
    double begin_seconds, end_seconds;
    double busy_seconds; /* sum over the events */
};

enum { ZR_TIMELINE_EVENTS_MAX = 1 << 16, ZR_TIMELINE_KINDS = ZR_ACTION_RECEIVE + 1 };

struct zr_timeline {
    struct zr_comm_clock clock;
    zr_arena *host_arena;         /* for the events */
    const struct zr_model *model; /* has the names of modules and units; set before a step */
    const struct zr_cut *cut;     /* cut that the model belongs to; NULL: the whole model */

    /* Results of the last step. */
    double step_seconds;
    double flops;          /* operations */
    double comm_seconds;   /* total communication */
    double waited_seconds; /* part of comm_seconds that does not overlap with computing */
    uint64_t sent_bytes;
    /* Bytes to and from the tiers, and the part of waited_seconds for them. */
    uint64_t host_moved_bytes, nvme_moved_bytes;
    double host_waited_seconds, nvme_waited_seconds;
    struct zr_timeline_phase phases[ZR_TIMELINE_KINDS];
    struct zr_timeline_event *events; /* [events_count]; sorted by start after step_end */
    size_t events_count, events_capacity;
    size_t events_max; /* maximum events to keep; at most ZR_TIMELINE_EVENTS_MAX */
    uint64_t left_out; /* number of events beyond events_max; the phases count these events */
    /* For a cut: seconds of each part's modules, with waits inside the pipeline rank. */
    double part_seconds[ZR_PIPELINE_PARTS_MAX][ZR_PIPELINE_KINDS];
    struct zr_pipeline_walk
        walk; /* simulation of all pipeline ranks, set by the code that timed them; seconds 0: none */

    /* State during a step. */
    bool running;
    zr_result result; /* first failure to record an event */
    double step_begin_seconds;
    unsigned micro_batch;
    double action_flops; /* operations before the current action */
    double action_begin_seconds;
};

/* Initializes *out, which must not be moved, since its clock points to it. Speeds are positive.
 * zr_timeline_end() frees the events. */
void zr_timeline_start(struct zr_timeline *out, zr_arena *host_arena, double flops_per_second,
                       double bytes_per_second);
void zr_timeline_end(struct zr_timeline *timeline);

/* Seconds of a step; with a pipeline, the time of all micro-batches plus the other work of rank 0. */
static inline double zr_timeline_step_seconds(const struct zr_timeline *t)
{
    return t->walk.seconds > 0 ? t->walk.seconds + t->step_seconds - t->walk.rank_seconds[0]
                               : t->step_seconds;
}

/* State of the clock at the start of a micro-batch. */
struct zr_timeline_mark {
    double seconds, behind_seconds; /* communication still pending */
    double disk_behind_seconds;     /* disk transfers still pending */
    double update_behind_seconds;   /* work of a delayed update still pending */
    double flops, comm_seconds, waited_seconds, host_waited_seconds, nvme_waited_seconds;
    uint64_t sent_bytes;
    struct zr_timeline_phase phases[ZR_TIMELINE_KINDS];
};
struct zr_timeline_mark zr_timeline_mark_now(const struct zr_timeline *timeline);
/* Whether the micro-batch that starts at `b` takes the same time as the one that starts at `a`; the marks
 * are consecutive. */
bool zr_timeline_repeats(const struct zr_timeline_mark *a, const struct zr_timeline_mark *b,
                         const struct zr_timeline_mark *c);

/* A micro-batch that represents `times` more, with the marks at its start and end. */
struct zr_timeline_repeat {
    unsigned micro_batch, times;
    struct zr_timeline_mark begin, end;
};

/* Called before and after each step; the results of the last step remain. `repeat` NULL: none. */
void zr_timeline_step_begin(struct zr_timeline *timeline);
zr_result zr_timeline_step_end(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat);

/* Called before and after each action of the executor: see struct zr_trainer. */
void zr_timeline_action(struct zr_timeline *timeline, const struct zr_action *action, bool done);

#endif
