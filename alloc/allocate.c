/* allocate.c: allocations and frees. Stands on space.c, extend.c, index.c and follow.c.
 *
 * What happens most comes first and inline: the next step of the plan in force; a freed block of the same
 * size; best fit over what is mapped. What only some arenas have (canaries, poison, ceilings, a trace,
 * checks) is behind one flag, arena->careful. Its cost is counted by tests/bench_operations.py: instructions
 * per operation of a repeated sequence by callgrind, nanoseconds as the median of its repeats. */
#define _GNU_SOURCE
#include "alloc/arena_internal.h"

#include "alloc/books.h"
#include "alloc/error.h"
#include "alloc/follow_internal.h"
#include "alloc/option.h"
#include "alloc/warm.h"

#define likely(condition)   __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* ---- The end of a call ----------------------------------------------------------------------------------
 */

/* The rest of a call whose work is done and in the books. Both give the lock; what is rare or slow is called
 * last, so that the common case keeps nothing across calls. */
static __attribute__((noinline)) zr_result finish_shared(struct zr_arena *arena)
{
    zr_siblings_tell(arena);
    zr_lock_give(&arena->lock);
    return ZR_OK;
}

static __attribute__((noinline)) zr_result finish_waking(struct zr_arena *arena)
{
    zr_lock_wake(&arena->lock);
    return ZR_OK;
}

static inline zr_result finish(struct zr_arena *arena)
{
    if (unlikely(arena->shared))
        return finish_shared(arena);
    return zr_lock_open(&arena->lock) ? finish_waking(arena) : ZR_OK;
}

/* ---- Space that becomes free --------------------------------------------------------------------------- */

/* No memory for the block after all: its addresses become a gap again. What the driver mapped and will not
 * unmap becomes a span that is never used, until the arena ends and asks again. */
static void withdraw(struct zr_arena *arena, struct zr_span *block, struct zr_extent stuck)
{
    if (!zr_space_free(arena, block, block))
        zr_pool_give(&arena->spans, block);
    if (stuck.bytes == 0)
        return;
    struct zr_span *gap = arena->first;
    while (zr_span_end(gap) <= stuck.offset_bytes)
        gap = gap->next;
    zr_space_carve(arena, gap, stuck)->kind = ZR_SPAN_LEAVING;
}

/* Whose gap the block's space becomes. False: nobody's, and nobody can say when its stream has passed. */
static bool find_owner(struct zr_arena *arena, struct zr_span *block)
{
    unsigned owner = zr_streams_number(arena, block->stream);
    block->owner = (uint8_t)owner;
    if (owner)
        block->serial = zr_streams_count_free(arena, owner);
    /* Without a record for one more stream its work must be over. */
    return owner || zr_arena_stream_wait(arena, block->stream) == ZR_OK;
}

static inline bool set_owner(struct zr_arena *arena, struct zr_span *block)
{
    block->owner = 0;
    return likely(!arena->asynchronous) || find_owner(arena, block);
}

/* With the last record gone: waits for the readers without the lock, and makes the block's own record the
 * gap. The block is in no index any more, and its neighbours do not merge with what is leaving. */
static void free_without_spare(struct zr_arena *arena, struct zr_span *block)
{
    block->kind = ZR_SPAN_LEAVING;
    zr_lock_give(&arena->lock);
    zr_index_synchronize();
    zr_lock_take(&arena->lock);
    /* Again: its stream may have lost its number meanwhile. */
    if (!set_owner(arena, block))
        zr_streams_withhold(arena, block);
    else if (!zr_space_free(arena, block, block))
        zr_pool_give(&arena->spans, block);
}

/* Whether a block's record must outlast the readers that may hold it. Whoever goes by it has looked. */
static inline bool has_readers(const struct zr_arena *arena)
{
    return arena->readers;
}

static void retire(struct zr_arena *arena, struct zr_span *block)
{
    block->previous = arena->retired;
    arena->retired = block;
    arena->retired_count++;
}

/* With readers the caller has reserved ZR_FREE_SPANS. */
static inline void vacate(struct zr_arena *arena, struct zr_span *block)
{
    if (likely(!has_readers(arena))) {
        if (!zr_space_free(arena, block, block))
            zr_pool_give(&arena->spans, block);
        return;
    }
    struct zr_span *spare = zr_pool_take(&arena->spans);
    if (!zr_space_free(arena, block, spare))
        zr_pool_give(&arena->spans, spare);
    retire(arena, block);
}

