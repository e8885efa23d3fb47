/* tracing.c: starts and stops an arena's trace. Uses trace.c, registry.c and executor.h.
 *
 * While a trace is on, these files write its events: debug.c allocations and frees, map_callbacks.c maps and
 * unmaps, allocate.c and tag_limits.c failed requests. */
#include "alloc/core/arena.h"
#include "alloc/core/registry.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/plan/executor.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"

static void write_block(struct zr_trace *trace, const struct zr_arena *arena, const struct zr_extent *block)
{
    zr_trace_write_alloc(trace,
                         &(struct zr_block_info){.address = arena->base + block->offset_bytes,
                                                 .bytes = zr_extent_requested_bytes(block),
                                                 .reserved_bytes = block->bytes,
                                                 .tag = (zr_tag)block->tag,
                                                 .stream = block->stream},
                         zr_extent_stack(arena, block));
}

/* Writes mapped granules and live blocks, then `begin`, so that a trace that starts later is complete. lock:
 * both */
static void write_present(struct zr_trace *trace, struct zr_arena *arena)
{
    size_t granule = arena->granule_bytes, end = arena->range->bytes / granule;
    for (size_t first = 0, after; first < end; first = after) {
        first = zr_granules_next(arena->granules, first, end, true);
        after = zr_granules_next(arena->granules, first, end, false);
        if (first < after)
            zr_trace_write_map(trace, arena->base + first * granule, (after - first) * granule);
    }
    for (const struct zr_extent *extent = arena->first; extent; extent = extent->next)
        if (extent->kind == ZR_EXTENT_BLOCK) /* deferred and kept blocks were already freed */
            write_block(trace, arena, extent);
    for (const struct zr_extent *block = NULL; (block = zr_executor_next_block(arena, block));)
        write_block(trace, arena, block);
    zr_trace_write_begin(trace);
}

static struct zr_trace_origin origin_of(const struct zr_arena *arena)
{
    return (struct zr_trace_origin){.name = arena->name,
                                    .base = arena->base,
                                    .reserve_bytes = arena->range->bytes,
                                    .granule_bytes = arena->granule_bytes};
}

/* The caller holds both locks from the check to the start, so that two starts never open one file twice. */
static zr_result start(struct zr_arena *arena, const char *path, enum zr_trace_starter starter,
                       const struct zr_trace_origin *origin)
{
    struct zr_trace *trace = NULL;
    if (arena->traces[starter])
        return zr_fail(ZR_ERR_INVALID, "arena '%s' already has a trace: stop that trace first", arena->name);
    zr_result result = zr_trace_open(&trace, path, origin);
    if (result != ZR_OK)
        return result;
    write_present(trace, arena);
    arena->traces[starter] = trace;
    zr_arena_note_debug(arena);
    return ZR_OK;
}

/* Detaches a trace of the arena. lock: arena->lock */
static struct zr_trace *detach(struct zr_arena *arena, enum zr_trace_starter starter)
{
    struct zr_trace *trace = arena->traces[starter];
    arena->traces[starter] = NULL;
    zr_arena_note_debug(arena);
    return trace;
}

zr_result zr_trace_start(zr_arena *arena, const char *path)
{
    return zr_trace_start_up_to(arena, path, 0, NULL);
}

zr_result zr_trace_start_up_to(zr_arena *arena, const char *path, size_t max_bytes, _Atomic bool *running)
{
    if (!arena || !path)
        return zr_fail(ZR_ERR_INVALID, "zr_trace_start: arena or path is NULL");
    if (!zr_arena_hold_unstriped(arena, 1)) {
        zr_arena_hold_unstriped(arena, -1);
        return zr_fail(
            ZR_ERR_INVALID,
            "arena '%s' already has several stripes: start its trace before threads allocate, or create it with threads 1",
            arena->name);
    }
    struct zr_trace_origin origin = origin_of(arena);
    origin.max_bytes = max_bytes;
    origin.running = running;
    zr_arena_acquire(arena);
    zr_result result = start(arena, path, ZR_TRACE_OWN, &origin);
    zr_arena_release(arena);
    if (result != ZR_OK)
        zr_arena_hold_unstriped(arena, -1);
    return result;
}

zr_result zr_trace_mark(zr_arena *arena, const char *label)
{
    if (!arena || !label)
        return zr_fail(ZR_ERR_INVALID, "zr_trace_mark: arena or label is NULL");
    zr_lock_acquire(&arena->lock);
    zr_trace_event(arena, mark, label);
    zr_lock_release(&arena->lock);
    return ZR_OK;
}

zr_result zr_trace_stop(zr_arena *arena)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_trace_stop: arena is NULL");
    zr_arena_acquire(arena);
    struct zr_trace *trace = detach(arena, ZR_TRACE_OWN);
    zr_arena_release(arena);
    if (!trace)
        return zr_fail(ZR_ERR_INVALID, "arena '%s' has no trace", arena->name);
    zr_arena_hold_unstriped(arena, -1);
    return zr_trace_close(trace);
}

