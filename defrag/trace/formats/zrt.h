/* zrt.h: reads .zrt traces (alloc/telemetry/trace_format.h), of any origin: whole, cut short by a crash,
 * still being written, or hostile. Never trusts a byte, never allocates, holds one buffer's worth at a time.
 */
#ifndef ZR_ZRT_H
#define ZR_ZRT_H

#include "alloc/base/system/file.h"
#include "alloc/telemetry/trace_format.h"
#include "alloc/zr.h"

/* Why a request was refused; struct zr_refusal of alloc/telemetry/report.h says what the figures are. */
struct zrt_refusal {
    enum zrt_cause cause; /* ZRT_CAUSE_UNKNOWN: the figures are 0 */
    uint64_t need_bytes, free_bytes, largest_bytes, cached_bytes, pending_bytes, unmovable_bytes,
        reserved_bytes, limit_bytes, device_bytes;
    bool has_more; /* else the others are 0 */
    uint64_t device_free_bytes, process_bytes, whole_bytes, pool_idle_bytes;
};

/* Code that is mapped. The strings lie in the event. */
struct zrt_module {
    uint64_t address, bytes, file_offset;
    unsigned build_id_bytes;
    unsigned char build_id[ZRT_BUILD_ID_BYTES];
    char path[ZRT_EXTENSION_BYTES + 1]; /* "": of no file */
};

/* One event with everything that it was written relative to put back. */
struct zrt_event {
    enum zrt_kind kind;
    uint64_t time_ns; /* since the start of the trace */
    uint64_t stream;
    uint32_t thread;
    zr_tag tag;              /* alloc, free, refused */
    uint64_t offset_bytes;   /* alloc, free, map, unmap: from the arena's base */
    uint64_t bytes;          /* alloc, refused: as requested; map, unmap: mapped */
    uint64_t reserved_bytes; /* alloc: with rounding */
    bool asked;              /* free: streams may still use the block */
    bool has_segment;        /* map, unmap: the next two are known */
    uint32_t pool;
    uint64_t unit_bytes;             /* what can be unmapped; 0: the whole of it or nothing */
    char label[ZRT_LABEL_BYTES + 1]; /* mark */
    struct zrt_refusal refusal;      /* refused */
    uint32_t stack;                  /* alloc, refused: of who asked; stack: its number. 0: not known */
    enum zrt_extension extension;    /* of kind 0; one that is not known has no more fields */
    unsigned frames_count;           /* stack */
    struct zrt_module module;        /* of that extension; of no meaning else */
    uint64_t frames[ZRT_FRAMES_MOST];
};

/* A trace being read. One thread at a time. The fields are for reading only. */
struct zrt_reader {
    struct zrt_header header;
    uint64_t read_bytes;   /* of events, so far */
    uint64_t events_count; /* so far */
    bool cut_short;        /* the file holds fewer bytes than its header counts */

    /* private */
    struct zr_file file; /* closed: the source is memory */
    const unsigned char *data;
    uint64_t data_bytes, data_next_bytes;
    uint64_t left_bytes; /* of events that can be read */
    uint64_t time_ns, place_bytes, granule, stream;
    uint32_t thread, with; /* with: the stack of the next alloc or refused */
    zr_tag tag;
    unsigned char buffer[1 << 16];
};

/* Opens a trace file. The caller owns *out until zrt_close(). ZR_ERR_FORMAT: no .zrt, of a later version than
 * this program's, or a header that contradicts itself. */
zr_result zrt_open(struct zrt_reader *out, const char *path);
/* The same of `bytes` in memory, borrowed until zrt_close(). */
zr_result zrt_open_memory(struct zrt_reader *out, const void *data, size_t bytes);
void zrt_close(struct zrt_reader *reader);

/* The next event. At the end *more is false (reader->cut_short says whether events are missing that were once
 * there). ZR_ERR_CORRUPT: no event can begin with these bytes, or it names places outside the arena; the
 * words say where. ZR_ERR_IO: the file could not be read. */
zr_result zrt_next(struct zrt_reader *reader, struct zrt_event *out, bool *more);

#endif
