/* extent.h: one range of an arena's addresses: a block, or a free extent between blocks. Private to alloc/.
 *
 * The extents of an arena are linked in address order without gaps and cover the whole reservation. The
 * bitmap of granules, not the extent, records the mappings under a free extent. The size by which a free
 * extent is found therefore does not change when granules move. Free extents of one zone and owner never
 * touch. Offsets are from the start of the reservation. */
#ifndef ZR_EXTENT_H
#define ZR_EXTENT_H

#include <stdatomic.h>

#include "alloc/zr.h"

/* The unit of block sizes: the alignment of CUDA's own allocations, and four cache lines. */
enum { ZR_UNIT_BYTES = 256, ZR_UNIT_SHIFT = 8 };

enum zr_extent_kind {
    ZR_EXTENT_BLOCK = 0, /* allocated by a caller */
    ZR_EXTENT_FREE,      /* free addresses, with or without granules */
    ZR_EXTENT_CACHED,    /* free and mapped, in the size cache, not merged with its neighbours */
    ZR_EXTENT_REGION,    /* a plan's region: its blocks are in no list */
    ZR_EXTENT_PLANNED,   /* a block in a region; not linked */
    ZR_EXTENT_DEFERRED, /* a freed block that streams still use, or memory that the driver refuses to unmap */
    ZR_EXTENT_KEPT,     /* a freed block that the arena's owner keeps for reuse: see zr_block_keep() */
};

/* The part of the addresses that a size goes to (see space.c). */
enum zr_zone_number {
    ZR_ZONE_GENERAL = 0,
    ZR_ZONE_WHOLE,
    ZR_ZONE_SMALL,
    ZR_ZONE_COUNT /* of a plan's blocks */
};

struct zr_use;

/* The marks of an extent as one word. Free extents with equal marks merge when they touch. */
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
        uint32_t bin;         /* free extent: its bin; 0: the open end of a zone, which is in no bin */
    };
    _Atomic uint32_t sequence; /* odd while a block is in the index: see zr_extent_read() */
    union {
        struct {
            uint64_t stream; /* block: the stream that it was allocated for */
            union {
                struct zr_use *uses;          /* block: other streams that use it, see streams.h */
                struct zr_extent *unnumbered; /* the next freed block whose stream's progress is unknown */
            };
        };
        struct zr_extent *children[2]; /* free extent in a bin: smaller and larger extents */
    };
    struct zr_extent *previous, *next; /* neighbours by address; planned blocks: see alloc/plan */
    union {
        struct {
            uint8_t kind;  /* enum zr_extent_kind */
            uint8_t tag;   /* block: its tag; free extent: 0 */
            uint8_t zone;  /* enum zr_zone_number */
            uint8_t owner; /* free extent: the stream that may use it now, see streams.h; 0: every stream */
        };
        union zr_extent_marks marks;
    };
    uint32_t serial; /* free extent with an owner: the number of its free in that stream; block: see
                        zr_extent_stack() */
};

static inline size_t zr_extent_requested_bytes(const struct zr_extent *block)
{
    return block->bytes - block->slack_bytes;
}

/* The extent's marks with another kind and no tag. */
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
