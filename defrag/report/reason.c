/* reason.c: finds the reason of a failure. Uses moments.c. See reason.h. */
#include "defrag/report/reason.h"

#include <string.h>

#include "alloc/base/error.h"

/* PROBES_MAX bounds the search for a kind: after that many probes, colliding kinds count as one. */
enum { PROBES_MAX = 64, QUARTERS = 4, ALLOCATIONS_MIN = 16, KIND_MIN = 8, SPIKE_FACTOR = 4 };

const char *zr_reason_name(enum zr_reason reason)
{
    static const char *const names[] = {"none",      "shortage",  "fragmentation", "stream",
                                        "pool",      "pending",   "leak",          "limit",
                                        "addresses", "unmovable", "spike",         "other process"};
    _Static_assert(sizeof names / sizeof *names == ZR_REASON_COUNT, "every reason has a name");
    return names[reason];
}

/* ---- Allocations and frees ----------------------------------------------------------------------------- */

struct kind {
    struct zr_kind_of_blocks blocks;
    unsigned size_class;
    uint64_t allocations_count, frees_count;
    uint64_t came[QUARTERS], went[QUARTERS]; /* allocations and frees in the recording, by quarter */
};

void zr_trend_init(struct zr_trend *out, const struct zr_memory *memory, uint64_t records_count,
                   zr_arena *arena)
{
    *out = (struct zr_trend){.memory = memory, .records_count = records_count};
    zr_vector_init(&out->kinds, arena, sizeof(struct kind));
    zr_number_map_init(&out->numbers, arena);
}

void zr_trend_end(struct zr_trend *trend)
{
    zr_number_map_end(&trend->numbers);
    zr_vector_end(&trend->kinds);
}

static unsigned class_of(uint64_t bytes)
{
    return bytes ? 63 - (unsigned)__builtin_clzll(bytes) : 0;
}

/* Finds or adds the kind of a block. Two kinds may have equal keys, so the fields are compared, and the
 * search continues with the next key. */
static zr_result find_kind(struct zr_trend *trend, const struct kind *like, struct kind **out)
{
    uint64_t key = (like->blocks.stream * UINT64_C(0x9e3779b97f4a7c15) + like->blocks.stack) * 1024;
    key += like->blocks.tag * 64u + like->size_class;
    for (unsigned probes = 0;; probes++, key += 1024) {
        const uint32_t *number = zr_number_map_get(&trend->numbers, key);
        if (!number) {
            zr_result result = zr_vector_add(&trend->kinds, like);
            if (result == ZR_OK)
                result = zr_number_map_put(&trend->numbers, key, (uint32_t)trend->kinds.count - 1);
            *out = result == ZR_OK ? zr_vector_at(&trend->kinds, trend->kinds.count - 1) : NULL;
            return result;
        }
        struct kind *kind = zr_vector_at(&trend->kinds, *number);
        bool same = kind->blocks.tag == like->blocks.tag && kind->blocks.stream == like->blocks.stream &&
                    kind->blocks.stack == like->blocks.stack && kind->size_class == like->size_class;
        if (same || probes == PROBES_MAX) {
            *out = kind;
            return ZR_OK;
        }
    }
}

static unsigned quarter_of(const struct zr_trend *trend)
{
    uint64_t count = trend->records_count - trend->before_count;
    uint64_t at = trend->seen_count > trend->before_count ? trend->seen_count - trend->before_count - 1 : 0;
    unsigned quarter = count ? (unsigned)(at * QUARTERS / count) : 0;
    return quarter < QUARTERS ? quarter : QUARTERS - 1;
}

static void note_size(struct zr_trend *trend, const struct zr_record *record)
{
    if (record->bytes > trend->largest_bytes) {
        trend->second_bytes = trend->largest_bytes;
        trend->largest_bytes = record->bytes;
        trend->largest_address = record->address;
        trend->largest_seen = trend->seen_count;
        trend->largest_lives = true;
    } else if (record->bytes > trend->second_bytes) {
        trend->second_bytes = record->bytes;
    }
}

zr_result zr_trend_take(struct zr_trend *trend, const struct zr_record *record)
{
    struct kind like = {0}, *kind;
    trend->seen_count++;
    trend->before_count += record->before;
    if (record->before || (record->kind != ZR_RECORD_ALLOC && record->kind != ZR_RECORD_FREE))
        return ZR_OK;
    const struct zr_range_record *block = zr_extents_floor(&trend->memory->blocks, record->address);
    bool came = record->kind == ZR_RECORD_ALLOC;
    if (!came && (!block || block->address != record->address))
        return ZR_OK; /* zr_moment_reach() reports the error */
    like.blocks.tag = came ? record->tag : block->tag;
    like.blocks.stream = came ? record->stream : block->stream;
    like.blocks.stack = came ? record->stack : block->stack;
    uint64_t bytes = came ? record->bytes : block->requested_bytes;
    like.size_class = class_of(bytes);
    zr_result result = find_kind(trend, &like, &kind);
    if (result != ZR_OK)
        return result;
    trend->allocations_count += came;
    trend->frees_count += !came;
    kind->allocations_count += came;
    kind->frees_count += !came;
    if (bytes > kind->blocks.most_bytes)
        kind->blocks.most_bytes = bytes;
    if (came) {
        kind->came[quarter_of(trend)]++;
        kind->blocks.live_bytes += bytes;
        kind->blocks.blocks_count++;
        note_size(trend, record);
    } else {
        kind->went[quarter_of(trend)]++;
        kind->blocks.live_bytes -= bytes < kind->blocks.live_bytes ? bytes : kind->blocks.live_bytes;
        kind->blocks.blocks_count -= kind->blocks.blocks_count > 0;
        trend->largest_lives &= record->address != trend->largest_address;
    }
    return ZR_OK;
}

