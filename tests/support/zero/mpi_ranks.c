/* mpi_ranks.c: what tests/system/mpi.t, tests/long/soak_mpi.t and the benchmark run under mpirun: every
 * operation over MPI against plain sums, with messages as long as MPI's counts allow or no longer than MOST
 * bytes, and every operation on shards of more than 2 GiB. Prints nothing when all is well; the exit code
 * tells.
 *
 * mpi_ranks operations BUCKET direct|ring|auto SEED [MOST]
 * mpi_ranks large BYTES direct|ring|auto */
#define _GNU_SOURCE
#include <unistd.h>

#include "tests/support/zero/comm_circle.h"
#include "tests/support/zero/comm_groups.h"
#include "zero/comm/message/message.h"
#include "zero/comm/mesh.h"
#include "zero/launch/start.h"

struct task {
    const char *what;
    size_t bytes;
    enum zr_comm_algorithm algorithm;
    uint64_t seed;
    size_t most_bytes; /* of one message; 0: as many as the module takes */
};

/* ---- Short messages ------------------------------------------------------------------------------------ */

/* The module's transport, but for messages that are too long: those it refuses. */
static struct {
    int (*send)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    int (*receive)(struct zr_transport *, const struct zr_transport_message *, struct zr_transport_request *);
    size_t full_count; /* messages as long as they may be, but for rounding: pieces of something longer */
} narrow;

static int short_enough(struct zr_transport *transport, const struct zr_transport_message *message)
{
    if (message->bytes <= transport->most_bytes) {
        narrow.full_count += transport->most_bytes - message->bytes < 64;
        return 0;
    }
    snprintf(transport->why, sizeof(transport->why), "%zu bytes in one message", message->bytes);
    return -1;
}

static int narrow_send(struct zr_transport *transport, const struct zr_transport_message *message,
                       struct zr_transport_request *request)
{
    return short_enough(transport, message) ? -1 : narrow.send(transport, message, request);
}

static int narrow_receive(struct zr_transport *transport, const struct zr_transport_message *message,
                          struct zr_transport_request *request)
{
    return short_enough(transport, message) ? -1 : narrow.receive(transport, message, request);
}

/* Makes messages short: a communicator has looked how long they may be when it was made. */
static void make_narrow(const zr_comm *comm, size_t most_bytes)
{
    struct zr_transport *transport = ((const struct message_comm *)comm)->run->transport;
    narrow.send = transport->send;
    narrow.receive = transport->receive;
    transport->send = narrow_send;
    transport->receive = narrow_receive;
    transport->most_bytes = most_bytes;
}

/* ---- Shards beyond 2 GiB ------------------------------------------------------------------------------- */

struct large {
    zr_comm *comm;
    unsigned char *all; /* [world * bytes] */
    size_t bytes;       /* of a shard */
    unsigned rank, world, failures;
};

/* A pattern that shows whose a byte is, to the position. */
static unsigned char pattern(unsigned whose, size_t index)
{
    return (unsigned char)((index * 2654435761u >> 13) + whose * 97);
}

static void paint(const struct large *l, unsigned place, unsigned whose)
{
    unsigned char *at = l->all + place * l->bytes;
    for (size_t i = 0; i < l->bytes; i++)
        at[i] = pattern(whose, i);
}

static void look(struct large *l, unsigned place, unsigned whose, const char *what)
{
    const unsigned char *at = l->all + place * l->bytes;
    size_t wrong = 0;
    for (size_t i = 0; i < l->bytes; i++)
        wrong += at[i] != pattern(whose, i);
    l->failures += wrong > 0;
    if (wrong > 0)
        fprintf(stderr, "# rank %u: %zu bytes of a large %s are wrong\n", l->rank, wrong, what);
}

/* Waits for what was handed in. */
static void end(struct large *l, zr_result handed_in, zr_ticket ticket, const char *what)
{
    if (handed_in == ZR_OK && zr_comm_wait(l->comm, ticket) == ZR_OK)
        return;
    fprintf(stderr, "# rank %u: a large %s: %s\n", l->rank, what, zr_last_error());
    l->failures++;
}

static void large_gathers(struct large *l)
{
    zr_ticket ticket = 0;
    unsigned char *own = l->all + l->rank * l->bytes;
    struct zr_all_gather op = {.source = own, .destination = l->all, .shard_bytes = l->bytes};
    paint(l, l->rank, l->rank);
    zr_result result = zr_comm_all_gather(l->comm, &op, &ticket);
    end(l, result, ticket, "all-gather");
    for (unsigned p = 0; p < l->world; p++)
        look(l, p, p, "all-gather");
}

/* The root's shard to all; then everybody's to the right at once; then one to the next, and no other. */
static void large_moves(struct large *l)
{
    zr_ticket ticket = 0;
    unsigned right = (l->rank + 1) % l->world, left = (l->rank + l->world - 1) % l->world;
    paint(l, 0, 50 + l->rank);
    zr_result result = zr_comm_broadcast(
        l->comm, &(struct zr_broadcast){.buffer = l->all, .bytes = l->bytes, .root = 1}, &ticket);
    end(l, result, ticket, "broadcast");
    look(l, 0, 51, "broadcast");

    struct zr_transfer op = {.send = l->all,
                             .send_bytes = l->bytes,
                             .to = right,
                             .receive = l->all + l->bytes,
                             .receive_bytes = l->bytes,
                             .from = left};
    paint(l, 0, 60 + l->rank);
    result = zr_comm_send_receive(l->comm, &op, &ticket);
    end(l, result, ticket, "send-receive");
    look(l, 1, 60 + left, "send-receive");

    if (l->rank == 0) {
        op = (struct zr_transfer){.send = l->all, .send_bytes = l->bytes, .to = 1};
        result = zr_comm_send(l->comm, &op, &ticket);
        end(l, result, ticket, "send");
    } else if (l->rank == 1) {
        op = (struct zr_transfer){.receive = l->all, .receive_bytes = l->bytes, .from = 0};
        result = zr_comm_receive(l->comm, &op, &ticket);
        end(l, result, ticket, "receive");
        look(l, 0, 60, "receive");
    }
}

