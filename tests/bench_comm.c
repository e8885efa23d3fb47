/* bench_comm.c: how fast the local communicator moves data, and beside it what the MPI that is installed does
 * by itself (mpi_stock.c). No test: it prints medians, ratios and the machine.
 *
 * `bench_comm [ranks [megabytes [bucket-megabytes]]]`; 2 ranks, 32 MB and buckets of 1 to 16 MB by default.
 * Rates are the bytes of the whole operand (world * shard) over the time of the slowest rank, as MPI's
 * figures in the literature are. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/os.h"
#include "zero/comm/zr_comm.h"

enum { ROUNDS = 41, SMALL_ROUNDS = 2000 };

struct plan {
    unsigned world;
    size_t bytes, bucket_bytes;
};

enum { KINDS = 3 };
static const char *const names[KINDS] = {"reduce-scatter", "all-gather", "all-reduce"};

/* The best median of each kind over the sizes of bucket; rank 0 writes it where all processes see it. */
static double *best_seconds;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time of the slowest rank: an operation has ended when it has ended everywhere. */
static double slowest(zr_comm *comm, double seconds)
{
    double all[256], most = 0;
    zr_comm_exchange(comm, &seconds, sizeof(seconds), all);
    for (unsigned p = 0; p < zr_comm_world(comm); p++)
        most = all[p] > most ? all[p] : most;
    return most;
}

static zr_result run_once(zr_comm *comm, unsigned kind, float *source, float *destination, size_t shard)
{
    zr_ticket ticket = 0;
    zr_result result;
    if (kind == 0)
        result = zr_comm_reduce_scatter(
            comm,
            &(struct zr_reduce_scatter){
                .source = source, .destination = destination, .shard_elements = shard, .scale = 0.5f},
            &ticket);
    else if (kind == 1)
        result = zr_comm_all_gather(comm,
                                    &(struct zr_all_gather){.source = source + zr_comm_rank(comm) * shard,
                                                            .destination = source,
                                                            .shard_bytes = shard * sizeof(float)},
                                    &ticket);
    else
        result = zr_comm_all_reduce(
            comm, &(struct zr_all_reduce){.buffer = source, .shard_elements = shard, .scale = 0.5f}, &ticket);
    return result == ZR_OK ? zr_comm_wait(comm, ticket) : result;
}

static void measure_large(zr_comm *comm, float *source, float *destination, const struct plan *plan)
{
    size_t shard = plan->bytes / sizeof(float) / plan->world;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        double seconds[ROUNDS];
        for (unsigned i = 0; i < ROUNDS; i++) {
            zr_comm_barrier(comm);
            uint64_t start_ns = zr_os_now_ns();
            if (run_once(comm, kind, source, destination, shard) != ZR_OK)
                fprintf(stderr, "%s\n", zr_last_error());
            seconds[i] = slowest(comm, (double)(zr_os_now_ns() - start_ns) / 1e9);
        }
        qsort(seconds, ROUNDS, sizeof(*seconds), by_value);
        if (zr_comm_rank(comm) == 0 && (best_seconds[kind] == 0 || seconds[ROUNDS / 2] < best_seconds[kind]))
            best_seconds[kind] = seconds[ROUNDS / 2];
        if (zr_comm_rank(comm) == 0)
            printf("%-14s %8.1f MB, bucket %7.2f MB: %7.3f ms, %6.2f GB/s (best %.2f, worst %.2f)\n",
                   names[kind], (double)plan->bytes / 1e6, (double)plan->bucket_bytes / 1e6,
                   seconds[ROUNDS / 2] * 1e3, (double)plan->bytes / seconds[ROUNDS / 2] / 1e9,
                   (double)plan->bytes / seconds[0] / 1e9, (double)plan->bytes / seconds[ROUNDS - 1] / 1e9);
    }
}

