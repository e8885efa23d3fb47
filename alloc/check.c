/* check.c: every invariant of an arena's records, recomputed from the spans and the mappings. Stands on
 * space.c. Linear in the number of spans: for tests and ZR_CONF=check:2. */
#include "alloc/arena_internal.h"

#include <string.h>

#include "alloc/error.h"

struct sums {
    size_t live_bytes, requested_bytes, mapped_bytes, whole_bytes, blocks_count, leaving_bytes;
    size_t by_tag_bytes[ZR_TAG_COUNT];
    size_t end_bytes; /* where the next span must begin */
};

#define corrupt(...) zr_fail(ZR_ERR_CORRUPT, __VA_ARGS__)

static zr_result check_block(struct zr_arena *arena, const struct zr_span *span, struct sums *sums)
{
    bool freed;
    if (zr_index_exact(&arena->index, span->offset_bytes, &freed) != span)
        return corrupt("the block at %zu is not in the index", span->offset_bytes);
    if (zr_index_before(&arena->index, zr_span_end(span) - 1) != span)
        return corrupt("the last byte of the block at %zu is not found in it", span->offset_bytes);
    if (span->tag >= ZR_TAG_COUNT || span->requested_bytes + arena->canary_bytes > span->bytes)
        return corrupt("the block at %zu has a bad tag (%u) or size", span->offset_bytes, span->tag);
    sums->live_bytes += span->bytes;
    sums->requested_bytes += span->requested_bytes;
    sums->by_tag_bytes[span->tag] += span->bytes;
    sums->blocks_count++;
    return ZR_OK;
}

/* What lies under the span's granules must fit its kind. */
static zr_result check_granules(const struct zr_arena *arena, const struct zr_span *span)
{
    size_t granule_bytes = arena->granule_bytes;
    bool want = span->kind != ZR_SPAN_UNMAPPED;
    for (size_t at = zr_round_down(span->offset_bytes, granule_bytes); at < zr_span_end(span);) {
        const struct zr_mapping *mapping = zr_range_mapping(arena->range, at);
        if ((mapping != NULL) != want || (mapping && !mapping->access && span->kind != ZR_SPAN_LEAVING))
            return corrupt("the granule at %zu is %s under a span of kind %u", at,
                           mapping ? "mapped" : "not mapped with access", span->kind);
        if (!mapping && span == arena->tail)
            return ZR_OK; /* too long to walk granule by granule; nothing beyond it is counted */
        at = mapping ? mapping->offset_bytes + mapping->handle->bytes : at + granule_bytes;
    }
    return ZR_OK;
}

static zr_result check_free(const struct zr_arena *arena, const struct zr_span *span, struct sums *sums)
{
    size_t key = span->bytes;
    if (span->kind == ZR_SPAN_MAPPED) {
        sums->whole_bytes += zr_space_whole_bytes(arena, span);
    } else {
        if ((span->offset_bytes | span->bytes) % arena->granule_bytes != 0)
            return corrupt("the unmapped span at %zu is not made of granules", span->offset_bytes);
        if (span->previous && span->previous->kind == ZR_SPAN_MAPPED)
            key += span->previous->bytes;
        if (span->next && span->next->kind == ZR_SPAN_MAPPED)
            key += span->next->bytes;
        if (span == arena->tail)
            key = 0;
    }
    if (span->key_bytes != key)
        return corrupt("the free span at %zu is filed under %zu bytes, not %zu", span->offset_bytes,
                       span->key_bytes, key);
    if (span->next && span->next->kind == span->kind)
        return corrupt("two free spans of one kind touch at %zu", zr_span_end(span));
    return ZR_OK;
}

