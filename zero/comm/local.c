/* local.c: the communicator of ranks forked on one machine. Data goes through rings in shared granules.
 *
 * Each rank has a ring of two slots in its own arena, which all its peers have mapped (share.c). An operation
 * is cut into pieces that fit a slot. For every piece each rank fills a slot of its own, posts it, and reads
 * the slots of its peers straight out of their rings; a slot is filled again when all peers have read what
 * was in it. With two slots the next piece is written while the peers still read the last. Every rank does
 * the same sequence of fills and reads, so the waits cannot form a circle.
 *
 * Sums are taken over the ranks in order for every element on its own, so neither the size of the slots nor
 * the cutting into pieces shows in the result. */
#include <stdio.h>
#include <string.h>

#include "alloc/error.h"
#include "zero/comm/comm.h"
#include "zero/comm/local.h"
#include "zero/spin.h"

#define SPIN_NS 3000ull /* about what a wake-up costs; more would be taken from the compute threads */

struct local_comm {
    struct zr_comm base;
    zr_backend *backend; /* mapped the rings of the peers */
    char *ring;          /* two slots, a block of options.arena */
    size_t slot_bytes;
    size_t reduce_elements; /* of one destination in a slot: the slot holds world - 1 of them */
    uint32_t filled, read;  /* pieces; at most two apart. The thread that runs operations */
    struct zr_local_rank *self;
    const float **from;          /* world: scratch for the sum */
    struct zr_local_peer *peers; /* world; the own entry stays empty */
};

/* ---- Waits ------------------------------------------------------------------------------------------ */

zr_result zr_local_check(struct zr_local_world *local, unsigned peer)
{
    uint32_t why = atomic_load(&local->abort);
    if (why != 0)
        return zr_fail((zr_result)why, "%s", local->reason);
    unsigned first = peer == ZR_LOCAL_ALL ? 0 : peer, last = peer == ZR_LOCAL_ALL ? local->world - 1 : peer;
    for (unsigned p = first; p <= last; p++)
        if (atomic_load(&local->ranks[p].ended))
            return zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has ended while others still wait for it", p,
                           (int)atomic_load(&local->ranks[p].pid));
    return ZR_OK;
}

static bool reached(_Atomic uint32_t *word, uint32_t target, uint32_t *seen)
{
    *seen = atomic_load(word);
    return (int32_t)(*seen - target) >= 0;
}

/* The slow half of zr_local_wait_for(). The sleeper is counted before the last look, and zr_local_advance()
 * looks at the count after moving the word, so one of the two always sees the other. */
static zr_result sleep_for(struct zr_local_world *local, const struct zr_local_wait *wait)
{
    uint32_t seen;
    zr_result result = ZR_OK;
    if (wait->sleepers)
        atomic_fetch_add(wait->sleepers, 1);
    while (result == ZR_OK && !reached(wait->word, wait->target, &seen)) {
        zr_word_wait(wait->word, seen, ZR_LOCAL_LOOK_NS);
        if (reached(wait->word, wait->target, &seen))
            break;
        result = zr_local_check(local, wait->peer);
        if (result == ZR_ERR_PEER && reached(wait->word, wait->target, &seen) && !atomic_load(&local->abort))
            result = ZR_OK; /* it did its part before it ended */
    }
    if (wait->sleepers)
        atomic_fetch_sub(wait->sleepers, 1);
    return result;
}

zr_result zr_local_wait_for(struct zr_local_world *local, const struct zr_local_wait *wait)
{
    uint32_t seen;
    if (reached(wait->word, wait->target, &seen))
        return ZR_OK;
    if (local->spins && zr_spin_while(wait->word, seen, SPIN_NS) && reached(wait->word, wait->target, &seen))
        return ZR_OK;
    return sleep_for(local, wait);
}

void zr_local_advance(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers)
{
    atomic_store(word, value);
    if (!sleepers || atomic_load(sleepers) > 0)
        zr_word_wake_all(word);
}

/* ---- The ring --------------------------------------------------------------------------------------- */

