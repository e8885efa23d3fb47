/* reason.c: finds and orders the reasons of a failure. Uses growth.c and why.c. See reason.h. */
#include "defrag/report/reason.h"

#include <string.h>

#include "alloc/base/error.h"

/* Thresholds of judgement, and why each is where it is:
 * CACHING_LOSS       a caching allocator loses about a twentieth of the device to pieces: 1.02 to 1.05 times
 *                    the live bytes are reserved on recorded training steps
 * OTHERS_MIN         a CUDA context with its libraries takes less than an eighth of any device of 8 GiB or
 * more FLUSHES_MIN        all memory was mapped again four times: a return before a failure is one time, and
 * one change of the program's phase another ALLOCATIONS_MIN    fewer are no program that repeats itself
 * SPIKE_FACTOR       powers of two that a program uses beside each other (halved hidden size, doubled batch)
 *                    are within a factor of four
 * QUARTERS           a block from before the last quarter of the recording was there while the program ran */
enum {
    QUARTERS = 4,
    ALLOCATIONS_MIN = 16,
    SPIKE_FACTOR = 4,
    CACHING_LOSS = 20,
    OTHERS_MIN = 8,
    FLUSHES_MIN = 4
};

const char *zr_reason_name(enum zr_reason reason)
{
    static const char *const names[] = {
        "none",      "shortage",  "fragmentation", "stream",        "pool",   "pending", "leak", "limit",
        "addresses", "unmovable", "spike",         "other process", "option", "cached",  "free", "flush"};
    _Static_assert(sizeof names / sizeof *names == ZR_REASON_COUNT, "every reason has a name");
    return names[reason];
}

static uint64_t less(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}

static void add(struct zr_reasoning *out, const struct zr_reason_evidence *one)
{
    if (one->bytes > 0 && out->count < ZR_REASON_COUNT)
        out->list[out->count++] = *one;
}

static const struct zr_reason_evidence *find(const struct zr_reasoning *out, enum zr_reason reason)
{
    for (unsigned i = 0; i < out->count; i++)
        if (out->list[i].reason == reason)
            return &out->list[i];
    return NULL;
}

/* ---- The recording ------------------------------------------------------------------------------------- */

/* The request, or a recent block, if it is far larger than all other blocks of a program that repeats
 * itself: its excess. */
static void find_spike(struct zr_reasoning *out, const struct zr_growth *growth,
                       const struct zr_failure *failure)
{
    uint64_t asked = failure->answer->size_bytes;
    struct zr_reason_evidence one = {.reason = ZR_REASON_SPIKE,
                                     .tag = failure->tag,
                                     .stream = failure->question->stream,
                                     .stack = failure->question->stack,
                                     .most_bytes = asked};
    const struct zr_reason_evidence *shortage = find(out, ZR_REASON_SHORTAGE);
    uint64_t most = failure->refusal->cause != ZRT_CAUSE_UNKNOWN ? UINT64_MAX
                    : shortage                                   ? shortage->bytes
                                                                 : 0;
    if (asked == 0 || growth->allocations_count < ALLOCATIONS_MIN ||
        growth->frees_count * 2 < growth->allocations_count)
        return;
    if (asked / SPIKE_FACTOR >= growth->largest_bytes && growth->largest_bytes > 0) {
        one.of_bytes = asked - growth->largest_bytes;
        one.bytes = one.of_bytes < most ? one.of_bytes : most;
        add(out, &one);
        return;
    }
    if (!growth->largest_lives || growth->second_bytes == 0 ||
        growth->largest_bytes / SPIKE_FACTOR < growth->second_bytes || asked > growth->largest_bytes ||
        growth->largest_seen < growth->records_count - growth->records_count / QUARTERS)
        return;
    const struct zr_range_record *block = zr_extents_floor(&growth->memory->blocks, growth->largest_address);
    if (!block)
        return;
    one = (struct zr_reason_evidence){.reason = ZR_REASON_SPIKE,
                                      .of_bytes = growth->largest_bytes - growth->second_bytes,
                                      .tag = block->tag,
                                      .stream = block->stream,
                                      .stack = block->stack,
                                      .most_bytes = growth->largest_bytes,
                                      .live_bytes = growth->largest_bytes,
                                      .blocks_count = 1};
    one.bytes = one.of_bytes < most ? one.of_bytes : most;
    add(out, &one);
}