/* ---- Warm blocks: programs ask again and again for what they have just given back -----------------------
 */

static void cool(struct zr_arena *arena, unsigned place)
{
    struct zr_span *block = zr_warm_leave(arena, place);
    /* Its stream may have passed meanwhile, and will not say so again. */
    if (unlikely(block->owner) && zr_streams_passed(arena->streams[block->owner], block->serial))
        block->owner = 0;
    if (has_readers(arena) || zr_gap_beside(block, block->previous) || zr_gap_beside(block, block->next))
        vacate(arena, block);
    else
        zr_space_file(arena, block);
}

/* Keeps the freed block in the place of the one that is kept longest. */
static void keep_warm(struct zr_arena *arena, struct zr_span *block)
{
    unsigned place = arena->warm_next;
    if (arena->warm[place])
        cool(arena, place);
    zr_warm_keep_in(arena, block, place);
}

static void settle_warm(struct zr_arena *arena)
{
    for (unsigned i = 0; arena->warm_count > 0 && i < ZR_WARM_BLOCKS; i++)
        if (arena->warm[i] &&
            (!has_readers(arena) || zr_pool_reserve(&arena->spans, ZR_FREE_SPANS + ZR_PROMISED_SPANS)))
            cool(arena, i);
}

void zr_arena_settle(struct zr_arena *arena)
{
    zr_arena_look_for_readers(arena);
    settle_warm(arena);
}

/* The freed block's space becomes a gap, now or later. Later, if no gap is beside it: it would be the best
 * fit for its own size anyway, and so long as it is kept for that nothing changes but the work saved. lock:
 * arena->lock; spans are reserved. */
static __attribute__((noinline)) void set_free(struct zr_arena *arena, struct zr_span *block)
{
    if (zr_warm_is(block->previous) || zr_warm_is(block->next))
        settle_warm(arena);
    if (zr_gap_beside(block, block->previous) || zr_gap_beside(block, block->next))
        vacate(arena, block);
    else
        keep_warm(arena, block);
}

/* The last freed of the warm blocks that will do: under a new record, if readers may hold the old one. */
static struct zr_span *take_warm(struct zr_arena *arena, const struct zr_request *request,
                                 struct zr_need need)
{
    unsigned place = zr_warm_find(arena, request, need);
    if (place == ZR_WARM_BLOCKS) {
        zr_warm_note_sizes(arena);
        return NULL;
    }
    struct zr_span *block = zr_warm_leave(arena, place);
    zr_arena_look_for_readers(arena);
    if (unlikely(has_readers(arena))) {
        struct zr_span *old = block;
        block = zr_space_replace(arena, old);
        retire(arena, old);
    }
    block->kind = ZR_SPAN_BLOCK;
    return block;
}

