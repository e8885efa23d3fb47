/* local_ring.c: the operations of the local communicator, through rings in shared granules. Used by local.c.
 *
 * Rings. Each rank has a ring of two slots in its own arena, which all peers have mapped (share.c). An
 * operation is cut into pieces that fit a slot. For every piece each rank fills a slot of its ring, posts the
 * slot, and reads the slots of its peers directly from their rings. A rank refills a slot when all peers have
 * read it; with two slots, the next piece is written while the peers still read the previous one. Every rank
 * performs the same sequence of fills and reads, empty ones where it has no data, so waits cannot form a
 * cycle.
 *
 * Direct reads. A large operation whose sources all lie in granules that the peers can map does not use the
 * slots. The ranks meet, and each rank reads its data from the peers' memory (local_mapping.c). A rank
 * continues when all ranks have read, or meets them again before it exposes other data.
 *
 * Transfers. A transfer between two ranks waits until the sender's ring is empty, and then uses the same
 * slots with a separate pair of counters, which only these two ranks advance.
 *
 * GPU streams. The same copies and sums, with the waits for counters and the updates of counters between
 * them, are queued in the stream of operations. No host waits for a peer. The operations of a rank are in one
 * order in the stream, and in the same order on its peers, so waits cannot form a cycle.
 *
 * Sums are computed in rank order for each element, so results depend neither on the slot size nor on the
 * pieces. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "kernels/streams.h"
#include "zero/comm/local/local_ring.h"
#include "zero/comm/local/local_mapping.h"

/* Minimum shard of a direct read: copying a smaller shard is faster than meeting the peers twice. */
#define DIRECT_BYTES ((size_t)64 << 10)
/* Size of the block that is summed at a time, so that the next addends find the block in the cache. */
#define BLOCK_BYTES ((size_t)128 << 10)

/* ---- Words and copies ---------------------------------------------------------------------------------- */

static bool has_reached(_Atomic uint32_t *word, uint32_t target)
{
    return (int32_t)(atomic_load(word) - target) >= 0;
}

/* Waits for a counter of peer p / advances one: at once, or with `queues` in stream order. */
static zr_result await_word(struct local_comm *comm, unsigned p, _Atomic uint32_t *word,
                            _Atomic uint32_t *sleepers, uint32_t target)
{
    const struct zr_comm_options *o = &comm->base.options;
    if (comm->queues)
        return o->kernels->streams->word_wait(o->beside, word, target);
    if (has_reached(word, target))
        return ZR_OK;
    const uint64_t start_ns = zr_os_now_ns();
    zr_result result = zr_local_wait_for_peer(comm, p, word, sleepers, target);
    comm->base.waited_ns += zr_os_now_ns() - start_ns;
    return result;
}

static zr_result move_word(const struct local_comm *comm, _Atomic uint32_t *word, uint32_t value,
                           _Atomic uint32_t *sleepers)
{
    const struct zr_comm_options *o = &comm->base.options;
    if (comm->queues)
        return o->kernels->streams->word_write(o->beside, word, value);
    zr_local_advance(word, value, sleepers);
    return ZR_OK;
}

void zr_local_advance(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers)
{
    atomic_store(word, value);
    if (!sleepers || atomic_load(sleepers) > 0)
        zr_word_wake_all(word);
}

static zr_result copy(struct local_comm *comm, void *to, const void *from, size_t bytes)
{
    if (!comm->base.options.kernels->host_visible)
        return zr_comm_copy(&comm->base, to, from, bytes);
    memmove(to, from, bytes);
    return ZR_OK;
}

static zr_result end_copies(struct local_comm *comm)
{
    return comm->base.options.kernels->host_visible ? ZR_OK : zr_comm_end_copies(&comm->base);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

/* Waits until all peers have read the pieces that this rank has posted, except the last `left` ones. */
static zr_result wait_for_readers(struct local_comm *comm, uint32_t left)
{
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < comm->base.world && result == ZR_OK; p++) {
        struct zr_local_peer *peer = &comm->peers[p];
        if (p != comm->base.rank)
            result = await_word(comm, p, &peer->ring->consumed, &peer->ring->consumed_sleepers,
                                peer->posted + comm->filled - left);
    }
    return result;
}

