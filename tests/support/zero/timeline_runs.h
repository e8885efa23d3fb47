/* timeline_runs.h: a small GPT-2 that is rehearsed by the clock, and what its test programs compare. */
#ifndef ZR_TEST_TIMELINE_RUNS_H
#define ZR_TEST_TIMELINE_RUNS_H

#include <math.h>

#include "tests/support/records.h"
#include "tests/support/tap.h"
#include "zero/plan/plan.h"
#include "zero/plan/timeline.h"

enum { LAYERS = 5, HIDDEN = 64, HEADS = 4, VOCABULARY = 192, SEQUENCE = 24, BATCH = 3 };

/* A configuration, and what comes of it. */
struct run {
    unsigned world, stage, micro_batches, layers;
    enum zr_recompute recompute;
    enum zr_reduce_when reduce;
    bool walks_all;    /* every micro-batch */
    size_t events_max; /* that are kept; 0: as many as in a program */
    double flops_per_second, bytes_per_second;
    struct zr_byte_plan plan;
    struct zr_timeline timeline;
};

static inline struct zr_shape shape_of(const struct run *run)
{
    return (struct zr_shape){.layers = run->layers ? run->layers : LAYERS,
                             .hidden = HIDDEN,
                             .heads = HEADS,
                             .vocabulary = VOCABULARY,
                             .vocabulary_padded = VOCABULARY,
                             .sequence = SEQUENCE,
                             .batch = BATCH,
                             .recompute = run->recompute};
}

static inline void rehearse(struct run *run)
{
    zr_timeline_start(&run->timeline, host_arena, run->flops_per_second, run->bytes_per_second);
    if (run->events_max > 0)
        run->timeline.events_max = run->events_max;
    zr_result result = zr_plan_make(&run->plan, &(struct zr_plan_request){.shape = shape_of(run),
                                                                          .stage = run->stage,
                                                                          .world = run->world,
                                                                          .micro_batches = run->micro_batches,
                                                                          .reduce = run->reduce,
                                                                          .threads = 1,
                                                                          .bucket_bytes = 1 << 20,
                                                                          .host_arena = host_arena,
                                                                          .walks_all = run->walks_all,
                                                                          .timeline = &run->timeline});
    if (result != ZR_OK)
        tap_result(result, ZR_OK, "a rehearsal");
}

static inline bool close_to(double got, double want)
{
    return fabs(got - want) <= 1e-9 * fabs(want);
}

#endif
