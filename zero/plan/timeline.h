/* timeline.h: how long a step takes on processors and links of given speeds, found by the rehearsal that
 * makes the byte plan: the executor goes through the step's actions on the null kernels, which count their
 * products, and on the null communicator, which goes by a clock (zero/comm/clock.h). So what waits for what
 * is the schedule's own order, prefetches and the communicator's queue included. See kernels/null.c for what
 * counts as an operation; a collective takes the bytes that this rank sends, S (N - 1) / N of its S, at
 * `bytes_per_second`.
 *
 * Its events are the actions that compute (forward, recompute, backward, update: each ends with its
 * computing, and begins when it has waited for what it reads) and what the communicator does for gathers and
 * reductions, those that an update starts included. */
#ifndef ZR_TIMELINE_H
#define ZR_TIMELINE_H

#include "zero/comm/clock.h"
#include "zero/step/schedule.h"

/* Seconds count from the beginning of the step. What is handed to the communicator in it may end after it,
 * behind the next one. */
struct zr_timeline_event {
    enum zr_action_kind kind;
    unsigned micro_batch;
    uint32_t order; /* in which they were noted */
    char name[24];  /* of the module, or of the unit: "h.0"; "" for the update */
    double begin_seconds, end_seconds;
};

struct zr_timeline_phase {
    uint64_t count; /* of events */
    double begin_seconds, end_seconds;
    double busy_seconds; /* sum over the events */
};

enum { ZR_TIMELINE_EVENTS_MAX = 1 << 16 };

struct zr_timeline {
    struct zr_comm_clock clock;
    zr_arena *host_arena;         /* for the events */
    const struct zr_model *model; /* whose modules and units have names; set before a step */
    const struct zr_cut *cut;     /* whose model that is; NULL: a whole one */

    /* Of the last step. */
    double step_seconds;
    double flops;          /* done */
    double comm_seconds;   /* of all that was handed to the communicator */
    double waited_seconds; /* of them not hidden behind computing */
    uint64_t sent_bytes;
    /* To the tiers and back, and of waited_seconds those for it. */
    uint64_t host_moved_bytes, nvme_moved_bytes;
    double host_waited_seconds, nvme_waited_seconds;
    struct zr_timeline_phase phases[ZR_ACTION_KINDS];
    struct zr_timeline_event *events; /* [events_count], after step_end in order of their beginnings */
    size_t events_count, events_room;
    size_t events_most; /* that are kept, the first ones; ZR_TIMELINE_EVENTS_MAX, or less */
    uint64_t left_out;  /* the others; in the phases they count */
    /* Of a cut: what modules of each part took, forward and backward, with what they waited for within their
     * pipeline rank; [backward]. */
    double part_seconds[ZR_PIPELINE_PARTS_MOST][2];
    struct zr_pipeline_walk
        walk; /* of all pipeline ranks; filled by whoever has timed them. seconds 0: none */

    /* While a step runs. */
    bool running;
    zr_result result; /* the first failure to keep an event */
    double step_begin_seconds;
    unsigned micro_batch;
    double action_flops; /* that had been done when the action under way began */
    double action_begin_seconds;
};

/* Prepares *out, whose clock then speaks of it: do not move it. Speeds are above zero. zr_timeline_end()
 * gives back the events. */
void zr_timeline_start(struct zr_timeline *out, zr_arena *host_arena, double flops_per_second,
                       double bytes_per_second);
void zr_timeline_end(struct zr_timeline *timeline);

/* Seconds of a step: of a pipeline the way of all micro-batches through it, and what rank 0 does besides. */
static inline double zr_timeline_step_seconds(const struct zr_timeline *t)
{
    return t->walk.seconds > 0 ? t->walk.seconds + t->step_seconds - t->walk.rank_seconds[0]
                               : t->step_seconds;
}

/* The clock at the beginning of a micro-batch. */
struct zr_timeline_mark {
    double seconds, behind_seconds; /* what the communicator still had to do */
    double disk_behind_seconds;     /* likewise the disk */
    double update_behind_seconds;   /* likewise a delayed update */
    double flops, comm_seconds, waited_seconds, host_waited_seconds, nvme_waited_seconds;
    uint64_t sent_bytes;
    struct zr_timeline_phase phases[ZR_ACTION_KINDS];
};
struct zr_timeline_mark zr_timeline_mark_now(const struct zr_timeline *timeline);
/* Whether what begins at `b` goes as what began at `a` did: three marks of micro-batches in a row. */
bool zr_timeline_repeats(const struct zr_timeline_mark *a, const struct zr_timeline_mark *b,
                         const struct zr_timeline_mark *c);

/* A micro-batch that stands for `times` more like it, with the marks at its beginning and end. */
struct zr_timeline_repeat {
    unsigned micro_batch, times;
    struct zr_timeline_mark begin, end;
};

/* Around each step; the last one stays. `repeat`: NULL for none. */
void zr_timeline_step_begin(struct zr_timeline *timeline);
zr_result zr_timeline_step_end(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat);

/* Before and after each action of the executor: see struct zr_trainer. */
void zr_timeline_action(struct zr_timeline *timeline, const struct zr_action *action, bool done);

#endif
