/* space.c: the addresses of an arena: zones, free extents by size, best fit, carving and merging. Uses
 * bins.c.
 *
 * Addresses are plentiful, so sizes that would fragment each other's space have zones of their own. A run of
 * blocks strands the partial granules at its ends. Blocks of whole granules have no partial granules among
 * themselves, and small blocks between large ones would add some. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/supply.h"
#include "alloc/core/space.h"

#include "alloc/base/error.h"

enum {
    ZONED_GRANULES = 1024, /* a range with fewer granules is not divided into zones */
    SMALL_DIVISOR = 16     /* a block is small if it is less than a granule divided by this */
};

/* ---- The list ------------------------------------------------------------------------------------------ */

static void insert_after(struct zr_arena *arena, struct zr_extent *place, struct zr_extent *extent)
{
    extent->previous = place;
    extent->next = place ? place->next : arena->first;
    if (place)
        place->next = extent;
    else
        arena->first = extent;
    if (extent->next)
        extent->next->previous = extent;
}

static void unlink_extent(struct zr_arena *arena, struct zr_extent *extent)
{
    if (extent->previous)
        extent->previous->next = extent->next;
    else
        arena->first = extent->next;
    if (extent->next)
        extent->next->previous = extent->previous;
}

static struct zr_extent *new_extent(struct zr_arena *arena, enum zr_extent_kind kind, struct zr_bounds place)
{
    struct zr_extent *extent = zr_slab_take(&arena->extents);
    extent->offset_bytes = place.offset_bytes;
    extent->bytes = place.bytes;
    extent->bin = 0;
    extent->marks = (union zr_extent_marks){.kind = (uint8_t)kind};
    return extent;
}

/* ---- Free extents -------------------------------------------------------------------------------------- */

/* The open end of a zone serves blocks that fit no free extent. It is in no bin, because it is always chosen
 * last. */
static inline bool is_tail(const struct zr_arena *arena, const struct zr_extent *gap)
{
    return arena->zones[gap->zone].tail == gap;
}

static inline struct zr_bins *bins_of(struct zr_arena *arena, const struct zr_extent *gap)
{
    return __builtin_expect(gap->owner == 0, 1) ? &arena->zones[gap->zone].gaps
                                                : &arena->streams[gap->owner]->gaps[gap->zone];
}

static inline void count_pending(struct zr_arena *arena, const struct zr_extent *gap, ptrdiff_t change)
{
    if (__builtin_expect(gap->owner != 0, 0))
        arena->streams[gap->owner]->pending_bytes += (size_t)change;
}

static inline void file_free(struct zr_arena *arena, struct zr_extent *gap)
{
    struct zr_zone *zone = &arena->zones[gap->zone];
    if (zr_extent_end(gap) == zone->end_bytes && gap->owner == 0) {
        zone->tail = gap;
        gap->bin = 0;
    } else {
        zr_bins_add(bins_of(arena, gap), gap);
        count_pending(arena, gap, (ptrdiff_t)gap->bytes);
    }
}

static inline void unfile_free(struct zr_arena *arena, struct zr_extent *gap)
{
    struct zr_zone *zone = &arena->zones[gap->zone];
    if (zone->tail == gap) {
        zone->tail = NULL;
    } else {
        zr_bins_remove(bins_of(arena, gap), gap);
        count_pending(arena, gap, -(ptrdiff_t)gap->bytes);
    }
}

/* Changes the place and size of a free extent that is in a bin or an open end. An open end may become an
 * ordinary extent, but not the reverse. */
static inline void move_free(struct zr_arena *arena, struct zr_extent *gap, struct zr_bounds place)
{
    struct zr_zone *zone = &arena->zones[gap->zone];
    if (zone->tail == gap) {
        gap->offset_bytes = place.offset_bytes;
        gap->bytes = place.bytes;
        if (__builtin_expect(place.offset_bytes + place.bytes != zone->end_bytes, 0)) {
            zone->tail = NULL;
            file_free(arena, gap);
        }
    } else {
        count_pending(arena, gap, (ptrdiff_t)place.bytes - (ptrdiff_t)gap->bytes);
        zr_bins_move(bins_of(arena, gap), gap, place.offset_bytes, place.bytes);
    }
}

/* ---- Zones --------------------------------------------------------------------------------------------- */

