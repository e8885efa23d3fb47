/* null.c: the communicator without peers, for plans and for a single rank. Uses comm.c.
 *
 * In a plan (several ranks, or null kernels, whose addresses may be invalid) it allocates the ring and
 * counts traffic, so that the plan includes what the real communicator takes. For a single rank with real
 * kernels it computes: a sum over one rank is a scaled copy. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/comm/clock.h"
#include "zero/comm/comm.h"
#include "zero/comm/take.h"

struct null_comm {
    struct zr_comm base;
    void *ring;                  /* a block of options.arena, never accessed; NULL for one rank */
    bool moves;                  /* one rank with real memory */
    struct zr_comm_clock *clock; /* of a rehearsal; NULL: none */
    struct zr_comm_clock_queue queue;
};

/* Host messages use the caller's memory, which is always real. Every rank is assumed to send the same, so
 * that checks across ranks pass in a plan. */
static zr_result null_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    for (unsigned p = 0; p < comm->world && op->shard_bytes > 0; p++)
        memmove((char *)op->destination + p * op->shard_bytes, op->source, op->shard_bytes);
    return ZR_OK;
}

/* A sum over one rank: a scaled copy. */
static zr_result sum_single_rank(struct zr_comm *comm, const struct zr_comm_item *item)
{
    struct zr_kernel_context *context;
    const void *source = item->reduction.source;
    struct zr_sum sum = item->reduction.sum;
    sum.from = &source;
    zr_result result = zr_comm_context(comm, &context);
    return result == ZR_OK ? comm->options.kernels->sum(context, &sum) : result;
}

static zr_result null_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    if (!((struct null_comm *)comm)->moves)
        return ZR_OK;
    switch (item->kind) {
    case ZR_COMM_REDUCE:
    case ZR_COMM_REDUCE_SCATTER:
    case ZR_COMM_ALL_REDUCE:
        return sum_single_rank(comm, item);
    case ZR_COMM_ALL_GATHER:
    case ZR_COMM_ALL_TO_ALL:
        return zr_comm_copy(comm, item->all_gather.destination, item->all_gather.source,
                            item->all_gather.shard_bytes);
    default: /* the other operations need a peer */
        return ZR_OK;
    }
}

static void null_close(struct zr_comm *comm)
{
    zr_arena_free(comm->options.arena, ((struct null_comm *)comm)->ring);
}

static void null_waited(struct zr_comm *comm, zr_ticket ticket)
{
    const struct null_comm *self = (struct null_comm *)comm;
    if (self->clock)
        zr_comm_clock_wait(self->clock, &self->queue, ticket, comm->submitted);
}

/* Traffic between ranks that also crosses the host link takes as long as the slower of the two. */
static double rate_of(const struct zr_comm_clock *clock, const struct zr_comm_item *item, uint64_t bytes)
{
    double seconds =
        clock->host_bytes_per_second > 0 ? (double)item->host_bytes / clock->host_bytes_per_second : 0;
    return bytes > 0 && seconds * clock->bytes_per_second > (double)bytes ? (double)bytes / seconds
                                                                          : clock->bytes_per_second;
}

static void null_submitted(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket)
{
    struct null_comm *self = (struct null_comm *)comm;
    uint64_t bytes = zr_comm_direct_bytes(comm, item);
    const bool collects = item->kind == ZR_COMM_REDUCE && zr_comm_sums(item, comm->rank);
    if (self->clock)
        zr_comm_clock_submit(self->clock, &self->queue,
                             &(struct zr_comm_clock_operation){
                                 .ticket = ticket,
                                 .bytes = bytes,
                                 .received_bytes = collects ? (comm->world - 1) * item->bytes : 0,
                                 .bytes_per_second = rate_of(self->clock, item, bytes),
                                 .ready_seconds = zr_comm_ready_seconds(item),
                                 .label = item->label});
}

static zr_result null_group(struct zr_comm **out, struct zr_comm *parent,
                            const struct zr_comm_members *members)
{
    zr_result result = zr_comm_null_create(out, members->options, members->rank, members->count);
    if (result == ZR_OK)
        ((struct null_comm *)*out)->clock = ((struct null_comm *)parent)->clock;
    return result;
}

static const struct zr_comm_table null_table = {.name = "null",
                                                .run = null_run,
                                                .host = null_host,
                                                .group = null_group,
                                                .submitted = null_submitted,
                                                .waited = null_waited,
                                                .close = null_close};

zr_result zr_comm_null_set_clock(zr_comm *comm, struct zr_comm_clock *clock)
{
    if (!comm || comm->table != &null_table)
        return zr_fail(ZR_ERR_INVALID, "%s() requires a null communicator", __func__);
    ((struct null_comm *)comm)->clock = clock;
    return ZR_OK;
}

zr_result zr_comm_null_create(zr_comm **out, const struct zr_comm_options *options, unsigned rank,
                              unsigned world)
{
    struct zr_comm_options own;
    struct null_comm *comm = NULL;
    void *memory = NULL, *ring = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_null_create() requires out");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, beside, &own, options);
    options = &own;
    if (result == ZR_OK)
        result = zr_comm_options_check(options, rank, world);
    if (result != ZR_OK)
        return result;
    result = zr_arena_alloc(options->host_arena,
                            &(struct zr_request){.bytes = sizeof(*comm), .tag = ZR_TAG_OTHER}, &memory);
    if (result != ZR_OK)
        return result;
    size_t ring_bytes = zr_comm_ring_bytes(world, options->bucket_bytes);
    result = zr_take(options->arena, ZR_TAG_COMM, ring_bytes, 1, &ring);
    if (result != ZR_OK)
        goto unwind;
    comm = memory;
    zr_comm_open(&comm->base, &null_table, options);
    comm->base.rank = comm->base.run_rank = rank;
    comm->base.world = world;
    comm->ring = ring;
    comm->clock = NULL;
    memset(&comm->queue, 0, sizeof comm->queue);
    comm->moves = world == 1 && options->kernels->executes;
    *out = &comm->base;
    return ZR_OK;
unwind:
    zr_arena_free(options->host_arena, memory);
    return result;
}
