/* raw_trace.h: what a reader of one format hands over, and how it becomes a sequence. Private to defrag/.
 *
 * A raw trace names blocks by address, as the file does. Making the sequence numbers them, puts what was live
 * before the window in front, and refuses traces that contradict themselves. */
#ifndef ZR_RAW_TRACE_H
#define ZR_RAW_TRACE_H

#include "defrag/trace/vector.h"
#include "defrag/zr_defrag.h"

struct zr_raw_event {
    uint64_t address; /* or whatever tells live blocks apart */
    uint64_t bytes;   /* requested. Of a free: what the file says, 0 if nothing */
    uint64_t stream;
    uint64_t thread; /* any number */
    uint8_t kind;    /* enum zr_event_kind */
    uint8_t tag;
};

/* A block that was live when the recording ended, whether or not the events say where it came from. */
struct zr_raw_block {
    uint64_t address, bytes, stream;
};

struct zr_raw_trace {
    const char *format;
    const char *path;
    struct zr_vector events; /* struct zr_raw_event, in order; those of 0 bytes are passed over */
    struct zr_vector blocks; /* struct zr_raw_block; in any order */
    size_t preface_count;    /* events at the front that make what was there before the recording */
    bool whole;              /* nothing is missing in front: a free needs its allocation */
    bool cut_short;          /* the end of the file is missing */
};

/* Makes the sequence. The raw trace stays the caller's. ZR_ERR_FORMAT: an address is allocated while it is
 * live or freed while it is not; no allocation at all; sums beyond 64 bits. */
zr_result zr_raw_trace_sequence(struct zr_sequence *out, struct zr_raw_trace *trace);

/* The readers: fill in events, blocks, preface_count and whole. */
zr_result zr_zrt_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_torch_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_rmm_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_minimalloc_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_events_csv_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
/* True if a header's line is that of an RMM log. `line` ends with a zero. */
bool zr_rmm_is(const char *line);

/* A row of an RMM log after the other. Of a failed allocation `failed` is set, and the address is 0; a row of
 * nothing (a pointer of (nil)) has 0 bytes. ZR_ERR_FORMAT, with file and line. */
struct zr_csv;
struct zr_rmm_row {
    struct zr_raw_event event;
    uint64_t time_ns; /* of the day; 0 where it cannot be read */
    bool failed;
};
zr_result zr_rmm_next(struct zr_csv *csv, struct zr_rmm_row *out, bool *more);

/* The name of a file's format, told by its content: "zrt", "torch", "rmm", "minimalloc", "csv". ZR_ERR_IO,
 * ZR_ERR_FORMAT as zr_sequence_read(). */
zr_result zr_trace_format(const char *path, const char **name);

#endif
