/* nccl_run.c: operations over NCCL. Used by nccl.c.
 *
 * Gathers use NCCL's own operation or groups of sends and receives. Sums use NCCL's own, in NCCL's order,
 * unless the communicator is deterministic, NCCL lacks the sum (wide, or accumulated), or it is a reduce.
 * Then each rank that sums receives the others' parts in the ring and adds them in rank order. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/nccl.h"
#include "alloc/base/system/os.h"

#define NAP_NS 20000ull

static zr_result settle(struct nccl_comm *self, zr_nccl_result code, enum zr_comm_kind kind)
{
    return zr_nccl_settle(self, self->comm, code, zr_comm_kind_name(kind));
}

/* Waits for the stream. NCCL itself waits for a dead rank without a timeout. */
static zr_result wait_for_stream(struct nccl_comm *self, enum zr_comm_kind kind)
{
    struct zr_stream_point point;
    _Atomic uint32_t unused = 0;
    uint64_t looked_ns = zr_os_now_ns();
    struct zr_timeout timeout = zr_timeout_begin();
    unsigned looks = 0;
    zr_result result = zr_backend_event_record(self->backend, (uint64_t)(uintptr_t)self->stream, &point);
    while (result == ZR_OK && !zr_backend_event_done(self->backend, &point)) {
        zr_word_wait(&unused, 0, NAP_NS);
        if (zr_os_now_ns() - looked_ns < ZR_NCCL_LOOK_NS)
            continue;
        looked_ns = zr_os_now_ns();
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        result = settle(self, ZR_NCCL_IN_PROGRESS, kind);
        if (result == ZR_OK)
            result = zr_nccl_find_lost(self, &looks);
        if (result == ZR_OK && waited_ns > self->base.options.timeout_ns)
            result = zr_nccl_silent(self, zr_comm_kind_name(kind), waited_ns);
    }
    return result;
}

