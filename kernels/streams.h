/* streams.h: streams of a card, and what orders their work: events between streams of one process, words
 * between those of several; and graphs of such work, to be done again. A table like struct zr_kernels, whose
 * `streams` it is. Private to kernels/ and zero/.
 *
 * The device's primary context is current in the calling thread. Nothing here but drain() and await() waits
 * for the card. Streams and events are the driver's (CUstream, CUevent); they are the caller's, and end when
 * no work uses them. Failures are those of the driver, as the kernels' are. */
#ifndef ZR_KERNEL_STREAMS_H
#define ZR_KERNEL_STREAMS_H

#include <stdatomic.h>

#include "kernels/zr_kernels.h"

struct zr_kernel_streams {
    /* `beside`: nothing orders it with the default stream. */
    zr_result (*create)(void **stream, bool beside);
    void (*destroy)(void *stream); /* NULL does nothing */
    zr_result (*event_create)(void **event);
    void (*event_destroy)(void *event); /* NULL does nothing */
    /* The event is where the stream's work ends now / later work of the stream begins after the event, as it
     * was recorded last; at once where it never was. */
    zr_result (*record)(void *event, void *stream);
    zr_result (*wait)(void *stream, void *event);
    /* Pins memory of the host's, so that copies from it and to it run in stream order, and words in it can be
     * waited for. Not twice at one time. */
    zr_result (*pin)(void *memory, size_t bytes);
    void (*unpin)(void *memory);
    /* In stream order: sets a word of pinned memory / waits until it is `value` or more, modulo 2^32. The
     * host and other processes may read and write it too. */
    zr_result (*word_write)(void *stream, _Atomic uint32_t *word, uint32_t value);
    zr_result (*word_wait)(void *stream, _Atomic uint32_t *word, uint32_t value);
    /* What the calling thread gives the stream between the two, and streams that wait for its events, is
     * recorded and not done. The arguments of operations stay as they were; memory is read and written where
     * it is when the graph is launched. capture_end() fails, and makes no graph, where something cannot be
     * recorded, as a wait of the host's, or a stream has not been waited for. It ends the capture in any
     * case. */
    zr_result (*capture_begin)(void *stream);
    zr_result (*capture_end)(void *stream, void **graph);
    /* All of it, in stream order. Not while it is under way in another stream. */
    zr_result (*graph_launch)(void *graph, void *stream);
    void (*graph_destroy)(void *graph); /* NULL does nothing; none of it is under way */
    /* The host waits for the context's stream, of which and of while_waiting alone it takes notice / for an
     * event that was recorded, with the context's while_waiting. */
    zr_result (*drain)(const struct zr_kernel_context *context);
    zr_result (*await)(const struct zr_kernel_context *context, void *event);
    /* How often operations of this process have waited for a card so far. */
    uint64_t (*host_waits)(void);
};

#endif
