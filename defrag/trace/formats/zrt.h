/* zrt.h: reads and writes .zrt traces (alloc/telemetry/trace_format.h). The reader takes traces of any
 * origin: complete, truncated by a crash, still being written, or hostile. It validates every byte, allocates
 * nothing, and holds one buffer of the file. */
#ifndef ZR_ZRT_H
#define ZR_ZRT_H

#include "alloc/base/system/file.h"
#include "alloc/telemetry/trace_format.h"
#include "alloc/zr.h"

/* Why a request was refused; struct zr_refusal of alloc/core/arena.h defines the figures. */
struct zrt_refusal {
    enum zrt_cause cause; /* ZRT_CAUSE_UNKNOWN: all figures are 0 */
    uint64_t need_bytes, free_bytes, largest_bytes, cached_bytes, pending_bytes, unmovable_bytes,
        reserved_bytes, limit_bytes, device_bytes;
    bool has_more; /* false: the figures below are 0 */
    uint64_t device_free_bytes, process_bytes, whole_bytes, pool_idle_bytes;
};

/* A mapped module of code. The event contains the strings. */
struct zrt_module {
    uint64_t address, bytes, file_offset;
    unsigned build_id_bytes;
    unsigned char build_id[ZRT_BUILD_ID_BYTES];
    char path[ZRT_EXTENSION_BYTES + 1]; /* "": code without a file */
};

/* One event with absolute values. */
struct zrt_event {
    enum zrt_kind kind;
    uint64_t time_ns; /* since the start of the trace */
    uint64_t stream;
    uint32_t thread;
    zr_tag tag;              /* alloc, free, refused */
    uint64_t offset_bytes;   /* alloc, free, map, unmap: relative to the arena's base */
    uint64_t bytes;          /* alloc, refused: requested; map, unmap: mapped */
    uint64_t reserved_bytes; /* alloc: with rounding */
    bool asked;              /* free: a stream may still use the block */
    bool has_segment;        /* map, unmap: the next two fields are known */
    uint32_t pool;
    uint64_t unit_bytes;             /* the unit that can be unmapped; 0: only the whole */
    char label[ZRT_LABEL_BYTES + 1]; /* mark */
    struct zrt_refusal refusal;      /* refused */
    uint32_t stack;                  /* alloc, refused: stack of the request; stack: its number. 0: unknown */
    enum zrt_extension extension;    /* of kind 0; an unknown extension has no more fields */
    unsigned frames_count;           /* stack */
    uint64_t frame_number;           /* frame */
    uint64_t sample_bytes;           /* alloc: a sample, drawn one in so many bytes; 0: all are recorded */
    struct zrt_module module;        /* valid for the module extension; `path` is the text of a frame */
    uint64_t frames[ZRT_FRAMES_MAX];
};

/* A trace being read. One thread at a time. The fields are read-only. */
struct zrt_reader {
    struct zrt_header header;
    uint64_t read_bytes;   /* of events, so far */
    uint64_t events_count; /* so far */
    bool cut_short;        /* the file has fewer bytes than its header counts */

    /* private */
    struct zr_file file; /* closed if the source is memory */
    const unsigned char *data;
    uint64_t data_bytes, data_next_bytes;
    uint64_t left_bytes; /* of events that are readable */
    uint64_t time_ns, place_bytes, granule, stream;
    uint32_t thread, with; /* with: the stack of the next alloc or refused */
    uint64_t sample_bytes; /* of the next alloc */
    zr_tag tag;
    unsigned char buffer[1 << 16];
};

/* Opens a trace file. The caller owns *out until zrt_close(). ZR_ERR_FORMAT: not a .zrt, a later version than
 * this program's, or a contradictory header. */
zr_result zrt_open(struct zrt_reader *out, const char *path);
/* Opens `bytes` in memory, borrowed until zrt_close(). */
zr_result zrt_open_memory(struct zrt_reader *out, const void *data, size_t bytes);
void zrt_close(struct zrt_reader *reader);

/* Reads the next event. At the end *more is false; reader->cut_short tells whether events are missing.
 * ZR_ERR_CORRUPT, with the position: no event begins with these bytes, or the event is outside the arena.
 * ZR_ERR_IO: the file is unreadable. */
zr_result zrt_next(struct zrt_reader *reader, struct zrt_event *out, bool *more);

/* ---- Writing ------------------------------------------------------------------------------------------- */

/* For traces made of other files; an arena writes its own traces (alloc/telemetry/trace.h). */

/* A trace being written. The fields are read-only. */
struct zrt_writer {
    uint64_t written_bytes; /* of events, so far */

    /* private */
    struct zr_text *text;
    uint64_t granule_bytes;
    uint64_t time_ns, place_bytes, granule, stream; /* of the previous event */
    uint32_t thread;
    zr_tag tag;
};

/* Writes the header as given. Without a text, only counts events: the header contains the number of bytes, so
 * a writer to a pipe needs two passes. */
void zrt_writer_start(struct zrt_writer *out, const struct zrt_header *header, struct zr_text *text);
/* Requires: the event is inside the arena, blocks are not empty, times do not decrease. The text keeps the
 * first error. */
void zrt_write(struct zrt_writer *writer, const struct zrt_event *event);

#endif
