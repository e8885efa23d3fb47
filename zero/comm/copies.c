/* copies.c: see copies.h. Uses comm.c. */
#include "zero/comm/copies.h"

#include <string.h>

#include "kernels/streams.h"
#include "zero/comm/comm.h"
#include "zero/comm/take.h"

struct copies {
    struct zr_comm base;
    const struct zr_kernel_context *behind; /* NULL: a thread makes the copies */
    struct zr_comm_clock *clock;
    struct zr_comm_clock_queue queue;
};

static uint64_t bytes_of(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    (void)comm;
    return item->all_gather.host_bytes;
}

/* Runs a copy or a task. A task has no destination. */
static zr_result run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    const struct zr_copies_task *task = item->all_gather.source;
    if (!item->all_gather.destination) {
        struct zr_kernel_context *context = NULL;
        zr_result result = zr_comm_by_stream(comm) ? zr_comm_context(comm, &context) : ZR_OK;
        return result == ZR_OK ? task->run(task->state, context) : result;
    }
    return comm->options.kernels->executes
               ? zr_comm_copy(comm, item->all_gather.destination, item->all_gather.source,
                              item->all_gather.shard_bytes)
               : ZR_OK;
}

static zr_result host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    (void)comm;
    memmove(op->destination, op->source, op->shard_bytes);
    return ZR_OK;
}

static void submitted(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket)
{
    struct copies *self = (struct copies *)comm;
    if (self->clock)
        zr_comm_clock_submit(
            self->clock, &self->queue,
            &(struct zr_comm_clock_operation){.ticket = ticket,
                                              .bytes = item->all_gather.host_bytes,
                                              .bytes_per_second = self->clock->host_bytes_per_second,
                                              .ready_seconds = zr_comm_ready_seconds(item),
                                              .label = ZR_COMM_LABEL_NONE});
}

static void waited(struct zr_comm *comm, zr_ticket ticket)
{
    const struct copies *self = (struct copies *)comm;
    if (!self->clock)
        return;
    double before = self->clock->waited_seconds;
    zr_comm_clock_wait(self->clock, &self->queue, ticket, comm->submitted);
    self->clock->host_waited_seconds += self->clock->waited_seconds - before;
}

/* Context for a wait on the host. The wait makes the same checks as the caller's waits. */
static struct zr_kernel_context waiting(const struct zr_comm *comm)
{
    struct zr_kernel_context context = *((const struct copies *)comm)->behind;
    context.stream = comm->options.beside;
    return context;
}

/* Destroys the stream after the work in the stream and after the context that uses the stream. */
static void end_stream(struct zr_comm *comm)
{
    if (!zr_comm_by_stream(comm))
        return;
    struct zr_kernel_context context = waiting(comm);
    comm->options.kernels->streams->drain(&context);
    zr_comm_context_close(comm);
    comm->options.kernels->streams->destroy(comm->options.beside);
    comm->options.beside = NULL;
}

zr_result zr_copies_create(zr_comm **out, const struct zr_comm_options *options,
                           const struct zr_kernel_context *behind)
{
    static const struct zr_comm_table table = {.name = "copies",
                                               .sent_bytes = bytes_of,
                                               .run = run,
                                               .host = host,
                                               .submitted = submitted,
                                               .waited = waited,
                                               .close = end_stream};
    struct copies *self;
    zr_result result = zr_take(options->host_arena, ZR_TAG_OTHER, 1, sizeof *self, (void **)&self);
    if (result != ZR_OK)
        return result;
    zr_comm_open(&self->base, &table, options);
    self->base.world = 1;
    self->clock = NULL;
    memset(&self->queue, 0, sizeof self->queue);
    self->behind = options->kernels->streams ? behind : NULL;
    self->base.options.stream = self->behind ? behind->stream : NULL;
    self->base.options.beside = NULL;
    if (self->behind)
        result = options->kernels->streams->create(&self->base.options.beside, true);
    else if (options->kernels->executes)
        result = zr_comm_thread_start(&self->base);
    if (result == ZR_OK)
        *out = &self->base;
    else
        zr_comm_destroy(&self->base);
    return result;
}

void zr_copies_set_clock(zr_comm *copies, struct zr_comm_clock *clock)
{
    if (copies)
        ((struct copies *)copies)->clock = clock->host_bytes_per_second > 0 ? clock : NULL;
}

zr_result zr_copies_start(zr_comm *copies, const struct zr_host_copy *copy, zr_ticket *ticket)
{
    return zr_comm_all_gather(copies,
                              &(struct zr_all_gather){.source = copy->from,
                                                      .destination = copy->to,
                                                      .shard_bytes = copy->bytes,
                                                      .host_bytes = copy->same_memory ? 0 : copy->bytes,
                                                      .before = copy->before},
                              ticket);
}

zr_result zr_copies_run(zr_comm *copies, struct zr_copies_task *task, zr_ticket *ticket)
{
    return zr_comm_submit(
        copies,
        &(struct zr_comm_item){
            .kind = ZR_COMM_ALL_GATHER,
            .bytes = task->bytes,
            .all_gather = {.source = task, .shard_bytes = task->bytes, .host_bytes = task->bytes}},
        ticket);
}

zr_result zr_copies_await(zr_comm *copies, zr_ticket ticket)
{
    void *ended = copies->ended[ticket % ZR_COMM_QUEUE_COUNT];
    if (!zr_comm_by_stream(copies))
        return zr_comm_wait(copies, ticket);
    struct zr_kernel_context context = waiting(copies);
    return ticket > 0 && ended ? copies->options.kernels->streams->await(&context, ended) : ZR_OK;
}

uint64_t zr_copies_bytes(zr_comm *copies)
{
    struct zr_comm_counters counters;
    zr_comm_counters_get(copies, &counters);
    return counters.by_kind[ZR_COMM_ALL_GATHER].sent_bytes;
}
