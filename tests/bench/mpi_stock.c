/* mpi_stock.c: what the MPI that is here does by itself, for bench_comm to stand beside. Plain MPI: its own
 * collectives, its own sums, blocking. `mpirun -n N mpi_stock BYTES ROUNDS` prints one line each: what
 * for, the call, median seconds of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What gives each rank its shard of a sum, in all the ways that MPI has; the parts of one to all; the whole
 * sum. */
enum way { BLOCK, COUNTS, REDUCE_SCATTER, SUM_OF_ALL, GATHER, ALL_REDUCE, WAYS };
static const char *const names[WAYS][2] = {{"reduce-scatter", "MPI_Reduce_scatter_block"},
                                           {"reduce-scatter", "MPI_Reduce_scatter"},
                                           {"reduce-scatter", "MPI_Reduce+MPI_Scatter"},
                                           {"reduce-scatter", "MPI_Allreduce"},
                                           {"all-gather", "MPI_Allgather"},
                                           {"all-reduce", "MPI_Allreduce"}};

static void run(enum way way, float *source, float *destination, int shard, int rank, const int *counts)
{
    int world;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (way == BLOCK)
        MPI_Reduce_scatter_block(source, destination, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (way == COUNTS)
        MPI_Reduce_scatter(source, destination, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (way == GATHER)
        MPI_Allgather(source + (size_t)rank * (size_t)shard, shard, MPI_FLOAT, destination, shard, MPI_FLOAT,
                      MPI_COMM_WORLD);
    else if (way != REDUCE_SCATTER)
        MPI_Allreduce(source, destination, shard * world, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else {
        MPI_Reduce(source, destination, shard * world, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Scatter(destination, shard, MPI_FLOAT, rank == 0 ? MPI_IN_PLACE : (void *)destination, shard,
                    MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, world;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 32000000;
    int rounds = argc > 2 ? atoi(argv[2]) : 41, shard = (int)(bytes / sizeof(float) / (size_t)world);
    float *source = malloc(bytes), *destination = malloc(bytes);
    double *seconds = malloc((size_t)rounds * sizeof(double));
    int *counts = malloc((size_t)world * sizeof(int));
    if (!source || !destination || !seconds || !counts || rounds < 1)
        MPI_Abort(MPI_COMM_WORLD, 4);
    memset(source, 0, bytes); /* touched before anything is timed */
    memset(destination, 0, bytes);
    for (int p = 0; p < world; p++)
        counts[p] = shard;
    for (enum way way = 0; way < WAYS; way++) {
        for (int i = 0; i < rounds; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double mine = MPI_Wtime();
            run(way, source, destination, shard, rank, counts);
            mine = MPI_Wtime() - mine;
            MPI_Allreduce(&mine, &seconds[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        }
        qsort(seconds, (size_t)rounds, sizeof(*seconds), by_value);
        if (rank == 0)
            printf("%s %s %.9f\n", names[way][0], names[way][1], seconds[rounds / 2]);
    }
    free(counts);
    free(source);
    free(destination);
    free(seconds);
    MPI_Finalize();
    return 0;
}