/* Finds the kind that leaks; NULL: none. Most blocks of other kinds must be freed again; otherwise the
 * program may still be loading. */
static const struct kind *leak_of(const struct zr_trend *trend, uint64_t live_bytes)
{
    const struct kind *worst = NULL;
    for (size_t i = 0; i < trend->kinds.count; i++) {
        const struct kind *kind = zr_vector_at(&trend->kinds, i);
        uint64_t others = trend->allocations_count - kind->allocations_count;
        bool grows = kind->allocations_count >= KIND_MIN &&
                     kind->frees_count * 4 <= kind->allocations_count &&
                     kind->blocks.live_bytes >= live_bytes / 4;
        for (unsigned quarter = 0; quarter < QUARTERS; quarter++)
            grows = grows && kind->came[quarter] > kind->went[quarter] &&
                    kind->came[quarter] * QUARTERS * 2 >= kind->allocations_count;
        if (grows && others >= KIND_MIN && (trend->frees_count - kind->frees_count) * 4 >= others * 3 &&
            (!worst || kind->blocks.live_bytes > worst->blocks.live_bytes))
            worst = kind;
    }
    return worst;
}

/* Whether the request, or a recent block, is far larger than all other blocks of a program that repeats
 * itself. */
static bool is_spike(const struct zr_trend *trend, const struct zr_failure *failure,
                     struct zr_kind_of_blocks *out)
{
    uint64_t asked = failure->answer->size_bytes;
    if (trend->allocations_count < ALLOCATIONS_MIN || trend->frees_count * 4 < trend->allocations_count * 3)
        return false;
    *out = (struct zr_kind_of_blocks){.tag = failure->tag, .stream = failure->stream, .most_bytes = asked};
    if (asked / SPIKE_FACTOR >= trend->largest_bytes && trend->largest_bytes > 0)
        return true;
    if (!trend->largest_lives || trend->second_bytes == 0 ||
        trend->largest_bytes / SPIKE_FACTOR < trend->second_bytes || asked > trend->largest_bytes ||
        trend->largest_seen < trend->records_count - trend->records_count / QUARTERS)
        return false;
    const struct zr_range_record *block = zr_extents_floor(&trend->memory->blocks, trend->largest_address);
    if (block)
        *out = (struct zr_kind_of_blocks){.tag = block->tag,
                                          .stream = block->stream,
                                          .stack = block->stack,
                                          .most_bytes = trend->largest_bytes,
                                          .live_bytes = trend->largest_bytes,
                                          .blocks_count = 1};
    return block != NULL;
}

/* ---- The refusal --------------------------------------------------------------------------------------- */

static uint64_t less(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}

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

/* Whether other processes hold the missing memory and at least an eighth of the device. A CUDA context holds
 * less. */
static bool is_others(struct zr_reasoning *out, const struct zrt_refusal *refusal)
{
    uint64_t used = less(refusal->device_bytes, refusal->device_free_bytes);
    uint64_t others = less(used, refusal->process_bytes);
    if (!refusal->has_more || refusal->device_bytes == 0 || others < refusal->device_bytes / 8 ||
        others < out->missing_bytes)
        return false;
    out->culprit_bytes = others;
    return true;
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

void zr_reason_find(struct zr_reasoning *out, const struct zr_trend *trend, const struct zr_failure *failure)
{
    const struct zrt_refusal *refusal = failure->refusal;
    bool of_tag = refusal->cause == ZRT_CAUSE_TAG_LIMIT, known = refusal->cause != ZRT_CAUSE_UNKNOWN;
    struct zr_kind_of_blocks kind;
    *out = (struct zr_reasoning){0};
    out->reason = of_cause(refusal, failure->answer->verdict);
    out->missing_bytes = of_tag  ? less(refusal->reserved_bytes + refusal->need_bytes, refusal->limit_bytes)
                         : known ? less(refusal->need_bytes, available(refusal))
                                 : less(failure->answer->size_bytes, failure->answer->free_bytes);
    if (out->reason == ZR_REASON_LIMIT)
        out->culprit_bytes = refusal->limit_bytes;
    bool memory = out->reason == ZR_REASON_SHORTAGE || out->reason == ZR_REASON_LIMIT;
    if (known && !of_tag && (memory || out->reason == ZR_REASON_FRAGMENTATION) && blocked(out, refusal))
        return;
    if (!memory)
        return;
    const struct kind *leak = leak_of(trend, trend->memory->live_bytes);
    if (leak) {
        out->reason = ZR_REASON_LEAK;
        out->kind = leak->blocks;
        out->culprit_bytes = 0;
    } else if (out->reason == ZR_REASON_SHORTAGE && is_others(out, refusal)) {
        out->reason = ZR_REASON_OTHER_PROCESS;
    } else if (is_spike(trend, failure, &kind)) {
        out->reason = ZR_REASON_SPIKE;
        out->kind = kind;
        out->culprit_bytes = 0;
    }
    out->segments = (out->reason == ZR_REASON_SHORTAGE || out->reason == ZR_REASON_LIMIT) &&
                    trend->memory->recording->kind == ZR_RECORDING_ZRT && are_segments(trend->memory);
}