static zr_result check_span(struct zr_arena *arena, const struct zr_span *span, struct sums *sums)
{
    if (span->offset_bytes != sums->end_bytes || span->bytes == 0 || span->bytes % ZR_UNIT_BYTES != 0)
        return corrupt("the span at %zu of %zu bytes does not follow the one that ends at %zu",
                       span->offset_bytes, span->bytes, sums->end_bytes);
    if (span->next ? span->next->previous != span : false)
        return corrupt("the span after %zu does not point back", span->offset_bytes);
    sums->end_bytes += span->bytes;
    if (span->kind != ZR_SPAN_UNMAPPED)
        sums->mapped_bytes += span->bytes;
    if (span->kind == ZR_SPAN_LEAVING)
        sums->leaving_bytes += span->bytes;
    zr_result result = check_granules(arena, span);
    if (result == ZR_OK && span->kind == ZR_SPAN_BLOCK)
        result = check_block(arena, span, sums);
    else if (result == ZR_OK && span->kind != ZR_SPAN_LEAVING)
        result = check_free(arena, span, sums);
    return result;
}

static zr_result check_stock(const struct zr_arena *arena)
{
    size_t bytes = 0;
    for (unsigned size = 0; size < ZR_STOCK_SIZES; size++)
        for (const struct zr_handle *handle = arena->stock.sizes[size].first; handle; handle = handle->next)
            bytes += handle->bytes;
    if (bytes != arena->stock.bytes || arena->reserved_bytes != arena->mapped_bytes + bytes)
        return corrupt("%zu bytes reserved are not %zu mapped and %zu in stock (%zu counted)",
                       arena->reserved_bytes, arena->mapped_bytes, arena->stock.bytes, bytes);
    return ZR_OK;
}

static zr_result check_holes(const struct zr_holes *holes, size_t want_count)
{
    size_t count = 0;
    for (const struct zr_span *span = zr_holes_largest(holes); span; span = zr_holes_smaller(holes, span))
        count++;
    if (count != want_count)
        return corrupt("%zu free spans are filed by size, and there are %zu", count, want_count);
    return ZR_OK;
}

zr_result zr_check_arena(struct zr_arena *arena)
{
    struct sums sums = {0};
    size_t mapped_count = 0, unmapped_count = 0;
    for (const struct zr_span *span = arena->first; span; span = span->next) {
        zr_result result = check_span(arena, span, &sums);
        if (result != ZR_OK)
            return result;
        mapped_count += span->kind == ZR_SPAN_MAPPED;
        unmapped_count += span->kind == ZR_SPAN_UNMAPPED && span != arena->tail;
    }
    if (sums.end_bytes != arena->range->bytes)
        return corrupt("the spans end at %zu, the range at %zu", sums.end_bytes, arena->range->bytes);
    if (sums.live_bytes != arena->live_bytes || sums.requested_bytes != arena->requested_bytes ||
        sums.blocks_count != arena->blocks_count)
        return corrupt("%zu bytes in %zu blocks are live, %zu in %zu are counted", sums.live_bytes,
                       sums.blocks_count, arena->live_bytes, arena->blocks_count);
    if (memcmp(sums.by_tag_bytes, arena->live_by_tag_bytes, sizeof sums.by_tag_bytes) != 0)
        return corrupt("the bytes per tag are not those of the blocks");
    if (sums.mapped_bytes != arena->mapped_bytes || sums.whole_bytes != arena->whole_bytes)
        return corrupt("%zu bytes are mapped (%zu in whole free granules), %zu (%zu) are counted",
                       sums.mapped_bytes, sums.whole_bytes, arena->mapped_bytes, arena->whole_bytes);
    zr_result result = check_stock(arena);
    if (result == ZR_OK)
        result = check_holes(&arena->mapped, mapped_count);
    if (result == ZR_OK)
        result = check_holes(&arena->unmapped, unmapped_count);
    return result;
}

zr_result zr_arena_check(zr_arena *arena)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "there is no arena to check");
    zr_lock_take(&arena->lock);
    zr_result result = zr_check_arena(arena);
    zr_lock_give(&arena->lock);
    return result;
}
