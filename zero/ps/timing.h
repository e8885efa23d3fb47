/* timing.h: when a push may be applied and a pull answered, as a state machine without I/O and without time.
 * The server asks before it handles a request, holds the request if the answer is no, and asks again after
 * each change. Private to zero/ps/.
 *
 * Pushes of a table have groups with sync and ssp: push j of step c is in group c pushes + j. A group is
 * complete when every worker has pushed it, has ended step c, or has left; complete groups are applied in
 * order. With `successors` the last group of a step is not complete before every worker has ended the step,
 * or has left. A sparse table has one group per step, complete when every worker has ended the step or has
 * left.
 *
 * All numbers are absolute and only rise, so a request that is handled again after a crash leaves the same
 * state. They lie in memory of the caller, which may be kept. */
#ifndef ZR_PS_TIMING_H
#define ZR_PS_TIMING_H

#include <stdatomic.h>

#include "zero/ps/zr_ps.h"

struct zr_ps_member {
    _Atomic uint64_t sequence; /* of the last request that changed something */
    _Atomic uint64_t clock;    /* steps that have ended */
    _Atomic uint64_t read;     /* half-async: 1 + the last step whose pulls have ended */
    _Atomic uint64_t left;     /* 1: no member of the run any more */
};

/* Of a table and a worker. */
struct zr_ps_lane {
    _Atomic uint64_t next;   /* group of the worker's next push, at least */
    _Atomic uint64_t pulled; /* version of the last pull */
};

struct zr_ps_timetable {
    struct zr_ps_timing timing;
    bool successors; /* see struct zr_ps_options */
    unsigned workers, tables;
    struct zr_ps_member *members; /* [workers] */
    struct zr_ps_lane *lanes;     /* [tables][workers] */
    _Atomic uint64_t *applied;    /* [tables]: groups */
    const uint32_t *pushes;       /* [tables]: of a step; 0: a sparse table */
};

static inline struct zr_ps_lane *zr_ps_lane_of(const struct zr_ps_timetable *t, unsigned table,
                                               unsigned worker)
{
    return &t->lanes[(size_t)table * t->workers + worker];
}

/* The group of push `index` of the worker's step. */
uint64_t zr_ps_group(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index);
/* The smallest / largest clock of workers that have not left; all have left: UINT64_MAX / 0. */
uint64_t zr_ps_clock_min(const struct zr_ps_timetable *t);
uint64_t zr_ps_clock_max(const struct zr_ps_timetable *t);

/* Whether a pull of the table in the worker's step may be answered. */
bool zr_ps_may_pull(const struct zr_ps_timetable *t, unsigned table, unsigned worker);
/* The worker has begun to push: its pulls have ended. Before zr_ps_may_push(). */
void zr_ps_begin_push(struct zr_ps_timetable *t, unsigned worker);
/* Whether a push may be taken: applied, or with sync and ssp kept until its group is complete. */
bool zr_ps_may_push(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index);
/* sync, ssp, and others with `successors`: whether the server has the push already. */
bool zr_ps_has_push(const struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index);
/* Likewise: the push has been kept, or applied. */
void zr_ps_note_push(struct zr_ps_timetable *t, unsigned table, unsigned worker, unsigned index);
/* Whether the next group of the table is complete; *group gets its number. The caller applies the group and
 * calls zr_ps_note_applied(). */
bool zr_ps_is_complete(const struct zr_ps_timetable *t, unsigned table, uint64_t *group);
void zr_ps_note_applied(struct zr_ps_timetable *t, unsigned table, uint64_t group);
/* The worker has ended step `step` / has left the run. */
void zr_ps_end_of_step(struct zr_ps_timetable *t, unsigned worker, uint64_t step);
void zr_ps_leaves(struct zr_ps_timetable *t, unsigned worker);
bool zr_ps_all_left(const struct zr_ps_timetable *t);

#endif