void zr_arena_vacate(struct zr_arena *arena, struct zr_span *block)
{
    if (block->zone == ZR_ZONE_COUNT) {
        zr_follow_free(arena, block);
        return;
    }
    zr_arena_look_for_readers(arena);
    if (set_owner(arena, block))
        vacate(arena, block);
    else
        zr_streams_withhold(arena, block);
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* A place for the need; on an asynchronous backend one that may need no more memory after asking the streams.
 */
static __attribute__((noinline)) struct zr_place
find_place(struct zr_arena *arena, const struct zr_request *request, struct zr_need need)
{
    unsigned owner = arena->asynchronous ? zr_streams_find(arena, request->stream) : 0;
    struct zr_place place = zr_space_find(arena, need, owner);
    size_t most = place.missing == 0 && place.gap ? place.gap->bytes : SIZE_MAX;
    /* Warm blocks may merge into a place, or be a better fit. */
    if (arena->warm_count > 0 && (!place.gap || zr_warm_between(arena, need.bytes, most))) {
        zr_arena_settle(arena);
        place = zr_space_find(arena, need, owner);
    }
    if (arena->asynchronous && (!place.gap || place.missing > 0) && zr_space_pending_bytes(arena) > 0 &&
        zr_streams_poll(arena))
        place = zr_space_find(arena, need, zr_streams_find(arena, request->stream));
    if (place.missing > 0 && arena->follow && arena->follow->plan && arena->follow->settled) {
        /* Asking the streams may have given an idle number to another. */
        owner = arena->asynchronous ? zr_streams_find(arena, request->stream) : 0;
        struct zr_place ready = zr_space_find_ready(arena, need, owner);
        if (!ready.gap)
            ready = zr_space_find_fullest(arena, need, owner);
        if (ready.gap && ready.missing < place.missing)
            return ready;
    }
    return place;
}

/* Memory under the place and a block on it, in no books yet. */
static zr_result settle_on(struct zr_arena *arena, struct zr_place place, struct zr_need need,
                           struct zr_span **out)
{
    if (!place.gap)
        return zr_fail(ZR_ERR_ADDRESSES, "no %zu free addresses in a row are left of the %zu reserved",
                       need.bytes, arena->range_bytes);
    struct zr_extent part = {place.offset_bytes, need.bytes}, stuck;
    if (unlikely(place.missing > 0 && arena->follow)) {
        size_t granule = arena->granule_bytes, missing_bytes = place.missing * granule;
        size_t all_bytes = zr_round_up(place.offset_bytes + need.bytes, granule) -
                           zr_round_down(place.offset_bytes, granule);
        zr_follow_spare(arena, missing_bytes, all_bytes - missing_bytes, true);
    }
    struct zr_span *block = zr_space_carve(arena, place.gap, part);
    zr_result result = place.missing > 0 ? zr_map(arena, part, &stuck) : ZR_OK;
    /* The last resort: what a plan's region holds and does not use. */
    if (result == ZR_ERR_MEMORY && stuck.bytes == 0 && arena->follow && zr_follow_give_back(arena) > 0)
        result = zr_map(arena, part, &stuck);
    if (result == ZR_OK)
        *out = block;
    else
        withdraw(arena, block, stuck);
    return result;
}

static __attribute__((noinline)) zr_result settle(struct zr_arena *arena, const struct zr_request *request,
                                                  struct zr_need need, struct zr_span **out)
{
    zr_result result = settle_on(arena, find_place(arena, request, need), need, out);
    /* Rather than fail, wait for what is on its way out; the spans may have been used up meanwhile. */
    while (unlikely(result != ZR_OK) && arena->asynchronous && zr_streams_wait(arena) &&
           zr_pool_reserve(&arena->spans, ZR_PROMISED_SPANS))
        result = settle_on(arena, zr_space_find(arena, need, 0), need, out);
    return result;
}

static inline void describe_block(struct zr_span *block, const struct zr_request *request)
{
    block->requested_bytes = request->bytes;
    block->stream = request->stream;
    block->uses = NULL;
    block->tag = (uint8_t)request->tag;
}

/* lock: arena->lock */
static zr_result allocate_unplanned(struct zr_arena *arena, const struct zr_request *request,
                                    struct zr_need need, struct zr_span **out)
{
    struct zr_span *block = NULL;
    zr_result result = ZR_OK;
    if (zr_warm_may_have(arena, need.bytes))
        block = take_warm(arena, request, need);
    if (!block)
        result = settle(arena, request, need, &block);
    if (unlikely(result != ZR_OK))
        return result;
    describe_block(block, request);
    *out = block;
    return ZR_OK;
}

/* lock: arena->lock */
static inline __attribute__((always_inline)) zr_result
allocate(struct zr_arena *arena, const struct zr_request *request, struct zr_need need, struct zr_span **out)
{
    struct zr_span *block = NULL;
    if (unlikely(!zr_pool_reserve(&arena->spans, ZR_PROMISED_SPANS) || !zr_index_reserve(&arena->index)))
        return ZR_ERR_HOST_MEMORY;
    if (unlikely(arena->follow != NULL))
        block = zr_follow_alloc(arena, request, need);
    zr_result result = block ? ZR_OK : allocate_unplanned(arena, request, need, &block);
    if (unlikely(result != ZR_OK))
        return result;
    if (block->kind != ZR_SPAN_PLANNED)
        zr_index_insert(&arena->index, block);
    zr_book_in(arena, zr_book_entry_of(block));
    if (unlikely(arena->shared))
        zr_siblings_tell(arena);
    *out = block;
    return ZR_OK;
}

/* The same, when memory is short: what the siblings have idle may do, or what streams still use there. lock:
 * arena->lock, opened meanwhile */
static __attribute__((noinline)) zr_result allocate_from_others(struct zr_arena *arena,
                                                                const struct zr_request *request,
                                                                struct zr_need need, struct zr_span **out)
{
    zr_result result = ZR_ERR_MEMORY;
    while (result == ZR_ERR_MEMORY && zr_siblings_fetch(arena, need.bytes))
        result = allocate(arena, request, need, out);
    return result;
}

/* Any request. Called with the lock of the arena that serves it, gives it. */
static __attribute__((noinline)) zr_result alloc_any(struct zr_arena *arena, const struct zr_request *request,
                                                     void **out, struct zr_need need)
{
    struct zr_span *block = NULL;
    bool work = false;
    uint64_t calls = arena->backend_calls_count;
    zr_result result = allocate(arena, request, need, &block);
    if (unlikely(result == ZR_ERR_MEMORY && arena->head->siblings_count > 0))
        result = allocate_from_others(arena, request, need, &block);
    if (likely(result == ZR_OK)) {
        *out = arena->base + block->offset_bytes;
        if (unlikely(arena->follow != NULL))
            work = zr_follow_note_alloc(arena, request, block, need.alignment);
        if (unlikely(arena->careful))
            zr_careful_new(arena, block);
    } else {
        *out = NULL;
        result = zr_report_exhausted(arena, result, request, need);
        zr_trace_event(arena->trace, refused, request);
    }
    if (unlikely(arena->check >= ZR_CHECK_ARENA && calls != arena->backend_calls_count))
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_lock_give(&arena->lock);
    if (unlikely(work))
        zr_follow_work(arena);
    return result;
}

/* Why this is no request. */
static __attribute__((noinline, cold)) zr_result refuse_request(const struct zr_arena *arena,
                                                                const struct zr_request *request, void **out)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a block needs somewhere to go");
    *out = NULL;
    if (!arena || !request)
        return zr_fail(ZR_ERR_INVALID, "a block needs an arena and a request");
    if (request->bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "a block needs at least one byte");
    if (request->bytes > PTRDIFF_MAX - 2 * arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "a block of %zu bytes overflows the address space", request->bytes);
    if ((request->alignment & (request->alignment - 1)) != 0 || request->alignment > arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID,
                       "an alignment of %zu is not a power of two up to the granule size, %zu",
                       request->alignment, arena->granule_bytes);
    return zr_fail(ZR_ERR_INVALID, "%d is no tag", (int)request->tag);
}

