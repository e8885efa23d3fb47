/* operations.c: the operations of zr_comm.h: checks arguments and submits to comm.c's
 * queue; names of operations. */
#include "alloc/base/error.h"
#include "zero/comm/comm.h"

/* ---- Kinds and types ----------------------------------------------------------------------------------- */

static const char *const kind_names[ZR_COMM_KIND_COUNT] = {
    [ZR_COMM_REDUCE_SCATTER] = "reduce-scatter",
    [ZR_COMM_ALL_GATHER] = "all-gather",
    [ZR_COMM_ALL_REDUCE] = "all-reduce",
    [ZR_COMM_HOST] = "host all-gather",
    [ZR_COMM_BROADCAST] = "broadcast",
    [ZR_COMM_ALL_TO_ALL] = "all-to-all",
    [ZR_COMM_REDUCE] = "reduce",
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
    return ZR_COMM_TYPE_BYTES(type);
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* Arguments common to all operations. */
struct request {
    enum zr_comm_kind kind;
    zr_comm *comm;
    const void *operation;
    zr_ticket *ticket;
};

static zr_result begin(const struct request *request)
{
    if (request->ticket)
        *request->ticket = 0;
    if (!request->comm || !request->operation)
        return zr_fail(ZR_ERR_INVALID, "%s requires a communicator and an operation",
                       zr_comm_kind_name(request->kind));
    return ZR_OK;
}

/* Checks that shards * shard * unit fits in memory. */
static zr_result check_size(size_t shard, size_t unit_bytes, unsigned shards)
{
    size_t whole;
    if (__builtin_mul_overflow(shard, unit_bytes, &whole) || __builtin_mul_overflow(whole, shards, &whole) ||
        whole > PTRDIFF_MAX)
        return zr_fail(ZR_ERR_INVALID, "a shard of %zu times %u ranks exceeds the address space", shard,
                       shards);
    return ZR_OK;
}

static zr_result check_type(const struct request *request, enum zr_comm_type type)
{
    if ((unsigned)type >= ZR_COMM_TYPE_COUNT)
        return zr_fail(ZR_ERR_INVALID, "%s: element type %d is invalid", zr_comm_kind_name(request->kind),
                       (int)type);
    return ZR_OK;
}

static zr_result check_rank(const struct request *request, const char *what, unsigned rank)
{
    if (rank >= request->comm->world)
        return zr_fail(ZR_ERR_INVALID, "%s: %s rank %u is not below the world size of %u",
                       zr_comm_kind_name(request->kind), what, rank, request->comm->world);
    return ZR_OK;
}

static zr_result check_places(const struct request *request, const void *source, const void *destination)
{
    if (!source || !destination)
        return zr_fail(ZR_ERR_INVALID, "%s requires a source and a destination",
                       zr_comm_kind_name(request->kind));
    return ZR_OK;
}

/* Properties to check before submission. */
struct shape {
    enum zr_comm_type type;
    unsigned root; /* 0: none */
    size_t shard, unit_bytes;
    unsigned shards;
    const void *source, *destination; /* both required on this rank */
};

/* An operation on nothing completes immediately. */
static zr_result submit_checked(const struct request *request, const struct shape *shape,
                                const struct zr_comm_item *item)
{
    zr_result result = check_type(request, shape->type);
    if (result == ZR_OK)
        result = check_rank(request, "root", shape->root);
    if (result == ZR_OK)
        result = check_size(shape->shard, shape->unit_bytes, shape->shards);
    if (result != ZR_OK || shape->shard == 0)
        return result;
    result = check_places(request, shape->source, shape->destination);
    return result == ZR_OK ? zr_comm_submit(request->comm, item, request->ticket) : result;
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

_Static_assert((int)ZR_COMM_BF16 == ZR_PRECISION_BF16 && (int)ZR_COMM_FP16 == ZR_PRECISION_FP16,
               "types of elements are precisions");

/* Wide sums are twice as long as their operands and would overwrite later ones. */
static bool wide_in_place(const struct zr_reduce_scatter *operation, unsigned shards)
{
    uintptr_t source = (uintptr_t)operation->source, destination = (uintptr_t)operation->destination;
    size_t each = zr_comm_type_bytes(operation->type);
    if (!operation->wide || operation->type == ZR_COMM_FP32 ||
        operation->shard_elements > SIZE_MAX / sizeof(float) / shards)
        return false;
    return destination < source + shards * operation->shard_elements * each &&
           source < destination + operation->shard_elements * sizeof(float);
}

/* A reduce, whose root has the only shard, or a reduce-scatter. */
static zr_result submit_sum(const struct request *request, const struct zr_reduce_scatter *operation,
                            unsigned root)
{
    const bool scatters = request->kind == ZR_COMM_REDUCE_SCATTER,
               sums = scatters || request->comm->rank == root;
    const unsigned shards = scatters ? request->comm->world : 1;
    if (sums && wide_in_place(operation, shards))
        return zr_fail(ZR_ERR_INVALID, "a wide %s cannot overwrite its source",
                       zr_comm_kind_name(request->kind));
    enum zr_precision precision = (enum zr_precision)operation->type,
                      stored = operation->wide ? ZR_PRECISION_FP32 : precision;
    return submit_checked(
        request,
        &(struct shape){.type = operation->type,
                        .root = root,
                        .shard = operation->shard_elements,
                        .unit_bytes = sizeof(float),
                        .shards = shards,
                        .source = operation->source,
                        .destination = sums ? operation->destination : operation->source},
        &(struct zr_comm_item){.kind = request->kind,
                               .type = operation->type,
                               .bytes = operation->shard_elements * zr_comm_type_bytes(operation->type),
                               .label = operation->label,
                               .host_bytes = operation->host_bytes,
                               .reduction = {.source = operation->source,
                                             .sum = {.n = operation->shard_elements,
                                                     .count = request->comm->world,
                                                     .precision = precision,
                                                     .scale = operation->scale,
                                                     .accumulate = operation->accumulate,
                                                     .to = {operation->destination, stored}},
                                             .widens = stored == precision ? 1 : 2,
                                             .root = root}});
}

zr_result zr_comm_reduce_scatter(zr_comm *comm, const struct zr_reduce_scatter *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_REDUCE_SCATTER, comm, operation, ticket};
    zr_result result = begin(&request);
    return result == ZR_OK ? submit_sum(&request, operation, 0) : result;
}

zr_result zr_comm_reduce(zr_comm *comm, const struct zr_reduce *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_REDUCE, comm, operation, ticket};
    zr_result result = begin(&request);
    return result == ZR_OK ? submit_sum(&request,
                                        &(struct zr_reduce_scatter){.source = operation->source,
                                                                    .destination = operation->destination,
                                                                    .shard_elements = operation->elements,
                                                                    .scale = operation->scale,
                                                                    .accumulate = operation->accumulate,
                                                                    .type = operation->type,
                                                                    .wide = operation->wide,
                                                                    .label = operation->label},
                                        operation->root)
                           : result;
}

