/* reason.h: the reason of a failed allocation in one word, from the allocator's own details and the preceding
 * events. Private to defrag/.
 *
 * A verdict (why.h) is about one state of memory. A reason also considers the limit, the device, other
 * processes and pools, as far as the file contains them (struct zrt_refusal), and how the memory filled up.
 * The first rule that holds decides. Two rules are heuristics:
 *   pending        freed memory that a stream may still use would be enough
 *   unmovable      free granules that are registered, exported or fixed would be enough
 *   pool           idle granules of contiguous pools would be enough
 *   leak           heuristic: most other blocks are freed again, but blocks of one kind are allocated in
 *                  every quarter of the recording, remain, and hold a quarter of the live bytes
 *   other process  other processes hold the missing bytes, and an eighth of the device
 *   spike          heuristic: the program repeats itself, and one temporary block is four times as
 *                  large as any block before it */
#ifndef ZR_REASON_H
#define ZR_REASON_H

#include "defrag/report/why.h"

enum zr_reason {
    ZR_REASON_NONE = 0, /* the request fits, or the reason is unknown */
    ZR_REASON_SHORTAGE,
    ZR_REASON_FRAGMENTATION,
    ZR_REASON_STREAM, /* a free run belongs to another stream, in an allocator with memory per stream */
    ZR_REASON_POOL,   /* a pool keeps memory */
    ZR_REASON_PENDING,
    ZR_REASON_LEAK,
    ZR_REASON_LIMIT,
    ZR_REASON_ADDRESSES,
    ZR_REASON_UNMOVABLE,
    ZR_REASON_SPIKE,
    ZR_REASON_OTHER_PROCESS, /* others hold the missing memory: processes, contexts, libraries */
    ZR_REASON_COUNT
};
/* "shortage", "other process". */
const char *zr_reason_name(enum zr_reason reason);

/* Blocks of one kind: a tag, a stream, a stack, and sizes within a factor of two. */
struct zr_kind_of_blocks {
    uint64_t stream, live_bytes,
        blocks_count;    /* at the failure; only blocks that were allocated in the recording */
    uint64_t most_bytes; /* the largest */
    uint32_t stack;
    uint8_t tag;
};

struct zr_reasoning {
    enum zr_reason reason;
    struct zr_kind_of_blocks kind; /* leak, spike: the blocks */
    uint64_t missing_bytes;        /* the bytes that the request lacked; limit and shortage */
    bool segments; /* live blocks look like segments of a caching allocator: 8 or more, with powers of two as
                      sizes */
    uint64_t culprit_bytes; /* pending, unmovable, pool, other process, limit: the bytes of the reason */
};

/* The failure after `records_count` records, with the result of zr_why_answer(). If the refusal's cause is
 * unknown, the verdict decides. */
struct zr_failure {
    struct zr_recording *recording;
    uint64_t records_count;
    const struct zrt_refusal *refusal;
    const struct zr_answer *answer;
    uint8_t tag; /* of the request */
    uint64_t stream;
};
zr_result zr_reason_find(struct zr_reasoning *out, const struct zr_failure *failure, zr_arena *arena);

#endif