zr_result zr_local_synchronize(struct zr_comm *comm)
{
    return wait_for_readers((struct local_comm *)comm, 0);
}

/* Waits until the next slot is free and returns it for filling. */
static zr_result fill_begin(struct local_comm *comm, char **slot)
{
    *slot = comm->slots + (comm->filled & 1) * comm->slot_bytes;
    return wait_for_readers(comm, 1);
}

static zr_result fill_end(struct local_comm *comm, struct zr_local_piece piece)
{
    zr_result result = comm->queues ? ZR_OK : end_copies(comm);
    if (result != ZR_OK)
        return result;
    if (!comm->queues)
        comm->ring->pieces[comm->filled & 1] = piece;
    comm->filled++;
    return move_word(comm, &comm->ring->posted, comm->peers[comm->base.rank].posted + comm->filled,
                     &comm->ring->posted_sleepers);
}

/* Waits until rank p has posted the next piece, and returns its slot for reading. */
static zr_result peer_slot(struct local_comm *comm, unsigned p, struct zr_local_piece piece,
                           const char **slot)
{
    const struct zr_local_peer *peer = &comm->peers[p];
    zr_result result =
        await_word(comm, p, &peer->ring->posted, &peer->ring->posted_sleepers, peer->posted + comm->read + 1);
    if (result != ZR_OK)
        return result;
    *slot = peer->slots + (comm->read & 1) * comm->slot_bytes;
    if (comm->queues) /* the stream waits instead */
        return ZR_OK;
    struct zr_local_piece theirs = peer->ring->pieces[comm->read & 1];
    if (theirs.kind != piece.kind || theirs.bytes != piece.bytes) {
        zr_fail(ZR_ERR_PEER,
                "the ranks are out of step: rank %u runs %s with shards of %llu bytes where rank %u runs "
                "%s with %llu",
                peer->rank, zr_comm_kind_name((enum zr_comm_kind)theirs.kind),
                (unsigned long long)theirs.bytes, comm->base.run_rank,
                zr_comm_kind_name((enum zr_comm_kind)piece.kind), (unsigned long long)piece.bytes);
        return zr_local_out_of_step(comm->base.local, comm->base.run_rank);
    }
    return ZR_OK;
}

/* After a failure a rank closes without waiting for its readers, so data read from a rank that has closed
 * may be stale. */
