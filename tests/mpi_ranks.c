/* mpi_ranks.c: what tests/mpi.t and the benchmark run under mpirun: every operation over MPI against plain
 * sums, or transfers and gathers of more than 2 GiB. Prints nothing when all is well; the exit code tells.
 *
 * mpi_ranks operations BUCKET direct|ring|auto SEED
 * mpi_ranks large BYTES */
#define _GNU_SOURCE
#include <unistd.h>

#include "tests/comm_operations.h"
#include "zero/comm/start.h"

struct task {
    const char *what;
    size_t bytes;
    enum zr_comm_algorithm algorithm;
    uint64_t seed;
};

/* A pattern that shows where a byte came from, to the position. */
static unsigned char pattern(unsigned rank, size_t index)
{
    return (unsigned char)((index * 2654435761u >> 13) + rank * 97);
}

static unsigned large_gather(zr_comm *comm, size_t bytes)
{
    unsigned rank = zr_comm_rank(comm), world = zr_comm_world(comm), wrong = 0;
    unsigned char *all = malloc(bytes * world);
    zr_ticket ticket;
    if (!all)
        return 1;
    for (size_t i = 0; i < bytes; i++)
        all[rank * bytes + i] = pattern(rank, i);
    struct zr_all_gather op = {.source = all + rank * bytes, .destination = all, .shard_bytes = bytes};
    if (zr_comm_all_gather(comm, &op, &ticket) != ZR_OK || zr_comm_wait(comm, ticket) != ZR_OK) {
        fprintf(stderr, "# %s\n", zr_last_error());
        return 1;
    }
    for (unsigned p = 0; p < world; p++)
        for (size_t i = 0; i < bytes; i++)
            wrong += all[p * bytes + i] != pattern(p, i);
    free(all);
    if (wrong)
        fprintf(stderr, "# rank %u: %u bytes of a large gather are wrong\n", rank, wrong);
    return wrong > 0;
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct task *task = argument;
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    size_t leaked_bytes;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 4;
    bool large = strcmp(task->what, "large") == 0;
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes = large ? 1 << 20 : task->bytes,
                                      .algorithm = task->algorithm};
    if (zr_comm_create(&comm, &options, ZR_CARRIER_MPI, local, rank) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 1;
    }
    unsigned failures = large ? large_gather(comm, task->bytes)
                              : trial_operations(comm, &(struct trial_options){.seed = task->seed});
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, &leaked_bytes);
    zr_backend_destroy(backend);
    return failures > 0 || leaked_bytes > 0;
}

int main(int argc, char **argv)
{
    struct zr_start start;
    struct task task = {.what = argc > 1 ? argv[1] : ""};
    if (argc > 2)
        task.bytes = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        task.algorithm = strcmp(argv[3], "ring") == 0     ? ZR_COMM_RING
                         : strcmp(argv[3], "direct") == 0 ? ZR_COMM_DIRECT
                                                          : ZR_COMM_AUTO;
    if (argc > 4)
        task.seed = strtoull(argv[4], NULL, 10);
    if (task.bytes == 0 || zr_start_read(&start) != ZR_OK || start.kind != ZR_START_MPI) {
        fprintf(stderr,
                "usage: mpirun -n N mpi_ranks operations BUCKET direct|ring|auto SEED | large BYTES\n");
        return 2;
    }
    struct zr_launch_options options = {.world = start.world, .rank_main = run_rank, .argument = &task};
    return zr_start_launch(&(struct zr_start_run){
        .start = &start, .carrier = ZR_CARRIER_MPI, .options = &options, .argv = argv});
}
