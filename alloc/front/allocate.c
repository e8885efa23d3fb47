/* allocate.c: the public allocation and free. Uses core.c and executor.c.
 *
 * A call takes the next step of the plan in force, or else calls the core. Then the hooks run: canaries,
 * poison, tag limits, a trace, a recorder, an observer. While all hooks are off they cost one branch on
 * arena->hooked. tests/bench/bench_operations.py counts instructions per operation. */
#define _GNU_SOURCE
#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/core/core.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"
#include "alloc/front/front.h"
#include "alloc/front/keep.h"
#include "alloc/front/stripes.h"
#include "alloc/telemetry/report.h"

#include "alloc/base/compiler.h"
#include "alloc/base/error.h"
#include "alloc/telemetry/recorder.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/service/client/client.h"
#include "alloc/telemetry/serve.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/base/option.h"

/* ---- A call -------------------------------------------------------------------------------------------- */

/* Ends a call: publishes the counters and releases the lock. */
static inline void leave(struct zr_arena *arena)
{
    if (unlikely(arena->shared))
        zr_stripes_publish(arena);
    zr_lock_release(&arena->lock);
}

/* The properties of a block that the counters add up. */
struct counted {
    size_t bytes, requested_bytes;
    uint8_t tag;
};

static inline void count_in(struct zr_arena *arena, struct counted block)
{
    size_t live_bytes = arena->live_bytes + block.bytes,
           requested_bytes = arena->requested_bytes + block.requested_bytes;
    arena->live_bytes = live_bytes;
    arena->requested_bytes = requested_bytes;
    arena->live_by_tag_bytes[block.tag] += block.bytes;
    arena->blocks_count++;
    arena->allocations_count++;
    if (unlikely(live_bytes > arena->peak_live_bytes)) {
        arena->peak_live_bytes = live_bytes;
        arena->at_peak = true;
    }
    if (unlikely(requested_bytes > arena->peak_requested_bytes))
        arena->peak_requested_bytes = requested_bytes;
}

