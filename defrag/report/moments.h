/* moments.h: a recording's figures at the moments that matter, from one pass, and the memory as it was at any
 * of them. Private to defrag/. */
#ifndef ZR_MOMENTS_H
#define ZR_MOMENTS_H

#include "defrag/report/memory.h"
#include "defrag/trace/formats/zrt.h"

/* A moment is so many records after the start: after the last of them. */
struct zr_moment {
    struct zr_memory_figures figures;
    uint64_t records_count;
    uint64_t time_ns;
};

struct zr_moments {
    struct zr_moment now;     /* the end */
    struct zr_moment peak;    /* the first at which live + pending bytes were the most */
    struct zr_moment failure; /* before the last allocation that was refused */
    bool has_failure;
    struct zr_record refused;   /* the one */
    struct zrt_refusal refusal; /* and what its file says of it; cause unknown: nothing */
    uint64_t failures_count;
    uint64_t allocations_count, before_count; /* before_count: blocks from before the window */
    uint64_t peak_requested_bytes, peak_reserved_bytes;
    double stranded_time_weighted; /* stranded over reserved, by time; by records where no time passes; now
                                      where nothing does */
    double gmlake_ratio;           /* 1 - peak of live and pending over the peak of reserved */
};

/* *end is the memory at the end, which the caller ends in any case. */
zr_result zr_moments_measure(struct zr_moments *out, struct zr_memory *end, struct zr_recording *recording,
                             zr_arena *arena);

/* Plays the first `records_count` records into a memory, which the caller ends in any case. `also`, where it
 * is not NULL, is handed each of them, too. */
zr_result zr_moment_reach(struct zr_memory *memory, struct zr_recording *recording, uint64_t records_count,
                          const struct zr_recording_sink *also);

/* "now", "peak", "failure", a number of records, "12.5s" (so long after the first record that is not from
 * before) or "mark:LABEL" (the last such mark, or else the last that has LABEL in it). ZR_ERR_INVALID: no
 * such moment. */
zr_result zr_moment_find(const struct zr_moments *moments, struct zr_recording *recording, const char *words,
                         uint64_t *records_count);
/* What --at takes, for a help text. */
#define ZR_MOMENT_WORDS "now, peak, failure, a number of events, 12.5s or mark:LABEL"

/* stranded / reserved; 0 where nothing is reserved. */
double zr_stranded_ratio(const struct zr_memory_figures *figures);
/* Of what is free in the memory, the part that lies in runs shorter than `bytes` (Gorman and Whitcroft's
 * unusable free space index). */
double zr_unusable_ratio(const struct zr_memory *memory, uint64_t bytes);

#endif
