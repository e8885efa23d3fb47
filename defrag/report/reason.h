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

/* The allocations and frees before a failure. */
struct zr_trend {
    const struct zr_memory *memory; /* borrowed: the state before each record */
    struct zr_vector kinds;         /* reason.c */
    struct zr_number_map numbers;
    uint64_t records_count, before_count, seen_count;
    uint64_t allocations_count, frees_count; /* in the recording */
    uint64_t largest_bytes, second_bytes;    /* of blocks allocated in the recording */
    uint64_t largest_address, largest_seen;  /* the largest block, and when it was allocated */
    bool largest_lives;
};
/* `records_count` records will follow. Allocates nothing, so it cannot fail. */
void zr_trend_init(struct zr_trend *out, const struct zr_memory *memory, uint64_t records_count,
                   zr_arena *arena);
void zr_trend_end(struct zr_trend *trend);
/* Notes a record; the memory applies the record afterwards. Returns the arena's error. */
zr_result zr_trend_take(struct zr_trend *trend, const struct zr_record *record);

/* A failure, with the result of zr_why_answer(). If the refusal's cause is unknown, the verdict decides. */
struct zr_failure {
    const struct zrt_refusal *refusal;
    const struct zr_answer *answer;
    uint8_t tag; /* of the request */
    uint64_t stream;
};
/* `trend` and its memory are at the failure. */
void zr_reason_find(struct zr_reasoning *out, const struct zr_trend *trend, const struct zr_failure *failure);

#endif
