/* arena.h: the arena's state and its locks. Private to alloc/.
 *
 * The arena's lock covers all fields unless a field says otherwise. A thread that requests memory from the
 * driver, or reads the mappings, acquires arena->supply before the lock. Driver calls run with the
 * lock released (zr_arena_begin_driver_call()), so frees, and allocations that need no memory, continue
 * meanwhile. Lock order: arenas, supply, arena, backend. No thread holds the locks of two arenas, except
 * those of all stripes of one arena. */
#ifndef ZR_CORE_ARENA_H
#define ZR_CORE_ARENA_H

#include "alloc/backend/backend.h"
#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/base/system/lock.h"
#include "alloc/core/bins.h"
#include "alloc/core/calls.h"
#include "alloc/core/event_ring.h"
#include "alloc/core/extent.h"
#include "alloc/core/granule_cache.h"
#include "alloc/core/granules.h"
#include "alloc/core/index.h"
#include "alloc/core/streams.h"
#include "alloc/zr.h"

enum { ZR_ARENA_NAME_BYTES = 32 };

/* The addresses of one kind of sizes. */
struct zr_zone {
    size_t first_bytes, end_bytes; /* set at creation; empty: the range is not divided into zones */
    struct zr_bins gaps;           /* free extents by size, except `tail` */
    struct zr_extent *tail;        /* the free extent at the end, NULL when the zone is full to the end */
    size_t mapped_end;             /* end of the granules that were ever mapped in the zone */
};

/* Freed blocks kept for the next request of their size. */
enum { ZR_SIZE_CACHE_BLOCKS = 4 };

/* Two cache lines, because processors fetch them in pairs. */
enum { ZR_LINE_BYTES = 128 };

/* The max number of stripes after the first one. */
enum { ZR_STRIPES_MAX = 7 };

/* An arena's traces by who started them: the program, another process. */
enum zr_trace_starter { ZR_TRACE_OWN, ZR_TRACE_FOREIGN, ZR_TRACE_COUNT };

/* Which hooks run at each allocation and free. */
enum zr_hooked {
    ZR_HOOKED_NOT,
    ZR_HOOKED_RECORDER, /* only the flight recorder */
    ZR_HOOKED_MORE      /* debug, a plan or an observer */
};

struct zr_arena {
    /* Set at creation. */
    char name[ZR_ARENA_NAME_BYTES];
    unsigned number; /* the arena's number in names of statistics */
    zr_backend *backend;
    struct zr_range *range;
    char *base;         /* range->address */
    size_t range_bytes; /* range->bytes */
    size_t granule_bytes;
    unsigned granule_shift; /* log2 of granule_bytes */
    size_t limit_bytes;     /* limit of reserved_bytes; 0: the backend's own */
    unsigned check;         /* enum zr_check_level */
    size_t bitmap_bytes;    /* size of `granules` */
    size_t canary_bytes;    /* canary after each block; 0 below ZR_CHECK_BYTES */
    bool asynchronous;      /* streams are asynchronous: freed memory belongs to a stream */
    bool visible;           /* the processor can write the memory */
    bool poison;            /* free space is reported to ASan or Valgrind */
    bool inner;             /* callers may hold locks: calls start no thread */
    bool shared;            /* the arena is a stripe, or may get stripes */
    struct zr_arena *next;  /* the next arena by number; lock: the list's (registry.c) */

    /* The stripes (stripes.c). Except for `first_stripe`, only the first stripe uses these fields. */
    struct zr_arena *first_stripe; /* the arena itself, unless it is a later stripe */
    unsigned stripes_max;          /* 1: the arena never gets stripes */
    bool no_more;                  /* creating another stripe failed; lock: the list's (registry.c) */
    size_t stripe_reserve_bytes;   /* addresses to reserve for each stripe */
    struct zr_arena *stripes[ZR_STRIPES_MAX]; /* an element is written before stripes_count is raised, then
                                                 never changed */
    _Atomic unsigned stripes_count, next_stripe_index;
    _Atomic unsigned unstriped; /* not 0: all threads allocate in the first stripe */
    /* Every stripe writes these fields, so they have cache lines of their own. */
    _Alignas(ZR_LINE_BYTES) _Atomic size_t all_reserved_bytes;
    _Atomic size_t all_live_bytes, all_peak_live_bytes, peak_reserved_bytes;

    /* Used in the first stripe only. Reading requires the lock of one stripe, changing those of all stripes.
     */
    struct zr_map_callback map_callbacks[ZR_MAP_CALLBACKS_MAX];
    unsigned map_callbacks_count;

    struct zr_lock supply; /* see the top of this file */

    /* Covers all fields below. Its cache line has no field that threads of other stripes read. */
    _Alignas(ZR_LINE_BYTES) struct zr_lock lock;
    bool debug;                   /* canaries, poison, deep checks, tag limits, stacks or a trace is on */
    uint8_t hooked;               /* enum zr_hooked */
    struct zr_executor *executor; /* plan and observer (executor.c); NULL: neither */
    const struct zr_plan_calls *plan_calls;
    const struct zr_map_calls *map_calls;
    bool stacks; /* a block's serial is the number of its stack (telemetry/stacks.h) */
    struct zr_trace *traces[ZR_TRACE_COUNT]; /* NULL: none */
    struct zr_recorder recorder;

    /* Blocks and peaks. While at_peak, live_bytes is at its peak and peak_by_tag_bytes is stale: the next
     * free copies the tags, so that allocations on the way to a peak do not. Fields that every call changes
     * are not adjacent, because compilers join adjacent fields into vectors, and loads and stores of
     * different widths stall. */
    size_t live_bytes, peak_live_bytes, requested_bytes, peak_requested_bytes, blocks_count;
    bool at_peak;
    uint64_t allocations_count;
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t peak_by_tag_bytes[ZR_TAG_COUNT];
    size_t published_bytes; /* part of live_bytes included in all_live_bytes */
    uint64_t backend_calls_count;

