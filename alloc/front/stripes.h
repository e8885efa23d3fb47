/* stripes.h: several arenas behind one handle, for threads that contend. Private to alloc/. Any thread,
 * without a stripe's lock unless a declaration says otherwise. */
#ifndef ZR_FRONT_STRIPES_H
#define ZR_FRONT_STRIPES_H

#include "alloc/core/arena.h"

/* The stripe of the calling thread, the same in every arena, and its recent contention. Static TLS, but small
 * enough for a library that dlopen() loads. */
struct zr_thread_stripe {
    unsigned number; /* 1 + the index of the stripe; 0: none yet */
    unsigned contention;
};
extern __thread struct zr_thread_stripe zr_own_stripe __attribute__((tls_model("initial-exec")));
/* The stripe that serves the calling thread, with its lock acquired. */
struct zr_arena *zr_stripes_acquire(struct zr_arena *first_stripe);
/* The inlined common case of zr_stripes_acquire(). NULL: the thread has no stripe yet, or another thread
 * holds its lock. */
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
/* Returns idle memory of the other stripes to the driver; returns the bytes. */
size_t zr_stripes_trim(struct zr_arena *arena);
/* Moves idle memory of other stripes to the stripe's cache, for a need of `bytes` that the stripe cannot
 * meet. If there is none, waits for a stream of another stripe. False: nothing was moved. lock: both of
 * the stripe, released meanwhile */
bool zr_stripes_fetch(struct zr_arena *arena, size_t bytes);

/* Adds a stripe if there are `count` stripes; returns the number added. */
unsigned zr_arena_add_stripe(struct zr_arena *first_stripe, unsigned count);

#endif
