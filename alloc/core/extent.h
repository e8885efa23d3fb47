/* extent.h: one stretch of an arena's addresses: a block, or a free extent between blocks. Private to alloc/.
 *
 * The extents of an arena are linked in address order without gaps and cover the whole reservation. What is
 * mapped under a free extent is in the granules' bitmap: a free extent's size, by which it is found, does not
 * change when granules move. Free extents of one zone and owner never touch. Offsets are from the start of
 * the reservation. */
#ifndef ZR_EXTENT_H
#define ZR_EXTENT_H

#include <stdatomic.h>

#include "alloc/zr.h"

/* The grain of blocks: what CUDA's own allocations are aligned to, and four cache lines. */
enum { ZR_UNIT_BYTES = 256, ZR_UNIT_SHIFT = 8 };

enum zr_extent_kind {
    ZR_EXTENT_BLOCK = 0, /* a caller's */
    ZR_EXTENT_FREE,      /* free addresses, granules beneath or not */
    ZR_EXTENT_CACHED,    /* free, mapped, not merged with its neighbours yet */
    ZR_EXTENT_REGION,    /* a plan's: its blocks are in no list, granules beneath as they were needed */
    ZR_EXTENT_PLANNED,   /* a block in a region; not linked */
    ZR_EXTENT_LEAVING,   /* a block whose free is under way without the lock, or memory the driver will not
                          * unmap
                          */
};

/* Which addresses a size goes to (space.c says why). */
enum zr_zone_number { ZR_ZONE_GENERAL = 0, ZR_ZONE_WHOLE, ZR_ZONE_SMALL, ZR_ZONE_COUNT /* a plan's */ };

struct zr_use;

/* What an extent is, as one word: the same of free extents that would merge. */
union zr_extent_marks {
    struct {
        uint8_t kind, tag, zone, owner;
    };
    uint32_t word;
};

struct zr_extent {
    size_t offset_bytes;
    size_t bytes; /* a multiple of ZR_UNIT_BYTES */
    union {
        uint32_t slack_bytes; /* block: bytes beyond the requested size */
        uint32_t bin; /* free extent: where it is filed by its size; 0: the open end of a zone, in no bin */
    };
    _Atomic uint32_t sequence; /* odd while a block is in the index: see zr_extent_read() */
    union {
        struct {
            uint64_t stream; /* block */
            union {
                struct zr_use *uses;          /* block: other streams that use it, see streams.h */
                struct zr_extent *unnumbered; /* the next freed block whose stream's progress is unknown */
            };
        };
        struct zr_extent *children[2]; /* free extent, filed: smaller and larger */
    };
    struct zr_extent *previous, *next; /* by address; NULL at the ends. Retired: the next one in `previous` */
    union {
        struct {
            uint8_t kind;  /* enum zr_extent_kind */
            uint8_t tag;   /* block; 0 of a free extent */
            uint8_t zone;  /* enum zr_zone_number */
            uint8_t owner; /* free extent: the stream that alone may use it yet, see streams.h; 0: anyone */
        };
        union zr_extent_marks marks;
    };
    uint32_t serial; /* free extent with an owner: when it was freed, in that stream's counting; block: see
                        zr_extent_stack() */
};

static inline size_t zr_extent_requested_bytes(const struct zr_extent *block)
{
    return block->bytes - block->slack_bytes;
}

/* The marks of another extent without a tag, in the same zone and of the same owner. */
static inline union zr_extent_marks zr_extent_marks_as(const struct zr_extent *extent,
                                                       enum zr_extent_kind kind)
{
    static const union zr_extent_marks place = {.zone = 0xff, .owner = 0xff};
    union zr_extent_marks marks = {.kind = (uint8_t)kind};
    marks.word |= extent->marks.word & place.word;
    return marks;
}

static inline size_t zr_extent_end(const struct zr_extent *extent)
{
    return extent->offset_bytes + extent->bytes;
}

#endif
