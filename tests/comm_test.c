/* comm_test.c: the communicators. Worlds of 1 to 8 ranks are forked through zr_local_launch(); every result
 * is compared, bit for bit, with a sum in rank order that each rank makes by itself, since all inputs come
 * from a seed. A rank reports on stderr and by its exit code; the parent turns that into TAP. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/error.h"
#include "alloc/fault.h"
#include "alloc/os.h"
#include "tests/comm_operations.h"
#include "tests/tap.h"
#include "zero/comm/zr_comm.h"

/* ---- A rank and its checks -------------------------------------------------------------------------- */

struct environment {
    struct zr_local_world *local;
    unsigned rank, world;
    zr_backend *backend;
    zr_arena *arena;
    size_t bucket_bytes;
    uint64_t seed;
    unsigned failures;
};

struct test_case {
    void (*body)(struct environment *rank);
    size_t bucket_bytes, granule_bytes;
    unsigned world;
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

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct test_case *test = argument;
    struct environment env = {.local = local,
                              .rank = rank,
                              .world = test->world,
                              .bucket_bytes = test->bucket_bytes,
                              .seed = test->seed};
    struct zr_host_options host = {.granule_bytes = test->granule_bytes ? test->granule_bytes : 64 << 10,
                                   .small_pages = true};
    size_t leaked_bytes = 0;
    for (int site = 0; site < ZR_FAULT_SITE_COUNT; site++)
        zr_fault_set(site, 0); /* what was set for the launcher is not meant for its ranks */
    check_ok(&env, zr_backend_host_create(&env.backend, &host));
    if (env.failures)
        return 1;
    check_ok(&env, zr_arena_create(&env.arena, &(struct zr_arena_options){.backend = env.backend,
                                                                          .reserve_bytes = 1ull << 30,
                                                                          .limit_bytes = 1ull << 30}));
    if (env.failures)
        return 1;
    test->body(&env);
    check_ok(&env, zr_arena_destroy(env.arena, &leaked_bytes));
    check(&env, leaked_bytes == 0, "%zu bytes leaked", leaked_bytes);
    check_ok(&env, zr_backend_destroy(env.backend));
    return env.failures > 0;
}

static int launch(const struct test_case *test)
{
    struct test_case copy = *test;
    fflush(stdout); /* what is buffered would be written by every rank */
    return zr_local_launch(
        &(struct zr_launch_options){.world = test->world, .rank_main = run_rank, .argument = &copy});
}

static struct zr_comm_options options_of(const struct environment *rank)
{
    return (struct zr_comm_options){.arena = rank->arena,
                                    .host_arena = rank->arena,
                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                    .bucket_bytes = rank->bucket_bytes};
}

static zr_comm *open_comm(struct environment *rank)
{
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    if (!comm)
        _exit(1);
    return comm;
}

static void *take(struct environment *rank, size_t bytes)
{
    void *block;
    if (zr_arena_alloc(rank->arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block) !=
        ZR_OK) {
        fprintf(stderr, "# %s\n", zr_last_error());
        _exit(1);
    }
    return block;
}

/* ---- Inputs that everybody knows -------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A float whose sums depend on their order: 24 random bits, exponents 16 apart at most. */
static float value_of(uint64_t seed, unsigned rank, size_t index)
{
    uint64_t bits = mix(mix(seed * 1000003 + rank) + index);
    float mantissa = (float)(int32_t)(bits >> 32) / 2147483648.0f;
    return mantissa * (float)(1u << (bits & 15));
}

static float sum_of(uint64_t seed, unsigned world, size_t index, float scale)
{
    float sum = value_of(seed, 0, index);
    for (unsigned p = 1; p < world; p++)
        sum += value_of(seed, p, index);
    return sum * scale;
}

static void fill_values(float *to, size_t count, uint64_t seed, unsigned rank)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value_of(seed, rank, i);
}

static void check_bits(struct environment *rank, const float *got, const float *want, size_t count,
                       const char *what)
{
    size_t i = 0;
    while (i < count && memcmp(&got[i], &want[i], sizeof(float)) == 0)
        i++;
    check(rank, i == count, "%s: element %zu of %zu is %a, not %a", what, i, count, i < count ? got[i] : 0,
          i < count ? want[i] : 0);
}

/* ---- Sums and gathers ------------------------------------------------------------------------------- */

struct buffers {
    size_t shard, whole;
    float *source, *want, *got;
};

