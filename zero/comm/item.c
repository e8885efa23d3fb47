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

uint64_t zr_comm_direct_bytes(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    uint64_t peers = comm->world - 1, bytes = item->bytes;
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
