/* raw_trace.h: the result of a reader of one format, and its conversion to a sequence. Private to defrag/.
 *
 * A raw trace identifies blocks by address, as the file does. The conversion numbers the blocks, moves blocks
 * that were live before the window to the front, and rejects contradictory traces. */
#ifndef ZR_RAW_TRACE_H
#define ZR_RAW_TRACE_H

#include "defrag/trace/vector.h"
#include "defrag/zr_defrag.h"

struct zr_raw_event {
    uint64_t address; /* or another number that distinguishes live blocks */
    uint64_t bytes;   /* requested; in a free: as the file has it, or 0 */
    uint64_t stream;
    uint64_t thread; /* any number */
    uint8_t kind;    /* enum zr_event_kind */
    uint8_t tag;
};

/* A block that was live at the end of the recording, with or without an allocation in the events. */
struct zr_raw_block {
    uint64_t address, bytes, stream;
};

struct zr_raw_trace {
    const char *format;
    const char *path;
    struct zr_vector events; /* struct zr_raw_event, in order; events of 0 bytes are skipped */
    struct zr_vector blocks; /* struct zr_raw_block; in any order */
    size_t preface_count;    /* leading events that recreate the blocks from before the recording */
    bool whole;              /* the recording starts with empty memory: each free needs its allocation */
    bool cut_short;          /* the file is truncated */
};

/* Makes the sequence. The caller keeps the raw trace. ZR_ERR_FORMAT: an address is allocated while live or
 * freed while not live; no allocation at all; sums beyond 64 bits. */
zr_result zr_raw_trace_sequence(struct zr_sequence *out, struct zr_raw_trace *trace);

/* The readers fill in events, blocks, preface_count and whole. */
zr_result zr_zrt_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_torch_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_rmm_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_minimalloc_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
zr_result zr_events_csv_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options);
/* Whether a header line is that of an RMM log. `line` is zero-terminated. */
bool zr_rmm_is(const char *line);

/* Reads an RMM log row by row. For a failed allocation, `failed` is set and the address is 0; a row with the
 * pointer (nil) has 0 bytes. ZR_ERR_FORMAT, with file and line. */
struct zr_csv;
struct zr_rmm_row {
    struct zr_raw_event event;
    uint64_t time_ns; /* time of day; 0: unreadable */
    bool failed;
};
zr_result zr_rmm_next(struct zr_csv *csv, struct zr_rmm_row *out, bool *more);

/* The name of a file's format, by its content: "zrt", "torch", "rmm", "minimalloc", "csv". ZR_ERR_IO,
 * ZR_ERR_FORMAT as zr_sequence_read(). */
zr_result zr_trace_format(const char *path, const char **name);

#endif
