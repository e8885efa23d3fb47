/* report.h: why a request was refused, in figures and words. Private to alloc/. */
#ifndef ZR_TELEMETRY_REPORT_H
#define ZR_TELEMETRY_REPORT_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"

/* Why a request was refused: what a trace says of it, in the words of trace_format.h. */
struct zr_refusal {
    unsigned cause;           /* enum zrt_cause; 0: unknown, and the rest is 0 */
    uint64_t need_bytes;      /* what the request came to */
    uint64_t free_bytes;      /* free and mapped */
    uint64_t largest_bytes;   /* of it in one piece */
    uint64_t cached_bytes;    /* granules that are mapped nowhere */
    uint64_t pending_bytes;   /* freed, and a stream has not passed */
    uint64_t unmovable_bytes; /* of the free bytes, on granules that may not move */
    uint64_t reserved_bytes;  /* held of the device; tag limit: live of the tag */
    uint64_t limit_bytes;     /* of reserved_bytes; 0: none */
    uint64_t device_bytes;    /* of the device in all; 0: not known, nor are the two that follow */
    /* What a later reader knows of: fields may be added at the end. */
    uint64_t device_free_bytes; /* what the device says is free */
    uint64_t process_bytes;     /* held of it by all arenas of this backend */
    uint64_t whole_bytes;       /* of the free bytes, in whole granules that may move */
    uint64_t pool_idle_bytes;   /* in whole granules that contiguous pools keep and nothing is on */
};

/* The words for a request that could not be had, and the need that it came to; returns `result`. Reads this
 * thread's last error as the cause. With the stripe's lock, which is opened while it looks at the others. */
zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                              struct zr_need need, struct zr_refusal *refusal);

#endif