static zr_result read_end(struct local_comm *comm)
{
    uint32_t read = comm->peers[comm->base.rank].posted + comm->read + 1;
    zr_result ended = comm->queues ? ZR_OK : end_copies(comm);
    if (ended != ZR_OK)
        return ended;
    if (comm->queues) {
        comm->read++;
        return move_word(comm, &comm->ring->consumed, read, &comm->ring->consumed_sleepers);
    }
    atomic_thread_fence(memory_order_acquire); /* the data was read before the checks below */
    for (unsigned p = 0; p < comm->base.world; p++)
        if (p != comm->base.rank && !atomic_load(&comm->peers[p].ring->open)) {
            unsigned rank = comm->peers[p].rank;
            zr_result result = zr_local_check(comm->base.local, rank);
            return result != ZR_OK
                       ? result
                       : zr_fail(ZR_ERR_PEER, "rank %u has closed while others still read from it", rank);
        }
    comm->read++;
    zr_local_advance(&comm->ring->consumed, read, &comm->ring->consumed_sleepers);
    return ZR_OK;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Position in the slot of rank `from` of the data for rank `to`: in rank order, without `from`. */
static size_t place_of(unsigned from, unsigned to)
{
    return to < from ? to : to - 1;
}

/* A running operation: what each rank writes to its slot, and what it reads from the others' slots. */
struct movement {
    struct zr_local_piece piece; /* the kind of the caller's operation, and the bytes of a shard */
    size_t part_bytes;           /* of a shard per piece */
    const char *source;
    char *destination;
    bool fills, reads; /* writes to the slot / reads the peers' slots */
    bool source_stays; /* the source is unchanged until all ranks have met again */
    unsigned only;     /* the rank to read from, or world: all ranks */
    bool apart;        /* the source has different data for each peer, `piece.bytes` for each rank */
    /* Sums the peers' data for this rank in this operation; NULL: copies. */
    const struct zr_comm_item *adds;
};

static struct zr_comm_part part_of(const struct movement *move, size_t index)
{
    size_t whole = move->piece.bytes, first = index * move->part_bytes;
    return (struct zr_comm_part){
        .first = first, .bytes = whole - first < move->part_bytes ? whole - first : move->part_bytes};
}

static size_t parts_count(const struct movement *move)
{
    size_t whole = move->piece.bytes;
    return whole / move->part_bytes + (whole % move->part_bytes != 0);
}

static zr_result fill(struct local_comm *comm, const struct movement *move, size_t index)
{
    char *slot;
    struct zr_comm_part part = part_of(move, index);
    zr_result result = fill_begin(comm, &slot);
    if (result != ZR_OK)
        return result;
    for (unsigned p = 0; move->apart && p < comm->base.world && result == ZR_OK; p++)
        if (p != comm->base.rank)
            result = copy(comm, slot + place_of(comm->base.rank, p) * move->part_bytes,
                          move->source + p * move->piece.bytes + part.first, part.bytes);
    if (move->fills && !move->apart)
        result = copy(comm, slot, move->source + part.first, part.bytes);
    return result == ZR_OK ? fill_end(comm, move->piece) : result;
}

/* Sums a part of the data at comm->from. */
static zr_result sum(struct local_comm *comm, const struct zr_comm_item *item, struct zr_comm_part part)
{
    const struct zr_kernels *kernels = comm->base.options.kernels;
    struct zr_kernel_context *context = NULL;
    struct zr_sum sum = item->reduction.sum;
    sum.n = part.bytes / ZR_COMM_TYPE_BYTES(item->type);
    sum.from = comm->from;
    sum.to.at = (char *)sum.to.at + part.first * item->reduction.widens;
    zr_result result = kernels->host_visible ? ZR_OK : zr_comm_context(&comm->base, &context);
    return result == ZR_OK ? kernels->sum(context, &sum) : result;
}

/* Sums one part of all ranks' data for this rank, in rank order, directly from the slots. */
static zr_result read_sum(struct local_comm *comm, const struct movement *move, struct zr_comm_part part)
{
    unsigned rank = comm->base.rank;
    for (unsigned p = 0; p < comm->base.world; p++) {
        const char *slot;
        if (p == rank) {
            comm->from[p] = zr_comm_addends(move->adds, rank) + part.first;
            continue;
        }
        zr_result result = peer_slot(comm, p, move->piece, &slot);
        if (result != ZR_OK)
            return result;
        comm->from[p] = slot + (move->apart ? place_of(p, rank) * move->part_bytes : 0);
        comm->base.received_bytes += part.bytes;
    }
    return sum(comm, move->adds, part);
}

/* Copies one part of each peer's shard. Each rank starts with the next rank, so that they do not all read
 * one ring at the same time. */
static zr_result read_copy(struct local_comm *comm, const struct movement *move, struct zr_comm_part part)
{
    unsigned rank = comm->base.rank, world = comm->base.world;
    for (unsigned i = 1; i < world; i++) {
        const char *slot;
        unsigned p = (rank + i) % world;
        if (move->only < world && p != move->only)
            continue;
        zr_result result = peer_slot(comm, p, move->piece, &slot);
        if (result != ZR_OK)
            return result;
        result = copy(comm, move->destination + (move->only < world ? 0 : p * move->piece.bytes) + part.first,
                      slot + (move->apart ? place_of(p, rank) * move->part_bytes : 0), part.bytes);
        if (result != ZR_OK)
            return result;
        comm->base.received_bytes += part.bytes;
    }
    return ZR_OK;
}

/* Waits for a piece without reading it. Every rank waits for every piece, because only the wait shows that
 * the peers have posted their slots. */
static zr_result skip_piece(struct local_comm *comm, const struct movement *move)
{
    for (unsigned p = 0; p < comm->base.world; p++) {
        const char *slot;
        zr_result result = p == comm->base.rank ? ZR_OK : peer_slot(comm, p, move->piece, &slot);
        if (result != ZR_OK)
            return result;
    }
    return ZR_OK;
}

static zr_result read(struct local_comm *comm, const struct movement *move, size_t index)
{
    struct zr_comm_part part = part_of(move, index);
    zr_result result = ZR_OK;
    if (move->adds)
        result = read_sum(comm, move, part);
    else if (move->reads)
        result = read_copy(comm, move, part);
    if (result == ZR_OK && !move->adds && (!move->reads || move->only < comm->base.world))
        result = skip_piece(comm, move);
    return result == ZR_OK ? read_end(comm) : result;
}

/* Copies this rank's own part while the peers work. */
static zr_result copy_own(struct local_comm *comm, const struct movement *move)
{
    size_t own = comm->base.rank * move->piece.bytes;
    char *to = move->destination + own;
    const char *from = move->source + (move->apart ? own : 0);
    return move->fills && move->reads && from != to ? copy(comm, to, from, move->piece.bytes) : ZR_OK;
}

/* ---- Direct reads -------------------------------------------------------------------------------------- */

/* Whether the ranks meet to find out if they can read directly; equal on all ranks. */
static bool may_be_direct(const struct local_comm *comm, const struct movement *move)
{
    enum zr_comm_algorithm algorithm = comm->base.options.algorithm;
    return !comm->queues && algorithm != ZR_COMM_RING &&
           move->piece.bytes >= (algorithm == ZR_COMM_DIRECT ? 1 : DIRECT_BYTES);
}

/* Exposes this rank's data; *direct: all ranks have exposed theirs. If so, the caller ends the read of the
 * piece; otherwise the piece was empty, and its read has ended. */
static zr_result meet(struct local_comm *comm, const struct movement *move, bool *direct)
{
    char *slot;
    const char *unused;
    size_t bytes = move->piece.bytes * (move->apart ? comm->base.world : 1);
    struct zr_local_piece piece = move->piece;
    zr_result result = wait_for_readers(comm, 0); /* the previous exposed data may still be read */
    if (result == ZR_OK)
        result = fill_begin(comm, &slot);
    if (result != ZR_OK)
        return result;
    piece.direct = zr_local_expose(comm, move->source, move->fills ? bytes : 0);
    *direct = piece.direct;
    result = fill_end(comm, piece);
    for (unsigned p = 0; p < comm->base.world && result == ZR_OK; p++)
        if (p != comm->base.rank) {
            result = peer_slot(comm, p, piece, &unused);
            *direct &= comm->peers[p].ring->pieces[comm->read & 1].direct;
        }
    return result == ZR_OK && !*direct ? read_end(comm) : result;
}

static zr_result sum_directly(struct local_comm *comm, const struct movement *move)
{
    unsigned rank = comm->base.rank;
    size_t own = move->apart ? rank * move->piece.bytes : 0;
    for (size_t first = 0; first < move->piece.bytes;) {
        size_t bytes = smaller(move->piece.bytes - first, BLOCK_BYTES);
        for (unsigned p = 0; p < comm->base.world; p++) {
            struct zr_local_view view = {.at = move->source + own + first, .bytes = bytes};
            zr_result result = p == rank ? ZR_OK : zr_local_map(comm, p, own + first, &view);
            if (result != ZR_OK)
                return result;
            comm->from[p] = view.at;
            bytes = smaller(bytes, view.bytes);
        }
        zr_result summed = sum(comm, move->adds, (struct zr_comm_part){first, bytes});
        if (summed != ZR_OK)
            return summed;
        comm->base.received_bytes += (comm->base.world - 1) * bytes;
        first += bytes;
    }
    return ZR_OK;
}

/* Copies from the data that `peer` exposes, starting at `offset`. */
static zr_result copy_directly(struct local_comm *comm, unsigned peer, size_t offset, char *to, size_t bytes)
{
    while (bytes > 0) {
        struct zr_local_view view;
        zr_result result = zr_local_map(comm, peer, offset, &view);
        if (result != ZR_OK)
            return result;
        size_t here = smaller(bytes, view.bytes);
        memcpy(to, view.at, here);
        comm->base.received_bytes += here;
        to += here;
        offset += here;
        bytes -= here;
    }
    return ZR_OK;
}

/* Reads the data of an operation after the ranks have met. */
static zr_result read_directly(struct local_comm *comm, const struct movement *move)
{
    unsigned rank = comm->base.rank, world = comm->base.world;
    zr_result result = move->adds ? sum_directly(comm, move) : ZR_OK;
    for (unsigned i = 1; i < world && result == ZR_OK && move->reads; i++) {
        unsigned p = (rank + i) % world;
        if (move->only == world || move->only == p)
            result = copy_directly(comm, p, move->apart ? rank * move->piece.bytes : 0,
                                   move->destination + (move->only < world ? 0 : p * move->piece.bytes),
                                   move->piece.bytes);
    }
    return result == ZR_OK ? read_end(comm) : result;
}

/* ---- Collectives --------------------------------------------------------------------------------------- */

static zr_result move_all(struct local_comm *comm, const struct movement *move)
{
    size_t count = parts_count(move);
    bool direct = false;
    zr_result result = may_be_direct(comm, move) ? meet(comm, move, &direct) : ZR_OK;
    if (result != ZR_OK)
        return result;
    if (direct) {
        result = copy_own(comm, move);
        if (result == ZR_OK)
            result = read_directly(comm, move);
        zr_local_unmap(comm);
        return result == ZR_OK && !move->source_stays ? wait_for_readers(comm, 0) : result;
    }
    result = fill(comm, move, 0);
    if (result == ZR_OK)
        result = copy_own(comm, move);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + 1 < count)
            result = fill(comm, move, i + 1);
        if (result == ZR_OK)
            result = read(comm, move, i);
    }
    return result;
}

