/* comm_queue_test.c: operations that run beside the caller's work: many under way with random delays, more
 * than the queue holds, and how much of their time is hidden. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "tests/support/zero/comm_ranks.h"
#include "tests/support/zero/comm_values.h"
#include "tests/support/seed.h"

enum { STORM_OPERATIONS = 200, STORM_SHARD = 700 };

static zr_ticket storm_submit(struct environment *rank, zr_comm *comm, unsigned n, float *buffer)
{
    size_t shard = 1 + trial_mix(rank->seed + n) % STORM_SHARD; /* the same on all ranks */
    zr_ticket ticket = 0;
    for (size_t i = 0; i < shard * rank->world; i++)
        buffer[i] = trial_value(ZR_COMM_FP32, n, rank->rank, i);
    if (n % 3 == 0)
        check_ok(rank, zr_comm_reduce_scatter(
                           comm,
                           &(struct zr_reduce_scatter){.source = buffer,
                                                       .destination = buffer + shard * rank->rank,
                                                       .shard_elements = shard,
                                                       .scale = 1},
                           &ticket));
    else if (n % 3 == 1)
        check_ok(rank, zr_comm_all_gather(comm,
                                          &(struct zr_all_gather){.source = buffer + shard * rank->rank,
                                                                  .destination = buffer,
                                                                  .shard_bytes = shard * sizeof(float)},
                                          &ticket));
    else
        check_ok(rank,
                 zr_comm_all_reduce(
                     comm, &(struct zr_all_reduce){.buffer = buffer, .shard_elements = shard, .scale = 1},
                     &ticket));
    check(rank, ticket > 0, "no ticket");
    return ticket;
}

static void storm_check(struct environment *rank, unsigned n, const float *buffer)
{
    size_t shard = 1 + trial_mix(rank->seed + n) % STORM_SHARD, first = shard * rank->rank, wrong = 0;
    for (size_t i = 0; i < shard * rank->world; i++) {
        float want;
        if (n % 3 == 0 && (i < first || i >= first + shard))
            continue;
        want = n % 3 == 1 ? trial_value(ZR_COMM_FP32, n, (unsigned)(i / shard), i)
                          : trial_sum(rank->world, ZR_COMM_FP32, n, i, 1);
        wrong += memcmp(&want, &buffer[i], sizeof(want)) != 0;
    }
    check(rank, wrong == 0, "operation %u: %zu elements are wrong", n, wrong);
}

static void body_storm(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    size_t room = (size_t)STORM_SHARD * rank->world;
    float *buffers = take(rank, STORM_OPERATIONS * room * sizeof(float));
    zr_ticket tickets[STORM_OPERATIONS];
    uint64_t own = trial_mix(rank->seed + 1000 * rank->rank); /* each rank has its own delays */
    uint32_t all[16];
    for (unsigned n = 0; n < STORM_OPERATIONS; n++) {
        nap(own = trial_mix(own));
        tickets[n] = storm_submit(rank, comm, n, buffers + n * room);
        if (own % 5 == 0) {
            unsigned old = (unsigned)(own / 5 % (n + 1));
            check_ok(rank, zr_comm_wait(comm, tickets[old]));
            storm_check(rank, old, buffers + old * room);
        }
        if (n % 50 == 49) { /* a collective between the others, while they are still under way */
            uint32_t mine = n * 100 + rank->rank;
            check_ok(rank, zr_comm_host_all_gather(comm, &mine, sizeof(mine), all));
            for (unsigned p = 0; p < rank->world; p++)
                check(rank, all[p] == n * 100 + p, "exchange: rank %u said %u", p, all[p]);
        }
    }
    for (unsigned n = STORM_OPERATIONS; n-- > 0;)
        check_ok(rank, zr_comm_wait(comm, tickets[n]));
    for (unsigned n = 0; n < STORM_OPERATIONS; n++)
        storm_check(rank, n, buffers + n * room);
    check_ok(rank, zr_comm_destroy(comm));
    zr_arena_free(rank->arena, buffers);
}

/* More than the queue holds, while one rank does not come: the others must wait for room, and lose nothing.
 */
