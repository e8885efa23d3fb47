/* counters.h: what an arena counts of each block that comes and goes. Private to allocate.c; the arena's lock
 * covers every call. */
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
    /* NOLINTNEXTLINE(clang-analyzer-*): a request that succeeds has a block */
    return (struct zr_counter_entry){block->bytes, zr_extent_requested_bytes(block), block->tag};
}

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

#endif
