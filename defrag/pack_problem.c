/* pack_problem.c: lifetimes as items over sections of time. Stands on sort.h and scratch.h. */
#include "alloc/error.h"
#include "alloc/os.h"
#include "defrag/pack_internal.h"
#include "alloc/sort.h"

bool zr_pack_time_up(const struct zr_pack_watch *watch)
{
    return watch->work_left == 0 ||
           (watch->cancelled && atomic_load_explicit(watch->cancelled, memory_order_relaxed)) ||
           (watch->until_ns != UINT64_MAX && zr_os_now_ns() >= watch->until_ns);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void take_arrays(struct zr_pack_problem *problem, size_t count, struct zr_scratch *scratch)
{
    problem->first = zr_scratch_take(scratch, count, sizeof *problem->first);
    problem->last = zr_scratch_take(scratch, count, sizeof *problem->last);
    problem->units = zr_scratch_take(scratch, count, sizeof *problem->units);
    problem->hottest = zr_scratch_take(scratch, count, sizeof *problem->hottest);
    problem->duration = zr_scratch_take(scratch, count, sizeof *problem->duration);
    problem->buffer = zr_scratch_take(scratch, count, sizeof *problem->buffer);
    problem->load = zr_scratch_take(scratch, count + 1, sizeof *problem->load);
}

static void gather_items(struct zr_pack_problem *problem, const struct zr_lifetimes *lifetimes,
                         uint64_t alignment_bytes)
{
    uint64_t divisor = 0;
    for (size_t i = 0; i < lifetimes->count; i++) {
        const struct zr_buffer *buffer = &lifetimes->buffers[i];
        if (buffer->bytes == 0 || buffer->lower == buffer->upper)
            continue;
        uint32_t item = problem->count++;
        problem->buffer[item] = (uint32_t)i;
        problem->units[item] = (buffer->bytes - 1) / alignment_bytes + 1;
        divisor = common_divisor(divisor, problem->units[item]);
    }
    for (uint32_t i = 0; i < problem->count; i++)
        problem->units[i] /= divisor;
    problem->unit_bytes = problem->count ? alignment_bytes * divisor : alignment_bytes;
}

/* Goes through births and deaths; a section ends with the first death after a birth. */
static void cut_sections(struct zr_pack_problem *problem, const struct zr_sort_pair *ends)
{
    uint64_t live = 0;
    uint32_t section = 0;
    bool born = false;
    for (size_t e = 0; e < 2 * (size_t)problem->count; e++) {
        uint32_t item = ends[e].value >> 1;
        if (ends[e].value & 1) {
            problem->first[item] = section;
            live += problem->units[item];
            born = true;
            continue;
        }
        if (born) {
            problem->load[section++] = live;
            problem->bound_units = live > problem->bound_units ? live : problem->bound_units;
            born = false;
        }
        problem->last[item] = section;
        live -= problem->units[item];
    }
    problem->sections_count = section;
    zr_assert(live == 0);
}

/* The highest load of any range of sections, from maxima over ranges of powers of two. */
static void find_hottest(struct zr_pack_problem *problem, struct zr_scratch *scratch)
{
    uint64_t *maxima[32] = {problem->load};
    uint32_t count = problem->sections_count;
    for (unsigned level = 1; level < 32 && UINT32_C(1) << level <= count; level++) {
        uint32_t half = UINT32_C(1) << (level - 1);
        maxima[level] = zr_scratch_take(scratch, count, sizeof(uint64_t));
        if (!maxima[level])
            return;
        for (uint32_t s = 0; s + 2 * half <= count; s++) {
            uint64_t a = maxima[level - 1][s], b = maxima[level - 1][s + half];
            maxima[level][s] = a > b ? a : b;
        }
    }
    for (uint32_t i = 0; i < problem->count; i++) {
        uint32_t length = problem->last[i] - problem->first[i];
        unsigned level = 31 - (unsigned)__builtin_clz(length);
        uint64_t a = maxima[level][problem->first[i]],
                 b = maxima[level][problem->last[i] - (UINT32_C(1) << level)];
        problem->hottest[i] = a > b ? a : b;
        problem->duration[i] = length;
        problem->lives_count += length;
    }
}

zr_result zr_pack_problem_make(struct zr_pack_problem *out, const struct zr_lifetimes *lifetimes,
                               uint64_t alignment_bytes, struct zr_scratch *scratch)
{
    struct zr_scratch own = {.arena = scratch->arena};
    size_t k = 0;

    *out = (struct zr_pack_problem){0};
    take_arrays(out, lifetimes->count, scratch);
    struct zr_sort_pair *ends = zr_scratch_take(&own, 2 * lifetimes->count, sizeof *ends);
    struct zr_sort_pair *spare = zr_scratch_take(&own, 2 * lifetimes->count, sizeof *spare);
    zr_result result = scratch->result ? scratch->result : own.result;
    if (result)
        goto unwind;
    gather_items(out, lifetimes, alignment_bytes);
    /* Deaths first: the sort keeps that order within one moment, and lifetimes are half open. */
    for (uint32_t i = 0; i < out->count; i++)
        ends[k++] = (struct zr_sort_pair){lifetimes->buffers[out->buffer[i]].upper, i << 1};
    for (uint32_t i = 0; i < out->count; i++)
        ends[k++] = (struct zr_sort_pair){lifetimes->buffers[out->buffer[i]].lower, i << 1 | 1};
    zr_sort_pairs(ends, spare, k);
    cut_sections(out, ends);
    find_hottest(out, &own);
    result = own.result;
unwind:
    zr_scratch_end(&own);
    return result;
}
