/* extend.c: physical memory for an arena: where it is mapped, and where it comes from. Stands on space.c,
 * stock.c and backend.c.
 *
 * Granules come, in this order, from the stock, from whole free granules inside holes (stolen: unmapped
 * there, mapped here, nothing copied), from the driver. The driver is asked before anything is stolen, so
 * that a refusal finds the holes as they were. */
#include "alloc/arena_internal.h"

#include <stdio.h>

#include "alloc/error.h"
#include "alloc/option.h"
#include "alloc/poison.h"

/* Large needs are met with runs: about this many handles for one need, so that terabytes take hundreds. */
enum { HANDLES_PER_NEED = 128 };

static size_t stock_bytes(const struct zr_arena *arena)
{
    return arena->stock.bytes;
}

/* ---- From the driver ----------------------------------------------------------------------------------- */

/* The largest power of two of granules that is good for a need of `bytes`. */
static size_t run_bytes(const struct zr_arena *arena, size_t bytes)
{
    size_t granules = bytes / arena->granule_bytes;
    size_t run = granules / HANDLES_PER_NEED;
    if (run < 2)
        return arena->granule_bytes;
    return arena->granule_bytes << (63 - __builtin_clzl(run));
}

static void destroy_handle(struct zr_arena *arena, struct zr_handle *handle)
{
    arena->reserved_bytes -= handle->bytes;
    arena->backend_calls_count++;
    zr_result result = zr_backend_destroy_handle(arena->backend, handle);
    zr_assert(result == ZR_OK);
}

static void destroy_list(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(list)))
        destroy_handle(arena, handle);
}

static zr_result create_handles(struct zr_arena *arena, size_t bytes, struct zr_handle_list *list)
{
    if (arena->limit_bytes && bytes > arena->limit_bytes - arena->reserved_bytes)
        return zr_fail(ZR_ERR_MEMORY, "the arena holds %zu of its limit of %zu bytes", arena->reserved_bytes,
                       arena->limit_bytes);
    size_t run = run_bytes(arena, bytes);
    while (bytes > 0) {
        struct zr_handle *handle;
        while (run > bytes)
            run /= 2;
        arena->backend_calls_count++;
        zr_result result = zr_backend_create(arena->backend, run, &handle);
        if (result != ZR_OK)
            return result;
        arena->reserved_bytes += run;
        zr_handle_list_push(list, handle);
        bytes -= run;
    }
    return ZR_OK;
}

/* ---- From holes ---------------------------------------------------------------------------------------- */

/* The handles that lie whole inside a free mapped span, up to `most` bytes of them and next to each other, as
 * an extent; empty if there are none. Taken from the end that has unmapped addresses beside it already. */
static struct zr_extent stealable(const struct zr_arena *arena, const struct zr_span *span, size_t most)
{
    size_t first = zr_round_up(span->offset_bytes, arena->granule_bytes);
    size_t end = zr_round_down(zr_span_end(span), arena->granule_bytes);
    struct zr_extent none = {0};
    if (first >= end)
        return none;
    const struct zr_mapping *mapping = zr_range_mapping(arena->range, first);
    if (mapping->offset_bytes < first)
        first = mapping->offset_bytes + mapping->handle->bytes;
    mapping = zr_range_mapping(arena->range, end - 1);
    if (mapping->offset_bytes + mapping->handle->bytes > end)
        end = mapping->offset_bytes;
    if (first >= end)
        return none;

    bool from_low = span->previous && span->previous->kind == ZR_SPAN_UNMAPPED &&
                    !(span->next && span->next->kind == ZR_SPAN_UNMAPPED);
    struct zr_extent part = {from_low ? first : end, 0};
    while (part.bytes < most && part.bytes < end - first) {
        size_t at = from_low ? part.offset_bytes + part.bytes : part.offset_bytes - 1;
        mapping = zr_range_mapping(arena->range, at);
        if (mapping->handle->bytes > most - part.bytes)
            break;
        if (!from_low)
            part.offset_bytes -= mapping->handle->bytes;
        part.bytes += mapping->handle->bytes;
    }
    return part;
}

