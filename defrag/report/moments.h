/* moments.h: the figures of a recording at chosen points in time, computed in one pass, and the memory at any
 * of these. Private to defrag/. */
#ifndef ZR_MOMENTS_H
#define ZR_MOMENTS_H

#include "defrag/report/memory.h"
#include "defrag/trace/formats/zrt.h"

/* A moment is a number of records: the state after the last of them. */
struct zr_moment {
    struct zr_memory_figures figures;
    uint64_t records_count;
    uint64_t time_ns;
};

struct zr_moments {
    struct zr_moment now;     /* the end */
    struct zr_moment peak;    /* the first one with the most live + pending bytes */
    struct zr_moment failure; /* before the last refused allocation */
    bool has_failure;
    struct zr_record refused;   /* that allocation */
    struct zrt_refusal refusal; /* its details in the file; cause unknown: none */
    uint64_t failures_count;
    uint64_t marks_count, failure_marks_count; /* all, and before the failure */
    uint64_t allocations_count, before_count;  /* before_count: blocks from before the window */
    uint64_t peak_requested_bytes, peak_reserved_bytes;
    double stranded_time_weighted; /* stranded / reserved, weighted by time; weighted by records if no time
                                      passes; the final value if there is one moment */
    double gmlake_ratio;           /* 1 - peak of live and pending / peak of reserved */
};

/* *end receives the memory at the end; the caller ends it in any case. */
zr_result zr_moments_measure(struct zr_moments *out, struct zr_memory *end, struct zr_recording *recording,
                             zr_arena *arena);

/* Plays the first `records_count` records into a memory, which the caller ends in any case. `also`, if not
 * NULL, receives each record, too. */
zr_result zr_moment_reach(struct zr_memory *memory, struct zr_recording *recording, uint64_t records_count,
                          const struct zr_recording_sink *also);

/* Parses "now", "peak", "failure", a number of records, "12.5s" (after the first record of the window) or
 * "mark:LABEL" (the last mark with that label, else the last mark that contains it). ZR_ERR_INVALID: no such
 * moment. */
zr_result zr_moment_find(const struct zr_moments *moments, struct zr_recording *recording, const char *words,
                         uint64_t *records_count);
/* The values of --at, for help texts. */
#define ZR_MOMENT_WORDS "now, peak, failure, a number of events, 12.5s or mark:LABEL"

/* stranded / reserved; 0 if nothing is reserved. */
double zr_stranded_ratio(const struct zr_memory_figures *figures);
/* The share of free memory in runs shorter than `bytes` (the unusable free space index of Gorman and
 * Whitcroft). */
double zr_unusable_ratio(const struct zr_memory *memory, uint64_t bytes);

#endif