zr_result zr_comm_all_reduce(zr_comm *comm, const struct zr_all_reduce *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_ALL_REDUCE, comm, operation, ticket};
    zr_result result = begin(&request);
    if (result != ZR_OK)
        return result;
    enum zr_precision precision = (enum zr_precision)operation->type;
    size_t bytes = operation->shard_elements * zr_comm_type_bytes(operation->type);
    void *own = (void *)((uintptr_t)operation->buffer + comm->rank * bytes); /* not checked yet */
    return submit_checked(&request,
                          &(struct shape){.type = operation->type,
                                          .shard = operation->shard_elements,
                                          .unit_bytes = sizeof(float),
                                          .shards = comm->world,
                                          .source = operation->buffer,
                                          .destination = operation->buffer},
                          &(struct zr_comm_item){.kind = request.kind,
                                                 .type = operation->type,
                                                 .bytes = bytes,
                                                 .label = operation->label,
                                                 .reduction = {.source = operation->buffer,
                                                               .sum = {.n = operation->shard_elements,
                                                                       .count = comm->world,
                                                                       .precision = precision,
                                                                       .scale = operation->scale,
                                                                       .to = {own, precision}},
                                                               .widens = 1}});
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

static zr_result submit_shards(const struct request *request, const struct zr_all_gather *operation)
{
    return submit_checked(request,
                          &(struct shape){.type = operation->type,
                                          .shard = operation->shard_bytes,
                                          .unit_bytes = 1,
                                          .shards = request->comm->world,
                                          .source = operation->source,
                                          .destination = operation->destination},
                          &(struct zr_comm_item){.kind = request->kind,
                                                 .type = operation->type,
                                                 .bytes = operation->shard_bytes,
                                                 .label = operation->label,
                                                 .host_bytes = operation->host_bytes,
                                                 .before = operation->before,
                                                 .first = operation->first,
                                                 .last = operation->last,
                                                 .packed_elements = operation->packed_elements,
                                                 .all_gather = *operation});
}

zr_result zr_comm_all_gather(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_ALL_GATHER, comm, operation, ticket};
    zr_result result = begin(&request);
    return result == ZR_OK ? submit_shards(&request, operation) : result;
}

