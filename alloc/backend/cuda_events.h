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
    pthread_mutex_t lock; /* covers all fields below */
    struct zr_cuda_event_slot *slots;
    uint32_t slots_count;    /* slots that have a driver's event */
    uint32_t free;           /* first of a list linked by `next` */
    uint32_t oldest, newest; /* pending slots in the order of recording */
};

/* ZR_ERR_HOST_MEMORY: no events. On success the caller owns the events until zr_cuda_events_end(). */
zr_result zr_cuda_events_init(struct zr_cuda_events *events, const struct zr_cuda_driver *driver);
/* Frees zr's records; with `with_driver` also destroys the driver's events. */
void zr_cuda_events_end(struct zr_cuda_events *events, bool with_driver);

/* *ticket gets a point after everything submitted to the stream so far. */
zr_result zr_cuda_events_record(struct zr_cuda_events *events, zr_cu_stream stream, uint64_t *ticket);
/* Whether the point is complete, or the context is dead and runs no more work. */
bool zr_cuda_events_done(struct zr_cuda_events *events, uint64_t ticket);
/* Waits without the lock. */
zr_result zr_cuda_events_wait(struct zr_cuda_events *events, uint64_t ticket);

#endif
