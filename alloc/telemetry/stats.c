/* stats.c: an arena's statistics, as a struct and by name. Uses core/ and option.c.
 *
 * The names, those of the fields of struct zr_arena_stats, are an interface to tools and do not change. */
#include "alloc/core/arena.h"
#include "alloc/core/calls.h"
#include "alloc/core/core.h"
#include "alloc/core/registry.h"
#include "alloc/core/space.h"
#include "alloc/telemetry/report.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/plan/executor.h"
#include "alloc/base/option.h"

void zr_stats_fill(struct zr_arena *arena, struct zr_arena_stats *out)
{
    zr_arena_flush_size_cache(arena);
    *out = (struct zr_arena_stats){
        .live_bytes = arena->live_bytes,
        .requested_bytes = arena->requested_bytes,
        .mapped_bytes = arena->mapped_bytes,
        .cached_bytes = arena->granule_cache.bytes,
        .reserved_bytes = arena->reserved_bytes,
        .pending_bytes = zr_space_pending_bytes(arena),
        .stranded_bytes = arena->mapped_bytes - arena->live_bytes - zr_space_pending_bytes(arena) -
                          zr_executor_idle_bytes(arena) - zr_space_idle_bytes(arena),
        .peak_live_bytes = arena->peak_live_bytes,
        .peak_requested_bytes = arena->peak_requested_bytes,
        .peak_reserved_bytes = arena->peak_reserved_bytes,
        .blocks_count = arena->blocks_count,
        .allocations_count = arena->allocations_count,
        .backend_calls_count = arena->backend_calls_count,
        .unmovable_bytes = arena->unmovable_bytes,
    };
    memcpy(out->live_by_tag_bytes, arena->live_by_tag_bytes, sizeof out->live_by_tag_bytes);
    memcpy(out->peak_by_tag_bytes, arena->at_peak ? arena->live_by_tag_bytes : arena->peak_by_tag_bytes,
           sizeof out->peak_by_tag_bytes);
    struct zr_pool_counters pools;
    zr_arena_pool_counters(arena, &pools);
    out->mapped_bytes += arena->lent_bytes;
    out->pending_bytes += pools.pending_bytes;
    out->stranded_bytes += arena->lent_bytes - pools.pending_bytes - pools.idle_bytes; /* modulo 2^64 */
}

/* Adds a stripe's figures. Figures that only the first stripe has are left unchanged. */
static void add_stats(struct zr_arena_stats *sum, const struct zr_arena_stats *one)
{
    sum->live_bytes += one->live_bytes;
    sum->requested_bytes += one->requested_bytes;
    sum->mapped_bytes += one->mapped_bytes;
    sum->cached_bytes += one->cached_bytes;
    sum->reserved_bytes += one->reserved_bytes;
    sum->pending_bytes += one->pending_bytes;
    sum->stranded_bytes += one->stranded_bytes;
    sum->peak_requested_bytes += one->peak_requested_bytes;
    sum->blocks_count += one->blocks_count;
    sum->allocations_count += one->allocations_count;
    sum->backend_calls_count += one->backend_calls_count;
    sum->unmovable_bytes += one->unmovable_bytes;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        sum->live_by_tag_bytes[tag] += one->live_by_tag_bytes[tag];
        sum->peak_by_tag_bytes[tag] += one->peak_by_tag_bytes[tag];
    }
}

static void add_stripes(struct zr_arena *first_stripe, struct zr_arena_stats *out)
{
    unsigned count = atomic_load_explicit(&first_stripe->stripes_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        struct zr_arena_stats one;
        zr_arena_acquire(first_stripe->stripes[i]);
        zr_stats_fill(first_stripe->stripes[i], &one);
        zr_arena_release(first_stripe->stripes[i]);
        add_stats(out, &one);
    }
    if (count == 0)
        return;
    size_t known = atomic_load(&first_stripe->all_peak_live_bytes);
    out->peak_live_bytes = known > out->peak_live_bytes ? known : out->peak_live_bytes;
    if (out->live_bytes > out->peak_live_bytes)
        out->peak_live_bytes = out->live_bytes;
}

