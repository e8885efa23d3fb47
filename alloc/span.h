/* span.h: one stretch of an arena's addresses: a block, free and mapped, or free and unmapped. Private to
 * alloc/.
 *
 * The spans of an arena are linked in address order without gaps and cover the whole reservation. Free spans
 * of a kind never touch. Offsets are from the start of the reservation. */
#ifndef ZR_SPAN_H
#define ZR_SPAN_H

#include "alloc/zr.h"

/* The grain of blocks: what CUDA's own allocations are aligned to, and four cache lines. */
enum { ZR_UNIT_BYTES = 256, ZR_UNIT_SHIFT = 8 };

enum zr_span_kind {
    ZR_SPAN_BLOCK = 0, /* a caller's */
    ZR_SPAN_MAPPED,    /* free, granules beneath */
    ZR_SPAN_UNMAPPED,  /* free, whole granules of addresses and nothing beneath */
    ZR_SPAN_LEAVING, /* a block whose free is under way without the lock, or memory the driver will not unmap
                      */
};

struct zr_span {
    size_t offset_bytes;
    size_t bytes; /* a multiple of ZR_UNIT_BYTES */
    union {
        size_t requested_bytes; /* block */
        size_t key_bytes;       /* free, in holes: its place there; 0: in none */
    };
    union {
        uint64_t stream;              /* block */
        struct zr_span *children[2];  /* free, in holes: smaller and larger */
        struct zr_span *next_retired; /* freed, waiting for readers */
    };
    struct zr_span *previous, *next; /* by address; NULL at the ends */
    uint8_t kind;                    /* enum zr_span_kind */
    uint8_t tag;                     /* block */
};

static inline size_t zr_span_end(const struct zr_span *span)
{
    return span->offset_bytes + span->bytes;
}

#endif
