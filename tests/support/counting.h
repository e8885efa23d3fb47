/* counting.h: counts what a backend's implementation is asked for, by functions put before its own: nothing
 * of the arena's counters or of the front is in it. One kind of backend at a time. */
#ifndef ZR_TEST_COUNTING_H
#define ZR_TEST_COUNTING_H

#include <stdatomic.h>

#include "alloc/backend/backend.h"

static struct {
    const struct zr_backend_ops *below;
    struct zr_backend_ops ops;
    _Atomic uint64_t calls; /* create, destroy, map, unmap, set access, record an event */
} counting;

static zr_result counting_create(zr_backend *backend, struct zr_handle *handle)
{
    counting.calls++;
    return counting.below->create(backend, handle);
}

static void counting_destroy(zr_backend *backend, struct zr_handle *handle)
{
    counting.calls++;
    counting.below->destroy(backend, handle);
}

static zr_result counting_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    counting.calls++;
    return counting.below->map(backend, address, handle);
}

static zr_result counting_unmap(zr_backend *backend, char *address, size_t bytes)
{
    counting.calls++;
    return counting.below->unmap(backend, address, bytes);
}

static zr_result counting_set_access(zr_backend *backend, char *address, size_t bytes)
{
    counting.calls++;
    return counting.below->set_access(backend, address, bytes);
}

static zr_result counting_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    counting.calls++;
    return counting.below->event_record(backend, stream, out);
}

/* From now on, of this backend too. */
static inline void count_calls(zr_backend *backend)
{
    counting.below = backend->ops;
    counting.ops = *backend->ops;
    counting.ops.create = counting_create;
    counting.ops.destroy = counting_destroy;
    counting.ops.map = counting_map;
    counting.ops.unmap = counting_unmap;
    counting.ops.set_access = counting_set_access;
    counting.ops.event_record = counting_event_record;
    backend->ops = &counting.ops;
}

#endif
