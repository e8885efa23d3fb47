/* comm_group_test.c: groups of the ranks of a local communicator: of a mesh, all at work at the same time;
 * made in vain, one after the other, of each other; with a rank that dies. And those of a plan. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "alloc/base/system/os.h"
#include "tests/support/folder.h"
#include "tests/support/zero/comm_groups.h"
#include "tests/support/zero/comm_ranks.h"
#include "tests/support/seed.h"
#include "zero/launch/control.h"

static struct board {
    _Atomic unsigned named, arrived;
} * board;

static void body_mesh(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    rank->failures += mesh_operations(comm, rank->seed, false);
    check_ok(rank, zr_comm_destroy(comm));
}

/* A gather that a rank does not come to holds up no host message, of the group or of all. */
static void body_host(struct environment *rank)
{
    zr_comm *comm = open_comm(rank), *pair = NULL;
    unsigned ranks[2] = {rank->rank / 2 * 2, rank->rank / 2 * 2 + 1};
    char mine = (char)rank->rank, all[2];
    zr_ticket ticket = 0;
    struct zr_all_gather op = {.source = &mine, .destination = all, .shard_bytes = 1};
    check_ok(rank, zr_comm_group(&pair, comm, ranks, 2, 0));
    if (rank->rank % 2 == 0)
        check_ok(rank, zr_comm_all_gather(pair, &op, &ticket));
    check_ok(rank, zr_comm_barrier(pair));
    check_ok(rank, zr_comm_barrier(comm));
    if (rank->rank % 2 == 1)
        check_ok(rank, zr_comm_all_gather(pair, &op, &ticket));
    check_ok(rank, zr_comm_wait(pair, ticket));
    check(rank, all[0] == (char)ranks[0] && all[1] == (char)ranks[1], "gathered %d and %d", all[0], all[1]);
    check_ok(rank, zr_comm_destroy(comm)); /* the group outlasts its parent */
    check_ok(rank, zr_comm_barrier(pair));
    check_ok(rank, zr_comm_destroy(pair));
}

static void refuse(struct environment *rank, zr_comm *comm, const unsigned *ranks, unsigned count)
{
    zr_comm *group = comm;
    check(rank, zr_comm_group(&group, comm, ranks, count, 0) == ZR_ERR_INVALID && !group, "a group of %u",
          count);
}

/* Many, one after the other and at once, of a group too; and those that cannot be. */
static void body_many(struct environment *rank)
{
    enum { ROOM = ZR_LOCAL_RINGS };
    zr_comm *comm = open_comm(rank), *groups[ROOM] = {NULL};
    unsigned last = rank->world - 1, alone[1] = {rank->rank}, ranks[1] = {last};
    size_t before_bytes = live_bytes(rank);
    alarm(30); /* else the ranks wait for one that does not come */
    refuse(rank, comm, ranks, 0);
    refuse(rank, comm, (unsigned[]){rank->rank, rank->world}, 2);
    refuse(rank, comm, (unsigned[]){rank->rank, rank->rank}, 2);
    refuse(rank, comm, (unsigned[]){0, 1, 1}, 3);
    alarm(0);
    refuse(rank, comm, (unsigned[]){(rank->rank + 1) % rank->world}, 1);
    check(rank, zr_comm_group(&groups[0], comm, NULL, 1, 0) == ZR_ERR_INVALID, "no ranks");
    for (unsigned turn = 0; turn < 3; turn++) {
        for (unsigned i = 1; i < ROOM; i++) { /* the whole, backwards: the group's rank 0 is the last */
            unsigned back[16], own = last - rank->rank, all[16];
            for (unsigned p = 0; p < rank->world; p++)
                back[p] = last - p;
            check_ok(rank, zr_comm_group(&groups[i], i == 1 ? comm : groups[i - 1], back, rank->world, 0));
            if (i % 2 == 0)
                own = rank->rank;
            check(rank, zr_comm_rank(groups[i]) == own, "rank %u, not %u", zr_comm_rank(groups[i]), own);
            check_ok(rank, zr_comm_host_all_gather(groups[i], &own, sizeof(own), all));
            check(rank, all[last] == last, "%u at the end", all[last]);
        }
        refuse(rank, comm, (unsigned[]){0, 1, 2}, 3); /* there is room for no more */
        check_ok(rank, zr_comm_group(&groups[0], comm, alone, 1, 0));
        check(rank, zr_comm_world(groups[0]) == 1 && zr_comm_rank(groups[0]) == 0, "of one");
        for (unsigned i = 0; i < ROOM; i++)
            check_ok(rank, zr_comm_destroy(groups[turn % 2 ? i : ROOM - 1 - i]));
        check(rank, live_bytes(rank) == before_bytes, "%zu bytes more", live_bytes(rank) - before_bytes);
    }
    check_ok(rank, zr_comm_destroy(comm));
}

