/* siblings.c: several arenas behind one, so that threads need not wait for one another. Stands on arena.c.
 *
 * An arena made for several threads begins as one. A thread that keeps finding its lock taken gets a seat of
 * its own: a sibling with its own addresses, gaps, index and lock, on the same backend and under the same
 * limit. Blocks are freed where they lie, by whomever. Memory goes from one to the other as whole granules,
 * through the driver, when one of them finds none. While a trace is written, an observer watches or a plan is
 * in force, all allocate from the head, which is what these see. */
#include "alloc/arena_internal.h"

#include "alloc/error.h"
#include "alloc/follow.h"

/* What a thread bears before it takes another seat: a lock that is taken counts so much, one on which it had
 * to sleep so much more, and one that is open makes up for one. */
enum { PATIENCE = 64, TAKEN = 8, SLEPT = 24 };

/* ---- Who serves whom ----------------------------------------------------------------------------------- */

static inline struct zr_arena *member(struct zr_arena *head, unsigned seat)
{
    return seat == 0 ? head : head->siblings[seat - 1];
}

__thread struct zr_seat zr_own_seat;

/* Another seat for this thread, if there is one or can be. */
static __attribute__((noinline)) unsigned change_seat(struct zr_arena *head, unsigned count, bool one_more)
{
    zr_own_seat.impatience = 0;
    if (one_more && count < head->members_most)
        count += zr_arena_add_sibling(head, count);
    zr_own_seat.seat = 1 + (atomic_fetch_add(&head->next_seat, 1) + 1) % count;
    return zr_own_seat.seat - 1;
}

/* Where the thread sits; a new one is not sent where all others began if there is a choice. */
static inline unsigned seat_in(struct zr_arena *head, unsigned count)
{
    if (__builtin_expect(zr_own_seat.seat == 0, 0)) {
        if (count > 1)
            return change_seat(head, count, false);
        zr_own_seat.seat = 1;
    }
    return zr_own_seat.seat <= count ? zr_own_seat.seat - 1 : (zr_own_seat.seat - 1) % count;
}

struct zr_arena *zr_siblings_take(struct zr_arena *head)
{
    unsigned count = 1 + atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    bool apart = atomic_load_explicit(&head->together, memory_order_relaxed) == 0;
    struct zr_arena *arena = member(head, apart ? seat_in(head, count) : 0);
    if (__builtin_expect(zr_lock_try(&arena->lock), 1)) {
        zr_own_seat.impatience -= zr_own_seat.impatience > 0;
        return arena;
    }
    zr_own_seat.impatience += TAKEN;
    if (apart && zr_own_seat.impatience > PATIENCE) {
        arena = member(head, change_seat(head, count, true));
        zr_lock_take(&arena->lock);
    } else if (zr_lock_wait(&arena->lock)) {
        zr_own_seat.impatience += SLEPT;
    }
    return arena;
}

struct zr_arena *zr_siblings_of(struct zr_arena *head, const void *address)
{
    unsigned count = atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if ((size_t)((const char *)address - head->siblings[i]->base) < head->siblings[i]->range->bytes)
            return head->siblings[i];
    return head;
}

/* ---- Memory that is the family's ----------------------------------------------------------------------- */

static void raise_to(_Atomic size_t *most, size_t bytes)
{
    size_t now = atomic_load_explicit(most, memory_order_relaxed);
    while (now < bytes && !atomic_compare_exchange_weak(most, &now, bytes))
        ;
}

bool zr_siblings_reserve(struct zr_arena *arena, size_t bytes)
{
    struct zr_arena *head = arena->head;
    size_t now = atomic_load(&head->family_reserved_bytes);
    do {
        if (head->limit_bytes && (now > head->limit_bytes || bytes > head->limit_bytes - now)) {
            zr_fail(ZR_ERR_MEMORY, "the arena holds %zu of its limit of %zu bytes", now, head->limit_bytes);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&head->family_reserved_bytes, &now, now + bytes));
    return true;
}

void zr_siblings_unreserve(struct zr_arena *arena, size_t bytes)
{
    atomic_fetch_sub(&arena->head->family_reserved_bytes, bytes);
}

