/* bench_learner.c: how long an allocation takes while something is learned: the same steps in an arena
 * without a learner, with one that records while its thread packs, and with one whose plan is in force.
 * Percentiles of all allocations and the ratio at 99.9 %, each the median of several
 * rounds. Build: make build/tests/bench_learner. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "defrag/learn/learner_state.h"
#include "tests/support/draws.h"

#define MIB ((size_t)1 << 20)

enum { BLOCKS = 600, LIFETIME_MAX = 80, STEPS = 400, CALLS = STEPS * BLOCKS, ROUNDS = 9 };

static struct event {
    bool alloc;
    unsigned block;
    size_t bytes;
} events[2 * BLOCKS];
static size_t events_count;

/* Random sizes and lifetimes: a packer is busy with them for as long as it may. */
static void make_step(void)
{
    static unsigned ends[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        ends[i] = i + 1 + (unsigned)random_below(LIFETIME_MAX);
    for (unsigned now = 0; now <= BLOCKS; now++) {
        for (unsigned i = 0; i < now; i++)
            if (ends[i] == now || (now == BLOCKS && ends[i] > now))
                events[events_count++] = (struct event){.block = i};
        if (now < BLOCKS)
            events[events_count++] = (struct event){true, now, 1 + random_below(4 * MIB)};
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
    uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

static zr_result run_steps(zr_arena *arena, unsigned steps, uint32_t *times)
{
    static void *blocks[BLOCKS];
    zr_result result = ZR_OK;
    size_t count = 0;
    for (unsigned step = 0; step < steps; step++)
        for (size_t i = 0; i < events_count && result == ZR_OK; i++) {
            const struct event *event = &events[i];
            if (!event->alloc) {
                result = zr_arena_free(arena, blocks[event->block]);
                continue;
            }
            uint64_t start = now_ns();
            result =
                zr_arena_alloc(arena, &(struct zr_request){.bytes = event->bytes}, &blocks[event->block]);
            if (times)
                times[count++] = (uint32_t)(now_ns() - start);
        }
    return result;
}

enum learning { WITHOUT, PACKING, PLANNED, KINDS };
static const char *const names[KINDS] = {"without a learner", "while one packs", "with its plan"};
static const double shares[] = {0.5, 0.99, 0.999, 0.9999, 1};
enum { SHARES = sizeof shares / sizeof *shares, OF_999 = 2 };

struct measured {
    double at[SHARES]; /* ns */
    double over;       /* at 99.9 %, to that without a learner in the same round */
    struct zr_learner_stats stats;
};

/* The first steps, which map, are not counted. */
static zr_result measure(enum learning learning, struct measured *out)
{
    static uint32_t times[CALLS];
    zr_backend *backend;
    zr_arena *arena = NULL;
    zr_learner *learner = NULL;
    zr_result result = zr_backend_sim_create(&backend, NULL);
    if (result != ZR_OK)
        return result;
    result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    if (result == ZR_OK && learning != WITHOUT)
        result = zr_learner_create(
            &learner, &(struct zr_learner_options){.arena = arena,
                                                   .work = learning == PACKING ? UINT64_MAX / 2 : 1000000});
    for (unsigned i = 0; i < 6 && result == ZR_OK; i++) {
        result = run_steps(arena, 2, NULL);
        if (learning == PLANNED)
            zr_learner_wait(learner);
    }
    if (result == ZR_OK)
        result = run_steps(arena, STEPS, times);
    if (learner) {
        zr_arena_hold(arena);
        out->stats = learner->stats;
        zr_arena_unhold(arena);
    }
    zr_learner_destroy(learner);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    qsort(times, CALLS, sizeof *times, by_time);
    for (size_t i = 0; i < SHARES; i++)
        out->at[i] = times[(size_t)(shares[i] * (CALLS - 1))];
    return result;
}

static int by_value(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

/* The median over the rounds of what lies so far from the start of each. */
static double median(const struct measured *rounds, size_t offset_bytes)
{
    double values[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++)
        values[i] = *(const double *)((const char *)&rounds[i] + offset_bytes);
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

int main(void)
{
    static struct measured rounds[KINDS][ROUNDS];
    make_step();
    for (size_t round = 0; round < ROUNDS; round++)
        for (enum learning i = WITHOUT; i < KINDS; i++) {
            struct measured *own = &rounds[i][round];
            if (measure(i, own) != ZR_OK) {
                fprintf(stderr, "%s\n", zr_last_error());
                return 1;
            }
            own->over = own->at[OF_999] / rounds[WITHOUT][round].at[OF_999];
        }
    printf(
        "%d allocations of %d in a step, ns, medians of %d rounds:\n%-20s %8s %8s %8s %8s %8s   99.9 %% over "
        "that without\n",
        CALLS, BLOCKS, ROUNDS, "", "50 %", "99 %", "99.9 %", "99.99 %", "most");
    for (enum learning i = WITHOUT; i < KINDS; i++) {
        const struct zr_learner_stats *stats = &rounds[i][ROUNDS - 1].stats;
        printf("%-20s", names[i]);
        for (size_t k = 0; k < SHARES; k++)
            printf(" %8.0f", median(rounds[i], offsetof(struct measured, at) + k * sizeof(double)));
        printf("   %.2f (%llu periods, %llu plans)\n", median(rounds[i], offsetof(struct measured, over)),
               (unsigned long long)stats->periods_count, (unsigned long long)stats->plans_count);
    }
    return 0;
}
