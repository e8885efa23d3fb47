/* pack_problem.c: converts lifetimes to items over sections of time. Uses lifetimes.c. */
#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "defrag/trace/lifetimes.h"
#include "defrag/pack/pack_internal.h"

bool zr_pack_time_up(const struct zr_pack_budget *budget)
{
    return budget->work_left == 0 ||
           (budget->cancelled && atomic_load_explicit(budget->cancelled, memory_order_relaxed)) ||
           (budget->until_ns != UINT64_MAX && zr_os_now_ns() >= budget->until_ns);
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
        divisor = zr_pack_common_divisor(divisor, problem->units[item]);
    }
    for (uint32_t i = 0; i < problem->count; i++)
        problem->units[i] /= divisor;
    problem->unit_bytes = problem->count ? alignment_bytes * divisor : alignment_bytes;
}

static void end_section(struct zr_pack_problem *problem, uint64_t live)
{
    problem->load[problem->sections_count++] = live;
    problem->bound_units = live > problem->bound_units ? live : problem->bound_units;
}

/* Scans births and deaths from the point where the fewest bytes are alive. A section ends with the first
 * death after a birth. An item whose death comes first is alive across the boundary. */
static void cut_sections(struct zr_pack_problem *problem, const struct zr_lifetimes_sweep *sweep,
                         const uint32_t *items, uint64_t crossing_units)
{
    uint64_t live = crossing_units;
    for (size_t e = 0; e < sweep->least_at; e++) {
        uint64_t units = problem->units[items[sweep->ends[e].value >> 1]];
        live = sweep->ends[e].value & 1 ? live + units : live - units;
    }
    bool born = false; /* the sweep starts with a birth */
    for (uint32_t i = 0; i < problem->count; i++)
        problem->first[i] = UINT32_MAX;
    for (size_t k = 0; k < sweep->count; k++) {
        size_t e = (sweep->least_at + k) % sweep->count;
        uint32_t item = items[sweep->ends[e].value >> 1];
        if (sweep->ends[e].value & 1) {
            problem->first[item] = problem->sections_count;
            live += problem->units[item];
            born = true;
            continue;
        }
        if (born)
            end_section(problem, live);
        born = false;
        problem->last[item] = problem->sections_count;
        problem->crossing_count += problem->first[item] == UINT32_MAX;
        live -= problem->units[item];
    }
    if (born)
        end_section(problem, live);
}

/* Sets `last` of items that are alive across the boundary to more than the number of sections. An item in all
 * sections does not need the boundary. */
static void extend_crossing(struct zr_pack_problem *problem)
{
    for (uint32_t i = 0; problem->crossing_count > 0 && i < problem->count; i++) {
        if (problem->last[i] > problem->first[i])
            continue;
        problem->last[i] += problem->sections_count;
        if (problem->last[i] - problem->first[i] < problem->sections_count)
            continue;
        problem->first[i] = 0;
        problem->last[i] = problem->sections_count;
        problem->crossing_count--;
    }
}

static uint64_t highest_of(uint64_t *const *maxima, uint32_t first, uint32_t last)
{
    unsigned level = 31 - (unsigned)__builtin_clz(last - first);
    uint64_t a = maxima[level][first], b = maxima[level][last - (UINT32_C(1) << level)];
    return a > b ? a : b;
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
        uint32_t around = zr_pack_around(problem, i);
        uint64_t hottest = highest_of(maxima, problem->first[i], zr_pack_last(problem, i));
        uint64_t other = around > 0 ? highest_of(maxima, 0, around) : 0;
        problem->hottest[i] = other > hottest ? other : hottest;
        problem->duration[i] = problem->last[i] - problem->first[i];
        problem->lives_count += problem->duration[i];
    }
}

zr_result zr_pack_problem_make(struct zr_pack_problem *out, const struct zr_lifetimes *lifetimes,
                               uint64_t alignment_bytes, struct zr_scratch *scratch)
{
    struct zr_scratch own = {.arena = scratch->arena};
    struct zr_lifetimes_sweep sweep;
    uint64_t crossing_units = 0;

    *out = (struct zr_pack_problem){0};
    take_arrays(out, lifetimes->count, scratch);
    uint32_t *item = zr_scratch_take(&own, lifetimes->count, sizeof *item); /* by buffer */
    zr_result result = zr_lifetimes_sweep(&sweep, lifetimes, &own);
    result = scratch->result ? scratch->result : result;
    if (result)
        goto unwind;
    gather_items(out, lifetimes, alignment_bytes);
    for (uint32_t i = 0; i < out->count; i++) {
        item[out->buffer[i]] = i;
        if (lifetimes->period > 0 && lifetimes->buffers[out->buffer[i]].upper > lifetimes->period)
            crossing_units += out->units[i];
    }
    cut_sections(out, &sweep, item, crossing_units);
    extend_crossing(out);
    find_hottest(out, &own);
    result = own.result;
unwind:
    zr_scratch_end(&own);
    return result;
}