    /* Addresses. */
    struct zr_slab extents;
    struct zr_extent *first; /* the extent with the lowest address */
    struct zr_index index;   /* changes need the lock, searches do not */
    /* The size cache: freed blocks that are kept for a request of the same size, and their sizes (0: no
     * block). */
    struct zr_extent *size_cache[ZR_SIZE_CACHE_BLOCKS];
    size_t size_cache_bytes[ZR_SIZE_CACHE_BLOCKS];
    unsigned size_cache_count, size_cache_next; /* next: the entry to replace, the oldest of a full cache */
    uint64_t size_cache_filter;                 /* one bit per hash of a size; may have false positives */
    struct zr_zone zones[ZR_ZONE_COUNT];

    /* Freed memory that streams may still use. Synchronous backends have none. */
    struct zr_stream *streams[ZR_STREAMS_MAX + 1]; /* index 0 is unused */
    unsigned streams_count, recent_stream;
    uint32_t points_count; /* points recorded so far, modulo 2^32 */
    struct zr_slab uses, use_queues;
    struct zr_use_queue *queues,
        *recent_queue; /* queues of blocks that other streams use; recent: the last queue found, or NULL */
    struct zr_extent *unnumbered; /* freed blocks of streams without a number */
    size_t deferred_bytes;        /* freed blocks in `queues` and `unnumbered` */

    /* Physical memory. */
    struct zr_granule_cache granule_cache;
    uint64_t *granules;     /* bit g: granule g of the range is mapped */
    size_t mapped_bytes;    /* the bits of `granules`, less alias_bytes */
    size_t alias_bytes;     /* addresses in plans' regions whose granule is also mapped elsewhere */
    uint64_t serial;        /* the number of the current request for granules */
    size_t unmovable_bytes; /* handles mapped here whose class is not movable */
    size_t lent_bytes;      /* lent by zr_granules_take(), mapped in other ranges */
    size_t reserved_bytes;  /* mapped, lent and cached handles */

    struct zr_contiguous *pools; /* contiguous pools, whose granules count above: see contiguous.h */
    const struct zr_pool_calls *_Atomic pool_calls;

    /* Tag limits (tag_limits.c), which switch `debug` on. */
    _Atomic bool bounded; /* changes need the lock */
    struct zr_tag_limits tag_limits, high_water;
    size_t promised_by_tag_bytes[ZR_TAG_COUNT]; /* reserved for blocks and entries whose creation is in
                                                   progress */
};

/* Acquires and releases both locks. */
static inline void zr_arena_acquire(struct zr_arena *arena)
{
    zr_lock_acquire(&arena->supply);
    zr_lock_acquire(&arena->lock);
}

static inline void zr_arena_release(struct zr_arena *arena)
{
    zr_lock_release(&arena->lock);
    zr_lock_release(&arena->supply);
}

/* Releases and acquires arena->lock around a driver call. The caller keeps the supply lock, unless the call
 * maps and unmaps nothing. State under the lock may change meanwhile, except granules, mappings, handles in
 * the caller's lists and plans' regions, which change only under the supply lock. A block that is not in the
 * index yet belongs to its creator. */
static inline void zr_arena_begin_driver_call(struct zr_arena *arena)
{
    zr_lock_release(&arena->lock);
}

static inline void zr_arena_end_driver_call(struct zr_arena *arena)
{
    zr_lock_acquire(&arena->lock);
}

static inline void zr_arena_pool_counters(const struct zr_arena *arena, struct zr_pool_counters *out)
{
    const struct zr_pool_calls *pools = atomic_load(&arena->pool_calls);
    *out = (struct zr_pool_counters){0};
    if (pools)
        pools->counters(arena, out);
}

static inline struct zr_block_info zr_block_info_of(const struct zr_arena *arena,
                                                    const struct zr_extent *block)
{
    return (struct zr_block_info){.address = arena->base + block->offset_bytes,
                                  .bytes = zr_extent_requested_bytes(block),
                                  .reserved_bytes = block->bytes,
                                  .tag = (zr_tag)block->tag,
                                  .stream = block->stream};
}

/* The number of the call stack that allocated the block; 0: unknown. */
static inline uint32_t zr_extent_stack(const struct zr_arena *arena, const struct zr_extent *block)
{
    return __builtin_expect(arena->stacks, 0) ? block->serial : 0;
}

static inline bool zr_arena_is_traced(const struct zr_arena *arena)
{
    return arena->traces[ZR_TRACE_OWN] || arena->traces[ZR_TRACE_FOREIGN];
}

/* Derives `debug` and `hooked`. Call it after every change of the trace, tag limits, canaries, poison, check
 * level, recorder, stacks, plan or observer. */
static inline void zr_arena_note_debug(struct zr_arena *arena)
{
    arena->debug = zr_arena_is_traced(arena) || arena->canary_bytes || arena->poison ||
                   arena->check >= ZR_CHECK_ARENA || arena->bounded || arena->stacks;
    arena->hooked = arena->debug || arena->executor ? ZR_HOOKED_MORE
                    : arena->recorder.events        ? ZR_HOOKED_RECORDER
                                                    : ZR_HOOKED_NOT;
}

/* Waits for a stream with arena->lock held. Counts as one backend call. */
static inline zr_result zr_arena_stream_wait(struct zr_arena *arena, uint64_t stream)
{
    arena->backend_calls_count++;
    return zr_backend_stream_wait(arena->backend, stream);
}

#endif