static inline void count_out(struct zr_arena *arena, struct counted block)
{
    if (unlikely(arena->at_peak)) {
        memcpy(arena->peak_by_tag_bytes, arena->live_by_tag_bytes, sizeof arena->peak_by_tag_bytes);
        arena->at_peak = false;
    }
    arena->live_bytes -= block.bytes;
    arena->requested_bytes -= block.requested_bytes;
    arena->live_by_tag_bytes[block.tag] -= block.bytes;
    arena->blocks_count--;
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* Rejects an invalid request, with the reason. */
static __attribute__((noinline, cold)) zr_result reject_request(const struct zr_arena *arena,
                                                                const struct zr_request *request, void **out)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_alloc: out is NULL");
    *out = NULL;
    if (!arena || !request)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_alloc: arena or request is NULL");
    if (request->bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_alloc: a request of 0 bytes");
    if (request->bytes > PTRDIFF_MAX - 2 * arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "a block of %zu bytes exceeds the address space", request->bytes);
    if ((request->alignment & (request->alignment - 1)) != 0 || request->alignment > arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "alignment %zu: must be a power of two up to the granule size, %zu",
                       request->alignment, arena->granule_bytes);
    return zr_fail(ZR_ERR_INVALID, "%d is not a tag", (int)request->tag);
}

/* More than any backend reserves, and far from an overflow of sizes. */
#define REQUEST_SURE_BYTES ((size_t)1 << 48)

static inline bool is_request(const struct zr_arena *arena, const struct zr_request *request)
{
    size_t alignment = request->alignment;
    return (likely(request->bytes - 1 < REQUEST_SURE_BYTES) ||
            request->bytes - 1 < PTRDIFF_MAX - 2 * arena->granule_bytes) &&
           (likely(alignment == 0) ||
            ((alignment & (alignment - 1)) == 0 && alignment <= arena->granule_bytes)) &&
           likely((unsigned)request->tag < ZR_TAG_COUNT);
}

static inline struct zr_need need_of(const struct zr_arena *arena, const struct zr_request *request,
                                     size_t room_bytes)
{
    size_t units = (room_bytes + arena->canary_bytes + ZR_UNIT_BYTES - 1) / ZR_UNIT_BYTES;
    return (struct zr_need){units * ZR_UNIT_BYTES,
                            request->alignment < ZR_UNIT_BYTES ? ZR_UNIT_BYTES : request->alignment};
}

/* Returns the stripe that serves the calling thread, locked. */
static inline struct zr_arena *enter(struct zr_arena *arena)
{
    if (unlikely(arena->shared)) {
        struct zr_arena *own = zr_stripes_try(arena);
        return likely(own != NULL) ? own : zr_stripes_acquire(arena);
    }
    zr_lock_acquire(&arena->lock);
    return arena;
}

/* Returns the place of the plan's next step if the request matches it. NULL: another request, or the place
 * needs more work. */
static inline struct zr_step *next_step(struct zr_arena *arena, const struct zr_request *request)
{
    struct zr_executor *executor = arena->executor;
    if (unlikely(!executor->plan) || unlikely(executor->awake) || unlikely(executor->work_due) ||
        unlikely(arena->debug))
        return NULL;
    struct zr_executor_sequence *sequence = executor->plan->last_sequence;
    struct zr_step *step = zr_executor_next(executor, sequence, request);
    if (likely(step != NULL) || executor->plan->sequences_count == 1)
        return step;
    /* Threads and streams alternate, so try the sequence of this thread and stream. */
    sequence = zr_executor_sequence_of(executor->plan, zr_thread_own_number, request->stream);
    return sequence ? zr_executor_next(executor, sequence, request) : NULL;
}

/* Allocates at the plan's place for the request, or at any place. lock: both */
static zr_result allocate(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                          struct zr_extent **out)
{
    if (unlikely(arena->executor != NULL) && (*out = zr_executor_alloc(arena, request, need)))
        return ZR_OK;
    return zr_core_alloc(arena, request, need, out);
}

/* Allocates with idle memory of other stripes, or waits for their streams. lock: both, released meanwhile */
static __attribute__((noinline)) zr_result allocate_from_others(struct zr_arena *arena,
                                                                const struct zr_request *request,
                                                                struct zr_need need, struct zr_extent **out)
{
    zr_result result = ZR_ERR_MEMORY;
    while (result == ZR_ERR_MEMORY && zr_stripes_fetch(arena, need.bytes))
        result = allocate(arena, request, need, out);
    return result;
}

/* Runs the hooks on a new block that the recorder already has. True: call zr_executor_work() after the lock
 * is released. */
static __attribute__((noinline)) bool note_alloc(struct zr_arena *arena, const struct zr_request *request,
                                                 struct zr_extent *block, struct zr_need need)
{
    if (arena->stacks) {
        block->serial = zr_call_stack_own();
        zr_recorder_put_stack(arena, block);
    }
    bool work = arena->executor && zr_executor_note_alloc(arena, request, block, need.alignment);
    if (arena->debug)
        zr_debug_new(arena, block);
    return work;
}

/* Counts a new block and runs the hooks. True: see note_alloc(). lock: arena->lock */
static inline bool begin_block(struct zr_arena *arena, const struct zr_request *request,
                               struct zr_extent *block, struct zr_need need)
{
    count_in(arena, (struct counted){block->bytes, request->bytes, (uint8_t)request->tag});
    if (likely(!arena->hooked))
        return false;
    zr_recorder_put(arena, ZRT_ALLOC, block);
    return unlikely(arena->hooked == ZR_HOOKED_MORE) && note_alloc(arena, request, block, need);
}

static __attribute__((noinline)) zr_result note_failure(struct zr_arena *arena, zr_result result,
                                                        const struct zr_request *request, struct zr_need need)
{
    struct zr_refusal refusal;
    result = zr_report_exhausted(arena, result, request, need, &refusal);
    if (!zr_recorder_suppressed)
        zr_trace_event(arena, refused, request, &refusal, arena->stacks ? zr_call_stack_own() : 0);
    if (refusal.cause != ZRT_CAUSE_UNKNOWN)
        zr_recorder_refused(arena, result, request, &refusal);
    return result;
}

/* The check of a tag limit runs under the lock, but the recorder acquires both locks itself, so this runs
 * after the call has released them. */
static __attribute__((noinline)) void note_tag_limit(struct zr_arena *arena, const struct zr_request *request,
                                                     struct zr_need need)
{
    zr_arena_acquire(arena);
    struct zr_refusal refusal = zr_tag_limit_refusal(arena, request, need.bytes);
    zr_recorder_refused(arena, ZR_ERR_TAG_LIMIT, request, &refusal);
    zr_arena_release(arena);
}

/* Slow path: acquires the supply lock and maps memory, or reports the earlier failure. Called with the lock,
 * which is released while the supply lock is acquired; the caller releases both. */
static __attribute__((noinline)) zr_result grow(struct zr_arena *arena, const struct zr_request *request,
                                                struct zr_need need, zr_result before, struct zr_extent **out)
{
    zr_lock_release(&arena->lock);
    zr_arena_acquire(arena);
    if (unlikely(arena->executor != NULL) && unlikely(arena->executor->gone))
        zr_executor_retire_gone(arena);
    zr_result result = likely(!arena->bounded) ? ZR_OK : zr_tag_limit_check(arena, request, need.bytes);
    if (result != ZR_OK)
        return result;
    /* Tag limits count these bytes as used while the lock is released for driver calls. */
    arena->promised_by_tag_bytes[request->tag] += need.bytes;
    result = before == ZR_OK ? allocate(arena, request, need, out) : before;
    if (unlikely(result == ZR_ERR_MEMORY && arena->first_stripe->stripes_count > 0))
        result = allocate_from_others(arena, request, need, out);
    arena->promised_by_tag_bytes[request->tag] -= need.bytes;
    if (unlikely(result != ZR_OK))
        result = note_failure(arena, result, request, need);
    return result;
}

/* Records the caller's call stack; releases the lock meanwhile. */
static __attribute__((noinline, cold)) void take_stack(struct zr_arena *arena)
{
    zr_lock_release(&arena->lock);
    zr_call_stack_take();
    zr_lock_acquire(&arena->lock);
}

/* Whether the arena leases memory and no helper thread runs yet. */
static inline bool is_helper_due(const struct zr_arena *arena)
{
    return arena->backend->lender && !arena->inner &&
           !atomic_load_explicit(&zr_helper_started, memory_order_relaxed);
}

/* Serves any request by a block of `room_bytes`, at least those requested. The caller holds the arena's lock,
 * which is released at the end. */
static zr_result alloc_any(struct zr_arena *arena, const struct zr_request *request, size_t room_bytes,
                           void **out)
{
    struct zr_extent *block = NULL;
    bool work = false, grown = false;
    *out = NULL;
    if (unlikely(arena->debug) && arena->stacks)
        take_stack(arena);
    if (unlikely(!is_request(arena, request))) {
        zr_lock_release(&arena->lock);
        return reject_request(arena, request, out);
    }
    struct zr_request named; /* the request with the canonical name of its stream */
    zr_result result = ZR_OK;
    if (unlikely(arena->asynchronous)) {
        named = *request;
        request = &named;
        result = zr_backend_stream_name(arena->backend, &named.stream);
        if (unlikely(result != ZR_OK)) {
            zr_lock_release(&arena->lock);
            return result;
        }
    }
    struct zr_need need = need_of(arena, request, room_bytes);
    uint64_t calls = arena->backend_calls_count;
    if (unlikely(arena->bounded))
        result = zr_tag_limit_check(arena, request, need.bytes);
    if (likely(result == ZR_OK)) {
        /* A plan may have a place for the request, which grow() looks for. */
        if (likely(!arena->executor) || !arena->executor->plan)
            result = zr_core_try(arena, request, need, &block);
        grown = !block;
        if (unlikely(grown))
            result = grow(arena, request, need, result, &block);
    }
    if (likely(result == ZR_OK)) {
        *out = arena->base + block->offset_bytes;
        work = begin_block(arena, request, block, need);
    }
    if (unlikely(grown) && arena->check >= ZR_CHECK_ARENA && calls != arena->backend_calls_count)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    leave(arena);
    if (unlikely(grown))
        zr_lock_release(&arena->supply);
    if (unlikely(work))
        zr_executor_work(arena);
    if (unlikely(result == ZR_ERR_TAG_LIMIT) && arena->recorder.events)
        note_tag_limit(arena, request, need);
    if (unlikely(grown) && result == ZR_OK && zr_serve_due(arena))
        zr_serve_start();
    if (unlikely(grown) && result == ZR_OK && is_helper_due(arena))
        zr_helper_start();
    return result;
}

zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out)
{
    if (unlikely(!arena) || unlikely(!request) || unlikely(!out))
        return reject_request(arena, request, out);
    arena = enter(arena);
    struct zr_step *step = arena->executor ? next_step(arena, request) : NULL;
    if (!step)
        return alloc_any(arena, request, request->bytes, out);
    count_in(arena, (struct counted){step->bytes, step->requested_bytes, step->tag});
    *out = arena->base + step->offset_bytes;
    leave(arena);
    return ZR_OK;
}

