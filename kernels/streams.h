/* streams.h: the table of GPU streams, events, semaphores in pinned memory (between processes) and graphs;
 * zr_kernels.streams points to it. Private to kernels/ and zero/.
 *
 * The device's primary context is current in the calling thread. Only drain() and await() block on the GPU.
 * Streams and events are CUstream and CUevent; the caller owns them and destroys them when no work uses them.
 * Errors are the driver's, as for kernels. */
#ifndef ZR_KERNEL_STREAMS_H
#define ZR_KERNEL_STREAMS_H

#include <stdatomic.h>

#include "kernels/zr_kernels.h"

struct zr_kernel_streams {
    /* `beside`: the stream does not synchronize with the default stream. */
    zr_result (*create)(void **stream, bool beside);
    void (*destroy)(void *stream); /* NULL does nothing */
    zr_result (*event_create)(void **event);
    void (*event_destroy)(void *event); /* NULL does nothing */
    /* record: the event marks the end of the stream's current work. wait: later work of the stream starts
     * after the event's last record; does nothing if it was never recorded. */
    zr_result (*record)(void *event, void *stream);
    zr_result (*wait)(void *stream, void *event);
    /* Pins host memory, which makes copies asynchronous and word_wait() possible. Memory must not be pinned
     * twice. */
    zr_result (*pin)(void *memory, size_t bytes);
    void (*unpin)(void *memory);
    /* In stream order: sets a word of pinned memory / waits until it is at least `value`, modulo 2^32. The
     * host and other processes may access the word too. */
    zr_result (*word_write)(void *stream, _Atomic uint32_t *word, uint32_t value);
    zr_result (*word_wait)(void *stream, _Atomic uint32_t *word, uint32_t value);
    /* Work that the calling thread queues between the two, in the stream and in streams that wait for its
     * events, is captured instead of executed. A graph has the captured arguments and addresses.
     * capture_end() always ends the capture; it fails if the work contained an operation that cannot be
     * captured, such as a wait of the host, or if the stream did not wait for another captured stream. */
    zr_result (*capture_begin)(void *stream);
    zr_result (*capture_end)(void *stream, void **graph);
    /* Runs the graph in stream order. It must not be running in another stream. */
    zr_result (*graph_launch)(void *graph, void *stream);
    void (*graph_destroy)(void *graph); /* must not be running; NULL does nothing */
    /* The host waits for the context's stream / for a recorded event, polling while_waiting. Only `stream`
     * and while_waiting of the context are used. */
    zr_result (*drain)(const struct zr_kernel_context *context);
    zr_result (*await)(const struct zr_kernel_context *context, void *event);
    /* Number of times that this process has waited for a GPU. */
    uint64_t (*host_waits)(void);
};

#endif