/* More than any backend reserves, and far from where sizes overflow. */
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

static inline struct zr_need need_of(const struct zr_arena *arena, const struct zr_request *request)
{
    return (struct zr_need){zr_round_up(request->bytes + arena->canary_bytes, ZR_UNIT_BYTES),
                            request->alignment < ZR_UNIT_BYTES ? ZR_UNIT_BYTES : request->alignment};
}

static zr_result alloc_next(struct zr_arena *arena, const struct zr_request *request, void **out);
static zr_result look_and_alloc(struct zr_arena *arena, const struct zr_request *request, void **out);

/* A request of one of CUDA's default streams by a name of its own. Called with the lock, gives it. */
static __attribute__((noinline, cold)) zr_result alloc_default(struct zr_arena *arena,
                                                               const struct zr_request *request, void **out)
{
    struct zr_request named = *request;
    zr_result result = zr_backend_stream_name(arena->backend, &named.stream);
    if (result == ZR_OK)
        return arena->follow ? alloc_next(arena, &named, out) : look_and_alloc(arena, &named, out);
    zr_lock_give(&arena->lock);
    *out = NULL;
    return result;
}

/* Any request that nobody has looked at yet. Called with the lock, gives it. */
static __attribute__((noinline)) zr_result look_and_alloc(struct zr_arena *arena,
                                                          const struct zr_request *request, void **out)
{
    if (unlikely(!is_request(arena, request))) {
        zr_lock_give(&arena->lock);
        return refuse_request(arena, request, out);
    }
    if (unlikely(request->stream - 1 < 2) && arena->backend->can.default_streams)
        return alloc_default(arena, request, out);
    struct zr_need need = need_of(arena, request);
    *out = NULL;
    return unlikely(arena->bounded) && zr_ceiling_refuses(arena, request, need.bytes)
               ? ZR_ERR_CEILING
               : alloc_any(arena, request, out, need);
}

static inline struct zr_book_entry entry_of_step(const struct zr_step *step)
{
    return (struct zr_book_entry){step->bytes, step->requested_bytes, step->tag};
}

static inline __attribute__((always_inline)) zr_result hand_out_step(struct zr_arena *arena,
                                                                     const struct zr_step *step, void **out)
{
    zr_book_in(arena, entry_of_step(step));
    *out = arena->base + step->offset_bytes;
    return finish(arena);
}

/* The next step of another lane than the one that was asked last, as a rule: threads and streams take turns.
 */
