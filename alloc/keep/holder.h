/* holder.h: the segments that a holder has: zrd, or the launcher of a run; and the requests of a process to
 * its holder. Private to the project.
 *
 * A holder has a descriptor of each segment, so that it outlives its writer. A segment is opened by name and
 * token; a holder validates every field of a request. */
#ifndef ZR_KEEP_HOLDER_H
#define ZR_KEEP_HOLDER_H

#include "alloc/base/compiler.h"
#include "alloc/base/slab.h"
#include "alloc/keep/segment.h"
#include "alloc/service/client/wire.h"

/* ---- The holder's side: one thread ------------------------------------------------------------------ */

enum { ZR_HELD_MAX = 4096 };

struct zr_held {
    struct zr_held *next; /* by number */
    uint64_t number, token;
    int fd;
    struct zr_segment_shape shape;
    uint64_t unused_ns; /* since when no process writes it, as far as the owner has looked; 0: one does */
    void *account;      /* the owner's */
};

struct zr_kept_holder {
    struct zr_held *first;
    struct zr_slab records;
    unsigned count;
    uint64_t number;
};

ZR_PRIVATE_API void zr_kept_holder_init(struct zr_kept_holder *holder);
/* Closes all descriptors. */
ZR_PRIVATE_API void zr_kept_holder_fini(struct zr_kept_holder *holder);
/* Whether the holder can add a segment of the name and token; reserves its record. ZR_ERR_INVALID,
 * ZR_ERR_HOST_MEMORY. */
zr_result zr_kept_holder_check_new(struct zr_kept_holder *holder, const char *name, uint64_t token);
/* The shape that a KEEP_CREATE asks for. ZR_ERR_INVALID: bad fields, or the name is in use.
 * ZR_ERR_HOST_MEMORY: the holder has too many segments. */
zr_result zr_kept_holder_plan(struct zr_kept_holder *holder, const struct zr_service_message *message,
                              struct zr_segment_shape *out);
/* Reads the shape of the file of a KEEP_ADOPT. Errors as for zr_kept_holder_plan(), and ZR_ERR_FORMAT. */
zr_result zr_kept_holder_inspect(struct zr_kept_holder *holder, const struct zr_service_message *message,
                                 int fd, struct zr_segment_shape *out);
/* Adds a segment that was planned or inspected, and takes its descriptor. Cannot fail. */
struct zr_held *zr_kept_holder_add(struct zr_kept_holder *holder, uint64_t token,
                                   const struct zr_segment_shape *shape, int fd);
/* ZR_ERR_FOREIGN: no segment has the message's name and token. A token of 0 stands for any if `any`. */
zr_result zr_kept_holder_find(const struct zr_kept_holder *holder, const struct zr_service_message *message,
                              bool any, struct zr_held **out);
/* ZR_ERR_INVALID: a process writes the segment. */
zr_result zr_kept_holder_check_drop(const struct zr_held *held);
void zr_kept_holder_remove(struct zr_kept_holder *holder, struct zr_held *held);
/* KEPT for the first segment after a number, or DONE. */
struct zr_service_message zr_kept_holder_next(const struct zr_kept_holder *holder, uint64_t after);

/* Answers requests that wait at the door, up to 64: a socket from which a process of the run takes no answer,
 * because each request brings a socket for it. */
ZR_PRIVATE_API void zr_kept_holder_serve(struct zr_kept_holder *holder, int door);

/* ---- Requests to a holder (holding.c), any thread ---------------------------------------------------- */

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