static void try_reduce_scatter(struct environment *rank, zr_comm *comm, const struct buffers *b,
                               uint64_t seed)
{
    size_t first = rank->rank * b->shard;
    for (unsigned variant = 0; variant < 3; variant++) { /* apart, accumulated, in place */
        float scale = variant == 1 ? 0.3f : 1.0f / 3;
        float *to = variant == 2 ? b->source + first : b->got;
        zr_ticket ticket;
        fill_values(b->source, b->whole, seed + variant, rank->rank);
        for (size_t i = 0; i < b->shard; i++) {
            b->got[i] = 7.25f;
            b->want[i] = sum_of(seed + variant, rank->world, first + i, scale);
            if (variant == 1)
                b->want[i] = 7.25f + b->want[i];
        }
        check_ok(rank, zr_comm_reduce_scatter(comm,
                                              &(struct zr_reduce_scatter){.source = b->source,
                                                                          .destination = to,
                                                                          .shard_elements = b->shard,
                                                                          .scale = scale,
                                                                          .accumulate = variant == 1},
                                              &ticket));
        check_ok(rank, zr_comm_wait(comm, ticket));
        check_bits(rank, to, b->want, b->shard, "reduce-scatter");
    }
}

static void try_all_gather(struct environment *rank, zr_comm *comm, const struct buffers *b, uint64_t seed)
{
    for (unsigned variant = 0; variant < 2; variant++) { /* apart, in place */
        float *mine = variant == 1 ? b->got + rank->rank * b->shard : b->source;
        zr_ticket ticket;
        memset(b->got, 0xff, b->whole * sizeof(float));
        fill_values(mine, b->shard, seed + variant, rank->rank);
        for (unsigned p = 0; p < rank->world; p++)
            fill_values(b->want + p * b->shard, b->shard, seed + variant, p);
        check_ok(rank, zr_comm_all_gather(comm,
                                          &(struct zr_all_gather){.source = mine,
                                                                  .destination = b->got,
                                                                  .shard_bytes = b->shard * sizeof(float)},
                                          &ticket));
        check_ok(rank, zr_comm_wait(comm, ticket));
        check_bits(rank, b->got, b->want, b->whole, "all-gather");
    }
}

static void try_all_reduce(struct environment *rank, zr_comm *comm, const struct buffers *b, uint64_t seed)
{
    for (unsigned variant = 0; variant < 2; variant++) { /* alone, with a base */
        zr_ticket ticket;
        fill_values(b->got, b->whole, seed + variant, rank->rank);
        fill_values(b->source, b->whole, seed + 77, 0);
        for (size_t i = 0; i < b->whole; i++) {
            float sum = sum_of(seed + variant, rank->world, i, 0.7f);
            b->want[i] = variant ? b->source[i] + sum : sum;
        }
        check_ok(rank, zr_comm_all_reduce(comm,
                                          &(struct zr_all_reduce){.buffer = b->got,
                                                                  .base = variant ? b->source : NULL,
                                                                  .shard_elements = b->shard,
                                                                  .scale = 0.7f},
                                          &ticket));
        check_ok(rank, zr_comm_wait(comm, ticket));
        check_bits(rank, b->got, b->want, b->whole, "all-reduce");
    }
}

static void check_counters(struct environment *rank, zr_comm *comm, uint64_t shards)
{
    struct zr_comm_counters counters;
    zr_comm_counters_get(comm, &counters);
    check(rank, counters.sent_elements == shards * (rank->world - 1), "%llu elements sent, not %llu",
          (unsigned long long)counters.sent_elements, (unsigned long long)shards * (rank->world - 1));
}

static void body_sums(struct environment *rank)
{
    static const size_t shards[] = {1, 3, 16, 1021, 5000};
    zr_comm *comm = open_comm(rank);
    uint64_t sent = 0;
    for (size_t s = 0; s < sizeof(shards) / sizeof(*shards); s++) {
        struct buffers b = {.shard = shards[s], .whole = shards[s] * rank->world};
        uint64_t seed = rank->seed + 10 * s;
        b.source = take(rank, b.whole * sizeof(float));
        b.want = take(rank, b.whole * sizeof(float));
        b.got = take(rank, b.whole * sizeof(float));
        try_reduce_scatter(rank, comm, &b, seed);
        try_all_gather(rank, comm, &b, seed);
        try_all_reduce(rank, comm, &b, seed);
        sent += (3 + 2 + 2 * 2) * b.shard;
        check_counters(rank, comm, sent);
        zr_arena_free(rank->arena, b.source);
        zr_arena_free(rank->arena, b.want);
        zr_arena_free(rank->arena, b.got);
    }
    struct zr_comm_counters counters;
    zr_comm_counters_get(comm, &counters);
    check(rank, counters.operations_count == 7 * 5, "%llu operations",
          (unsigned long long)counters.operations_count);
    check(rank, counters.busy_ns > 0 && counters.exposed_ns > 0, "no time counted");
    check_ok(rank, zr_comm_destroy(comm));
}

