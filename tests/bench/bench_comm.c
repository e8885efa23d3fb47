/* bench_comm.c: how fast the local communicator and the one over TCP move data; beside it the least that
 * could be done for the same end, and what the MPI that is installed does by itself (mpi_stock.c). No test:
 * it prints medians, ratios and the machine.
 *
 * `bench_comm [ranks [megabytes [bucket-megabytes]]]`; 2 ranks, 32 MB and buckets of 1 to 16 MB by default.
 * Rates are the bytes of the whole operand (world * shard) over the time of the slowest rank, as MPI's
 * figures in the literature are. The bound is the time in which all ranks at once do the arithmetic and the
 * copies alone, from memory of their own and without meeting: each reads what it needs once and writes what
 * it gets once. Everything is measured in turns, so that a machine's mood falls on all alike. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "zero/comm/zr_comm.h"

enum { ROUNDS = 21, SMALL_ROUNDS = 2000, MPI_TURNS = 5, MPI_ROUNDS = 9, MAX_RANKS = 256 };

struct plan {
    unsigned world;
    size_t bytes, bucket_bytes;
    enum zr_comm_algorithm algorithm;
    bool quiet; /* for the turns with MPI */
    enum zr_comm_carrier carrier;
};

enum { KINDS = 3 };
static const char *const names[KINDS] = {"reduce-scatter", "all-gather", "all-reduce"};

/* The last medians of each kind; rank 0 writes them where all processes see them. */
static double *median_seconds;

/* What a rank works on. */
struct operands {
    zr_comm *comm;
    const struct zr_kernels *kernels;
    float *source, *destination;
    size_t shard;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return values[count / 2];
}

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static zr_result run_once(const struct operands *o, unsigned kind)
{
    zr_ticket ticket = 0;
    zr_result result;
    if (kind == 0)
        result = zr_comm_reduce_scatter(o->comm,
                                        &(struct zr_reduce_scatter){.source = o->source,
                                                                    .destination = o->destination,
                                                                    .shard_elements = o->shard,
                                                                    .scale = 0.5f},
                                        &ticket);
    else if (kind == 1)
        result =
            zr_comm_all_gather(o->comm,
                               &(struct zr_all_gather){.source = o->source + zr_comm_rank(o->comm) * o->shard,
                                                       .destination = o->source,
                                                       .shard_bytes = o->shard * sizeof(float)},
                               &ticket);
    else
        result = zr_comm_all_reduce(
            o->comm, &(struct zr_all_reduce){.buffer = o->source, .shard_elements = o->shard, .scale = 0.5f},
            &ticket);
    return result == ZR_OK ? zr_comm_wait(o->comm, ticket) : result;
}

/* The same work on this rank's own memory alone. */
static zr_result run_alone(const struct operands *o, unsigned kind)
{
    const void *from[MAX_RANKS];
    unsigned world = zr_comm_world(o->comm), rank = zr_comm_rank(o->comm);
    for (unsigned p = 0; p < world; p++)
        from[p] = o->source + p * o->shard;
    if (kind != 1)
        o->kernels->sum(
            NULL, &(struct zr_sum){.n = o->shard,
                                   .from = from,
                                   .count = world,
                                   .scale = 0.5f,
                                   .to = {kind == 0 ? o->destination : o->source + rank * o->shard, 0}});
    for (unsigned p = 0; p < world && kind != 0; p++)
        if (p != rank)
            memcpy(o->source + p * o->shard, o->destination + p * o->shard, o->shard * sizeof(float));
    return ZR_OK;
}

struct times {
    double wall[ROUNDS], processor[ROUNDS];
};

/* One round, of the slowest rank: an operation has ended when it has ended everywhere. */
static void measure(const struct operands *o, zr_result (*run)(const struct operands *, unsigned),
                    unsigned kind, struct times *times, unsigned round)
{
    double all[MAX_RANKS][2], mine[2];
    zr_comm_barrier(o->comm);
    uint64_t start_ns = zr_os_now_ns();
    double start = processor_seconds();
    if (run(o, kind) != ZR_OK)
        fprintf(stderr, "%s\n", zr_last_error());
    mine[0] = (double)(zr_os_now_ns() - start_ns) / 1e9;
    mine[1] = processor_seconds() - start;
    zr_comm_host_all_gather(o->comm, mine, sizeof(mine), all);
    times->wall[round] = times->processor[round] = 0;
    for (unsigned p = 0; p < zr_comm_world(o->comm); p++) {
        times->wall[round] = all[p][0] > times->wall[round] ? all[p][0] : times->wall[round];
        times->processor[round] = all[p][1] > times->processor[round] ? all[p][1] : times->processor[round];
    }
}