/* Waits until all peers have read what lies in the next slot, and lends it for filling. */
static zr_result fill_begin(struct local_comm *comm, char **slot)
{
    struct zr_local_world *local = comm->base.local;
    for (unsigned p = 0; p < comm->base.world; p++) {
        struct zr_local_rank *peer = &local->ranks[p];
        zr_result result =
            zr_local_wait_for(local, &(struct zr_local_wait){.word = &peer->consumed,
                                                             .sleepers = &peer->consumed_sleepers,
                                                             .target = comm->filled - 1,
                                                             .peer = p});
        if (result != ZR_OK)
            return result;
    }
    *slot = comm->ring + (comm->filled & 1) * comm->slot_bytes;
    return ZR_OK;
}

static void fill_end(struct local_comm *comm, struct zr_local_piece piece)
{
    comm->self->pieces[comm->filled & 1] = piece;
    zr_local_advance(&comm->self->posted, ++comm->filled, &comm->self->posted_sleepers);
}

static const char *kind_name(uint64_t kind)
{
    static const char *const names[] = {"nothing", "reduce-scatter", "all-gather", "all-reduce", "exchange"};
    return kind < sizeof(names) / sizeof(*names) ? names[kind] : "something unknown";
}

/* Waits until rank p has posted the piece to be read next, and lends its slot for reading. */
static zr_result peer_slot(struct local_comm *comm, unsigned p, struct zr_local_piece piece,
                           const char **slot)
{
    struct zr_local_world *local = comm->base.local;
    struct zr_local_rank *peer = &local->ranks[p];
    zr_result result = zr_local_wait_for(local, &(struct zr_local_wait){.word = &peer->posted,
                                                                        .sleepers = &peer->posted_sleepers,
                                                                        .target = comm->read + 1,
                                                                        .peer = p});
    if (result != ZR_OK)
        return result;
    struct zr_local_piece theirs = peer->pieces[comm->read & 1];
    if (theirs.kind != piece.kind || theirs.bytes != piece.bytes)
        return zr_fail(
            ZR_ERR_PEER,
            "the ranks are out of step: rank %u runs %s with shards of %llu bytes where rank %u runs "
            "%s with %llu",
            p, kind_name(theirs.kind), (unsigned long long)theirs.bytes, comm->base.rank,
            kind_name(piece.kind), (unsigned long long)piece.bytes);
    *slot = comm->peers[p].ring + (comm->read & 1) * comm->slot_bytes;
    return ZR_OK;
}

static void read_end(struct local_comm *comm)
{
    zr_local_advance(&comm->self->consumed, ++comm->read, &comm->self->consumed_sleepers);
}

/* ---- Pieces ----------------------------------------------------------------------------------------- */

/* A part of every shard. */
struct part {
    size_t first, count;
};

static struct part part_of(size_t whole, size_t most, size_t index)
{
    size_t first = index * most;
    return (struct part){.first = first, .count = whole - first < most ? whole - first : most};
}

static size_t parts_count(size_t whole, size_t most)
{
    return whole / most + (whole % most != 0);
}

/* Where in its slot rank `from` puts what is meant for rank `to`: in order, its own left out. */
static size_t place_of(unsigned from, unsigned to)
{
    return to < from ? to : to - 1;
}

/* A reduction under way; `kind` is of the operation that asked for it. */
struct reduction {
    uint64_t kind;
    const float *source;
    float *destination;
    size_t shard_elements;
    float scale;
    bool accumulate;
};

static struct zr_local_piece reduction_piece(const struct reduction *op)
{
    return (struct zr_local_piece){.kind = op->kind, .bytes = op->shard_elements * sizeof(float)};
}

/* Lays one part of each peer's shard into the slot. */
static zr_result fill_reduction(struct local_comm *comm, const struct reduction *op, size_t index)
{
    char *slot;
    struct part part = part_of(op->shard_elements, comm->reduce_elements, index);
    zr_result result = fill_begin(comm, &slot);
    if (result != ZR_OK)
        return result;
    for (unsigned p = 0; p < comm->base.world; p++)
        if (p != comm->base.rank)
            memcpy((float *)slot + place_of(comm->base.rank, p) * comm->reduce_elements,
                   op->source + p * op->shard_elements + part.first, part.count * sizeof(float));
    fill_end(comm, reduction_piece(op));
    return ZR_OK;
}

