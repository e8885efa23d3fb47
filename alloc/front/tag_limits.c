/* tag_limits.c: limits of the bytes of each tag, checked at every request: how a byte plan is enforced. Uses
 * core/arena.h.
 *
 * A bounded arena has the debug hooks on, so only its calls come here. */
#include "alloc/core/arena.h"
#include "alloc/core/registry.h"
#include "alloc/front/front.h"
#include "alloc/telemetry/report.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"
#include "alloc/telemetry/trace_format.h"

/* The live bytes that the total limit covers. */
static size_t total_bytes(const struct zr_arena *arena)
{
    return arena->live_bytes - arena->live_by_tag_bytes[ZR_TAG_OTHER];
}

static size_t promised_total_bytes(const struct zr_arena *arena)
{
    size_t bytes = 0;
    for (unsigned tag = 0; tag < ZR_TAG_OTHER; tag++)
        bytes += arena->promised_by_tag_bytes[tag];
    return bytes;
}

static bool is_above(size_t live_bytes, size_t more_bytes, size_t max_bytes)
{
    return more_bytes > max_bytes || live_bytes > max_bytes - more_bytes;
}

static zr_result check(const struct zr_arena *arena, const struct zr_request *request, size_t bytes)
{
    zr_tag tag = request->tag;
    const struct zr_tag_limits *tag_limits = &arena->tag_limits;
    if (tag == ZR_TAG_OTHER)
        return ZR_OK;
    size_t live_bytes = arena->live_by_tag_bytes[tag] + arena->promised_by_tag_bytes[tag];
    size_t all_bytes = total_bytes(arena) + promised_total_bytes(arena);
    if (is_above(live_bytes, bytes, tag_limits->by_tag_bytes[tag]))
        return zr_fail(
            ZR_ERR_TAG_LIMIT,
            "%zu bytes for %s would make it %zu in arena \"%s\" (%zu requested, %zu live); its tag limit is %zu; free blocks of the tag first, or raise the tag limit",
            bytes, zr_tag_name(tag), live_bytes + bytes, arena->name, request->bytes, live_bytes,
            tag_limits->by_tag_bytes[tag]);
    if (is_above(all_bytes, bytes, tag_limits->total_bytes))
        return zr_fail(
            ZR_ERR_TAG_LIMIT,
            "%zu bytes for %s would make all tags together %zu in arena \"%s\" (%zu requested, %zu live); their tag limit is %zu; free blocks first, or raise the tag limit",
            bytes, zr_tag_name(tag), all_bytes + bytes, arena->name, request->bytes, all_bytes,
            tag_limits->total_bytes);
    return ZR_OK;
}

zr_result zr_tag_limit_check(struct zr_arena *arena, const struct zr_request *request, size_t bytes)
{
    zr_result result = check(arena, request, bytes);
    if (result != ZR_OK && zr_arena_is_traced(arena)) {
        struct zr_refusal refusal = zr_tag_limit_refusal(arena, request, bytes);
        zr_trace_event(arena, refused, request, &refusal, arena->stacks ? zr_call_stack_own() : 0);
    }
    return result;
}

struct zr_refusal zr_tag_limit_refusal(const struct zr_arena *arena, const struct zr_request *request,
                                       size_t bytes)
{
    size_t tag_bytes = arena->live_by_tag_bytes[request->tag] + arena->promised_by_tag_bytes[request->tag];
    bool own = is_above(tag_bytes, bytes, arena->tag_limits.by_tag_bytes[request->tag]);
    return (struct zr_refusal){
        .cause = ZRT_CAUSE_TAG_LIMIT,
        .need_bytes = bytes,
        .cached_bytes = arena->granule_cache.bytes,
        .reserved_bytes = own ? tag_bytes : total_bytes(arena) + promised_total_bytes(arena),
        .limit_bytes = own ? arena->tag_limits.by_tag_bytes[request->tag] : arena->tag_limits.total_bytes,
    };
}

static void raise_to(size_t *max, size_t bytes)
{
    if (bytes > *max)
        *max = bytes;
}

void zr_tag_limit_note(struct zr_arena *arena, unsigned tag)
{
    raise_to(&arena->high_water.by_tag_bytes[tag], arena->live_by_tag_bytes[tag]);
    raise_to(&arena->high_water.total_bytes, total_bytes(arena));
}

zr_result zr_tag_limit_promise(struct zr_arena *arena, const struct zr_request *request, size_t bytes,
                               size_t *promised_bytes)
{
    zr_result result = ZR_OK;
    *promised_bytes = 0;
    if (!atomic_load_explicit(&arena->bounded, memory_order_relaxed))
        return ZR_OK;
    zr_lock_acquire(&arena->lock);
    if (arena->bounded)
        result = check(arena, request, bytes);
    if (arena->bounded && result == ZR_OK) {
        *promised_bytes = bytes;
        arena->promised_by_tag_bytes[request->tag] += bytes;
    }
    zr_lock_release(&arena->lock);
    return result;
}

zr_result zr_arena_set_tag_limits(zr_arena *arena, const struct zr_tag_limits *tag_limits)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_set_tag_limits: arena is NULL");
    if (tag_limits && !zr_arena_hold_unstriped(arena, 1)) {
        zr_arena_hold_unstriped(arena, -1);
        return zr_fail(
            ZR_ERR_INVALID,
            "arena \"%s\" already has several stripes: set its tag limits before threads allocate, or create it with threads 1",
            arena->name);
    }
    zr_lock_acquire(&arena->lock);
    bool was_bounded = arena->bounded;
    arena->bounded = tag_limits != NULL;
    if (tag_limits) {
        arena->tag_limits = *tag_limits;
        memcpy(arena->high_water.by_tag_bytes, arena->live_by_tag_bytes,
               sizeof arena->high_water.by_tag_bytes);
        arena->high_water.total_bytes = total_bytes(arena);
    }
    zr_arena_note_debug(arena);
    zr_lock_release(&arena->lock);
    if (was_bounded)
        zr_arena_hold_unstriped(arena, -1);
    return ZR_OK;
}

zr_result zr_arena_get_high_water(zr_arena *arena, struct zr_tag_limits *out)
{
    if (!arena || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_get_high_water: arena or out is NULL");
    zr_lock_acquire(&arena->lock);
    bool bounded = arena->bounded;
    *out = arena->high_water;
    zr_lock_release(&arena->lock);
    out->by_tag_bytes[ZR_TAG_OTHER] = SIZE_MAX;
    return bounded
               ? ZR_OK
               : zr_fail(
                     ZR_ERR_INVALID,
                     "arena \"%s\" has no tag limits; high-water marks begin with zr_arena_set_tag_limits()",
                     arena->name);
}