static __attribute__((noinline)) zr_result alloc_in_turn(struct zr_arena *arena,
                                                         const struct zr_request *request, void **out)
{
    struct zr_follow_plan *plan = arena->follow->plan;
    struct zr_lane *lane = NULL;
    if (plan->lanes_count > 1)
        lane = zr_follow_lane_of(plan, zr_thread_own_number, request->stream);
    struct zr_step *step = lane ? zr_follow_next(arena->follow, lane, request) : NULL;
    return step ? hand_out_step(arena, step, out) : look_and_alloc(arena, request, out);
}

/* Where a plan is in force, as a rule the next step of it, which is looked at first: it is a request. Called
 * with the lock of the arena that serves it, gives it. */
static __attribute__((noinline)) zr_result alloc_next(struct zr_arena *arena,
                                                      const struct zr_request *request, void **out)
{
    struct zr_follow *follow = arena->follow;
    if (unlikely(!follow->plan) || unlikely(follow->awake) || unlikely(follow->work_due) ||
        unlikely(arena->careful))
        return look_and_alloc(arena, request, out);
    struct zr_step *step = zr_follow_next(follow, follow->plan->last_lane, request);
    return likely(step != NULL) ? hand_out_step(arena, step, out) : alloc_in_turn(arena, request, out);
}

static inline void book_block(struct zr_arena *arena, const struct zr_request *request, void **out,
                              const struct zr_span *block)
{
    zr_book_in(arena, (struct zr_book_entry){block->bytes, request->bytes, (uint8_t)request->tag});
    *out = arena->base + block->offset_bytes;
}

/* What follows begins where there is no plan. Each ends in another as its last step, so that none keeps much
 * across calls. Called with the lock of the arena that serves the request, they give it. */

/* A block whose place in the index has others near it, or no room yet; and the rest of the gap that it was
 * cut from, if there is one. */
static __attribute__((noinline)) zr_result hand_out_near(struct zr_arena *arena,
                                                         const struct zr_request *request, void **out,
                                                         struct zr_span *block, struct zr_span *rest)
{
    if (rest)
        zr_space_shrink(arena, rest, block->bytes);
    zr_index_insert(&arena->index, block);
    book_block(arena, request, out, block);
    return finish(arena);
}

static inline __attribute__((always_inline)) zr_result
hand_out(struct zr_arena *arena, const struct zr_request *request, void **out, struct zr_span *block)
{
    describe_block(block, request);
    if (!zr_index_insert_alone(&arena->index, block))
        return hand_out_near(arena, request, out, block, NULL);
    book_block(arena, request, out, block);
    return finish(arena);
}

/* The gap that is the best fit, all of it. */
static __attribute__((noinline)) zr_result alloc_gap(struct zr_arena *arena, const struct zr_request *request,
                                                     void **out, struct zr_span *gap)
{
    zr_space_take_whole(arena, gap);
    return hand_out(arena, request, out, gap);
}

static __attribute__((noinline)) zr_result finish_refiling(struct zr_arena *arena, struct zr_span *gap,
                                                           size_t bytes)
{
    zr_space_shrink(arena, gap, bytes);
    return finish(arena);
}

/* Its low end, of which nothing is missing. */
static __attribute__((noinline)) zr_result alloc_low(struct zr_arena *arena, const struct zr_request *request,
                                                     void **out, struct zr_span *gap, size_t bytes)
{
    if (unlikely(arena->spans.spare_count < ZR_PROMISED_SPANS))
        return alloc_any(arena, request, out, (struct zr_need){bytes, ZR_UNIT_BYTES});
    struct zr_span *block = zr_space_begin_low(arena, gap, bytes);
    describe_block(block, request);
    if (!zr_index_insert_alone(&arena->index, block))
        return hand_out_near(arena, request, out, block, gap);
    book_block(arena, request, out, block);
    if (gap->bin != 0)
        return finish_refiling(arena, gap, block->bytes);
    zr_space_shrink_end(gap, block->bytes);
    return finish(arena);
}

/* Where a warm block may be the better fit, or the gap's low end is not on few granules. */
static __attribute__((noinline)) zr_result look_and_alloc_low(struct zr_arena *arena,
                                                              const struct zr_request *request, void **out,
                                                              struct zr_span *gap, size_t bytes)
{
    if (unlikely(!zr_space_is_mapped(arena, gap->offset_bytes, bytes)) ||
        zr_warm_between(arena, bytes, gap->bytes))
        return alloc_any(arena, request, out, (struct zr_need){bytes, ZR_UNIT_BYTES});
    return gap->bytes == bytes ? alloc_gap(arena, request, out, gap)
                               : alloc_low(arena, request, out, gap, bytes);
}