/* The movement of a reduction: a sum for each rank, or for one. */
static struct movement reduction(const struct local_comm *comm, const struct zr_comm_item *item)
{
    const bool apart = item->kind != ZR_COMM_REDUCE, sums = zr_comm_sums(item, comm->base.rank);
    return (struct movement){.piece = {.kind = item->kind, .bytes = item->bytes},
                             .part_bytes = apart ? comm->each_bytes : comm->slot_bytes,
                             .source = item->reduction.source,
                             .fills = apart || !sums,
                             .apart = apart,
                             .adds = sums ? item : NULL,
                             .only = comm->base.world};
}

static zr_result run_reduction(struct local_comm *comm, const struct zr_comm_item *item)
{
    const struct movement move = reduction(comm, item);
    return move_all(comm, &move);
}

static zr_result run_all_gather(struct local_comm *comm, const struct zr_all_gather *op)
{
    return move_all(comm, &(struct movement){.piece = {.kind = ZR_COMM_ALL_GATHER, .bytes = op->shard_bytes},
                                             .part_bytes = comm->slot_bytes,
                                             .source = op->source,
                                             .destination = op->destination,
                                             .fills = true,
                                             .reads = true,
                                             .source_stays = op->source_stays,
                                             .only = comm->base.world});
}

static zr_result run_all_to_all(struct local_comm *comm, const struct zr_all_gather *op)
{
    return move_all(comm, &(struct movement){.piece = {.kind = ZR_COMM_ALL_TO_ALL, .bytes = op->shard_bytes},
                                             .part_bytes = comm->each_bytes,
                                             .source = op->source,
                                             .destination = op->destination,
                                             .fills = true,
                                             .reads = true,
                                             .apart = true,
                                             .only = comm->base.world});
}