static void find_leak(struct zr_reasoning *out, const struct zr_growth *growth, uint64_t slack_bytes)
{
    struct zr_reason_evidence one = {.reason = ZR_REASON_LEAK, .of_bytes = growth->memory->live_bytes};
    uint64_t largest = 0;
    for (size_t i = 0; i < growth->sites.count; i++) {
        const struct zr_site *site = zr_vector_at(&growth->sites, i);
        if (!site->grows)
            continue;
        one.sites_count++;
        one.bytes += site->grown_bytes;
        if (site->grown_bytes <= largest)
            continue;
        largest = site->grown_bytes;
        one.stack = site->stack;
        one.stream = site->stream;
        one.tag = site->tag;
        one.blocks_count = site->blocks_count;
        one.live_bytes = site->live_bytes;
        one.most_bytes = site->most_bytes;
    }
    one.bytes += one.bytes ? slack_bytes : 0;
    add(out, &one);
}

/* ---- The memory ---------------------------------------------------------------------------------------- */

/* A private pool of PyTorch's allocator. */
struct pool {
    uint64_t free_bytes;
    uint32_t pool, stack; /* stack: that mapped its first segment */
};

/* Free bytes by what keeps the request from them. */
struct shares {
    uint64_t own_bytes, stream_bytes, pool_bytes, whole_bytes;
    uint64_t kept_bytes;    /* in segments of which only growing sites have blocks */
    uint64_t option_bytes;  /* beyond the request and its rounding to 512 bytes, inside blocks */
    struct zr_vector pools; /* struct pool */
};

/* A segment, while its pieces are visited. */
struct segment {
    const struct zr_range_record *mapped;
    uint64_t free_bytes, blocks_count, growing_count;
};

static zr_result note_pool(struct shares *shares, const struct segment *segment)
{
    const struct zr_range_record *mapped = segment->mapped;
    shares->pool_bytes += segment->free_bytes;
    for (size_t i = 0; i < shares->pools.count; i++) {
        struct pool *pool = zr_vector_at(&shares->pools, i);
        if (pool->pool == mapped->pool >> 1) {
            pool->free_bytes += segment->free_bytes;
            return ZR_OK;
        }
    }
    return zr_vector_add(&shares->pools,
                         &(struct pool){segment->free_bytes, mapped->pool >> 1, mapped->stack});
}

static zr_result end_segment(struct shares *shares, const struct segment *segment,
                             const struct zr_failure *failure)
{
    const struct zr_range_record *mapped = segment->mapped;
    bool by_stream = failure->recording->kind == ZR_RECORDING_TORCH;
    if (!mapped)
        return ZR_OK;
    if (by_stream && mapped->pool >> 1 && segment->free_bytes > 0)
        return note_pool(shares, segment);
    if (segment->blocks_count == 0 && !failure->question->released)
        shares->whole_bytes += segment->free_bytes;
    else if (by_stream && mapped->stream != failure->question->stream)
        shares->stream_bytes += segment->free_bytes;
    else
        shares->own_bytes += segment->free_bytes;
    if (segment->blocks_count > 0 && segment->growing_count == segment->blocks_count)
        shares->kept_bytes += segment->free_bytes;
    return ZR_OK;
}

static void note_block(struct shares *shares, struct segment *segment, const struct zr_growth *growth,
                       const struct zr_range_record *block)
{
    const uint64_t unit = 512;
    const struct zr_site *site = zr_growth_site_of(growth, block);
    uint64_t rounded = (block->requested_bytes + unit - 1) / unit * unit;
    segment->blocks_count++;
    segment->growing_count += site && site->grows;
    shares->option_bytes += block->bytes > rounded ? block->bytes - rounded : 0;
}

static zr_result share_out(struct shares *shares, const struct zr_growth *growth,
                           const struct zr_failure *failure)
{
    struct zr_memory_walk walk = zr_memory_walk_of(growth->memory);
    struct zr_memory_piece piece;
    struct segment segment = {0};
    zr_result result = ZR_OK;
    while (result == ZR_OK && zr_memory_next(&walk, &piece)) {
        if (piece.mapped != segment.mapped) {
            result = end_segment(shares, &segment, failure);
            segment = (struct segment){.mapped = piece.mapped};
        }
        if (piece.block)
            note_block(shares, &segment, growth, piece.block);
        else if (piece.mapped)
            segment.free_bytes += piece.bytes;
    }
    return result == ZR_OK ? end_segment(shares, &segment, failure) : result;
}