static void test_sums(void)
{
    static const unsigned worlds[] = {1, 2, 3, 4, 8};
    static const size_t buckets[] = {1, 300, 4096, 65536};
    for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++)
        for (size_t b = 0; b < sizeof(buckets) / sizeof(*buckets); b++)
            tap_is(launch(&(struct test_case){.body = body_sums,
                                              .world = worlds[w],
                                              .bucket_bytes = buckets[b],
                                              .seed = 42 + worlds[w]}),
                   0, "%u ranks, bucket of %zu bytes: sums in rank order, gathers, counters", worlds[w],
                   buckets[b]);
}

/* ---- Every operation --------------------------------------------------------------------------------- */

static void body_operations(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    rank->failures += trial_operations(comm, rank->seed, SIZE_MAX, true);
    check_ok(rank, zr_comm_destroy(comm));
}

static void test_operations(void)
{
    static const unsigned worlds[] = {1, 2, 3, 4, 8};
    static const size_t buckets[] = {1, 300, 4096, 65536};
    uint64_t seed = getenv("ZR_TEST_SEED") ? strtoull(getenv("ZR_TEST_SEED"), NULL, 0) : (uint64_t)time(NULL);
    tap_note("ZR_TEST_SEED=%llu", (unsigned long long)seed);
    for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++)
        for (size_t b = w % 2; b < sizeof(buckets) / sizeof(*buckets); b += 2)
            tap_is(launch(&(struct test_case){.body = body_operations,
                                              .world = worlds[w],
                                              .bucket_bytes = buckets[b],
                                              .seed = seed + 1000 * w}),
                   0, "%u ranks, bucket of %zu bytes: every operation, in fp32, bf16 and fp16", worlds[w],
                   buckets[b]);
}

/* A rank that stands still is told from one that has died, and named. */
static void body_silent(struct environment *rank)
{
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    options.timeout_ns = 200000000;
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    zr_local_note(rank->local, rank->rank, "lunch");
    check_ok(rank, zr_comm_barrier(comm));
    if (rank->rank == 1) {
        nanosleep(&(struct timespec){.tv_nsec = 900000000}, NULL);
    } else {
        uint64_t start_ns = zr_os_now_ns();
        zr_result result = zr_comm_barrier(comm);
        uint64_t took_ms = (zr_os_now_ns() - start_ns) / 1000000;
        check(rank, result == ZR_ERR_TIMEOUT, "%s", zr_result_name(result));
        check(rank, strstr(zr_last_error(), "rank 1 ") && strstr(zr_last_error(), "lunch"), "words: %s",
              zr_last_error());
        check(rank, took_ms >= 200 && took_ms < 700, "after %llu ms", (unsigned long long)took_ms);
    }
    zr_comm_destroy(comm);
}

/* ---- Many operations under way ---------------------------------------------------------------------- */

enum { STORM_OPERATIONS = 200, STORM_SHARD = 700 };

static void nap(uint64_t random)
{
    if (random % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(random / 8 % 1000000)}, NULL);
}

