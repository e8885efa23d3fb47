/* streams.h: free space that a stream may still use. Private to alloc/. The arena's lock covers every call.
 *
 * The program frees a block while work of its stream may still be queued. On a backend with asynchronous
 * streams the free extent therefore has an owner: that stream may reuse it at once, since its work runs in
 * order, and other streams once the free has passed. A free records nothing. When granules are missing, the
 * arena records an event in each stream that owns free extents. Once the event has passed, everything that
 * the stream freed before it loses its owner. A steady stream thus makes no driver calls, and an idle stream
 * keeps nothing. Granules are unmapped only under free extents without an owner.
 *
 * For a block that a second stream uses (zr_block_use) the free records an event in each of those streams,
 * and the block joins no free extent until they have passed. Each stream has a queue of such uses in the
 * order of the frees. Events of one stream pass in that order, so a poll queries only the first of each
 * queue, however many blocks wait. */
#ifndef ZR_STREAMS_H
#define ZR_STREAMS_H

#include "alloc/backend/backend.h"
#include "alloc/core/bins.h"

struct zr_arena;

/* The max number of streams that own free extents at one time. A further stream waits until its work is
 * complete. */
enum { ZR_STREAMS_MAX = 255 };

/* An event, and the number of the stream's last free before it. */
struct zr_stream_mark {
    uint32_t freed;
    uint32_t order; /* order among all points of the arena */
    struct zr_stream_point point;
};

enum { ZR_STREAM_MARKS = 4 };

struct zr_stream {
    uint64_t stream;
    uint32_t freed;  /* the number of the last free */
    uint32_t passed; /* frees up to this number have passed */
    unsigned marks_count;
    struct zr_stream_mark marks[ZR_STREAM_MARKS]; /* events not known to have passed, oldest first */
    size_t pending_bytes;                         /* bytes of the stream's free extents */
    struct zr_bins gaps[ZR_ZONE_COUNT];
};

/* A use of a block by a stream that did not allocate it. */
struct zr_use {
    struct zr_use *next; /* the next use of the same block */
    struct zr_use_queue *queue;
    /* Valid after the block was freed. */
    struct zr_extent *block;
    struct zr_use *later; /* the next use in the queue */
    uint32_t order;       /* order of the point */
    bool recorded;        /* false: recording failed and is retried; the block stays */
    struct zr_stream_point point;
};

/* The uses of one stream, in the order in which the blocks were freed. */
struct zr_use_queue {
    struct zr_use_queue *next;
    struct zr_use *first, *last;
    uint64_t stream;
    size_t uses_count; /* counts uses of live blocks too; 0: the queue is removed */
};

/* The stream's number, by which free extents name their owner; 0: the stream has no number. Never fails. */
unsigned zr_streams_find(struct zr_arena *arena, uint64_t stream);
/* As zr_streams_find(), but gives the stream a number if it has none. 0: no number or no memory is left, and
 * the caller must wait for the stream. */
unsigned zr_streams_number(struct zr_arena *arena, uint64_t stream);
/* Counts a free of the stream and returns its number. Waits for the stream after 2^30 frees without a known
 * event. If that wait fails, the free gets the number of the last one, which no recorded event covers. */
uint32_t zr_streams_count_free(struct zr_arena *arena, unsigned number);
/* Whether the free of that number is known to have passed. */
static inline bool zr_streams_passed(const struct zr_stream *own, uint32_t serial)
{
    return (int32_t)(serial - own->passed) <= 0;
}
/* Queries events, and records one in each stream whose free extents have none. True: some free extent lost
 * its owner, or some deferred block was freed. */
bool zr_streams_poll(struct zr_arena *arena);
/* Waits, oldest point first, until memory loses its owner. False: nothing is pending, or every wait failed
 * and the memory stays pending. Call it again if the released memory is not enough. */
bool zr_streams_wait(struct zr_arena *arena);
/* Notes that the stream uses the block. Call it once for each stream. False: the system refuses memory. */
bool zr_streams_use(struct zr_arena *arena, struct zr_extent *block, uint64_t stream);
bool zr_streams_uses(const struct zr_extent *block, uint64_t stream);
/* Defers a freed block that other streams use until their uses have passed. */
void zr_streams_defer(struct zr_arena *arena, struct zr_extent *block);
/* Defers a freed block, already out of the index, whose stream has no number and could not be waited for. The
 * block counts as pending until the stream gets a number or can be waited for. */
void zr_streams_defer_unnumbered(struct zr_arena *arena, struct zr_extent *block);
void zr_streams_end(struct zr_arena *arena);

#endif
