/* report.c: the message of an out-of-memory failure: the cause and the remedies. Walks all extents, only
 * after a failure. Uses space.c. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/supply.h"
#include "alloc/core/space.h"
#include "alloc/telemetry/report.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "alloc/telemetry/trace_format.h"

/* The smallest granule that a message recommends is a sixteenth: smaller ones cost more mappings than they
 * save memory. */
enum { SIZES_MAX = 5 };

/* The max of zr_backend_granule(). */
#define GRANULE_MAX_BYTES ((size_t)1 << 30)

/* Sums over all stripes, unless a field says otherwise. */
struct survey {
    size_t largest_bytes; /* largest contiguous free and mapped run */
    size_t free_bytes;    /* free and mapped */
    size_t holes_count;
    size_t cached_bytes, live_bytes, live_by_tag_bytes[ZR_TAG_COUNT];
    size_t unmovable_bytes;            /* free, in whole unmovable granules */
    size_t addresses_bytes;            /* free addresses, mapped or not, of the failing stripe only */
    size_t shared_bytes[ZR_TAG_COUNT]; /* free bytes of granules that a block with the tag shares; half for
                                          each of two blocks */
    size_t whole_bytes[SIZES_MAX];     /* free bytes in whole granules, if a granule were 2^i times smaller */
};

/* The missing resource, which decides about the remedies. */
enum lack { LACK_MEMORY, LACK_WHOLE_GRANULES, LACK_ADDRESSES, LACK_ADDRESSES_IN_A_ROW, LACK_MAPPINGS };

static const char *const lack_names[] = {
    [LACK_MEMORY] = "shortage",
    [LACK_WHOLE_GRANULES] = "fragmentation",
    [LACK_ADDRESSES] = "shortage of addresses",
    [LACK_ADDRESSES_IN_A_ROW] = "fragmentation of addresses",
    [LACK_MAPPINGS] = "shortage of mappings",
};

/* ---- Survey -------------------------------------------------------------------------------------------- */

static void count_shared(struct survey *survey, const struct zr_extent *neighbour, size_t bytes)
{
    if (neighbour && neighbour->kind == ZR_EXTENT_BLOCK)
        survey->shared_bytes[neighbour->tag] += bytes;
}

static size_t mapping_end(const struct zr_mapping *mapping)
{
    return mapping->offset_bytes + mapping->handle->bytes;
}

/* Surveys one free and mapped run of a free extent. Blocks may share the granules at the run's ends, which
 * then cannot move. A handle of several granules that extends beyond the run cannot be moved in part. */
static void survey_run(const struct zr_arena *arena, const struct zr_extent *gap, struct zr_bounds run,
                       struct survey *out)
{
    size_t granule = arena->granule_bytes, low = run.offset_bytes, high = run.offset_bytes + run.bytes;
    const struct zr_mapping *first = zr_range_mapping(arena->range, low);
    const struct zr_mapping *last = zr_range_mapping(arena->range, high - 1);
    bool before = first->offset_bytes<low, behind = mapping_end(last)> high;
    size_t first_end = mapping_end(first) < high ? mapping_end(first) : high;
    size_t last_begin = last->offset_bytes > low ? last->offset_bytes : low;
    bool both = first == last && before && behind;
    if (before)
        count_shared(out, gap->previous, (first_end - low) / (both ? 2 : 1));
    if (behind)
        count_shared(out, gap->next, (high - last_begin) / (both ? 2 : 1));
    out->free_bytes += run.bytes;
    if (run.bytes > out->largest_bytes)
        out->largest_bytes = run.bytes;
    struct zr_granule_range inner = {zr_round_up(low, granule) / granule, high / granule};
    size_t unmovable_bytes = inner.first < inner.end ? zr_unmovable_bytes(arena, inner) : 0;
    out->unmovable_bytes += unmovable_bytes;
    if (unmovable_bytes > 0)
        return;
    if (before && first->handle->bytes > granule)
        low = first_end;
    if (behind && last->handle->bytes > granule)
        high = last_begin;
    for (unsigned i = 0; i < SIZES_MAX; i++) {
        size_t begin = zr_round_up(low, granule >> i), end = zr_round_down(high, granule >> i);
        out->whole_bytes[i] += end > begin ? end - begin : 0;
    }
}