static zr_result run_broadcast(struct local_comm *comm, const struct zr_broadcast *op)
{
    bool root = comm->base.rank == op->root;
    return move_all(comm, &(struct movement){.piece = {.kind = ZR_COMM_BROADCAST, .bytes = op->bytes},
                                             .part_bytes = comm->slot_bytes,
                                             .source = op->buffer,
                                             .destination = op->buffer,
                                             .fills = root,
                                             .reads = !root,
                                             .only = op->root});
}

/* Gathers the sums from the buffers where they were computed. A peer that posts its sum has read its
 * operands, so this rank may overwrite the peer's part of its own buffer. */
static zr_result gather_sums(struct local_comm *comm, const struct movement *reduce)
{
    char *slot, *buffer = (char *)reduce->source;
    size_t bytes = reduce->piece.bytes;
    zr_result result = fill_begin(comm, &slot);
    if (result == ZR_OK)
        result = fill_end(comm, reduce->piece);
    for (unsigned i = 1; i < comm->base.world && result == ZR_OK; i++) {
        const char *unused;
        unsigned p = (comm->base.rank + i) % comm->base.world;
        result = peer_slot(comm, p, reduce->piece, &unused);
        if (result == ZR_OK)
            result = copy_directly(comm, p, p * bytes, buffer + p * bytes, bytes);
    }
    if (result == ZR_OK)
        result = read_end(comm);
    if (result != ZR_OK)
        return result;
    zr_local_unmap(comm);
    return wait_for_readers(comm, 0);
}