/* One member fails while a group is made: all get an error, nothing leaks, and the next attempt works. */
static void body_faults(struct environment *rank)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE,   ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS,  ZR_FAULT_METADATA, ZR_FAULT_THREAD};
    int inherited = inherited_descriptors();
    zr_comm *comm = open_comm(rank);
    int files = open_descriptors();
    unsigned ranks[2] = {rank->rank % 2, rank->rank % 2 + 2}, failed = 0;
    size_t before_bytes = live_bytes(rank);
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++)
        for (uint64_t nth = 1; nth < 50; nth++) {
            zr_comm *group = NULL;
            bool mine = rank->rank / 2 == nth % 2;
            zr_arena_trim(rank->arena, 0, NULL);
            zr_fault_set(sites[s], mine ? nth : 0);
            zr_result result = zr_comm_group(&group, comm, ranks, 2, 0);
            zr_fault_set(sites[s], 0);
            if (result == ZR_OK) {
                check_ok(rank, zr_comm_barrier(group));
                check(rank, inherited_descriptors() == inherited, "a program would inherit some");
                check_ok(rank, zr_comm_destroy(group));
            }
            check(rank, open_descriptors() == files, "%d descriptors more", open_descriptors() - files);
            if (result == ZR_OK)
                break;
            failed++;
            check(rank, !group && zr_last_error()[0], "a failure without words, or with a group");
            check(rank, mine == (result != ZR_ERR_PEER), "site %s: %s (%s)", zr_fault_site_name(sites[s]),
                  zr_result_name(result), zr_last_error());
            check(rank, live_bytes(rank) == before_bytes, "site %s: %zu bytes leaked",
                  zr_fault_site_name(sites[s]), live_bytes(rank) - before_bytes);
        }
    check(rank, failed > 2, "only %u failures were provoked", failed);
    check_ok(rank, zr_comm_destroy(comm));
}

/* Rank 3 dies. Ranks 1 and 2 wait for it in groups of theirs, rank 0 in its own for rank 1. */
static void body_dead(struct environment *rank)
{
    zr_comm *comm = open_comm(rank), *row = NULL, *column = NULL;
    check_ok(rank, zr_comm_group(&row, comm, (unsigned[]){rank->rank / 2 * 2, rank->rank / 2 * 2 + 1}, 2, 0));
    check_ok(rank, zr_comm_group(&column, comm, (unsigned[]){rank->rank % 2, rank->rank % 2 + 2}, 2, 0));
    atomic_fetch_add(&board->arrived, 1);
    while (atomic_load(&board->arrived) < rank->world)
        usleep(1000);
    if (rank->rank == 3)
        raise(SIGKILL);
    float sums[4] = {0};
    struct zr_all_reduce op = {.buffer = sums, .shard_elements = 2, .scale = 1};
    zr_ticket ticket;
    zr_comm *group = rank->rank == 1 ? column : row;
    zr_result result = zr_comm_all_reduce(group, &op, &ticket);
    if (result == ZR_OK)
        result = zr_comm_wait(group, ticket);
    bool named = result == ZR_ERR_PEER && strstr(zr_last_error(), "rank 3 ");
    check(rank, named, "%s: %s", zr_result_name(result), zr_last_error());
    result = zr_comm_barrier(group);
    named &= result == ZR_ERR_PEER && strstr(zr_last_error(), "rank 3 ");
    check(rank, named, "host message: %s: %s", zr_result_name(result), zr_last_error());
    atomic_fetch_add(&board->named, named);
    zr_comm_destroy(row);
    zr_comm_destroy(column);
    zr_comm_destroy(comm);
}

/* No wait by this clock times out, however late a rank may be. */
static uint64_t no_time(void)
{
    return 1;
}

/* A rank that stands still: by the timeout of the group, which is its parent's. Time passes for the rank
 * alone that waits for it. */
