/* arena_internal.h: the arena's state, and what its rooms call of one another. Private to alloc/.
 *
 *   core/   core.c (one alloc, one free), space.c (addresses), supply.c and granule_class.c (memory),
 *           index.c, streams.c, region.c (addresses for a plan), registry.c (all arenas)
 *   front/  allocate.c and arena.c (the public calls), stripes.c, lend.c (granules for pools), use.c
 *   plan/   follow.c and follow_*.c
 *           debug.c (hooks), check.c, tag_limits.c, map_callbacks.c
 *   telemetry/  report.c, stats.c, trace.c, recorder.c, ...
 *
 * A room calls what is declared here of its own files and of the rooms below it: core/ calls nothing of
 * front/, telemetry/ and plan/ but the tables of functions that they register.
 *
 * The arena's lock covers all of it unless a function says otherwise. Whoever asks the driver for memory, or
 * looks at what is mapped where, takes arena->supply before the lock. The lock is open during calls of the
 * driver (zr_arena_open()), and frees, and allocations that need no memory, go on meanwhile. Lock order:
 * arenas, supply, arena, backend. Nobody holds the locks of two arenas, except whoever takes all stripes of
 * one. */
#ifndef ZR_ARENA_INTERNAL_H
#define ZR_ARENA_INTERNAL_H

#include "alloc/backend/backend.h"
#include "alloc/core/granules.h"
#include "alloc/core/bins.h"
#include "alloc/core/index.h"
#include "alloc/base/system/lock.h"
#include "alloc/base/slab.h"
#include "alloc/core/extent.h"
#include "alloc/core/granule_cache.h"
#include "alloc/core/streams.h"
#include "alloc/base/option.h"
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

/* Granules by number, without `end`. */
struct zr_stretch {
    size_t first, end;
};

/* What the core calls upwards: each room that has something to say there registers its functions. */

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

/* Arenas beside the first. */
enum { ZR_STRIPES_MOST = 7 };

/* An event of the flight recorder (telemetry/recorder.h): two on a cache line. */
struct zr_recorded {
    uint64_t
        where; /* offset from the arena's base, a multiple of ZR_UNIT_BYTES, with the kind in its low byte */
    uint64_t stream; /* tick: nanoseconds */
    uint64_t
        bytes; /* of the extent, with the number of its stack << 48 (stacks.h; 0: none); or of granules */
    uint32_t slack_bytes;
    uint16_t tag, thread; /* threads beyond the 65,535th share a number */
};

/* The flight recorder's ring (telemetry/recorder.c). lock: arena->lock */
struct zr_recorder {
    struct zr_recorded *next;   /* where the next event goes; as far as `stop`: there is more to do first */
    struct zr_recorded *stop;   /* NULL as `next` is: off */
    struct zr_recorded *events; /* NULL: off */
    size_t mask;                /* of a power of two of them */
    uint64_t stop_count;        /* events since the ring was made, once `next` is at `stop` */
    uint64_t first;             /* those before are forgotten: a region came or went after them */
    uint64_t written_ns;        /* when its last file was written; 0: never */
};

/* Events since the ring was made. */
static inline uint64_t zr_recorder_count(const struct zr_recorder *recorder)
{
    return recorder->stop_count - (uint64_t)(recorder->stop - recorder->next);
}

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

static inline size_t zr_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

