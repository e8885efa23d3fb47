/* calls.h: what the core calls of the modules above it. Private to alloc/.
 *
 * Each module that takes part registers a table of functions in the arena; the core names no module. */
#ifndef ZR_CORE_CALLS_H
#define ZR_CORE_CALLS_H

#include "alloc/backend/backend.h"
#include "alloc/zr.h"

/* Granules by number, without `end`. */
struct zr_stretch {
    size_t first, end;
};

struct zr_extent;

/* Who is told of what is mapped (map_callbacks.c). Set at creation. */
struct zr_map_calls {
    /* The mappings that the request under way has made in these granules have access already. The failure of
     * one of the callbacks: none knows of them. */
    zr_result (*mapped)(struct zr_arena *arena, struct zr_stretch where);
    /* What was notified in the extent, of whole mappings, is about to go; has gone; stays after all. */
    void (*unmapping)(struct zr_arena *arena, struct zr_bounds part);
    void (*unmapped)(struct zr_arena *arena, struct zr_bounds part);
    void (*kept)(struct zr_arena *arena, struct zr_bounds part);
};

/* What a plan has of the arena's (follow*.c). NULL: none was ever in force, nor an observer there. */
struct zr_plan_calls {
    /* A planned block that is no longer found, nor counted. */
    void (*freed)(struct zr_arena *arena, struct zr_extent *block);
    /* So many bytes are about to be asked for, of the cache and the driver. */
    void (*asked)(struct zr_arena *arena, size_t missing_bytes);
    /* Gives back what regions hold and do not use; returns the bytes. Both locks. */
    size_t (*give_back)(struct zr_arena *arena);
    /* Retires plans whose learner has gone. Both locks. */
    void (*retire_gone)(struct zr_arena *arena);
    /* What give_back() would return now, in bytes. lock: arena->lock */
    size_t (*idle_bytes)(struct zr_arena *arena);
    /* In a child after fork(). */
    void (*forked)(struct zr_arena *arena);
};

/* Contiguous pools of the arena's granules (contiguous*.c). NULL: there was never one. */
/* The pool's part of the arena's totals. lock: arena->lock */
struct zr_pool_counters {
    size_t live_bytes, requested_bytes, pending_bytes, idle_bytes, entries_count;
    size_t live_by_tag_bytes[ZR_TAG_COUNT]; /* of all pools together */
};
struct zr_pool_calls {
    void (*counters)(const struct zr_arena *arena, struct zr_pool_counters *out);
    bool (*find)(const struct zr_arena *arena, const void *pointer, struct zr_block_info *out);
    /* A pool that the arena still carries; NULL: none. lock: arena->lock */
    const char *(*name)(const struct zr_arena *arena);
};

#endif
