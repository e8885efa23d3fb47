/* zrt_writer.h: writes .zrt events (alloc/telemetry/trace_format.h) into a text, one after the other: what
 * zrt.h reads. For traces that are made of other files; an arena writes its own (alloc/telemetry/trace.h).
 * Private to defrag/. */
#ifndef ZR_ZRT_WRITER_H
#define ZR_ZRT_WRITER_H

#include "defrag/trace/formats/zrt.h"

/* A trace being written. The fields are for reading only. */
struct zrt_writer {
    uint64_t written_bytes; /* of events, so far */

    /* private */
    struct zr_text *text;
    uint64_t granule_bytes;
    uint64_t time_ns, place_bytes, granule, stream; /* of the event before */
    uint32_t thread;
    zr_tag tag;
};

/* Starts with the header as it is. Without a text the events are only counted: a header says how many bytes
 * there are, so who writes to a pipe goes through them twice. */
void zrt_writer_start(struct zrt_writer *out, const struct zrt_header *header, struct zr_text *text);
/* The event has to lie inside the arena, blocks are not empty, and times do not fall. The text keeps the
 * first failure. */
void zrt_write(struct zrt_writer *writer, const struct zrt_event *event);

#endif