/* The best fit. */
static __attribute__((noinline)) zr_result alloc_best(struct zr_arena *arena,
                                                      const struct zr_request *request, void **out,
                                                      size_t bytes, struct zr_zone *zone)
{
    struct zr_span *gap = zr_holes_best(&zone->gaps, bytes);
    if (!gap && (unlikely(!(gap = zone->tail)) || unlikely(gap->bytes <= bytes)))
        return alloc_any(arena, request, out, (struct zr_need){bytes, ZR_UNIT_BYTES});
    if (unlikely(!zr_space_is_mapped_at_once(arena, gap->offset_bytes, bytes)))
        return look_and_alloc_low(arena, request, out, gap, bytes);
    if (gap->bytes == bytes)
        return alloc_gap(arena, request, out, gap);
    return unlikely(arena->warm_count > 0) ? look_and_alloc_low(arena, request, out, gap, bytes)
                                           : alloc_low(arena, request, out, gap, bytes);
}

/* Of its size there is no warm block after all. */
static __attribute__((noinline)) zr_result alloc_cold(struct zr_arena *arena,
                                                      const struct zr_request *request, void **out,
                                                      size_t bytes, struct zr_zone *zone)
{
    zr_warm_note_sizes(arena);
    return alloc_best(arena, request, out, bytes, zone);
}

/* Space of the same size that was freed last. */
static __attribute__((noinline)) zr_result alloc_warm(struct zr_arena *arena,
                                                      const struct zr_request *request, void **out,
                                                      size_t bytes, struct zr_zone *zone)
{
    struct zr_need need = {bytes, ZR_UNIT_BYTES};
    unsigned place = zr_warm_find(arena, request, need);
    if (unlikely(place == ZR_WARM_BLOCKS))
        return alloc_cold(arena, request, out, bytes, zone);
    zr_arena_look_for_readers(arena);
    if (unlikely(has_readers(arena)))
        return alloc_any(arena, request, out, need);
    struct zr_span *block = zr_warm_leave(arena, place);
    block->kind = ZR_SPAN_BLOCK;
    return hand_out(arena, request, out, block);
}

static __attribute__((noinline)) zr_result alloc_mapped(struct zr_arena *arena,
                                                        const struct zr_request *request, void **out)
{
    if (unlikely(!is_request(arena, request)) || unlikely(request->alignment > ZR_UNIT_BYTES) ||
        unlikely(!arena->plain) || unlikely(!arena->index.stocked) || unlikely(zr_fault_watched()))
        return look_and_alloc(arena, request, out);
    /* Plain arenas keep no canaries. */
    size_t bytes = zr_round_up(request->bytes, ZR_UNIT_BYTES);
    struct zr_zone *zone = &arena->zones[zr_zone_of(arena, (struct zr_need){bytes, ZR_UNIT_BYTES})];
    return zr_warm_may_have(arena, bytes) ? alloc_warm(arena, request, out, bytes, zone)
                                          : alloc_best(arena, request, out, bytes, zone);
}

/* The lock is taken, or the thread has no seat yet. */
static __attribute__((noinline)) zr_result alloc_waiting(struct zr_arena *arena,
                                                         const struct zr_request *request, void **out)
{
    if (arena->shared)
        arena = zr_siblings_take(arena);
    else
        zr_lock_wait(&arena->lock);
    return arena->follow ? alloc_next(arena, request, out) : alloc_mapped(arena, request, out);
}

zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out)
{
    if (unlikely(!arena) || unlikely(!request) || unlikely(!out))
        return refuse_request(arena, request, out);
    struct zr_arena *own = arena;
    if (arena->shared)
        own = zr_siblings_try(arena);
    else if (unlikely(!zr_lock_try(&arena->lock)))
        own = NULL;
    if (unlikely(!own))
        return alloc_waiting(arena, request, out);
    arena = own;
    return arena->follow ? alloc_next(arena, request, out) : alloc_mapped(arena, request, out);
}

/* ---- Freeing ------------------------------------------------------------------------------------------- */

