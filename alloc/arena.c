/* arena.c: the arena's life, its allocations and frees, and the search for a block by address. Stands on
 * space.c, extend.c and index.c. */
#define _GNU_SOURCE
#include "alloc/arena_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc/error.h"
#include "alloc/follow.h"
#include "alloc/option.h"
#include "alloc/poison.h"

/* ---- All arenas of the process ------------------------------------------------------------------------- */

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_arena *arenas; /* by number; lock: arenas_lock */

static void arenas_add(struct zr_arena *arena)
{
    struct zr_arena **link = &arenas;
    pthread_mutex_lock(&arenas_lock);
    while (*link && (*link)->number == arena->number) {
        arena->number++;
        link = &(*link)->next;
    }
    arena->next = *link;
    *link = arena;
    pthread_mutex_unlock(&arenas_lock);
}

static void arenas_remove(struct zr_arena *arena)
{
    struct zr_arena **link = &arenas;
    pthread_mutex_lock(&arenas_lock);
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    pthread_mutex_unlock(&arenas_lock);
}

struct zr_arena *zr_arenas_lock(unsigned number)
{
    pthread_mutex_lock(&arenas_lock);
    struct zr_arena *arena = arenas;
    while (arena && arena->number != number)
        arena = arena->next;
    if (arena)
        zr_lock_take(&arena->lock);
    else
        pthread_mutex_unlock(&arenas_lock);
    return arena;
}

void zr_arenas_unlock(void)
{
    pthread_mutex_unlock(&arenas_lock);
}

/* The member after this one, of the family and then of the next; NULL after the last. lock: arenas_lock */
static struct zr_arena *next_member(struct zr_arena *arena)
{
    struct zr_arena *head = arena->head;
    unsigned count = atomic_load(&head->siblings_count), seat = 0;
    while (arena != head && head->siblings[seat++] != arena)
        ;
    return seat < count ? head->siblings[seat] : head->next;
}

void zr_arenas_before_fork(void)
{
    pthread_mutex_lock(&arenas_lock);
    for (struct zr_arena *arena = arenas; arena; arena = next_member(arena))
        zr_lock_take(&arena->lock);
}

void zr_arenas_after_fork(void)
{
    for (struct zr_arena *arena = arenas; arena; arena = next_member(arena))
        zr_lock_give(&arena->lock);
    pthread_mutex_unlock(&arenas_lock);
}

