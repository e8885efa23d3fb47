/* reclaim.h: gives idle memory back when others want it. Private to alloc/.
 *
 * In a process that is a client of the allocator service a thread of its own hears zrd's bell: to be late
 * costs the process its memory, so the thread does nothing else. It begins at the first allocation that needs
 * memory of zrd's and whose caller holds no locks; until then zrd asks for nothing. A child after fork()
 * begins anew.
 */
#ifndef ZR_RECLAIM_H
#define ZR_RECLAIM_H

#include "alloc/core/arena_internal.h"

/* Gives idle granules of this process's arenas back to their backends, until `bytes` were. Returns how many
 * were. `of`: of those alone that this zrd has lent; NULL: all. An arena that somebody is at work on is
 * passed over: *busy. */
size_t zr_reclaim(size_t bytes, const struct zr_service *of, bool *busy);

/* Gives memory back that is in use, to a tier of the caller's: up to `bytes`, until then at the latest.
 * Returns how many went. Called by the helper thread, when zrd asks a run that waits for its turn. */
typedef size_t zr_reclaim_spill(void *state, size_t bytes, uint64_t until_ns);
/* NULL: none any more; no call of the last one is under way on return. Any thread but the helper. */
void zr_reclaim_set_spill(zr_reclaim_spill *spill, void *state);

extern _Atomic bool zr_reclaim_started; /* or tried */
/* Without locks. Keeps errno and the last error. */
void zr_reclaim_start(void);

static inline bool zr_reclaim_due(const struct zr_arena *arena)
{
    return arena->backend->service && !arena->inner &&
           !atomic_load_explicit(&zr_reclaim_started, memory_order_relaxed);
}

#endif
