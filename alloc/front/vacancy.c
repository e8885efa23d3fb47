/* vacancy.c: removes and restores the memory under live blocks; see share.h. Uses backend.c. */
#include "alloc/front/share.h"

#include "alloc/core/arena.h"
#include "alloc/core/supply.h"

/* The tag's index in the order; order_count: the tag is not in it. */
static unsigned place_of(const zr_tag *order, unsigned order_count, unsigned tag)
{
    unsigned place = 0;
    while (place < order_count && (unsigned)order[place] != tag)
        place++;
    return place;
}

/* The lowest index in the order among the blocks over the part; order_count: some block must keep its memory.
 * *extent is at or before the part, and is moved forward. */
static unsigned first_place(struct zr_bounds part, const zr_tag *order, unsigned order_count,
                            const struct zr_extent **extent)
{
    unsigned first = order_count;
    while (zr_extent_end(*extent) <= part.offset_bytes)
        *extent = (*extent)->next;
    for (const struct zr_extent *at = *extent; at && at->offset_bytes < part.offset_bytes + part.bytes;
         at = at->next) {
        if (at->kind == ZR_EXTENT_FREE || at->kind == ZR_EXTENT_CACHED)
            continue;
        unsigned place = at->kind == ZR_EXTENT_BLOCK ? place_of(order, order_count, at->tag) : order_count;
        if (place == order_count)
            return order_count;
        first = place < first ? place : first;
    }
    return first;
}

static bool can_vacate(const struct zr_mapping *mapping)
{
    return mapping->access && zr_is_movable(mapping) && !mapping->handle->vacant &&
           mapping->handle->mappings_count == 1;
}

bool zr_vacancy_find(zr_arena *arena, const zr_tag *order, unsigned order_count, unsigned which,
                     const char *from, struct zr_vacancy *out)
{
    bool found = false;
    zr_arena_acquire(arena);
    const struct zr_extent *extent = arena->first;
    size_t at = from ? (size_t)(from - arena->base) >> arena->granule_shift : 0;
    size_t end = arena->range_bytes >> arena->granule_shift;
    if (arena->map_callbacks_count > 0 || atomic_load(&arena->stripes_count) > 0)
        at = end;
    while (!found && (at = zr_granules_next(arena->granules, at, end, true)) < end) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at << arena->granule_shift);
        struct zr_bounds part = {mapping->offset_bytes, mapping->handle->bytes};
        found = can_vacate(mapping) && first_place(part, order, order_count, &extent) == which;
        *out = (struct zr_vacancy){arena->base + part.offset_bytes, part.bytes};
        at = (part.offset_bytes + part.bytes) >> arena->granule_shift;
    }
    zr_arena_release(arena);
    return found;
}

static struct zr_bounds bounds_of(const zr_arena *arena, const struct zr_vacancy *part)
{
    return (struct zr_bounds){(size_t)(part->memory - arena->base), part->bytes};
}

zr_result zr_vacate(zr_arena *arena, const struct zr_vacancy *part)
{
    zr_lock_acquire(&arena->supply);
    zr_result result = zr_backend_vacate(arena->range, bounds_of(arena, part));
    zr_lock_release(&arena->supply);
    return result;
}

zr_result zr_occupy(zr_arena *arena, const struct zr_vacancy *part)
{
    return zr_backend_occupy(arena->range, bounds_of(arena, part));
}
