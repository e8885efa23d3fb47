/* publish.h: the file in which a process publishes its figures (publish_format.h). Private to alloc/. One
 * thread at a time. */
#ifndef ZR_PUBLISH_H
#define ZR_PUBLISH_H

#include "alloc/telemetry/publish_format.h"

struct zr_publisher {
    struct zr_published *shown; /* the mapped file; not mapped in a child after fork */
    char path[320];
};

/* Sets the path and removes the file of a dead process with the same number: a reader that finds a stale file
 * beside this process's socket removes both. */
void zr_publisher_name(struct zr_publisher *out, const char *folder);
/* Creates the file at the path. ZR_ERR_IO, with a message. */
zr_result zr_publisher_start(struct zr_publisher *out);
/* The figures to refresh. Other figures, and all figures of an arena whose lock is busy, keep their values.
 */
enum zr_refresh {
    ZR_REFRESH_COUNTERS = 0,
    ZR_REFRESH_WALKED, /* also pending and stranded bytes, which need a walk over the extents */
    ZR_REFRESH_DEVICES /* also the devices' figures, which may take a driver call */
};
void zr_publisher_refresh(struct zr_publisher *publisher, enum zr_refresh what);
/* Unmaps the file; the caller unlinks it. */
void zr_publisher_end(struct zr_publisher *publisher);

#endif