/* Why this address is not the first byte of a block. Gives the lock. */
static __attribute__((noinline, cold)) zr_result refuse_free(struct zr_arena *arena, const void *address,
                                                             bool freed)
{
    size_t offset = (size_t)((const char *)address - arena->base);
    const struct zr_span *block = offset < arena->range_bytes ? zr_block_before(arena, offset) : NULL;
    zr_result result;
    if (offset >= arena->range_bytes)
        result = zr_fail(ZR_ERR_FOREIGN, "%p is not in arena \"%s\"", address, arena->name);
    else if (block && offset < zr_span_end(block))
        result = zr_fail(ZR_ERR_FOREIGN, "%p lies %zu bytes inside the block of %zu bytes at %p: free that",
                         address, offset - block->offset_bytes, block->requested_bytes,
                         (void *)(arena->base + block->offset_bytes));
    else if (freed)
        result = zr_fail(ZR_ERR_DOUBLE_FREE, "the block at %p of arena \"%s\" was freed before", address,
                         arena->name);
    else
        result = zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, address);
    zr_lock_give(&arena->lock);
    return result;
}

static struct zr_span *take_retired(struct zr_arena *arena)
{
    struct zr_span *batch = arena->retired;
    arena->retired = NULL;
    arena->retired_count = 0;
    return batch;
}

static void give_batch(struct zr_arena *arena, struct zr_span *batch)
{
    while (batch) {
        struct zr_span *next = batch->previous;
        zr_pool_give(&arena->spans, batch);
        batch = next;
    }
}

/* Gives the freed spans' records back when there are enough of them. Called with the lock, waits without.
 * Nobody has searched since the last batch: then there are no readers from here on, until one comes anew. */
static __attribute__((noinline)) void reclaim(struct zr_arena *arena)
{
    struct zr_span *batch = take_retired(arena);
    if (!atomic_exchange(&arena->sought, false) && !arena->unfenced)
        zr_readers_turn(arena, ZR_READERS_HERE, ZR_READERS_LEAVING);
    arena->reclaiming = true;
    zr_lock_give(&arena->lock);
    zr_index_synchronize();
    zr_lock_take(&arena->lock);
    give_batch(arena, batch);
    /* Others have freed meanwhile; nobody but this thread leads from LEAVING to NONE. */
    if (zr_readers_turn(arena, ZR_READERS_LEAVING, ZR_READERS_NONE))
        give_batch(arena, take_retired(arena));
    arena->reclaiming = false;
}

/* Any block that is no longer found. Called with the lock, opens it for a moment now and then, gives it. */
static __attribute__((noinline)) zr_result free_any(struct zr_arena *arena, struct zr_span *block)
{
    zr_result result = unlikely(arena->careful) ? zr_careful_freed(arena, block) : ZR_OK;
    zr_book_out(arena, zr_book_entry_of(block));
    if (unlikely(arena->shared))
        zr_siblings_tell(arena);
    if (unlikely(arena->follow != NULL))
        zr_follow_note_free(arena, block);
    if (unlikely(block->uses != NULL)) {
        zr_streams_defer(arena, block);
    } else if (unlikely(block->kind == ZR_SPAN_PLANNED)) {
        zr_follow_free(arena, block);
    } else if (unlikely(!set_owner(arena, block))) {
        zr_streams_withhold(arena, block);
    } else {
        zr_arena_look_for_readers(arena);
        if (likely(!has_readers(arena)) || likely(zr_pool_reserve(&arena->spans, 2 * ZR_FREE_SPANS)))
            set_free(arena, block);
        else
            free_without_spare(arena, block);
        if (unlikely(arena->retired_count >= ZR_RETIRED_BATCH && !arena->reclaiming))
            reclaim(arena);
    }
    zr_lock_give(&arena->lock);
    return result;
}

/* The ends of frees of blocks without an owner, where there are no readers: with gaps beside the block, one
 * of which may be missing; and wherever it takes more. */
static __attribute__((noinline)) zr_result free_beside(struct zr_arena *arena, struct zr_span *block,
                                                       struct zr_span *left, struct zr_span *right)
{
    zr_space_join(arena, block, left, right);
    return finish(arena);
}

static __attribute__((noinline)) zr_result free_among(struct zr_arena *arena, struct zr_span *block)
{
    arena->readers = false; /* the look at `busy` said so */
    set_free(arena, block);
    return finish(arena);
}

