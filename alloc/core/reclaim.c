/* reclaim.c: idle memory of all arenas (see registry.h). Uses registry.c, supply.c and a plan's table of
 * calls. */
#include "alloc/core/registry.h"

#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

static size_t idle_bytes(struct zr_arena *arena)
{
    return arena->granule_cache.bytes + zr_space_idle_bytes(arena);
}

/* Trims one stripe. Never waits for its locks. */
static size_t trim_one(struct zr_arena *arena, size_t bytes, bool *busy)
{
    size_t released = 0;
    if (!zr_lock_try(&arena->supply)) {
        *busy = true;
        return 0;
    }
    if (zr_lock_try(&arena->lock)) {
        zr_arena_flush_size_cache(arena);
        if (arena->asynchronous)
            zr_streams_poll(arena);
        if (arena->plan_calls && idle_bytes(arena) < bytes) {
            arena->plan_calls->retire_gone(arena);
            arena->plan_calls->give_back(arena);
        }
        size_t idle = idle_bytes(arena);
        released = zr_trim(arena, idle > bytes ? idle - bytes : 0);
        zr_lock_release(&arena->lock);
    } else {
        *busy = true;
    }
    zr_lock_release(&arena->supply);
    return released;
}

size_t zr_reclaim(size_t bytes, const struct zr_lender *of, bool *busy)
{
    size_t released = 0;
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; released < bytes && (arena = zr_arenas_next(arena));) {
        if (of && arena->backend->lender != of)
            continue;
        released += trim_one(arena, bytes - released, busy);
        unsigned count = atomic_load(&arena->stripes_count);
        for (unsigned i = 0; i < count && released < bytes; i++)
            released += trim_one(arena->stripes[i], bytes - released, busy);
    }
    zr_arenas_release();
    return released;
}

static size_t idle_of(struct zr_arena *arena)
{
    size_t idle = 0;
    if (!zr_lock_try(&arena->lock))
        return 0;
    idle = idle_bytes(arena) + (arena->plan_calls ? arena->plan_calls->idle_bytes(arena) : 0);
    zr_lock_release(&arena->lock);
    return idle;
}

size_t zr_reclaim_idle_bytes(const struct zr_lender *of)
{
    size_t idle = 0;
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; (arena = zr_arenas_next(arena));) {
        unsigned count = atomic_load(&arena->stripes_count);
        if (arena->backend->lender != of)
            continue;
        idle += idle_of(arena);
        for (unsigned i = 0; i < count; i++)
            idle += idle_of(arena->stripes[i]);
    }
    zr_arenas_release();
    return idle;
}