static void survey_free_extent(const struct zr_arena *arena, const struct zr_extent *gap, struct survey *out)
{
    size_t granule = arena->granule_bytes, end = zr_extent_end(gap) / granule + 1, before = out->free_bytes;
    if (end > arena->zones[gap->zone].mapped_end)
        end = arena->zones[gap->zone].mapped_end;
    for (size_t first = gap->offset_bytes / granule, after; first < end; first = after) {
        first = zr_granules_next(arena->granules, first, end, true);
        after = zr_granules_next(arena->granules, first, end, false);
        if (first >= end)
            break;
        size_t low = first * granule, high = after * granule;
        low = low < gap->offset_bytes ? gap->offset_bytes : low;
        high = high > zr_extent_end(gap) ? zr_extent_end(gap) : high;
        if (high > low)
            survey_run(arena, gap, (struct zr_bounds){low, high - low}, out);
    }
    out->addresses_bytes += gap->bytes;
    out->holes_count += out->free_bytes > before;
}

/* Surveys one stripe. lock: the stripe's */
static void survey_stripe(struct zr_arena *arena, struct survey *out)
{
    zr_arena_flush_size_cache(arena);
    for (const struct zr_extent *extent = arena->first; extent; extent = extent->next)
        if (extent->kind == ZR_EXTENT_FREE)
            survey_free_extent(arena, extent, out);
    out->cached_bytes += arena->granule_cache.bytes;
    out->live_bytes += arena->live_bytes;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        out->live_by_tag_bytes[tag] += arena->live_by_tag_bytes[tag];
}

/* Surveys all stripes. lock: the failing stripe's, which is released while other stripes are read, because a
 * thread never holds the locks of two stripes. */
static void survey_all(struct zr_arena *arena, struct survey *out)
{
    struct zr_arena *first_stripe = arena->first_stripe;
    unsigned stripes = atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    memset(out, 0, sizeof *out);
    survey_stripe(arena, out);
    if (stripes == 0)
        return;
    size_t addresses_bytes = out->addresses_bytes;
    zr_arena_release(arena);
    for (unsigned i = 0; i <= stripes; i++) {
        struct zr_arena *other = i < stripes ? first_stripe->stripes[i] : first_stripe;
        if (other == arena)
            continue;
        zr_arena_acquire(other);
        survey_stripe(other, out);
        zr_arena_release(other);
    }
    zr_arena_acquire(arena);
    out->addresses_bytes = addresses_bytes;
}

/* The missing resource. If free addresses exist, mapping has failed: the budget of mappings or the system's
 * limit is reached. */
static enum lack lack_of(const struct zr_arena *arena, zr_result result, struct zr_need need,
                         const struct survey *survey)
{
    if (result == ZR_ERR_MEMORY)
        return survey->free_bytes + survey->cached_bytes >= need.bytes ? LACK_WHOLE_GRANULES : LACK_MEMORY;
    if (zr_space_find(arena, need, 0).gap)
        return LACK_MAPPINGS;
    return survey->addresses_bytes >= need.bytes ? LACK_ADDRESSES_IN_A_ROW : LACK_ADDRESSES;
}

/* ---- The message --------------------------------------------------------------------------------------- */

static unsigned largest_of(const size_t *bytes)
{
    unsigned best = 0;
    for (unsigned tag = 1; tag < ZR_TAG_COUNT; tag++)
        if (bytes[tag] > bytes[best])
            best = tag;
    return best;
}

struct amount {
    char text[48];
};

static struct amount amount(size_t bytes)
{
    struct amount out;
    zr_size_print(out.text, bytes);
    return out;
}

/* "1.40 GiB (1500000256 bytes)". A rounded size alone may hide that a run is a little too short. */
static struct amount exact(size_t bytes)
{
    struct amount out = amount(bytes);
    size_t length = strlen(out.text);
    if (bytes >= 1024)
        snprintf(out.text + length, sizeof out.text - length, " (%zu bytes)", bytes);
    return out;
}