void zr_arenas_after_fork_child(void)
{
    /* The threads that waited, for readers or for the lock, are not in the child. */
    for (struct zr_arena *arena = arenas; arena; arena = next_member(arena)) {
        arena->reclaiming = false;
        arena->lock.sleepers = 0;
        zr_follow_after_fork_child(arena);
    }
    zr_arenas_after_fork();
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void count_arena(zr_backend *backend, int change)
{
    pthread_mutex_lock(&backend->lock);
    backend->arenas_count += (unsigned)change;
    pthread_mutex_unlock(&backend->lock);
}

/* Reserves the range: what was asked for, or the backend's hint, halved until the system agrees. */
static zr_result reserve_range(struct zr_arena *arena, size_t asked_bytes)
{
    zr_backend *backend = arena->backend;
    size_t bytes = asked_bytes;
    if (bytes > SIZE_MAX / 2)
        return zr_fail(ZR_ERR_INVALID, "a reservation of %zu bytes is larger than any address space", bytes);
    if (bytes == 0)
        bytes = backend->ops->reserve_hint
                    ? backend->ops->reserve_hint(backend, arena->limit_bytes ? arena->limit_bytes
                                                                             : backend->limit_bytes)
                    : arena->limit_bytes * 4;
    bytes = zr_round_up(bytes, arena->granule_bytes);
    if (bytes < arena->granule_bytes)
        bytes = arena->granule_bytes;
    zr_result result = zr_backend_reserve(backend, bytes, &arena->range);
    while (asked_bytes == 0 && result == ZR_ERR_ADDRESSES && bytes / 2 >= arena->granule_bytes * 16) {
        bytes = zr_round_up(bytes / 2, arena->granule_bytes);
        result = zr_backend_reserve(backend, bytes, &arena->range);
    }
    return result;
}

static zr_result prepare(struct zr_arena *arena, const struct zr_arena_options *options)
{
    zr_backend *backend = options->backend;
    snprintf(arena->name, sizeof arena->name, "%s", options->name ? options->name : "arena");
    arena->head = arena;
    arena->members_most = options->threads > 1 ? options->threads : 1;
    arena->sibling_reserve_bytes = options->reserve_bytes;
    arena->backend = backend;
    arena->granule_bytes = backend->can.granule_bytes;
    arena->granule_shift = (unsigned)__builtin_ctzl(arena->granule_bytes);
    arena->limit_bytes = zr_round_down(options->limit_bytes, arena->granule_bytes);
    arena->check = (unsigned)zr_option_get(ZR_OPTION_CHECK);
    arena->canary_bytes = arena->check >= ZR_CHECK_BYTES ? 16 : 0;
    arena->visible = backend->can.host_visible;
    arena->poison = arena->visible && zr_option_get(ZR_OPTION_POISON) && zr_poison_wanted();
    arena->stock.granule_bytes = arena->granule_bytes;
    arena->asynchronous = !backend->can.synchronous;
    zr_pool_init(&arena->spans, sizeof(struct zr_span), ZR_POOL_FAULTS);
    zr_pool_init(&arena->uses, sizeof(struct zr_use), ZR_POOL_FAULTS);
    if (!zr_pool_reserve(&arena->spans, ZR_ZONE_COUNT))
        return ZR_ERR_HOST_MEMORY;
    zr_result result = reserve_range(arena, options->reserve_bytes);
    if (result != ZR_OK)
        return result;
    arena->base = arena->range->address;
    arena->bitmap_bytes = (arena->range->bytes / arena->granule_bytes + 63) / 64 * sizeof(uint64_t);
    arena->granules = zr_pages_take(arena->bitmap_bytes);
    if (!arena->granules)
        return ZR_ERR_HOST_MEMORY;
    result = zr_index_init(&arena->index, arena->range->bytes);
    if (result == ZR_OK)
        zr_space_init(arena);
    return result;
}

static void tear_down(struct zr_arena *arena)
{
    if (arena->granules)
        zr_pages_give(arena->granules, arena->bitmap_bytes);
    if (arena->range) {
        zr_result result = zr_backend_release(arena->range);
        zr_assert(result == ZR_OK);
    }
    if (arena->index.regions)
        zr_index_end(&arena->index);
    zr_streams_end(arena);
    zr_follow_end(arena);
    zr_pool_end(&arena->spans);
    zr_pages_give(arena, sizeof *arena);
}

zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "an arena needs somewhere to go");
    *out = NULL;
    if (!options || !options->backend)
        return zr_fail(ZR_ERR_INVALID, "an arena needs a backend");
    if (options->threads > ZR_SIBLINGS_MOST + 1)
        return zr_fail(ZR_ERR_INVALID, "an arena serves at most %d threads at once, not %u",
                       ZR_SIBLINGS_MOST + 1, options->threads);
    if (options->limit_bytes && options->limit_bytes < options->backend->can.granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "an arena's limit of %zu bytes is below one granule (%zu)",
                       options->limit_bytes, options->backend->can.granule_bytes);
    struct zr_arena *arena = zr_pages_take(sizeof *arena);
    if (!arena)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = prepare(arena, options);
    if (result != ZR_OK) {
        tear_down(arena);
        return result;
    }
    count_arena(arena->backend, 1);
    arenas_add(arena);
    *out = arena;
    return ZR_OK;
}

