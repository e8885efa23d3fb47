/* zrt_writer.h: writes .zrt events (alloc/telemetry/trace_format.h) into a text, for zrt.h to read. Used for
 * traces made of other files; an arena writes its own traces (alloc/telemetry/trace.h). Private to defrag/.
 */
#ifndef ZR_ZRT_WRITER_H
#define ZR_ZRT_WRITER_H

#include "defrag/trace/formats/zrt.h"

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