static zr_ticket storm_submit(struct environment *rank, zr_comm *comm, unsigned n, float *buffer)
{
    size_t shard = 1 + mix(rank->seed + n) % STORM_SHARD; /* the same on all ranks */
    zr_ticket ticket = 0;
    fill_values(buffer, shard * rank->world, n, rank->rank);
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
    size_t shard = 1 + mix(rank->seed + n) % STORM_SHARD, first = shard * rank->rank, wrong = 0;
    for (size_t i = 0; i < shard * rank->world; i++) {
        float want;
        if (n % 3 == 0 && (i < first || i >= first + shard))
            continue;
        want = n % 3 == 1 ? value_of(n, (unsigned)(i / shard), i) : sum_of(n, rank->world, i, 1);
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
    uint64_t own = mix(rank->seed + 1000 * rank->rank); /* each rank has its own delays */
    uint32_t all[16];
    for (unsigned n = 0; n < STORM_OPERATIONS; n++) {
        nap(own = mix(own));
        tickets[n] = storm_submit(rank, comm, n, buffers + n * room);
        if (own % 5 == 0) {
            unsigned old = (unsigned)(own / 5 % (n + 1));
            check_ok(rank, zr_comm_wait(comm, tickets[old]));
            storm_check(rank, old, buffers + old * room);
        }
        if (n % 50 == 49) { /* a collective between the others, while they are still under way */
            uint32_t mine = n * 100 + rank->rank;
            check_ok(rank, zr_comm_exchange(comm, &mine, sizeof(mine), all));
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

static void test_storm(void)
{
    static const unsigned worlds[] = {2, 3, 8};
    uint64_t seed = getenv("ZR_TEST_SEED") ? strtoull(getenv("ZR_TEST_SEED"), NULL, 0) : (uint64_t)time(NULL);
    tap_note("ZR_TEST_SEED=%llu", (unsigned long long)seed);
    for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++)
        tap_is(launch(&(struct test_case){
                   .body = body_storm, .world = worlds[w], .bucket_bytes = 1024, .seed = seed + w}),
               0, "%u ranks: %d operations queued with random delays", worlds[w], STORM_OPERATIONS);
    tap_is(launch(&(struct test_case){.body = body_flood, .world = 3, .bucket_bytes = 1024}), 0,
           "%d operations at once, and a rank that comes late", STORM_OPERATIONS);
}

/* ---- Small talk ------------------------------------------------------------------------------------- */

static void body_small(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    uint8_t mine[301], *all = take(rank, sizeof(mine) * rank->world);
    struct zr_comm_counters counters;
    enum zr_request_kind kind = ZR_REQUEST_END;
    for (size_t bytes = 0; bytes <= sizeof(mine); bytes += 7) {
        memset(mine, (int)(rank->rank + bytes), sizeof(mine));
        memset(all, 0xee, sizeof(mine) * rank->world);
        check_ok(rank, zr_comm_exchange(comm, mine, bytes, all));
        for (size_t i = 0; i < bytes * rank->world; i++)
            check(rank, all[i] == (uint8_t)(i / bytes + bytes), "exchange of %zu bytes, byte %zu", bytes, i);
    }
    for (unsigned i = 0; i < 50; i++)
        check_ok(rank, zr_comm_barrier(comm));
    check_ok(rank, zr_local_request(comm, &kind));
    check(rank, kind == ZR_REQUEST_NONE, "request %d out of nowhere", (int)kind);
    zr_comm_counters_get(comm, &counters);
    check(rank, counters.sent_elements == 0 && counters.operations_count == 0, "small talk was counted");
    check(rank, counters.busy_ns == 0 && counters.exposed_ns == 0, "its time was counted");
    check(rank, zr_comm_rank(comm) == rank->rank && zr_comm_world(comm) == rank->world, "who am I");
    zr_arena_free(rank->arena, all);
    check_ok(rank, zr_comm_destroy(comm));
}

/* What is hidden behind work and what is not. The last rank comes late to every gather; the others either
 * work meanwhile, or run into an exchange, which must wait for the gather first. In at least one of the
 * rounds nobody but the test itself should have got in the way. */
static void body_hidden(struct environment *rank)
{
    const long late_ns = 4000000;
    bool late = rank->rank + 1 == rank->world, hid = late, waited = late;
    float mine = 1, all[16];
    zr_comm *comm = open_comm(rank);
    for (unsigned round = 0; round < 24; round++) {
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
        check_ok(rank, zr_comm_exchange(comm, &mine, sizeof(mine), all));
        check_ok(rank, zr_comm_wait(comm, ticket));
        zr_comm_counters_get(comm, &after);
        uint64_t busy_ns = after.busy_ns - before.busy_ns, exposed_ns = after.exposed_ns - before.exposed_ns;
        hid |= works && busy_ns > (uint64_t)late_ns / 2 && exposed_ns < busy_ns / 10;
        waited |= !works && busy_ns > (uint64_t)late_ns / 2 && exposed_ns > busy_ns / 2;
    }
    check(rank, hid, "a gather that ran during work was never hidden");
    check(rank, waited, "the wait of an exchange for the gather before it never showed");
    check_ok(rank, zr_comm_destroy(comm));
}

/* A barrier holds all until the last has come: no rank may be a whole round ahead. */
static void body_barrier(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    for (unsigned round = 0; round < 20; round++) {
        uint64_t before_ns = zr_os_now_ns(), after_ns, times[16][2];
        nap(mix(rank->seed + 100 * round + rank->rank) & ~7ull);
        before_ns = zr_os_now_ns();
        check_ok(rank, zr_comm_barrier(comm));
        after_ns = zr_os_now_ns();
        check_ok(rank, zr_comm_exchange(comm, (uint64_t[]){before_ns, after_ns}, sizeof(times[0]), times));
        for (unsigned p = 0; p < rank->world; p++)
            check(rank, times[p][0] <= after_ns, "passed before rank %u had come", p);
    }
    check_ok(rank, zr_comm_destroy(comm));
}

/* Mappings of granules in this process, the own and the peers'. */
static unsigned count_mappings(void)
{
    unsigned count = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof(line), file))
        count += strstr(line, "/memfd:") != NULL;
    if (file)
        fclose(file);
    return count;
}

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* A rank that is done early must not take its ring away from those that still read it. */
static void body_early(struct environment *rank)
{
    enum { SHARD_BYTES = 60000 };
    char *mine = take(rank, SHARD_BYTES), *all = take(rank, (size_t)SHARD_BYTES * rank->world);
    for (unsigned round = 0; round < 20; round++) {
        zr_comm *comm = open_comm(rank);
        size_t ring_bytes = zr_comm_ring_bytes(rank->world, rank->bucket_bytes), wrong = 0;
        struct zr_all_gather gather = {.source = mine, .destination = all, .shard_bytes = SHARD_BYTES};
        memset(mine, (int)(1 + rank->rank + round), SHARD_BYTES);
        check_ok(rank, zr_comm_all_gather(comm, &gather, NULL));
        check_ok(rank, zr_comm_destroy(comm));
        void *reused = take(rank, ring_bytes); /* likely the same place */
        memset(reused, 0xee, ring_bytes);
        for (size_t i = 0; i < (size_t)SHARD_BYTES * rank->world; i++)
            wrong += all[i] != (char)(1 + i / SHARD_BYTES + round);
        check(rank, wrong == 0, "%zu bytes were taken away before they were read", wrong);
        zr_arena_free(rank->arena, reused);
    }
    zr_arena_free(rank->arena, mine);
    zr_arena_free(rank->arena, all);
}

static void body_again(struct environment *rank)
{
    body_barrier(rank);
    unsigned maps_count = count_mappings(), fds_count = count_descriptors();
    for (unsigned i = 0; i < 5; i++) { /* one communicator after the other, of different sizes */
        rank->bucket_bytes = 100 + 1000 * i;
        body_small(rank);
        rank->seed += 5;
        body_barrier(rank);
    }
    rank->bucket_bytes = 128;
    body_barrier(rank);
    check(rank, maps_count > 0 && count_mappings() <= maps_count + 3, "%u mappings, %u before",
          count_mappings(), maps_count);
    check(rank, count_descriptors() == fds_count, "file descriptors leaked");
    zr_comm *comm = open_comm(rank), *second;
    struct zr_comm_options options = options_of(rank);
    check(rank, zr_comm_local_create(&second, &options, rank->local, rank->rank) == ZR_ERR_INVALID && !second,
          "a second communicator at the same time");
    check_ok(rank, zr_comm_destroy(comm));
}

static void test_small(void)
{
    for (unsigned world = 1; world <= 8; world *= 2)
        tap_is(launch(&(struct test_case){.body = body_small, .world = world, .bucket_bytes = 128}), 0,
               "%u ranks: exchange, barrier, request", world);
    tap_is(launch(&(struct test_case){.body = body_hidden, .world = 3, .bucket_bytes = 128}), 0,
           "what work hides and what waits show is told apart, and small talk is neither");
    tap_is(launch(&(struct test_case){.body = body_barrier, .world = 4, .bucket_bytes = 128}), 0,
           "a barrier holds all ranks until the last has come");
    tap_is(launch(&(struct test_case){.body = body_again, .world = 3, .bucket_bytes = 128}), 0,
           "one communicator after another, and never two");
    tap_is(launch(&(struct test_case){.body = body_early, .world = 8, .bucket_bytes = 1 << 16}), 0,
           "a rank that is done early leaves its ring until all have read it");
    uint64_t start_ns = zr_os_now_ns();
    tap_is(launch(&(struct test_case){.body = body_small, .world = 64, .bucket_bytes = 4096}), 0,
           "64 ranks share their rings and talk");
    tap_note("64 ranks took %.0f ms", (double)(zr_os_now_ns() - start_ns) / 1e6);
}

/* ---- Mistakes and failures -------------------------------------------------------------------------- */

static void body_out_of_step(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float source[64] = {0}, destination[64];
    zr_ticket ticket;
    struct zr_reduce_scatter operation = {
        .source = source, .destination = destination, .shard_elements = rank->rank == 1 ? 5 : 6, .scale = 1};
    check_ok(rank, zr_comm_reduce_scatter(comm, &operation, &ticket));
    check(rank, zr_comm_wait(comm, ticket) == ZR_ERR_PEER, "ranks out of step went on");
    check(rank, strstr(zr_last_error(), "out of step") != NULL, "words: %s", zr_last_error());
    check(rank, zr_comm_barrier(comm) == ZR_ERR_PEER, "a failed communicator went on");
    check(rank, zr_comm_reduce_scatter(comm, &operation, &ticket) == ZR_ERR_PEER && ticket == 0,
          "it took work");
    check_ok(rank, zr_comm_destroy(comm));
}

static void body_invalid(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float one[16] = {1};
    zr_ticket ticket = 9;
    struct zr_reduce_scatter reduce = {.source = one, .destination = one, .shard_elements = SIZE_MAX / 8};
    struct zr_all_gather gather = {.source = one, .destination = NULL, .shard_bytes = 4};
    struct zr_all_reduce both = {.buffer = NULL, .shard_elements = 1};
    check(rank, zr_comm_reduce_scatter(comm, &reduce, &ticket) == ZR_ERR_INVALID && ticket == 0, "too large");
    check(rank, zr_comm_reduce_scatter(NULL, &reduce, &ticket) == ZR_ERR_INVALID, "no communicator");
    check(rank, zr_comm_reduce_scatter(comm, NULL, &ticket) == ZR_ERR_INVALID, "no operation");
    check(rank, zr_comm_all_gather(comm, &gather, NULL) == ZR_ERR_INVALID, "no destination");
    check(rank, zr_comm_all_reduce(comm, &both, NULL) == ZR_ERR_INVALID, "no buffer");
    check(rank, zr_comm_wait(comm, 12345) == ZR_ERR_INVALID, "a ticket never given out");
    check(rank, zr_comm_exchange(comm, NULL, 4, one) == ZR_ERR_INVALID, "nothing to say");
    struct zr_transfer self = {.send = one, .send_bytes = 4, .to = rank->rank};
    struct zr_broadcast nobody = {.buffer = one, .bytes = 4, .root = rank->world};
    struct zr_reduce strange = {.source = one, .destination = one, .elements = 1, .type = ZR_COMM_TYPE_COUNT};
    struct zr_to_root nowhere = {.source = one, .shard_bytes = 4, .root = rank->rank};
    check(rank, zr_comm_send(comm, &self, NULL) == ZR_ERR_INVALID, "a send to itself");
    check(rank, zr_comm_receive(comm, NULL, NULL) == ZR_ERR_INVALID, "a receive of nothing known");
    check(rank, zr_comm_broadcast(comm, &nobody, NULL) == ZR_ERR_INVALID, "a root that is not there");
    check(rank, zr_comm_reduce(comm, &strange, NULL) == ZR_ERR_INVALID, "elements of no kind");
    check(rank, zr_comm_gather(comm, &nowhere, NULL) == ZR_ERR_INVALID, "a root without a destination");
    check(rank, zr_comm_scatter(comm, &nowhere, NULL) == ZR_ERR_INVALID, "a scatter to nowhere");
    check(rank, zr_comm_all_to_all(comm, &gather, NULL) == ZR_ERR_INVALID,
          "all-to-all without a destination");
    reduce.shard_elements = 0;
    check(rank, zr_comm_reduce_scatter(comm, &reduce, &ticket) == ZR_OK && ticket == 0, "an empty shard");
    check_ok(rank, zr_comm_wait(comm, 0));
    check_ok(rank, zr_comm_exchange(comm, NULL, 0, NULL));
    check_ok(rank, zr_comm_barrier(comm)); /* none of that has brought the ranks out of step */
    check_ok(rank, zr_comm_destroy(comm));
}

static size_t live_bytes(struct environment *rank)
{
    struct zr_arena_stats stats = {0};
    check_ok(rank, zr_arena_get_stats(rank->arena, &stats));
    return stats.live_bytes;
}

/* One rank fails while the communicator is made: all get an error, nothing leaks, and the next attempt works.
 */
static void body_faults(struct environment *rank)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE,   ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS,  ZR_FAULT_METADATA, ZR_FAULT_THREAD};
    unsigned failed = 0;
    size_t before_bytes = live_bytes(rank);
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++) {
        for (uint64_t nth = 1; nth < 50; nth++) {
            zr_comm *comm = NULL;
            struct zr_comm_options options = options_of(rank);
            bool mine = rank->rank == nth % rank->world;
            zr_arena_trim(rank->arena, 0, NULL); /* so that the ring needs new granules */
            zr_fault_set(sites[s], mine ? nth : 0);
            zr_result result = zr_comm_local_create(&comm, &options, rank->local, rank->rank);
            zr_fault_set(sites[s], 0);
            if (result == ZR_OK) {
                check_ok(rank, zr_comm_barrier(comm));
                check_ok(rank, zr_comm_destroy(comm));
                check(rank, live_bytes(rank) == before_bytes, "leak after a clean end");
                break;
            }
            failed++;
            check(rank, comm == NULL && zr_last_error()[0],
                  "a failure without words, or with a communicator");
            check(rank, mine == (result != ZR_ERR_PEER), "site %s: %s (%s)", zr_fault_site_name(sites[s]),
                  zr_result_name(result), zr_last_error());
            check(rank, live_bytes(rank) == before_bytes, "site %s, pass %llu: %zu bytes leaked",
                  zr_fault_site_name(sites[s]), (unsigned long long)nth, live_bytes(rank) - before_bytes);
        }
    }
    check(rank, failed > 2, "only %u failures were provoked", failed);
}

