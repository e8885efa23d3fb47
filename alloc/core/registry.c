/* registry.c: all arenas of the process, their stripes, and what stripes share: a limit and counters. Uses
 * alloc/base only. */
#include "alloc/core/arena.h"
#include "alloc/core/registry.h"

#include <pthread.h>
#include <sched.h>

#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"

/* ---- All arenas of the process ------------------------------------------------------------------------- */

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_arena *arenas; /* ordered by number; lock: arenas_lock */

void zr_arenas_remove(struct zr_arena *arena)
{
    struct zr_arena **link = &arenas;
    pthread_mutex_lock(&arenas_lock);
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    pthread_mutex_unlock(&arenas_lock);
}

struct zr_arena *zr_arenas_acquire_arena(unsigned number)
{
    for (;;) {
        pthread_mutex_lock(&arenas_lock);
        struct zr_arena *arena = arenas;
        while (arena && arena->number != number)
            arena = arena->next;
        if (arena && zr_lock_try(&arena->supply)) {
            if (zr_lock_try(&arena->lock))
                return arena;
            zr_lock_release(&arena->supply);
        }
        pthread_mutex_unlock(&arenas_lock);
        if (!arena)
            return NULL;
        sched_yield(); /* the arena may be destroyed before its lock is free, so search again */
    }
}

void zr_arenas_acquire(void)
{
    pthread_mutex_lock(&arenas_lock);
}

struct zr_arena *zr_arenas_next(const struct zr_arena *arena)
{
    return arena ? arena->next : arenas;
}

void zr_arenas_release(void)
{
    pthread_mutex_unlock(&arenas_lock);
}

/* The next stripe of the arena, then the first stripe of the next arena; NULL after the last. lock:
 * arenas_lock */
static struct zr_arena *next_stripe(struct zr_arena *arena)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    unsigned count = atomic_load(&first_stripe->stripes_count), index = 0;
    while (arena != first_stripe && first_stripe->stripes[index++] != arena)
        ;
    return index < count ? first_stripe->stripes[index] : first_stripe->next;
}

static void before_fork(struct zr_fork_locks *locks)
{
    pthread_mutex_lock(&arenas_lock);
    for (struct zr_arena *arena = arenas; arena; arena = next_stripe(arena)) {
        zr_fork_take(locks, &arena->supply);
        zr_fork_take(locks, &arena->lock);
    }
}

static void after_fork(struct zr_fork_locks *locks)
{
    for (struct zr_arena *arena = arenas; arena; arena = next_stripe(arena)) {
        if (locks->child && arena->plan_calls)
            arena->plan_calls->forked(arena);
        zr_fork_give(locks, &arena->supply);
        zr_fork_give(locks, &arena->lock);
    }
    pthread_mutex_unlock(&arenas_lock);
}

void zr_arenas_add(struct zr_arena *arena)
{
    static const struct zr_fork_room room = {.before = before_fork, .after = after_fork};
    struct zr_arena **link = &arenas;
    zr_fork_register(ZR_FORK_ARENAS, &room);
    pthread_mutex_lock(&arenas_lock);
    while (*link && (*link)->number == arena->number) {
        arena->number++;
        link = &(*link)->next;
    }
    arena->next = *link;
    *link = arena;
    pthread_mutex_unlock(&arenas_lock);
}

bool zr_arena_hold_unstriped(struct zr_arena *first_stripe, int change)
{
    pthread_mutex_lock(&arenas_lock);
    atomic_fetch_add(&first_stripe->unstriped, (unsigned)change);
    bool alone = atomic_load(&first_stripe->stripes_count) == 0;
    pthread_mutex_unlock(&arenas_lock);
    return alone;
}

struct zr_arena *zr_stripes_of(struct zr_arena *first_stripe, const void *address)
{
    unsigned count = atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if ((size_t)((const char *)address - first_stripe->stripes[i]->base) <
            first_stripe->stripes[i]->range->bytes)
            return first_stripe->stripes[i];
    return first_stripe;
}

/* ---- What stripes share -------------------------------------------------------------------------------- */

static void raise_to(_Atomic size_t *max, size_t bytes)
{
    size_t now = atomic_load_explicit(max, memory_order_relaxed);
    while (now < bytes && !atomic_compare_exchange_weak(max, &now, bytes))
        ;
}

bool zr_limit_reserve(struct zr_arena *arena, size_t bytes)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    size_t now = atomic_load(&first_stripe->all_reserved_bytes);
    do {
        if (first_stripe->limit_bytes &&
            (now > first_stripe->limit_bytes || bytes > first_stripe->limit_bytes - now)) {
            zr_fail(ZR_ERR_MEMORY, "the arena holds %zu of its limit of %zu bytes", now,
                    first_stripe->limit_bytes);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&first_stripe->all_reserved_bytes, &now, now + bytes));
    return true;
}

void zr_limit_release(struct zr_arena *arena, size_t bytes)
{
    atomic_fetch_sub(&arena->first_stripe->all_reserved_bytes, bytes);
}

void zr_limit_note_peak(struct zr_arena *arena)
{
    raise_to(&arena->first_stripe->peak_reserved_bytes,
             atomic_load(&arena->first_stripe->all_reserved_bytes));
}

void zr_stripes_publish_now(struct zr_arena *arena)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    size_t difference = arena->live_bytes - arena->published_bytes; /* modulo 2^64 */
    arena->published_bytes = arena->live_bytes;
    size_t now = atomic_fetch_add(&first_stripe->all_live_bytes, difference) + difference;
    if (now < SIZE_MAX / 2)
        raise_to(&first_stripe->all_peak_live_bytes, now);
}
