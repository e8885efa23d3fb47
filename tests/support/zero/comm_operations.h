/* comm_operations.h: every operation of a communicator against plain sums and copies, whatever is behind it:
 * the local communicator in comm_test.c, Open MPI in mpi_ranks.c, NCCL in nccl_test.c. Collective: all ranks
 * call it with the same seed. */
#ifndef ZR_TEST_COMM_OPERATIONS_H
#define ZR_TEST_COMM_OPERATIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/zero/comm_values.h"

struct trial_options {
    uint64_t seed;      /* the same on all ranks */
    zr_arena *arena;    /* of the buffers; NULL: of the C library. Each rank as it likes */
    size_t large;       /* one more size of a shard, in elements; 0: none */
    bool counts_direct; /* what a broadcast has sent is known: from each to each */
};

struct trial {
    zr_comm *comm;
    zr_arena *arena;
    unsigned rank, world, failures;
    size_t shift_bytes; /* buffers start this far from an aligned address */
    uint64_t calls[ZR_COMM_KIND_COUNT], sent_bytes[ZR_COMM_KIND_COUNT];
};

#define trial_check(t, condition, format, ...)                                                               \
    do {                                                                                                     \
        if (!(condition) && (t)->failures++ < 5)                                                             \
            fprintf(stderr, "# rank %u of %u, line %d: " format "\n", (t)->rank, (t)->world, __LINE__,       \
                    ##__VA_ARGS__);                                                                          \
    } while (0)

/* Hands an operation in, waits, and keeps the counters that the communicator's own are compared with. */
#define trial_run(t, kind, bytes, call)                                                                      \
    do {                                                                                                     \
        zr_ticket ticket = 0;                                                                                \
        zr_result got_ = (call);                                                                             \
        if (got_ == ZR_OK)                                                                                   \
            got_ = zr_comm_wait((t)->comm, ticket);                                                          \
        trial_check(t, got_ == ZR_OK, "%s: %s (%s)", zr_comm_kind_name(kind), zr_result_name(got_),          \
                    zr_last_error());                                                                        \
        (t)->calls[kind]++;                                                                                  \
        (t)->sent_bytes[kind] += (bytes);                                                                    \
    } while (0)

static void trial_fill(const struct trial *t, enum zr_comm_type type, void *to, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        trial_store(type, to, i, trial_value(type, seed, t->rank, i));
}

static void trial_compare(struct trial *t, const void *got, const void *want, size_t bytes, const char *what)
{
    size_t i = 0;
    while (i < bytes && ((const char *)got)[i] == ((const char *)want)[i])
        i++;
    trial_check(t, i == bytes, "%s: byte %zu of %zu is %02x, not %02x", what, i, bytes,
                i < bytes ? ((const unsigned char *)got)[i] : 0,
                i < bytes ? ((const unsigned char *)want)[i] : 0);
}

struct trial_buffers {
    char *memory[3], *source, *got, *want;
};

static struct trial_buffers trial_take(const struct trial *t, size_t bytes)
{
    struct trial_buffers b;
    for (unsigned i = 0; i < 3; i++) {
        void *block = NULL;
        if (t->arena)
            zr_arena_alloc(t->arena, &(struct zr_request){.bytes = bytes + 128, .tag = ZR_TAG_OTHER}, &block);
        b.memory[i] = t->arena ? block : malloc(bytes + 128);
        memset(b.memory[i], 0xa5, bytes + 128);
    }
    b.source = b.memory[0] + t->shift_bytes;
    b.got = b.memory[1] + t->shift_bytes;
    b.want = b.memory[2] + t->shift_bytes;
    return b;
}

static void trial_give_back(const struct trial *t, struct trial_buffers *b)
{
    for (unsigned i = 0; i < 3; i++)
        if (t->arena)
            zr_arena_free(t->arena, b->memory[i]);
        else
            free(b->memory[i]);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* What a destination held before: something that all formats have. */
#define TRIAL_BEFORE 7.25f

static void trial_reduce_scatter(struct trial *t, enum zr_comm_type type, size_t shard, uint64_t seed)
{
    size_t unit = zr_comm_type_bytes(type), first = t->rank * shard;
    struct trial_buffers b = trial_take(t, t->world * shard * 4);
    for (unsigned variant = 0; variant < 4; variant++) { /* apart, accumulated, in place, accumulated wide */
        bool adds = variant & 1, wide = variant == 3;
        enum zr_comm_type into = wide ? ZR_COMM_FP32 : type;
        float scale = adds ? 0.3f : 1.0f / 3;
        char *to = variant == 2 ? b.source + first * unit : b.got;
        trial_fill(t, type, b.source, t->world * shard, seed + variant);
        for (size_t i = 0; i < shard; i++) {
            float sum = trial_sum(t->world, type, seed + variant, first + i, scale);
            if (variant != 2)
                trial_store(into, b.got, i, TRIAL_BEFORE);
            trial_store(into, b.want, i, adds ? TRIAL_BEFORE + sum : sum);
        }
        struct zr_reduce_scatter op = {.source = b.source,
                                       .destination = to,
                                       .shard_elements = shard,
                                       .scale = scale,
                                       .accumulate = adds,
                                       .type = type,
                                       .wide = wide};
        trial_run(t, ZR_COMM_REDUCE_SCATTER, (t->world - 1) * shard * unit,
                  zr_comm_reduce_scatter(t->comm, &op, &ticket));
        trial_compare(t, to, b.want, shard * zr_comm_type_bytes(into), "reduce-scatter");
    }
    trial_give_back(t, &b);
}

static void trial_reduce(struct trial *t, enum zr_comm_type type, size_t count, uint64_t seed)
{
    size_t unit = zr_comm_type_bytes(type);
    struct trial_buffers b = trial_take(t, count * 4);
    for (unsigned variant = 0; variant < 3; variant++) { /* in place, apart, accumulated wide */
        enum zr_comm_type into = variant == 2 ? ZR_COMM_FP32 : type;
        struct zr_reduce op = {.source = b.source,
                               .destination = variant == 0 ? b.source : b.got,
                               .elements = count,
                               .root = variant % t->world,
                               .scale = 0.3f,
                               .accumulate = variant == 2,
                               .type = type,
                               .wide = variant == 2};
        trial_fill(t, type, b.source, count, seed + variant);
        for (size_t i = 0; i < count; i++) {
            float sum = trial_sum(t->world, type, seed + variant, i, op.scale);
            if (variant > 0)
                trial_store(into, b.got, i, TRIAL_BEFORE);
            trial_store(into, b.want, i,
                        t->rank != op.root ? TRIAL_BEFORE
                        : variant == 2     ? TRIAL_BEFORE + sum
                                           : sum);
            if (t->rank != op.root && variant == 0) /* a source stays as it is */
                trial_store(into, b.want, i, trial_value(type, seed, t->rank, i));
        }
        trial_run(t, ZR_COMM_REDUCE, t->rank == op.root ? 0 : count * unit,
                  zr_comm_reduce(t->comm, &op, &ticket));
        trial_compare(t, op.destination, b.want, count * zr_comm_type_bytes(into), "reduce");
    }
    trial_give_back(t, &b);
}

static void trial_all_reduce(struct trial *t, enum zr_comm_type type, size_t shard, uint64_t seed)
{
    size_t unit = zr_comm_type_bytes(type), whole = t->world * shard;
    struct trial_buffers b = trial_take(t, whole * 4);
    struct zr_all_reduce op = {.buffer = b.got, .shard_elements = shard, .scale = 0.7f, .type = type};
    trial_fill(t, type, b.got, whole, seed);
    for (size_t i = 0; i < whole; i++)
        trial_store(type, b.want, i, trial_sum(t->world, type, seed, i, op.scale));
    trial_run(t, ZR_COMM_ALL_REDUCE, 2 * (t->world - 1) * shard * unit,
              zr_comm_all_reduce(t->comm, &op, &ticket));
    trial_compare(t, b.got, b.want, whole * unit, "all-reduce");
    trial_give_back(t, &b);
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

static void trial_all_gather(struct trial *t, size_t bytes, uint64_t seed)
{
    struct trial_buffers b = trial_take(t, t->world * bytes);
    for (unsigned variant = 0; variant < 3; variant++) { /* apart, in place, from what stays */
        char *mine = variant == 1 ? b.got + t->rank * bytes : b.source;
        memset(b.got, 0xee, t->world * bytes);
        for (size_t i = 0; i < bytes; i++)
            mine[i] = (char)trial_byte(seed + variant, t->rank, i);
        for (size_t i = 0; i < t->world * bytes; i++)
            b.want[i] = (char)trial_byte(seed + variant, (unsigned)(i / bytes), i % bytes);
        struct zr_all_gather op = {
            .source = mine, .destination = b.got, .shard_bytes = bytes, .source_stays = variant == 2};
        trial_run(t, ZR_COMM_ALL_GATHER, (t->world - 1) * bytes, zr_comm_all_gather(t->comm, &op, &ticket));
        trial_compare(t, b.got, b.want, t->world * bytes, "all-gather");
    }
    trial_check(t, zr_comm_barrier(t->comm) == ZR_OK, "barrier: %s", zr_last_error());
    t->calls[ZR_COMM_HOST]++;
    memset(b.source, 0xee, bytes); /* nobody reads it any more */
    trial_give_back(t, &b);
}

static void trial_all_to_all(struct trial *t, size_t bytes, uint64_t seed)
{
    struct trial_buffers b = trial_take(t, t->world * bytes);
    for (size_t i = 0; i < t->world * bytes; i++) {
        unsigned from = (unsigned)(i / bytes);
        b.source[i] = (char)trial_byte(seed, t->rank, i);
        b.want[i] = (char)trial_byte(seed, from, t->rank * bytes + i % bytes);
    }
    struct zr_all_gather op = {.source = b.source, .destination = b.got, .shard_bytes = bytes};
    trial_run(t, ZR_COMM_ALL_TO_ALL, (t->world - 1) * bytes, zr_comm_all_to_all(t->comm, &op, &ticket));
    trial_compare(t, b.got, b.want, t->world * bytes, "all-to-all");
    op.destination = b.source + bytes * t->world - 1;
    trial_check(t, zr_comm_all_to_all(t->comm, &op, NULL) == ZR_ERR_INVALID, "all-to-all in place");
    trial_give_back(t, &b);
}

/* `sent_bytes` of a broadcast depend on the way it takes: the test looks at the sum over the ranks. */
static void trial_broadcast(struct trial *t, size_t bytes, uint64_t seed)
{
    struct trial_buffers b = trial_take(t, bytes);
    for (unsigned root = 0; root<t->world; root += t->world> 2 ? t->world - 2 : 1) {
        for (size_t i = 0; i < bytes; i++) {
            b.got[i] = (char)trial_byte(seed, t->rank, i);
            b.want[i] = (char)trial_byte(seed, root, i);
        }
        struct zr_broadcast op = {.buffer = b.got, .bytes = bytes, .root = root};
        trial_run(t, ZR_COMM_BROADCAST, t->rank == root ? (t->world - 1) * bytes : 0,
                  zr_comm_broadcast(t->comm, &op, &ticket));
        trial_compare(t, b.got, b.want, bytes, "broadcast");
    }
    trial_give_back(t, &b);
}

/* ---- Two by two ---------------------------------------------------------------------------------------- */

static void trial_pass(struct trial *t, unsigned from, unsigned to, size_t bytes, uint64_t seed)
{
    struct trial_buffers b = trial_take(t, bytes);
    struct zr_transfer op = {.to = to, .from = from, .packed_elements = bytes};
    for (size_t i = 0; i < bytes; i++) {
        b.source[i] = (char)trial_byte(seed, t->rank, i);
        b.want[i] = (char)trial_byte(seed, from, i);
    }
    if (t->rank == from) {
        op.send = b.source;
        op.send_bytes = bytes;
        trial_run(t, ZR_COMM_SEND, bytes, zr_comm_send(t->comm, &op, &ticket));
    } else if (t->rank == to) {
        op.receive = b.got;
        op.receive_bytes = bytes;
        trial_run(t, ZR_COMM_RECEIVE, 0, zr_comm_receive(t->comm, &op, &ticket));
        trial_compare(t, b.got, b.want, bytes, "receive");
    }
    trial_give_back(t, &b);
}

/* Everybody to the right and from the left at once, with a size for each sender; then to the left. */
static void trial_round_table(struct trial *t, size_t bytes, uint64_t seed)
{
    unsigned right = (t->rank + 1) % t->world, left = (t->rank + t->world - 1) % t->world;
    struct trial_buffers b = trial_take(t, bytes + t->world * 1000);
    for (unsigned turn = 0; turn < 2; turn++) {
        unsigned to = turn ? left : right, from = turn ? right : left;
        size_t mine = bytes + t->rank * 1000 * turn, theirs = bytes + from * 1000 * turn;
        for (size_t i = 0; i < mine; i++)
            b.source[i] = (char)trial_byte(seed + turn, t->rank, i);
        for (size_t i = 0; i < theirs; i++)
            b.want[i] = (char)trial_byte(seed + turn, from, i);
        struct zr_transfer op = {.send = b.source,
                                 .send_bytes = mine,
                                 .to = to,
                                 .receive = b.got,
                                 .receive_bytes = theirs,
                                 .from = from};
        trial_run(t, ZR_COMM_SEND_RECEIVE, mine, zr_comm_send_receive(t->comm, &op, &ticket));
        trial_compare(t, b.got, b.want, theirs, "send-receive");
    }
    trial_give_back(t, &b);
}

/* One rank sends to all the others without waiting; they take in any order, others' first. */
static void trial_fan(struct trial *t, size_t bytes, uint64_t seed)
{
    struct trial_buffers b = trial_take(t, bytes);
    zr_ticket last = 0;
    for (size_t i = 0; i < bytes; i++) {
        b.source[i] = (char)trial_byte(seed, t->rank, i);
        b.want[i] = (char)trial_byte(seed, 0, i);
    }
    for (unsigned p = 1; p < t->world; p++) {
        struct zr_transfer op = {.send = b.source, .send_bytes = bytes, .to = p};
        if (t->rank == 0) {
            trial_check(t, zr_comm_send(t->comm, &op, &last) == ZR_OK, "send: %s", zr_last_error());
            t->calls[ZR_COMM_SEND]++;
            t->sent_bytes[ZR_COMM_SEND] += bytes;
        } else if (t->rank == p) {
            op = (struct zr_transfer){.receive = b.got, .receive_bytes = bytes, .from = 0};
            trial_run(t, ZR_COMM_RECEIVE, 0, zr_comm_receive(t->comm, &op, &ticket));
            trial_compare(t, b.got, b.want, bytes, "receive of many");
        }
    }
    trial_check(t, zr_comm_wait(t->comm, last) == ZR_OK, "sends: %s", zr_last_error());
    trial_give_back(t, &b);
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

static void trial_nothing(struct trial *t)
{
    zr_ticket ticket = 9;
    trial_check(t, zr_comm_reduce_scatter(t->comm, &(struct zr_reduce_scatter){.scale = 1}, &ticket) == ZR_OK,
                "reduce-scatter of nothing");
    trial_check(t, zr_comm_all_reduce(t->comm, &(struct zr_all_reduce){.scale = 1}, &ticket) == ZR_OK,
                "all-reduce of nothing");
    trial_check(t, zr_comm_reduce(t->comm, &(struct zr_reduce){.scale = 1}, &ticket) == ZR_OK,
                "reduce of nothing");
    trial_check(t, zr_comm_all_gather(t->comm, &(struct zr_all_gather){0}, &ticket) == ZR_OK,
                "all-gather of nothing");
    trial_check(t, zr_comm_all_to_all(t->comm, &(struct zr_all_gather){0}, &ticket) == ZR_OK,
                "all-to-all of nothing");
    trial_check(t, zr_comm_broadcast(t->comm, &(struct zr_broadcast){0}, &ticket) == ZR_OK,
                "broadcast of nothing");
    trial_check(t, zr_comm_send(t->comm, &(struct zr_transfer){.to = 99}, &ticket) == ZR_OK,
                "send of nothing");
    trial_check(t, ticket == 0 && zr_comm_host_all_gather(t->comm, NULL, 0, NULL) == ZR_OK,
                "nothing to wait for");
}

static void trial_talk(struct trial *t)
{
    unsigned char mine[301], *all = malloc(sizeof(mine) * t->world);
    for (size_t bytes = 1; bytes <= sizeof(mine); bytes += 50) {
        memset(mine, (int)(t->rank + bytes), sizeof(mine));
        trial_check(t, zr_comm_host_all_gather(t->comm, mine, bytes, all) == ZR_OK, "exchange: %s",
                    zr_last_error());
        for (size_t i = 0; i < bytes * t->world; i++)
            trial_check(t, all[i] == (unsigned char)(i / bytes + bytes), "exchange of %zu bytes, byte %zu",
                        bytes, i);
        trial_check(t, zr_comm_barrier(t->comm) == ZR_OK, "barrier: %s", zr_last_error());
        t->calls[ZR_COMM_HOST] += 2;
        t->sent_bytes[ZR_COMM_HOST] += bytes * (t->world - 1);
    }
    free(all);
}

static void trial_books(struct trial *t, bool direct)
{
    struct zr_comm_counters counters;
    zr_comm_counters_get(t->comm, &counters);
    for (int kind = 1; kind < ZR_COMM_KIND_COUNT; kind++) {
        uint64_t calls = counters.by_kind[kind].calls_count, bytes = counters.by_kind[kind].sent_bytes;
        trial_check(t, calls == t->calls[kind], "%s: %llu calls counted, not %llu", zr_comm_kind_name(kind),
                    (unsigned long long)calls, (unsigned long long)t->calls[kind]);
        if (kind != ZR_COMM_BROADCAST || direct)
            trial_check(t, bytes == t->sent_bytes[kind], "%s: %llu bytes counted, not %llu",
                        zr_comm_kind_name(kind), (unsigned long long)bytes,
                        (unsigned long long)t->sent_bytes[kind]);
    }
}

/* What all ranks have received, counted where the bytes were moved, is what all have sent by the volume of
 * the operations, kind by kind; but of transfers the two sides are different kinds. Not of NCCL, which moves
 * them itself. */
static void trial_received(struct trial *t)
{
    struct zr_comm_counters mine, *all = calloc(t->world, sizeof mine);
    uint64_t sent[ZR_COMM_KIND_COUNT] = {0}, received[ZR_COMM_KIND_COUNT] = {0};
    zr_comm_counters_get(t->comm, &mine);
    trial_check(t, zr_comm_host_all_gather(t->comm, &mine, sizeof mine, all) == ZR_OK, "exchange: %s",
                zr_last_error());
    for (unsigned p = 0; p < t->world; p++)
        for (int kind = 1; kind < ZR_COMM_KIND_COUNT; kind++) {
            int at = kind > ZR_COMM_SEND ? ZR_COMM_SEND : kind;
            sent[at] += all[p].by_kind[kind].sent_bytes;
            received[at] += all[p].by_kind[kind].received_bytes;
        }
    for (int kind = 1; kind <= ZR_COMM_SEND && strcmp(zr_comm_name(t->comm), "nccl") != 0; kind++)
        trial_check(t, received[kind] == sent[kind] && (t->world == 1 || sent[kind] > 0),
                    "%s: %llu bytes received by all ranks, and %llu sent", zr_comm_kind_name(kind),
                    (unsigned long long)received[kind], (unsigned long long)sent[kind]);
    free(all);
}

/* Runs everything on a fresh communicator, whose counters are compared with what was asked for. The failures,
 * after words on stderr. */
static unsigned trial_operations(zr_comm *comm, const struct trial_options *options)
{
    const size_t shards[] = {1, 3, 16, 1021, 5000, options->large};
    struct trial t = {
        .comm = comm, .arena = options->arena, .rank = zr_comm_rank(comm), .world = zr_comm_world(comm)};
    trial_nothing(&t);
    for (size_t s = 0; s < sizeof(shards) / sizeof(*shards) && shards[s] > 0; s++) {
        uint64_t own = options->seed + 100 * s;
        size_t bytes = shards[s] * 3 - 2; /* odd sizes too */
        t.shift_bytes = s % 2 ? 4 : 0;
        for (int type = 0; type < ZR_COMM_TYPE_COUNT; type++) {
            trial_reduce_scatter(&t, (enum zr_comm_type)type, shards[s], own + 10);
            trial_all_reduce(&t, (enum zr_comm_type)type, shards[s], own + 20);
            trial_reduce(&t, (enum zr_comm_type)type, shards[s] * 2, own + 30);
        }
        t.shift_bytes = s % 2 ? 1 + s : 0;
        trial_all_gather(&t, bytes, own + 40);
        trial_all_to_all(&t, bytes, own + 50);
        trial_broadcast(&t, bytes, own + 60);
        for (unsigned p = 1; p < t.world; p++) {
            trial_pass(&t, p - 1, p, bytes, own + 80 + p);
            trial_pass(&t, p, 0, bytes * p, own + 90 + p);
        }
        if (t.world > 1) {
            trial_round_table(&t, bytes, own + 95);
            trial_fan(&t, bytes, own + 97);
        }
        trial_talk(&t);
    }
    trial_books(&t, options->counts_direct);
    trial_received(&t);
    return t.failures;
}

#endif
