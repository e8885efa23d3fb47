/* follow_strays.c: granules kept mapped for what comes beside a plan. Stands on extend.c. */
#include "alloc/error.h"
#include "alloc/follow_internal.h"
#include "alloc/option.h"

enum {
    SETTLED_MOST = 4,
    MARGIN_DIVISOR = 16, /* of the plan's memory, and so many granules: kept beyond what was taken, at most */
    MARGIN_GRANULES = 16,
    TRIMMED_GRANULES = 16, /* given back in one hold of the lock */
};

void zr_follow_swing(struct zr_follow *follow, struct zr_span *block, bool freed)
{
    struct zr_slack *slack = &follow->slack;
    if (!freed) {
        block->serial = slack->number;
        slack->now_bytes += block->bytes;
    } else if (block->serial == slack->number) { /* others are from before the plan */
        slack->now_bytes -= block->bytes < slack->now_bytes ? block->bytes : slack->now_bytes;
    }
    if (slack->now_bytes > slack->most_bytes)
        slack->most_bytes = slack->now_bytes;
}

/* Maps the first bytes of a gap. No matter if there is no memory. */
static void map_ahead(struct zr_arena *arena, struct zr_span *gap, size_t bytes)
{
    if (!zr_pool_reserve(&arena->spans, 2 * ZR_CARVE_SPANS))
        return;
    struct zr_span *block = zr_space_carve(arena, gap, (struct zr_extent){gap->offset_bytes, bytes});
    struct zr_extent stuck, part = {block->offset_bytes, bytes};
    if (zr_map(arena, part, &stuck) != ZR_OK && stuck.bytes > 0)
        block->kind = ZR_SPAN_LEAVING; /* the driver has it, and the arena's end asks again */
    else
        zr_space_free(arena, block);
}

/* In one row, so that it fits whatever comes; at the open end of a zone that has the addresses. */
static void map_slack(struct zr_arena *arena, size_t bytes)
{
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        struct zr_span *tail = arena->zones[i].tail;
        /* To the end of a granule: what the driver keeps without access must be the block's whole. */
        size_t end = tail ? zr_round_up(tail->offset_bytes + bytes, arena->granule_bytes) : 0;
        if (tail && end < zr_span_end(tail)) {
            map_ahead(arena, tail, end - tail->offset_bytes);
            return;
        }
    }
}

/* Gets all the memory before any of it is mapped, so that none is stolen from what is mapped already. */
static bool fill_stock(struct zr_arena *arena, size_t bytes)
{
    struct zr_handle_list list = {0};
    struct zr_handle *handle;
    zr_result result = zr_granules_gather(arena, bytes, &list);
    while ((handle = zr_handle_list_pop(&list)))
        zr_stock_put(&arena->stock, handle);
    return result == ZR_OK;
}

/* Steps that have not come yet will take no memory from what is kept for strays. No matter if there is none.
 */
static void map_rest_of_plan(struct zr_arena *arena, struct zr_follow_plan *plan)
{
    for (size_t i = 0; i < plan->slots_count; i++)
        if (plan->slots[i].placed && plan->steps[i].seen_epoch != plan->epoch &&
            !zr_follow_map_slot(arena, &plan->slots[i]))
            return;
}

static size_t margin_most(const struct zr_arena *arena, const struct zr_follow *follow)
{
    return follow->counts.memory_bytes / MARGIN_DIVISOR + MARGIN_GRANULES * arena->granule_bytes;
}

/* What is kept mapped and free for what comes beside the plan: what that took at most and a part of it again,
 * or what the plan's maker expects, if there has been anything of the kind. */
static size_t wanted_for_strays(const struct zr_arena *arena, const struct zr_follow *follow)
{
    const struct zr_slack *slack = &follow->slack;
    size_t margin_bytes = slack->most_bytes / 2 * (1 + follow->settled_count);
    size_t margin_cap = margin_most(arena, follow);
    size_t bytes = slack->most_bytes + (margin_bytes < margin_cap ? margin_bytes : margin_cap);
    if ((slack->most_bytes > 0 || slack->any) && bytes < slack->expected_bytes)
        bytes = slack->expected_bytes;
    return zr_round_up(bytes - slack->now_bytes, arena->granule_bytes);
}

