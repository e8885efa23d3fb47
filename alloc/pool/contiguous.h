/* contiguous.h: a contiguous pool's state, shared by the files that work on it. Private to alloc/.
 *
 *   contiguous.c          creation, entries by handle, statistics and checks
 *   contiguous_space.c    extents, granules under them, extents that streams still use, the arena's counters
 *   contiguous_compact.c  moves entries down
 *
 * An extent is a range of the pool's addresses in use; extents are linked in address order and do not
 * overlap. Addresses between extents are free; a granule that lies entirely under free addresses is idle.
 * Lock order: pool, arena, backend. The lock of the list of pools and a pool's `view` are leaf locks: no
 * other lock is acquired under them, except a view under the list's lock. */
#ifndef ZR_CONTIGUOUS_H
#define ZR_CONTIGUOUS_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/space.h"

enum zr_pool_extent_kind {
    ZR_POOL_EXTENT_LIVE = 0, /* an entry */
    ZR_POOL_EXTENT_LEAVING,  /* a freed entry that its stream has not passed; the same stream may reuse it */
    ZR_POOL_EXTENT_ALIAS,    /* a second mapping of an entry's granules; to be unmapped, never used */
    ZR_POOL_EXTENT_BOUNCE,   /* a granule for copies of a compaction, until the compaction ends */
};

struct zr_pool_extent {
    struct zr_pool_extent *previous, *next; /* in address order; NULL at the ends */
    size_t offset_bytes;
    size_t bytes; /* with rounding */
    size_t requested_bytes;
    size_t alignment;
    uint64_t stream;              /* the last user */
    struct zr_stream_point point; /* LEAVING and ALIAS, if `recorded` */
    struct zr_pool_extent *next_leaving;
    uint32_t number; /* LIVE: the slot of its handle */
    uint32_t borrows_count;
    uint8_t kind; /* enum zr_pool_extent_kind */
    bool recorded;
    bool movable;
    bool corrupt; /* a failed move has lost the contents */
};

/* A handle has the slot's number and the entry's generation. */
struct zr_entry_slot {
    struct zr_pool_extent *extent; /* NULL: free */
    uint32_t generation;           /* of the present or the next entry */
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
    size_t limit_bytes; /* the end of the range, the limit of entries */
    struct zr_map_callback map_callback;
    struct zr_contiguous *next_of_arena; /* lock: arena->lock */
    struct zr_contiguous *next, *before; /* list of all pools; lock: the list's */

    struct zr_pool_counters counters; /* lock: arena->lock */

    /* Guards the linked extents and their offsets, which change only under both locks, so that a search needs
     * only this lock. Never held during a map callback or while another lock is acquired. */
    struct zr_lock view;

    struct zr_lock lock; /* for all fields below */
    struct zr_range *range;
    size_t keep_bytes;
    struct zr_slab extents;
    struct zr_pool_extent *first, *last;
    struct zr_pool_extent *leaving, *leaving_last; /* LEAVING and ALIAS extents, oldest first */
    struct zr_entry_slot *slots;
    uint32_t slots_count; /* slots used so far */
    uint32_t free_slot;   /* number + 1; 0: none */