void zr_siblings_note_peak(struct zr_arena *arena)
{
    raise_to(&arena->head->peak_reserved_bytes, atomic_load(&arena->head->family_reserved_bytes));
}

size_t zr_siblings_trim(struct zr_arena *arena)
{
    struct zr_arena *head = arena->head;
    unsigned count = 1 + atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    size_t released = 0;
    for (unsigned i = 0; count > 1 && i < count; i++) {
        struct zr_arena *other = member(head, i);
        if (other == arena)
            continue;
        zr_lock_take(&other->lock);
        zr_arena_settle(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        released += zr_trim(other, 0);
        zr_lock_give(&other->lock);
    }
    return released;
}

bool zr_siblings_fetch(struct zr_arena *arena, size_t bytes)
{
    struct zr_arena *head = arena->head;
    unsigned count = 1 + atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    struct zr_handle_list list = {0};
    size_t got = 0, granule = arena->granule_bytes;
    if (count == 1)
        return false;
    /* Both ends of a block may lie in granules of their own. What is idle here was not enough. */
    size_t wanted = zr_round_up(bytes, granule) + granule;
    size_t idle = arena->stock.bytes + zr_space_idle_bytes(arena);
    wanted = wanted > idle + granule ? wanted - idle : granule;
    zr_lock_give(&arena->lock);
    for (unsigned i = 0; got < wanted && i < 2 * count; i++) {
        struct zr_arena *other = member(head, i % count);
        bool wait = i >= count; /* only if nobody has any */
        if (other == arena || (wait && (got > 0 || !other->asynchronous)))
            continue;
        zr_lock_take(&other->lock);
        zr_arena_settle(other);
        if (other->asynchronous)
            zr_streams_poll(other);
        do
            got += zr_idle_take(other, wanted - got, &list);
        while (wait && got == 0 && zr_streams_wait(other));
        zr_lock_give(&other->lock);
    }
    zr_lock_take(&arena->lock);
    zr_idle_add(arena, &list);
    return got > 0;
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

void zr_siblings_tell_now(struct zr_arena *arena)
{
    struct zr_arena *head = arena->head;
    size_t difference = arena->live_bytes - arena->told_bytes; /* modulo 2^64 */
    arena->told_bytes = arena->live_bytes;
    size_t now = atomic_fetch_add(&head->family_live_bytes, difference) + difference;
    if (now < SIZE_MAX / 2)
        raise_to(&head->family_peak_live_bytes, now);
}

/* What the members have in common is added up; what the head alone knows stays. */
static void add_stats(struct zr_arena_stats *sum, const struct zr_arena_stats *one)
{
    sum->live_bytes += one->live_bytes;
    sum->requested_bytes += one->requested_bytes;
    sum->mapped_bytes += one->mapped_bytes;
    sum->stock_bytes += one->stock_bytes;
    sum->reserved_bytes += one->reserved_bytes;
    sum->pending_bytes += one->pending_bytes;
    sum->stranded_bytes += one->stranded_bytes;
    sum->peak_requested_bytes += one->peak_requested_bytes;
    sum->blocks_count += one->blocks_count;
    sum->allocations_count += one->allocations_count;
    sum->backend_calls_count += one->backend_calls_count;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        sum->live_by_tag_bytes[tag] += one->live_by_tag_bytes[tag];
        sum->peak_by_tag_bytes[tag] += one->peak_by_tag_bytes[tag];
    }
}

void zr_siblings_stats(struct zr_arena *head, struct zr_arena_stats *out)
{
    unsigned count = atomic_load_explicit(&head->siblings_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        struct zr_arena_stats one;
        zr_lock_take(&head->siblings[i]->lock);
        zr_stats_fill(head->siblings[i], &one);
        zr_lock_give(&head->siblings[i]->lock);
        add_stats(out, &one);
    }
    if (count == 0)
        return;
    size_t known = atomic_load(&head->family_peak_live_bytes);
    out->peak_live_bytes = known > out->peak_live_bytes ? known : out->peak_live_bytes;
    if (out->live_bytes > out->peak_live_bytes)
        out->peak_live_bytes = out->live_bytes;
}
