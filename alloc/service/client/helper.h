/* helper.h: the thread that answers zrd's requests for memory. Private to alloc/.
 *
 * A process that is a client of zrd has one helper thread, which polls the notification sockets of all its
 * connections and returns idle memory. The thread does nothing else, because zrd disconnects a client that
 * misses the deadline. The thread starts at the first allocation that needs memory from zrd and whose caller
 * holds no locks; until then zrd requests no memory. A child after fork() starts its own thread. */
#ifndef ZR_SERVICE_HELPER_H
#define ZR_SERVICE_HELPER_H

#include "alloc/core/arena.h"

/* Swaps out up to `bytes` of memory in use to a tier of the caller, until `until_ns`. Returns the bytes that
 * were returned to zrd. The helper calls the function when zrd requests memory of a paused run. */
typedef size_t zr_helper_spill(void *state, size_t bytes, uint64_t until_ns);
/* Sets the function; NULL: none. Returns after a running call of the previous function has ended. Any thread
 * except the helper. */
void zr_helper_set_spill(zr_helper_spill *spill, void *state);

extern _Atomic bool zr_helper_started; /* the thread was started, or its start failed */
/* Called without locks. Keeps errno and the last error. */
void zr_helper_start(void);

static inline bool zr_helper_due(const struct zr_arena *arena)
{
    return arena->backend->lender && !arena->inner &&
           !atomic_load_explicit(&zr_helper_started, memory_order_relaxed);
}

#endif