static int type_of(enum zr_comm_type type)
{
    return type == ZR_COMM_FP32 ? ZR_NCCL_FP32 : type == ZR_COMM_BF16 ? ZR_NCCL_BF16 : ZR_NCCL_FP16;
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

static zr_result run_all_gather(struct nccl_comm *self, const struct zr_all_gather *op)
{
    zr_nccl_result code = self->nccl->all_gather(op->source, op->destination, op->shard_bytes, ZR_NCCL_UINT8,
                                                 self->comm, self->stream);
    return settle(self, code, ZR_COMM_ALL_GATHER);
}

static zr_result run_broadcast(struct nccl_comm *self, const struct zr_broadcast *op)
{
    zr_nccl_result code = self->nccl->broadcast(op->buffer, op->buffer, op->bytes, ZR_NCCL_UINT8,
                                                (int)op->root, self->comm, self->stream);
    return settle(self, code, ZR_COMM_BROADCAST);
}

static zr_result run_all_to_all(struct nccl_comm *self, const struct zr_all_gather *op)
{
    const struct zr_nccl *nccl = self->nccl;
    const char *source = op->source;
    char *destination = op->destination;
    size_t bytes = op->shard_bytes, own = self->base.rank * bytes;
    zr_result result = zr_comm_copy(&self->base, destination + own, source + own, bytes);
    if (result != ZR_OK)
        return result;
    zr_nccl_result code = nccl->group_start();
    for (unsigned p = 0; p < self->base.world && code == 0; p++) {
        if (p == self->base.rank)
            continue;
        code = nccl->send(source + p * bytes, bytes, ZR_NCCL_UINT8, (int)p, self->comm, self->stream);
        if (code == 0)
            code = nccl->receive(destination + p * bytes, bytes, ZR_NCCL_UINT8, (int)p, self->comm,
                                 self->stream);
    }
    zr_nccl_result ended = nccl->group_end();
    return settle(self, code != 0 ? code : ended, ZR_COMM_ALL_TO_ALL);
}

static char *slot_of(const struct nccl_comm *self, unsigned peer)
{
    return self->ring + (peer < self->base.rank ? peer : peer - 1) * self->each_bytes;
}

/* Exchanges one part of every shard: the peers' parts into the ring, this rank's part to them. */
static zr_result exchange_part(struct nccl_comm *self, const struct zr_comm_item *item,
                               struct zr_comm_part part)
{
    const struct zr_nccl *nccl = self->nccl;
    zr_nccl_result code = nccl->group_start();
    for (unsigned p = 0; p < self->base.world && code == 0; p++) {
        if (p == self->base.rank)
            continue;
        if (zr_comm_sums(item, p))
            code = nccl->send(zr_comm_addends(item, p) + part.first, part.bytes, ZR_NCCL_UINT8, (int)p,
                              self->comm, self->stream);
        if (code == 0 && zr_comm_sums(item, self->base.rank))
            code =
                nccl->receive(slot_of(self, p), part.bytes, ZR_NCCL_UINT8, (int)p, self->comm, self->stream);
    }
    zr_nccl_result ended = nccl->group_end();
    return settle(self, code != 0 ? code : ended, item->kind);
}

static zr_result run_transfer(struct nccl_comm *self, const struct zr_comm_item *item)
{
    const struct zr_transfer *op = &item->transfer;
    const struct zr_nccl *nccl = self->nccl;
    zr_nccl_result code = nccl->group_start();
    if (code == 0 && op->send_bytes > 0)
        code = nccl->send(op->send, op->send_bytes, ZR_NCCL_UINT8, (int)op->to, self->comm, self->stream);
    if (code == 0 && op->receive_bytes > 0)
        code = nccl->receive(op->receive, op->receive_bytes, ZR_NCCL_UINT8, (int)op->from, self->comm,
                             self->stream);
    zr_nccl_result ended = nccl->group_end();
    return settle(self, code != 0 ? code : ended, item->kind);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* A sum in rank order: in the stream, or on the processor after the stream has finished. */
static zr_result add_in_order(struct nccl_comm *self, const struct zr_comm_item *item)
{
    size_t shard = item->bytes;
    struct zr_kernel_context *context;
    zr_result result = zr_comm_context(&self->base, &context);
    for (size_t first = 0; first < shard && result == ZR_OK; first += self->each_bytes) {
        struct zr_comm_part part = {first,
                                    shard - first < self->each_bytes ? shard - first : self->each_bytes};
        result = exchange_part(self, item, part);
        if (result == ZR_OK && !self->watch)
            result = wait_for_stream(self, item->kind);
        if (!zr_comm_sums(item, self->base.rank))
            continue;
        for (unsigned p = 0; p < self->base.world; p++)
            self->from[p] = p == self->base.rank ? zr_comm_addends(item, p) + first : slot_of(self, p);
        struct zr_sum sum = item->reduction.sum;
        sum.n = part.bytes / ZR_COMM_TYPE_BYTES(item->type);
        sum.from = self->from;
        sum.to.at = (char *)sum.to.at + first * item->reduction.widens;
        if (result == ZR_OK)
            result = self->base.options.kernels->sum(context, &sum);
    }
    return result;
}

/* NCCL's operator for scale * sum, if NCCL has an equivalent one; *made: the operator must be destroyed. */
static bool own_sum(const struct nccl_comm *self, const struct zr_sum *in_order, int *sum, bool *made)
{
    float scale = in_order->scale;
    *made = false;
    *sum = scale == 1.0f ? ZR_NCCL_SUM : ZR_NCCL_AVERAGE;
    if (self->deterministic || in_order->accumulate || in_order->to.precision != in_order->precision)
        return false;
    if (scale == 1.0f || scale == 1.0f / (float)self->base.world)
        return true;
    if (in_order->precision != ZR_PRECISION_FP32) /* the scale would be rounded to two bytes */
        return false;
    *made = self->nccl->scaled_sum(sum, &scale, ZR_NCCL_FP32, ZR_NCCL_SCALAR_ON_HOST, self->comm) == 0;
    return *made;
}

static zr_result run_reduction(struct nccl_comm *self, const struct zr_comm_item *item)
{
    const struct zr_sum *shard = &item->reduction.sum;
    char *buffer = (char *)item->reduction.source; /* written by an all-reduce only */
    bool whole = item->kind == ZR_COMM_ALL_REDUCE, made = false;
    int sum, type = type_of(item->type);
    if (item->kind != ZR_COMM_REDUCE && own_sum(self, shard, &sum, &made)) {
        zr_nccl_result code = whole ? self->nccl->all_reduce(buffer, buffer, shard->n * self->base.world,
                                                             type, sum, self->comm, self->stream)
                                    : self->nccl->reduce_scatter(buffer, shard->to.at, shard->n, type, sum,
                                                                 self->comm, self->stream);
        zr_result result = settle(self, code, item->kind);
        if (made)
            self->nccl->sum_destroy(sum, self->comm);
        return result;
    }
    zr_result result = add_in_order(self, item);
    return result == ZR_OK && whole
               ? run_all_gather(self, &(struct zr_all_gather){.source = shard->to.at,
                                                              .destination = buffer,
                                                              .shard_bytes = item->bytes})
               : result;
}

static zr_result begin(struct nccl_comm *self, const struct zr_comm_item *item)
{
    switch (item->kind) {
    case ZR_COMM_REDUCE:
    case ZR_COMM_REDUCE_SCATTER:
    case ZR_COMM_ALL_REDUCE:
        return run_reduction(self, item);
    case ZR_COMM_ALL_GATHER:
        return run_all_gather(self, &item->all_gather);
    case ZR_COMM_ALL_TO_ALL:
        return run_all_to_all(self, &item->all_gather);
    case ZR_COMM_BROADCAST:
        return run_broadcast(self, &item->broadcast);
    case ZR_COMM_SEND:
    case ZR_COMM_RECEIVE:
    case ZR_COMM_SEND_RECEIVE:
        return run_transfer(self, item);
    case ZR_COMM_HOST:
    case ZR_COMM_KIND_COUNT:
        break;
    }
    return zr_fail(ZR_ERR_INVALID, "unknown operation %d", (int)item->kind);
}

/* Queues an operation. An operation that the watch aborted fails with the watch's message. */
static zr_result run_beside(struct nccl_comm *self, const struct zr_comm_item *item)
{
    pthread_mutex_lock(&self->watch->lock);
    zr_result result =
        self->comm ? begin(self, item) : zr_fail(ZR_ERR_PEER, "the communicator has been aborted");
    pthread_mutex_unlock(&self->watch->lock);
    return result;
}

zr_result zr_nccl_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    struct nccl_comm *self = (struct nccl_comm *)comm;
    zr_result result;
    if (self->watch)
        return run_beside(self, item);
    result = begin(self, item);
    return result == ZR_OK ? wait_for_stream(self, item->kind) : result;
}
