/* contiguous.h: a contiguous pool's state, shared by the files that work on it. Private to alloc/.
 *
 *   contiguous.c          life, entries by handle, statistics and checks
 *   contiguous_space.c    the extents: granules beneath them, what streams still use, the arena's counters
 *   contiguous_compact.c  moving entries down
 *
 * An extent is a stretch of the pool's addresses that is in use; extents are linked in address order and do
 * not overlap. Between them is nothing but free addresses, under which granules may lie (idle ones where
 * whole). Lock order: pool, arena, backend. The lock of the list of pools and a pool's `view` are leaves:
 * a holder of one acquires no other lock, except the view under the list's. */
#ifndef ZR_CONTIGUOUS_H
#define ZR_CONTIGUOUS_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/space.h"

enum zr_pool_extent_kind {
    ZR_POOL_EXTENT_LIVE = 0, /* an entry */
    ZR_POOL_EXTENT_LEAVING,  /* was one; its stream has not passed yet. The same stream may use it again */
    ZR_POOL_EXTENT_ALIAS,    /* granules of an entry that lies elsewhere; to be unmapped, never to be used */
    ZR_POOL_EXTENT_BOUNCE,   /* a granule through which a compaction copies; lives no longer than that */
};

struct zr_pool_extent {
    struct zr_pool_extent *previous, *next; /* by address; NULL at the ends */
    size_t offset_bytes;
    size_t bytes; /* with rounding */
    size_t requested_bytes;
    size_t alignment;
    uint64_t stream;              /* that has used it last */
    struct zr_stream_point point; /* LEAVING and ALIAS, once recorded */
    struct zr_pool_extent *next_leaving;
    uint32_t number; /* LIVE: of its handle */
    uint32_t borrows_count;
    uint8_t kind; /* enum zr_pool_extent_kind */
    bool recorded;
    bool movable;
    bool corrupt; /* half moved: the contents are lost */
};

/* What a handle stands for: its number and generation. */
struct zr_entry_slot {
    struct zr_pool_extent *extent; /* NULL: free */
    uint32_t generation;           /* of the entry that is there, or comes next */
    uint32_t next_free;            /* number + 1 of the next free slot; 0: none */
};

struct zr_contiguous {
    /* Set at creation. */
    char name[ZR_ARENA_NAME_BYTES];
    zr_arena *arena;
    zr_backend *backend;
    zr_tag tag;
    size_t granule_bytes;
    char *base;         /* range->address */
    size_t limit_bytes; /* where entries end at the latest; one granule of the range lies behind it */
    struct zr_map_callback map_callback;
    struct zr_contiguous *next_of_arena; /* lock: arena->lock */
    struct zr_contiguous *next, *before; /* all pools; lock: that of the list */

    struct zr_pool_counters counters; /* lock: arena->lock */

    /* Which extents there are, and where: changed with both locks, so that a search needs no other than this
     * one. Never held during a map callback or while another lock is acquired. */
    struct zr_lock view;

    struct zr_lock lock; /* everything below */
    struct zr_range *range;
    size_t keep_bytes;
    struct zr_slab extents;
    struct zr_pool_extent *first, *last;
    struct zr_pool_extent *leaving, *leaving_last; /* LEAVING and ALIAS, the oldest first */
    struct zr_entry_slot *slots;
    uint32_t slots_count; /* that were ever used */
    uint32_t free_slot;   /* number + 1; 0: none */

    size_t live_bytes, requested_bytes, pending_bytes;
    size_t touched_count;    /* granules of addresses that an extent touches: all of them mapped */
    size_t mapped_bytes;     /* addresses with a granule beneath; a granule under an alias counts twice */
    size_t mapped_end_bytes; /* nothing is mapped from here on */
    size_t held_bytes;       /* granules */
    size_t peak_live_bytes, peak_held_bytes;
    size_t entries_count, borrowed_count;
    uint64_t appended_count, copied_bytes, remapped_bytes, backend_calls_count;
    uint64_t published_appended_count, published_calls_count; /* of these, in the arena's totals already */
    size_t promise_over_bytes; /* promised under the tag's tag limit, and no longer needed */
};

