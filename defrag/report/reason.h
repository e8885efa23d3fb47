/* reason.h: why an allocation failed, in one word: what the allocator says of it, and what the events before
 * it show. Private to defrag/.
 *
 * A verdict (why.h) is about one memory as it is. A reason looks further: at the limit, the device, other
 * processes and pools, as far as the file says something of them (struct zrt_refusal), and at how the memory
 * came to be full. The first that holds is it; the rules are heuristics where they say so:
 *   pending    would do, were what is freed and still in use by a stream there
 *   unmovable  the same of free granules that are registered, exported or fixed
 *   pool       the same of granules that contiguous pools keep idle
 *   leak       heuristic: while most other blocks come and go, those of one kind come in every quarter of the
 *              recording and stay, and hold a quarter of what is live
 *   other process  others hold what is missing, and an eighth of the device
 *   spike      heuristic: the program repeats itself, and one temporary block is four times as large as any
 *              that came before it */
#ifndef ZR_REASON_H
#define ZR_REASON_H

#include "defrag/report/why.h"

enum zr_reason {
    ZR_REASON_NONE = 0, /* it fits, or nobody knows */
    ZR_REASON_SHORTAGE,
    ZR_REASON_FRAGMENTATION,
    ZR_REASON_STREAM, /* a free run of another stream's, where memory belongs to streams */
    ZR_REASON_POOL,   /* memory that a pool keeps */
    ZR_REASON_PENDING,
    ZR_REASON_LEAK,
    ZR_REASON_LIMIT,
    ZR_REASON_ADDRESSES,
    ZR_REASON_UNMOVABLE,
    ZR_REASON_SPIKE,
    ZR_REASON_OTHER_PROCESS, /* others hold what is missing: processes, contexts, libraries */
    ZR_REASON_COUNT
};
/* "shortage", "other process". */
const char *zr_reason_name(enum zr_reason reason);

/* Blocks of one kind: a tag, a stream, a stack, and sizes within a factor of two. */
struct zr_kind_of_blocks {
    uint64_t stream, live_bytes, blocks_count; /* at the failure, of those that came in the recording */
    uint64_t most_bytes;                       /* the largest */
    uint32_t stack;
    uint8_t tag;
};

struct zr_reasoning {
    enum zr_reason reason;
    struct zr_kind_of_blocks kind; /* leak, spike: of which */
    uint64_t missing_bytes;        /* what the request lacked; limit and shortage */
    bool segments; /* what is live looks like the segments of an allocator above: 8 or more, powers of two */
    uint64_t culprit_bytes; /* pending, unmovable, pool, other process, limit: how much that is */
};

/* Of a failure, `records_count` records into the recording, with what zr_why_answer() says of it. The
 * refusal's cause may be unknown: then the verdict decides. */
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