/* Unmaps the part of a hole, its handles going to the list in address order. */
static zr_result steal_part(struct zr_arena *arena, struct zr_span *span, struct zr_extent part,
                            struct zr_handle_list *list)
{
    struct zr_handle_list taken = {0};
    /* Beside its own spans: those that zr_extend() has reserved must still be there after. */
    if (!zr_pool_reserve(&arena->spans, ZR_UNMAP_SPANS + ZR_MAP_SPANS + ZR_CARVE_SPANS))
        return ZR_ERR_HOST_MEMORY;
    for (size_t done = 0; done < part.bytes;) {
        struct zr_handle *handle = zr_range_mapping(arena->range, part.offset_bytes + done)->handle;
        zr_handle_list_push(&taken, handle);
        done += handle->bytes;
    }
    char *address = arena->base + part.offset_bytes;
    if (arena->poison)
        zr_poison_clear(address, part.bytes);
    arena->backend_calls_count++;
    zr_result result = zr_backend_unmap(arena->range, part);
    if (result != ZR_OK) {
        if (arena->poison)
            zr_poison_free(address, part.bytes);
        return result;
    }
    zr_trace_event(arena->trace, unmap, address, part.bytes);
    arena->mapped_bytes -= part.bytes;
    zr_space_unmap(arena, span, part);
    struct zr_handle *handle;
    while ((handle = zr_handle_list_pop(&taken)))
        zr_handle_list_push(list, handle);
    return ZR_OK;
}

/* Takes up to `bytes` from holes, largest first. Returns what it got. */
static size_t steal(struct zr_arena *arena, size_t bytes, struct zr_handle_list *list)
{
    size_t got = 0;
    struct zr_span *span = zr_holes_largest(&arena->mapped);
    while (span && span->bytes >= arena->granule_bytes && got < bytes && arena->whole_bytes > 0) {
        struct zr_span *next = zr_holes_smaller(&arena->mapped, span);
        struct zr_extent part = stealable(arena, span, bytes - got);
        if (part.bytes > 0) {
            if (steal_part(arena, span, part, list) != ZR_OK)
                break;
            got += part.bytes;
        }
        span = next;
    }
    return got;
}

/* Stealing scatters granules; with most of the budget of mappings used up, fresh runs are kinder to it. */
static bool may_steal(const struct zr_arena *arena)
{
    size_t budget = arena->backend->can.vma_budget;
    return budget == 0 || zr_backend_pieces_count(arena->backend) < budget / 4 * 3;
}

/* ---- Gathering ----------------------------------------------------------------------------------------- */

struct gathered {
    struct zr_handle_list created, owned; /* from the driver; from stock and holes */
    size_t bytes;
};

static void put_back(struct zr_arena *arena, struct gathered *gathered)
{
    struct zr_handle *handle;
    destroy_list(arena, &gathered->created);
    while ((handle = zr_handle_list_pop(&gathered->owned)))
        zr_stock_put(&arena->stock, handle);
}

static zr_result add_created(struct zr_arena *arena, size_t bytes, struct gathered *out)
{
    zr_result result = create_handles(arena, bytes, &out->created);
    if (result == ZR_OK)
        out->bytes += bytes;
    return result;
}