static void measure_large(const struct operands *o, const struct plan *plan)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct times ours, alone;
        for (unsigned i = 0; i < ROUNDS; i++) {
            measure(o, run_once, kind, &ours, i);
            measure(o, run_alone, kind, &alone, i);
        }
        if (zr_comm_rank(o->comm) != 0)
            continue;
        double wall = median(ours.wall, ROUNDS), processor = median(ours.processor, ROUNDS);
        double wall_bound = median(alone.wall, ROUNDS), processor_bound = median(alone.processor, ROUNDS);
        median_seconds[kind] = wall;
        if (!plan->quiet)
            printf(
                "  %-14s %8.3f ms, %6.2f GB/s, %3.0f %% of the bound; processor %7.3f ms a rank, %3.0f %%\n",
                names[kind], wall * 1e3, (double)plan->bytes / wall / 1e9, 100 * wall_bound / wall,
                processor * 1e3, 100 * processor_bound / processor);
    }
}

static void measure_small(zr_comm *comm)
{
    static double seconds[SMALL_ROUNDS];
    uint64_t mine = 1, all[MAX_RANKS];
    for (unsigned i = 0; i < SMALL_ROUNDS; i++) {
        uint64_t start_ns = zr_os_now_ns();
        zr_comm_host_all_gather(comm, &mine, sizeof(mine), all);
        seconds[i] = (double)(zr_os_now_ns() - start_ns) / 1e9;
    }
    qsort(seconds, SMALL_ROUNDS, sizeof(*seconds), by_value);
    if (zr_comm_rank(comm) == 0)
        printf("  exchange of %zu bytes: median %.1f us, 99 %% below %.1f us\n", sizeof(mine),
               seconds[SMALL_ROUNDS / 2] * 1e6, seconds[SMALL_ROUNDS * 99 / 100] * 1e6);
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    zr_backend *backend;
    zr_arena *arena;
    void *source, *destination;
    size_t room_bytes = plan->bytes + 64;
    struct operands o = {.kernels = zr_kernels_cpu(zr_isa_best()),
                         .shard = plan->bytes / sizeof(float) / plan->world};
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = room_bytes, .tag = ZR_TAG_GRAD}, &source) !=
            ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = room_bytes, .tag = ZR_TAG_GRAD}, &destination) !=
            ZR_OK)
        goto failed;
    o.source = memset(source, 0, room_bytes); /* touched before anything is timed */
    o.destination = memset(destination, 0, room_bytes);
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = o.kernels,
                                      .bucket_bytes = plan->bucket_bytes,
                                      .algorithm = plan->algorithm};
    if (zr_comm_create(&o.comm, &options, local, rank) != ZR_OK)
        goto failed;
    for (unsigned kind = 0; kind < KINDS; kind++) /* mapped before, too */
        run_once(&o, kind);
    measure_large(&o, plan);
    if (!plan->quiet)
        measure_small(o.comm);
    fflush(stdout);
    zr_comm_destroy(o.comm);
    return 0;
failed:
    fprintf(stderr, "bench_comm: %s\n", zr_last_error());
    return 4;
}

static int launch(struct plan *plan)
{
    fflush(stdout);
    char name[] = "bench_comm", *argv[] = {name, NULL};
    return zr_launch(
        &(struct zr_launch_options){.world = plan->world, .rank_main = run_rank, .argument = plan},
        plan->carrier, argv);
}

/* MPI has several ways to one end: the kinds of ours that each stands beside, as mpi_stock prints them. */
enum { WAYS_MAX = 16 };
struct way {
    unsigned kind;
    char call[64];
    double seconds[MPI_TURNS], ratios[MPI_TURNS];
};

static unsigned kind_of(const char *name)
{
    unsigned kind = 0;
    while (kind < KINDS && strcmp(name, names[kind]) != 0)
        kind++;
    return kind;
}

/* A turn of mpi_stock, which lies beside this program, under mpirun: the medians of each way. How many there
 * are; 0: it failed. */
static unsigned run_mpi(const char *self, const struct plan *plan, struct way *ways, unsigned turn)
{
    const char *slash = strrchr(self, '/');
    char line[8192], name[32], call[64];
    double value;
    unsigned found = 0;
    snprintf(line, sizeof(line),
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n %u --oversubscribe "
             "--bind-to none '%.*s/mpi_stock' %zu %d",
             plan->world, slash ? (int)(slash - self) : 1, slash ? self : ".", plan->bytes, MPI_ROUNDS);
    FILE *stock = popen(line, "r");
    while (stock && found < WAYS_MAX && fgets(line, sizeof(line), stock))
        if (sscanf(line, "%31s %63s %lf", name, call, &value) == 3 && kind_of(name) < KINDS) {
            struct way *way = &ways[found++];
            way->kind = kind_of(name);
            memcpy(way->call, call, sizeof call);
            way->seconds[turn] = value;
            way->ratios[turn] = value / median_seconds[way->kind];
        }
    return stock && pclose(stock) == 0 ? found : 0;
}