static inline size_t zr_pool_extent_end(const struct zr_pool_extent *extent)
{
    return extent->offset_bytes + extent->bytes;
}

static inline char *zr_pool_extent_address(const struct zr_contiguous *pool,
                                           const struct zr_pool_extent *extent)
{
    return pool->range->address + extent->offset_bytes;
}

/* Bytes in mapped granules that no extent touches. */
static inline size_t zr_contiguous_idle_bytes(const struct zr_contiguous *pool)
{
    return pool->mapped_bytes - pool->touched_count * pool->granule_bytes;
}

/* Whole granules around an extent. */
static inline struct zr_bounds zr_whole_around(const struct zr_contiguous *pool, struct zr_bounds part)
{
    size_t first = zr_round_down(part.offset_bytes, pool->granule_bytes);
    return (struct zr_bounds){first,
                              zr_round_up(part.offset_bytes + part.bytes, pool->granule_bytes) - first};
}

/* ---- contiguous_space.c; lock: pool->lock -------------------------------------------------------------- */

/* The first three with pool->view as well. Links an extent behind `after` (NULL: as the first) and counts it;
 * and the reverse. */
void zr_pool_extent_link(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                         struct zr_pool_extent *after);
void zr_pool_extent_unlink(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Links an extent at its offset, over what its own stream leaves there, which is cut or dropped. `after`:
 * some extent before it, NULL: none. Takes at most one record, and may give some. Everything else is out of
 * the way. */
void zr_pool_extent_claim(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                          struct zr_pool_extent *after);
/* Makes an extent, linked already or about to be, one that its stream leaves. */
void zr_pool_extent_leave(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Ends what streams have left; `wait`: waits for them all. The first failure of a wait or an unmap; what it
 * concerns stays, for the next time. */
zr_result zr_contiguous_finish_leaving(struct zr_contiguous *pool, bool wait);
/* The same without waiting, for a call of this stream, which may have what it has left itself. */
void zr_contiguous_poll(struct zr_contiguous *pool, uint64_t stream);
/* Waits for and ends whatever is left in the extent, but for what that one stream leaves (NULL: all). */
zr_result zr_contiguous_clear(struct zr_contiguous *pool, struct zr_bounds part, const uint64_t *but_stream);

/* Maps granules under all of an extent, with access. ZR_ERR_MEMORY, ZR_ERR_ADDRESSES: none was added, unless
 * the driver would not take them back: they are idle then. */
zr_result zr_contiguous_back(struct zr_contiguous *pool, struct zr_bounds part);
/* Notifies the map callbacks of new mappings with access. On a callback's failure, with its message, no
 * callback knows them. */
zr_result zr_contiguous_notify(struct zr_contiguous *pool, struct zr_bounds part);
/* Unmaps up to `most` bytes of granules in an extent of whole granules that no extent touches, from its end
 * on, and gives them to the arena. The failure of an unmap leaves what it concerns. */
zr_result zr_contiguous_release(struct zr_contiguous *pool, struct zr_bounds part, size_t most);
/* Releases idle granules wherever they are, until `keep_bytes` are left. */
zr_result zr_contiguous_release_idle(struct zr_contiguous *pool, size_t keep_bytes);
/* Unmaps everything before the pool ends, live or not; true if the driver did. */
bool zr_contiguous_release_all(struct zr_contiguous *pool);

/* Waits with an event, which counts as one. */
static inline zr_result zr_contiguous_stream_wait(struct zr_contiguous *pool, uint64_t stream)
{
    pool->backend_calls_count++;
    return zr_backend_stream_wait(pool->backend, stream);
}

/* Brings the arena's totals up to date. */
void zr_contiguous_publish(struct zr_contiguous *pool);

/* ---- contiguous_compact.c; lock: pool->lock ------------------------------------------------------------ */

zr_result zr_contiguous_move_down(struct zr_contiguous *pool);

/* ---- For the arena ------------------------------------------------------------------------------------- */

extern const struct zr_pool_calls zr_contiguous_calls;
/* What all pools of the arena hold together. lock: arena->lock */
void zr_pools_counters(const struct zr_arena *arena, struct zr_pool_counters *out);

#endif
