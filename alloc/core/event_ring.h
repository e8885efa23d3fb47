/* event_ring.h: the arena's ring of recent events, written by the allocation path. The flight recorder
 * (alloc/telemetry/recorder.h) owns the ring. Private to alloc/. */
#ifndef ZR_CORE_EVENT_RING_H
#define ZR_CORE_EVENT_RING_H

#include <stddef.h>
#include <stdint.h>

/* An event of the flight recorder (alloc/telemetry/recorder.h). A cache line holds two. */
struct zr_recorded {
    uint64_t where;  /* offset from the arena's base, a multiple of ZR_UNIT_BYTES; low byte: the kind */
    uint64_t stream; /* tick: nanoseconds */
    uint64_t bytes;  /* size of the extent, with the number of its stack << 48 (stacks.h; 0: none); or of the
                        granules */
    uint32_t slack_bytes;
    uint16_t tag, thread; /* threads beyond the 65,535th share a number */
};

/* The flight recorder's ring (alloc/telemetry/recorder.c). lock: arena->lock */
struct zr_recorder {
    struct zr_recorded *next;   /* where the next event goes; at `stop` zr_recorder_advance() runs first */
    struct zr_recorded *stop;   /* NULL: the recorder is off, and `next` is NULL too */
    struct zr_recorded *events; /* NULL: the recorder is off */
    size_t mask;                /* the number of events in the ring, a power of two, less 1 */
    uint64_t stop_count;        /* events since the ring was created, counted when `next` reaches `stop` */
    uint64_t first; /* events before this count are invalid: a region was reserved or released after them */
    uint64_t written_ns; /* time of the last file; 0: no file was written */
};

/* Events since the ring was created. */
static inline uint64_t zr_recorder_count(const struct zr_recorder *recorder)
{
    return recorder->stop_count - (uint64_t)(recorder->stop - recorder->next);
}

#endif
