/* reason.h: the reasons of a failed allocation, or of growth, with their evidence. Private to defrag/.
 *
 * A verdict (why.h) is about one state of memory. Reasons also consider the limit, the device, other
 * processes, pools, settings of the allocator, and how the memory filled up. Each reason has bytes, its
 * evidence, and the list has the largest first:
 *   shortage       live requests and this one exceed the capacity less the 5 % that a caching allocator loses
 *   fragmentation  free bytes in pieces between live blocks, beyond these 5 %
 *   stream         free bytes in another stream's segments
 *   pool           free bytes in private pools (CUDA graphs, MemPool), which are not returned; or idle
 *                  granules of contiguous pools
 *   pending        freed bytes that a stream may still use
 *   leak           growth of call sites that only grow (growth.h), with the free bytes beside their blocks in
 *                  segments that nothing else uses
 *   limit, addresses, unmovable   as the allocator says
 *   other process  bytes of the device outside this process, if they are an eighth of the device
 *   spike          the part of the shortage that one block makes up, which is more than four times as large
 *                  as any other, in a program that repeats itself
 *   option         bytes that a setting of the allocator adds to requests
 * Only without a failure:
 *   cached         free segments that PyTorch's allocator keeps, and would return
 *   free           free granules or ranges of other allocators
 *   flush          bytes that were returned and mapped again
 * If an arena of zr refused the request, its own cause comes first. */
#ifndef ZR_REASON_H
#define ZR_REASON_H

#include "defrag/report/growth.h"
#include "defrag/report/why.h"

enum zr_reason {
    ZR_REASON_NONE = 0, /* the request fits, or the reason is unknown */
    ZR_REASON_SHORTAGE,
    ZR_REASON_FRAGMENTATION,
    ZR_REASON_STREAM,
    ZR_REASON_POOL,
    ZR_REASON_PENDING,
    ZR_REASON_LEAK,
    ZR_REASON_LIMIT,
    ZR_REASON_ADDRESSES,
    ZR_REASON_UNMOVABLE,
    ZR_REASON_SPIKE,
    ZR_REASON_OTHER_PROCESS,
    ZR_REASON_OPTION,
    ZR_REASON_CACHED,
    ZR_REASON_FREE,
    ZR_REASON_FLUSH,
    ZR_REASON_COUNT
};
/* "shortage", "other process". */
const char *zr_reason_name(enum zr_reason reason);

/* A reason with its evidence; which fields are meaningful depends on the reason. */
struct zr_reason_evidence {
    enum zr_reason reason;
    uint64_t bytes;
    uint64_t of_bytes;     /* what `bytes` is a part of: the capacity, the device, all live bytes .. */
    uint64_t blocks_count; /* leak, spike: the blocks of the site; pool: private pools; flush: returns */
    uint64_t live_bytes;   /* leak, spike: of the site */
    uint64_t most_bytes;   /* leak, spike: the largest block */
    uint64_t sites_count;  /* leak: call sites that grow */
    uint64_t stream;
    uint32_t stack, pool; /* stack: of the site with the most, 0: unknown; pool: the one with the most */
    uint8_t tag;
};

struct zr_reasoning {
    enum zr_reason reason; /* the first of the list; none: the list is empty */
    struct zr_reason_evidence list[ZR_REASON_COUNT];
    unsigned count;
    uint64_t missing_bytes; /* the bytes that the request lacked; limit and shortage */
    bool segments; /* live blocks look like segments of a caching allocator: 8 or more, with powers of two as
                      sizes */
    uint64_t culprit_bytes; /* pending, unmovable, pool, other process, limit: the bytes of the reason */
};

/* A failure, with the result of zr_why_answer(). If the refusal's cause is unknown, evidence decides. A
 * request of 0 bytes is none: the reasons are those of growth. */
struct zr_failure {
    struct zr_recording *recording;
    const struct zrt_refusal *refusal;
    const struct zr_question *question;
    const struct zr_answer *answer;
    uint64_t total_bytes;         /* of the device; 0: unknown */
    uint64_t peak_reserved_bytes; /* of the recording */
    uint8_t tag;                  /* of the request */
};
/* `growth` and its memory are at the failure. Returns the arena's error. */
zr_result zr_reason_find(struct zr_reasoning *out, struct zr_growth *growth,
                         const struct zr_failure *failure);

#endif
