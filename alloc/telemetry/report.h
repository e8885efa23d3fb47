/* report.h: the figures of an arena, and the figures and the message of a failed request. Private to alloc/.
 */
#ifndef ZR_TELEMETRY_REPORT_H
#define ZR_TELEMETRY_REPORT_H

#include "alloc/core/arena.h"
#include "alloc/core/space.h"

/* The figures of a failed request, as in a trace; see trace_format.h. */
struct zr_refusal {
    unsigned cause;           /* enum zrt_cause; 0: unknown, and all other fields are 0 */
    uint64_t need_bytes;      /* the request, rounded up */
    uint64_t free_bytes;      /* free and mapped */
    uint64_t largest_bytes;   /* the largest contiguous run of free_bytes */
    uint64_t cached_bytes;    /* unmapped granules in the cache */
    uint64_t pending_bytes;   /* freed, but some stream may still use it */
    uint64_t unmovable_bytes; /* the part of free_bytes on unmovable granules */
    uint64_t reserved_bytes;  /* held device memory; for a tag limit: live bytes of the tag */
    uint64_t limit_bytes;     /* limit of reserved_bytes; 0: none */
    uint64_t device_bytes;    /* total device memory; 0: unknown, and so are the next two fields */
    /* Added in a later version; further fields may be added at the end. */
    uint64_t device_free_bytes; /* free memory reported by the device */
    uint64_t process_bytes;     /* device memory held by all arenas of this backend */
    uint64_t whole_bytes;       /* the part of free_bytes in whole movable granules */
    uint64_t pool_idle_bytes;   /* idle granules that contiguous pools keep */
};

/* Sets the message of a failed request and fills in *refusal; returns `result`. Reads the thread's last error
 * as the cause. lock: the stripe's, which is released while other stripes are read. */
zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                              struct zr_need need, struct zr_refusal *refusal);

/* ---- Figures of an arena ------------------------------------------------------------------------------- */

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out);
/* zr_arena_get_stats() for callers that hold locks. */
zr_result zr_stats_of(struct zr_arena *arena, struct zr_arena_stats *out);

#endif