    size_t live_bytes, requested_bytes, pending_bytes;
    size_t touched_count;    /* granules that an extent touches; all are mapped */
    size_t mapped_bytes;     /* addresses with a granule; a granule with an alias counts twice */
    size_t mapped_end_bytes; /* the end of the last mapping */
    size_t held_bytes;       /* bytes of granules */
    size_t peak_live_bytes, peak_held_bytes;
    size_t entries_count, borrowed_count;
    uint64_t appended_count, copied_bytes, remapped_bytes, backend_calls_count;
    uint64_t published_appended_count, published_calls_count; /* the part in the arena's totals */
    size_t promise_over_bytes; /* promised under the tag limit and no longer needed */
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

/* Bytes of mapped granules that no extent touches. */
static inline size_t zr_contiguous_idle_bytes(const struct zr_contiguous *pool)
{
    return pool->mapped_bytes - pool->touched_count * pool->granule_bytes;
}

/* The whole granules around a part of the addresses. */
static inline struct zr_bounds zr_whole_around(const struct zr_contiguous *pool, struct zr_bounds part)
{
    size_t first = zr_round_down(part.offset_bytes, pool->granule_bytes);
    return (struct zr_bounds){first,
                              zr_round_up(part.offset_bytes + part.bytes, pool->granule_bytes) - first};
}

/* ---- contiguous_space.c; lock: pool->lock -------------------------------------------------------------- */

/* The first three functions also need pool->view. Links an extent after `after` (NULL: as the first) and
 * counts it; unlinks and uncounts an extent. */
void zr_pool_extent_link(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                         struct zr_pool_extent *after);
void zr_pool_extent_unlink(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Links an extent at its offset. Leaving extents of its own stream there are cut or removed; the caller has
 * made sure that no other extent is there. `after`: any extent before it; NULL: none. Takes at most one
 * record. */
void zr_pool_extent_claim(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                          struct zr_pool_extent *after);
/* Turns an extent into a leaving one of its stream. The extent may be linked or not yet linked. */
void zr_pool_extent_leave(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Frees leaving extents that their streams have passed; `wait`: waits for all. Returns the first failure of a
 * wait or an unmap; a failed extent remains leaving. */
zr_result zr_contiguous_finish_leaving(struct zr_contiguous *pool, bool wait);
/* As before without waiting, for a call of a stream, which may reuse its own leaving extents. */
void zr_contiguous_poll(struct zr_contiguous *pool, uint64_t stream);
/* Waits for and frees the leaving extents in the part, except those of one stream (NULL: no exception). */
zr_result zr_contiguous_clear(struct zr_contiguous *pool, struct zr_bounds part,
                              const uint64_t *except_stream);

/* Maps granules with access under all of the part. ZR_ERR_MEMORY, ZR_ERR_ADDRESSES: no granule was added; if
 * the driver refuses to unmap a granule, it stays as an idle one. */
zr_result zr_contiguous_back(struct zr_contiguous *pool, struct zr_bounds part);
/* Notifies the map callback of new mappings with access. After a failure of the callback, with a message, the
 * callback does not know the mappings. */
zr_result zr_contiguous_notify(struct zr_contiguous *pool, struct zr_bounds part);
/* Unmaps up to max_bytes of granules in a part of whole granules that no extent touches, from its end on, and
 * returns them to the arena. A granule whose unmap fails remains mapped. */
zr_result zr_contiguous_release(struct zr_contiguous *pool, struct zr_bounds part, size_t max_bytes);
/* Releases idle granules until keep_bytes of them are left. */
zr_result zr_contiguous_release_idle(struct zr_contiguous *pool, size_t keep_bytes);
/* Unmaps all granules before the pool is destroyed, including those of live entries. False: the driver
 * refused. */
bool zr_contiguous_release_all(struct zr_contiguous *pool);

/* Waits for a stream, which counts as a backend call. */
static inline zr_result zr_contiguous_stream_wait(struct zr_contiguous *pool, uint64_t stream)
{
    pool->backend_calls_count++;
    return zr_backend_stream_wait(pool->backend, stream);
}

/* Updates the arena's totals. */
void zr_contiguous_publish(struct zr_contiguous *pool);

/* ---- contiguous_compact.c; lock: pool->lock ------------------------------------------------------------ */

zr_result zr_contiguous_move_down(struct zr_contiguous *pool);

/* ---- For the arena ------------------------------------------------------------------------------------- */

extern const struct zr_pool_calls zr_contiguous_calls;
/* The sums over all pools of the arena. lock: arena->lock */
void zr_pools_counters(const struct zr_arena *arena, struct zr_pool_counters *out);

#endif
