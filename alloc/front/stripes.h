/* stripes.h: several arenas behind one, for threads that often meet. Private to alloc/. Any thread, without a
 * stripe's lock unless a declaration says otherwise. */
#ifndef ZR_FRONT_STRIPES_H
#define ZR_FRONT_STRIPES_H

#include "alloc/core/arena.h"

/* Where the calling thread sits, in any arena, and how long it will bear that. Static TLS, but so little
 * that the library can be loaded late. */
struct zr_thread_stripe {
    unsigned number; /* 1 + the index of the stripe; 0: none yet */
    unsigned contention;
};
extern __thread struct zr_thread_stripe zr_own_stripe __attribute__((tls_model("initial-exec")));
/* The stripe that serves the calling thread, with its lock taken. */
struct zr_arena *zr_stripes_take(struct zr_arena *first_stripe);
/* The inlined common case of zr_stripes_take(). NULL: the thread has no stripe yet, or another thread holds
 * its lock. */
static inline struct zr_arena *zr_stripes_try(struct zr_arena *first_stripe)
{
    unsigned index = zr_own_stripe.number - 1;
    if (__builtin_expect(atomic_load_explicit(&first_stripe->unstriped, memory_order_relaxed) != 0, 0))
        index = 0;
    if (__builtin_expect(index > atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire), 0))
        return NULL;
    struct zr_arena *arena = index == 0 ? first_stripe : first_stripe->stripes[index - 1];
    if (__builtin_expect(!zr_lock_try(&arena->lock), 0))
        return NULL;
    zr_own_stripe.contention -= zr_own_stripe.contention > 0;
    return arena;
}
/* Gives back what the other stripes have idle; returns the bytes. */
size_t zr_stripes_trim(struct zr_arena *arena);
/* For a need of `bytes` that the stripe cannot meet: what others have idle comes into its cache, as much as
 * is missing; if they have nothing, they wait for a stream that still uses something. False: nothing came.
 * With the stripe's lock, which is opened meanwhile. */
bool zr_stripes_fetch(struct zr_arena *arena, size_t bytes);

/* Makes one more stripe, if there are still `count` stripes; returns how many were made. */
unsigned zr_arena_add_stripe(struct zr_arena *first_stripe, unsigned count);

#endif