static void print_way(const struct plan *plan, const struct way *way, const char *name, double seconds)
{
    double ratios[MPI_TURNS];
    memcpy(ratios, way->ratios, sizeof ratios);
    double middle = median(ratios, MPI_TURNS);
    printf("  %-14s %-26s %8.3f ms, %6.2f GB/s: %.1f times (%.1f to %.1f)\n", name, way->call, seconds * 1e3,
           (double)plan->bytes / seconds / 1e9, middle, ratios[0], ratios[MPI_TURNS - 1]);
}

/* All ways, and for each kind the one whose median is the least once more, which is what counts. */
static void print_ways(const struct plan *plan, const struct way *ways, unsigned count)
{
    const struct way *fastest[KINDS] = {NULL};
    double medians[WAYS_MAX], least[KINDS];
    printf(
        "stock MPI, %d turns, and how many times as fast local is (median, least and most of the turns):\n",
        MPI_TURNS);
    for (unsigned i = 0; i < count; i++) {
        double seconds[MPI_TURNS];
        unsigned kind = ways[i].kind;
        memcpy(seconds, ways[i].seconds, sizeof seconds);
        medians[i] = median(seconds, MPI_TURNS);
        print_way(plan, &ways[i], names[kind], medians[i]);
        if (!fastest[kind] || medians[i] < least[kind]) {
            fastest[kind] = &ways[i];
            least[kind] = medians[i];
        }
    }
    printf("beside the fastest of its ways:\n");
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (fastest[kind])
            print_way(plan, fastest[kind], names[kind], least[kind]);
}

/* In turns; a ratio is of two runs that follow one another. */
static int compare_with_mpi(const char *self, struct plan *plan)
{
    static struct way ways[WAYS_MAX];
    unsigned count = 0;
    const char *slash = strrchr(self, '/');
    char path[4096];
    snprintf(path, sizeof(path), "%.*s/mpi_stock", slash ? (int)(slash - self) : 1, slash ? self : ".");
    if (access(path, X_OK) != 0) {
        printf("no comparison with MPI: mpi_stock is not built (no mpicc)\n");
        return 0;
    }
    plan->quiet = true;
    for (unsigned turn = 0; turn < MPI_TURNS; turn++) {
        int code = launch(plan);
        if (code != 0)
            return code;
        count = run_mpi(self, plan, ways, turn);
        if (count == 0) {
            printf("no comparison with MPI: mpirun failed\n");
            return 0;
        }
    }
    print_ways(plan, ways, count);
    return 0;
}

int main(int argc, char **argv)
{
    struct zr_machine machine;
    struct plan plan = {.world = 2, .bytes = 32000000};
    size_t first_mb = 1, last_mb = 16;
    int code = 0;
    if (argc > 1)
        plan.world = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        plan.bytes = strtoul(argv[2], NULL, 10) * 1000000;
    if (argc > 3)
        first_mb = last_mb = strtoul(argv[3], NULL, 10);
    if (plan.world == 0 || plan.world > MAX_RANKS || plan.bytes < 4 * plan.world || first_mb == 0) {
        fprintf(stderr, "usage: bench_comm [ranks [megabytes [bucket-megabytes]]]\n");
        return 2;
    }
    median_seconds =
        mmap(NULL, KINDS * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (median_seconds == MAP_FAILED)
        return 4;
    zr_os_machine(&machine);
    printf("%s, %u cores, %u ranks, %.1f MB\n", machine.cpu_name, machine.cores_count, plan.world,
           (double)plan.bytes / 1e6);
    for (size_t mb = first_mb; mb <= last_mb && code == 0; mb *= 4) {
        plan.bucket_bytes = mb << 20;
        plan.algorithm = ZR_COMM_RING;
        printf("through the ring, buckets of %zu MB:\n", mb);
        code = launch(&plan);
    }
    if (code == 0) {
        plan.bucket_bytes = first_mb << 20;
        plan.algorithm = ZR_COMM_AUTO;
        printf("from memory to memory:\n");
        code = launch(&plan);
    }
    if (code == 0) {
        plan.carrier = ZR_CARRIER_TCP;
        printf("over TCP, on loopback:\n");
        code = launch(&plan);
        plan.carrier = ZR_CARRIER_LOCAL;
    }
    return code == 0 ? compare_with_mpi(argv[0], &plan) : code;
}