void zr_space_init(struct zr_arena *arena)
{
    size_t bytes = arena->range->bytes, granule = arena->granule_bytes;
    size_t small_bytes = 0, whole_bytes = 0;
    if (bytes / granule >= ZONED_GRANULES) {
        small_bytes = zr_round_down(bytes / 8, granule);
        whole_bytes = zr_round_down(bytes / 8 * 3, granule);
    }
    size_t sizes[ZR_ZONE_COUNT] = {[ZR_ZONE_GENERAL] = bytes - small_bytes - whole_bytes,
                                   [ZR_ZONE_WHOLE] = whole_bytes,
                                   [ZR_ZONE_SMALL] = small_bytes};
    struct zr_extent *last = NULL;
    size_t at = 0;
    for (unsigned i = 0; i < ZR_ZONE_COUNT; i++) {
        arena->zones[i].first_bytes = at;
        arena->zones[i].end_bytes = at + sizes[i];
        arena->zones[i].mapped_end = at / granule;
        if (sizes[i] == 0)
            continue;
        struct zr_extent *gap = new_extent(arena, ZR_EXTENT_FREE, (struct zr_bounds){at, sizes[i]});
        gap->zone = (uint8_t)i;
        gap->owner = 0;
        insert_after(arena, last, gap);
        file_free(arena, gap);
        last = gap;
        at += sizes[i];
    }
}

/* ---- Best fit ------------------------------------------------------------------------------------------ */

static inline unsigned zone_of(const struct zr_arena *arena, struct zr_need need)
{
    if (need.bytes < arena->granule_bytes / SMALL_DIVISOR)
        return ZR_ZONE_SMALL;
    return (need.bytes & (arena->granule_bytes - 1)) == 0 ? ZR_ZONE_WHOLE : ZR_ZONE_GENERAL;
}

static inline size_t missing_under(const struct zr_arena *arena, size_t offset_bytes, size_t bytes)
{
    size_t first = offset_bytes >> arena->granule_shift;
    size_t end = ((offset_bytes + bytes - 1) >> arena->granule_shift) + 1;
    if (__builtin_expect(zr_granules_all_mapped(arena->granules, first, end), 1))
        return 0;
    return end - first - zr_granules_mapped(arena->granules, first, end);
}

/* The place at the low or high end of the free extent, whichever needs fewer granules. */
static inline struct zr_place place_in(const struct zr_arena *arena, struct zr_extent *gap,
                                       struct zr_need need)
{
    size_t low = gap->offset_bytes;
    if (__builtin_expect(need.alignment > ZR_UNIT_BYTES, 0))
        low = zr_round_up(low, need.alignment);
    struct zr_place place = {.gap = gap, .offset_bytes = low};
    if (low - gap->offset_bytes + need.bytes > gap->bytes)
        return (struct zr_place){0};
    place.missing = missing_under(arena, low, need.bytes);
    if (place.missing == 0 || is_tail(arena, gap))
        return place;
    size_t high = zr_round_down(zr_extent_end(gap) - need.bytes, need.alignment);
    size_t missing = missing_under(arena, high, need.bytes);
    if (missing < place.missing) {
        place.offset_bytes = high;
        place.missing = missing;
    }
    return place;
}

/* The place in `gap`, the best fit among the free extents of one owner, or in the next larger one; NULL:
 * nothing fits. */
static struct zr_place find_near(const struct zr_arena *arena, const struct zr_bins *gaps,
                                 struct zr_extent *gap, struct zr_need need)
{
    struct zr_place place = {0};
    if (gap)
        place = place_in(arena, gap, need);
    if (!place.gap && gap && need.alignment > ZR_UNIT_BYTES) {
        gap = zr_bins_best(gaps, need.bytes + need.alignment - ZR_UNIT_BYTES);
        if (gap)
            place = place_in(arena, gap, need);
    }
    if (place.missing > 0) {
        /* The next larger free extent may need fewer granules. Still larger ones would no longer be a best
         * fit. */
        struct zr_extent *larger = zr_bins_larger(gaps, gap);
        struct zr_place other = larger ? place_in(arena, larger, need) : place;
        if (other.gap && other.missing < place.missing)
            place = other;
    }
    return place;
}

static struct zr_place find_in(const struct zr_arena *arena, unsigned number, struct zr_extent *gap,
                               struct zr_need need, unsigned owner)
{
    const struct zr_zone *zone = &arena->zones[number];
    struct zr_place place = find_near(arena, &zone->gaps, gap, need);
    if (owner != 0) {
        const struct zr_bins *gaps = &arena->streams[owner]->gaps[number];
        struct zr_place own = find_near(arena, gaps, zr_bins_best(gaps, need.bytes), need);
        if (own.gap && (!place.gap || own.missing < place.missing ||
                        (own.missing == place.missing && own.gap->bytes <= place.gap->bytes)))
            place = own;
    }
    if (!place.gap && zone->tail)
        place = place_in(arena, zone->tail, need);
    return place;
}

