/* why.h: why a request has no room in a memory as it is, and which blocks stand in the way. Private to
 * defrag/.
 *
 * How the file's allocator finds room is what decides: PyTorch's takes a free run of the request's pool and
 * stream, else gives back segments that are wholly free and asks the driver; zr's arena takes a free run,
 * else moves whole free granules. A log without maps says nothing of that: whether a request fits is then for
 * a replay to say (remedies.h). */
#ifndef ZR_WHY_H
#define ZR_WHY_H

#include "defrag/report/moments.h"

enum zr_verdict {
    ZR_VERDICT_FITS = 0,
    ZR_VERDICT_SHORTAGE,      /* less is free than is asked for */
    ZR_VERDICT_FRAGMENTATION, /* enough is free, and nowhere in one piece */
    ZR_VERDICT_STREAM,        /* a run would do, and is another stream's */
    ZR_VERDICT_POOL,          /* a run would do, and is another pool's */
    ZR_VERDICT_PENDING,       /* what is freed and still in use by a stream would do */
};
const char *zr_verdict_name(enum zr_verdict verdict);

struct zr_question {
    uint64_t size_bytes, stream;
    uint64_t capacity_bytes; /* of the device, or of the limit */
};

struct zr_answer {
    enum zr_verdict verdict;
    uint64_t size_bytes;             /* with rounding */
    uint64_t free_bytes;             /* of the capacity, what is in no block */
    uint64_t largest_free_run_bytes; /* that the request could be put into */
    uint64_t releasable_bytes;       /* could go back to the driver .. */
    uint64_t unreserved_bytes;       /* .. which has these besides */
    uint64_t pending_bytes;
};

/* With maps alone. Changes nothing. */
void zr_why_answer(struct zr_answer *out, const struct zr_memory *memory, const struct zr_question *question);

/* A block that stands in the way: a copy. */
struct zr_pin {
    uint64_t address, bytes, requested_bytes, stream;
    uint32_t stack;
    uint8_t tag;
    bool pending;
};
/* Adds to `pins` the blocks (struct zr_pin) of the fewest bytes found which, if gone, let the request in, and
 * the largest first, and takes them out of the memory, where that is then seen; *proved false: not even
 * without them, or there are none. For ZR_VERDICT_PENDING these are the pending ones. */
zr_result zr_why_pins(struct zr_vector *pins, struct zr_memory *memory, const struct zr_question *question,
                      enum zr_verdict verdict, bool *proved);

#endif
