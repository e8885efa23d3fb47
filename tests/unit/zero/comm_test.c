/* comm_test.c: what communicators compute and count. Worlds of 1 to 8 ranks are forked; every result is
 * compared, bit for bit, with sums in rank order that each rank makes by itself. Without peers: the null one.
 */
#define _GNU_SOURCE
#include "tests/support/zero/comm_operations.h"
#include "tests/support/zero/comm_ranks.h"
#include "tests/support/seed.h"
#include "zero/comm/comm.h"
#include "zero/launch/control.h"

/* ---- Every operation ----------------------------------------------------------------------------------- */

static void body_operations(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    rank->failures +=
        trial_operations(comm, &(struct trial_options){.seed = rank->seed, .counts_direct = true});
    check_ok(rank, zr_comm_destroy(comm));
}

/* Buffers that the peers can map, so that nothing passes the ring but what is small or in place. */
static void body_mapped(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    struct trial_options options = {.seed = rank->seed, .arena = rank->arena, .counts_direct = true};
    options.large = rank->algorithm == ZR_COMM_AUTO ? 30011 : 0;
    rank->failures += trial_operations(comm, &options);
    check_ok(rank, zr_comm_destroy(comm));
}

/* One rank's buffers are its own: all go through the ring then. */
static void body_half_mapped(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    struct trial_options options = {.seed = rank->seed, .counts_direct = true};
    if (rank->rank != 1)
        options.arena = rank->arena;
    rank->failures += trial_operations(comm, &options);
    check_ok(rank, zr_comm_destroy(comm));
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
    body_operations(rank);
    for (unsigned i = 1; i < PIECES; i += 2)
        zr_arena_free(rank->arena, pieces[i]);
}

/* Shards one below, of and one beyond what a slot has for a peer, of one slot and of two; and host messages
 * about one piece. */
static void body_edges(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    struct trial t = {.comm = comm, .rank = rank->rank, .world = rank->world};
    size_t slot = zr_comm_slot_bytes(rank->world, rank->bucket_bytes);
    size_t each = slot / (rank->world - 1) / ZR_COMM_LINE_BYTES * ZR_COMM_LINE_BYTES;
    const size_t edges[] = {each, 2 * each, slot, 2 * slot, ZR_LOCAL_HOST_BYTES, 2 * ZR_LOCAL_HOST_BYTES};
    for (size_t i = 0; i < 3 * sizeof edges / sizeof *edges; i++) {
        size_t bytes = edges[i / 3] + i % 3 - 1, elements = edges[i / 3] / sizeof(float) + i % 3 - 1;
        char mine[2 * ZR_LOCAL_HOST_BYTES + 1], all[4 * sizeof mine];
        unsigned wrong = 0;
        trial_reduce_scatter(&t, ZR_COMM_FP32, elements, rank->seed + i);
        trial_all_reduce(&t, ZR_COMM_FP32, elements, rank->seed + i);
        trial_all_gather(&t, bytes, rank->seed + i);
        trial_broadcast(&t, bytes, rank->seed + i);
        trial_pass(&t, 0, 1, bytes, rank->seed + i);
        if (bytes > sizeof mine)
            continue;
        memset(mine, (int)(rank->rank + i), sizeof mine);
        check_ok(rank, zr_comm_host_all_gather(comm, mine, bytes, all));
        for (size_t at = 0; at < bytes * rank->world; at++)
            wrong += all[at] != (char)(at / bytes + i);
        check(rank, wrong == 0, "%u bytes of host messages of %zu are wrong", wrong, bytes);
    }
    rank->failures += t.failures;
    check_ok(rank, zr_comm_destroy(comm));
}

