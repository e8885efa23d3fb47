/* arena_internal.h: the arena's state, shared by the files that work on it. Private to alloc/.
 *
 *   arena.c   life, allocation, free, find       space.c   the spans: carve, merge, map, unmap
 *   extend.c  physical memory: stock, stealing    report.c  words for an exhausted arena
 *   check.c   every invariant                     stats.c   numbers and their names
 *   share.c   export and import                   tracing.c the switch of the trace
 *
 * All of it under arena->lock unless a function says otherwise. Lock order: arenas, arena, backend. */
#ifndef ZR_ARENA_INTERNAL_H
#define ZR_ARENA_INTERNAL_H

#include "alloc/backend.h"
#include "alloc/holes.h"
#include "alloc/index.h"
#include "alloc/lock.h"
#include "alloc/record.h"
#include "alloc/span.h"
#include "alloc/stock.h"
#include "alloc/trace.h"
#include "alloc/zr.h"

enum { ZR_ARENA_NAME_BYTES = 32 };

/* Spans that were freed and wait for readers of the index, before one thread waits for them. */
enum { ZR_RETIRED_BATCH = 1024 };

struct zr_arena {
    /* Set at creation. */
    char name[ZR_ARENA_NAME_BYTES];
    unsigned number; /* in names of statistics: the lowest that was free */
    zr_backend *backend;
    struct zr_range *range;
    char *base; /* range->address */
    size_t granule_bytes;
    size_t limit_bytes;    /* of reserved_bytes; 0: the backend's own */
    unsigned check;        /* enum zr_check_level */
    size_t canary_bytes;   /* kept past each block's end; 0 below ZR_CHECK_BYTES */
    bool visible;          /* the memory can be written from here */
    bool poison;           /* free space is reported to ASan or Valgrind */
    struct zr_arena *next; /* all arenas of the process, by number; lock: that of the list */

    struct zr_lock lock; /* everything below */

    /* Addresses. */
    struct zr_pool spans;
    struct zr_span *first;    /* lowest address */
    struct zr_span *tail;     /* the last span while it is unmapped, else NULL. In no holes */
    struct zr_holes mapped;   /* free and mapped spans, by size */
    struct zr_holes unmapped; /* but for the tail; by size with the mapped spans on either side */
    struct zr_index index;    /* written under lock, read without */
    struct zr_span *retired;  /* through `previous` */
    size_t retired_count;
    bool reclaiming; /* some thread waits for readers with a batch in its hands */

    /* Physical memory. */
    struct zr_stock stock;
    size_t mapped_bytes;
    size_t reserved_bytes; /* handles owned: mapped and stock */
    size_t whole_bytes;    /* whole granules inside free mapped spans */

    /* Blocks. */
    size_t live_bytes, requested_bytes;
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t blocks_count;
    uint64_t allocations_count;
    uint64_t backend_calls_count;

    /* Peaks. While at_peak, the present state is the peak of live_bytes and peak_by_tag_bytes is stale: the
     * copy is made at the next free, not at each of the allocations that lead up to the peak. */
    size_t peak_live_bytes, peak_requested_bytes, peak_reserved_bytes;
    size_t peak_by_tag_bytes[ZR_TAG_COUNT];
    bool at_peak;

    struct zr_trace *trace; /* NULL: none */
};

static inline size_t zr_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

static inline size_t zr_round_down(size_t bytes, size_t unit)
{
    return bytes & ~(unit - 1);
}

/* ---- space.c: cannot fail; the caller has reserved the span records -------------------------------------
 */

enum { ZR_CARVE_SPANS = 2, ZR_MAP_SPANS = 1, ZR_UNMAP_SPANS = 2 };

/* One span over the whole range, unmapped. */
void zr_space_init(struct zr_arena *arena);
/* Makes a part of a free mapped span into a block, its fields but the place undefined. */
struct zr_span *zr_space_carve(struct zr_arena *arena, struct zr_span *hole, struct zr_extent part);
/* Makes the block's space free and merges it with its neighbours. `spare` becomes the hole where a new span
 * is needed and is given back where not. The block is out of the list, the caller's to retire. */
void zr_space_free(struct zr_arena *arena, struct zr_span *block, struct zr_span *spare);
/* True if zr_space_free() of the block will need a span of its own. */
bool zr_space_free_needs_span(const struct zr_span *block);
/* The first `bytes` of an unmapped span have been mapped. Returns the free span that holds them. */
struct zr_span *zr_space_map(struct zr_arena *arena, struct zr_span *span, size_t bytes);
/* A part of a free mapped span, whole granules, has been unmapped. */
void zr_space_unmap(struct zr_arena *arena, struct zr_span *span, struct zr_extent part);
/* Takes a mapped span out of sight of best fit and stealing, and puts it back. NULL does nothing. */
void zr_space_hide(struct zr_arena *arena, struct zr_span *span);
void zr_space_show(struct zr_arena *arena, struct zr_span *span);
/* The whole granules inside a span, in bytes. */
size_t zr_space_whole_bytes(const struct zr_arena *arena, const struct zr_span *span);

/* ---- extend.c -------------------------------------------------------------------------------------------
 */

/* What the search is for. */
struct zr_need {
    size_t bytes, alignment;
};

/* Maps memory so that *out, a free mapped span, holds `need`. A failure leaves the arena's books as they
 * were, but for whole granules of holes that may be in the stock now. */
zr_result zr_extend(struct zr_arena *arena, struct zr_need need, struct zr_span **out);
/* Gives back stock and whole free granules until `keep_bytes` of them are left; returns what was released. */
size_t zr_trim(struct zr_arena *arena, size_t keep_bytes);
/* Whole granules for a range that is not the arena's own, as single-granule handles: from the stock, from
 * holes, from the driver; they count as reserved by the arena. Take the arena's lock themselves.
 * ZR_ERR_MEMORY: nothing was taken. */
zr_result zr_granules_take(struct zr_arena *arena, size_t bytes, struct zr_handle_list *out);
void zr_granules_give(struct zr_arena *arena, struct zr_handle_list *list);
/* Gives back everything, before the arena ends. ZR_ERR_UNAVAILABLE: the driver kept some of it, and the range
 * with it (arena->range is NULL then). */
zr_result zr_release_all(struct zr_arena *arena);

/* ---- report.c -------------------------------------------------------------------------------------------
 */

/* The words for a request that could not be had; returns `result`. Reads this thread's last error as the
 * cause. */
zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request);

/* ---- stats.c --------------------------------------------------------------------------------------------
 */

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out);

/* ---- check.c: ZR_ERR_CORRUPT with words ------------------------------------------------------------------
 */

zr_result zr_check_arena(struct zr_arena *arena);

/* ---- arena.c: the list of all arenas ---------------------------------------------------------------------
 */

/* The arena of that number with its lock taken, NULL if none. The caller unlocks it with zr_arenas_unlock().
 */
struct zr_arena *zr_arenas_lock(unsigned number);
void zr_arenas_unlock(struct zr_arena *arena);
void zr_arenas_before_fork(void);
void zr_arenas_after_fork(void);
void zr_arenas_after_fork_child(void);

#endif
