/* timeline.h: how long a step takes on processors and links of given speeds, found by the rehearsal that
 * makes the byte plan: the engine runs on the null kernels, which count their products, and on the null
 * communicator, which goes by a clock (zero/comm/clock.h). So what waits for what is the engine's own order,
 * prefetches and the communicator's queue included. See kernels/null.c for what counts as an operation; a
 * collective takes the bytes that this rank sends, S (N - 1) / N of its S, at `bytes_per_second`.
 *
 * The engine notes what it does where it has a timeline; that costs nothing where it has none. */
#ifndef ZR_TIMELINE_H
#define ZR_TIMELINE_H

#include "zero/comm/clock.h"

enum zr_timeline_kind {
    ZR_TIMELINE_FORWARD = 0, /* a unit's parameters in use */
    ZR_TIMELINE_BACKWARD,    /* and its gradients made; the head's loss and its gradient too */
    ZR_TIMELINE_OPTIMIZER,
    ZR_TIMELINE_GATHER, /* parameters: for use (stage 3), and after their update (stages 1 and 2) */
    ZR_TIMELINE_REDUCE, /* gradients */
    ZR_TIMELINE_KINDS
};
/* "forward", "gather", .. */
const char *zr_timeline_kind_name(enum zr_timeline_kind kind);

/* Seconds count from the beginning of the step. What is handed to the communicator in it may end after it,
 * behind the next one. */
struct zr_timeline_event {
    enum zr_timeline_kind kind;
    unsigned micro_batch;
    uint32_t order; /* in which the engine was done with it or handed it in */
    char unit[24];  /* "h.0"; "" for the optimizer */
    double begin_seconds, end_seconds;
};

struct zr_timeline_phase {
    uint64_t count; /* of events */
    double begin_seconds, end_seconds;
    double busy_seconds; /* sum over the events */
};

enum { ZR_TIMELINE_EVENTS_MAX = 1 << 16, ZR_TIMELINE_OPEN_MAX = 8 };

struct zr_timeline {
    struct zr_comm_clock clock;
    zr_arena *host_arena; /* for the events */

    /* Of the last step. */
    double step_seconds;
    double flops;          /* done */
    double comm_seconds;   /* of all that was handed to the communicator */
    double waited_seconds; /* of them not hidden behind computing */
    uint64_t sent_bytes;
    struct zr_timeline_phase phases[ZR_TIMELINE_KINDS];
    struct zr_timeline_event *events; /* [events_count], after step_end in order of their beginnings */
    size_t events_count, events_room;
    size_t events_most; /* that are kept, the first ones; ZR_TIMELINE_EVENTS_MAX, or less */
    uint64_t left_out;  /* the others; in the phases they count */

    /* While a step runs. */
    bool running;
    zr_result result; /* the first failure to keep an event */
    double step_begin_seconds;
    unsigned micro_batch;
    struct {
        unsigned unit;
        bool backward;
        double begin_seconds;
    } open[ZR_TIMELINE_OPEN_MAX]; /* units in use */
    unsigned open_count;
};

/* Prepares *out; speeds are above zero. zr_timeline_end() gives back the events. */
void zr_timeline_start(struct zr_timeline *out, zr_arena *host_arena, double flops_per_second,
                       double bytes_per_second);
void zr_timeline_end(struct zr_timeline *timeline);

/* The clock at the beginning of a micro-batch. */
struct zr_timeline_mark {
    double seconds, behind_seconds; /* what the communicator still had to do */
    double flops, comm_seconds, waited_seconds;
    uint64_t sent_bytes;
    struct zr_timeline_phase phases[ZR_TIMELINE_KINDS];
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

/* The engine's notes. NULL is fine. */
struct zr_timeline_unit {
    unsigned index;
    const char *name;
};
void zr_timeline_enter(struct zr_timeline *timeline, struct zr_timeline_unit unit);
void zr_timeline_turn_backward(struct zr_timeline *timeline, struct zr_timeline_unit unit);
void zr_timeline_leave(struct zr_timeline *timeline, struct zr_timeline_unit unit);
/* What was handed to the communicator last. */
void zr_timeline_sent(struct zr_timeline *timeline, enum zr_timeline_kind kind, struct zr_timeline_unit unit);
void zr_timeline_optimizer(struct zr_timeline *timeline, double begin_seconds);
double zr_timeline_now(const struct zr_timeline *timeline);

#endif
