/* helper.h: the thread that answers zrd when it asks this process for memory. Private to alloc/.
 *
 * A process that is a client of zrd has one helper thread, which polls the notification sockets of all its
 * connections and returns idle memory: a late answer costs the process its memory, so the thread does nothing
 * else. It starts at the first allocation that needs memory from zrd and whose caller holds no locks; until
 * then zrd asks for nothing. A child after fork() starts one of its own. */
#ifndef ZR_SERVICE_HELPER_H
#define ZR_SERVICE_HELPER_H

#include "alloc/core/arena.h"

/* Moves memory in use to a tier of the caller's: up to `bytes`, until `until_ns` at the latest. Returns the
 * bytes that were given back. The helper calls it when zrd asks a run that waits for its turn. */
typedef size_t zr_helper_spill(void *state, size_t bytes, uint64_t until_ns);
/* NULL: none. On return no call of the previous function is under way. Any thread but the helper. */
void zr_helper_set_spill(zr_helper_spill *spill, void *state);

extern _Atomic bool zr_helper_started; /* or a start was tried */
/* Without locks. Keeps errno and the last error. */
void zr_helper_start(void);

static inline bool zr_helper_due(const struct zr_arena *arena)
{
    return arena->backend->lender && !arena->inner &&
           !atomic_load_explicit(&zr_helper_started, memory_order_relaxed);
}

#endif