static void body_flood(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    size_t room = (size_t)STORM_SHARD * rank->world;
    float *buffers = take(rank, STORM_OPERATIONS * room * sizeof(float));
    zr_ticket last = 0;
    if (rank->rank + 1 == rank->world)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    for (unsigned n = 0; n < STORM_OPERATIONS; n++)
        last = storm_submit(rank, comm, n, buffers + n * room);
    check_ok(rank, zr_comm_wait(comm, last));
    for (unsigned n = 0; n < STORM_OPERATIONS; n++)
        storm_check(rank, n, buffers + n * room);
    struct zr_comm_counters counters;
    zr_comm_counters_get(comm, &counters);
    check(rank, counters.operations_count == STORM_OPERATIONS, "%llu operations",
          (unsigned long long)counters.operations_count);
    check_ok(rank, zr_comm_destroy(comm));
    zr_arena_free(rank->arena, buffers);
}

/* A source that is on its way when its gather is handed in, and work within the gather. */
struct late_source {
    struct environment *rank;
    float *values, *all;
    unsigned calls; /* a digit each, the first one first */
};

static zr_result bring(void *state)
{
    struct late_source *late = state;
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    for (size_t i = 0; i < STORM_SHARD; i++)
        late->values[i] = trial_value(ZR_COMM_FP32, 9, late->rank->rank, i);
    late->calls = 10 * late->calls + 1;
    return ZR_OK;
}

static zr_result work_first(void *state, struct zr_kernel_context *context)
{
    struct late_source *late = state;
    late->values[0] = (float)late->rank->rank;
    late->calls = 10 * late->calls + (context ? 9 : 2);
    return ZR_OK;
}

static zr_result work_last(void *state, struct zr_kernel_context *context)
{
    struct late_source *late = state;
    bool came = true;
    for (unsigned p = 0; p < late->rank->world; p++)
        came = came && late->all[p * STORM_SHARD] == (float)p;
    late->calls = 10 * late->calls + (context || !came ? 9 : 3);
    return ZR_OK;
}

