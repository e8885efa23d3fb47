/* why.h: why a request does not fit in a state of memory, and which blocks stand in its way. Private to
 * defrag/.
 *
 * The rules of the file's allocator decide. PyTorch's allocator takes a free run of the request's pool and
 * stream, else releases wholly free segments and asks the driver. zr's arena takes a free run, else moves
 * whole free granules. For a log without maps, a replay decides (remedies.h). */
#ifndef ZR_WHY_H
#define ZR_WHY_H

#include "defrag/report/moments.h"

enum zr_verdict {
    ZR_VERDICT_FITS = 0,
    ZR_VERDICT_SHORTAGE,      /* less is free than requested */
    ZR_VERDICT_FRAGMENTATION, /* enough is free, but not in one piece */
    ZR_VERDICT_STREAM,        /* a run is long enough, but belongs to another stream */
    ZR_VERDICT_POOL,          /* a run is long enough, but belongs to another pool */
    ZR_VERDICT_PENDING,       /* freed memory that a stream may still use would be enough */
};
const char *zr_verdict_name(enum zr_verdict verdict);

struct zr_question {
    uint64_t size_bytes, stream; /* size_bytes 0: no request, growth alone */
    uint64_t capacity_bytes;     /* of the device, or of the limit */
    uint32_t stack;              /* of the request; 0: unknown */
    bool released; /* the allocator has returned what it could: PyTorch at a refusal. Segments that are still
                      free and whole belong to private pools or wait for something */
};

struct zr_answer {
    enum zr_verdict verdict;
    uint64_t size_bytes;             /* with rounding */
    uint64_t free_bytes;             /* part of the capacity without blocks */
    uint64_t largest_free_run_bytes; /* usable for the request */
    uint64_t releasable_bytes;       /* could be returned to the driver .. */
    uint64_t unreserved_bytes;       /* .. which has these bytes besides */
    uint64_t pending_bytes, live_bytes;
};

/* Requires maps. Changes nothing. */
void zr_why_answer(struct zr_answer *out, const struct zr_memory *memory, const struct zr_question *question);

/* A block that stands in the way: a copy. */
struct zr_pin {
    uint64_t address, bytes, requested_bytes, stream;
    uint32_t stack;
    uint8_t tag;
    bool pending;
};
/* Appends to `pins` the cheapest set of blocks found (struct zr_pin, the largest first) without which the
 * request would fit, and removes them from the memory to prove it. *proved is false if the request does not
 * fit even then, or if there is no set. For ZR_VERDICT_PENDING the set is the pending blocks. */
zr_result zr_why_pins(struct zr_vector *pins, struct zr_memory *memory, const struct zr_question *question,
                      enum zr_verdict verdict, bool *proved);

#endif
