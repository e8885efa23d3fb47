/* nccl_stream.c: the stream of a communicator's operations on a GPU; see nccl.h. Used by nccl_run.c. */
#include <stdatomic.h>

#include "alloc/base/error.h"
#include "zero/comm/nccl.h"

static zr_result result_of(zr_cu_result code, const char *what)
{
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_UNAVAILABLE, "%s", what);
}

zr_result zr_nccl_stream_open(struct nccl_stream *stream, void *caller)
{
    zr_cu_result (*create)(zr_cu_stream * stream, unsigned int flags);
    zr_cu_result code = ZR_CU_SUCCESS;
    zr_result result = zr_cuda_driver_get(&stream->driver);
    if (result == ZR_OK)
        result = zr_cuda_driver_find("cuStreamCreate", (void **)&create);
    if (result == ZR_OK)
        result = zr_cuda_driver_find("cuStreamDestroy_v2", (void **)&stream->destroy);
    if (result == ZR_OK)
        result = zr_cuda_driver_find("cuStreamWaitEvent", (void **)&stream->wait_event);
    if (result != ZR_OK)
        return result;
    stream->caller = caller;
    code = create(&stream->own, ZR_CU_STREAM_NON_BLOCKING);
    if (code == ZR_CU_SUCCESS)
        code = stream->driver->event_create(&stream->before, ZR_CU_EVENT_DISABLE_TIMING);
    for (unsigned i = 0; i < ZR_COMM_QUEUE_COUNT && code == ZR_CU_SUCCESS; i++)
        code = stream->driver->event_create(&stream->ended[i], ZR_CU_EVENT_DISABLE_TIMING);
    return result_of(code, "a stream for the operations of a communicator");
}

void zr_nccl_stream_close(struct nccl_stream *stream)
{
    for (unsigned i = 0; i < ZR_COMM_QUEUE_COUNT; i++)
        if (stream->ended[i])
            stream->driver->event_destroy(stream->ended[i]);
    if (stream->before)
        stream->driver->event_destroy(stream->before);
    if (stream->own)
        stream->destroy(stream->own);
    *stream = (struct nccl_stream){.driver = NULL};
}

zr_result zr_nccl_stream_begin(struct nccl_stream *stream)
{
    zr_cu_result code = stream->driver->event_record(stream->before, stream->caller);
    if (code == ZR_CU_SUCCESS)
        code = stream->wait_event(stream->own, stream->before, 0);
    return result_of(code, "to come behind what a communicator's operation reads");
}

zr_result zr_nccl_stream_end(struct nccl_stream *stream, zr_ticket ticket)
{
    zr_cu_result code =
        stream->driver->event_record(stream->ended[ticket % ZR_COMM_QUEUE_COUNT], stream->own);
    if (code == ZR_CU_SUCCESS)
        atomic_store(&stream->last, ticket);
    return result_of(code, "the end of a communicator's operation");
}

/* If a later operation has reused the element, its event is later and sufficient. */
zr_result zr_nccl_stream_join(struct nccl_stream *stream, zr_ticket ticket)
{
    if (ticket <= stream->waited)
        return ZR_OK;
    stream->waited = ticket;
    return result_of(stream->wait_event(stream->caller, stream->ended[ticket % ZR_COMM_QUEUE_COUNT], 0),
                     "to wait for a communicator's operation");
}

bool zr_nccl_stream_done(const struct nccl_stream *stream, zr_ticket ticket)
{
    return ticket == 0 ||
           stream->driver->event_query(stream->ended[ticket % ZR_COMM_QUEUE_COUNT]) != ZR_CU_NOT_READY;
}
