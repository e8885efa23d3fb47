/* streams.c: streams, events, semaphores and graphs of the driver, and waits of the host. See cuda.h. */
#define _GNU_SOURCE
#include "kernels/cuda/cuda.h"

#include <time.h>

#include "alloc/base/error.h"
#include "kernels/cuda/driver_streams.h"

/* One per process. */
static struct {
    const struct zr_cuda_driver *driver;
#define MEMBER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
    ZR_CUDA_WORDS(MEMBER)
    ZR_CUDA_STREAMS(MEMBER)
    ZR_CUDA_GRAPHS(MEMBER)
#undef MEMBER
} calls;
static _Atomic uint64_t waits_count;

zr_result zr_cuda_streams_find(void)
{
    zr_result result = zr_cuda_driver_get(&calls.driver);
#define FIND(member, name, suffix, parameters)                                                               \
    if (result == ZR_OK)                                                                                     \
        result = zr_cuda_driver_find(#name #suffix, (void **)&calls.member);
    ZR_CUDA_WORDS(FIND)
    ZR_CUDA_STREAMS(FIND)
    ZR_CUDA_GRAPHS(FIND)
#undef FIND
    return result;
}

static zr_result answer(zr_cu_result code, const char *what)
{
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_INVALID, "%s", what);
}

static zr_result create(void **stream, bool beside)
{
    zr_cu_stream made = NULL;
    zr_result result = zr_cuda_streams_find(); /* may be called before any kernel is loaded */
    if (result == ZR_OK)
        result =
            answer(calls.stream_create(&made, beside ? ZR_CU_STREAM_NON_BLOCKING : 0), "to create a stream");
    *stream = made;
    return result;
}

static void destroy(void *stream)
{
    if (stream)
        calls.stream_destroy(stream);
}

static zr_result event_create(void **event)
{
    zr_cu_event made = NULL;
    zr_result result =
        answer(calls.driver->event_create(&made, ZR_CU_EVENT_DISABLE_TIMING), "to create an event");
    *event = made;
    return result;
}

static void event_destroy(void *event)
{
    if (event)
        calls.driver->event_destroy(event);
}

static zr_result record(void *event, void *stream)
{
    return answer(calls.driver->event_record(event, stream), "to record an event");
}

static zr_result wait(void *stream, void *event)
{
    return answer(calls.stream_wait(stream, event, 0), "to let a stream wait for an event");
}

static zr_result pin(void *memory, size_t bytes)
{
    return answer(calls.host_register(memory, bytes, 0), "to pin memory of the host");
}

static void unpin(void *memory)
{
    calls.host_unregister(memory);
}

static zr_cu_result address_of(_Atomic uint32_t *word, zr_cu_address *out)
{
    return calls.host_address(out, (void *)(uintptr_t)word, 0);
}

static zr_result word_write(void *stream, _Atomic uint32_t *word, uint32_t value)
{
    zr_cu_address address;
    zr_cu_result code = address_of(word, &address);
    if (code == ZR_CU_SUCCESS)
        code = calls.word_write(stream, address, value, 0);
    return answer(code, "to let a stream write a word");
}

static zr_result word_wait(void *stream, _Atomic uint32_t *word, uint32_t value)
{
    zr_cu_address address;
    zr_cu_result code = address_of(word, &address);
    if (code == ZR_CU_SUCCESS)
        code = calls.word_wait(stream, address, value, 0);
    return answer(code, "to let a stream wait for a word");
}

/* ---- Graphs -------------------------------------------------------------------------------------------- */

/* Thread-local capture: other threads may call the driver meanwhile. */
static zr_result capture_begin(void *stream)
{
    return answer(calls.capture_begin(stream, ZR_CU_CAPTURE_THREAD_LOCAL), "to capture a stream");
}

/* Destroys the captured graph, which is not needed after instantiation and takes as much memory. */
static zr_result capture_end(void *stream, void **graph)
{
    zr_cu_graph recorded = NULL;
    zr_cu_graph_exec made = NULL;
    *graph = NULL;
    zr_cu_result code = calls.capture_end(stream, &recorded);
    if (code == ZR_CU_SUCCESS)
        code = calls.graph_instantiate(&made, recorded, 0);
    if (recorded)
        calls.graph_destroy(recorded);
    *graph = made;
    return answer(code, "to make a graph of a captured stream");
}

static zr_result graph_launch(void *graph, void *stream)
{
    return answer(calls.graph_launch(graph, stream), "to launch a graph");
}

static void graph_destroy(void *graph)
{
    if (graph)
        calls.graph_exec_destroy(graph);
}

static uint64_t host_waits(void)
{
    return atomic_load(&waits_count);
}

/* ---- The host's waits ---------------------------------------------------------------------------------- */

enum { QUERIES = 256, SLEEP_NS = 20000 };

/* Waits for the event, or without one for the context's stream. */
static zr_result host_wait(const struct zr_kernel_context *context, zr_cu_event event)
{
    const char *words = event ? "to wait for an event" : "to wait for a stream";
    zr_cu_stream stream = context->stream;
    zr_result result = ZR_OK;
    zr_cu_result code = ZR_CU_NOT_READY;
    atomic_fetch_add(&waits_count, 1);
    if (!context->while_waiting)
        return answer(
            event ? calls.driver->event_synchronize(event) : calls.driver->stream_synchronize(stream), words);
    for (;;) {
        for (unsigned i = 0; i < QUERIES && code == ZR_CU_NOT_READY; i++)
            code = event ? calls.driver->event_query(event) : calls.stream_query(stream);
        if (code != ZR_CU_NOT_READY)
            return answer(code, words);
        if (result !=
            ZR_OK) /* the loop queries once more: a peer may have completed its part before it exited */
            return result;
        result = context->while_waiting(context->waiting_state);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

zr_result zr_cuda_stream_wait(const struct zr_kernel_context *context)
{
    return host_wait(context, NULL);
}

static zr_result await(const struct zr_kernel_context *context, void *event)
{
    return host_wait(context, event);
}

const struct zr_kernel_streams zr_cuda_streams = {.create = create,
                                                  .destroy = destroy,
                                                  .event_create = event_create,
                                                  .event_destroy = event_destroy,
                                                  .record = record,
                                                  .wait = wait,
                                                  .pin = pin,
                                                  .unpin = unpin,
                                                  .word_write = word_write,
                                                  .word_wait = word_wait,
                                                  .capture_begin = capture_begin,
                                                  .capture_end = capture_end,
                                                  .graph_launch = graph_launch,
                                                  .graph_destroy = graph_destroy,
                                                  .drain = zr_cuda_stream_wait,
                                                  .await = await,
                                                  .host_waits = host_waits};