/* A ring of granules that do not follow one another travels as many segments, in several messages. */
static void body_scattered(struct environment *rank)
{
    enum { PIECES = 800 };
    void *pieces[PIECES];
    size_t granule_bytes = 4096, segments_count = 0, lead_bytes;
    for (unsigned i = 0; i < PIECES; i++)
        pieces[i] = take(rank, granule_bytes);
    for (unsigned i = 0; i < PIECES; i += 2) /* holes of one granule each, whose granules the ring will get */
        zr_arena_free(rank->arena, pieces[i]);
    rank->bucket_bytes = 100 * granule_bytes;
    void *probe = take(rank, 2 * rank->bucket_bytes);
    zr_block_export(rank->arena, probe, NULL, &segments_count, &lead_bytes);
    check(rank, segments_count > 50, "only %zu segments: the arena does not scatter", segments_count);
    zr_arena_free(rank->arena, probe);
    body_sums(rank);
    for (unsigned i = 1; i < PIECES; i += 2)
        zr_arena_free(rank->arena, pieces[i]);
}

static void test_failures(void)
{
    tap_is(launch(&(struct test_case){.body = body_out_of_step, .world = 3, .bucket_bytes = 128}), 0,
           "ranks out of step get an error with words");
    tap_is(launch(&(struct test_case){.body = body_invalid, .world = 2, .bucket_bytes = 128}), 0,
           "mistakes are refused and change nothing");
    tap_is(launch(&(struct test_case){.body = body_faults, .world = 3, .bucket_bytes = 200000}), 0,
           "every failing step of creation rolls back on all ranks");
    tap_is(launch(&(struct test_case){.body = body_silent, .world = 3, .bucket_bytes = 128}), 0,
           "a rank that stands still is named after the time that was set");
    tap_is(launch(&(struct test_case){.body = body_scattered, .world = 2, .granule_bytes = 4096}), 0,
           "a ring of scattered granules");
    tap_is(zr_local_launch(&(struct zr_launch_options){.world = 0, .rank_main = run_rank}), 2,
           "0 ranks are refused");
    tap_is(zr_local_launch(&(struct zr_launch_options){.world = 1000000, .rank_main = run_rank}), 2,
           "too many ranks are refused");
}