/* Continues a search whose best fit in the need's zone, among extents without an owner, is `gap` (NULL:
 * none). */
static __attribute__((noinline)) struct zr_place
find_from(const struct zr_arena *arena, struct zr_extent *gap, struct zr_need need, unsigned owner)
{
    unsigned first = zone_of(arena, need);
    struct zr_place place = find_in(arena, first, gap, need, owner);
    /* The zone is full: try any other. */
    for (unsigned i = 0; !place.gap && i < ZR_ZONE_COUNT; i++)
        if (i != first)
            place = find_in(arena, i, zr_bins_best(&arena->zones[i].gaps, need.bytes), need, owner);
    return place;
}

struct zr_place zr_space_find(const struct zr_arena *arena, struct zr_need need, unsigned owner)
{
    const struct zr_zone *zone = &arena->zones[zone_of(arena, need)];
    return find_from(arena, zr_bins_best(&zone->gaps, need.bytes), need, owner);
}

/* ---- Changes ------------------------------------------------------------------------------------------- */

struct zr_extent *zr_space_carve(struct zr_arena *arena, struct zr_extent *gap, struct zr_bounds part)
{
    struct zr_bounds before = {gap->offset_bytes, part.offset_bytes - gap->offset_bytes};
    struct zr_bounds after = {part.offset_bytes + part.bytes, gap->bytes - before.bytes - part.bytes};
    struct zr_extent *block = new_extent(arena, ZR_EXTENT_BLOCK, part), *rest = NULL;
    block->zone = gap->zone;
    block->owner = gap->owner;
    block->serial = gap->serial;

    zr_assert(before.bytes < gap->bytes && before.bytes + part.bytes <= gap->bytes);
    if (before.bytes == 0 && after.bytes == 0) {
        insert_after(arena, gap, block);
        unfile_free(arena, gap);
        unlink_extent(arena, gap);
        zr_slab_give(&arena->extents, gap);
    } else if (before.bytes == 0) {
        insert_after(arena, gap->previous, block);
        move_free(arena, gap, after);
    } else {
        insert_after(arena, gap, block);
        if (after.bytes > 0) {
            rest = new_extent(arena, ZR_EXTENT_FREE, after);
            rest->zone = gap->zone;
            rest->owner = gap->owner;
            rest->serial = gap->serial;
            insert_after(arena, block, rest);
        }
        move_free(arena, gap, before);
        if (rest)
            file_free(arena, rest);
    }
    return block;
}

struct zr_extent *zr_space_take(struct zr_arena *arena, struct zr_need need, unsigned owner,
                                size_t excess_bytes, struct zr_place *place)
{
    const struct zr_zone *zone = &arena->zones[zone_of(arena, need)];
    struct zr_extent *best = zr_bins_best(&zone->gaps, need.bytes), *gap = best ? best : zone->tail;
    if (__builtin_expect(owner == 0 && need.alignment == ZR_UNIT_BYTES && gap && gap->bytes >= need.bytes &&
                             gap->bytes - need.bytes <= excess_bytes &&
                             missing_under(arena, gap->offset_bytes, need.bytes) == 0,
                         1))
        return zr_space_carve(arena, gap, (struct zr_bounds){gap->offset_bytes, need.bytes});
    *place = find_from(arena, best, need, owner);
    return NULL;
}

struct zr_extent *zr_space_take_at(struct zr_arena *arena, struct zr_extent *from, struct zr_bounds place,
                                   unsigned owner)
{
    size_t at = place.offset_bytes, end = at + place.bytes;
    struct zr_extent *block = NULL;
    while (from && zr_extent_end(from) <= at)
        from = from->next;
    for (const struct zr_extent *gap = from; gap && gap->offset_bytes < end; gap = gap->next)
        if (gap->kind != ZR_EXTENT_FREE || gap->zone != from->zone || (gap->owner && gap->owner != owner))
            return NULL;
    if (!from || missing_under(arena, at, place.bytes) > 0)
        return NULL;
    while (at < end) { /* joins parts of free extents whose owners differ */
        struct zr_extent *next = from->next;
        size_t part_end = zr_extent_end(from) < end ? zr_extent_end(from) : end;
        struct zr_extent *part = zr_space_carve(arena, from, (struct zr_bounds){at, part_end - at});
        if (block) {
            block->bytes += part->bytes;
            unlink_extent(arena, part);
            zr_slab_give(&arena->extents, part);
        } else {
            block = part;
        }
        at = part_end;
        from = next;
    }
    return block;
}

