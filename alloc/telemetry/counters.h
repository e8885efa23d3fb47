/* counters.h: what an arena counts of each block that comes and goes, and its figures. Private to alloc/. */
#ifndef ZR_COUNTERS_H
#define ZR_COUNTERS_H

#include <string.h>

#include "alloc/core/arena.h"

/* What the counters know of a block. */
struct zr_counter_entry {
    size_t bytes, requested_bytes;
    uint8_t tag;
};

static inline struct zr_counter_entry zr_counter_entry_of(const struct zr_extent *block)
{
    return (struct zr_counter_entry){block->bytes, zr_extent_requested_bytes(block), block->tag};
}

/* A block comes, and a block goes. lock: arena->lock */
static inline void zr_count_in(struct zr_arena *arena, struct zr_counter_entry block)
{
    size_t live_bytes = arena->live_bytes + block.bytes,
           requested_bytes = arena->requested_bytes + block.requested_bytes;
    arena->live_bytes = live_bytes;
    arena->requested_bytes = requested_bytes;
    arena->live_by_tag_bytes[block.tag] += block.bytes;
    arena->blocks_count++;
    arena->allocations_count++;
    if (__builtin_expect(live_bytes > arena->peak_live_bytes, 0)) {
        arena->peak_live_bytes = live_bytes;
        arena->at_peak = true;
    }
    if (__builtin_expect(requested_bytes > arena->peak_requested_bytes, 0))
        arena->peak_requested_bytes = requested_bytes;
}

static inline void zr_count_out(struct zr_arena *arena, struct zr_counter_entry block)
{
    if (__builtin_expect(arena->at_peak, 0)) {
        memcpy(arena->peak_by_tag_bytes, arena->live_by_tag_bytes, sizeof arena->peak_by_tag_bytes);
        arena->at_peak = false;
    }
    arena->live_bytes -= block.bytes;
    arena->requested_bytes -= block.requested_bytes;
    arena->live_by_tag_bytes[block.tag] -= block.bytes;
    arena->blocks_count--;
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out);
/* zr_arena_get_stats() for callers that hold locks. */
zr_result zr_stats_of(struct zr_arena *arena, struct zr_arena_stats *out);

#endif