unsigned zr_arena_add_sibling(struct zr_arena *head, unsigned count)
{
    struct zr_arena *arena = NULL;
    unsigned made = 0;
    pthread_mutex_lock(&arenas_lock);
    if (1 + atomic_load(&head->siblings_count) != count || head->together || head->no_more)
        goto unlock; /* somebody was faster */
    arena = zr_pages_take(sizeof *arena);
    if (arena && prepare(arena, &(struct zr_arena_options){.backend = head->backend,
                                                           .name = head->name,
                                                           .reserve_bytes = head->sibling_reserve_bytes,
                                                           .limit_bytes = head->limit_bytes}) == ZR_OK) {
        arena->head = head;
        head->siblings[count - 1] = arena;
        atomic_store_explicit(&head->siblings_count, count, memory_order_release);
        made = 1;
    } else {
        /* No addresses or records for one more: the family stays as it is. */
        if (arena)
            tear_down(arena);
        head->no_more = true;
    }
unlock:
    pthread_mutex_unlock(&arenas_lock);
    return made;
}

bool zr_arena_keep_together(struct zr_arena *head, int change)
{
    pthread_mutex_lock(&arenas_lock);
    atomic_fetch_add(&head->together, (unsigned)change);
    bool alone = atomic_load(&head->siblings_count) == 0;
    pthread_mutex_unlock(&arenas_lock);
    return alone;
}

static zr_result end_member(struct zr_arena *arena, size_t *leaked_bytes)
{
    if (leaked_bytes)
        *leaked_bytes += arena->live_bytes;
    zr_result result = zr_release_all(arena);
    tear_down(arena);
    return result;
}

zr_result zr_arena_destroy(zr_arena *arena, size_t *leaked_bytes)
{
    zr_result result = ZR_OK;
    if (leaked_bytes)
        *leaked_bytes = 0;
    if (!arena)
        return ZR_OK;
    arenas_remove(arena);
    if (arena->trace)
        result = zr_trace_close(arena->trace);
    arena->trace = NULL;
    zr_backend *backend = arena->backend;
    for (unsigned i = arena->siblings_count; i-- > 0;) {
        zr_result released = end_member(arena->siblings[i], leaked_bytes);
        result = result == ZR_OK ? released : result;
    }
    zr_result released = end_member(arena, leaked_bytes);
    result = result == ZR_OK ? released : result;
    count_arena(backend, -1);
    return result;
}

zr_backend *zr_arena_backend(const zr_arena *arena)
{
    return arena ? arena->backend : NULL;
}

/* ---- Canaries ------------------------------------------------------------------------------------------ */

/* The byte that belongs at an offset past a block's end: differs from place to place, so that a copy of a
 * neighbour's canary is no canary. */
static inline unsigned char canary_byte(size_t offset_bytes)
{
    return (unsigned char)(0xa5 ^ (offset_bytes * 31));
}

static void write_canary(struct zr_arena *arena, const struct zr_span *block)
{
    for (size_t at = block->offset_bytes + block->requested_bytes; at < zr_span_end(block); at++)
        arena->base[at] = (char)canary_byte(at);
}