/* Whole numbers, small enough that their sum is exact in any order. */
static float number(unsigned rank, size_t index)
{
    return (float)((index * 2654435761u >> 13 & 1023) + rank);
}

static void paint_numbers(const struct large *l, size_t count)
{
    float *at = (float *)l->all;
    for (size_t i = 0; i < count; i++)
        at[i] = number(l->rank, i);
}

/* From the first on, `count` of them are sums over all ranks. */
static void look_at_sums(struct large *l, size_t first, size_t count, const char *what)
{
    const float *at = (const float *)l->all;
    float world = (float)l->world;
    size_t wrong = 0;
    for (size_t i = first; i < first + count; i++)
        wrong += at[i] != world * number(0, i) + world * (world - 1) / 2;
    l->failures += wrong > 0;
    if (wrong > 0)
        fprintf(stderr, "# rank %u: %zu sums of a large %s are wrong\n", l->rank, wrong, what);
}

static void large_sums(struct large *l)
{
    zr_ticket ticket = 0;
    size_t shard = l->bytes / sizeof(float), whole = shard * l->world, own = shard * l->rank;
    float *all = (float *)l->all;
    paint_numbers(l, whole);
    zr_result result = zr_comm_reduce_scatter(l->comm,
                                              &(struct zr_reduce_scatter){.source = all,
                                                                          .destination = all + own,
                                                                          .shard_elements = shard,
                                                                          .scale = 1,
                                                                          .type = ZR_COMM_FP32},
                                              &ticket);
    end(l, result, ticket, "reduce-scatter");
    look_at_sums(l, own, shard, "reduce-scatter");

    paint_numbers(l, whole);
    result = zr_comm_all_reduce(
        l->comm,
        &(struct zr_all_reduce){.buffer = all, .shard_elements = shard, .scale = 1, .type = ZR_COMM_FP32},
        &ticket);
    end(l, result, ticket, "all-reduce");
    look_at_sums(l, 0, whole, "all-reduce");
}

/* Every operation that moves anything, on shards of so many bytes. The failures, after words on stderr. */
static unsigned large_operations(zr_comm *comm, size_t bytes)
{
    struct large l = {.comm = comm, .bytes = bytes, .rank = zr_comm_rank(comm), .world = zr_comm_world(comm)};
    l.all = malloc(bytes * l.world);
    if (!l.all)
        return 1;
    large_gathers(&l);
    large_moves(&l);
    large_sums(&l);
    if (zr_comm_barrier(comm) != ZR_OK) /* a rank that fails early would take the others' words along */
        l.failures++;
    free(l.all);
    return l.failures;
}

/* ---- A rank -------------------------------------------------------------------------------------------- */

static unsigned run_task(zr_comm *comm, const struct task *task)
{
    if (strcmp(task->what, "large") == 0)
        return large_operations(comm, task->bytes);
    if (strcmp(task->what, "circle") == 0) {
        bool named = wait_in_circle(comm) == ZR_ERR_PEER && names_the_circle();
        fprintf(stderr, "# rank %u: %s%s\n", zr_comm_rank(comm), named ? "" : "wrong: ", zr_last_error());
        return 1;
    }
    unsigned failures = trial_operations(comm, &(struct trial_options){.seed = task->seed});
    if (zr_comm_world(comm) % 4 == 0)
        failures += mesh_operations(comm, task->seed, false);
    if (task->most_bytes > 0 && narrow.full_count == 0) {
        fprintf(stderr, "# rank %u: nothing was sent in pieces\n", zr_comm_rank(comm));
        failures++;
    }
    return failures;
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
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes =
                                          strcmp(task->what, "large") == 0 ? 1 << 20 : task->bytes,
                                      .algorithm = task->algorithm};
    zr_result result = zr_comm_create(&comm, &options, local, rank);
    if (result == ZR_OK && task->most_bytes > 0) {
        make_narrow(comm, task->most_bytes);
        zr_comm_destroy(comm);
        result = zr_comm_create(&comm, &options, local, rank);
    }
    if (result != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 1;
    }
    unsigned failures = run_task(comm, task);
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
    if (argc > 5)
        task.most_bytes = strtoull(argv[5], NULL, 10);
    if (task.bytes == 0 || zr_start_read(&start) != ZR_OK || start.kind != ZR_START_MPI) {
        fprintf(stderr, "usage: mpirun -n N mpi_ranks operations BUCKET direct|ring|auto SEED [MOST] | large "
                        "BYTES direct|ring|auto | circle BUCKET\n");
        return 2;
    }
    struct zr_launch_options options = {.world = start.world, .rank_main = run_rank, .argument = &task};
    return zr_start_launch(
        &(struct zr_start_run){.start = &start, .join_mpi = zr_mpi_run, .options = &options, .argv = argv});
}