/* Sums one part of the own shard over all ranks, in their order, straight from the slots. */
static zr_result read_reduction(struct local_comm *comm, const struct reduction *op, size_t index)
{
    unsigned rank = comm->base.rank;
    struct part part = part_of(op->shard_elements, comm->reduce_elements, index);
    for (unsigned p = 0; p < comm->base.world; p++) {
        const char *slot;
        if (p == rank) {
            comm->from[p] = op->source + rank * op->shard_elements + part.first;
            continue;
        }
        zr_result result = peer_slot(comm, p, reduction_piece(op), &slot);
        if (result != ZR_OK)
            return result;
        comm->from[p] = (const float *)slot + place_of(p, rank) * comm->reduce_elements;
    }
    comm->base.options.kernels->sum_in_order(part.count, comm->from, comm->base.world, op->scale,
                                             op->destination + part.first, op->accumulate);
    read_end(comm);
    return ZR_OK;
}

/* A gathering under way. */
struct gathering {
    uint64_t kind;
    const char *source;
    char *destination;
    size_t shard_bytes;
    size_t part_bytes; /* of a shard in one piece */
};

static struct zr_local_piece gathering_piece(const struct gathering *op)
{
    return (struct zr_local_piece){.kind = op->kind, .bytes = op->shard_bytes};
}

static zr_result fill_gathering(struct local_comm *comm, const struct gathering *op, size_t index)
{
    char *slot;
    struct part part = part_of(op->shard_bytes, op->part_bytes, index);
    zr_result result = fill_begin(comm, &slot);
    if (result != ZR_OK)
        return result;
    if (part.count > 0)
        memcpy(slot, op->source + part.first, part.count);
    fill_end(comm, gathering_piece(op));
    return ZR_OK;
}

/* Copies one part of each peer's shard to its place. Each rank starts with the one after it, so that they do
 * not all read the same ring at once. */
static zr_result read_gathering(struct local_comm *comm, const struct gathering *op, size_t index)
{
    struct part part = part_of(op->shard_bytes, op->part_bytes, index);
    for (unsigned i = 1; i < comm->base.world; i++) {
        const char *slot;
        unsigned p = (comm->base.rank + i) % comm->base.world;
        zr_result result = peer_slot(comm, p, gathering_piece(op), &slot);
        if (result != ZR_OK)
            return result;
        if (part.count > 0)
            memcpy(op->destination + p * op->shard_bytes + part.first, slot, part.count);
    }
    read_end(comm);
    return ZR_OK;
}

/* ---- Operations ------------------------------------------------------------------------------------- */

static zr_result run_reduce_scatter(struct local_comm *comm, const struct zr_reduce_scatter *asked)
{
    const struct reduction op = {.kind = ZR_COMM_REDUCE_SCATTER,
                                 .source = asked->source,
                                 .destination = asked->destination,
                                 .shard_elements = asked->shard_elements,
                                 .scale = asked->scale,
                                 .accumulate = asked->accumulate};
    size_t count = parts_count(op.shard_elements, comm->reduce_elements);
    zr_result result = fill_reduction(comm, &op, 0);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + 1 < count)
            result = fill_reduction(comm, &op, i + 1);
        if (result == ZR_OK)
            result = read_reduction(comm, &op, i);
    }
    return result;
}

/* Also carries the exchange; with no bytes at all it is one empty piece, and so a barrier. */
static zr_result run_all_gather(struct local_comm *comm, const struct zr_comm_item *item)
{
    const struct gathering op = {.kind = item->kind,
                                 .source = item->all_gather.source,
                                 .destination = item->all_gather.destination,
                                 .shard_bytes = item->all_gather.shard_bytes,
                                 .part_bytes = comm->slot_bytes};
    char *own = op.shard_bytes > 0 ? op.destination + comm->base.rank * op.shard_bytes : NULL;
    size_t count = op.shard_bytes > 0 ? parts_count(op.shard_bytes, op.part_bytes) : 1;
    zr_result result = fill_gathering(comm, &op, 0);
    if (own && own != op.source)
        memmove(own, op.source, op.shard_bytes); /* while the peers are at it */
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + 1 < count)
            result = fill_gathering(comm, &op, i + 1);
        if (result == ZR_OK)
            result = read_gathering(comm, &op, i);
    }
    return result;
}