static void test_mapped(void)
{
    uint64_t seed = run_seed();
    for (unsigned world = 2; world <= 8; world += world < 4 ? 1 : 4)
        tap_is(launch(&(struct test_case){.body = body_mapped,
                                          .world = world,
                                          .bucket_bytes = 4096,
                                          .granule_bytes = world % 2 ? 4096 : 0,
                                          .algorithm = ZR_COMM_DIRECT,
                                          .seed = seed + world}),
               0, "%u ranks: every operation, from memory to memory", world);
    tap_is(
        launch(&(struct test_case){
            .body = body_mapped, .world = 3, .bucket_bytes = 4096, .algorithm = ZR_COMM_RING, .seed = seed}),
        0, "3 ranks: every operation, the ring whatever could be mapped");
    tap_is(launch(&(struct test_case){
               .body = body_mapped, .world = 3, .bucket_bytes = 65536, .granule_bytes = 4096, .seed = seed}),
           0, "3 ranks: small ones through the ring, large ones from memory to memory");
    for (unsigned world = 2; world <= 3; world++)
        tap_is(launch(&(struct test_case){.body = world == 2 ? body_operations : body_mapped,
                                          .world = world,
                                          .bucket_bytes = 4096,
                                          .algorithm = world == 2 ? ZR_COMM_RING : ZR_COMM_DIRECT,
                                          .threads = true,
                                          .seed = seed}),
               0, "%u threads: every operation", world);
    tap_is(launch(&(struct test_case){.body = body_half_mapped,
                                      .world = 3,
                                      .bucket_bytes = 4096,
                                      .algorithm = ZR_COMM_DIRECT,
                                      .seed = seed}),
           0, "3 ranks: one has memory that the others cannot map");
}

static void test_operations(void)
{
    static const unsigned worlds[] = {1, 2, 3, 4, 8};
    static const size_t buckets[] = {1, 300, 4096, 65536};
    uint64_t seed = run_seed();
    for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++)
        for (size_t b = w % 2; b < sizeof(buckets) / sizeof(*buckets); b += 2)
            tap_is(launch(&(struct test_case){.body = body_operations,
                                              .world = worlds[w],
                                              .bucket_bytes = buckets[b],
                                              .seed = seed + 1000 * w}),
                   0, "%u ranks, bucket of %zu bytes: every operation, in fp32, bf16 and fp16", worlds[w],
                   buckets[b]);
    for (unsigned world = 2; world <= 4; world++)
        tap_is(launch(&(struct test_case){.body = body_edges,
                                          .world = world,
                                          .bucket_bytes = 600,
                                          .seed = seed,
                                          .algorithm = ZR_COMM_RING}),
               0, "%u ranks: shards at the borders of slots", world);
    tap_is(
        launch(&(struct test_case){.body = body_scattered, .world = 2, .granule_bytes = 4096, .seed = seed}),
        0, "a ring of scattered granules");
}

/* ---- Counters ------------------------------------------------------------------------------------------ */

/* Elements, not bytes: S (N - 1) / N per phase, whatever they are. */
static void body_counters(struct environment *rank)
{
    enum { SHARD = 1000 };
    zr_comm *comm = open_comm(rank);
    struct zr_comm_counters counters;
    size_t whole_bytes = (size_t)SHARD * rank->world * sizeof(float);
    char *buffer = take(rank, whole_bytes);
    memset(buffer, 0, whole_bytes);
    for (int kind = 0; kind < ZR_COMM_TYPE_COUNT; kind++) {
        enum zr_comm_type type = (enum zr_comm_type)kind;
        size_t shard_bytes = SHARD * zr_comm_type_bytes(type);
        char *own = buffer + rank->rank * shard_bytes;
        zr_ticket ticket;
        check_ok(rank, zr_comm_reduce_scatter(
                           comm,
                           &(struct zr_reduce_scatter){
                               .source = buffer, .destination = own, .shard_elements = SHARD, .type = type},
                           NULL));
        check_ok(rank,
                 zr_comm_all_reduce(
                     comm, &(struct zr_all_reduce){.buffer = buffer, .shard_elements = SHARD, .type = type},
                     NULL));
        check_ok(rank, zr_comm_all_gather(comm,
                                          &(struct zr_all_gather){.source = own,
                                                                  .destination = buffer,
                                                                  .shard_bytes = shard_bytes,
                                                                  .type = type},
                                          &ticket));
        check_ok(rank, zr_comm_wait(comm, ticket));
    }
    zr_comm_counters_get(comm, &counters);
    uint64_t want = (uint64_t)ZR_COMM_TYPE_COUNT * 4 * SHARD * (rank->world - 1);
    check(rank, counters.sent_elements == want, "%llu elements sent, not %llu",
          (unsigned long long)counters.sent_elements, (unsigned long long)want);
    check(rank, counters.operations_count == 3 * ZR_COMM_TYPE_COUNT, "%llu operations",
          (unsigned long long)counters.operations_count);
    check(rank, counters.busy_ns > 0, "no time counted"); /* what a wait shows: comm_queue_test.c */
    check_ok(rank, zr_comm_destroy(comm));
    zr_arena_free(rank->arena, buffer);
}

