/* export.h: writes a recording in other programs' formats, event by event, into a zr_text. Private to
 * defrag/. */
#ifndef ZR_EXPORT_H
#define ZR_EXPORT_H

#include "alloc/base/system/file.h"
#include "defrag/report/moments.h"

struct zr_export {
    struct zr_recording *recording;
    const struct zr_moments *moments;
    uint64_t records_count; /* pprof: the point in time */
    zr_arena *arena;
};

struct zr_export_format {
    const char *name;
    bool needs_maps, needs_addresses, is_text;
    /* The text keeps the first error of writing. */
    zr_result (*write)(const struct zr_export *own, struct zr_text *text);
};
/* csv         every event
 *   minimalloc  lifetimes, whose times are event numbers: for zr pack and other packers
 *   rmm         a log as RAPIDS' memory manager writes it
 *   perfetto    counters and marks as JSON, for Perfetto and Chrome's tracing
 *   pprof       live blocks at one point in time by stack and tag, for Go's pprof (uncompressed)
 *   torch       a pickle in the form of PyTorch's snapshots */
extern const struct zr_export_format zr_export_formats[]; /* ends with an entry without a name */

/* The two formats that have a file of their own. */
zr_result zr_export_torch(const struct zr_export *own, struct zr_text *text);
zr_result zr_export_pprof(const struct zr_export *own, struct zr_text *text);

#endif