static inline size_t zr_round_down(size_t bytes, size_t unit)
{
    return bytes & ~(unit - 1);
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

/* ---- space.c: cannot fail; the caller has reserved the extent records ---------------------------------- */

enum { ZR_CARVE_EXTENTS = 2 };
/* What an operation under way may have reserved and not taken yet: whoever takes extents in its middle leaves
 * so many. */
enum { ZR_PROMISED_EXTENTS = 2 * ZR_CARVE_EXTENTS };

/* What the search is for. */
struct zr_need {
    size_t bytes, alignment;
};

/* Where a block would go. */
struct zr_place {
    struct zr_extent *gap; /* NULL: nowhere */
    size_t offset_bytes;
    size_t missing; /* granules to map */
};

/* Below a granule divided by this a block is small: its neighbours must not be large. */
enum { ZR_SMALL_DIVISOR = 16 };

static inline unsigned zr_zone_of(const struct zr_arena *arena, struct zr_need need)
{
    if (need.bytes < arena->granule_bytes / ZR_SMALL_DIVISOR)
        return ZR_ZONE_SMALL;
    return (need.bytes & (arena->granule_bytes - 1)) == 0 ? ZR_ZONE_WHOLE : ZR_ZONE_GENERAL;
}

static inline bool zr_space_is_mapped(const struct zr_arena *arena, size_t offset_bytes, size_t bytes)
{
    return zr_granules_all_mapped(arena->granules, offset_bytes >> arena->granule_shift,
                                  ((offset_bytes + bytes - 1) >> arena->granule_shift) + 1);
}

/* Divides the range into zones, a free extent over each. */
void zr_space_init(struct zr_arena *arena);
/* The place that best fit gives the need, for a stream's number (0: one that owns nothing). */
struct zr_place zr_space_find(const struct zr_arena *arena, struct zr_need need, unsigned owner);
/* Makes a part of a free extent into a block, its fields but the place undefined. */
struct zr_extent *zr_space_carve(struct zr_arena *arena, struct zr_extent *gap, struct zr_bounds part);
/* Makes the block's space a free extent of block->owner and merges it with its neighbours; the record is the
 * free extent's, or goes back. */
void zr_space_free(struct zr_arena *arena, struct zr_extent *block);
/* The free extent beside an extent that it would merge with, NULL if there is none. */
static inline struct zr_extent *zr_free_extent_beside(const struct zr_extent *extent,
                                                      struct zr_extent *neighbour)
{
    return neighbour && neighbour->marks.word == zr_extent_marks_as(extent, ZR_EXTENT_FREE).word ? neighbour
                                                                                                 : NULL;
}

/* A free extent with an owner becomes anybody's. */
void zr_space_disown(struct zr_arena *arena, struct zr_extent *gap);
/* Free bytes that have an owner, deferred blocks included. */
size_t zr_space_pending_bytes(const struct zr_arena *arena);

/* The granules that lie whole in a free extent, as numbers, without those that were never mapped. */
struct zr_stretch zr_free_extent_granules(const struct zr_arena *arena, const struct zr_extent *gap);
/* The free extents without an owner from the largest on: those in the bins of all zones after the open ends.
 * Start with NULL; ends with NULL. A free extent without a whole granule ends the walk. */
struct zr_extent *zr_space_next_free(const struct zr_arena *arena, const struct zr_extent *gap);
/* Mapped granules that lie whole in free extents: what could be mapped elsewhere. Walks the free extents, or
 * as many of them as make `most_bytes`. */
size_t zr_space_idle_bytes(const struct zr_arena *arena);
size_t zr_space_idle_up_to(const struct zr_arena *arena, size_t most_bytes);

/* ---- granule_class.c ----------------------------------------------------------------------------------- */

/* Whether the granules of a mapping may be unmapped while its addresses are free. */
static inline bool zr_is_movable(const struct zr_mapping *mapping)
{
    return mapping->handle->granule_class == ZR_GRANULE_MOVABLE;
}

/* The class of a handle that is mapped in the arena. */
void zr_handle_set_class(struct zr_arena *arena, struct zr_handle *handle,
                         enum zr_granule_class granule_class);
/* Bytes of granules [first, end) whose class is not movable. */
size_t zr_unmovable_bytes(const struct zr_arena *arena, struct zr_stretch where);

/* ---- supply.c ------------------------------------------------------------------------------------------ */

/* Maps every granule that the extent touches and that is not mapped: from the cache, stolen from free
 * extents, or from the driver. The extent must lie in no free extent. A failure leaves the arena's counters
 * as they were, but for granules of free extents that may be in the cache now, and *stuck (may be NULL): what
 * the driver mapped and will not unmap again. */
zr_result zr_map(struct zr_arena *arena, struct zr_bounds extent, struct zr_bounds *stuck);
/* Unmaps whatever is mapped in the extent (whole granules, in use by nobody), the handles going to the list.
 * Handles that stick out of the extent stay. Stops at `most` bytes; *bytes gets how many. */
zr_result zr_unmap(struct zr_arena *arena, struct zr_bounds extent, size_t most, struct zr_handle_list *list,
                   size_t *bytes);
/* Gives back cache and whole granules of free extents until `keep_bytes` of them are left; returns what was
 * released.
 */
size_t zr_trim(struct zr_arena *arena, size_t keep_bytes);
/* A handle that is mapped nowhere, or lives for its mappings, goes to the driver. Both locks. */
void zr_handle_destroy(struct zr_arena *arena, struct zr_handle *handle);
/* Single granules for what maps them itself (lend.c, a plan's pages), from the cache, from free extents, from
 * the driver: reserved by the arena, and with the serial of the request under way. The caller counts them as
 * mapped or lent. Both locks. ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_gather(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* Gathered by the request under way, and not used after all. */
void zr_granules_put_back(struct zr_arena *arena, struct zr_handle_list *list);
/* Up to `bytes` of idle handles out of the arena's counters, for another stripe; if it has them
 * only in longer runs, one of those goes to the driver instead. Returns the bytes of either. */
size_t zr_idle_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
/* They come into the arena's cache. */
void zr_idle_add(struct zr_arena *arena, struct zr_handle_list *list);
/* Gives back everything, before the arena ends. ZR_ERR_UNAVAILABLE: the driver kept some of it, and the range
 * with it (arena->range is NULL then). */
zr_result zr_release_all(struct zr_arena *arena);

/* ---- registry.c: all arenas of the process, and what stripes share ------------------------------------- */

/* The arena of that number with its locks taken, NULL if none. The caller gives them, then
 * zr_arenas_unlock(). Nobody waits for an arena's locks with that of the list. */
struct zr_arena *zr_arenas_lock(unsigned number);
void zr_arenas_unlock(void);
/* Nobody adds an arena or a stripe until it is unlocked. */
void zr_arenas_close(void);
/* The arena after this one by number (NULL: the first); NULL: there is none. The list is locked. */
struct zr_arena *zr_arenas_next(const struct zr_arena *arena);
/* Gives it the lowest number that is free. */
void zr_arenas_add(struct zr_arena *arena);
void zr_arenas_remove(struct zr_arena *arena);

/* The stripe in whose range the address lies; the first one, if none. */
struct zr_arena *zr_stripes_of(struct zr_arena *first_stripe, const void *address);
static inline struct zr_arena *zr_arena_stripe_of(struct zr_arena *arena, const void *address)
{
    if (__builtin_expect(arena->shared, 0) &&
        (size_t)((const char *)address - arena->base) >= arena->range_bytes)
        return zr_stripes_of(arena, address);
    return arena;
}
/* With change 1 all threads allocate from the first stripe until it is called with -1; true if it has no
 * stripes. Without a stripe's lock. */
bool zr_arena_hold_unstriped(struct zr_arena *first_stripe, int change);
/* Counts bytes against the limit of all stripes; false with words. Any lock may be held. */
bool zr_limit_reserve(struct zr_arena *arena, size_t bytes);
void zr_limit_release(struct zr_arena *arena, size_t bytes);
void zr_limit_note_peak(struct zr_arena *arena);
/* How much a stripe's live bytes may differ from what the first stripe knows of them: this, and one in so
 * many of its peak. */
#define ZR_TOLD_BYTES ((size_t)1 << 20)
enum { ZR_TOLD_SHARE = 64 };
/* Tells the first stripe of a stripe's live bytes, when they have changed by much. With the stripe's lock. */
void zr_stripes_publish_now(struct zr_arena *arena);
static inline void zr_stripes_publish(struct zr_arena *arena)
{
    size_t difference = arena->live_bytes - arena->published_bytes; /* modulo 2^64 */
    size_t most = ZR_TOLD_BYTES + arena->peak_live_bytes / ZR_TOLD_SHARE;
    if (__builtin_expect(difference + most > 2 * most, 0))
        zr_stripes_publish_now(arena);
}

/* ---- What is on: any room that switches something ------------------------------------------------------ */

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

/* ---- region.c: addresses for a plan -------------------------------------------------------------------- */

/* Reserves addresses only, whole granules; ZR_ERR_ADDRESSES: the arena has not that many in a row. */
zr_result zr_region_reserve(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The same with nothing mapped there. */
zr_result zr_region_reserve_clear(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The same where nothing was mapped before, if there are such addresses: nothing has to be unmapped. */
zr_result zr_region_reserve_unused(struct zr_arena *arena, size_t bytes, struct zr_extent **out);
/* The region becomes a free extent, whatever is mapped in it. Needs no memory. */
void zr_region_release(struct zr_arena *arena, struct zr_extent *region);

/* ---- map_callbacks.c ----------------------------------------------------------------------------------- */

extern const struct zr_map_calls zr_map_callback_calls;

/* ---- report.c ------------------------------------------------------------------------------------------ */

/* Why a request was refused: what a trace says of it, in the words of trace_format.h. */
struct zr_refusal {
    unsigned cause;           /* enum zrt_cause; 0: unknown, and the rest is 0 */
    uint64_t need_bytes;      /* what the request came to */
    uint64_t free_bytes;      /* free and mapped */
    uint64_t largest_bytes;   /* of it in one piece */
    uint64_t cached_bytes;    /* granules that are mapped nowhere */
    uint64_t pending_bytes;   /* freed, and a stream has not passed */
    uint64_t unmovable_bytes; /* of the free bytes, on granules that may not move */
    uint64_t reserved_bytes;  /* held of the device; tag limit: live of the tag */
    uint64_t limit_bytes;     /* of reserved_bytes; 0: none */
    uint64_t device_bytes;    /* of the device in all; 0: not known, nor are the two that follow */
    /* What a later reader knows of: fields may be added at the end. */
    uint64_t device_free_bytes; /* what the device says is free */
    uint64_t process_bytes;     /* held of it by all arenas of this backend */
    uint64_t whole_bytes;       /* of the free bytes, in whole granules that may move */
    uint64_t pool_idle_bytes;   /* in whole granules that contiguous pools keep and nothing is on */
};

/* The words for a request that could not be had, and the need that it came to; returns `result`. Reads this
 * thread's last error as the cause. With the stripe's lock, which is opened while it looks at the others. */
zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                              struct zr_need need, struct zr_refusal *refusal);

/* ---- stats.c ------------------------------------------------------------------------------------------- */

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out);
/* zr_arena_get_stats() for callers that hold locks. */
zr_result zr_stats_of(struct zr_arena *arena, struct zr_arena_stats *out);

/* ---- tag_limits.c: of an arena that is bounded --------------------------------------------------------- */

/* ZR_ERR_TAG_LIMIT, with words, if a request that came to so many bytes is above a tag limit. */
zr_result zr_tag_limit_check(struct zr_arena *arena, const struct zr_request *request, size_t bytes);
/* What a trace says of such a request. */
struct zr_refusal zr_tag_limit_refusal(const struct zr_arena *arena, const struct zr_request *request,
                                       size_t bytes);
/* The tag's bytes have grown. */
void zr_tag_limit_note(struct zr_arena *arena, unsigned tag);
/* The check for an entry of a pool, without the lock; of any arena. What was promised (0: the arena is not
 * bounded) counts until it is taken back from promised_by_tag_bytes. */
zr_result zr_tag_limit_promise(struct zr_arena *arena, const struct zr_request *request, size_t bytes,
                               size_t *promised_bytes);

/* ---- debug.c: of an arena with debug hooks ------------------------------------------------------------- */

/* The block has come, or is about to go: ZR_ERR_CORRUPT, with words, if it was written past its end. */
void zr_debug_new(struct zr_arena *arena, const struct zr_extent *block);
zr_result zr_debug_freed(struct zr_arena *arena, const struct zr_extent *block);

/* ---- check.c: ZR_ERR_CORRUPT with words ---------------------------------------------------------------- */

zr_result zr_check_arena(struct zr_arena *arena);

/* ---- core.c -------------------------------------------------------------------------------------------- */

/* A block for the request, which came to the need; in the index and in no counters. The caller has reserved
 * ZR_PROMISED_EXTENTS and room in the index. */
zr_result zr_core_alloc(struct zr_arena *arena, const struct zr_request *request, struct zr_need need,
                        struct zr_extent **out);
/* The same where memory is mapped already: needs the lock alone. NULL: there is no such place. */
struct zr_extent *zr_core_try(struct zr_arena *arena, const struct zr_request *request, struct zr_need need);
/* A block that is in no index and no counters any more, and that no other stream uses. */
void zr_core_free(struct zr_arena *arena, struct zr_extent *block);

/* While it is set, the calling thread's requests take memory from the driver only when nothing is pending
 * that could serve them: they wait for that, as a free that waits for the device would have. */
extern __thread bool zr_thread_waits_to_grow __attribute__((tls_model("initial-exec")));

/* The space of a block that was freed, is in no index and has no uses becomes a free extent. */
void zr_arena_vacate(struct zr_arena *arena, struct zr_extent *block);
/* Makes free extents of the freed blocks that are kept for requests of their size. Before anything looks at
 * the free extents as a whole: stealing, trimming, statistics, checks. */
void zr_arena_flush_quick(struct zr_arena *arena);

/* ---- lend.c -------------------------------------------------------------------------------------------- */

/* Whole granules for a range that is not the arena's own, as single-granule handles: from the cache, from
 * free extents, from the driver; they count as reserved by the arena. Take the locks themselves.
 * ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list);
/* Granules, still mapped, that streams may use for all that anybody knows: they leave the counters and are
 * nobody's again. The list is empty then; returns the bytes. */
size_t zr_granules_abandon(struct zr_arena *arena, struct zr_handle_list *list);

/* ---- stripes.c: any thread; without a stripe's lock unless said otherwise ------------------------------ */

/* Where the calling thread sits, in any arena, and how long it will bear that. Static TLS, but so little
 * that the library can be loaded late. */
struct zr_seat {
    unsigned seat; /* 1 + number; 0: none yet */
    unsigned impatience;
};
extern __thread struct zr_seat zr_own_seat __attribute__((tls_model("initial-exec")));
/* The stripe that serves the calling thread, with its lock taken. */
struct zr_arena *zr_stripes_take(struct zr_arena *first_stripe);
/* The common case of it: the thread has a seat, and the lock there is open. NULL: it is not. */
static inline struct zr_arena *zr_stripes_try(struct zr_arena *first_stripe)
{
    unsigned seat = zr_own_seat.seat - 1;
    if (__builtin_expect(atomic_load_explicit(&first_stripe->unstriped, memory_order_relaxed) != 0, 0))
        seat = 0;
    if (__builtin_expect(seat > atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire), 0))
        return NULL;
    struct zr_arena *arena = seat == 0 ? first_stripe : first_stripe->stripes[seat - 1];
    if (__builtin_expect(!zr_lock_try(&arena->lock), 0))
        return NULL;
    zr_own_seat.impatience -= zr_own_seat.impatience > 0;
    return arena;
}
/* Gives back what the other stripes have idle; returns the bytes. */
size_t zr_stripes_trim(struct zr_arena *arena);
/* For a need of `bytes` that the stripe cannot meet: what others have idle comes into its cache, as much as
 * is missing; if they have nothing, they wait for a stream that still uses something. False: nothing came.
 * With the stripe's lock, which is opened meanwhile. */
bool zr_stripes_fetch(struct zr_arena *arena, size_t bytes);

/* ---- arena.c ------------------------------------------------------------------------------------------- */

/* Makes one more stripe, if there are still `count` stripes; returns how many were made. */
unsigned zr_arena_add_stripe(struct zr_arena *first_stripe, unsigned count);

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Waits with an event, which counts as one. lock: arena->lock, held meanwhile */
static inline zr_result zr_arena_stream_wait(struct zr_arena *arena, uint64_t stream)
{
    arena->backend_calls_count++;
    return zr_backend_stream_wait(arena->backend, stream);
}

#endif