/* The first damaged byte past the block's end, counted from it; 0 if all is well. */
static size_t damaged(const struct zr_arena *arena, const struct zr_span *block)
{
    size_t end = block->offset_bytes + block->requested_bytes;
    for (size_t at = end; at < zr_span_end(block); at++)
        if ((unsigned char)arena->base[at] != canary_byte(at))
            return at - end + 1;
    return 0;
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

static zr_result check_request(const struct zr_arena *arena, const struct zr_request *request,
                               struct zr_need *need)
{
    size_t alignment = request->alignment ? request->alignment : ZR_UNIT_BYTES;
    if (request->bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "a block needs at least one byte");
    if (request->bytes > PTRDIFF_MAX - 2 * arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID, "a block of %zu bytes overflows the address space", request->bytes);
    if ((alignment & (alignment - 1)) != 0 || alignment > arena->granule_bytes)
        return zr_fail(ZR_ERR_INVALID,
                       "an alignment of %zu is not a power of two up to the granule size, %zu", alignment,
                       arena->granule_bytes);
    if ((unsigned)request->tag >= ZR_TAG_COUNT)
        return zr_fail(ZR_ERR_INVALID, "%d is no tag", (int)request->tag);
    need->bytes = zr_round_up(request->bytes + arena->canary_bytes, ZR_UNIT_BYTES);
    need->alignment = alignment < ZR_UNIT_BYTES ? ZR_UNIT_BYTES : alignment;
    return ZR_OK;
}

static void count_block(struct zr_arena *arena, const struct zr_span *block)
{
    arena->live_bytes += block->bytes;
    arena->requested_bytes += block->requested_bytes;
    arena->live_by_tag_bytes[block->tag] += block->bytes;
    arena->blocks_count++;
    arena->allocations_count++;
    if (arena->live_bytes > arena->peak_live_bytes) {
        arena->peak_live_bytes = arena->live_bytes;
        arena->at_peak = true;
    }
    if (arena->requested_bytes > arena->peak_requested_bytes)
        arena->peak_requested_bytes = arena->requested_bytes;
    if (__builtin_expect(arena->head->members_most > 1, 0))
        zr_siblings_tell(arena);
}

static void uncount_block(struct zr_arena *arena, const struct zr_span *block)
{
    if (arena->at_peak) {
        memcpy(arena->peak_by_tag_bytes, arena->live_by_tag_bytes, sizeof arena->peak_by_tag_bytes);
        arena->at_peak = false;
    }
    arena->live_bytes -= block->bytes;
    arena->requested_bytes -= block->requested_bytes;
    arena->live_by_tag_bytes[block->tag] -= block->bytes;
    arena->blocks_count--;
    if (__builtin_expect(arena->head->members_most > 1, 0))
        zr_siblings_tell(arena);
}

static struct zr_block_info info_of(const struct zr_arena *arena, const struct zr_span *block)
{
    return (struct zr_block_info){.address = arena->base + block->offset_bytes,
                                  .bytes = block->requested_bytes,
                                  .reserved_bytes = block->bytes,
                                  .tag = (zr_tag)block->tag,
                                  .stream = block->stream};
}

/* No memory for the block after all: its addresses become a gap again. What the driver mapped and will not
 * unmap becomes a span that is never used, until the arena ends and asks again. */
static void withdraw(struct zr_arena *arena, struct zr_span *block, struct zr_extent stuck)
{
    bool used = zr_space_free_needs_span(block);
    zr_space_free(arena, block, block);
    if (!used)
        zr_pool_give(&arena->spans, block);
    if (stuck.bytes == 0)
        return;
    struct zr_span *gap = arena->first;
    while (zr_span_end(gap) <= stuck.offset_bytes)
        gap = gap->next;
    zr_space_carve(arena, gap, stuck)->kind = ZR_SPAN_LEAVING;
}

/* Whose gap the block's space becomes. */
static void set_owner(struct zr_arena *arena, struct zr_span *block)
{
    block->owner = 0;
    if (!arena->asynchronous)
        return;
    unsigned owner = zr_streams_number(arena, block->stream);
    if (owner)
        block->serial = zr_streams_count_free(arena, owner);
    else
        zr_backend_synchronize(arena->backend); /* no record for one more stream: its work must be over */
    block->owner = (uint8_t)owner;
}

/* With the last record gone: waits for the readers without the lock, and makes the block's own record the
 * gap. The block is in no index any more, and its neighbours do not merge with what is leaving. */
static void free_without_spare(struct zr_arena *arena, struct zr_span *block)
{
    block->kind = ZR_SPAN_LEAVING;
    zr_lock_give(&arena->lock);
    zr_index_synchronize();
    zr_lock_take(&arena->lock);
    set_owner(arena, block); /* again: its stream may have lost its number meanwhile */
    bool used = zr_space_free_needs_span(block);
    zr_space_free(arena, block, block);
    if (!used)
        zr_pool_give(&arena->spans, block);
}

static void retire(struct zr_arena *arena, struct zr_span *block)
{
    block->previous = arena->retired;
    arena->retired = block;
    arena->retired_count++;
}

static inline void vacate(struct zr_arena *arena, struct zr_span *block)
{
    bool needs = zr_space_free_needs_span(block);
    zr_space_free(arena, block, needs ? zr_pool_take(&arena->spans) : NULL);
    retire(arena, block);
}

/* ---- Warm blocks: programs ask again and again for what they have just given back -----------------------
 */

static inline bool is_warm(const struct zr_span *span)
{
    return span && span->kind == ZR_SPAN_WARM;
}

static void cool(struct zr_arena *arena, struct zr_span **place)
{
    /* Its stream may have passed meanwhile, and will not say so again. */
    if ((*place)->owner && zr_streams_passed(arena->streams[(*place)->owner], (*place)->serial))
        (*place)->owner = 0;
    vacate(arena, *place);
    *place = NULL;
    arena->warm_count--;
}

/* The freed block's space becomes a gap, now or later. Later, if no gap is beside it: it would be the best
 * fit for its own size anyway, and so long as it is kept for that nothing changes but the work saved. lock:
 * arena->lock; spans are reserved. */
static inline void set_free(struct zr_arena *arena, struct zr_span *block)
{
    if (__builtin_expect(is_warm(block->previous) || is_warm(block->next), 0))
        zr_arena_settle(arena);
    if (!zr_space_free_needs_span(block)) {
        vacate(arena, block);
        return;
    }
    struct zr_span **place = &arena->warm[arena->warm_next];
    if (*place)
        cool(arena, place);
    block->kind = ZR_SPAN_WARM;
    *place = block;
    arena->warm_count++;
    arena->warm_next = (arena->warm_next + 1) % ZR_WARM_BLOCKS;
}

/* A warm block of exactly the size, that the stream may use: under a new record, for readers may hold the old
 * one. */
static inline struct zr_span *take_warm(struct zr_arena *arena, const struct zr_request *request,
                                        struct zr_need need)
{
    for (unsigned i = 1; i <= ZR_WARM_BLOCKS; i++) {
        struct zr_span **place = &arena->warm[(arena->warm_next - i) % ZR_WARM_BLOCKS];
        struct zr_span *old = *place;
        if (!old || old->bytes != need.bytes || (old->offset_bytes & (need.alignment - 1)) != 0 ||
            (old->owner && old->stream != request->stream))
            continue;
        struct zr_span *block = zr_space_replace(arena, old);
        block->kind = ZR_SPAN_BLOCK;
        retire(arena, old);
        *place = NULL;
        arena->warm_count--;
        return block;
    }
    return NULL;
}

/* True if a warm block would fit the need better than the place does. */
static inline bool warm_fits(const struct zr_arena *arena, struct zr_need need, struct zr_place place)
{
    size_t most = place.gap && place.missing == 0 ? place.gap->bytes : SIZE_MAX;
    for (unsigned i = 0; i < ZR_WARM_BLOCKS; i++)
        if (arena->warm[i] && arena->warm[i]->bytes >= need.bytes && arena->warm[i]->bytes < most)
            return true;
    return false;
}

void zr_arena_settle(struct zr_arena *arena)
{
    for (unsigned i = 0; arena->warm_count > 0 && i < ZR_WARM_BLOCKS; i++)
        if (arena->warm[i] && zr_pool_reserve(&arena->spans, ZR_FREE_SPANS + ZR_PROMISED_SPANS))
            cool(arena, &arena->warm[i]);
}

void zr_arena_vacate(struct zr_arena *arena, struct zr_span *block)
{
    if (block->zone == ZR_ZONE_COUNT) {
        zr_follow_free(arena, block);
        return;
    }
    set_owner(arena, block);
    vacate(arena, block);
}

/* A place for the need; on an asynchronous backend one that may need no more memory after asking the streams.
 */
static struct zr_place find_place(struct zr_arena *arena, const struct zr_request *request,
                                  struct zr_need need)
{
    unsigned owner = arena->asynchronous ? zr_streams_find(arena, request->stream) : 0;
    struct zr_place place = zr_space_find(arena, need, owner);
    if (arena->warm_count > 0 && (!place.gap || warm_fits(arena, need, place))) {
        zr_arena_settle(arena);
        place = zr_space_find(arena, need, owner);
    }
    if (arena->asynchronous && (!place.gap || place.missing > 0) && zr_space_pending_bytes(arena) > 0 &&
        zr_streams_poll(arena))
        place = zr_space_find(arena, need, zr_streams_find(arena, request->stream));
    return place;
}

/* Memory under the place and a block on it, in no books yet. */
static zr_result settle(struct zr_arena *arena, struct zr_place place, struct zr_need need,
                        struct zr_span **out)
{
    if (!place.gap)
        return zr_fail(ZR_ERR_ADDRESSES, "no %zu free addresses in a row are left of the %zu reserved",
                       need.bytes, arena->range->bytes);
    struct zr_extent part = {place.offset_bytes, need.bytes}, stuck;
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

/* lock: arena->lock */
static zr_result allocate_unplanned(struct zr_arena *arena, const struct zr_request *request,
                                    struct zr_need need, struct zr_span **out)
{
    struct zr_span *block;
    zr_result result = ZR_OK;
    block = take_warm(arena, request, need);
    if (!block)
        result = settle(arena, find_place(arena, request, need), need, &block);
    /* Rather than fail, wait for what is on its way out; the spans may have been used up meanwhile. */
    if (__builtin_expect(result != ZR_OK, 0) && arena->asynchronous && zr_space_pending_bytes(arena) > 0 &&
        zr_streams_wait(arena) && zr_pool_reserve(&arena->spans, ZR_PROMISED_SPANS))
        result = settle(arena, zr_space_find(arena, need, 0), need, &block);
    if (result != ZR_OK)
        return result;
    block->requested_bytes = request->bytes;
    block->stream = request->stream;
    block->uses = NULL;
    block->tag = (uint8_t)request->tag;
    *out = block;
    return ZR_OK;
}

/* lock: arena->lock */
static zr_result allocate(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                          struct zr_span **out)
{
    struct zr_span *block = NULL;
    if (!zr_pool_reserve(&arena->spans, ZR_PROMISED_SPANS) || !zr_index_reserve(&arena->index))
        return ZR_ERR_HOST_MEMORY;
    if (__builtin_expect(arena->follow != NULL, 0))
        block = zr_follow_alloc(arena, request, need);
    zr_result result = block ? ZR_OK : allocate_unplanned(arena, request, need, &block);
    if (result != ZR_OK)
        return result;
    zr_index_insert(&arena->index, block);
    count_block(arena, block);
    *out = block;
    return ZR_OK;
}

/* The same, when memory is short: what the siblings have idle may do, or what streams still use there. lock:
 * arena->lock, opened meanwhile */
static zr_result allocate_from_others(struct zr_arena *arena, const struct zr_request *request,
                                      struct zr_need need, struct zr_span **out)
{
    zr_result result = ZR_ERR_MEMORY;
    for (unsigned wait = 0; result == ZR_ERR_MEMORY && wait <= arena->asynchronous; wait++) {
        zr_lock_give(&arena->lock);
        size_t trimmed = zr_siblings_trim(arena, wait);
        zr_lock_take(&arena->lock);
        if (trimmed > 0)
            result = allocate(arena, request, need, out);
    }
    return result;
}

/* The arena that serves this thread, with its lock taken. */
static inline struct zr_arena *take_member(struct zr_arena *arena)
{
    if (__builtin_expect(arena->members_most > 1, 0))
        return zr_siblings_take(arena);
    zr_lock_take(&arena->lock);
    return arena;
}

zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out)
{
    struct zr_need need = {0};
    struct zr_span *block = NULL;
    bool work = false;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a block needs somewhere to go");
    *out = NULL;
    if (!arena || !request)
        return zr_fail(ZR_ERR_INVALID, "a block needs an arena and a request");
    zr_result result = check_request(arena, request, &need);
    if (result != ZR_OK)
        return result;
    arena = take_member(arena);
    uint64_t calls = arena->backend_calls_count;
    result = allocate(arena, request, need, &block);
    if (__builtin_expect(result == ZR_ERR_MEMORY && arena->head->siblings_count > 0, 0))
        result = allocate_from_others(arena, request, need, &block);
    if (__builtin_expect(result == ZR_OK, 1)) {
        char *address = arena->base + block->offset_bytes;
        *out = address;
        if (__builtin_expect(arena->follow != NULL, 0))
            work = zr_follow_note_alloc(arena, request, block, need.alignment);
        if (arena->poison)
            zr_poison_block(address,
                            request->bytes + (arena->canary_bytes ? block->bytes - request->bytes : 0),
                            block->bytes);
        if (arena->canary_bytes && arena->visible)
            write_canary(arena, block);
        if (__builtin_expect(arena->trace != NULL, 0)) {
            struct zr_block_info info = info_of(arena, block);
            zr_trace_write_alloc(arena->trace, &info);
        }
    } else {
        result = zr_report_exhausted(arena, result, request);
        zr_trace_event(arena->trace, refused, request);
    }
    if (__builtin_expect(arena->check >= ZR_CHECK_ARENA && calls != arena->backend_calls_count, 0))
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_lock_give(&arena->lock);
    if (__builtin_expect(work, 0))
        zr_follow_work(arena);
    return result;
}

/* ---- Freeing ------------------------------------------------------------------------------------------- */

/* Why this address is not the first byte of a block. */
static zr_result refuse_free(const struct zr_arena *arena, const void *address, bool freed)
{
    size_t offset = (size_t)((const char *)address - arena->base);
    if (offset >= arena->range->bytes)
        return zr_fail(ZR_ERR_FOREIGN, "%p is not in arena \"%s\"", address, arena->name);
    const struct zr_span *block = zr_index_before(&arena->index, offset);
    if (block && offset < zr_span_end(block))
        return zr_fail(ZR_ERR_FOREIGN, "%p lies %zu bytes inside the block of %zu bytes at %p: free that",
                       address, offset - block->offset_bytes, block->requested_bytes,
                       (void *)(arena->base + block->offset_bytes));
    if (freed)
        return zr_fail(ZR_ERR_DOUBLE_FREE, "the block at %p of arena \"%s\" was freed before", address,
                       arena->name);
    return zr_fail(ZR_ERR_FOREIGN, "no block of arena \"%s\" begins at %p", arena->name, address);
}

/* Gives the freed spans' records back when there are enough of them. Called with the lock, waits without. */
static void reclaim(struct zr_arena *arena)
{
    struct zr_span *batch = arena->retired;
    arena->retired = NULL;
    arena->retired_count = 0;
    arena->reclaiming = true;
    zr_lock_give(&arena->lock);
    zr_index_synchronize();
    zr_lock_take(&arena->lock);
    while (batch) {
        struct zr_span *next = batch->previous;
        zr_pool_give(&arena->spans, batch);
        batch = next;
    }
    arena->reclaiming = false;
}

/* The block has left the index. lock: arena->lock, opened for a moment now and then. */
static zr_result release_block(struct zr_arena *arena, struct zr_span *block)
{
    char *address = arena->base + block->offset_bytes;
    zr_result result = ZR_OK;
    if (arena->canary_bytes && arena->visible) {
        size_t byte = damaged(arena, block);
        if (byte > 0)
            result = zr_fail(ZR_ERR_CORRUPT,
                             "the block of %zu bytes at %p (%s) was written past its end: byte %zu after it",
                             block->requested_bytes, (void *)address, zr_tag_name((zr_tag)block->tag), byte);
    }
    if (__builtin_expect(arena->trace != NULL, 0)) {
        struct zr_block_info info = info_of(arena, block);
        zr_trace_write_free(arena->trace, &info);
    }
    if (arena->poison)
        zr_poison_free(address, block->bytes);
    uncount_block(arena, block);
    if (__builtin_expect(arena->follow != NULL, 0))
        zr_follow_note_free(arena, block);
    if (__builtin_expect(block->uses != NULL, 0)) {
        zr_streams_defer(arena, block);
        return result;
    }
    if (block->kind == ZR_SPAN_PLANNED) {
        zr_follow_free(arena, block);
        return result;
    }
    set_owner(arena, block);
    if (__builtin_expect(zr_pool_reserve(&arena->spans, 2 * ZR_FREE_SPANS), 1))
        set_free(arena, block);
    else
        free_without_spare(arena, block);
    if (__builtin_expect(arena->retired_count >= ZR_RETIRED_BATCH && !arena->reclaiming, 0))
        reclaim(arena);
    return result;
}

zr_result zr_arena_free(zr_arena *arena, void *address)
{
    bool freed = false;
    struct zr_span *block = NULL;
    if (!address)
        return ZR_OK;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "%p cannot be freed without its arena", address);
    arena = zr_arena_member_of(arena, address);
    size_t offset = (size_t)((char *)address - arena->base);
    zr_lock_take(&arena->lock);
    if (offset < arena->range->bytes && offset % ZR_UNIT_BYTES == 0)
        block = zr_index_take(&arena->index, offset, &freed);
    zr_result result = block ? release_block(arena, block) : refuse_free(arena, address, freed);
    zr_lock_give(&arena->lock);
    return result;
}

