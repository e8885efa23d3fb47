/* arena.h: the arena's state and its locks. Private to alloc/.
 *
 * The arena's lock covers all of it unless a field says otherwise. A thread that asks the driver for memory,
 * or reads what is mapped where, acquires arena->supply before the lock. The lock is released during calls of
 * the driver (zr_arena_open()), so that frees, and allocations that need no memory, go on meanwhile. Lock
 * order: arenas, supply, arena, backend. No thread holds the locks of two arenas, except those of all stripes
 * of one. */
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

/* Addresses for one kind of sizes. */
struct zr_zone {
    size_t first_bytes, end_bytes; /* set at creation; empty: the zone is not there */
    struct zr_bins gaps;           /* by size, but for the open end */
    struct zr_extent *tail;        /* the free extent at the end, NULL when the zone is full to the end */
    size_t mapped_end;             /* no granule from this one on was ever mapped in the zone */
};

/* Freed blocks kept for the next request of their size. */
enum { ZR_QUICK_BLOCKS = 4 };

/* Two cache lines: processors fetch them in pairs. */
enum { ZR_LINE_BYTES = 128 };

/* Arenas beside the first. */
enum { ZR_STRIPES_MOST = 7 };

/* What is noted of blocks that come and go. */
enum zr_hooked {
    ZR_HOOKED_NOT,
    ZR_HOOKED_RECORDER, /* in the flight recorder alone */
    ZR_HOOKED_MORE      /* debug, a plan or an observer is there */
};

struct zr_arena {
    /* Set at creation. */
    char name[ZR_ARENA_NAME_BYTES];
    unsigned number; /* in names of statistics: the lowest that was free */
    zr_backend *backend;
    struct zr_range *range;
    char *base;         /* range->address */
    size_t range_bytes; /* range->bytes */
    size_t granule_bytes;
    unsigned granule_shift; /* log2 of it */
    size_t limit_bytes;     /* of reserved_bytes; 0: the backend's own */
    unsigned check;         /* enum zr_check_level */
    size_t bitmap_bytes;    /* of `granules` */
    size_t canary_bytes;    /* kept past each block's end; 0 below ZR_CHECK_BYTES */
    bool asynchronous;      /* streams run later: freed space has owners */
    bool visible;           /* the memory can be written from here */
    bool poison;            /* free space is reported to ASan or Valgrind */
    bool inner;             /* its callers may hold locks: no thread is started from its calls */
    bool shared;            /* one of several stripes, or an arena that may get some */
    struct zr_arena *next;  /* all arenas of the process, by number; lock: that of the list */

    /* The stripes: stripes.c. All but `first_stripe` belongs to the first one. */
    struct zr_arena *first_stripe;             /* itself, unless it is a stripe */
    unsigned stripes_most;                     /* 1: no stripes, ever */
    bool no_more;                              /* there was no room for one more; lock: that of the list */
    size_t stripe_reserve_bytes;               /* addresses of each */
    struct zr_arena *stripes[ZR_STRIPES_MOST]; /* set before stripes_count counts them, until the end */
    _Atomic unsigned stripes_count, next_seat;
    _Atomic unsigned unstriped; /* not 0: something watches the first stripe, so all allocate there */
    /* Every stripe writes these now and then, and nothing else is on their cache lines. */
    _Alignas(ZR_LINE_BYTES) _Atomic size_t all_reserved_bytes;
    _Atomic size_t all_live_bytes, all_peak_live_bytes, peak_reserved_bytes;

    /* The first stripe's: the map callbacks. lock: read with one stripe's, changed with all stripes' */
    struct zr_map_callback map_callbacks[ZR_MAP_CALLBACKS_MOST];
    unsigned map_callbacks_count;

    struct zr_lock supply; /* see above */

    /* Everything below. Not on a line with what threads of other stripes read. */
    _Alignas(ZR_LINE_BYTES) struct zr_lock lock;
    bool debug;     /* canaries, poison, deep checks, tag limits, stacks or a trace: blocks are noted there */
    uint8_t hooked; /* enum zr_hooked */
    struct zr_follow *follow; /* plan and observer (follow.c); NULL: neither */
    const struct zr_plan_calls *plan_calls;
    const struct zr_map_calls *map_calls;
    bool stacks;            /* a block's serial is the number of its stack (telemetry/stacks.h) */
    struct zr_trace *trace; /* NULL: none */
    bool trace_is_foreign;  /* started by a command from outside, which the program knows nothing of */
    struct zr_recorder recorder;