static void body_late_source(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float *mine = take(rank, STORM_SHARD * sizeof(float)),
          *all = take(rank, STORM_SHARD * rank->world * sizeof(float));
    struct late_source late = {rank, mine, all, 0};
    const struct zr_comm_before before = {.run = bring, .state = &late};
    const struct zr_comm_work first = {work_first, &late}, last = {work_last, &late};
    zr_ticket ticket = 0;
    size_t wrong = 0;
    memset(mine, 0, STORM_SHARD * sizeof(float));
    check_ok(rank, zr_comm_all_gather(comm,
                                      &(struct zr_all_gather){.source = mine,
                                                              .destination = all,
                                                              .shard_bytes = STORM_SHARD * sizeof(float),
                                                              .before = &before,
                                                              .first = &first,
                                                              .last = &last},
                                      &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
    for (unsigned p = 0; p < rank->world; p++)
        for (size_t i = 1; i < STORM_SHARD; i++)
            wrong += all[p * STORM_SHARD + i] != trial_value(ZR_COMM_FP32, 9, p, i);
    check(rank, wrong == 0 && late.calls == 123, "%zu elements are wrong after calls %u", wrong, late.calls);
    check_ok(rank, zr_comm_destroy(comm));
    zr_arena_free(rank->arena, all);
    zr_arena_free(rank->arena, mine);
}

/* Threads that wait for one operation, which ends when all of them do. */
enum { WAITERS = 3 };

struct waiters {
    zr_comm *comm;
    zr_ticket ticket;
    _Atomic unsigned count;
};

static void *wait_beside(void *state)
{
    struct waiters *waiters = state;
    atomic_fetch_add(&waiters->count, 1);
    return zr_comm_wait(waiters->comm, waiters->ticket) == ZR_OK ? waiters : NULL;
}

static zr_result let_wait(void *state)
{
    struct waiters *waiters = state;
    while (atomic_load(&waiters->count) < WAITERS)
        sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return ZR_OK;
}

static void body_waiters(struct environment *rank)
{
    struct waiters waiters = {.comm = open_comm(rank)};
    const struct zr_comm_before before = {.run = let_wait, .state = &waiters};
    struct timespec until;
    pthread_t threads[WAITERS];
    char mine = 1, all[16];
    check_ok(rank,
             zr_comm_all_gather(waiters.comm,
                                &(struct zr_all_gather){
                                    .source = &mine, .destination = all, .shard_bytes = 1, .before = &before},
                                &waiters.ticket));
    for (unsigned i = 0; i < WAITERS; i++)
        pthread_create(&threads[i], NULL, wait_beside, &waiters);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    for (unsigned i = 0; i < WAITERS; i++) {
        void *good = NULL;
        bool woken = pthread_timedjoin_np(threads[i], &good, &until) == 0;
        check(rank, woken && good, "thread %u sleeps on", i);
        if (!woken)
            _exit(1); /* nothing can end under it */
    }
    check_ok(rank, zr_comm_destroy(waiters.comm));
}

/* What is hidden behind work and what is not. The last rank comes late to every gather; the others either
 * work meanwhile, or wait for the gather at once. Rounds go on
 * until in one of each kind nobody but the test itself has got in any rank's way. */
static void body_hidden(struct environment *rank)
{
    enum { ROUNDS_MAX = 3000 };
    const long late_ns = 4000000;
    bool late = rank->rank + 1 == rank->world, hid = late, waited = late;
    float mine = 1, all[16], happy[16] = {0};
    unsigned still = rank->world;
    zr_comm *comm = open_comm(rank);
    for (unsigned round = 0; round < ROUNDS_MAX && still > 0; round++) {
        bool works = round % 2;
        struct zr_comm_counters before, after;
        zr_ticket ticket;
        check_ok(rank, zr_comm_barrier(comm));
        zr_comm_counters_get(comm, &before);
        if (late)
            nanosleep(&(struct timespec){.tv_nsec = late_ns}, NULL);
        check_ok(rank,
                 zr_comm_all_gather(comm,
                                    &(struct zr_all_gather){
                                        .source = &mine, .destination = all, .shard_bytes = sizeof(mine)},
                                    &ticket));
        if (works && !late)
            nanosleep(&(struct timespec){.tv_nsec = 3 * late_ns}, NULL);
        check_ok(rank, zr_comm_wait(comm, ticket));
        zr_comm_counters_get(comm, &after);
        uint64_t busy_ns = after.busy_ns - before.busy_ns, exposed_ns = after.exposed_ns - before.exposed_ns;
        hid |= works && busy_ns > (uint64_t)late_ns / 2 && exposed_ns < busy_ns / 10;
        waited |= !works && busy_ns > (uint64_t)late_ns / 2 && exposed_ns > busy_ns / 2;
        float enough = hid && waited;
        check_ok(rank, zr_comm_host_all_gather(comm, &enough, sizeof(enough), happy));
        still = rank->world;
        for (unsigned p = 0; p < rank->world; p++)
            still -= happy[p] == 1;
    }
    check(rank, hid, "a gather that ran during work was never hidden");
    check(rank, waited, "the wait for a gather never showed");
    check_ok(rank, zr_comm_destroy(comm));
}

int main(void)
{
    static const unsigned worlds[] = {2, 3, 8};
    uint64_t seed = run_seed();
    for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++)
        tap_is(launch(&(struct test_case){
                   .body = body_storm, .world = worlds[w], .bucket_bytes = 1024, .seed = seed + w}),
               0, "%u ranks: %d operations queued with random delays", worlds[w], STORM_OPERATIONS);
    tap_is(launch(&(struct test_case){.body = body_flood, .world = 3, .bucket_bytes = 1024}), 0,
           "%d operations at once, and a rank that comes late", STORM_OPERATIONS);
    tap_is(launch(&(struct test_case){.body = body_late_source, .world = 3, .bucket_bytes = 1024}), 0,
           "a gather starts when its source has come");
    tap_is(launch(&(struct test_case){.body = body_waiters, .world = 2, .bucket_bytes = 1024}), 0,
           "%d threads that wait for one operation are all woken", WAITERS);
    tap_is(launch(&(struct test_case){.body = body_hidden, .world = 3, .bucket_bytes = 128}), 0,
           "what work hides and what waits show is told apart, and small talk is neither");
    return tap_done();
}