zr_result zr_stats_of(zr_arena *arena, struct zr_arena_stats *out)
{
    if (!arena || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_get_stats: arena or out is NULL");
    zr_arena_acquire(arena);
    zr_stats_fill(arena, out);
    zr_arena_release(arena);
    add_stripes(arena, out);
    return ZR_OK;
}

zr_result zr_arena_reset_peaks(zr_arena *arena)
{
    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_arena_reset_peaks: arena is NULL");
    unsigned count = 1 + atomic_load(&arena->stripes_count);
    for (unsigned i = 0; i < count; i++) {
        struct zr_arena *stripe = i ? arena->stripes[i - 1] : arena;
        zr_lock_acquire(&stripe->lock);
        stripe->peak_live_bytes = stripe->live_bytes;
        stripe->peak_requested_bytes = stripe->requested_bytes;
        stripe->at_peak = true;
        zr_lock_release(&stripe->lock);
    }
    arena->peak_reserved_bytes = arena->all_reserved_bytes;
    arena->all_peak_live_bytes = arena->all_live_bytes;
    return ZR_OK;
}

/* ---- By name ------------------------------------------------------------------------------------------- */

struct number {
    const char *name;
    size_t offset; /* offset in struct zr_arena_stats; every field read this way has 8 bytes */
};

#define NUMBER(field)                                                                                        \
    {                                                                                                        \
#field, offsetof(struct zr_arena_stats, field)                                                       \
    }
static const struct number numbers[] = {
    NUMBER(live_bytes),          NUMBER(requested_bytes), NUMBER(mapped_bytes),
    NUMBER(cached_bytes),        NUMBER(reserved_bytes),  NUMBER(stranded_bytes),
    NUMBER(pending_bytes),       NUMBER(peak_live_bytes), NUMBER(peak_requested_bytes),
    NUMBER(peak_reserved_bytes), NUMBER(blocks_count),    NUMBER(allocations_count),
    NUMBER(backend_calls_count), NUMBER(unmovable_bytes),
};
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "numbers are read as 64 bits");

/* Advances past `word` and a dot if the name begins with them. */
static bool step_over(const char **name, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*name, word, length) != 0 || (*name)[length] != '.')
        return false;
    *name += length + 1;
    return true;
}

static bool tag_number(const struct zr_arena_stats *stats, const char *name, uint64_t *out)
{
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        const char *rest = name;
        if (!step_over(&rest, zr_tag_name((zr_tag)tag)))
            continue;
        bool live = strcmp(rest, "live_bytes") == 0;
        *out = live ? stats->live_by_tag_bytes[tag] : stats->peak_by_tag_bytes[tag];
        return live || strcmp(rest, "peak_bytes") == 0;
    }
    return false;
}

static bool arena_number(const struct zr_arena_stats *stats, const char *name, uint64_t *out)
{
    if (step_over(&name, "tag"))
        return tag_number(stats, name, out);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(numbers[i].name, name) == 0) {
            memcpy(out, (const char *)stats + numbers[i].offset, sizeof *out);
            return true;
        }
    return false;
}

/* Parses "0.live_bytes": the arena's number, then a figure's name. */
static bool numbered_arena(const char *name, uint64_t *out)
{
    unsigned number = 0, digits = 0;
    struct zr_arena_stats stats;
    for (; name[digits] >= '0' && name[digits] <= '9' && digits < 6; digits++)
        number = number * 10 + (unsigned)(name[digits] - '0');
    if (digits == 0 || name[digits] != '.')
        return false;
    struct zr_arena *arena = zr_arenas_acquire_arena(number);
    if (!arena)
        return false;
    zr_stats_fill(arena, &stats);
    zr_arena_release(arena);
    add_stripes(arena, &stats);
    zr_arenas_release();
    return arena_number(&stats, name + digits + 1, out);
}

zr_result zr_ctl_get(const char *name, uint64_t *out)
{
    const char *rest = name;
    bool found = false;
    if (!name || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_ctl_get: name or out is NULL");
    *out = 0;
    if (step_over(&rest, "option"))
        found = zr_option_find(rest, out);
    else if (step_over(&rest, "arena"))
        found = numbered_arena(rest, out);
    return found ? ZR_OK : zr_fail(ZR_ERR_INVALID, "zr_ctl_get: unknown name `%.128s`", name);
}
