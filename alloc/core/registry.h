/* registry.h: all arenas of the process, and what the stripes of one arena share. Private to alloc/. */
#ifndef ZR_CORE_REGISTRY_H
#define ZR_CORE_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/core/arena.h"

/* The arena with that number, with its locks held; NULL if none. The caller releases the arena's locks, then
 * calls zr_arenas_release(). A thread that holds the list's lock only tries to acquire an arena's locks. */
struct zr_arena *zr_arenas_acquire_arena(unsigned number);
void zr_arenas_release(void);
/* Acquires the lock of the list: until zr_arenas_release() no arena or stripe is added. */
void zr_arenas_acquire(void);
/* The next arena by number (NULL: the first); NULL at the end. The caller holds the lock of the list. */
struct zr_arena *zr_arenas_next(const struct zr_arena *arena);
/* Adds an arena with the lowest free number. */
void zr_arenas_add(struct zr_arena *arena);
void zr_arenas_remove(struct zr_arena *arena);

/* The stripe whose range contains the address; the first stripe if none does. */
struct zr_arena *zr_stripes_of(struct zr_arena *first_stripe, const void *address);
static inline struct zr_arena *zr_arena_stripe_of(struct zr_arena *arena, const void *address)
{
    if (__builtin_expect(arena->shared, 0) &&
        (size_t)((const char *)address - arena->base) >= arena->range_bytes)
        return zr_stripes_of(arena, address);
    return arena;
}
/* `change` 1: all threads allocate in the first stripe until a call with -1. True: the arena has one stripe.
 * The caller holds no stripe's lock. */
bool zr_arena_hold_unstriped(struct zr_arena *first_stripe, int change);
/* Counts bytes against the limit of all stripes. False: the sum would exceed the limit; sets the error. The
 * caller may hold any lock. */
bool zr_limit_reserve(struct zr_arena *arena, size_t bytes);
void zr_limit_release(struct zr_arena *arena, size_t bytes);
void zr_limit_note_peak(struct zr_arena *arena);
/* The live bytes of a stripe may differ from their published value by at most ZR_PUBLISH_LAG_BYTES plus
 * 1/ZR_PUBLISH_LAG_SHARE of the stripe's peak. */
#define ZR_PUBLISH_LAG_BYTES ((size_t)1 << 20)
enum { ZR_PUBLISH_LAG_SHARE = 64 };
/* Publishes a stripe's live bytes in the first stripe. lock: the stripe's */
void zr_stripes_publish_now(struct zr_arena *arena);
static inline void zr_stripes_publish(struct zr_arena *arena)
{
    size_t difference = arena->live_bytes - arena->published_bytes; /* modulo 2^64 */
    size_t max = ZR_PUBLISH_LAG_BYTES + arena->peak_live_bytes / ZR_PUBLISH_LAG_SHARE;
    if (__builtin_expect(difference + max > 2 * max, 0))
        zr_stripes_publish_now(arena);
}

/* ---- Idle memory of all arenas ------------------------------------------------------------------------- */

/* Live blocks keep their addresses and their granules. Idle memory is the granule cache, the granules under
 * free extents, and the unused granules of plans' regions. Any thread, without an arena's
 * locks. An arena whose lock another thread holds is skipped. */

struct zr_lender;

/* Returns idle granules to their backends until `bytes` are returned. Returns the bytes that were. `of`: only
 * memory that this lender has lent; NULL: all. *busy is set if an arena was skipped. */
size_t zr_reclaim(size_t bytes, const struct zr_lender *of, bool *busy);
/* Idle bytes that the lender has lent. */
size_t zr_reclaim_idle_bytes(const struct zr_lender *of);

#endif