/* Sums part i while the sums of part i - 1 travel: in the ring lie, by turns, R0 R1 G0 R2 G1 R3 G2 ... */
static zr_result run_all_reduce(struct local_comm *comm, const struct zr_all_reduce *asked)
{
    float *own = asked->buffer + comm->base.rank * asked->shard_elements;
    const float *base = asked->base ? asked->base + comm->base.rank * asked->shard_elements : NULL;
    const struct reduction reduce = {.kind = ZR_COMM_ALL_REDUCE,
                                     .source = asked->buffer,
                                     .destination = own,
                                     .shard_elements = asked->shard_elements,
                                     .scale = asked->scale};
    const struct gathering gather = {.kind = ZR_COMM_ALL_REDUCE,
                                     .source = (const char *)own,
                                     .destination = (char *)asked->buffer,
                                     .shard_bytes = asked->shard_elements * sizeof(float),
                                     .part_bytes = comm->reduce_elements * sizeof(float)};
    size_t count = parts_count(reduce.shard_elements, comm->reduce_elements);
    zr_result result = fill_reduction(comm, &reduce, 0);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        struct part part = part_of(reduce.shard_elements, comm->reduce_elements, i);
        result = read_reduction(comm, &reduce, i);
        if (result == ZR_OK && base)
            comm->base.options.kernels->sum_in_order(part.count,
                                                     (const float *[]){base + part.first, own + part.first},
                                                     2, 1.0f, own + part.first, false);
        if (result == ZR_OK && i + 1 < count)
            result = fill_reduction(comm, &reduce, i + 1);
        if (result == ZR_OK && i > 0)
            result = read_gathering(comm, &gather, i - 1);
        if (result == ZR_OK)
            result = fill_gathering(comm, &gather, i);
    }
    return result == ZR_OK ? read_gathering(comm, &gather, count - 1) : result;
}

static zr_result local_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    struct local_comm *self = (struct local_comm *)comm;
    switch (item->kind) {
    case ZR_COMM_REDUCE_SCATTER:
        return run_reduce_scatter(self, &item->reduce_scatter);
    case ZR_COMM_ALL_GATHER:
    case ZR_COMM_EXCHANGE:
        return run_all_gather(self, item);
    case ZR_COMM_ALL_REDUCE:
        return run_all_reduce(self, &item->all_reduce);
    }
    return zr_fail(ZR_ERR_INVALID, "unknown operation %d", (int)item->kind);
}

/* ---- Birth and end ---------------------------------------------------------------------------------- */

/* Gives back what there is of a communicator, whole or half made. After a failure the peers end anyway; else
 * this rank's ring must stay until all of them have read the last piece. */
static void local_close(struct zr_comm *comm)
{
    struct local_comm *self = (struct local_comm *)comm;
    for (unsigned p = 0; p < comm->world && comm->failure == ZR_OK; p++) {
        struct zr_local_rank *peer = &comm->local->ranks[p];
        zr_result result =
            zr_local_wait_for(comm->local, &(struct zr_local_wait){.word = &peer->consumed,
                                                                   .sleepers = &peer->consumed_sleepers,
                                                                   .target = self->filled,
                                                                   .peer = p});
        if (result == ZR_ERR_INTERRUPTED || atomic_load(&comm->local->abort))
            break;
    }
    for (unsigned p = 0; p < comm->world; p++)
        if (self->peers[p].mapping)
            zr_import_release(self->backend, self->peers[p].mapping);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
    atomic_store(&self->self->open, false);
}

static const struct zr_comm_table local_table = {.run = local_run, .close = local_close};

