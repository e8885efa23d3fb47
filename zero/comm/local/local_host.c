/* local_host.c: host messages of the local communicator: small messages through slots in the control
 * block, independent of the rings. Used by local.c.
 *
 * As in the rings, each rank posts piece by piece and refills a slot after all peers have read it. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/local/local_ring.h"

static size_t part_bytes(size_t bytes, uint32_t index)
{
    size_t left = bytes - (size_t)index * ZR_LOCAL_HOST_BYTES;
    return left < ZR_LOCAL_HOST_BYTES ? left : ZR_LOCAL_HOST_BYTES;
}

static zr_result post(struct local_comm *comm, const struct zr_all_gather *op, uint32_t index)
{
    struct zr_local_ring *ring = comm->ring;
    size_t part = part_bytes(op->shard_bytes, index);
    for (unsigned p = 0; p < comm->base.world; p++) {
        struct zr_local_peer *peer = &comm->peers[p];
        zr_result result = p == comm->base.rank ? ZR_OK
                                                : zr_local_wait_for_peer(comm, p, &peer->ring->host_consumed,
                                                                         &peer->ring->host_consumed_sleepers,
                                                                         peer->host_posted + comm->said - 1);
        if (result != ZR_OK)
            return result;
    }
    if (part > 0)
        memcpy(ring->host[comm->said & 1], (const char *)op->source + (size_t)index * ZR_LOCAL_HOST_BYTES,
               part);
    ring->host_bytes[comm->said++ & 1] = op->shard_bytes;
    zr_local_advance(&ring->host_posted, atomic_load(&ring->host_posted) + 1, &ring->host_posted_sleepers);
    return ZR_OK;
}

/* Reads a piece of every rank. `piece` counts from the creation of the communicator, `index` from the start
 * of the message. */
static zr_result read(struct local_comm *comm, const struct zr_all_gather *op, uint32_t piece, uint32_t index)
{
    size_t part = part_bytes(op->shard_bytes, index);
    for (unsigned p = 0; p < comm->base.world; p++) {
        struct zr_local_peer *peer = &comm->peers[p];
        if (p == comm->base.rank)
            continue;
        zr_result result =
            zr_local_wait_for_peer(comm, p, &peer->ring->host_posted, &peer->ring->host_posted_sleepers,
                                   peer->host_posted + piece + 1);
        if (result != ZR_OK)
            return result;
        if (peer->ring->host_bytes[piece & 1] != op->shard_bytes) {
            zr_fail(ZR_ERR_PEER,
                    "the ranks are out of step: a host message of rank %u has %llu bytes, but of rank %u %zu",
                    peer->rank, (unsigned long long)peer->ring->host_bytes[piece & 1], comm->base.run_rank,
                    op->shard_bytes);
            return zr_local_out_of_step(comm->base.local, comm->base.run_rank);
        }
        if (part > 0)
            memcpy((char *)op->destination + p * op->shard_bytes + (size_t)index * ZR_LOCAL_HOST_BYTES,
                   peer->ring->host[piece & 1], part);
        comm->base.host_received_bytes += part;
    }
    zr_local_advance(&comm->ring->host_consumed, atomic_load(&comm->ring->host_consumed) + 1,
                     &comm->ring->host_consumed_sleepers);
    return ZR_OK;
}

/* A message of no bytes is one empty piece: a barrier. */
zr_result zr_local_host(struct zr_comm *base, const struct zr_all_gather *op)
{
    struct local_comm *comm = (struct local_comm *)base;
    size_t bytes = op->shard_bytes, count = bytes == 0 ? 1 : (bytes - 1) / ZR_LOCAL_HOST_BYTES + 1;
    uint32_t first = comm->said;
    zr_result result = post(comm, op, 0);
    if (result == ZR_OK && bytes > 0)
        memmove((char *)op->destination + base->rank * bytes, op->source, bytes);
    for (uint32_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + 1 < count)
            result = post(comm, op, i + 1);
        if (result == ZR_OK)
            result = read(comm, op, first + i, i);
    }
    return result;
}