/* Handles of `bytes` in all, or somewhat more (up to `room`) where only a larger run is left. */
static zr_result gather(struct zr_arena *arena, size_t bytes, size_t room, struct gathered *out)
{
    struct zr_handle *handle;
    zr_result result = ZR_OK;
    *out = (struct gathered){0};
    while (out->bytes < bytes && (handle = zr_stock_take(&arena->stock, bytes - out->bytes))) {
        zr_handle_list_push(&out->owned, handle);
        out->bytes += handle->bytes;
    }
    size_t missing = bytes - out->bytes, in_holes = arena->whole_bytes;
    size_t free_of_limit =
        arena->limit_bytes ? arena->limit_bytes - arena->reserved_bytes : arena->range->bytes;
    if (!may_steal(arena) && free_of_limit >= missing)
        in_holes = 0;
    if (missing > in_holes)
        result = add_created(arena, missing - in_holes, out);
    if (result == ZR_OK && out->bytes < bytes)
        out->bytes += steal(arena, bytes - out->bytes, &out->owned);
    /* Runs that stick out of their holes cannot be stolen: the arithmetic promised more than there was. */
    if (result == ZR_OK && out->bytes < bytes)
        result = add_created(arena, bytes - out->bytes, out);
    if (result == ZR_ERR_MEMORY && out->bytes < bytes) {
        handle = zr_stock_take_larger(&arena->stock, bytes - out->bytes);
        if (handle && handle->bytes <= room - out->bytes) {
            zr_handle_list_push(&out->owned, handle);
            out->bytes += handle->bytes;
            result = ZR_OK;
        } else if (handle) {
            zr_stock_put(&arena->stock, handle);
        }
    }
    if (result != ZR_OK)
        put_back(arena, out);
    return result;
}

zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out)
{
    struct gathered gathered = {0};
    zr_result result = ZR_OK;
    *out = (struct zr_handle_list){0};
    zr_lock_take(&arena->lock);
    for (size_t done = 0; done < bytes && result == ZR_OK; done += arena->granule_bytes) {
        result = gather(arena, arena->granule_bytes, arena->granule_bytes, &gathered);
        struct zr_handle *handle = zr_handle_list_pop(&gathered.owned);
        if (result == ZR_OK)
            zr_handle_list_push(out, handle ? handle : zr_handle_list_pop(&gathered.created));
    }
    if (arena->reserved_bytes > arena->peak_reserved_bytes)
        arena->peak_reserved_bytes = arena->reserved_bytes;
    zr_lock_give(&arena->lock);
    if (result != ZR_OK)
        zr_granules_give(arena, out);
    return result;
}

