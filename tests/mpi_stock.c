/* mpi_stock.c: what the MPI that is here does by itself, for bench_comm to stand beside. Plain MPI: its own
 * collectives, its own sums, blocking. `mpirun -n N mpi_stock BYTES ROUNDS` prints one line each: name,
 * median seconds of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(int kind, float *source, float *destination, int shard, int rank)
{
    int world;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (kind == 0)
        MPI_Reduce_scatter_block(source, destination, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (kind == 1)
        MPI_Allgather(source + (size_t)rank * (size_t)shard, shard, MPI_FLOAT, destination, shard, MPI_FLOAT,
                      MPI_COMM_WORLD);
    else
        MPI_Allreduce(source, destination, shard * world, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"reduce-scatter", "all-gather", "all-reduce"};
    int rank, world;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 32000000;
    int rounds = argc > 2 ? atoi(argv[2]) : 41, shard = (int)(bytes / sizeof(float) / (size_t)world);
    float *source = malloc(bytes), *destination = malloc(bytes);
    double *seconds = malloc((size_t)rounds * sizeof(double));
    if (!source || !destination || !seconds || rounds < 1)
        MPI_Abort(MPI_COMM_WORLD, 4);
    memset(source, 0, bytes); /* touched before anything is timed */
    memset(destination, 0, bytes);
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < rounds; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double mine = MPI_Wtime();
            run(kind, source, destination, shard, rank);
            mine = MPI_Wtime() - mine;
            MPI_Allreduce(&mine, &seconds[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        }
        qsort(seconds, (size_t)rounds, sizeof(*seconds), by_value);
        if (rank == 0)
            printf("%s %.9f\n", names[kind], seconds[rounds / 2]);
    }
    free(source);
    free(destination);
    free(seconds);
    MPI_Finalize();
    return 0;
}
