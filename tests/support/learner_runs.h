/* learner_runs.h: what the tests of the learner share: an arena that one watches, on the simulated device,
 * and sequences of events that they repeat there. */
#ifndef ZR_TEST_LEARNER_RUNS_H
#define ZR_TEST_LEARNER_RUNS_H

#include "alloc/plan/plan.h"
#include "defrag/learn/learner_state.h"
#include "tests/support/blocks.h"
#include "tests/support/draws.h"
#include "tests/support/tap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { BLOCKS_MAX = 4096, WORK = 40000000 };

struct event {
    bool alloc;
    uint32_t block;
    size_t bytes;
};

struct steps {
    struct event events[2 * BLOCKS_MAX];
    size_t count;
    uint32_t blocks;
};

static zr_learner *learner;
static void *blocks[2 * BLOCKS_MAX];
static bool failed; /* an allocation or a free, since the arena began */

static inline void begin_arena(size_t limit_bytes, uint64_t work_ns)
{
    failed = false;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB, .work_ns = work_ns});
    zr_arena_create(&arena, &(struct zr_arena_options){
                                .backend = backend, .name = "learned", .limit_bytes = limit_bytes});
}

static inline void begin_learner(uint64_t work)
{
    if (zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena, .work = work}) != ZR_OK)
        tap_ok(false, "a learner: %s", zr_last_error());
}

/* One that learns between steps only, as where each takes its time. */
static inline void begin(size_t limit_bytes, uint64_t work_ns)
{
    begin_arena(limit_bytes, work_ns);
    begin_learner(WORK);
    zr_learner_hold(learner);
}

static inline bool end_quietly(void)
{
    size_t leaked = 1;
    failed |= zr_arena_check(arena) != ZR_OK;
    zr_learner_destroy(learner);
    learner = NULL;
    failed |= zr_arena_destroy(arena, &leaked) != ZR_OK || leaked != 0;
    return zr_backend_destroy(backend) == ZR_OK && !failed;
}

static inline void end(void)
{
    tap_ok(end_quietly(), "nothing failed or leaked, and the books are right");
}

static inline void get(uint32_t block, size_t bytes)
{
    failed |= !(blocks[block] = take(bytes));
}

static inline void give(uint32_t block)
{
    failed |= zr_arena_free(arena, blocks[block]) != ZR_OK;
    blocks[block] = NULL;
}

static inline void do_event(const struct event *event)
{
    if (event->alloc)
        get(event->block, event->bytes);
    else
        give(event->block);
}

static inline uint64_t calls(void)
{
    return stats().backend_calls_count;
}

struct learned {
    struct zr_learner_stats of_learner;
    struct zr_executor_counts of_arena;
    bool asleep;
};

static inline struct learned learned(void)
{
    struct learned out;
    zr_arena_executor_counts(arena, &out.of_arena);
    zr_arena_hold(arena);
    out.of_learner = learner->stats;
    out.asleep = learner->asleep;
    zr_arena_unhold(arena);
    return out;
}

#endif