/* ---- Requests of other processes: the locked list keeps arenas from being destroyed -------------------- */

static struct zr_arena *lock_numbered(unsigned number)
{
    struct zr_arena *arena = zr_arenas_acquire_arena(number);
    if (!arena)
        zr_fail(ZR_ERR_INVALID, "this process has no arena %u", number);
    return arena;
}

static void unlock_numbered(struct zr_arena *arena)
{
    zr_arena_release(arena);
    zr_arenas_release();
}

zr_result zr_trace_start_foreign(unsigned number, const char *path)
{
    struct zr_arena *arena = lock_numbered(number);
    if (!arena)
        return ZR_ERR_INVALID;
    struct zr_trace_origin origin = origin_of(arena);
    zr_result result;
    if (atomic_load(&arena->stripes_count) > 0)
        result = zr_fail(ZR_ERR_INVALID,
                         "arena '%s' has several stripes and cannot be recorded: take a snapshot instead",
                         arena->name);
    else
        result = start(arena, path, ZR_TRACE_FOREIGN, &origin);
    if (result == ZR_OK)
        atomic_fetch_add(&arena->unstriped, 1);
    unlock_numbered(arena);
    return result;
}

/* Whether another process records an arena. An arena whose lock is busy counts as recorded. */
static bool has_foreign_trace(void)
{
    bool found = false;
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; !found && (arena = zr_arenas_next(arena));) {
        bool locked = zr_lock_acquire_within(&arena->lock, 100000000);
        found = !locked || arena->traces[ZR_TRACE_FOREIGN];
        if (locked)
            zr_lock_release(&arena->lock);
    }
    zr_arenas_release();
    return found;
}

zr_result zr_trace_stop_foreign(unsigned number)
{
    struct zr_arena *arena = lock_numbered(number);
    if (!arena)
        return ZR_ERR_INVALID;
    struct zr_trace *trace = detach(arena, ZR_TRACE_FOREIGN);
    if (trace)
        atomic_fetch_sub(&arena->unstriped, 1);
    else
        zr_fail(ZR_ERR_INVALID, "arena '%s' is not recorded by another process", arena->name);
    unlock_numbered(arena);
    if (trace && zr_stacks_every() != zr_option_get(ZR_OPTION_STACKS) && !has_foreign_trace())
        zr_arenas_set_stacks((uint32_t)zr_option_get(ZR_OPTION_STACKS));
    return trace ? zr_trace_close(trace) : ZR_ERR_INVALID;
}

/* Turns stacks on or off. Clears the serial of each live block, because with stacks the field holds a stack's
 * number. lock: arena->lock */
static void switch_stacks(struct zr_arena *arena, bool on)
{
    if (arena->stacks == on)
        return;
    for (struct zr_extent *extent = arena->first; extent && on; extent = extent->next)
        if (extent->kind == ZR_EXTENT_BLOCK)
            extent->serial = 0;
    arena->stacks = on;
    zr_arena_note_debug(arena);
}

bool zr_arenas_set_stacks(uint32_t every)
{
    bool all = true;
    zr_stacks_set(every);
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; (arena = zr_arenas_next(arena));) {
        unsigned count = atomic_load_explicit(&arena->stripes_count, memory_order_acquire);
        for (unsigned i = 0; i <= count; i++) {
            struct zr_arena *stripe = i ? arena->stripes[i - 1] : arena;
            bool locked = zr_lock_acquire_within(&stripe->lock, 100000000);
            if (locked) {
                switch_stacks(stripe, every > 0);
                zr_lock_release(&stripe->lock);
            }
            all = all && locked;
        }
    }
    zr_arenas_release();
    return all;
}

unsigned zr_trace_mark_all(const char *label)
{
    unsigned count = 0;
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; (arena = zr_arenas_next(arena));)
        if (zr_lock_acquire_within(&arena->lock, 100000000)) {
            for (unsigned i = 0; i < ZR_TRACE_COUNT; i++)
                count += arena->traces[i] != NULL;
            zr_trace_event(arena, mark, label);
            zr_lock_release(&arena->lock);
        }
    zr_arenas_release();
    return count;
}

zr_result zr_trace_snapshot(unsigned number, const char *path)
{
    struct zr_trace *trace = NULL;
    struct zr_arena *arena = lock_numbered(number);
    if (!arena)
        return ZR_ERR_INVALID;
    struct zr_trace_origin origin = origin_of(arena);
    zr_result result = zr_trace_open(&trace, path, &origin);
    if (result == ZR_OK)
        write_present(trace, arena);
    unlock_numbered(arena);
    return result == ZR_OK ? zr_trace_close(trace) : result;
}
