/* serve.h: publishes this process to tools of the same user: the file of figures, and a socket on which a
 * helper thread answers the commands of command.h. Private to alloc/.
 *
 * Publishing starts when the process's arenas hold 64 MiB (ZR_CONF=publish:on: a granule; publish:off:
 * never), at the next allocation that needs memory and whose caller holds no locks. A smaller process starts
 * at such an allocation, or at a call for an arena's statistics, if a file PID.ask exists in the folder of
 * live processes. It checks for that file at most a hundred times a second, by one open(), which sandbox
 * filters allow or refuse. Publishing never starts in a set-user-ID process, in a child of vfork(), or if
 * other users can enter the folder: the process is then invisible, without a message. A child after fork()
 * starts again when it allocates. */
#ifndef ZR_SERVE_H
#define ZR_SERVE_H

#include "alloc/core/arena.h"
#include "alloc/telemetry/publish_format.h"

enum zr_serve_state { ZR_SERVE_NOT = 0, ZR_SERVE_DUE, ZR_SERVE_ON /* on, failed, or never to be started */ };
extern _Atomic uint32_t zr_serve_state;

/* Called after an arena has grown. True: the caller must call zr_serve_start(), to start or to check for a
 * request. The caller may hold any lock. */
bool zr_serve_note(const struct zr_arena *arena);
/* The caller holds no locks. Keeps errno and the last error. */
void zr_serve_start(void);

static inline bool zr_serve_due(const struct zr_arena *arena)
{
    uint32_t state = atomic_load_explicit(&zr_serve_state, memory_order_relaxed);
    if (__builtin_expect(state == ZR_SERVE_ON, 1))
        return false;
    return zr_serve_note(arena) && !arena->inner;
}

/* ---- The file of figures (publish.c) ------------------------------------------------------------------- */

/* One thread at a time. publish_format.h has the format. */

struct zr_publisher {
    struct zr_published *shown; /* the mapped file; a child after fork() has no mapping */
    char path[320];
};

/* Sets the path and removes the file of a dead process with the same number. A reader that finds a stale file
 * beside this process's socket would remove both. */
void zr_publisher_name(struct zr_publisher *out, const char *folder);
/* Creates the file at the path. ZR_ERR_IO, with a message. */
zr_result zr_publisher_start(struct zr_publisher *out);
/* The figures to refresh. Other figures keep their values, and so do all figures of an arena whose lock is
 * busy. */
enum zr_refresh {
    ZR_REFRESH_COUNTERS = 0,
    ZR_REFRESH_WALKED, /* also pending and stranded bytes, which need a walk over the extents */
    ZR_REFRESH_DEVICES /* also the devices' figures, which may take a driver call */
};
void zr_publisher_refresh(struct zr_publisher *publisher, enum zr_refresh what);
/* Unmaps the file; the caller unlinks it. */
void zr_publisher_end(struct zr_publisher *publisher);

#endif
