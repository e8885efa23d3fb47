/* comm_life_test.c: how local communicators begin and end, and what ranks say to one another in between:
 * exchanges and barriers, one communicator after another, and an end that waits for slow readers. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>

#include "alloc/base/system/os.h"
#include "tests/support/zero/comm_ranks.h"
#include "zero/comm/mesh.h"
#include "zero/launch/control.h"
#include "alloc/base/error.h"
#include "tests/support/zero/comm_values.h"
#include "tests/support/folder.h"

/* ---- Small talk ---------------------------------------------------------------------------------------- */

static void body_small(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    uint8_t mine[301], *all = take(rank, sizeof(mine) * rank->world);
    struct zr_comm_counters counters;
    enum zr_request_kind kind = ZR_REQUEST_SAVE_AND_END;
    for (size_t bytes = 0; bytes <= sizeof(mine); bytes += 7) {
        memset(mine, (int)(rank->rank + bytes), sizeof(mine));
        memset(all, 0xee, sizeof(mine) * rank->world);
        check_ok(rank, zr_comm_host_all_gather(comm, mine, bytes, all));
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
    struct zr_arena_stats stats = {0};
    check_ok(rank, zr_arena_trim(rank->arena, 0, NULL));
    check_ok(rank, zr_arena_get_stats(rank->arena, &stats));
    check(rank, stats.reserved_bytes == 0, "%zu bytes of its ring cannot be trimmed", stats.reserved_bytes);
}

/* A barrier holds all until the last has come: no rank may be a whole round ahead. */
static void body_barrier(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    for (unsigned round = 0; round < 20; round++) {
        uint64_t before_ns = zr_os_now_ns(), after_ns, times[16][2];
        nap(trial_mix(rank->seed + 100 * round + rank->rank) & ~7ull);
        before_ns = zr_os_now_ns();
        check_ok(rank, zr_comm_barrier(comm));
        after_ns = zr_os_now_ns();
        check_ok(rank,
                 zr_comm_host_all_gather(comm, (uint64_t[]){before_ns, after_ns}, sizeof(times[0]), times));
        for (unsigned p = 0; p < rank->world; p++)
            check(rank, times[p][0] <= after_ns, "passed before rank %u had come", p);
    }
    check_ok(rank, zr_comm_destroy(comm));
}

/* What all find alike is said by the first to find it. Who is to be quiet about it is held until it has been
 * said: his end in failure might be the other's. */
static _Atomic bool *uttered;

static void body_words(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    if (rank->rank == 0)
        check(rank, zr_local_first_message(rank->local, "it is broken"), "the first one is not to say it");
    check_ok(rank, zr_comm_barrier(comm));
    if (rank->rank == 0) {
        usleep(100000);
        atomic_store(uttered, true);
        zr_local_message_logged(rank->local);
    } else {
        check(rank, zr_local_first_message(rank->local, "it is late"), "other words are not said");
        check(rank, !zr_local_first_message(rank->local, "it is broken"), "said twice");
        check(rank, atomic_load(uttered), "nothing has been said yet");
    }
    check_ok(rank, zr_comm_destroy(comm));
}

/* ---- One after another --------------------------------------------------------------------------------- */

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

/* The last of many ranks has failed: all hear its words, which go from rank to rank in pieces. */
static void body_failed(struct environment *rank)
{
    char words[440], all[480];
    zr_comm *comm = open_comm(rank);
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = (char)('a' + i % 26);
    words[sizeof words - 1] = '\0';
    snprintf(all, sizeof all, "rank %u: %s", rank->world - 1, words);
    zr_result mine = rank->rank + 1 == rank->world ? zr_fail(ZR_ERR_IO, "%s", words) : ZR_OK;
    check(rank, zr_comm_all_status(comm, mine) == ZR_ERR_IO && strcmp(zr_last_error(), all) == 0, "%s",
          zr_last_error());
    check_ok(rank, zr_comm_destroy(comm));
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
    unsigned maps_count = count_mappings();
    int fds_count = open_descriptors();
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
    check(rank, fds_count > 0 && open_descriptors() == fds_count, "file descriptors leaked");
    zr_comm *comm = open_comm(rank), *second;
    struct zr_comm_options options = options_of(rank);
    check(rank, zr_comm_local_create(&second, &options, rank->local, rank->rank) == ZR_ERR_INVALID && !second,
          "a second communicator at the same time");
    check_ok(rank, zr_comm_destroy(comm));
}

/* Its ring is as a communicator that failed has left it: with two messages that nobody has taken. */
static void body_left(struct environment *rank)
{
    struct zr_comm_options options = options_of(rank);
    unsigned other = 1 - rank->rank, *numbers = take(rank, 2 * sizeof *numbers);
    struct zr_transfer swap = {.send = &numbers[0],
                               .send_bytes = sizeof *numbers,
                               .to = other,
                               .from = other,
                               .receive = &numbers[1],
                               .receive_bytes = sizeof *numbers};
    zr_comm *comm = NULL;
    options.timeout_ns = UINT64_C(30000000000);
    atomic_store(&rank->local->ranks[rank->rank].rings[0].lent, 2);
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    for (unsigned round = 0; round < 3; round++) {
        numbers[0] = 10 * round + rank->rank;
        check_ok(rank, zr_comm_send_receive(comm, &swap, NULL));
        check_ok(rank, zr_comm_synchronize(comm));
        check(rank, numbers[1] == 10 * round + other, "round %u: %u", round, numbers[1]);
    }
    check_ok(rank, zr_comm_destroy(comm));
    zr_arena_free(rank->arena, numbers);
}

int main(void)
{
    uttered = mmap(NULL, sizeof(*uttered), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (uttered == MAP_FAILED)
        return tap_done();
    for (unsigned world = 1; world <= 8; world *= 2)
        tap_is(launch(&(struct test_case){.body = body_small, .world = world, .bucket_bytes = 128}), 0,
               "%u ranks: exchange, barrier, request", world);
    tap_is(launch(&(struct test_case){.body = body_barrier, .world = 4, .bucket_bytes = 128}), 0,
           "a barrier holds all ranks until the last has come");
    tap_is(launch(&(struct test_case){.body = body_again, .world = 3, .bucket_bytes = 128}), 0,
           "one communicator after another, and never two");
    tap_is(launch(&(struct test_case){.body = body_left, .world = 2, .bucket_bytes = 128}), 0,
           "a ring with messages in it serves the next communicator");
    tap_is(launch(&(struct test_case){.body = body_early, .world = 8, .bucket_bytes = 1 << 16}), 0,
           "a rank that is done early leaves its ring until all have read it");
    tap_is(launch(&(struct test_case){.body = body_words, .world = 3, .bucket_bytes = 128}), 0,
           "what all find alike is said once, before anybody who finds it goes on");
    uint64_t start_ns = zr_os_now_ns();
    tap_is(launch(&(struct test_case){.body = body_small, .world = 64, .bucket_bytes = 4096}), 0,
           "64 ranks share their rings and talk");
    tap_is(launch(&(struct test_case){.body = body_failed, .world = 40, .bucket_bytes = 4096}), 0,
           "the last of 40 fails: all say so, in its words");
    tap_note("64 ranks took %.0f ms", (double)(zr_os_now_ns() - start_ns) / 1e6);
    return tap_done();
}