/* Sums part i while the sums of part i - 1 are gathered; the ring holds, in turn, R0 R1 G0 R2 G1 R3 G2 ... */
static zr_result run_all_reduce(struct local_comm *comm, const struct zr_comm_item *item)
{
    const struct movement reduce = reduction(comm, item);
    const struct movement gather = {.piece = reduce.piece,
                                    .part_bytes = reduce.part_bytes,
                                    .source = item->reduction.sum.to.at,
                                    .destination = (char *)item->reduction.source,
                                    .fills = true,
                                    .reads = true,
                                    .only = comm->base.world};
    size_t count = parts_count(&reduce);
    bool direct = false;
    zr_result result = may_be_direct(comm, &reduce) ? meet(comm, &reduce, &direct) : ZR_OK;
    if (result == ZR_OK && direct) {
        result = read_directly(comm, &reduce);
        return result == ZR_OK ? gather_sums(comm, &reduce) : result;
    }
    if (result == ZR_OK)
        result = fill(comm, &reduce, 0);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        result = read(comm, &reduce, i);
        if (result == ZR_OK && i + 1 < count)
            result = fill(comm, &reduce, i + 1);
        if (result == ZR_OK && i > 0)
            result = read(comm, &gather, i - 1);
        if (result == ZR_OK)
            result = fill(comm, &gather, i);
    }
    return result == ZR_OK ? read(comm, &gather, count - 1) : result;
}

/* ---- Transfers between two ranks ----------------------------------------------------------------------- */

/* Waits until the count of taken messages of `sender` reaches `target`; `by`: the rank that takes the
 * message. */
static zr_result wait_until_taken(struct local_comm *comm, unsigned sender, uint32_t target, unsigned by)
{
    struct zr_local_ring *ring = comm->peers[sender].ring;
    return zr_local_wait_for_peer(comm, by, &ring->taken, &ring->taken_sleepers, target);
}

static zr_result send_part(struct local_comm *comm, const struct zr_transfer *op, size_t first)
{
    size_t left = op->send_bytes - first, bytes = left < comm->slot_bytes ? left : comm->slot_bytes;
    zr_result result = wait_until_taken(comm, comm->base.rank, comm->lent - 1, op->to);
    if (result != ZR_OK)
        return result;
    result =
        copy(comm, comm->slots + (comm->lent & 1) * comm->slot_bytes, (const char *)op->send + first, bytes);
    if (result == ZR_OK)
        result = end_copies(comm);
    if (result != ZR_OK)
        return result;
    comm->ring->parcels[comm->lent & 1] = (struct zr_local_parcel){.bytes = op->send_bytes, .to = op->to};
    zr_local_advance(&comm->ring->lent, ++comm->lent, &comm->ring->lent_sleepers);
    return ZR_OK;
}

