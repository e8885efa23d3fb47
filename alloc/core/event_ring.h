/* event_ring.h: the arena's ring of recent events, as the allocation path writes it. The flight recorder
 * (alloc/telemetry/recorder.h) owns it. Private to alloc/. */
#ifndef ZR_CORE_EVENT_RING_H
#define ZR_CORE_EVENT_RING_H

#include <stddef.h>
#include <stdint.h>

/* An event of the flight recorder (alloc/telemetry/recorder.h): two on a cache line. */
struct zr_recorded {
    uint64_t
        where; /* offset from the arena's base, a multiple of ZR_UNIT_BYTES, with the kind in its low byte */
    uint64_t stream; /* tick: nanoseconds */
    uint64_t
        bytes; /* of the extent, with the number of its stack << 48 (stacks.h; 0: none); or of granules */
    uint32_t slack_bytes;
    uint16_t tag, thread; /* threads beyond the 65,535th share a number */
};

/* The flight recorder's ring (alloc/telemetry/recorder.c). lock: arena->lock */
struct zr_recorder {
    struct zr_recorded *next;   /* where the next event goes; as far as `stop`: there is more to do first */
    struct zr_recorded *stop;   /* NULL as `next` is: off */
    struct zr_recorded *events; /* NULL: off */
    size_t mask;                /* of a power of two of them */
    uint64_t stop_count;        /* events since the ring was made, once `next` is at `stop` */
    uint64_t first;             /* those before are forgotten: a region came or went after them */
    uint64_t written_ns;        /* when its last file was written; 0: never */
};

/* Events since the ring was made. */
static inline uint64_t zr_recorder_count(const struct zr_recorder *recorder)
{
    return recorder->stop_count - (uint64_t)(recorder->stop - recorder->next);
}

#endif
