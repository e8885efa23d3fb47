/* device.c: copies and sums of tensors that the host cannot read, by the kernels. Operations are queued by
 * the submitting call, in a stream ordered with the engine's stream by events. Without such a stream they
 * run in the engine's. Used by local.c, null.c and nccl.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "kernels/streams.h"

#include "zero/comm/comm.h"

zr_result zr_comm_context(struct zr_comm *comm, struct zr_kernel_context **out)
{
    const struct zr_kernels *kernels = comm->options.kernels;
    zr_result result = ZR_OK;
    *out = NULL;
    if (kernels->host_visible)
        return ZR_OK;
    if (!comm->context_open) { /* no workspace */
        comm->context.stream = comm->options.beside ? comm->options.beside : comm->options.stream;
        zr_comm_guard(comm, &comm->context);
        result = kernels->open(&comm->context);
    }
    comm->context_open = result == ZR_OK;
    *out = &comm->context;
    return result;
}

static void forget_ends(struct zr_comm *comm)
{
    for (unsigned i = 0; i < ZR_COMM_QUEUE_COUNT; i++) {
        if (comm->ended[i])
            comm->options.kernels->streams->event_destroy(comm->ended[i]);
        comm->ended[i] = NULL;
    }
}

void zr_comm_context_close(struct zr_comm *comm)
{
    const struct zr_kernel_streams *streams = comm->options.kernels->streams;
    if (comm->context_open)
        comm->options.kernels->close(&comm->context);
    comm->context_open = false;
    forget_ends(comm);
    if (comm->begun)
        streams->event_destroy(comm->begun);
    comm->begun = NULL;
}

static zr_result copy(struct zr_comm *comm, const struct zr_copy_bytes *args)
{
    struct zr_kernel_context *context;
    zr_result result = zr_comm_context(comm, &context);
    return result == ZR_OK ? comm->options.kernels->copy_bytes(context, args) : result;
}

zr_result zr_comm_copy(struct zr_comm *comm, void *to, const void *from, size_t bytes)
{
    if (!comm->options.kernels->host_visible)
        return to == from ? ZR_OK
                          : copy(comm, &(struct zr_copy_bytes){.bytes = bytes, .from = from, .to = to});
    memmove(to, from, bytes);
    return ZR_OK;
}

zr_result zr_comm_end_copies(struct zr_comm *comm)
{
    return comm->options.kernels->host_visible ? ZR_OK : copy(comm, &(struct zr_copy_bytes){.waits = true});
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Records the end of the stream's current work; creates the event when first needed. */
static zr_result record(struct zr_comm *comm, void **event, void *stream)
{
    const struct zr_kernel_streams *streams = comm->options.kernels->streams;
    zr_result result = *event ? ZR_OK : streams->event_create(event);
    return result == ZR_OK ? streams->record(*event, stream) : result;
}

zr_result zr_comm_stream_begin(struct zr_comm *comm)
{
    if (!zr_comm_by_stream(comm))
        return ZR_OK;
    comm->timeout = zr_timeout_begin();
    zr_result result = record(comm, &comm->begun, comm->options.stream);
    return result == ZR_OK ? comm->options.kernels->streams->wait(comm->options.beside, comm->begun) : result;
}

zr_result zr_comm_stream_end(struct zr_comm *comm, zr_ticket ticket)
{
    if (!zr_comm_by_stream(comm))
        return ZR_OK;
    zr_result result = record(comm, &comm->ended[ticket % ZR_COMM_QUEUE_COUNT], comm->options.beside);
    if (result == ZR_OK)
        atomic_store(&comm->queued, ticket);
    return result;
}

/* If a later ticket has reused the element, its event is later and sufficient. */
zr_result zr_comm_stream_wait(struct zr_comm *comm, zr_ticket ticket)
{
    void *ended = comm->ended[ticket % ZR_COMM_QUEUE_COUNT];
    return ticket > 0 && ended ? comm->options.kernels->streams->wait(comm->options.stream, ended) : ZR_OK;
}

static zr_result look_at_peers(void *state)
{
    struct zr_comm *comm = state;
    return comm->table->look(comm, zr_timeout_waited_ns(&comm->timeout));
}

void zr_comm_guard(zr_comm *comm, struct zr_kernel_context *context)
{
    if (!comm || !comm->table->look || !zr_comm_by_stream(comm))
        return;
    context->while_waiting = look_at_peers;
    context->waiting_state = comm;
}

void zr_comm_follow(struct zr_comm *comm, const struct zr_comm *leader)
{
    if (zr_comm_by_stream(comm) && zr_comm_by_stream(leader))
        comm->options.stream = leader->options.beside;
}

zr_result zr_comm_drain(struct zr_comm *comm)
{
    struct zr_kernel_context context = {.stream = comm->options.beside};
    if (!zr_comm_by_stream(comm))
        return ZR_OK;
    comm->timeout = zr_timeout_begin();
    zr_comm_guard(comm, &context);
    return comm->options.kernels->streams->drain(&context);
}

void zr_comm_record(struct zr_comm *comm, enum zr_comm_recording what)
{
    if (comm->table->record)
        comm->table->record(comm, what);
    if (what != ZR_COMM_BEGINS) /* events inside the graph cannot be waited for outside */
        forget_ends(comm);
}

zr_result zr_comm_again(struct zr_comm *comm)
{
    return comm->table->again ? comm->table->again(comm) : ZR_OK;
}
