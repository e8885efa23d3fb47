/* space.c: the spans of an arena in address order, and the books on them. Stands on holes.c.
 *
 * Every change ends with the two free neighbours of what changed filed under their new sizes: an unmapped
 * span is looked for by the length of the whole stretch it could serve, mapped neighbours included. */
#include "alloc/arena_internal.h"

#include "alloc/error.h"

/* ---- The list ------------------------------------------------------------------------------------------ */

static void insert_after(struct zr_arena *arena, struct zr_span *place, struct zr_span *span)
{
    span->previous = place;
    span->next = place ? place->next : arena->first;
    if (place)
        place->next = span;
    else
        arena->first = span;
    if (span->next)
        span->next->previous = span;
}

static void unlink_span(struct zr_arena *arena, struct zr_span *span)
{
    if (span->previous)
        span->previous->next = span->next;
    else
        arena->first = span->next;
    if (span->next)
        span->next->previous = span->previous;
    if (arena->tail == span)
        arena->tail = NULL;
}

static void discard(struct zr_arena *arena, struct zr_span *span)
{
    unlink_span(arena, span);
    zr_pool_give(&arena->spans, span);
}

static struct zr_span *new_span(struct zr_arena *arena, enum zr_span_kind kind, struct zr_extent place)
{
    struct zr_span *span = zr_pool_take(&arena->spans);
    span->offset_bytes = place.offset_bytes;
    span->bytes = place.bytes;
    span->key_bytes = 0;
    span->kind = (uint8_t)kind;
    return span;
}

static inline bool is(const struct zr_span *span, enum zr_span_kind kind)
{
    return span && span->kind == kind;
}

/* ---- Filing -------------------------------------------------------------------------------------------- */

size_t zr_space_whole_bytes(const struct zr_arena *arena, const struct zr_span *span)
{
    size_t first = zr_round_up(span->offset_bytes, arena->granule_bytes);
    size_t end = zr_round_down(zr_span_end(span), arena->granule_bytes);
    return end > first ? end - first : 0;
}

static void file_mapped(struct zr_arena *arena, struct zr_span *span)
{
    zr_holes_add(&arena->mapped, span, span->bytes);
    arena->whole_bytes += zr_space_whole_bytes(arena, span);
}

static void unfile_mapped(struct zr_arena *arena, struct zr_span *span)
{
    if (span->key_bytes == 0)
        return; /* hidden */
    zr_holes_remove(&arena->mapped, span);
    arena->whole_bytes -= zr_space_whole_bytes(arena, span);
}

/* Files an unmapped span, or files it anew after a neighbour changed. Anything else is left alone. */
static void refile_unmapped(struct zr_arena *arena, struct zr_span *span)
{
    if (!is(span, ZR_SPAN_UNMAPPED) || span == arena->tail)
        return;
    size_t bytes = span->bytes;
    if (is(span->previous, ZR_SPAN_MAPPED))
        bytes += span->previous->bytes;
    if (is(span->next, ZR_SPAN_MAPPED))
        bytes += span->next->bytes;
    if (span->key_bytes == bytes)
        return;
    if (span->key_bytes)
        zr_holes_remove(&arena->unmapped, span);
    zr_holes_add(&arena->unmapped, span, bytes);
}

static void unfile_unmapped(struct zr_arena *arena, struct zr_span *span)
{
    if (span->key_bytes)
        zr_holes_remove(&arena->unmapped, span);
}

/* A filed mapped span takes a new place and size. */
static void move_mapped(struct zr_arena *arena, struct zr_span *span, struct zr_extent place)
{
    arena->whole_bytes -= zr_space_whole_bytes(arena, span);
    zr_holes_move(&arena->mapped, span, place.offset_bytes, place.bytes);
    arena->whole_bytes += zr_space_whole_bytes(arena, span);
}

void zr_space_hide(struct zr_arena *arena, struct zr_span *span)
{
    if (span)
        unfile_mapped(arena, span);
}

void zr_space_show(struct zr_arena *arena, struct zr_span *span)
{
    if (span)
        file_mapped(arena, span);
}

/* ---- Changes ------------------------------------------------------------------------------------------- */

void zr_space_init(struct zr_arena *arena)
{
    struct zr_span *span =
        new_span(arena, ZR_SPAN_UNMAPPED, (struct zr_extent){.bytes = arena->range->bytes});
    insert_after(arena, NULL, span);
    arena->tail = span;
}

struct zr_span *zr_space_carve(struct zr_arena *arena, struct zr_span *hole, struct zr_extent part)
{
    size_t end = zr_span_end(hole);
    struct zr_extent rest = {part.offset_bytes + part.bytes, end - part.offset_bytes - part.bytes};
    struct zr_span *block = new_span(arena, ZR_SPAN_BLOCK, part);