/* The common case of a free: the arena's memory has one stream in program order, nobody watches. */
static inline __attribute__((always_inline)) zr_result free_quiet(struct zr_arena *arena,
                                                                  struct zr_span *block)
{
    if (unlikely(zr_arena_busy(arena) != 0) || unlikely(block->uses != NULL))
        return free_any(arena, block);
    zr_book_out(arena, zr_book_entry_of(block));
    block->owner = 0;
    struct zr_span *left = zr_gap_beside(block, block->previous), *right = zr_gap_beside(block, block->next);
    if (unlikely(arena->warm_count > 0) && unlikely(zr_warm_is(block->previous) || zr_warm_is(block->next)))
        return free_among(arena, block);
    if (left || right)
        return free_beside(arena, block, left, right);
    if (unlikely(arena->warm[arena->warm_next] != NULL))
        return free_among(arena, block);
    zr_warm_keep_in(arena, block, arena->warm_next);
    return finish(arena);
}

/* Any address that no plan holds. */
static __attribute__((noinline)) zr_result free_near(struct zr_arena *arena, void *address)
{
    size_t offset = (size_t)((char *)address - arena->base);
    bool freed;
    struct zr_span *block = zr_index_take(&arena->index, offset, &freed);
    return likely(block != NULL) ? free_quiet(arena, block)
                                 : refuse_free(arena, address, freed && offset % ZR_UNIT_BYTES == 0);
}

/* A block that is in no plan, as a rule. Called with the lock, gives it. */
static __attribute__((noinline)) zr_result free_mapped(struct zr_arena *arena, void *address)
{
    struct zr_span *block = zr_index_take_alone(&arena->index, (size_t)((char *)address - arena->base));
    return block ? free_quiet(arena, block) : free_near(arena, address);
}

/* A block of the plan, which goes in time as a rule. With the lock, gives it. */
static inline __attribute__((always_inline)) zr_result free_step(struct zr_arena *arena,
                                                                 struct zr_follow_plan *plan, size_t number)
{
    const struct zr_follow *follow = arena->follow;
    struct zr_step *step = &plan->steps[number];
    zr_step_leave(plan, step);
    if (unlikely(follow->awake) || unlikely(arena->careful) || unlikely(step->apart) ||
        unlikely(plan != follow->plan))
        return free_any(arena, &plan->slots[number].span);
    zr_step_clear_live(plan, step, number);
    zr_book_out(arena, entry_of_step(step));
    return finish(arena);
}

/* The same for any address in the plan's region. */
static __attribute__((noinline)) zr_result look_and_free(struct zr_arena *arena, struct zr_follow_plan *plan,
                                                         const void *address)
{
    bool freed;
    size_t number = zr_plan_exact(plan, (size_t)((const char *)address - arena->base), &freed);
    return likely(number < plan->slots_count) ? free_step(arena, plan, number)
                                              : refuse_free(arena, address, freed);
}

static __attribute__((noinline)) zr_result free_planned(struct zr_arena *arena, struct zr_follow_plan *plan,
                                                        const void *address)
{
    size_t number = zr_plan_at_once(plan, (size_t)((const char *)address - arena->base));
    return number < plan->slots_count ? free_step(arena, plan, number) : look_and_free(arena, plan, address);
}

/* Called with the lock, gives it. */
static inline __attribute__((always_inline)) zr_result free_locked(struct zr_arena *arena, void *address)
{
    if (likely(!arena->follow))
        return free_mapped(arena, address);
    size_t offset = (size_t)((char *)address - arena->base);
    struct zr_follow_plan *plan = arena->follow->plan;
    if (unlikely(!plan) || unlikely(!zr_plan_holds(plan, offset)))
        plan = zr_follow_plan_at(arena, offset);
    return plan ? free_planned(arena, plan, address) : free_mapped(arena, address);
}

/* The lock is taken. */
static __attribute__((noinline)) zr_result free_waiting(struct zr_arena *arena, void *address)
{
    zr_lock_wait(&arena->lock);
    return free_locked(arena, address);
}

/* Of a family of arenas, of which each has addresses of its own. */
static __attribute__((noinline)) zr_result free_shared(struct zr_arena *arena, void *address)
{
    arena = zr_arena_member_of(arena, address);
    zr_lock_take(&arena->lock);
    return free_locked(arena, address);
}

zr_result zr_arena_free(zr_arena *arena, void *address)
{
    if (unlikely(!address))
        return ZR_OK;
    if (unlikely(!arena))
        return zr_fail(ZR_ERR_INVALID, "%p cannot be freed without its arena", address);
    if (unlikely(arena->shared))
        return free_shared(arena, address);
    return likely(zr_lock_try(&arena->lock)) ? free_locked(arena, address) : free_waiting(arena, address);
}
