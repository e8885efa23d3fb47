/* cuda_events.h: points in CUDA streams as numbers. Private to backend_cuda.c.
 *
 * The backends' contract has events that are recorded and queried and never destroyed. Each gets one of the
 * driver's events until it is known to be complete; the driver's event is then reused. Every call except the
 * first two requires the streams' context to be current. Any thread. */
#ifndef ZR_CUDA_EVENTS_H
#define ZR_CUDA_EVENTS_H

#include <pthread.h>

#include "alloc/backend/cuda_driver.h"

struct zr_cuda_event_slot;

struct zr_cuda_events {
    const struct zr_cuda_driver *driver;
    pthread_mutex_t lock; /* everything below */
    struct zr_cuda_event_slot *slots;
    uint32_t slots_count;    /* that have a driver's event */
    uint32_t free;           /* first of a list through next */
    uint32_t oldest, newest; /* pending ones, in the order they were recorded */
};

/* ZR_ERR_HOST_MEMORY. On success the events are the caller's until zr_cuda_events_end(). */
zr_result zr_cuda_events_init(struct zr_cuda_events *events, const struct zr_cuda_driver *driver);
/* Destroys the driver's events too if `with_driver`; without, only zr's own records. */
void zr_cuda_events_end(struct zr_cuda_events *events, bool with_driver);

/* *ticket stands for everything submitted to the stream so far. */
zr_result zr_cuda_events_record(struct zr_cuda_events *events, zr_cu_stream stream, uint64_t *ticket);
/* True when it is complete, or the context is dead and nothing will ever run in it. */
bool zr_cuda_events_done(struct zr_cuda_events *events, uint64_t ticket);
/* Waits without the lock. */
zr_result zr_cuda_events_wait(struct zr_cuda_events *events, uint64_t ticket);

#endif