static void measure_small(zr_comm *comm)
{
    static double seconds[SMALL_ROUNDS];
    uint64_t mine = 1, all[256];
    for (unsigned i = 0; i < SMALL_ROUNDS; i++) {
        uint64_t start_ns = zr_os_now_ns();
        zr_comm_exchange(comm, &mine, sizeof(mine), all);
        seconds[i] = (double)(zr_os_now_ns() - start_ns) / 1e9;
    }
    qsort(seconds, SMALL_ROUNDS, sizeof(*seconds), by_value);
    if (zr_comm_rank(comm) == 0)
        printf("exchange of %zu bytes: median %.1f us, 99 %% below %.1f us\n", sizeof(mine),
               seconds[SMALL_ROUNDS / 2] * 1e6, seconds[SMALL_ROUNDS * 99 / 100] * 1e6);
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    void *source, *destination;
    size_t room_bytes = plan->bytes + 64;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = room_bytes, .tag = ZR_TAG_GRAD}, &source) !=
            ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = room_bytes, .tag = ZR_TAG_GRAD}, &destination) !=
            ZR_OK)
        goto failed;
    memset(source, 0, room_bytes); /* touched before anything is timed */
    memset(destination, 0, room_bytes);
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes = plan->bucket_bytes};
    if (zr_comm_local_create(&comm, &options, local, rank) != ZR_OK)
        goto failed;
    measure_large(comm, source, destination, plan);
    measure_small(comm);
    fflush(stdout);
    zr_comm_destroy(comm);
    return 0;
failed:
    fprintf(stderr, "bench_comm: %s\n", zr_last_error());
    return 4;
}

/* Runs mpi_stock, which lies beside this program, under mpirun, and prints its figures beside ours. */
static void compare_with_mpi(const char *self, const struct plan *plan)
{
    const char *slash = strrchr(self, '/');
    char line[8192], name[32];
    double seconds;
    unsigned found = 0;
    snprintf(line, sizeof(line), "%.*s/mpi_stock", slash ? (int)(slash - self) : 1, slash ? self : ".");
    if (access(line, X_OK) != 0) {
        printf("no comparison with MPI: mpi_stock is not built (no mpicc)\n");
        return;
    }
    snprintf(line, sizeof(line),
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n %u --oversubscribe "
             "--bind-to none "
             "'%.*s/mpi_stock' %zu %d",
             plan->world, slash ? (int)(slash - self) : 1, slash ? self : ".", plan->bytes, ROUNDS);
    FILE *stock = popen(line, "r");
    while (stock && fgets(line, sizeof(line), stock))
        for (unsigned kind = 0; kind < KINDS && sscanf(line, "%31s %lf", name, &seconds) == 2; kind++)
            if (strcmp(name, names[kind]) == 0 && ++found && best_seconds[kind] > 0)
                printf("%-14s stock MPI: %7.3f ms, %6.2f GB/s; local at its best bucket %6.2f GB/s, %.1f "
                       "times as fast\n",
                       name, seconds * 1e3, (double)plan->bytes / seconds / 1e9,
                       (double)plan->bytes / best_seconds[kind] / 1e9, seconds / best_seconds[kind]);
    if (!stock || pclose(stock) != 0 || found != KINDS)
        printf("no comparison with MPI: mpirun failed\n");
}

int main(int argc, char **argv)
{
    struct zr_machine machine;
    struct plan plan = {.world = 2, .bytes = 32000000};
    size_t first_mb = 1, last_mb = 16;
    if (argc > 1)
        plan.world = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        plan.bytes = strtoul(argv[2], NULL, 10) * 1000000;
    if (argc > 3)
        first_mb = last_mb = strtoul(argv[3], NULL, 10);
    if (plan.world == 0 || plan.world > 256 || plan.bytes < 4 * plan.world || first_mb == 0) {
        fprintf(stderr, "usage: bench_comm [ranks [megabytes [bucket-megabytes]]]\n");
        return 2;
    }
    best_seconds =
        mmap(NULL, KINDS * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (best_seconds == MAP_FAILED)
        return 4;
    zr_os_machine(&machine);
    printf("%s, %u cores, %u ranks\n", machine.cpu_name, machine.cores_count, plan.world);
    for (size_t mb = first_mb; mb <= last_mb; mb *= 2) {
        plan.bucket_bytes = mb << 20;
        fflush(stdout);
        int code = zr_local_launch(
            &(struct zr_launch_options){.world = plan.world, .rank_main = run_rank, .argument = &plan});
        if (code != 0)
            return code;
    }
    fflush(stdout);
    compare_with_mpi(argv[0], &plan);
    return 0;
}