zr_result zr_arena_alloc_at(struct zr_arena *arena, const struct zr_request *request, size_t offset_bytes,
                            void **out)
{
    struct zr_need need = need_of(arena, request, request->bytes);
    struct zr_extent *block = NULL;
    *out = NULL;
    if (!is_request(arena, request) || offset_bytes % ZR_UNIT_BYTES != 0 ||
        offset_bytes > arena->range_bytes || need.bytes > arena->range_bytes - offset_bytes)
        return zr_fail(ZR_ERR_INVALID, "arena \"%s\" has no place for %zu bytes at offset %zu", arena->name,
                       request->bytes, offset_bytes);
    zr_arena_acquire(arena);
    zr_result result = zr_core_build_at(arena, request, (struct zr_bounds){offset_bytes, need.bytes}, &block);
    if (result == ZR_OK && !block)
        result = zr_fail(ZR_ERR_INVALID, "%zu bytes at offset %zu of arena \"%s\" are not free",
                         request->bytes, offset_bytes, arena->name);
    bool work = result == ZR_OK && begin_block(arena, request, block, need);
    zr_arena_release(arena);
    if (result == ZR_OK)
        *out = arena->base + offset_bytes;
    if (work)
        zr_executor_work(arena);
    return result;
}

/* ---- Freeing ------------------------------------------------------------------------------------------- */