    /* Blocks, and peaks. While at_peak, the present state is the peak of live_bytes and peak_by_tag_bytes is
     * stale: the copy is made at the next free, not at each of the allocations that lead up to the peak. What
     * every call changes has other neighbours: compilers join neighbours into vectors, whose stores and loads
     * of different widths wait for each other. */
    size_t live_bytes, peak_live_bytes, requested_bytes, peak_requested_bytes, blocks_count;
    bool at_peak;
    uint64_t allocations_count;
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t peak_by_tag_bytes[ZR_TAG_COUNT];
    size_t published_bytes; /* of live_bytes, that the first stripe knows of */
    uint64_t backend_calls_count;

    /* Addresses. */
    struct zr_slab extents;
    struct zr_extent *first; /* lowest address */
    struct zr_index index;   /* written under lock, read without */
    /* Freed and not merged yet, for a request of the same size (allocate.c); their sizes, 0: none. */
    struct zr_extent *quick[ZR_QUICK_BLOCKS];
    size_t quick_bytes[ZR_QUICK_BLOCKS];
    unsigned quick_count, quick_next; /* next: the oldest once all are taken */
    uint64_t quick_sizes;             /* a bit by a hash of each one's size; others may be set too */
    struct zr_zone zones[ZR_ZONE_COUNT];

    /* Freed, and a stream may still be working on it. Empty on synchronous backends. */
    struct zr_stream *streams[ZR_STREAMS_MOST + 1]; /* from 1 on */
    unsigned streams_count, recent_stream;
    uint32_t points_count; /* recorded, modulo 2^32 */
    struct zr_slab uses, use_queues;
    struct zr_use_queue *queues,
        *recent_queue;            /* of blocks that other streams use; recent: NULL or found last */
    struct zr_extent *unnumbered; /* blocks; see zr_streams_defer_unnumbered() */
    size_t deferred_bytes;        /* freed blocks of both */

    /* Physical memory. */
    struct zr_granule_cache granule_cache;
    uint64_t *granules;     /* bit g: granule g of the range is mapped */
    size_t mapped_bytes;    /* the bits of `granules`, less alias_bytes */
    size_t alias_bytes;     /* addresses in plans' regions with a granule that is mapped elsewhere too */
    uint64_t serial;        /* counts the requests for granules: tells what belongs to the one under way */
    size_t unmovable_bytes; /* handles mapped here whose class is not movable */
    size_t lent_bytes;      /* taken with zr_granules_take(), mapped in ranges of others */
    size_t reserved_bytes;  /* handles owned: mapped, lent and cache */

    struct zr_contiguous *pools; /* whose granules and entries count above: see contiguous.h */
    const struct zr_pool_calls *_Atomic pool_calls;

    /* The limits of the tags (tag_limits.c): then the arena has debug hooks. */
    _Atomic bool bounded; /* written under lock */
    struct zr_tag_limits tag_limits, high_water;
    size_t promised_by_tag_bytes[ZR_TAG_COUNT]; /* to blocks and entries of pools that are being made */
};

/* Both locks, from neither. */
static inline void zr_arena_take(struct zr_arena *arena)
{
    zr_lock_take(&arena->supply);
    zr_lock_take(&arena->lock);
}

static inline void zr_arena_give(struct zr_arena *arena)
{
    zr_lock_give(&arena->lock);
    zr_lock_give(&arena->supply);
}

/* Around a call of the driver, with both (with the lock alone, where nothing is mapped or unmapped): what the
 * lock covers may change meanwhile, but for what only who has the supply changes: granules, mappings, cache
 * handles in hand, plans' regions. A block that is in no index yet is its maker's alone. */
static inline void zr_arena_open(struct zr_arena *arena)
{
    zr_lock_give(&arena->lock);
}

static inline void zr_arena_close(struct zr_arena *arena)
{
    zr_lock_take(&arena->lock);
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

/* The number of the stack that asked for a block; 0: not known. */
static inline uint32_t zr_extent_stack(const struct zr_arena *arena, const struct zr_extent *block)
{
    return __builtin_expect(arena->stacks, 0) ? block->serial : 0;
}

/* Once the trace, the tag limits, the canaries, the poison, the check level, the recorder or who follows are
 * other than before. */
static inline void zr_arena_note_debug(struct zr_arena *arena)
{
    arena->debug = arena->trace || arena->canary_bytes || arena->poison || arena->check >= ZR_CHECK_ARENA ||
                   arena->bounded || arena->stacks;
    arena->hooked = arena->debug || arena->follow ? ZR_HOOKED_MORE
                    : arena->recorder.events      ? ZR_HOOKED_RECORDER
                                                  : ZR_HOOKED_NOT;
}

/* Waits with an event, which counts as one. lock: arena->lock, held meanwhile */
static inline zr_result zr_arena_stream_wait(struct zr_arena *arena, uint64_t stream)
{
    arena->backend_calls_count++;
    return zr_backend_stream_wait(arena->backend, stream);
}

#endif
