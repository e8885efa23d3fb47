/* holding.h: requests of this process to the holder of its kept memory: the launcher of the run, else zrd.
 * Private to the project. Any thread. */
#ifndef ZR_KEEP_HOLDING_H
#define ZR_KEEP_HOLDING_H

#include "alloc/base/compiler.h"
#include "alloc/keep/segment.h"

/* The launcher's door, which a rank inherits; -1: none. Set before any thread uses kept memory. */
ZR_PRIVATE_API void zr_holding_set_door(int door);

/* On success the caller owns *fd, a descriptor of the segment, and *holder, a connection that tells zrd that
 * this process uses it; -1: the launcher needs none. Errors are those of the public calls in zr_keep.h. */
zr_result zr_holding_create(const struct zr_keep_name *name, const struct zr_segment_shape *shape, int *fd,
                            int *holder);
zr_result zr_holding_open(const struct zr_keep_name *name, bool writes, int *fd, int *holder);
zr_result zr_holding_drop(const struct zr_keep_name *name);
/* Reports a segment to the next zrd if its zrd has ended. Without one it tries again at a later call. */
void zr_holding_check(zr_keep *keep);

#endif
