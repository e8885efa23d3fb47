/* serve.h: shows this process to the tools of its user: the file of publish.h, and a socket beside it on
 * which a helper thread answers the commands of command.h. Private to alloc/.
 *
 * It begins when the process's arenas hold 64 MiB (ZR_CONF=publish:on: a granule; publish:off: never), at the
 * next allocation that needs memory and whose caller holds no locks. A smaller process begins at such an
 * allocation, or where it asks for an arena's statistics, if somebody has asked for it, by a file PID.ask in
 * the folder of the live ones (it looks at most a hundred times a second, and by one open(), which the
 * filters of sandboxes let pass or refuse). It never begins in a process that runs with other rights than its
 * user's, in a child of vfork(), or where the folder is not this user's alone: then nothing is shown, and
 * nobody hears of it. A child after fork() begins anew, when it allocates. */
#ifndef ZR_SERVE_H
#define ZR_SERVE_H

#include "alloc/core/arena.h"

enum zr_serve_state { ZR_SERVE_NOT = 0, ZR_SERVE_DUE, ZR_SERVE_ON /* or it was tried, or never will be */ };
extern _Atomic uint32_t zr_serve_state;

/* An arena has grown: says whether zr_serve_start() has to begin, or to look whether it was asked to. Any
 * lock may be held. */
bool zr_serve_note(const struct zr_arena *arena);
/* Without locks. Keeps errno and the last error. */
void zr_serve_start(void);

static inline bool zr_serve_due(const struct zr_arena *arena)
{
    uint32_t state = atomic_load_explicit(&zr_serve_state, memory_order_relaxed);
    if (__builtin_expect(state == ZR_SERVE_ON, 1))
        return false;
    return zr_serve_note(arena) && !arena->inner;
}

#endif
