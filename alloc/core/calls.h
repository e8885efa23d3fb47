/* calls.h: tables of functions by which the core calls modules above it. Private to alloc/.
 *
 * Each such module registers a table in the arena; the core includes no header of these modules. */
#ifndef ZR_CORE_CALLS_H
#define ZR_CORE_CALLS_H

#include "alloc/backend/backend.h"
#include "alloc/zr.h"

/* Granules by number: [first, end). */
struct zr_granule_range {
    size_t first, end;
};

struct zr_extent;

/* Notifications about mapped memory (map_callbacks.c). Set at creation. */
struct zr_map_calls {
    /* The current request has mapped these granules, with access. If a callback fails, its error is the
     * result, and every callback has forgotten the memory. */
    zr_result (*mapped)(struct zr_arena *arena, struct zr_granule_range where);
    /* Whole mappings in the part: are about to be unmapped; were unmapped; remain, because the unmap failed.
     */
    void (*unmapping)(struct zr_arena *arena, struct zr_bounds part);
    void (*unmapped)(struct zr_arena *arena, struct zr_bounds part);
    void (*kept)(struct zr_arena *arena, struct zr_bounds part);
};

/* The plan executor (executor*.c). NULL: the arena never had a plan or an observer. */
struct zr_plan_calls {
    /* Frees a planned block, which was removed from the index and the counters. */
    void (*freed)(struct zr_arena *arena, struct zr_extent *block);
    /* Releases unused granules of regions before `missing_bytes` are requested from the cache and the driver.
     */
    void (*spare)(struct zr_arena *arena, size_t missing_bytes);
    /* Releases unused granules of regions; returns the bytes. lock: both */
    size_t (*give_back)(struct zr_arena *arena);
    /* Retires replaced plans without live blocks. lock: both */
    void (*retire_gone)(struct zr_arena *arena);
    /* The bytes that give_back() would release now. lock: arena->lock */
    size_t (*idle_bytes)(struct zr_arena *arena);
    /* Called in a child after fork(). */
    void (*forked)(struct zr_arena *arena);
};

/* The pool's part of the arena's totals. lock: arena->lock */
struct zr_pool_counters {
    size_t live_bytes, requested_bytes, pending_bytes, idle_bytes, entries_count;
    size_t live_by_tag_bytes[ZR_TAG_COUNT]; /* of all pools together */
};
/* Contiguous pools (contiguous*.c). NULL: the arena never had a pool. */
struct zr_pool_calls {
    void (*counters)(const struct zr_arena *arena, struct zr_pool_counters *out);
    bool (*find)(const struct zr_arena *arena, const void *pointer, struct zr_block_info *out);
    /* The name of a pool that still uses the arena; NULL: none. lock: arena->lock */
    const char *(*name)(const struct zr_arena *arena);
};

#endif
