/* registry.h: all arenas of the process, and what the stripes of one share. Private to alloc/. */
#ifndef ZR_CORE_REGISTRY_H
#define ZR_CORE_REGISTRY_H

#include "alloc/core/arena.h"

/* The arena of that number with its locks taken, NULL if none. The caller gives them, then
 * zr_arenas_unlock(). Nobody waits for an arena's locks with that of the list. */
struct zr_arena *zr_arenas_lock(unsigned number);
void zr_arenas_unlock(void);
/* Nobody adds an arena or a stripe until it is unlocked. */
void zr_arenas_close(void);
/* The arena after this one by number (NULL: the first); NULL: there is none. The list is locked. */
struct zr_arena *zr_arenas_next(const struct zr_arena *arena);
/* Gives it the lowest number that is free. */
void zr_arenas_add(struct zr_arena *arena);
void zr_arenas_remove(struct zr_arena *arena);

/* The stripe in whose range the address lies; the first one, if none. */
struct zr_arena *zr_stripes_of(struct zr_arena *first_stripe, const void *address);
static inline struct zr_arena *zr_arena_stripe_of(struct zr_arena *arena, const void *address)
{
    if (__builtin_expect(arena->shared, 0) &&
        (size_t)((const char *)address - arena->base) >= arena->range_bytes)
        return zr_stripes_of(arena, address);
    return arena;
}
/* With change 1 all threads allocate from the first stripe until it is called with -1; true if it has no
 * stripes. Without a stripe's lock. */
bool zr_arena_hold_unstriped(struct zr_arena *first_stripe, int change);
/* Counts bytes against the limit of all stripes; false with words. Any lock may be held. */
bool zr_limit_reserve(struct zr_arena *arena, size_t bytes);
void zr_limit_release(struct zr_arena *arena, size_t bytes);
void zr_limit_note_peak(struct zr_arena *arena);
/* How much a stripe's live bytes may differ from what the first stripe knows of them: this, and one in so
 * many of its peak. */
#define ZR_TOLD_BYTES ((size_t)1 << 20)
enum { ZR_TOLD_SHARE = 64 };
/* Tells the first stripe of a stripe's live bytes, when they have changed by much. With the stripe's lock. */
void zr_stripes_publish_now(struct zr_arena *arena);
static inline void zr_stripes_publish(struct zr_arena *arena)
{
    size_t difference = arena->live_bytes - arena->published_bytes; /* modulo 2^64 */
    size_t most = ZR_TOLD_BYTES + arena->peak_live_bytes / ZR_TOLD_SHARE;
    if (__builtin_expect(difference + most > 2 * most, 0))
        zr_stripes_publish_now(arena);
}

#endif