/* Reports why the address is not the first byte of a block. Releases the lock. */
static __attribute__((noinline, cold)) zr_result reject_free(struct zr_arena *arena, const void *address,
                                                             bool freed)
{
    size_t offset = (size_t)((const char *)address - arena->base);
    struct zr_extent copy;
    const struct zr_extent *block =
        offset < arena->range_bytes ? zr_block_before(arena, offset, &copy) : NULL;
    zr_result result;
    if (offset >= arena->range_bytes)
        result = zr_fail(ZR_ERR_FOREIGN, "%p is not in arena \"%s\"", address, arena->name);
    else if (block && offset < zr_extent_end(block))
        result = zr_fail(ZR_ERR_FOREIGN,
                         "%p lies %zu bytes inside the block of %zu bytes at %p: free that address", address,
                         offset - block->offset_bytes, zr_extent_requested_bytes(block),
                         (void *)(arena->base + block->offset_bytes));
    else if (freed)
        result = zr_fail(ZR_ERR_DOUBLE_FREE, "the block at %p of arena \"%s\" was freed before", address,
                         arena->name);
    else
        result = zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, address);
    zr_lock_release(&arena->lock);
    return result;
}

/* Runs the hooks on a block before its free. ZR_ERR_CORRUPT, with a message: the program wrote past its end.
 */
static __attribute__((noinline)) zr_result note_free(struct zr_arena *arena, struct zr_extent *block)
{
    if (arena->stacks)
        zr_recorder_put_stack(arena, block);
    zr_result result = arena->debug ? zr_debug_freed(arena, block) : ZR_OK;
    if (arena->executor)
        zr_executor_note_free(arena, block);
    return result;
}

/* Frees a planned block. NULL: done, the common case of a free on time; else the caller frees the returned
 * block. */
static inline struct zr_extent *free_step(struct zr_arena *arena, struct zr_executor_plan *plan,
                                          size_t number)
{
    struct zr_step *step = &plan->steps[number];
    zr_step_leave(plan, step);
    if (unlikely(arena->executor->awake) || unlikely(arena->debug) || unlikely(step->special_free) ||
        unlikely(plan != arena->executor->plan))
        return &plan->slots[number].extent;
    zr_step_clear_live(plan, step, number);
    count_out(arena, (struct counted){step->bytes, step->requested_bytes, step->tag});
    return NULL;
}