zr_result zr_comm_all_to_all(zr_comm *comm, const struct zr_all_gather *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_ALL_TO_ALL, comm, operation, ticket};
    zr_result result = begin(&request);
    if (result != ZR_OK)
        return result;
    uintptr_t source = (uintptr_t)operation->source, destination = (uintptr_t)operation->destination;
    size_t bytes = comm->world * operation->shard_bytes;
    if (source < destination + bytes && destination < source + bytes)
        return zr_fail(ZR_ERR_INVALID, "%s: source and destination overlap", zr_comm_kind_name(request.kind));
    return submit_shards(&request, operation);
}

zr_result zr_comm_broadcast(zr_comm *comm, const struct zr_broadcast *operation, zr_ticket *ticket)
{
    struct request request = {ZR_COMM_BROADCAST, comm, operation, ticket};
    zr_result result = begin(&request);
    if (result != ZR_OK)
        return result;
    return submit_checked(&request,
                          &(struct shape){.type = operation->type,
                                          .root = operation->root,
                                          .shard = operation->bytes,
                                          .unit_bytes = 1,
                                          .shards = 1,
                                          .source = operation->buffer,
                                          .destination = operation->buffer},
                          &(struct zr_comm_item){.kind = request.kind,
                                                 .type = operation->type,
                                                 .bytes = operation->bytes,
                                                 .label = ZR_COMM_LABEL_NONE,
                                                 .broadcast = *operation});
}

/* Checks one direction of a transfer; an empty one is skipped on both sides. */
static zr_result check_direction(const struct request *request, size_t bytes, const void *place,
                                 unsigned peer)
{
    zr_result result = check_size(bytes, 1, 1);
    if (result != ZR_OK || bytes == 0)
        return result;
    result = check_rank(request, "peer", peer);
    if (result == ZR_OK && peer == request->comm->rank)
        result = zr_fail(ZR_ERR_INVALID, "%s: rank %u cannot be its own peer",
                         zr_comm_kind_name(request->kind), peer);
    return result == ZR_OK ? check_places(request, place, place) : result;
}

static zr_result transfer(const struct request *request, const struct zr_transfer *operation)
{
    zr_result result = begin(request);
    if (result != ZR_OK)
        return result;
    struct zr_transfer both = *operation;
    if (request->kind == ZR_COMM_SEND)
        both.receive_bytes = 0;
    else if (request->kind == ZR_COMM_RECEIVE)
        both.send_bytes = 0;
    if (both.send_bytes == 0)
        both.packed_elements = 0;
    result = check_type(request, both.type);
    if (result == ZR_OK)
        result = check_direction(request, both.send_bytes, both.send, both.to);
    if (result == ZR_OK)
        result = check_direction(request, both.receive_bytes, both.receive, both.from);
    if (result != ZR_OK || (both.send_bytes == 0 && both.receive_bytes == 0))
        return result;
    return zr_comm_submit(request->comm,
                          &(struct zr_comm_item){.kind = request->kind,
                                                 .type = both.type,
                                                 .label = ZR_COMM_LABEL_NONE,
                                                 .bytes = both.packed_elements > 0 ? both.send_bytes : 0,
                                                 .packed_elements = both.packed_elements,
                                                 .transfer = both},
                          request->ticket);
}

zr_result zr_comm_send(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket)
{
    return transfer(&(struct request){ZR_COMM_SEND, comm, operation, ticket}, operation);
}

zr_result zr_comm_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket)
{
    return transfer(&(struct request){ZR_COMM_RECEIVE, comm, operation, ticket}, operation);
}

zr_result zr_comm_send_receive(zr_comm *comm, const struct zr_transfer *operation, zr_ticket *ticket)
{
    return transfer(&(struct request){ZR_COMM_SEND_RECEIVE, comm, operation, ticket}, operation);
}

/* ---- Host messages ------------------------------------------------------------------------------------- */

zr_result zr_comm_host_all_gather(zr_comm *comm, const void *mine, size_t bytes, void *all)
{
    if (!comm || ((!mine || !all) && bytes > 0))
        return zr_fail(ZR_ERR_INVALID, "zr_comm_host_all_gather() requires a communicator and buffers");
    zr_result result = check_size(bytes, 1, comm->world);
    if (result != ZR_OK || bytes == 0)
        return result;
    return zr_comm_run_host(
        comm, &(struct zr_all_gather){.source = mine, .destination = all, .shard_bytes = bytes});
}

zr_result zr_comm_barrier(zr_comm *comm)
{
    if (!comm)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_barrier() requires a communicator");
    return zr_comm_run_host(comm, &(struct zr_all_gather){0}); /* an empty all-gather */
}
