/* export.h: a recording in other programs' formats, as text or bytes into a zr_text, event by event. Private
 * to defrag/. */
#ifndef ZR_EXPORT_H
#define ZR_EXPORT_H

#include "alloc/base/system/file.h"
#include "defrag/report/moments.h"

struct zr_export {
    struct zr_recording *recording;
    const struct zr_moments *moments;
    uint64_t records_count; /* pprof: the moment */
    zr_arena *arena;
};

struct zr_export_format {
    const char *name;
    bool needs_maps, needs_addresses, is_text;
    /* The text keeps the first failure to write. */
    zr_result (*write)(const struct zr_export *own, struct zr_text *text);
};
/* csv         every event as it is
 * minimalloc  lifetimes, time being the event's number: for zr pack and other packers
 * rmm         a log as RAPIDS' memory manager writes it
 * perfetto    counters and marks as JSON, which Perfetto and Chrome's tracing read
 * pprof       what is live at a moment by stack and tag, as Go's pprof reads it (not compressed)
 * torch       a pickle of PyTorch's snapshot form */
extern const struct zr_export_format zr_export_formats[]; /* the last has no name */

/* Of the two that have a file of their own. */
zr_result zr_export_torch(const struct zr_export *own, struct zr_text *text);
zr_result zr_export_pprof(const struct zr_export *own, struct zr_text *text);

#endif
