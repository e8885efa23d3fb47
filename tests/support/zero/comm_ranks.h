/* comm_ranks.h: the ranks of a test of communicators: forked through zr_local_launch(), each with an arena of
 * its own, at whose end nothing may be left. A rank reports on stderr and by its exit code; the parent turns
 * that into TAP. */
#ifndef ZR_TEST_COMM_RANKS_H
#define ZR_TEST_COMM_RANKS_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "tests/support/tap.h"
#include "zero/comm/zr_comm.h"

/* What a rank ends with whose checks failed; a run that one of its ranks ends has 1. */
enum { CHECKS_FAILED = 3 };

struct environment {
    struct zr_local_world *local;
    unsigned rank, world;
    zr_backend *backend;
    zr_arena *arena;
    size_t bucket_bytes;
    enum zr_comm_algorithm algorithm;
    uint64_t seed;
    unsigned failures;
};

struct test_case {
    void (*body)(struct environment *rank);
    size_t bucket_bytes, granule_bytes;
    enum zr_comm_algorithm algorithm;
    unsigned world;
    bool threads; /* ranks are threads */
    uint64_t seed;
};

#define check(who, condition, format, ...)                                                                   \
    do {                                                                                                     \
        if (!(condition) && (who)->failures++ < 5)                                                           \
            fprintf(stderr, "# rank %u of %u, line %d: " format "\n", (who)->rank, (who)->world, __LINE__,   \
                    ##__VA_ARGS__);                                                                          \
    } while (0)

#define check_ok(who, call)                                                                                  \
    do {                                                                                                     \
        zr_result got_ = (call);                                                                             \
        check(who, got_ == ZR_OK, "%s: %s (%s)", #call, zr_result_name(got_), zr_last_error());              \
    } while (0)

static inline int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct test_case *test = argument;
    struct environment env = {.local = local,
                              .rank = rank,
                              .world = test->world,
                              .bucket_bytes = test->bucket_bytes,
                              .algorithm = test->algorithm,
                              .seed = test->seed};
    struct zr_host_options host = {.granule_bytes = test->granule_bytes ? test->granule_bytes : 64 << 10,
                                   .small_pages = true};
    size_t leaked_bytes = 0;
    for (unsigned i = 0; i < 4 * ZR_FAULT_SITE_COUNT; i++)
        zr_fault_set(i / 4 | i % 4 << 8,
                     0); /* of each kind: what was set for the launcher is not meant for its ranks */
    check_ok(&env, zr_backend_host_create(&env.backend, &host));
    if (env.failures)
        return 1;
    check_ok(&env, zr_arena_create(&env.arena, &(struct zr_arena_options){.backend = env.backend,
                                                                          .reserve_bytes = 1ull << 30,
                                                                          .limit_bytes = 1ull << 30}));
    if (env.failures)
        return 1;
    test->body(&env);
    zr_local_part(local);
    check_ok(&env, zr_arena_destroy(env.arena, &leaked_bytes));
    check(&env, leaked_bytes == 0, "%zu bytes leaked", leaked_bytes);
    check_ok(&env, zr_backend_destroy(env.backend));
    return env.failures > 0 ? CHECKS_FAILED : 0;
}

static inline int launch(const struct test_case *test)
{
    struct test_case copy = *test;
    fflush(stdout); /* what is buffered would be written by every rank */
    return zr_local_launch(&(struct zr_launch_options){.struct_bytes = sizeof(struct zr_launch_options),
                                                       .world = test->world,
                                                       .rank_main = run_rank,
                                                       .argument = &copy,
                                                       .threads = test->threads});
}

static inline struct zr_comm_options options_of(const struct environment *rank)
{
    return (struct zr_comm_options){.arena = rank->arena,
                                    .host_arena = rank->arena,
                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                    .bucket_bytes = rank->bucket_bytes,
                                    .algorithm = rank->algorithm};
}

static inline zr_comm *open_comm(struct environment *rank)
{
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    if (!comm)
        _exit(1);
    return comm;
}

static inline void *take(struct environment *rank, size_t bytes)
{
    void *block;
    if (zr_arena_alloc(rank->arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block) !=
        ZR_OK) {
        fprintf(stderr, "# %s\n", zr_last_error());
        _exit(1);
    }
    return block;
}

static inline size_t live_bytes(struct environment *rank)
{
    struct zr_arena_stats stats = {0};
    check_ok(rank, zr_arena_get_stats(rank->arena, &stats));
    return stats.live_bytes;
}

/* Now and then, a moment of up to a millisecond. */
static inline void nap(uint64_t random)
{
    if (random % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(random / 8 % 1000000)}, NULL);
}

#endif