static void test_launch_faults(void)
{
    struct test_case test = {.body = body_small, .world = 4, .bucket_bytes = 128};
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE,   ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS,  ZR_FAULT_METADATA, ZR_FAULT_THREAD,
                                               ZR_FAULT_OPEN};
    unsigned failed = 0, wrong = 0;
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++)
        for (uint64_t nth = 1; nth < 8; nth++) {
            zr_fault_set(sites[s], nth);
            int code = launch(&test);
            bool struck = zr_fault_set(sites[s], 0) >= nth; /* else the launch has fewer such steps */
            failed += struck && code == 4;
            wrong += struck && code != 4;
        }
    tap_is(wrong, 0, "every failing step of a launch gives exit code 4");
    tap_ok(failed >= 6, "%u steps of a launch were made to fail", failed);
}

/* ---- Without peers ---------------------------------------------------------------------------------- */

static void test_null(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    struct zr_arena_stats stats;
    struct zr_comm_counters counters;
    zr_ticket ticket;
    size_t leaked_bytes = 1;
    uint16_t mine = 513, all[7];
    tap_result(zr_backend_host_create(&backend, NULL), ZR_OK, "a backend");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "an arena");
    struct zr_comm_options options = {
        .arena = arena, .host_arena = arena, .kernels = zr_kernels_null(), .bucket_bytes = 1000};
    tap_result(zr_comm_null_create(&comm, &options, 7, 7), ZR_ERR_INVALID, "rank 7 of 7 is refused");
    tap_result(zr_comm_null_create(&comm, &options, 2, 7), ZR_OK, "rank 2 of 7, in a plan");
    zr_arena_get_stats(arena, &stats);
    tap_ok(stats.live_by_tag_bytes[ZR_TAG_COMM] >= zr_comm_ring_bytes(7, 1000), "its ring is there");
    void *nowhere = (void *)(uintptr_t)0x1000;
    tap_result(zr_comm_reduce_scatter(comm,
                                      &(struct zr_reduce_scatter){
                                          .source = nowhere, .destination = nowhere, .shard_elements = 100},
                                      &ticket),
               ZR_OK, "made-up addresses are left alone: reduce-scatter");
    tap_result(zr_comm_all_gather(
                   comm,
                   &(struct zr_all_gather){.source = nowhere, .destination = nowhere, .shard_bytes = 40},
                   &ticket),
               ZR_OK, "all-gather");
    tap_result(
        zr_comm_all_reduce(comm, &(struct zr_all_reduce){.buffer = nowhere, .shard_elements = 1000}, &ticket),
        ZR_OK, "all-reduce");
    tap_result(zr_comm_wait(comm, ticket), ZR_OK, "the ticket is complete");
    tap_result(zr_comm_exchange(comm, &mine, sizeof(mine), all), ZR_OK, "exchange");
    tap_ok(all[0] == 513 && all[6] == 513, "every rank of a plan says the same");
    zr_comm_counters_get(comm, &counters);
    tap_is(counters.sent_elements, 6 * (100 + 10 + 2 * 1000), "it has counted what would be sent");
    tap_is(counters.operations_count, 3, "and the operations");
    tap_result(zr_comm_destroy(comm), ZR_OK, "its end");
    tap_is(zr_comm_ring_bytes(1, 1 << 20), 0, "one rank needs no ring");
    tap_is(zr_comm_ring_bytes(2, 1 << 20), 2 << 20, "two need two slots");
    tap_result(zr_arena_destroy(arena, &leaked_bytes), ZR_OK, "the arena's end");
    tap_is(leaked_bytes, 0, "nothing leaked");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend's end");
}

