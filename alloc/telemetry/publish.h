/* publish.h: the file in which a process shows its memory (publish_format.h). Private to alloc/. One thread
 * at a time. */
#ifndef ZR_PUBLISH_H
#define ZR_PUBLISH_H

#include "alloc/telemetry/publish_format.h"

struct zr_publisher {
    struct zr_published *shown; /* mapped; not in a child after fork */
    char path[320];
};

/* Names the file and removes that of a dead process with the same number: a reader that finds the stale file
 * beside this process's socket removes both. */
void zr_publisher_name(struct zr_publisher *out, const char *folder);
/* Makes the file that was named. ZR_ERR_IO, with words. */
zr_result zr_publisher_start(struct zr_publisher *out);
/* The figures of now, as many as are asked for; the others, and an arena whose lock is not to be had, stay as
 * they were. */
enum zr_refresh {
    ZR_REFRESH_COUNTERS = 0,
    ZR_REFRESH_WALKED, /* and those that a walk finds: pending and stranded bytes */
    ZR_REFRESH_DEVICES /* and what each device says of its memory, which may take a call of its driver */
};
void zr_publisher_refresh(struct zr_publisher *publisher, enum zr_refresh what);
/* Unmaps. The file goes with unlink(). */
void zr_publisher_end(struct zr_publisher *publisher);

#endif
