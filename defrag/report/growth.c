/* growth.c: floors of call sites over time. Uses memory.c and call_site.c. */
#include "defrag/report/growth.h"

#include <stdio.h>

#include "alloc/base/sort.h"

/* PROBES_MAX bounds the search for a site: after that many probes, colliding sites count as one.
 * ALLOCATIONS_MIN: two in each interval of the shortest trend. INTERVALS_MIN: fewer do not show a trend. */
enum { PROBES_MAX = 64, ALLOCATIONS_MIN = 8, INTERVALS = ZR_GROWTH_INTERVALS, INTERVALS_MIN = 4 };

/* The spans of a comparison. */
enum { WARM_UP = 0, FIRST, BETWEEN, LAST };

void zr_growth_init(struct zr_growth *out, struct zr_recording *recording, const struct zr_memory *memory,
                    uint64_t records_count, uint64_t marks_count)
{
    *out = (struct zr_growth){.recording = recording,
                              .memory = memory,
                              .records_count = records_count,
                              .marks_count = marks_count < 2 ? 0 : marks_count};
    zr_vector_init(&out->sites, recording->arena, sizeof(struct zr_site));
    zr_number_map_init(&out->numbers, recording->arena);
}

void zr_growth_end(struct zr_growth *growth)
{
    zr_number_map_end(&growth->numbers);
    zr_vector_end(&growth->sites);
}

/* ---- Sites --------------------------------------------------------------------------------------------- */

static uint8_t class_of(uint64_t bytes)
{
    return bytes ? (uint8_t)(63 - __builtin_clzll(bytes)) : 0;
}

static uint64_t key_of(const struct zr_site *like)
{
    uint64_t key = (like->stream * UINT64_C(0x9e3779b97f4a7c15) + like->stack) * 1024;
    return key + like->tag * 64u + like->size_class;
}

/* The site's index, or -1. Sites may have equal keys, so the fields are compared, and the search continues
 * with the next key; *key is the last one. */
static int64_t index_of(const struct zr_growth *growth, const struct zr_site *like, uint64_t *key)
{
    *key = key_of(like);
    for (unsigned probes = 0;; probes++, *key += 1024) {
        const uint32_t *number = zr_number_map_get(&growth->numbers, *key);
        if (!number)
            return -1;
        const struct zr_site *site = zr_vector_at(&growth->sites, *number);
        bool same = site->tag == like->tag && site->stream == like->stream && site->stack == like->stack &&
                    site->size_class == like->size_class;
        if (same || probes == PROBES_MAX)
            return *number;
    }
}

static zr_result find_site(struct zr_growth *growth, const struct zr_site *like, struct zr_site **out)
{
    uint64_t key;
    int64_t index = index_of(growth, like, &key);
    zr_result result = ZR_OK;
    if (index < 0) {
        struct zr_site site = *like;
        if (growth->recording->kind == ZR_RECORDING_TORCH && site.stack)
            site.role = (uint8_t)zr_role_of(growth->recording, site.stack);
        index = (int64_t)growth->sites.count;
        result = zr_vector_add(&growth->sites, &site);
        if (result == ZR_OK)
            result = zr_number_map_put(&growth->numbers, key, (uint32_t)index);
    }
    *out = result == ZR_OK ? zr_vector_at(&growth->sites, (size_t)index) : NULL;
    return result;
}

static struct zr_site like_of(uint64_t stream, uint32_t stack, uint8_t tag, uint64_t bytes)
{
    return (struct zr_site){
        .stream = stream, .stack = stack, .tag = tag, .size_class = stack ? 0 : class_of(bytes)};
}

