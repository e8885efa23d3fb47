/* streams.h: free space that a stream may still be working on. Private to alloc/. The arena's lock covers
 * every call.
 *
 * The program frees a block while work of its stream may still be queued. On a backend with asynchronous
 * streams the free extent therefore has an owner: that stream may reuse it at once, since its work runs in
 * order, and other streams once the free has passed. A free records nothing. When granules are missing, an
 * event is recorded in each stream that owns free extents; once it has passed, everything that the stream
 * freed before it loses its owner. A steady stream thus makes no driver calls, and an idle stream keeps
 * nothing. Granules are unmapped only under free extents without an owner.
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

/* Streams that can own free extents at one time. One more waits until all are idle. */
enum { ZR_STREAMS_MAX = 255 };

/* An event behind all that a stream had freed when it was recorded. */
struct zr_stream_mark {
    uint32_t freed;
    uint32_t order; /* among all the arena's points */
    struct zr_stream_point point;
};

enum { ZR_STREAM_MARKS = 4 };

struct zr_stream {
    uint64_t stream;
    uint32_t freed;  /* counts the frees */
    uint32_t passed; /* up to this count all is anybody's */
    unsigned marks_count;
    struct zr_stream_mark marks[ZR_STREAM_MARKS]; /* that had not passed when asked last, oldest first */
    size_t pending_bytes;                         /* in the free extents */
    struct zr_bins gaps[ZR_ZONE_COUNT];
};

/* A stream's use of a block that is another's. */
struct zr_use {
    struct zr_use *next; /* of the same block */
    struct zr_use_queue *queue;
    /* Once the block was freed: */
    struct zr_extent *block;
    struct zr_use *later; /* in the queue */
    uint32_t order;       /* of the point */
    bool recorded;        /* the point is; else it is tried again, and the block stays */
    struct zr_stream_point point;
};

/* One stream's uses of blocks that were freed, in the order of the frees. */
struct zr_use_queue {
    struct zr_use_queue *next;
    struct zr_use *first, *last;
    uint64_t stream;
    size_t uses_count; /* of blocks that are live, too; 0: the queue ends */
};

/* The number by which free extents name their owner; 0 if the stream owns none. Never fails. */
unsigned zr_streams_find(struct zr_arena *arena, uint64_t stream);
/* The same, and makes one; 0 if there is none left or no memory for it (*result says why): then the caller
 * waits. */
unsigned zr_streams_number(struct zr_arena *arena, uint64_t stream);
/* Counts a free of the stream and returns its number. Once in a billion it waits for the stream; while that
 * cannot be, what is freed has the number of the last, and no event from before. */
uint32_t zr_streams_count_free(struct zr_arena *arena, unsigned number);
/* True if the free of that number has passed, as far as anybody asked. */
static inline bool zr_streams_passed(const struct zr_stream *own, uint32_t serial)
{
    return (int32_t)(serial - own->passed) <= 0;
}
/* Asks what has passed, records events where free extents have none. True if anything became anybody's. */
bool zr_streams_poll(struct zr_arena *arena);
/* Waits until something becomes anybody's, at the points that were recorded first. False: nothing is pending,
 * or nothing can be waited for: it stays with its streams. Call it again while that is not enough. */
bool zr_streams_wait(struct zr_arena *arena);
/* Notes that the stream uses the block, once for each stream. False: the system refuses memory. */
bool zr_streams_use(struct zr_arena *arena, struct zr_extent *block, uint64_t stream);
bool zr_streams_uses(const struct zr_extent *block, uint64_t stream);
/* The block has uses by other streams and was freed: it leaves when they have passed. */
void zr_streams_defer(struct zr_arena *arena, struct zr_extent *block);
/* A freed block, out of the index, whose stream has no number and cannot be waited for: it stays, and counts
 * as pending, until one or the other can be. */
void zr_streams_defer_unnumbered(struct zr_arena *arena, struct zr_extent *block);
void zr_streams_end(struct zr_arena *arena);

#endif
