/* null.c: the communicator without peers, for plans and for a run of one rank. Stands on comm.c.
 *
 * In a plan (more than one rank, or the null kernels, whose addresses may be made up) it takes the ring's
 * memory and counts what would be sent, so that the plan sees what the real communicator takes. For a single
 * rank with real kernels it is the real one: a sum over one rank is a scaled copy. */
#include <string.h>

#include "alloc/error.h"
#include "zero/comm/comm.h"

struct null_comm {
    struct zr_comm base;
    void *ring; /* a block of options.arena, never touched; NULL for one rank */
    bool moves; /* one rank with real memory */
};

static void all_reduce_alone(const struct zr_kernels *kernels, const struct zr_all_reduce *op)
{
    const float *from[2] = {op->buffer, op->base};
    kernels->sum_in_order(op->shard_elements, from, 1, op->scale, op->buffer, false);
    if (op->base)
        kernels->sum_in_order(op->shard_elements, from, 2, 1.0f, op->buffer, false);
}

/* An exchange happens in memory of the caller's own, whatever the arena is made of: every rank is taken to
 * say what this one says, so that checks which compare the ranks hold in a plan too. */
static void exchange_alone(unsigned world, const struct zr_all_gather *op)
{
    for (unsigned p = 0; p < world; p++)
        memmove((char *)op->destination + p * op->shard_bytes, op->source, op->shard_bytes);
}

static zr_result null_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    const struct zr_kernels *kernels = comm->options.kernels;
    bool moves = ((struct null_comm *)comm)->moves;
    if (item->kind == ZR_COMM_EXCHANGE && item->all_gather.shard_bytes > 0)
        exchange_alone(comm->world, &item->all_gather);
    else if (moves && item->kind == ZR_COMM_REDUCE_SCATTER)
        kernels->sum_in_order(item->reduce_scatter.shard_elements, &item->reduce_scatter.source, 1,
                              item->reduce_scatter.scale, item->reduce_scatter.destination,
                              item->reduce_scatter.accumulate);
    else if (moves && item->kind == ZR_COMM_ALL_GATHER)
        memmove(item->all_gather.destination, item->all_gather.source, item->all_gather.shard_bytes);
    else if (moves && item->kind == ZR_COMM_ALL_REDUCE)
        all_reduce_alone(kernels, &item->all_reduce);
    return ZR_OK;
}

static void null_close(struct zr_comm *comm)
{
    zr_arena_free(comm->options.arena, ((struct null_comm *)comm)->ring);
}

static const struct zr_comm_table null_table = {.run = null_run, .close = null_close};

zr_result zr_comm_null_create(zr_comm **out, const struct zr_comm_options *options, unsigned rank,
                              unsigned world)
{
    struct null_comm *comm = NULL;
    void *memory = NULL, *ring = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a communicator needs a place to go");
    *out = NULL;
    zr_result result = zr_comm_options_check(options, rank, world);
    if (result != ZR_OK)
        return result;
    result = zr_arena_alloc(options->host_arena,
                            &(struct zr_request){.bytes = sizeof(*comm), .tag = ZR_TAG_OTHER}, &memory);
    if (result != ZR_OK)
        return result;
    size_t ring_bytes = zr_comm_ring_bytes(world, options->bucket_bytes);
    if (ring_bytes > 0)
        result = zr_arena_alloc(options->arena, &(struct zr_request){.bytes = ring_bytes, .tag = ZR_TAG_COMM},
                                &ring);
    if (result != ZR_OK)
        goto unwind;
    comm = memory;
    zr_comm_open(&comm->base, &null_table, options);
    comm->base.rank = rank;
    comm->base.world = world;
    comm->ring = ring;
    comm->moves = world == 1 && options->kernels != zr_kernels_null();
    *out = &comm->base;
    return ZR_OK;
unwind:
    zr_arena_free(options->host_arena, memory);
    return result;
}