/* Everything of a rank's own: records, ring, thread. On success *out is closed by zr_comm_destroy(). */
static zr_result prepare(struct local_comm **out, const struct zr_comm_options *options,
                         struct zr_local_world *local, unsigned rank)
{
    void *block;
    unsigned world = local->world;
    size_t bytes = sizeof(struct local_comm) + world * (sizeof(float *) + sizeof(struct zr_local_peer));
    zr_result result = zr_comm_options_check(options, rank, world);
    if (result != ZR_OK)
        return result;
    if (atomic_load(&local->ranks[rank].open))
        return zr_fail(ZR_ERR_INVALID, "rank %u already has a communicator", rank);
    result = zr_arena_alloc(options->host_arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER},
                            &block);
    if (result != ZR_OK)
        return result;
    struct local_comm *comm = memset(block, 0, bytes);
    zr_comm_open(&comm->base, &local_table, options);
    comm->base.local = local;
    comm->base.rank = rank;
    comm->base.world = world;
    comm->backend = zr_arena_backend(options->arena);
    comm->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    comm->reduce_elements = comm->slot_bytes / (world - 1) / 64 * 64 / sizeof(float);
    comm->self = &local->ranks[rank];
    comm->filled = atomic_load(&comm->self->posted); /* an earlier communicator may have counted */
    comm->read = atomic_load(&comm->self->consumed);
    comm->peers = (struct zr_local_peer *)(comm + 1);
    comm->from = (const float **)(comm->peers + world);
    atomic_store(&comm->self->open, true);
    result = zr_arena_alloc(
        options->arena,
        &(struct zr_request){.bytes = zr_comm_ring_bytes(world, options->bucket_bytes), .tag = ZR_TAG_COMM},
        &block);
    if (result == ZR_OK) {
        comm->ring = block;
        result = zr_comm_thread_start(&comm->base);
    }
    if (result == ZR_OK)
        *out = comm;
    else
        zr_comm_destroy(&comm->base);
    return result;
}

/* Tells the peers how far this rank has come, and learns it of them: all have a communicator, or none. */
static zr_result agree(struct zr_local_world *local, unsigned rank, uint32_t attempt, zr_result mine)
{
    zr_local_advance(&local->ranks[rank].verdict, (attempt + 1) << 8 | (uint32_t)mine, NULL);
    for (unsigned p = 0; p < local->world; p++) {
        zr_result result = zr_local_wait_for(local, &(struct zr_local_wait){.word = &local->ranks[p].verdict,
                                                                            .target = (attempt + 1) << 8,
                                                                            .peer = p});
        if (result != ZR_OK)
            return result;
        zr_result theirs = (zr_result)(atomic_load(&local->ranks[p].verdict) & 255);
        if (theirs != ZR_OK && p != rank)
            return zr_fail(ZR_ERR_PEER, "rank %u could not make its part of the communicator: %s", p,
                           zr_result_name(theirs));
    }
    return ZR_OK;
}

zr_result zr_comm_local_create(zr_comm **out, const struct zr_comm_options *options,
                               struct zr_local_world *local, unsigned rank)
{
    struct local_comm *comm = NULL;
    if (!out || !local || rank >= local->world)
        return zr_fail(ZR_ERR_INVALID, "a rank needs its world and a place for its communicator");
    *out = NULL;
    if (local->world == 1) {
        zr_result result = zr_comm_null_create(out, options, 0, 1);
        if (result == ZR_OK)
            (*out)->local = local;
        return result;
    }
    char words[ZR_COMM_WORDS_BYTES];
    uint32_t attempt = atomic_fetch_add(&local->ranks[rank].attempts, 1);
    zr_result result = prepare(&comm, options, local, rank);
    struct zr_local_share share = {.local = local, .rank = rank, .attempt = attempt};
    if (result == ZR_OK) {
        share.mine = comm->ring;
        share.arena = options->arena;
        share.host_arena = options->host_arena;
        share.backend = comm->backend;
        result = zr_local_share_rings(&share, comm->peers);
        snprintf(words, sizeof(words), "%s", zr_last_error());
    } else { /* the peers wait for this rank all the same */
        snprintf(words, sizeof(words), "%s", zr_last_error());
        zr_local_share_rings(&share, NULL);
    }
    zr_result agreed = agree(local, rank, attempt, result);
    if (result == ZR_OK && agreed == ZR_OK) {
        *out = &comm->base;
        return ZR_OK;
    }
    if (comm)
        zr_comm_destroy(&comm->base);
    return result == ZR_OK ? agreed : zr_fail(result, "%s", words);
}