void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list)
{
    struct zr_handle *handle;
    zr_lock_take(&arena->lock);
    while ((handle = zr_handle_list_pop(list)))
        zr_stock_put(&arena->stock, handle);
    zr_lock_give(&arena->lock);
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

static bool unmap_again(struct zr_arena *arena, struct zr_extent extent)
{
    if (extent.bytes == 0)
        return true;
    arena->backend_calls_count++;
    return zr_backend_unmap(arena->range, extent) == ZR_OK;
}

/* Memory that a driver mapped, gave no access to and will not unmap becomes a span that is never used, until
 * the arena ends and asks again. Its handles leave the lists. */
static void strand(struct zr_arena *arena, struct zr_span *place, size_t bytes, struct gathered *gathered)
{
    struct zr_handle_list *lists[2] = {&gathered->owned, &gathered->created};
    struct zr_extent part = {place->offset_bytes, bytes};
    for (unsigned i = 0; i < 2; i++) {
        struct zr_handle_list all = *lists[i];
        struct zr_handle *handle;
        *lists[i] = (struct zr_handle_list){0};
        while ((handle = zr_handle_list_pop(&all)))
            if (handle->mappings_count == 0)
                zr_handle_list_push(lists[i], handle);
    }
    arena->mapped_bytes += bytes;
    struct zr_span *stranded = zr_space_carve(arena, zr_space_map(arena, place, bytes), part);
    stranded->kind = ZR_SPAN_LEAVING;
}

/* Maps all that was gathered from the offset on, and gives it access. On failure nothing stays mapped but for
 * *stuck_bytes from the offset on, which the driver would not unmap again. */
static zr_result map_gathered(struct zr_arena *arena, size_t offset_bytes, struct gathered *gathered,
                              size_t *stuck_bytes)
{
    struct zr_extent done = {offset_bytes, 0};
    zr_result result = ZR_OK;
    struct zr_handle_list *lists[2] = {&gathered->owned, &gathered->created};
    for (unsigned i = 0; i < 2; i++)
        for (struct zr_handle *handle = lists[i]->first; handle && result == ZR_OK; handle = handle->next) {
            arena->backend_calls_count++;
            result = zr_backend_map(arena->range, offset_bytes + done.bytes, handle);
            if (result == ZR_OK)
                done.bytes += handle->bytes;
        }
    if (result == ZR_OK) {
        arena->backend_calls_count++;
        result = zr_backend_set_access(arena->range, done);
    }
    *stuck_bytes = result != ZR_OK && !unmap_again(arena, done) ? done.bytes : 0;
    return result;
}

/* ---- Extending ----------------------------------------------------------------------------------------- */

static struct zr_span *mapped_or_null(struct zr_span *span)
{
    return span && span->kind == ZR_SPAN_MAPPED ? span : NULL;
}

/* The unmapped span at which to extend: the tightest stretch of free addresses, else the open end. */
static struct zr_span *choose_place(struct zr_arena *arena, struct zr_need need)
{
    size_t slack = need.alignment > ZR_UNIT_BYTES ? need.alignment - ZR_UNIT_BYTES : 0;
    struct zr_span *span = zr_holes_best(&arena->unmapped, need.bytes + slack);
    if (span || !arena->tail)
        return span;
    size_t bytes = arena->tail->bytes;
    if (mapped_or_null(arena->tail->previous))
        bytes += arena->tail->previous->bytes;
    return bytes >= need.bytes + slack ? arena->tail : NULL;
}

static zr_result extend_at(struct zr_arena *arena, struct zr_need need, struct zr_span *place,
                           struct zr_span **out)
{
    struct gathered gathered;
    size_t stuck_bytes = 0;
    struct zr_span *left = mapped_or_null(place->previous), *right = mapped_or_null(place->next);
    size_t start = zr_round_up(left ? left->offset_bytes : place->offset_bytes, need.alignment);
    size_t end = start + need.bytes;
    size_t offset = place->offset_bytes;
    size_t place_end = zr_span_end(place);
    if (end <= offset) {
        /* An aligned block fits in the mapped span after all: the search by size had to allow for the worst.
         */
        *out = left;
        return ZR_OK;
    }
    size_t bytes = zr_round_up(end < place_end ? end - offset : place->bytes, arena->granule_bytes);

    /* What the block will lie on must not be stolen from under it. */
    zr_space_hide(arena, left);
    zr_space_hide(arena, right);
    zr_result result = gather(arena, bytes, place->bytes, &gathered);
    bool gathered_all = result == ZR_OK;
    if (gathered_all)
        result = map_gathered(arena, offset, &gathered, &stuck_bytes);
    zr_space_show(arena, left);
    zr_space_show(arena, right);
    if (stuck_bytes > 0)
        strand(arena, place, stuck_bytes, &gathered);
    if (gathered_all && result != ZR_OK)
        put_back(arena, &gathered);
    if (result != ZR_OK)
        return result;
    arena->mapped_bytes += gathered.bytes;
    if (arena->reserved_bytes > arena->peak_reserved_bytes)
        arena->peak_reserved_bytes = arena->reserved_bytes;
    if (arena->poison)
        zr_poison_free(arena->base + offset, gathered.bytes);
    zr_trace_event(arena->trace, map, arena->base + offset, gathered.bytes);
    *out = zr_space_map(arena, place, gathered.bytes);
    return ZR_OK;
}

zr_result zr_extend(struct zr_arena *arena, struct zr_need need, struct zr_span **out)
{
    *out = NULL;
    /* The spans for zr_space_map() here and for the carving that follows. */
    if (!zr_pool_reserve(&arena->spans, ZR_MAP_SPANS + ZR_CARVE_SPANS + ZR_UNMAP_SPANS))
        return ZR_ERR_HOST_MEMORY;
    struct zr_span *place = choose_place(arena, need);
    if (!place)
        return zr_fail(ZR_ERR_ADDRESSES, "no %zu free addresses in a row are left of the %zu reserved",
                       need.bytes, arena->range->bytes);
    return extend_at(arena, need, place, out);
}

/* ---- Giving back --------------------------------------------------------------------------------------- */

size_t zr_trim(struct zr_arena *arena, size_t keep_bytes)
{
    size_t released = 0;
    struct zr_handle_list list = {0};
    for (;;) {
        struct zr_handle *handle = NULL;
        if (stock_bytes(arena) + arena->whole_bytes > keep_bytes) {
            handle = zr_stock_take(&arena->stock, stock_bytes(arena));
            if (!handle)
                break;
            released += handle->bytes;
            destroy_handle(arena, handle);
            continue;
        }
        return released;
    }
    /* The stock is empty: whole free granules are next. */
    size_t surplus = arena->whole_bytes > keep_bytes ? arena->whole_bytes - keep_bytes : 0;
    surplus = zr_round_up(surplus, arena->granule_bytes);
    released += steal(arena, surplus, &list);
    destroy_list(arena, &list);
    return released;
}

/* Unmaps one mapping at a time what could not be unmapped at once; false if something stays. */
static bool unmap_singly(struct zr_arena *arena, struct zr_extent stretch)
{
    bool all = true;
    for (size_t done = 0; done < stretch.bytes;) {
        size_t at = stretch.offset_bytes + done;
        struct zr_extent one = {at, zr_range_mapping(arena->range, at)->handle->bytes};
        done += one.bytes;
        all &= unmap_again(arena, one);
    }
    return all;
}

/* Destroys the handles under a stretch of mapped spans, then unmaps them: they live for their mappings. False
 * if the driver would not unmap all of it. */
static bool release_stretch(struct zr_arena *arena, struct zr_extent stretch)
{
    for (size_t done = 0; done < stretch.bytes;) {
        struct zr_handle *handle = zr_range_mapping(arena->range, stretch.offset_bytes + done)->handle;
        done += handle->bytes;
        destroy_handle(arena, handle);
    }
    if (arena->poison)
        zr_poison_clear(arena->base + stretch.offset_bytes, stretch.bytes);
    arena->mapped_bytes -= stretch.bytes;
    return unmap_again(arena, stretch) || unmap_singly(arena, stretch);
}

zr_result zr_release_all(struct zr_arena *arena)
{
    struct zr_extent stretch = {0};
    bool all = true;
    struct zr_handle *handle;
    for (const struct zr_span *span = arena->first; span; span = span->next) {
        if (span->kind != ZR_SPAN_UNMAPPED) {
            if (stretch.bytes == 0)
                stretch.offset_bytes = span->offset_bytes;
            stretch.bytes += span->bytes;
        }
        if ((span->kind == ZR_SPAN_UNMAPPED || !span->next) && stretch.bytes > 0) {
            all &= release_stretch(arena, stretch);
            stretch.bytes = 0;
        }
    }
    while ((handle = zr_stock_take(&arena->stock, stock_bytes(arena))))
        destroy_handle(arena, handle);
    zr_assert(arena->mapped_bytes == 0 && arena->reserved_bytes == 0);
    if (all)
        return ZR_OK;
    char reason[256];
    snprintf(reason, sizeof reason, "%s", zr_last_error());
    size_t bytes = zr_backend_abandon(arena->range);
    arena->range = NULL;
    return zr_fail(ZR_ERR_UNAVAILABLE, "%zu bytes of arena \"%s\" stay mapped: %s", bytes, arena->name,
                   reason);
}