static size_t largest_step(const struct zr_follow_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->slots_count; i++)
        if (plan->slots[i].span.bytes > bytes)
            bytes = plan->slots[i].span.bytes;
    return bytes;
}

/* No more than one stray of the largest step's size, or than strays held when the plan was made, or than
 * there was already. What was foreseen, or taken while the plan was lost, may be as much as the plan, and
 * would stay reserved on top of it. */
static size_t within_bounds(const struct zr_arena *arena, const struct zr_follow *follow, size_t wanted_bytes)
{
    size_t margin_bytes = margin_most(arena, follow), stray_bytes = largest_step(follow->plan);
    if (stray_bytes < follow->slack.seen_bytes)
        stray_bytes = follow->slack.seen_bytes;
    size_t least_bytes = margin_bytes + (stray_bytes > margin_bytes ? stray_bytes : margin_bytes);
    size_t now_bytes = follow->slack.now_bytes;
    size_t bound_bytes = least_bytes > now_bytes ? least_bytes - now_bytes : 0;
    if (wanted_bytes <= bound_bytes)
        return wanted_bytes;
    /* The peak is the family's, and so is what is in use. */
    size_t idle_bytes = arena->stock.bytes + zr_space_idle_bytes(arena);
    size_t used_bytes = atomic_load(&arena->head->family_reserved_bytes) - idle_bytes;
    size_t peak_bytes = arena->head->peak_reserved_bytes;
    if (peak_bytes > used_bytes && peak_bytes - used_bytes > bound_bytes)
        bound_bytes = peak_bytes - used_bytes;
    bound_bytes = zr_round_up(bound_bytes, arena->granule_bytes);
    return wanted_bytes < bound_bytes ? wanted_bytes : bound_bytes;
}

void zr_follow_forget_room(struct zr_arena *arena)
{
    arena->follow->slack.kept_bytes = arena->follow->slack.refused_bytes = 0;
}

/* Gives back what is idle beyond so much, the lock open now and then: nobody waits for all of it. False: the
 * plan is another meanwhile. */
static bool trim_to(struct zr_arena *arena, const struct zr_follow *follow, size_t keep_bytes)
{
    const struct zr_follow_plan *plan = follow->plan;
    uint32_t number = follow->slack.number;
    size_t piece_bytes = TRIMMED_GRANULES * arena->granule_bytes;
    for (;;) {
        size_t idle_bytes = arena->stock.bytes + zr_space_idle_bytes(arena);
        bool last = idle_bytes <= keep_bytes + piece_bytes;
        if (zr_trim(arena, last ? keep_bytes : idle_bytes - piece_bytes) == 0 || last)
            return true;
        zr_lock_give(&arena->lock);
        zr_lock_take(&arena->lock);
        if (follow->plan != plan || follow->slack.number != number)
            return false;
    }
}

static void settle(struct zr_arena *arena, struct zr_follow *follow)
{
    struct zr_slack *slack = &follow->slack;
    size_t wanted_bytes = wanted_for_strays(arena, follow);
    zr_arena_settle(arena); /* what waits to be asked for again is no longer of use there */
    if (arena->asynchronous && !follow->settled)
        zr_streams_wait(arena); /* once for a plan: what streams still use cannot be trimmed */
    if (wanted_bytes > 0)
        map_rest_of_plan(arena, follow->plan);
    wanted_bytes = within_bounds(arena, follow, wanted_bytes);
    if (!follow->settled) {
        zr_follow_forget_room(arena);
        if (!trim_to(arena, follow, wanted_bytes))
            return;
    }
    follow->settled_count += follow->settled && follow->settled_count < SETTLED_MOST;
    follow->settled = true;
    if (wanted_bytes <= slack->kept_bytes ||
        (slack->refused_bytes > 0 && wanted_bytes >= slack->refused_bytes))
        return;
    if (!fill_stock(arena, wanted_bytes)) {
        slack->refused_bytes = wanted_bytes;
        return;
    }
    zr_limit_note_peak(arena);
    zr_follow_allow(arena, arena->reserved_bytes);
    map_slack(arena, wanted_bytes);
    slack->kept_bytes = wanted_bytes;
}

void zr_follow_settle(struct zr_arena *arena)
{
    if (!arena->follow || !arena->follow->plan)
        return;
    settle(arena, arena->follow);
    zr_follow_begin_pass(arena);
}