/* Every number of two bytes through a sum of one rank: the same again, but that NaN may be another NaN. */
static void test_formats(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    tap_result(zr_backend_host_create(&backend, NULL), ZR_OK, "a backend");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "an arena");
    struct zr_comm_options options = {
        .arena = arena, .host_arena = arena, .kernels = zr_kernels_cpu(zr_isa_best()), .bucket_bytes = 1000};
    tap_result(zr_comm_null_create(&comm, &options, 0, 1), ZR_OK, "a world of one");
    for (int type = ZR_COMM_BF16; type <= ZR_COMM_FP16; type++) {
        static uint16_t all[65536];
        unsigned wrong = 0, infinity = type == ZR_COMM_BF16 ? 0x7f80 : 0x7c00;
        for (unsigned i = 0; i < 65536; i++)
            all[i] = (uint16_t)i;
        struct zr_all_reduce op = {.buffer = all, .shard_elements = 65536, .scale = 1, .type = type};
        tap_result(zr_comm_all_reduce(comm, &op, NULL), ZR_OK, "a sum of all numbers of two bytes");
        for (unsigned i = 0; i < 65536; i++) {
            bool nan = (i & 0x7fff) > infinity, still = (all[i] & 0x7fffu) > infinity;
            wrong += nan ? !still : all[i] != i;
        }
        tap_is(wrong, 0, "%s: each is what it was", type == ZR_COMM_BF16 ? "bf16" : "fp16");
    }
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

int main(void)
{
    test_sums();
    test_operations();
    test_storm();
    test_small();
    test_failures();
    test_launch_faults();
    test_null();
    test_formats();
    return tap_done();
}