/* The later one of two numbers of a stream's frees. */
static inline uint32_t later(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) > 0 ? a : b;
}

void zr_space_free(struct zr_arena *arena, struct zr_extent *block)
{
    struct zr_extent *left = zr_free_extent_beside(block, block->previous),
                     *right = zr_free_extent_beside(block, block->next);
    struct zr_bounds place = {block->offset_bytes, block->bytes};
    uint32_t serial = block->serial;
    if (left && right) {
        /* Keep the record on the right: it may be the open end. */
        place.offset_bytes = left->offset_bytes;
        place.bytes += left->bytes + right->bytes;
        serial = later(serial, left->serial);
        unlink_extent(arena, block);
        unfile_free(arena, left);
        unlink_extent(arena, left);
        zr_slab_give(&arena->extents, left);
        right->serial = later(serial, right->serial);
        move_free(arena, right, place);
    } else if (right) {
        place.bytes += right->bytes;
        unlink_extent(arena, block);
        right->serial = later(serial, right->serial);
        move_free(arena, right, place);
    } else if (left) {
        place.offset_bytes = left->offset_bytes;
        place.bytes += left->bytes;
        unlink_extent(arena, block);
        left->serial = later(serial, left->serial);
        if (zr_extent_end(block) == arena->zones[block->zone].end_bytes) {
            unfile_free(arena, left);
            left->bytes = place.bytes;
            file_free(arena, left);
        } else {
            move_free(arena, left, place);
        }
    } else {
        block->marks = zr_extent_marks_as(block, ZR_EXTENT_FREE);
        block->bin = 0;
        file_free(arena, block);
        return;
    }
    zr_slab_give(&arena->extents, block);
}

void zr_space_disown(struct zr_arena *arena, struct zr_extent *gap)
{
    unfile_free(arena, gap);
    gap->owner = 0;
    zr_space_free(arena, gap); /* merges like a block that was freed without a stream */
}

/* ---- What lies in free extents ------------------------------------------------------------------------- */

struct zr_granule_range zr_free_extent_granules(const struct zr_arena *arena, const struct zr_extent *gap)
{
    size_t first = (gap->offset_bytes + arena->granule_bytes - 1) >> arena->granule_shift;
    size_t end = zr_extent_end(gap) >> arena->granule_shift;
    if (end > arena->zones[gap->zone].mapped_end)
        end = arena->zones[gap->zone].mapped_end;
    return (struct zr_granule_range){first, end > first ? end : first};
}

struct zr_extent *zr_space_next_free(const struct zr_arena *arena, const struct zr_extent *gap)
{
    const struct zr_zone *zones = arena->zones;
    struct zr_extent *next = NULL;
    unsigned zone = gap ? gap->zone : 0;
    if (!gap || is_tail(arena, gap)) {
        for (zone = gap ? zone + 1 : 0; zone < ZR_ZONE_COUNT; zone++)
            if (zones[zone].tail)
                return zones[zone].tail;
        zone = 0;
        next = zr_bins_largest(&zones[zone].gaps);
    } else {
        next = zr_bins_smaller(&zones[zone].gaps, gap);
    }
    while (!next || next->bytes < arena->granule_bytes) {
        if (++zone == ZR_ZONE_COUNT)
            return NULL;
        next = zr_bins_largest(&zones[zone].gaps);
    }
    return next;
}

size_t zr_space_idle_up_to(const struct zr_arena *arena, size_t max_bytes)
{
    size_t bytes = 0;
    for (struct zr_extent *gap = zr_space_next_free(arena, NULL); gap && bytes < max_bytes;
         gap = zr_space_next_free(arena, gap)) {
        struct zr_granule_range whole = zr_free_extent_granules(arena, gap);
        bytes += zr_granules_mapped(arena->granules, whole.first, whole.end) << arena->granule_shift;
        if (__builtin_expect(arena->unmovable_bytes > 0, 0))
            bytes -= zr_unmovable_bytes(arena, whole);
    }
    return bytes < max_bytes ? bytes : max_bytes;
}

size_t zr_space_idle_bytes(const struct zr_arena *arena)
{
    return zr_space_idle_up_to(arena, SIZE_MAX);
}

size_t zr_space_pending_bytes(const struct zr_arena *arena)
{
    size_t bytes = arena->deferred_bytes;
    for (unsigned i = 1; i <= arena->streams_count; i++)
        bytes += arena->streams[i]->pending_bytes;
    return bytes;
}