/* Receives one message. If the sender's next message is for another rank, waits until that rank takes it. */
static zr_result receive_part(struct local_comm *comm, const struct zr_transfer *op, size_t first)
{
    struct zr_local_ring *sender = comm->peers[op->from].ring;
    size_t left = op->receive_bytes - first, bytes = left < comm->slot_bytes ? left : comm->slot_bytes;
    for (;;) {
        uint32_t next = atomic_load(&sender->taken);
        zr_result result =
            zr_local_wait_for_peer(comm, op->from, &sender->lent, &sender->lent_sleepers, next + 1);
        struct zr_local_parcel parcel = sender->parcels[next & 1];
        if (result != ZR_OK)
            return result;
        atomic_thread_fence(memory_order_acquire); /* the message was read before the check below */
        if (atomic_load(&sender->taken) != next)
            continue; /* another rank took the message, and the slot may have been refilled */
        if (parcel.to != comm->base.rank) {
            result = wait_until_taken(comm, op->from, next + 1, parcel.to);
            if (result != ZR_OK)
                return result;
            continue;
        }
        if (parcel.bytes != op->receive_bytes) {
            zr_fail(ZR_ERR_PEER,
                    "the ranks are out of step: rank %u sends %llu bytes where rank %u receives %zu",
                    comm->peers[op->from].rank, (unsigned long long)parcel.bytes, comm->base.run_rank,
                    op->receive_bytes);
            return zr_local_out_of_step(comm->base.local, comm->base.run_rank);
        }
        result = copy(comm, (char *)op->receive + first,
                      comm->peers[op->from].slots + (next & 1) * comm->slot_bytes, bytes);
        if (result == ZR_OK)
            result = end_copies(comm);
        if (result != ZR_OK)
            return result;
        comm->base.received_bytes += bytes;
        zr_local_advance(&sender->taken, next + 1, &sender->taken_sleepers);
        return ZR_OK;
    }
}

/* Sends up to two slots more than it has received, so that the two sides never wait for each other. */
static zr_result exchange(struct local_comm *comm, const struct zr_transfer *op)
{
    size_t sent = 0, received = 0, ahead = 2 * comm->slot_bytes;
    zr_result result = op->send_bytes > 0 ? wait_for_readers(comm, 0) : ZR_OK;
    while (result == ZR_OK && (sent < op->send_bytes || received < op->receive_bytes)) {
        if (sent < op->send_bytes && (sent < received + ahead || received >= op->receive_bytes)) {
            result = send_part(comm, op, sent);
            sent += comm->slot_bytes;
        } else {
            result = receive_part(comm, op, received);
            received += comm->slot_bytes;
        }
    }
    if (result == ZR_OK && op->send_bytes > 0) /* the slots are free for collectives again */
        result = wait_until_taken(comm, comm->base.rank, comm->lent, op->to);
    return result;
}

/* Runs a transfer. The host waits even if operations are in a GPU stream, because the host decides which rank
 * takes a message next. */
static zr_result run_transfer(struct local_comm *comm, const struct zr_transfer *op)
{
    bool queues = comm->queues;
    zr_result result = zr_comm_drain(&comm->base);
    comm->queues = false;
    if (result == ZR_OK)
        result = exchange(comm, op);
    comm->queues = queues;
    return result;
}

zr_result zr_local_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    struct local_comm *self = (struct local_comm *)comm;
    switch (item->kind) {
    case ZR_COMM_REDUCE:
    case ZR_COMM_REDUCE_SCATTER:
        return run_reduction(self, item);
    case ZR_COMM_ALL_GATHER:
        return run_all_gather(self, &item->all_gather);
    case ZR_COMM_ALL_REDUCE:
        return run_all_reduce(self, item);
    case ZR_COMM_ALL_TO_ALL:
        return run_all_to_all(self, &item->all_gather);
    case ZR_COMM_BROADCAST:
        return run_broadcast(self, &item->broadcast);
    case ZR_COMM_SEND:
    case ZR_COMM_RECEIVE:
    case ZR_COMM_SEND_RECEIVE:
        return run_transfer(self, &item->transfer);
    case ZR_COMM_HOST:
    case ZR_COMM_KIND_COUNT:
        break;
    }
    return zr_fail(ZR_ERR_INVALID, "unknown operation %d", (int)item->kind);
}
