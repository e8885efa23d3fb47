/* window_test.c: ranks that cannot look into each other's memory go through their rings, with the same bits.
 */
#define _GNU_SOURCE
#include <string.h>

#include "tests/support/zero/comm_ranks.h"

enum { ELEMENTS = 3 << 16 }; /* of a shard: several steps through a ring */

/* What rank `rank` has at element i. */
static float value(unsigned rank, size_t i)
{
    return (float)((i * 2654435761u + rank * 40503u) % 65536) / 256.0f - 100.0f;
}

static void fill(float *values, unsigned rank, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = value(rank, i);
}

/* A sum and a gather of whole buffers. */
static void move_and_check(struct environment *rank, zr_comm *comm)
{
    size_t all = (size_t)ELEMENTS * rank->world;
    float *source = take(rank, all * sizeof *source), *sums = take(rank, ELEMENTS * sizeof *sums),
          *gathered = take(rank, all * sizeof *gathered);
    zr_ticket ticket = 0;
    size_t wrong = 0;
    fill(source, rank->rank, all);
    check_ok(rank, zr_comm_reduce_scatter(comm,
                                          &(struct zr_reduce_scatter){.source = source,
                                                                      .destination = sums,
                                                                      .shard_elements = ELEMENTS,
                                                                      .scale = 1,
                                                                      .type = ZR_COMM_FP32},
                                          &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
    check_ok(rank, zr_comm_all_gather(comm,
                                      &(struct zr_all_gather){.source = sums,
                                                              .destination = gathered,
                                                              .shard_bytes = ELEMENTS * sizeof *sums},
                                      &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
    for (size_t i = 0; i < all; i++) {
        float want = 0;
        for (unsigned p = 0; p < rank->world; p++)
            want = p == 0 ? value(p, i) : want + value(p, i);
        wrong += memcmp(&want, &gathered[i], sizeof want) != 0;
    }
    check(rank, wrong == 0, "%zu of %zu sums are wrong", wrong, all);
    check_ok(rank, zr_comm_synchronize(comm));
    zr_arena_free(rank->arena, gathered);
    zr_arena_free(rank->arena, sums);
    zr_arena_free(rank->arena, source);
}

/* One rank is refused addresses, the first time it asks for some, the second and so on. Those for the peers'
 * rings must be had; those of windows are done without. */
static void body_without_windows(struct environment *rank)
{
    unsigned survived = 0, refused = 0;
    size_t before_bytes = live_bytes(rank);
    for (uint64_t nth = 1; nth < 32; nth++) {
        zr_comm *comm = NULL;
        struct zr_comm_options options = options_of(rank);
        zr_fault_set(ZR_FAULT_RESERVE, rank->rank == 1 ? nth : 0);
        zr_result result = zr_comm_local_create(&comm, &options, rank->local, rank->rank);
        if (result == ZR_OK)
            move_and_check(rank, comm);
        bool struck = zr_fault_set(ZR_FAULT_RESERVE, 0) >= nth;
        if (result == ZR_OK)
            check_ok(rank, zr_comm_destroy(comm));
        check(rank, live_bytes(rank) == before_bytes, "leak after attempt %llu", (unsigned long long)nth);
        survived += result == ZR_OK && struck && rank->rank == 1;
        refused += result != ZR_OK;
    }
    check(rank, rank->rank != 1 || survived == rank->world - 1, "%u of %u windows were done without",
          survived, rank->world - 1);
    check(rank, refused <= rank->world - 1, "%u attempts failed, more than there are rings", refused);
}

/* A gather from window to window. Every process has other bytes in the windows of its peers than they have,
 * so the result shows where they are read. */
static void body_own_windows(struct environment *rank)
{
    enum { BYTES = 3 << 20, LEAD = 64 };
    struct zr_comm_window windows[4];
    struct zr_comm_options options = options_of(rank);
    char *gathered = take(rank, (size_t)rank->world * BYTES);
    zr_comm *comm = NULL;
    zr_ticket ticket;
    size_t wrong = 0;
    for (unsigned p = 0; p < rank->world; p++) {
        char *base = take(rank, LEAD + BYTES);
        memset(base, (int)(16 * rank->rank + p), LEAD + BYTES);
        windows[p] = (struct zr_comm_window){base, LEAD + BYTES};
    }
    options.struct_bytes = sizeof options;
    options.windows = windows;
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    check_ok(rank, zr_comm_all_gather(comm,
                                      &(struct zr_all_gather){.source = windows[rank->rank].base + LEAD,
                                                              .destination = gathered,
                                                              .shard_bytes = BYTES},
                                      &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
    for (size_t i = 0; i < (size_t)rank->world * BYTES; i++)
        wrong += (unsigned char)gathered[i] != 16 * rank->rank + i / BYTES;
    check(rank, wrong == 0, "%zu bytes were not read in the windows", wrong);
    check_ok(rank, zr_comm_synchronize(comm));
    for (unsigned p = 0; p < rank->world; p++)
        zr_arena_free(rank->arena, (void *)(uintptr_t)windows[p].base);
    zr_arena_free(rank->arena, gathered);
    check_ok(rank, zr_comm_destroy(comm));
}

int main(void)
{
    for (unsigned world = 2; world <= 4; world++)
        tap_is(launch(&(struct test_case){
                   .body = body_without_windows, .world = world, .bucket_bytes = 64 << 10}),
               0, "%u ranks: one that gets no addresses for windows, and rings that do as well", world);
    tap_is(launch(&(struct test_case){.body = body_own_windows, .world = 3, .bucket_bytes = 64 << 10}), 0,
           "operands in windows are read there");
    return tap_done();
}