static void add_shares(struct zr_reasoning *out, const struct shares *shares, const struct zr_growth *growth,
                       const struct zr_failure *failure)
{
    uint64_t capacity = failure->question->capacity_bytes, asked = failure->answer->size_bytes;
    struct zr_reason_evidence pool = {.reason = ZR_REASON_POOL,
                                      .bytes = shares->pool_bytes,
                                      .of_bytes = growth->memory->reserved_bytes,
                                      .blocks_count = shares->pools.count};
    uint64_t most = 0;
    for (size_t i = 0; i < shares->pools.count; i++) {
        const struct pool *one = zr_vector_at(&shares->pools, i);
        if (one->free_bytes > most) {
            most = one->free_bytes;
            pool.pool = one->pool;
            pool.stack = one->stack;
        }
    }
    add(out, &pool);
    add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_FRAGMENTATION,
                                          .bytes = less(shares->own_bytes, capacity / CACHING_LOSS),
                                          .of_bytes = shares->own_bytes});
    add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_STREAM, .bytes = shares->stream_bytes});
    add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_PENDING,
                                          .bytes = growth->memory->pending_bytes,
                                          .of_bytes = growth->memory->reserved_bytes});
    if (zr_recording_has_options(failure->recording))
        add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_OPTION,
                                              .bytes = shares->option_bytes,
                                              .of_bytes = growth->memory->requested_bytes});
    if (asked > 0) {
        uint64_t usable = capacity - capacity / CACHING_LOSS, wanted = growth->memory->requested_bytes;
        wanted = asked > UINT64_MAX - wanted ? UINT64_MAX : wanted + asked;
        add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_SHORTAGE,
                                              .bytes = less(wanted, usable),
                                              .of_bytes = capacity,
                                              .live_bytes = growth->memory->live_bytes});
    } else {
        bool caches = failure->recording->kind == ZR_RECORDING_TORCH;
        add(out, &(struct zr_reason_evidence){.reason = caches ? ZR_REASON_CACHED : ZR_REASON_FREE,
                                              .bytes = shares->whole_bytes,
                                              .of_bytes = growth->memory->reserved_bytes});
        if (growth->unmapped_bytes / FLUSHES_MIN > failure->peak_reserved_bytes)
            add(out, &(struct zr_reason_evidence){.reason = ZR_REASON_FLUSH,
                                                  .bytes = growth->unmapped_bytes,
                                                  .of_bytes = failure->peak_reserved_bytes,
                                                  .blocks_count = growth->unmaps_count});
    }
}

/* ---- The device ---------------------------------------------------------------------------------------- */

/* The bytes of the device that are neither this process's nor free: from its size, or because this process
 * itself had more before. */
static void find_outside(struct zr_reasoning *out, const struct zr_failure *failure)
{
    const struct zrt_refusal *refusal = failure->refusal;
    struct zr_reason_evidence one = {.reason = ZR_REASON_OTHER_PROCESS};
    if (refusal->has_more && refusal->device_bytes > 0) {
        one.of_bytes = refusal->device_bytes;
        one.bytes = less(less(refusal->device_bytes, refusal->device_free_bytes), refusal->process_bytes);
    } else if (refusal->cause == ZRT_CAUSE_UNKNOWN && failure->answer->size_bytes > 0) {
        one.of_bytes = failure->total_bytes > failure->peak_reserved_bytes ? failure->total_bytes
                                                                           : failure->peak_reserved_bytes;
        one.bytes = less(one.of_bytes, failure->question->capacity_bytes);
    }
    if (one.bytes >= one.of_bytes / OTHERS_MIN)
        add(out, &one);
}

/* ---- The refusal --------------------------------------------------------------------------------------- */

/* Available memory: idle granules, plus the unused part of the limit or of the device, whichever is smaller.
 */
static uint64_t available(const struct zrt_refusal *refusal)
{
    uint64_t left = UINT64_MAX / 4;
    if (refusal->limit_bytes)
        left = less(refusal->limit_bytes, refusal->reserved_bytes);
    if (refusal->device_bytes && refusal->has_more && refusal->device_free_bytes < left)
        left = refusal->device_free_bytes;
    else if (!refusal->limit_bytes && !refusal->device_bytes)
        left = 0;
    return left + refusal->cached_bytes + refusal->whole_bytes;
}

/* Whether the request would fit with pending, unmovable or pool memory. These reasons precede leak and spike.
 */