static void body_silent(struct environment *rank)
{
    zr_comm *comm = NULL, *row = NULL;
    struct zr_comm_options options = options_of(rank);
    options.timeout_ns = 500000000;
    zr_os_clock_set(no_time);
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    if (rank->rank == 3) {
        for (unsigned ms = 0; ms < 120000 && atomic_load(&board->named) < 1; ms++)
            usleep(1000);
    } else {
        if (rank->rank == 2)
            zr_os_clock_set(NULL);
        zr_result result =
            zr_comm_group(&row, comm, (unsigned[]){rank->rank / 2 * 2, rank->rank / 2 * 2 + 1}, 2, 0);
        zr_result want = rank->rank == 2 ? ZR_ERR_TIMEOUT : ZR_OK;
        check(rank, result == want, "%s: %s", zr_result_name(result), zr_last_error());
        check(rank, want == ZR_OK || strstr(zr_last_error(), "rank 3 "), "words: %s", zr_last_error());
        if (rank->rank == 2)
            atomic_fetch_add(&board->named, 1);
    }
    zr_comm_destroy(row);
    zr_comm_destroy(comm);
}

/* A plan's groups count what would be sent, and take the memory of their rings. */
static void test_plan(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL, *group = NULL;
    struct zr_comm_counters counters;
    struct zr_arena_stats stats;
    unsigned ranks[300];
    size_t leaked_bytes = 1;
    zr_backend_host_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    struct zr_comm_options options = {
        .arena = arena, .host_arena = arena, .kernels = zr_kernels_null(), .bucket_bytes = 1 << 16};
    for (unsigned p = 0; p < 300; p++)
        ranks[p] = 3 * p;
    tap_result(zr_comm_null_create(&comm, &options, 30, 1000), ZR_OK, "rank 30 of 1000, in a plan");
    tap_result(zr_comm_group(&group, comm, ranks, 300, 0), ZR_OK, "its group of 300");
    tap_ok(group && zr_comm_rank(group) == 10 && zr_comm_world(group) == 300, "it is rank 10 of them");
    void *nowhere = (void *)(uintptr_t)0x1000;
    tap_result(
        zr_comm_all_reduce(group, &(struct zr_all_reduce){.buffer = nowhere, .shard_elements = 100}, NULL),
        ZR_OK, "a sum of made-up addresses");
    zr_comm_counters_get(group, &counters);
    tap_is(counters.sent_elements, 2 * 299 * 100, "counted with the group");
    zr_comm_counters_get(comm, &counters);
    tap_is(counters.sent_elements, 0, "and not with all");
    zr_arena_get_stats(arena, &stats);
    tap_ok(stats.live_by_tag_bytes[ZR_TAG_COMM] >=
               zr_comm_ring_bytes(1000, 1 << 16) + zr_comm_ring_bytes(300, 1 << 16),
           "both rings are there");
    zr_comm_destroy(comm);
    tap_result(zr_comm_destroy(group), ZR_OK, "its end, after its parent's");
    zr_arena_destroy(arena, &leaked_bytes);
    tap_is(leaked_bytes, 0, "nothing leaked");
    zr_backend_destroy(backend);
}

int main(void)
{
    uint64_t seed = run_seed();
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return tap_done();
    for (unsigned world = 4; world <= 6; world += 2)
        for (enum zr_comm_algorithm algorithm = ZR_COMM_AUTO; algorithm <= ZR_COMM_RING; algorithm++)
            tap_is(launch(&(struct test_case){.body = body_mesh,
                                              .world = world,
                                              .bucket_bytes = 1000,
                                              .algorithm = algorithm,
                                              .seed = seed + world}),
                   0, "%u ranks as %u x 2: groups at work at the same time, %s", world, world / 2,
                   algorithm == ZR_COMM_AUTO     ? "by size"
                   : algorithm == ZR_COMM_DIRECT ? "directly"
                                                 : "through rings");
    tap_is(launch(&(struct test_case){.body = body_host, .world = 4, .bucket_bytes = 128}), 0,
           "host messages wait for no operation");
    tap_is(launch(&(struct test_case){.body = body_many, .world = 3, .bucket_bytes = 128}), 0,
           "many groups, and those that cannot be");
    tap_is(launch(&(struct test_case){.body = body_faults, .world = 4, .bucket_bytes = 128}), 0,
           "a member that fails while a group is made");
    tap_is(launch(&(struct test_case){.body = body_dead, .world = 4, .bucket_bytes = 128}), 128 + SIGKILL,
           "a rank of one group dies");
    tap_is(board->named, 3, "and the ranks of all groups name it");
    board->named = 0;
    tap_is(launch(&(struct test_case){.body = body_silent, .world = 4, .bucket_bytes = 128}), 0,
           "a member that does not come to its group is named");
    test_plan();
    return tap_done();
}
