/* stripes.c: several arenas behind one handle, so that threads do not wait for each other. Uses arena.c.
 *
 * An arena for several threads begins with one stripe. A thread that keeps finding its lock held moves to
 * another stripe, which has addresses, free extents, index and lock of its own, on the same backend and under
 * the same limit. Any thread frees a block in the stripe that contains it. If a stripe has no memory left,
 * whole granules move to it from other stripes. A trace, an observer and a plan know the first stripe only,
 * so while one is active all threads allocate from the first stripe. */
#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"
#include "alloc/front/stripes.h"

#include "alloc/base/error.h"
#include "alloc/plan/executor.h"

/* Contention at which a thread moves to another stripe, and what a lock adds that was held, or that the
 * thread slept on. An open lock subtracts 1. */
enum { CONTENTION_MAX = 64, ADD_HELD = 8, ADD_SLEPT = 24 };

/* ---- Stripes of threads -------------------------------------------------------------------------------- */

static inline struct zr_arena *stripe_in(struct zr_arena *first_stripe, unsigned index)
{
    return index == 0 ? first_stripe : first_stripe->stripes[index - 1];
}

__thread struct zr_thread_stripe zr_own_stripe __attribute__((tls_model("initial-exec")));

/* Moves the thread to another stripe if one exists or can be created. Returns its index. */
static __attribute__((noinline)) unsigned change_stripe(struct zr_arena *first_stripe, unsigned count,
                                                        bool one_more)
{
    zr_own_stripe.contention = 0;
    if (one_more && count < first_stripe->stripes_max)
        count += zr_arena_add_stripe(first_stripe, count);
    zr_own_stripe.number = 1 + (atomic_fetch_add(&first_stripe->next_stripe_index, 1) + 1) % count;
    return zr_own_stripe.number - 1;
}

/* The index of the thread's stripe. A new thread avoids the first stripe, where the others began, if there
 * are several. */
static inline unsigned own_stripe_index(struct zr_arena *first_stripe, unsigned count)
{
    if (__builtin_expect(zr_own_stripe.number == 0, 0)) {
        if (count > 1)
            return change_stripe(first_stripe, count, false);
        zr_own_stripe.number = 1;
    }
    return zr_own_stripe.number <= count ? zr_own_stripe.number - 1 : (zr_own_stripe.number - 1) % count;
}

struct zr_arena *zr_stripes_acquire(struct zr_arena *first_stripe)
{
    unsigned count = 1 + atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    bool striped = atomic_load_explicit(&first_stripe->unstriped, memory_order_relaxed) == 0;
    struct zr_arena *arena = stripe_in(first_stripe, striped ? own_stripe_index(first_stripe, count) : 0);
    if (__builtin_expect(zr_lock_try(&arena->lock), 1)) {
        zr_own_stripe.contention -= zr_own_stripe.contention > 0;
        return arena;
    }
    zr_own_stripe.contention += ADD_HELD;
    if (striped && zr_own_stripe.contention > CONTENTION_MAX) {
        arena = stripe_in(first_stripe, change_stripe(first_stripe, count, true));
        zr_lock_acquire(&arena->lock);
    } else if (zr_lock_wait(&arena->lock)) {
        zr_own_stripe.contention += ADD_SLEPT;
    }
    return arena;
}

/* ---- Memory that all stripes share --------------------------------------------------------------------- */

size_t zr_stripes_trim(struct zr_arena *arena)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    unsigned count = 1 + atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    size_t released = 0;
    for (unsigned i = 0; count > 1 && i < count; i++) {
        struct zr_arena *other = stripe_in(first_stripe, i);
        if (other == arena)
            continue;
        zr_arena_acquire(other);
        zr_arena_flush_size_cache(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        released += zr_trim(other, 0);
        zr_arena_release(other);
    }
    return released;
}

bool zr_stripes_fetch(struct zr_arena *arena, size_t bytes)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    unsigned count = 1 + atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    struct zr_handle_list list = {0};
    size_t got = 0, granule = arena->granule_bytes;
    if (count == 1)
        return false;
    /* Both ends of a block may need a granule. The idle memory of this stripe was not enough. */
    size_t wanted = zr_round_up(bytes, granule) + granule;
    size_t idle = arena->granule_cache.bytes + zr_space_idle_bytes(arena);
    wanted = wanted > idle + granule ? wanted - idle : granule;
    zr_arena_release(arena);
    for (unsigned i = 0; got < wanted && i < 2 * count; i++) {
        struct zr_arena *other = stripe_in(first_stripe, i % count);
        bool wait = i >= count; /* second round: no stripe had idle memory */
        if (other == arena || (wait && (got > 0 || !other->asynchronous)))
            continue;
        zr_arena_acquire(other);
        zr_arena_flush_size_cache(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        do
            got += zr_idle_take(other, wanted - got, &list);
        while (wait && got == 0 && zr_streams_wait(other));
        zr_arena_release(other);
    }
    zr_arena_acquire(arena);
    zr_idle_add(arena, &list);
    return got > 0;
}