static bool blocked(struct zr_reasoning *out, const struct zrt_refusal *refusal)
{
    const struct {
        enum zr_reason reason;
        uint64_t bytes, more; /* more: in addition to the available memory */
    } ways[] = {{ZR_REASON_PENDING, refusal->pending_bytes, 0},
                {ZR_REASON_PENDING, refusal->pending_bytes, refusal->pending_bytes},
                {ZR_REASON_UNMOVABLE, refusal->unmovable_bytes, refusal->unmovable_bytes},
                {ZR_REASON_POOL, refusal->pool_idle_bytes, refusal->pool_idle_bytes}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (ways[i].bytes > 0 && available(refusal) >= less(refusal->need_bytes, ways[i].more)) {
            out->reason = ways[i].reason;
            out->culprit_bytes = ways[i].bytes;
            return true;
        }
    return false;
}

static enum zr_reason of_verdict(enum zr_verdict verdict)
{
    static const enum zr_reason reasons[] = {
        [ZR_VERDICT_FITS] = ZR_REASON_NONE,     [ZR_VERDICT_SHORTAGE] = ZR_REASON_SHORTAGE,
        [ZR_VERDICT_STREAM] = ZR_REASON_STREAM, [ZR_VERDICT_FRAGMENTATION] = ZR_REASON_FRAGMENTATION,
        [ZR_VERDICT_POOL] = ZR_REASON_POOL,     [ZR_VERDICT_PENDING] = ZR_REASON_PENDING};
    return reasons[verdict];
}

static enum zr_reason of_cause(const struct zrt_refusal *refusal, enum zr_verdict verdict)
{
    switch (refusal->cause) {
    case ZRT_CAUSE_SHORTAGE:
        return ZR_REASON_SHORTAGE;
    case ZRT_CAUSE_LIMIT: /* a limit at or above the device's size counts as none */
        return refusal->device_bytes && refusal->limit_bytes >= refusal->device_bytes ? ZR_REASON_SHORTAGE
                                                                                      : ZR_REASON_LIMIT;
    case ZRT_CAUSE_FRAGMENTATION:
        return ZR_REASON_FRAGMENTATION;
    case ZRT_CAUSE_ADDRESSES:
    case ZRT_CAUSE_ADDRESSES_IN_A_ROW:
    case ZRT_CAUSE_MAPPINGS:
        return ZR_REASON_ADDRESSES;
    case ZRT_CAUSE_TAG_LIMIT:
        return ZR_REASON_LIMIT;
    default:
        return of_verdict(verdict);
    }
}

/* A caching allocator requests few sizes, powers of two from 2 MiB on, without tags. The file does not
 * contain the free memory inside its segments. */
static bool are_segments(const struct zr_memory *memory)
{
    enum { SEGMENTS_MIN = 8 };
    const uint64_t min_bytes = UINT64_C(2) << 20;
    const struct zr_range_record *block = zr_extents_ceiling(&memory->blocks, 0);
    for (; block; block = zr_extents_next(&memory->blocks, block))
        if (block->tag != ZR_TAG_OTHER || block->requested_bytes < min_bytes ||
            (block->requested_bytes & (block->requested_bytes - 1)) != 0)
            return false;
    return memory->blocks.count >= SEGMENTS_MIN;
}

/* ---- The list ------------------------------------------------------------------------------------------ */

/* Puts the reason that the allocator itself names first, with its evidence or without. */
static void put_first(struct zr_reasoning *out, enum zr_reason reason, uint64_t bytes)
{
    struct zr_reason_evidence first = {.reason = reason, .bytes = bytes};
    unsigned at = 0;
    while (at < out->count && out->list[at].reason != reason)
        at++;
    if (at < out->count)
        first = out->list[at];
    else if (out->count < ZR_REASON_COUNT)
        out->count++;
    else
        at = ZR_REASON_COUNT - 1;
    if (bytes > 0)
        first.bytes = bytes;
    memmove(&out->list[1], &out->list[0], at * sizeof first);
    out->list[0] = first;
}

/* The largest first; a spike before the shortage that it makes up, and a leak, which grows on, before free
 * memory, which is used again. */
static bool precedes(const struct zr_reason_evidence *one, const struct zr_reason_evidence *other)
{
    bool idle = one->reason == ZR_REASON_CACHED || one->reason == ZR_REASON_FREE;
    bool other_idle = other->reason == ZR_REASON_CACHED || other->reason == ZR_REASON_FREE;
    if ((idle && other->reason == ZR_REASON_LEAK) || (other_idle && one->reason == ZR_REASON_LEAK))
        return other_idle;
    return one->bytes != other->bytes ? one->bytes > other->bytes
                                      : one->reason == ZR_REASON_SPIKE && other->reason == ZR_REASON_SHORTAGE;
}

static void sort(struct zr_reasoning *out)
{
    for (unsigned i = 1; i < out->count; i++)
        for (unsigned j = i; j > 0 && precedes(&out->list[j], &out->list[j - 1]); j--) {
            struct zr_reason_evidence one = out->list[j];
            out->list[j] = out->list[j - 1];
            out->list[j - 1] = one;
        }
}

/* An arena's own word: memory or a limit that is exhausted may have a deeper reason. */
static void put_cause_first(struct zr_reasoning *out, const struct zr_failure *failure)
{
    const struct zrt_refusal *refusal = failure->refusal;
    bool of_tag = refusal->cause == ZRT_CAUSE_TAG_LIMIT;
    struct zr_reasoning own = {.reason = of_cause(refusal, failure->answer->verdict)};
    bool memory = own.reason == ZR_REASON_SHORTAGE || own.reason == ZR_REASON_LIMIT;
    const struct zr_reason_evidence *leak = find(out, ZR_REASON_LEAK), *spike = find(out, ZR_REASON_SPIKE),
                                    *others = find(out, ZR_REASON_OTHER_PROCESS);
    uint64_t live = out->list[0].reason ? failure->answer->live_bytes : 0;
    if (own.reason == ZR_REASON_LIMIT)
        own.culprit_bytes = refusal->limit_bytes;
    if (!of_tag && (memory || own.reason == ZR_REASON_FRAGMENTATION) && blocked(&own, refusal))
        memory = false;
    if (memory && leak && leak->bytes >= live / 4)
        own = (struct zr_reasoning){.reason = ZR_REASON_LEAK};
    else if (own.reason == ZR_REASON_SHORTAGE && others && others->bytes >= out->missing_bytes)
        own = (struct zr_reasoning){.reason = ZR_REASON_OTHER_PROCESS, .culprit_bytes = others->bytes};
    else if (memory && spike)
        own = (struct zr_reasoning){.reason = ZR_REASON_SPIKE};
    if (own.reason != ZR_REASON_NONE)
        put_first(out, own.reason,
                  own.reason == ZR_REASON_LIMIT || own.reason == ZR_REASON_SHORTAGE ? out->missing_bytes
                                                                                    : own.culprit_bytes);
    out->culprit_bytes = own.culprit_bytes;
}

/* If no evidence explains as many bytes as were asked for, the verdict does. */
static void put_verdict(struct zr_reasoning *out, const struct zr_failure *failure)
{
    enum zr_reason reason = of_verdict(failure->answer->verdict);
    bool explained = out->count > 0 && out->list[0].bytes >= failure->answer->size_bytes;
    if (reason != ZR_REASON_NONE && failure->answer->size_bytes > 0 && !explained &&
        !find(out, ZR_REASON_SHORTAGE) && !find(out, reason))
        put_first(out, reason, failure->answer->size_bytes);
}

zr_result zr_reason_find(struct zr_reasoning *out, struct zr_growth *growth, const struct zr_failure *failure)
{
    const struct zrt_refusal *refusal = failure->refusal;
    bool of_tag = refusal->cause == ZRT_CAUSE_TAG_LIMIT, known = refusal->cause != ZRT_CAUSE_UNKNOWN;
    struct shares shares = {0};
    *out = (struct zr_reasoning){0};
    zr_vector_init(&shares.pools, growth->sites.arena, sizeof(struct pool));
    zr_growth_find(growth);
    zr_result result = share_out(&shares, growth, failure);
    if (result == ZR_OK)
        add_shares(out, &shares, growth, failure);
    zr_vector_end(&shares.pools);
    if (result != ZR_OK)
        return result;
    out->missing_bytes = of_tag  ? less(refusal->reserved_bytes + refusal->need_bytes, refusal->limit_bytes)
                         : known ? less(refusal->need_bytes, available(refusal))
                                 : less(failure->answer->size_bytes, failure->answer->free_bytes);
    find_leak(out, growth, shares.kept_bytes);
    find_outside(out, failure);
    find_spike(out, growth, failure);
    sort(out);
    if (known)
        put_cause_first(out, failure);
    else
        put_verdict(out, failure);
    out->reason = out->count > 0 ? out->list[0].reason : ZR_REASON_NONE;
    if (!known && (out->reason == ZR_REASON_PENDING || out->reason == ZR_REASON_OTHER_PROCESS ||
                   out->reason == ZR_REASON_POOL))
        out->culprit_bytes = out->list[0].bytes;
    out->segments = (out->reason == ZR_REASON_SHORTAGE || out->reason == ZR_REASON_LIMIT) &&
                    growth->memory->recording->kind == ZR_RECORDING_ZRT && are_segments(growth->memory);
    return ZR_OK;
}