    zr_assert(part.offset_bytes >= hole->offset_bytes && part.offset_bytes + part.bytes <= end);
    if (rest.bytes > 0 && part.offset_bytes == hole->offset_bytes) {
        /* The common case: the hole itself becomes the rest, and the block comes before it. */
        insert_after(arena, hole->previous, block);
        move_mapped(arena, hole, rest);
    } else {
        unfile_mapped(arena, hole);
        insert_after(arena, hole, block);
        if (rest.bytes > 0) {
            struct zr_span *back = new_span(arena, ZR_SPAN_MAPPED, rest);
            insert_after(arena, block, back);
            file_mapped(arena, back);
        }
        hole->bytes = part.offset_bytes - hole->offset_bytes;
        if (hole->bytes > 0)
            file_mapped(arena, hole);
        else
            discard(arena, hole);
    }
    struct zr_span *left = block->previous, *right = block->next;
    refile_unmapped(arena, is(left, ZR_SPAN_MAPPED) ? left->previous : left);
    refile_unmapped(arena, is(right, ZR_SPAN_MAPPED) ? right->next : right);
    return block;
}

bool zr_space_free_needs_span(const struct zr_span *block)
{
    return !is(block->previous, ZR_SPAN_MAPPED) && !is(block->next, ZR_SPAN_MAPPED);
}

void zr_space_free(struct zr_arena *arena, struct zr_span *block, struct zr_span *spare)
{
    struct zr_span *left = block->previous, *right = block->next, *hole;
    struct zr_extent place = {block->offset_bytes, block->bytes};
    if (is(left, ZR_SPAN_MAPPED)) {
        hole = left;
        place.offset_bytes = left->offset_bytes;
        place.bytes += left->bytes;
        unlink_span(arena, block);
        if (is(right, ZR_SPAN_MAPPED)) {
            place.bytes += right->bytes;
            unfile_mapped(arena, right);
            discard(arena, right);
        }
        move_mapped(arena, hole, place);
    } else if (is(right, ZR_SPAN_MAPPED)) {
        hole = right;
        place.bytes += right->bytes;
        unlink_span(arena, block);
        move_mapped(arena, hole, place);
    } else {
        hole = spare;
        hole->offset_bytes = place.offset_bytes;
        hole->bytes = place.bytes;
        hole->key_bytes = 0;
        hole->kind = ZR_SPAN_MAPPED;
        if (hole != block) {
            insert_after(arena, block, hole);
            unlink_span(arena, block);
        }
        file_mapped(arena, hole);
    }
    refile_unmapped(arena, hole->previous);
    refile_unmapped(arena, hole->next);
}

/* Joins a mapped span, in no holes yet, with mapped neighbours, and files what comes of it. */
static struct zr_span *join_mapped(struct zr_arena *arena, struct zr_span *span)
{
    struct zr_span *left = span->previous, *right = span->next;
    if (is(left, ZR_SPAN_MAPPED)) {
        unfile_mapped(arena, left);
        left->bytes += span->bytes;
        discard(arena, span);
        span = left;
    }
    if (is(right, ZR_SPAN_MAPPED)) {
        unfile_mapped(arena, right);
        span->bytes += right->bytes;
        discard(arena, right);
    }
    file_mapped(arena, span);
    refile_unmapped(arena, span->previous);
    refile_unmapped(arena, span->next);
    return span;
}

struct zr_span *zr_space_map(struct zr_arena *arena, struct zr_span *span, size_t bytes)
{
    zr_assert(span->kind == ZR_SPAN_UNMAPPED && bytes <= span->bytes);
    unfile_unmapped(arena, span);
    if (bytes == span->bytes) {
        if (arena->tail == span)
            arena->tail = NULL;
        span->kind = ZR_SPAN_MAPPED;
        return join_mapped(arena, span);
    }
    struct zr_span *mapped = new_span(arena, ZR_SPAN_MAPPED, (struct zr_extent){span->offset_bytes, bytes});
    insert_after(arena, span->previous, mapped);
    span->offset_bytes += bytes;
    span->bytes -= bytes;
    return join_mapped(arena, mapped);
}

void zr_space_unmap(struct zr_arena *arena, struct zr_span *span, struct zr_extent part)
{
    size_t part_end = part.offset_bytes + part.bytes;
    struct zr_extent rest = {part_end, zr_span_end(span) - part_end};

    unfile_mapped(arena, span);
    struct zr_span *gap = new_span(arena, ZR_SPAN_UNMAPPED, part);
    insert_after(arena, span, gap);
    if (rest.bytes > 0) {
        struct zr_span *back = new_span(arena, ZR_SPAN_MAPPED, rest);
        insert_after(arena, gap, back);
        file_mapped(arena, back);
        refile_unmapped(arena, back->next);
    }
    span->bytes = part.offset_bytes - span->offset_bytes;
    if (span->bytes > 0) {
        file_mapped(arena, span);
        refile_unmapped(arena, span->previous);
    } else {
        discard(arena, span);
    }
    /* Free unmapped spans never touch either. */
    struct zr_span *left = gap->previous, *right = gap->next;
    if (is(left, ZR_SPAN_UNMAPPED)) {
        unfile_unmapped(arena, left);
        gap->offset_bytes = left->offset_bytes;
        gap->bytes += left->bytes;
        discard(arena, left);
    }
    if (is(right, ZR_SPAN_UNMAPPED)) {
        bool was_tail = right == arena->tail;
        unfile_unmapped(arena, right);
        gap->bytes += right->bytes;
        discard(arena, right);
        if (was_tail)
            arena->tail = gap;
    }
    if (!gap->next)
        arena->tail = gap;
    refile_unmapped(arena, gap);
}