/* "256k", in the syntax of ZR_CONF. */
static struct amount granule_text(size_t bytes)
{
    static const char *const units[] = {"", "k", "m", "g"};
    struct amount out;
    unsigned unit = 0;
    for (; unit < 3 && bytes >= 1024; unit++)
        bytes /= 1024;
    snprintf(out.text, sizeof out.text, "%zu%s", bytes, units[unit]);
    return out;
}

struct text {
    char text[256];
};

/* Text with the tags whose blocks share the most free memory; "": none. */
static struct text sharing_tags(const struct survey *survey)
{
    enum { TAGS_MAX = 4 };
    struct text out = {""};
    size_t left_bytes[ZR_TAG_COUNT], length = 0;
    memcpy(left_bytes, survey->shared_bytes, sizeof left_bytes);
    for (unsigned i = 0; i < TAGS_MAX; i++) {
        unsigned tag = largest_of(left_bytes);
        if (left_bytes[tag] == 0)
            break;
        length += (size_t)snprintf(out.text + length, sizeof out.text - length, "%s%s (%s)",
                                   i ? ", " : ", in granules shared with blocks of ",
                                   zr_tag_name((zr_tag)tag), amount(left_bytes[tag]).text);
        left_bytes[tag] = 0;
    }
    return out;
}

/* The largest smaller granule of the backend with enough whole free granules for the need; 0: none. */
static size_t sufficient_granule(const struct zr_arena *arena, struct zr_need need,
                                 const struct survey *survey)
{
    size_t min_bytes = arena->backend->can.least_granule_bytes;
    for (unsigned i = 1; i < SIZES_MAX && arena->granule_bytes >> i >= min_bytes; i++)
        if (survey->whole_bytes[i] + survey->cached_bytes >=
            zr_round_up(need.bytes, arena->granule_bytes >> i))
            return arena->granule_bytes >> i;
    return 0;
}

/* Whether `bytes` more exceed the arena's or the backend's limit. */
static bool exceeds_limit(const struct zr_arena *arena, size_t bytes)
{
    struct zr_backend *backend = arena->backend;
    const struct zr_arena *first_stripe = arena->first_stripe;
    size_t all_bytes = atomic_load(&first_stripe->all_reserved_bytes);
    pthread_mutex_lock(&backend->lock);
    bool passed = backend->limit_bytes && bytes > backend->limit_bytes - backend->held_bytes;
    pthread_mutex_unlock(&backend->lock);
    return passed || (first_stripe->limit_bytes && all_bytes + bytes > first_stripe->limit_bytes);
}

static struct text help(const struct zr_arena *arena, enum lack lack, struct zr_need need,
                        const struct survey *survey)
{
    struct text out;
    size_t granule = arena->granule_bytes, other = 0;
    /* The request was for the need in whole granules, and one granule more at most. */
    bool limited = exceeds_limit(arena, zr_round_up(need.bytes, granule) + granule);
    const char *limit = limited ? "a larger limit" : "the setting that the cause names";
    switch (lack) {
    case LACK_WHOLE_GRANULES:
        other = sufficient_granule(arena, need, survey);
        snprintf(out.text, sizeof out.text, "%s%s%sallocating long-lived blocks first, or %s",
                 other ? "a smaller granule (ZR_CONF=granule:" : "", other ? granule_text(other).text : "",
                 other ? "), " : "", limit);
        break;
    case LACK_MAPPINGS:
        snprintf(out.text, sizeof out.text, "the setting that the cause names, or fewer mappings");
        if (granule < GRANULE_MAX_BYTES)
            snprintf(out.text + strlen(out.text), sizeof out.text - strlen(out.text),
                     ": a larger granule (ZR_CONF=granule:%s)", granule_text(2 * granule).text);
        break;
    case LACK_ADDRESSES:
    case LACK_ADDRESSES_IN_A_ROW:
        snprintf(out.text, sizeof out.text, "a larger reservation (reserve_bytes), or %s",
                 lack == LACK_ADDRESSES ? "a smaller request" : "allocating long-lived blocks first");
        break;
    case LACK_MEMORY:
        snprintf(out.text, sizeof out.text, "%s, a smaller batch, recomputing activations, or more ranks",
                 limit);
        break;
    }
    return out;
}