static void test_counters(void)
{
    for (unsigned world = 1; world <= 4; world++)
        tap_is(launch(&(struct test_case){.body = body_counters, .world = world, .bucket_bytes = 1024}), 0,
               "%u ranks: elements, operations and time are counted", world);
}

/* ---- Without peers ------------------------------------------------------------------------------------- */

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
    tap_result(zr_comm_host_all_gather(comm, &mine, sizeof(mine), all), ZR_OK, "exchange");
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

/* The most and the least of a communicator, and beyond. Nothing is moved. */
static void test_limits(void)
{
    static const struct {
        unsigned world;
        size_t bucket_bytes, slot_bytes;
    } slots[] = {{1, 1, 64},   {2, 1, 64},    {2, 64, 64},   {2, 65, 128},
                 {3, 64, 128}, {3, 128, 128}, {3, 129, 192}, {256, 255 * 64, 255 * 64}};
    static const struct {
        size_t bucket_bytes;
        unsigned rank, world;
        zr_result result;
    } rows[] = {{0, 0, 7, ZR_ERR_INVALID},
                {1, 0, 7, ZR_OK},
                {1, 6, 7, ZR_OK},
                {1, 0, 0, ZR_ERR_INVALID},
                {1, 0, 1, ZR_OK},
                {1, 1, 1, ZR_ERR_INVALID},
                {PTRDIFF_MAX / 4 + 1, 0, 7, ZR_ERR_INVALID},
                {PTRDIFF_MAX / 4, 0, 1, ZR_OK}};
    const size_t most = PTRDIFF_MAX / 7;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    void *nowhere = (void *)(uintptr_t)0x1000;
    zr_backend_host_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    struct zr_comm_options options = {.arena = arena, .host_arena = arena, .kernels = zr_kernels_null()};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        tap_is(zr_comm_slot_bytes(slots[i].world, slots[i].bucket_bytes), slots[i].slot_bytes,
               "a slot of %zu bytes for %u ranks", slots[i].bucket_bytes, slots[i].world);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        options.bucket_bytes = rows[i].bucket_bytes;
        tap_result(zr_comm_null_create(&comm, &options, rows[i].rank, rows[i].world), rows[i].result,
                   "rank %u of %u, a bucket of %zu", rows[i].rank, rows[i].world, rows[i].bucket_bytes);
        zr_comm_destroy(comm);
    }
    options.bucket_bytes = 1;
    zr_comm_null_create(&comm, &options, 2, 7);
    for (size_t beyond = 0; beyond < 2; beyond++) {
        zr_result want = beyond ? ZR_ERR_INVALID : ZR_OK;
        struct zr_all_gather gather = {
            .source = nowhere, .destination = nowhere, .shard_bytes = most + beyond};
        struct zr_all_reduce reduce = {
            .buffer = nowhere, .shard_elements = most / 4 + beyond, .type = ZR_COMM_FP32};
        struct zr_all_reduce kind = {
            .buffer = nowhere, .shard_elements = 1, .type = ZR_COMM_TYPE_COUNT - 1 + beyond};
        struct zr_broadcast root = {.buffer = nowhere, .bytes = 1, .root = 6 + (unsigned)beyond};
        tap_ok(zr_comm_all_gather(comm, &gather, NULL) == want &&
                   zr_comm_all_reduce(comm, &reduce, NULL) == want &&
                   zr_comm_all_reduce(comm, &kind, NULL) == want &&
                   zr_comm_broadcast(comm, &root, NULL) == want,
               "the most bytes, elements, the last kind and rank: %s",
               beyond ? "one beyond is refused" : "taken");
    }
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
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
    test_operations();
    test_mapped();
    test_counters();
    test_null();
    test_limits();
    test_formats();
    return tap_done();
}