static size_t trim_member(struct zr_arena *arena, size_t keep_bytes)
{
    zr_lock_take(&arena->lock);
    zr_arena_settle(arena);
    if (arena->asynchronous)
        zr_streams_poll(arena);
    if (arena->follow)
        zr_follow_give_back(arena);
    size_t released = zr_trim(arena, keep_bytes);
    if (arena->check >= ZR_CHECK_ARENA)
        zr_assert(zr_check_arena(arena) == ZR_OK);
    zr_lock_give(&arena->lock);
    return released;
}

zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes)
{
    if (released_bytes)
        *released_bytes = 0;
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "there is no arena to trim");
    size_t released = zr_siblings_trim(arena, false) + trim_member(arena, keep_bytes);
    if (released_bytes)
        *released_bytes = released;
    return ZR_OK;
}

/* ---- Search -------------------------------------------------------------------------------------------- */

zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out)
{
    bool found = false;
    if (!arena || !out)
        return zr_fail(ZR_ERR_INVALID, "a search needs an arena and somewhere to put its answer");
    arena = zr_arena_member_of(arena, pointer);
    size_t offset = (size_t)((const char *)pointer - arena->base);
    *out = (struct zr_block_info){0};
    if (offset < arena->range->bytes) {
        zr_index_read_lock();
        const struct zr_span *block = zr_index_before(&arena->index, offset);
        found = block && offset < zr_span_end(block);
        if (found)
            *out = info_of(arena, block);
        zr_index_read_unlock();
    }
    return found ? ZR_OK
                 : zr_fail(ZR_ERR_FOREIGN, "no live block of arena \"%s\" holds %p", arena->name, pointer);
}