/* Fills in the figures of the failed request. */
static void fill_refusal(struct zr_arena *arena, enum lack lack, struct zr_need need,
                         const struct survey *survey, struct zr_refusal *out)
{
    static const enum zrt_cause causes[] = {
        [LACK_MEMORY] = ZRT_CAUSE_SHORTAGE,     [LACK_WHOLE_GRANULES] = ZRT_CAUSE_FRAGMENTATION,
        [LACK_ADDRESSES] = ZRT_CAUSE_ADDRESSES, [LACK_ADDRESSES_IN_A_ROW] = ZRT_CAUSE_ADDRESSES_IN_A_ROW,
        [LACK_MAPPINGS] = ZRT_CAUSE_MAPPINGS,
    };
    struct zr_backend_memory device;
    struct zr_pool_counters pools;
    size_t limit_bytes = arena->first_stripe->limit_bytes, backend_bytes = arena->backend->limit_bytes;
    bool limited = exceeds_limit(arena, zr_round_up(need.bytes, arena->granule_bytes) + arena->granule_bytes);
    *out = (struct zr_refusal){
        .cause = lack == LACK_MEMORY && limited ? ZRT_CAUSE_LIMIT : causes[lack],
        .need_bytes = need.bytes,
        .free_bytes = survey->free_bytes,
        .largest_bytes = survey->largest_bytes,
        .cached_bytes = survey->cached_bytes,
        .pending_bytes = zr_space_pending_bytes(arena),
        .unmovable_bytes = survey->unmovable_bytes,
        .whole_bytes = survey->whole_bytes[0],
        .reserved_bytes = atomic_load(&arena->first_stripe->all_reserved_bytes),
        .limit_bytes =
            limit_bytes && (!backend_bytes || limit_bytes < backend_bytes) ? limit_bytes : backend_bytes,
    };
    zr_arena_pool_counters(arena->first_stripe, &pools);
    out->pool_idle_bytes = pools.idle_bytes;
    if ((!zr_arena_is_traced(arena) && !arena->recorder.events) ||
        zr_backend_memory_info(arena->backend, &device) != ZR_OK || device.total_bytes == SIZE_MAX)
        return;
    out->device_bytes = device.total_bytes;
    out->device_free_bytes = device.free_bytes;
    pthread_mutex_lock(&arena->backend->lock);
    out->process_bytes = arena->backend->held_bytes;
    pthread_mutex_unlock(&arena->backend->lock);
}

zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request,
                              struct zr_need need, struct zr_refusal *refusal)
{
    struct survey survey;
    char cause[320], cache[64] = "", unmovable[128] = "";
    *refusal = (struct zr_refusal){0};
    if (result != ZR_ERR_MEMORY && result != ZR_ERR_ADDRESSES)
        return result;
    snprintf(cause, sizeof cause, "%s", zr_last_error());
    survey_all(arena, &survey);
    enum lack lack = lack_of(arena, result, need, &survey);
    fill_refusal(arena, lack, need, &survey, refusal);
    unsigned largest_tag = largest_of(survey.live_by_tag_bytes);
    if (survey.cached_bytes > 0)
        snprintf(cache, sizeof cache, " and %s in cache", amount(survey.cached_bytes).text);
    if (survey.unmovable_bytes > 0)
        snprintf(unmovable, sizeof unmovable, ", %s of it registered, exported or fixed, so not movable",
                 amount(survey.unmovable_bytes).text);
    return zr_fail(result,
                   "arena \"%s\" has no %s for %s: %s. %s live (%s of it %s), %s free in %zu hole%s%s, the "
                   "largest free run %s%s%s. Cause: %s. What would help: %s%s",
                   arena->name, exact(request->bytes).text, zr_tag_name(request->tag), lack_names[lack],
                   amount(survey.live_bytes).text, amount(survey.live_by_tag_bytes[largest_tag]).text,
                   zr_tag_name((zr_tag)largest_tag), amount(survey.free_bytes).text, survey.holes_count,
                   survey.holes_count == 1 ? "" : "s", cache, exact(survey.largest_bytes).text, unmovable,
                   sharing_tags(&survey).text, cause,
                   survey.unmovable_bytes > 0 ? "making those movable (zr_arena_set_granule_class()), " : "",
                   help(arena, lack, need, &survey).text);
}
