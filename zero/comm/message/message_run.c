/* message_run.c: operations over a transport. Used by message.c.
 *
 * Data that only moves goes directly between the callers' buffers, between all pairs or from neighbour to
 * neighbour. Operands of sums arrive in the ring, a part of every peer's shard per slot, and are added in
 * rank order while the next part arrives in the other slot. No message exceeds the transport's maximum. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/message/message.h"

/* From this number of ranks on a ring is faster than all pairs at once: N - 1 steps of one message,
 * instead of N - 1 messages that share the wires. */
enum { RING_WORLD = 5 };
#define RING_BYTES ((size_t)1 << 20)

static unsigned neighbour(const struct message_comm *self, unsigned steps)
{
    return (self->base.rank + steps) % self->base.world;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* One message each way; NULL: none. */
struct pair {
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    unsigned to, from;
};

static zr_result post_pair(struct message_comm *self, struct zr_message_operations *under_way,
                           const struct pair *pair)
{
    zr_result result = ZR_OK;
    if (pair->in)
        result = zr_message_receive(
            self, under_way,
            &(struct zr_transport_message){.peer = pair->from, .data = pair->in, .bytes = pair->in_bytes});
    if (result == ZR_OK && pair->out)
        result = zr_message_send(self, under_way,
                                 &(struct zr_transport_message){
                                     .peer = pair->to, .data = (char *)pair->out, .bytes = pair->out_bytes});
    return result;
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static size_t part_bytes(const struct message_comm *self, const struct zr_comm_item *op, size_t index)
{
    return smaller(op->bytes - index * self->each_bytes, self->each_bytes);
}

static char *place_in_slot(const struct message_comm *self, size_t index, unsigned peer)
{
    unsigned place = peer < self->base.rank ? peer : peer - 1;
    return self->ring + (index & 1) * self->slot_bytes + place * self->each_bytes;
}

static zr_result post_part(struct message_comm *self, const struct zr_comm_item *op, size_t index)
{
    size_t bytes = part_bytes(self, op, index), first = index * self->each_bytes;
    zr_result result = ZR_OK;
    for (unsigned i = 1; i < self->base.world && result == ZR_OK; i++) {
        unsigned to = neighbour(self, i), from = neighbour(self, self->base.world - i);
        result = post_pair(
            self, &self->under_way[index & 1],
            &(struct pair){.out = zr_comm_sums(op, to) ? zr_comm_addends(op, to) + first : NULL,
                           .in = zr_comm_sums(op, self->base.rank) ? place_in_slot(self, index, from) : NULL,
                           .out_bytes = bytes,
                           .in_bytes = bytes,
                           .to = to,
                           .from = from});
    }
    return result;
}

static zr_result add_part(struct message_comm *self, const struct zr_comm_item *op, size_t index)
{
    unsigned rank = self->base.rank;
    size_t first = index * self->each_bytes;
    struct zr_kernel_context *context;
    struct zr_sum sum = op->reduction.sum;
    for (unsigned p = 0; p < self->base.world; p++)
        self->from[p] = p == rank ? zr_comm_addends(op, rank) + first : place_in_slot(self, index, p);
    sum.n = part_bytes(self, op, index) / ZR_COMM_TYPE_BYTES(op->type);
    sum.from = self->from;
    sum.to.at = (char *)sum.to.at + first * op->reduction.widens;
    zr_result result = zr_comm_context(&self->base, &context);
    return result == ZR_OK ? self->base.options.kernels->sum(context, &sum) : result;
}

/* Adds part i while part i + 1 arrives. */
static zr_result run_reduction(struct message_comm *self, const struct zr_comm_item *op)
{
    size_t count = op->bytes / self->each_bytes + (op->bytes % self->each_bytes != 0);
    zr_result result = post_part(self, op, 0);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + 1 < count)
            result = post_part(self, op, i + 1);
        if (result == ZR_OK)
            result = zr_message_wait(self, &self->under_way[i & 1]);
        if (result == ZR_OK && zr_comm_sums(op, self->base.rank))
            result = add_part(self, op, i);
    }
    return result;
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

/* Exchange between all pairs. Distances of the shards in the destination, 0 for a single one, and in the
 * source, 0: every peer gets the same. */
struct exchange {
    const char *source;
    char *destination;
    size_t bytes, step, source_step;
    bool sends, receives; /* this rank's role */
    unsigned only;        /* the only peer, or world */
};

static zr_result exchange(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct exchange *op)
{
    zr_result result = ZR_OK;
    size_t first = 0;
    do {
        size_t bytes = smaller(op->bytes - first, self->most_bytes);
        for (unsigned i = 1; i < self->base.world && result == ZR_OK; i++) {
            unsigned to = neighbour(self, i), from = neighbour(self, self->base.world - i);
            bool sends = op->sends && (op->only == self->base.world || op->only == to);
            bool receives = op->receives && (op->only == self->base.world || op->only == from);
            struct pair pair = {.out_bytes = bytes, .in_bytes = bytes, .to = to, .from = from};
            if (sends)
                pair.out = op->source + to * op->source_step + first;
            if (receives)
                pair.in = op->destination + from * op->step + first;
            result = post_pair(self, under_way, &pair);
        }
        if (result == ZR_OK)
            result = zr_message_wait(self, under_way);
        first += bytes;
    } while (first < op->bytes && result == ZR_OK);
    return result;
}

/* In step s each rank sends the shard that it received in step s - 1; in the first step it sends its own
 * shard. */
static zr_result gather_in_ring(struct message_comm *self, char *all, size_t shard_bytes)
{
    unsigned world = self->base.world;
    zr_result result = ZR_OK;
    for (unsigned step = 0; step + 1 < world; step++)
        for (size_t first = 0; first < shard_bytes && result == ZR_OK; first += self->most_bytes) {
            size_t bytes = smaller(shard_bytes - first, self->most_bytes);
            result = post_pair(
                self, &self->under_way[0],
                &(struct pair){.out = all + neighbour(self, world - step) * shard_bytes + first,
                               .in = all + neighbour(self, 2 * world - step - 1) * shard_bytes + first,
                               .out_bytes = bytes,
                               .in_bytes = bytes,
                               .to = neighbour(self, 1),
                               .from = neighbour(self, world - 1)});
            if (result == ZR_OK)
                result = zr_message_wait(self, &self->under_way[0]);
        }
    return result;
}

static bool in_ring(const struct zr_comm *comm, size_t bytes)
{
    if (comm->options.algorithm != ZR_COMM_AUTO)
        return comm->options.algorithm == ZR_COMM_RING;
    return comm->world >= RING_WORLD && bytes >= RING_BYTES;
}

static zr_result run_all_gather(struct message_comm *self, const struct zr_all_gather *op)
{
    char *own = (char *)op->destination + self->base.rank * op->shard_bytes;
    zr_result result = zr_comm_copy(&self->base, own, op->source, op->shard_bytes);
    if (result != ZR_OK)
        return result;
    if (in_ring(&self->base, op->shard_bytes))
        return gather_in_ring(self, op->destination, op->shard_bytes);
    return exchange(self, &self->under_way[0],
                    &(struct exchange){.source = own,
                                       .destination = op->destination,
                                       .bytes = op->shard_bytes,
                                       .step = op->shard_bytes,
                                       .sends = true,
                                       .receives = true,
                                       .only = self->base.world});
}

static zr_result run_all_to_all(struct message_comm *self, const struct zr_all_gather *op)
{
    size_t bytes = op->shard_bytes, own = self->base.rank * bytes;
    zr_result result =
        zr_comm_copy(&self->base, (char *)op->destination + own, (const char *)op->source + own, bytes);
    return result != ZR_OK ? result
                           : exchange(self, &self->under_way[0],
                                      &(struct exchange){.source = op->source,
                                                         .destination = op->destination,
                                                         .bytes = bytes,
                                                         .step = bytes,
                                                         .source_step = bytes,
                                                         .sends = true,
                                                         .receives = true,
                                                         .only = self->base.world});
}

static zr_result run_all_reduce(struct message_comm *self, const struct zr_comm_item *item)
{
    zr_result result = run_reduction(self, item);
    if (result != ZR_OK)
        return result;
    return run_all_gather(self, &(struct zr_all_gather){.source = item->reduction.sum.to.at,
                                                        .destination = (char *)item->reduction.source,
                                                        .shard_bytes = item->bytes});
}

/* ---- Broadcast and transfers --------------------------------------------------------------------------- */

/* Passes data from neighbour to neighbour, starting at the root: a rank passes on a piece while it receives
 * the next one. */
static zr_result broadcast_in_ring(struct message_comm *self, const struct zr_broadcast *op)
{
    unsigned world = self->base.world, place = (self->base.rank + world - op->root) % world;
    size_t piece = smaller(self->slot_bytes, self->most_bytes), index = 0;
    zr_result result = ZR_OK;
    for (size_t first = 0; first < op->bytes && result == ZR_OK; first += piece, index++) {
        char *at = (char *)op->buffer + first;
        size_t bytes = smaller(op->bytes - first, piece);
        struct zr_message_operations *under_way = &self->under_way[index & 1];
        result = zr_message_wait(self, under_way); /* the piece before the previous one has been sent */
        if (result == ZR_OK && place > 0)
            result = zr_message_receive(self, under_way,
                                        &(struct zr_transport_message){
                                            .peer = neighbour(self, world - 1), .data = at, .bytes = bytes});
        if (result == ZR_OK && place > 0)
            result = zr_message_wait(self, under_way);
        if (result == ZR_OK && place + 1 < world)
            result = zr_message_send(
                self, under_way,
                &(struct zr_transport_message){.peer = neighbour(self, 1), .data = at, .bytes = bytes});
    }
    for (unsigned i = 0; i < 2 && result == ZR_OK; i++)
        result = zr_message_wait(self, &self->under_way[i]);
    return result;
}

static zr_result run_broadcast(struct message_comm *self, const struct zr_broadcast *op)
{
    bool root = self->base.rank == op->root;
    if (in_ring(&self->base, op->bytes))
        return broadcast_in_ring(self, op);
    return exchange(self, &self->under_way[0],
                    &(struct exchange){.source = op->buffer,
                                       .destination = op->buffer,
                                       .bytes = op->bytes,
                                       .sends = root,
                                       .receives = !root,
                                       .only = root ? self->base.world : op->root});
}

static zr_result run_transfer(struct message_comm *self, const struct zr_transfer *op)
{
    zr_result result = ZR_OK;
    for (size_t first = 0; (first < op->send_bytes || first < op->receive_bytes) && result == ZR_OK;
         first += self->most_bytes) {
        struct pair pair = {.to = op->to, .from = op->from};
        if (first < op->send_bytes) {
            pair.out = (const char *)op->send + first;
            pair.out_bytes = smaller(op->send_bytes - first, self->most_bytes);
        }
        if (first < op->receive_bytes) {
            pair.in = (char *)op->receive + first;
            pair.in_bytes = smaller(op->receive_bytes - first, self->most_bytes);
        }
        result = post_pair(self, &self->under_way[0], &pair);
        if (result == ZR_OK)
            result = zr_message_wait(self, &self->under_way[0]);
    }
    return result;
}

/* The distance doubles in each round: after log2 N rounds every rank knows that all ranks have arrived. */
static zr_result barrier(struct message_comm *self)
{
    char nothing = 0;
    zr_result result = ZR_OK;
    for (unsigned far = 1; far < self->base.world && result == ZR_OK; far *= 2) {
        result = post_pair(self, &self->host,
                           &(struct pair){.out = &nothing,
                                          .in = &nothing,
                                          .to = neighbour(self, far),
                                          .from = neighbour(self, self->base.world - far)});
        if (result == ZR_OK)
            result = zr_message_wait(self, &self->host);
    }
    return result;
}

zr_result zr_message_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    struct message_comm *self = (struct message_comm *)comm;
    if (op->shard_bytes == 0)
        return barrier(self);
    memmove((char *)op->destination + comm->rank * op->shard_bytes, op->source, op->shard_bytes);
    return exchange(self, &self->host,
                    &(struct exchange){.source = op->source,
                                       .destination = op->destination,
                                       .bytes = op->shard_bytes,
                                       .step = op->shard_bytes,
                                       .sends = true,
                                       .receives = true,
                                       .only = comm->world});
}

zr_result zr_message_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    struct message_comm *self = (struct message_comm *)comm;
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

uint64_t zr_message_sent_bytes(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    if (item->kind == ZR_COMM_BROADCAST && in_ring(comm, item->broadcast.bytes)) {
        bool last = (comm->rank + 1) % comm->world == item->broadcast.root;
        return last ? 0 : item->broadcast.bytes;
    }
    return zr_comm_direct_bytes(comm, item);
}
