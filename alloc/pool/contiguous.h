/* contiguous.h: a contiguous pool's state, shared by the files below. Private to alloc/.
 *
 *   contiguous.c          creation, entries by handle, statistics and checks
 *   contiguous_space.c    extents, granules under them, pending extents, the arena's counters
 *   contiguous_compact.c  moves entries down
 *
 * An extent is a range of the pool's addresses that is in use. Extents are linked in address order and do not
 * overlap. Addresses between extents are free; a granule that lies entirely under free addresses is idle.
 * Lock order: pool, arena, backend. The lock of the list of pools and a pool's `view` are leaf locks: a
 * thread that holds one acquires no other lock, except a view under the list's lock. */
#ifndef ZR_CONTIGUOUS_H
#define ZR_CONTIGUOUS_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/space.h"

enum zr_pool_extent_kind {
    ZR_POOL_EXTENT_LIVE = 0, /* an entry */
    ZR_POOL_EXTENT_PENDING,  /* a freed entry that its stream may still use; that stream may reuse it */
    ZR_POOL_EXTENT_ALIAS,    /* a second mapping of an entry's granules, to be unmapped */
    ZR_POOL_EXTENT_BOUNCE,   /* a granule for copies of a compaction, until the compaction ends */
};

struct zr_pool_extent {
    struct zr_pool_extent *previous, *next; /* in address order; NULL at the ends */
    size_t offset_bytes;
    size_t bytes; /* the size after rounding */
    size_t requested_bytes;
    size_t alignment;
    uint64_t stream;              /* the stream that used it last */
    struct zr_stream_point point; /* PENDING and ALIAS: valid if `recorded` */
    struct zr_pool_extent *next_pending;
    uint32_t number; /* LIVE: the slot of its handle */
    uint32_t borrows_count;
    uint8_t kind; /* enum zr_pool_extent_kind */
    bool recorded;
    bool movable;
    bool corrupt; /* a failed move has lost the contents */
};

/* A handle has the slot's number and the entry's generation. */
struct zr_entry_slot {
    struct zr_pool_extent *extent; /* NULL: the slot is free */
    uint32_t generation;           /* of the current entry, or of the next one */
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
    size_t limit_bytes; /* size of the range, the limit of entries */
    struct zr_map_callback map_callback;
    struct zr_contiguous *next_of_arena; /* lock: arena->lock */
    struct zr_contiguous *next, *before; /* list of all pools; lock: the list's (contiguous.c) */

    struct zr_pool_counters counters; /* lock: arena->lock */

    /* Guards the linked extents and their offsets, which change only under both locks, so that a search needs
     * only this lock. Never held during a map callback or while another lock is acquired. */
    struct zr_lock view;

    struct zr_lock lock; /* covers all fields below */
    struct zr_range *range;
    size_t keep_bytes;
    struct zr_slab extents;
    struct zr_pool_extent *first, *last;
    struct zr_pool_extent *first_pending, *last_pending; /* PENDING and ALIAS extents, oldest first */
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
    uint64_t published_appended_count, published_calls_count; /* counts already in the arena's totals */
    size_t promise_over_bytes; /* promised under the tag limit, and no longer needed */
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

/* The first three functions also need pool->view. zr_pool_extent_link() links an extent after `after` (NULL:
 * as the first) and adds it to the counters; zr_pool_extent_unlink() reverses this. */
void zr_pool_extent_link(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                         struct zr_pool_extent *after);
void zr_pool_extent_unlink(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Links an extent at its offset. Shortens or removes pending extents of the same stream there; the caller has
 * made sure that no other extent is there. `after`: any extent before the offset; NULL: none. Takes at most
 * one record. */
void zr_pool_extent_claim(struct zr_contiguous *pool, struct zr_pool_extent *extent,
                          struct zr_pool_extent *after);
/* Makes an extent pending in its stream. The extent may be linked or not yet linked. */
void zr_pool_extent_defer(struct zr_contiguous *pool, struct zr_pool_extent *extent);
/* Frees pending extents that their streams have passed; with `wait`, waits for all. Returns the first failure
 * of a wait or an unmap; such an extent stays pending. */
zr_result zr_contiguous_finish_pending(struct zr_contiguous *pool, bool wait);
/* As zr_contiguous_finish_pending() without waiting, for a request of a stream, which may reuse the stream's
 * own pending extents. */
void zr_contiguous_poll(struct zr_contiguous *pool, uint64_t stream);
/* Waits for and frees the pending extents in the part, except those of one stream (NULL: no exception). */
zr_result zr_contiguous_clear(struct zr_contiguous *pool, struct zr_bounds part,
                              const uint64_t *except_stream);

/* Maps granules with access under the whole part. ZR_ERR_MEMORY, ZR_ERR_ADDRESSES: no granule was added; a
 * granule that the driver refuses to unmap stays as an idle one. */
zr_result zr_contiguous_back(struct zr_contiguous *pool, struct zr_bounds part);
/* Notifies the map callback of new mappings with access. After a failure of the callback, with a message, the
 * callback does not know the mappings. */
zr_result zr_contiguous_notify(struct zr_contiguous *pool, struct zr_bounds part);
/* Unmaps up to max_bytes of granules in a part of whole granules that no extent touches, from its end on, and
 * returns them to the arena. A granule whose unmap fails remains mapped. */
zr_result zr_contiguous_release(struct zr_contiguous *pool, struct zr_bounds part, size_t max_bytes);
/* Releases idle granules until at most keep_bytes of them remain. */
zr_result zr_contiguous_release_idle(struct zr_contiguous *pool, size_t keep_bytes);
/* Unmaps all granules before the pool is destroyed, also those of live entries. False: the driver refused. */
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
