/* stripes.c: several arenas behind one, so that threads do not wait for one another. Uses arena.c.
 *
 * An arena for several threads begins with one stripe. A thread that keeps finding its lock held moves to
 * another stripe, with addresses, free extents, index and lock of its own, on the same backend and under the
 * same limit. Any thread frees a block in the stripe where it lies. Memory moves between stripes as whole
 * granules, through the driver, when a stripe has none left. While a trace, an observer or a plan is active,
 * all threads allocate from the first stripe, the only one that these see. */
#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"
#include "alloc/front/stripes.h"

#include "alloc/base/error.h"
#include "alloc/plan/executor.h"

/* When a thread moves to another stripe: a held lock adds to its count, a lock that it slept on adds more,
 * and an open lock subtracts. */
enum { PATIENCE = 64, TAKEN = 8, SLEPT = 24 };

/* ---- Stripes of threads -------------------------------------------------------------------------------- */

static inline struct zr_arena *stripe_in(struct zr_arena *first_stripe, unsigned seat)
{
    return seat == 0 ? first_stripe : first_stripe->stripes[seat - 1];
}

__thread struct zr_seat zr_own_seat __attribute__((tls_model("initial-exec")));

/* Moves the thread to another stripe if one exists or can be made. */
static __attribute__((noinline)) unsigned change_seat(struct zr_arena *first_stripe, unsigned count,
                                                      bool one_more)
{
    zr_own_seat.impatience = 0;
    if (one_more && count < first_stripe->stripes_max)
        count += zr_arena_add_stripe(first_stripe, count);
    zr_own_seat.seat = 1 + (atomic_fetch_add(&first_stripe->next_seat, 1) + 1) % count;
    return zr_own_seat.seat - 1;
}

/* The thread's stripe. A new thread avoids the first stripe, where all others began, if there is a choice. */
static inline unsigned seat_in(struct zr_arena *first_stripe, unsigned count)
{
    if (__builtin_expect(zr_own_seat.seat == 0, 0)) {
        if (count > 1)
            return change_seat(first_stripe, count, false);
        zr_own_seat.seat = 1;
    }
    return zr_own_seat.seat <= count ? zr_own_seat.seat - 1 : (zr_own_seat.seat - 1) % count;
}

struct zr_arena *zr_stripes_take(struct zr_arena *first_stripe)
{
    unsigned count = 1 + atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    bool apart = atomic_load_explicit(&first_stripe->unstriped, memory_order_relaxed) == 0;
    struct zr_arena *arena = stripe_in(first_stripe, apart ? seat_in(first_stripe, count) : 0);
    if (__builtin_expect(zr_lock_try(&arena->lock), 1)) {
        zr_own_seat.impatience -= zr_own_seat.impatience > 0;
        return arena;
    }
    zr_own_seat.impatience += TAKEN;
    if (apart && zr_own_seat.impatience > PATIENCE) {
        arena = stripe_in(first_stripe, change_seat(first_stripe, count, true));
        zr_lock_acquire(&arena->lock);
    } else if (zr_lock_wait(&arena->lock)) {
        zr_own_seat.impatience += SLEPT;
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
        zr_arena_take(other);
        zr_arena_flush_quick(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        released += zr_trim(other, 0);
        zr_arena_give(other);
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
    /* Both ends of a block may need a granule each. Idle memory of this stripe was not enough. */
    size_t wanted = zr_round_up(bytes, granule) + granule;
    size_t idle = arena->granule_cache.bytes + zr_space_idle_bytes(arena);
    wanted = wanted > idle + granule ? wanted - idle : granule;
    zr_arena_give(arena);
    for (unsigned i = 0; got < wanted && i < 2 * count; i++) {
        struct zr_arena *other = stripe_in(first_stripe, i % count);
        bool wait = i >= count; /* only if no stripe has idle memory */
        if (other == arena || (wait && (got > 0 || !other->asynchronous)))
            continue;
        zr_arena_take(other);
        zr_arena_flush_quick(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        do
            got += zr_idle_take(other, wanted - got, &list);
        while (wait && got == 0 && zr_streams_wait(other));
        zr_arena_give(other);
    }
    zr_arena_take(arena);
    zr_idle_add(arena, &list);
    return got > 0;
}