/* Counts a block as freed and runs the hooks. lock: arena->lock */
static inline zr_result end_block(struct zr_arena *arena, struct zr_extent *block)
{
    count_out(arena, (struct counted){block->bytes, zr_extent_requested_bytes(block), block->tag});
    if (likely(!arena->hooked))
        return ZR_OK;
    zr_recorder_put(arena, ZRT_FREE, block);
    return unlikely(arena->hooked == ZR_HOOKED_MORE) ? note_free(arena, block) : ZR_OK;
}

/* Frees a block that was removed from the index. lock: arena->lock */
static inline zr_result free_block(struct zr_arena *arena, struct zr_extent *block)
{
    zr_result result = end_block(arena, block);
    if (unlikely(block->uses != NULL))
        zr_streams_defer(arena, block);
    else if (unlikely(block->kind == ZR_EXTENT_PLANNED))
        zr_executor_free(arena, block);
    else
        zr_core_free(arena, block);
    return result;
}

zr_result zr_arena_free(zr_arena *arena, void *address)
{
    struct zr_executor_plan *plan = NULL;
    struct zr_extent *block = NULL;
    bool freed = false, found;
    if (unlikely(!address))
        return ZR_OK;
    if (unlikely(!arena))
        return zr_fail(ZR_ERR_INVALID, "zr_arena_free of %p: arena is NULL", address);
    arena = zr_arena_stripe_of(arena, address);
    zr_lock_acquire(&arena->lock);
    size_t offset = (size_t)((char *)address - arena->base);
    if (arena->executor)
        plan = zr_executor_plan_at(arena, offset);
    if (plan) {
        size_t number = zr_plan_exact(plan, offset, &freed);
        found = number < plan->slots_count;
        if (likely(found))
            block = free_step(arena, plan, number);
    } else {
        block = zr_index_take(&arena->index, offset, &freed);
        found = block != NULL;
    }
    if (unlikely(!found))
        return reject_free(arena, address, freed && offset % ZR_UNIT_BYTES == 0);
    zr_result result = block ? free_block(arena, block) : ZR_OK;
    bool gone = unlikely(arena->hooked) && arena->executor && arena->executor->gone;
    leave(arena);
    if (unlikely(gone)) {
        zr_arena_acquire(arena);
        zr_executor_retire_gone(arena);
        zr_arena_release(arena);
    }
    return result;
}

/* ---- Blocks that the arena's owner keeps for reuse ----------------------------------------------------- */

zr_result zr_arena_alloc_sized(struct zr_arena *arena, const struct zr_request *request, size_t room_bytes,
                               void **out)
{
    struct zr_request named = *request;
    if (room_bytes > named.bytes && room_bytes - named.bytes > UINT32_MAX)
        named.bytes = room_bytes - UINT32_MAX; /* the most that a block's slack can tell */
    zr_lock_acquire(&arena->lock);
    return alloc_any(arena, &named, room_bytes, out);
}

struct zr_extent *zr_block_at(struct zr_arena *arena, const void *address)
{
    bool freed;
    return zr_index_exact(&arena->index, (size_t)((const char *)address - arena->base), &freed);
}

void zr_block_keep(struct zr_arena *arena, struct zr_extent *block)
{
    end_block(arena, block); /* the owner's blocks have no canary, the only failure */
    zr_extent_unpublish(block);
    block->kind = ZR_EXTENT_KEPT;
}

void zr_block_reuse(struct zr_arena *arena, struct zr_extent *block, size_t bytes)
{
    size_t slack_bytes = block->bytes - bytes;
    block->slack_bytes = (uint32_t)(slack_bytes < UINT32_MAX ? slack_bytes : UINT32_MAX);
    struct zr_request request = {.bytes = zr_extent_requested_bytes(block), .tag = (zr_tag)block->tag};
    if (unlikely(arena->stacks))
        take_stack(arena);
    block->kind = ZR_EXTENT_BLOCK;
    zr_extent_publish(block);
    begin_block(arena, &request, block, (struct zr_need){block->bytes, ZR_UNIT_BYTES});
}

void zr_block_release(struct zr_arena *arena, struct zr_extent *block)
{
    bool freed;
    zr_extent_publish(block); /* as zr_index_take() expects */
    zr_index_take(&arena->index, block->offset_bytes, &freed);
    zr_core_free(arena, block);
}