const struct zr_site *zr_growth_site_of(const struct zr_growth *growth, const struct zr_range_record *block)
{
    struct zr_site like = like_of(block->stream, block->stack, block->tag, block->requested_bytes);
    uint64_t key;
    int64_t index = index_of(growth, &like, &key);
    return index < 0 ? NULL : zr_vector_at(&growth->sites, (size_t)index);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

static unsigned interval_of(const struct zr_growth *growth)
{
    uint64_t count = growth->records_count - growth->before_count;
    uint64_t at =
        growth->seen_count > growth->before_count ? growth->seen_count - growth->before_count - 1 : 0;
    unsigned interval = count ? (unsigned)(at * INTERVALS / count) : 0;
    return interval < INTERVALS ? interval : INTERVALS - 1;
}

static unsigned span_of(const struct zr_growth *growth)
{
    uint64_t group = (growth->marks_count + INTERVALS - 1) / INTERVALS, seen = growth->marks_seen;
    unsigned interval = interval_of(growth);
    if (growth->marks_count == 0)
        return interval == 0 ? WARM_UP : interval == 1 ? FIRST : interval == INTERVALS - 1 ? LAST : BETWEEN;
    return seen == 0 ? WARM_UP : seen <= group ? FIRST : seen > growth->marks_count - group ? LAST : BETWEEN;
}

/* Notes what the site holds where a span begins. */
static void reach_span(struct zr_site *site, unsigned span)
{
    struct zr_site_floor now = {site->live_bytes, site->blocks_count};
    if (site->span < FIRST && span >= FIRST)
        site->first = now;
    if (site->span < LAST && span == LAST)
        site->last = now;
    site->span = (uint8_t)span;
}

static void lower_span(struct zr_site *site)
{
    struct zr_site_floor *floor = site->span == FIRST ? &site->first : &site->last;
    if (site->span != FIRST && site->span != LAST)
        return;
    if (site->live_bytes < floor->bytes)
        floor->bytes = site->live_bytes;
    if (site->blocks_count < floor->blocks_count)
        floor->blocks_count = site->blocks_count;
}

/* Counts the mark, and keeps its label if it begins a span. */
static void note_mark(struct zr_growth *growth, const struct zr_record *record)
{
    unsigned before = span_of(growth);
    growth->marks_seen++;
    unsigned now = span_of(growth);
    if (growth->marks_count > 0 && now != before && (now == FIRST || now == LAST))
        snprintf(now == FIRST ? growth->from : growth->to, ZR_GROWTH_MARK_BYTES, "%s", record->label);
}

/* Begins a phase where the role of an allocation changes, and notes whether a block of the site came in an
 * earlier one. */
static void note_phase(struct zr_growth *growth, struct zr_site *site, bool came)
{
    if (came && site->role != ZR_ROLE_UNKNOWN && site->role != growth->role) {
        growth->trains |= growth->role == ZR_ROLE_FORWARD && site->role == ZR_ROLE_BACKWARD;
        growth->role = site->role;
        growth->phase++;
    }
    site->outlives |= site->blocks_count > 0 && site->phase != growth->phase;
    if (site->blocks_count == 0)
        site->phase = growth->phase;
}

/* In intervals without its records a site holds what it held. */
static void reach(struct zr_site *site, unsigned interval)
{
    while (site->interval < interval) {
        site->floors[++site->interval] = site->live_bytes;
        site->counts[site->interval] = site->blocks_count;
    }
}

static void note_size(struct zr_growth *growth, const struct zr_record *record)
{
    if (record->bytes > growth->largest_bytes) {
        growth->second_bytes = growth->largest_bytes;
        growth->largest_bytes = record->bytes;
        growth->largest_address = record->address;
        growth->largest_seen = growth->seen_count;
        growth->largest_lives = true;
    } else if (record->bytes > growth->second_bytes) {
        growth->second_bytes = record->bytes;
    }
}

static void note_map(struct zr_growth *growth, const struct zr_record *record)
{
    if (record->kind == ZR_RECORD_MAP) {
        growth->mapped_bytes += record->bytes;
    } else {
        growth->unmapped_bytes += record->bytes;
        growth->unmaps_count++;
    }
}

static void note_alloc(struct zr_growth *growth, struct zr_site *site, const struct zr_record *record)
{
    growth->allocations_count++;
    site->came[site->interval]++;
    site->live_bytes += record->bytes;
    site->blocks_count++;
    if (record->bytes > site->most_bytes)
        site->most_bytes = record->bytes;
    note_size(growth, record);
}

/* Weights and an optimizer's state are made from temporary copies, so that only the frees of forward and
 * backward are work beside them. */
static bool is_work(enum zr_role role)
{
    return role == ZR_ROLE_FORWARD || role == ZR_ROLE_BACKWARD;
}

static void note_free(struct zr_growth *growth, struct zr_site *site, const struct zr_range_record *block)
{
    uint64_t bytes = block->requested_bytes;
    growth->frees_count++;
    growth->went[site->interval]++;
    growth->worked[site->interval] += is_work(site->role);
    site->went[site->interval]++;
    site->frees_count++;
    site->live_bytes -= bytes < site->live_bytes ? bytes : site->live_bytes;
    site->blocks_count -= site->blocks_count > 0;
    if (site->live_bytes < site->floors[site->interval])
        site->floors[site->interval] = site->live_bytes;
    if (site->blocks_count < site->counts[site->interval])
        site->counts[site->interval] = site->blocks_count;
    lower_span(site);
    growth->largest_lives &= block->address != growth->largest_address;
}

zr_result zr_growth_take(struct zr_growth *growth, const struct zr_record *record)
{
    struct zr_site *site;
    growth->seen_count++;
    growth->before_count += record->before;
    if (record->before)
        return ZR_OK;
    if (record->kind == ZR_RECORD_MARK)
        note_mark(growth, record);
    if (record->kind == ZR_RECORD_MAP || record->kind == ZR_RECORD_UNMAP)
        note_map(growth, record);
    bool came = record->kind == ZR_RECORD_ALLOC;
    if (!came && record->kind != ZR_RECORD_FREE && record->kind != ZR_RECORD_FREE_ASKED)
        return ZR_OK;
    /* A block leaves its site when the program frees it, and not a second time when its stream has passed. */
    const struct zr_range_record *block = zr_extents_floor(&growth->memory->blocks, record->address);
    if (!came && (!block || block->address != record->address || block->pending))
        return ZR_OK; /* zr_moment_reach() reports an unknown block */
    struct zr_site like = came ? like_of(record->stream, record->stack, record->tag, record->bytes)
                               : like_of(block->stream, block->stack, block->tag, block->requested_bytes);
    zr_result result = find_site(growth, &like, &site);
    if (result != ZR_OK)
        return result;
    reach(site, interval_of(growth));
    reach_span(site, span_of(growth));
    note_phase(growth, site, came);
    if (came)
        note_alloc(growth, site, record);
    else
        note_free(growth, site, block);
    return ZR_OK;
}

/* ---- Growth -------------------------------------------------------------------------------------------- */

/* Floors over intervals that are `merged` times as long. */
struct floors {
    uint64_t at[INTERVALS]; /* bytes or blocks */
    unsigned first, count;
};

static struct floors merge(const struct zr_site *site, const uint64_t *of, unsigned merged)
{
    struct floors out = {.count = INTERVALS / merged, .first = INTERVALS};
    for (unsigned i = 0; i < INTERVALS; i++) {
        uint64_t *floor = &out.at[i / merged];
        if (i % merged == 0 || of[i] < *floor)
            *floor = of[i];
        if (site->came[i] > 0 && i / merged < out.first)
            out.first = i / merged;
    }
    return out;
}

/* The growth of the floor; 0: it does not grow. */
static uint64_t rise(const struct floors *floors)
{
    uint64_t steepest = 0;
    unsigned rises = 0;
    if (floors->first + INTERVALS_MIN > floors->count)
        return 0;
    for (unsigned i = floors->first + 1; i < floors->count; i++) {
        uint64_t before = floors->at[i - 1], now = floors->at[i];
        if (now < before)
            return 0;
        rises += now > before;
        if (now - before > steepest)
            steepest = now - before;
    }
    uint64_t grown = floors->at[floors->count - 1] - floors->at[floors->first];
    /* A leak may pause, as in an evaluation, but not most of the time. */
    bool most = rises * 4 >= (floors->count - 1 - floors->first) * 3;
    bool still = floors->at[floors->count - 1] > floors->at[floors->count - 2];
    return most && still && steepest <= grown / 2 ? grown : 0;
}

/* Whether the program freed at least as many blocks as the site kept, in the intervals of the site. */
static bool is_beside_work(const struct zr_growth *growth, const struct zr_site *site)
{
    uint64_t went = 0, kept = 0, came = 0;
    bool is_made_once = site->role == ZR_ROLE_LOADING || site->role == ZR_ROLE_OPTIMIZER;
    for (unsigned i = 0; i < INTERVALS; i++) {
        came += site->came[i];
        kept += site->came[i] > site->went[i] ? site->came[i] - site->went[i] : 0;
        went += site->came[i] == 0 ? 0 : is_made_once ? growth->worked[i] : growth->went[i];
    }
    return came >= ALLOCATIONS_MIN && went >= kept;
}

void zr_growth_find(struct zr_growth *growth)
{
    for (size_t i = 0; i < growth->sites.count; i++) {
        struct zr_site *site = zr_vector_at(&growth->sites, i);
        reach(site, INTERVALS - 1);
        reach_span(site, LAST);
        site->grown_bytes = 0;
        for (unsigned merged = 1; merged * INTERVALS_MIN <= INTERVALS && site->grown_bytes == 0;
             merged *= 2) {
            struct floors bytes = merge(site, site->floors, merged),
                          blocks = merge(site, site->counts, merged);
            site->grown_bytes = rise(&blocks) > 0 ? rise(&bytes) : 0;
        }
        site->grows = site->grown_bytes > 0 && is_beside_work(growth, site);
    }
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

static uint64_t grown_of(const struct zr_holder *holder)
{
    return holder->bytes > holder->before_bytes ? holder->bytes - holder->before_bytes : 0;
}

static bool grows_more(const void *one, const void *other)
{
    const struct zr_holder *a = one, *b = other;
    return grown_of(a) != grown_of(b) ? grown_of(a) > grown_of(b) : a->stack < b->stack;
}

static bool holds_more(const void *one, const void *other)
{
    const struct zr_holder *a = one, *b = other;
    return a->bytes != b->bytes ? a->bytes > b->bytes : a->stack < b->stack;
}

static void sort(struct zr_vector *holders, bool (*precedes)(const void *, const void *))
{
    zr_sort_in_place(
        &(struct zr_sort_records){holders->items, holders->count, sizeof(struct zr_holder), precedes});
}

zr_result zr_growth_list(const struct zr_growth *growth, struct zr_vector *holders)
{
    struct zr_holder_finder finder;
    struct zr_holder *holder;
    zr_result result = ZR_OK;
    zr_holder_finder_init(&finder, growth->recording, holders);
    for (size_t i = 0; i < growth->sites.count && result == ZR_OK; i++) {
        const struct zr_site *site = zr_vector_at(&growth->sites, i);
        if (site->first.bytes == site->last.bytes)
            continue;
        result =
            zr_holder_find(&finder, &(struct zr_holder){.stack = site->stack, .tag = site->tag}, &holder);
        if (result != ZR_OK)
            break;
        holder->bytes += site->last.bytes;
        holder->blocks_count += site->last.blocks_count;
        holder->before_bytes += site->first.bytes;
        holder->before_blocks_count += site->first.blocks_count;
    }
    zr_holder_finder_end(&finder);
    sort(holders, grows_more);
    while (holders->count > 0 &&
           grown_of(zr_vector_at(holders, holders->count - 1)) == 0) /* sorted: those that shrank are last */
        holders->count--;
    return result;
}

static bool is_temporary(const struct zr_growth *growth, const struct zr_range_record *block)
{
    const struct zr_site *site = zr_growth_site_of(growth, block);
    return growth->trains && site && site->stack && site->frees_count > 0 && !site->outlives &&
           site->phase == growth->phase;
}

zr_result zr_holders_find(struct zr_vector *holders, const struct zr_growth *growth)
{
    const struct zr_extents *blocks = &growth->memory->blocks;
    struct zr_holder_finder finder;
    struct zr_holder *holder;
    zr_result result = ZR_OK;
    zr_holder_finder_init(&finder, growth->recording, holders);
    for (const struct zr_range_record *block = zr_extents_ceiling(blocks, 0); block && result == ZR_OK;
         block = zr_extents_next(blocks, block)) {
        if (block->pending)
            continue;
        result = zr_holder_find(&finder,
                                &(struct zr_holder){.stack = block->stack,
                                                    .tag = block->tag,
                                                    .temporary = is_temporary(growth, block)},
                                &holder);
        if (result == ZR_OK) {
            holder->bytes += block->bytes;
            holder->blocks_count++;
        }
    }
    zr_holder_finder_end(&finder);
    sort(holders, holds_more);
    return result;
}
