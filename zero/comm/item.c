/* item.c: what an operation is: its name, element type and bytes. See comm.h. */
#include "zero/comm/comm.h"

static const char *const kind_names[ZR_COMM_KIND_COUNT] = {
    [ZR_COMM_REDUCE_SCATTER] = "reduce-scatter",
    [ZR_COMM_ALL_GATHER] = "all-gather",
    [ZR_COMM_ALL_REDUCE] = "all-reduce",
    [ZR_COMM_HOST] = "host all-gather",
    [ZR_COMM_BROADCAST] = "broadcast",
    [ZR_COMM_SEND] = "send",
    [ZR_COMM_RECEIVE] = "receive",
    [ZR_COMM_SEND_RECEIVE] = "send-receive",
};

const char *zr_comm_kind_name(enum zr_comm_kind kind)
{
    return (unsigned)kind < ZR_COMM_KIND_COUNT && kind_names[kind] ? kind_names[kind] : "unknown operation";
}

size_t zr_comm_type_bytes(enum zr_comm_type type)
{
    return type == ZR_COMM_FP32 ? sizeof(float) : sizeof(uint16_t);
}

enum zr_comm_type zr_comm_item_type(const struct zr_comm_item *item)
{
    switch (item->kind) {
    case ZR_COMM_REDUCE_SCATTER:
        return item->reduce_scatter.type;
    case ZR_COMM_ALL_REDUCE:
        return item->all_reduce.type;
    case ZR_COMM_BROADCAST:
        return item->broadcast.type;
    case ZR_COMM_SEND:
    case ZR_COMM_RECEIVE:
    case ZR_COMM_SEND_RECEIVE:
        return item->transfer.type;
    default:
        return item->all_gather.type;
    }
}

size_t zr_comm_item_bytes(const struct zr_comm_item *item)
{
    size_t unit = zr_comm_type_bytes(zr_comm_item_type(item));
    switch (item->kind) {
    case ZR_COMM_REDUCE_SCATTER:
        return item->reduce_scatter.shard_elements * unit;
    case ZR_COMM_ALL_REDUCE:
        return item->all_reduce.shard_elements * unit;
    case ZR_COMM_BROADCAST:
        return item->broadcast.bytes;
    case ZR_COMM_ALL_GATHER:
    case ZR_COMM_HOST:
        return item->all_gather.shard_bytes;
    default:
        return 0;
    }
}

uint64_t zr_comm_direct_bytes(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    uint64_t peers = comm->world - 1, bytes = zr_comm_item_bytes(item);
    switch (item->kind) {
    case ZR_COMM_ALL_REDUCE:
        return 2 * peers * bytes;
    case ZR_COMM_REDUCE_SCATTER:
    case ZR_COMM_ALL_GATHER:
    case ZR_COMM_HOST:
        return peers * bytes;
    case ZR_COMM_BROADCAST:
        return comm->rank == item->broadcast.root ? peers * bytes : 0;
    case ZR_COMM_SEND:
    case ZR_COMM_SEND_RECEIVE:
        return item->transfer.send_bytes;
    case ZR_COMM_RECEIVE:
    case ZR_COMM_KIND_COUNT:
        break;
    }
    return 0;
}
