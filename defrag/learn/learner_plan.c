/* learner_plan.c: derives the steps of a plan from two occurrences of a period.
 *
 * The steps are the common subsequence of both occurrences; other allocations are unplanned. A step's
 * lifetime is the longer of its two lifetimes. The first step is the one before which the fewest bytes are
 * live. A training loop replaces a batch by the next one after it has allocated it, so such blocks live a
 * little longer than a period: if they have a granule in all, the plan has two periods. A step that lives
 * longer than the plan stays dynamic. */
#include "defrag/learn/learner.h"

#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/lifetimes.h"

enum {
    EDITS_MIN = 4,     /* edits allowed for occurrences of any length */
    COMMON_PART = 4,   /* of five parts: occurrences with a smaller common part are no period */
    EDITS_MAX = 2048,  /* edits between two occurrences for the exact algorithm */
    WORK_MAX = 1 << 24 /* comparisons of the exact algorithm: some tens of milliseconds */
};

/* ---- Aligning ------------------------------------------------------------------------------------------ */

struct pair {
    uint32_t first, second;
};

static inline bool same(const struct zr_seen *a, const struct zr_seen *b)
{
    return a->hash == b->hash && a->bytes == b->bytes && a->stream == b->stream && a->thread == b->thread &&
           a->tag == b->tag && a->alignment == b->alignment;
}

struct range {
    const struct zr_seen *seen;
    size_t count;
    size_t start, end; /* in the sequence: its start, and the end of the records */
    bool by_lifetime;  /* elements match only if their lifetimes match */
    const _Atomic bool *cancelled;
};

static inline bool is_cancelled(struct range in)
{
    return in.cancelled && atomic_load_explicit(in.cancelled, memory_order_relaxed);
}

/* The known part of a block's lifetime. */
static inline size_t lifetime(struct range in, size_t at, bool *ended)
{
    *ended = in.seen[at].upper != ZR_SEEN_LIVE;
    return (*ended ? in.seen[at].upper : in.end) - (in.start + at);
}

/* Whether two lifetimes are similar. Lifetimes count allocations, so unplanned allocations lengthen them
 * slightly. */
static bool as_long(struct range a, size_t i, struct range b, size_t k)
{
    bool a_ended, b_ended;
    size_t one = lifetime(a, i, &a_ended), other = lifetime(b, k, &b_ended);
    if (one > other ? !b_ended : !a_ended)
        return true; /* equal as far as recorded */
    size_t more = one > other ? one : other, less = one > other ? other : one;
    return more - less <= more / 8 + 8;
}

static inline bool alike(struct range a, size_t i, struct range b, size_t k)
{
    return same(&a.seen[i], &b.seen[k]) && (!a.by_lifetime || as_long(a, i, b, k));
}

/* The furthest index in `a` that a number of edits reaches on a diagonal (index in `a` minus index in `b`;
 * its parity is that of the edits). Myers's shortest edit script. All rows lie in one array. */
static inline int32_t *reach_of(int32_t *rows, int32_t edits, int32_t diagonal)
{
    return &rows[(size_t)edits * ((size_t)edits + 1) / 2 + (size_t)(diagonal + edits) / 2];
}

/* Whether the furthest path to the diagonal comes from the one above, by skipping an element of `b`. */
static bool comes_down(int32_t *rows, int32_t edits, int32_t diagonal)
{
    return diagonal == -edits || (diagonal != edits && *reach_of(rows, edits - 1, diagonal - 1) <
                                                           *reach_of(rows, edits - 1, diagonal + 1));
}

static int32_t begin_snake(int32_t *rows, int32_t edits, int32_t diagonal)
{
    if (edits == 0)
        return 0;
    return comes_down(rows, edits, diagonal) ? *reach_of(rows, edits - 1, diagonal + 1)
                                             : *reach_of(rows, edits - 1, diagonal - 1) + 1;
}

/* The end of the path through both ranges, and its edits. edits -1: above edits_max, or too much work. */
struct reached {
    int32_t edits, i, k;
};

/* Advances through both ranges until one ends: all of `a` and a prefix of `b`, or the reverse. */
static struct reached walk_both(struct range a, struct range b, int32_t *rows, int32_t edits_max)
{
    struct reached short_of = {.edits = -1};
    size_t work = 0;
    for (int32_t edits = 0; edits <= edits_max; edits++) {
        for (int32_t diagonal = -edits; diagonal <= edits; diagonal += 2) {
            int32_t i = begin_snake(rows, edits, diagonal), k = i - diagonal;
            while (i < (int32_t)a.count && k >= 0 && k < (int32_t)b.count &&
                   alike(a, (size_t)i, b, (size_t)k))
                i++, k++, work++;
            *reach_of(rows, edits, diagonal) = i;
            if (k < 0 || k > (int32_t)b.count || i > (int32_t)a.count)
                continue;
            if (i == (int32_t)a.count)
                return (struct reached){edits, i, k};
            if (k == (int32_t)b.count && (short_of.edits < 0 || i > short_of.i))
                short_of = (struct reached){edits, i, k};
        }
        work += (size_t)edits + 1;
        if (short_of.edits >= 0 || work > WORK_MAX || is_cancelled(a))
            return short_of;
    }
    return short_of;
}

static void reverse_pairs(struct pair *pairs, size_t count)
{
    for (size_t low = 0, high = count; low + 1 < high; low++) {
        struct pair swap = pairs[low];
        pairs[low] = pairs[--high];
        pairs[high] = swap;
    }
}

/* The end of the second occurrence, and the part of the first one that has not recurred yet. */
struct split {
    size_t second_count, left_count;
};

/* Finds the longest common subsequence. The second occurrence ends where it is most similar to the first.
 * Returns the number of pairs. SIZE_MAX: too many differences for this algorithm. */
static size_t align_exactly(struct range a, struct range b, struct split *split, struct pair *out)
{
    struct zr_scratch scratch = {0};
    size_t edits_max = (a.count + b.count) / 8 + EDITS_MIN, count = 0;
    edits_max = edits_max < EDITS_MAX ? edits_max : EDITS_MAX;
    int32_t *rows = zr_scratch_take(&scratch, (edits_max + 1) * (edits_max + 2) / 2, sizeof *rows);
    struct reached reached = rows ? walk_both(a, b, rows, (int32_t)edits_max) : (struct reached){.edits = -1};
    int32_t i = reached.i, k = reached.k;
    for (int32_t edits = reached.edits; edits >= 0; edits--) {
        bool down = edits > 0 && comes_down(rows, edits, i - k);
        for (int32_t first = begin_snake(rows, edits, i - k); i > first;)
            out[count++] = (struct pair){(uint32_t)--i, (uint32_t)--k};
        k -= down;
        i -= edits > 0 && !down;
    }
    reverse_pairs(out, count);
    zr_scratch_end(&scratch);
    if (reached.edits < 0)
        return SIZE_MAX;
    split->second_count = (size_t)reached.k;
    split->left_count = a.count - (size_t)reached.i;
    return count;
}

/* Adds pairs for steps whose lifetimes vary: equal elements between two pairs, counted from either side.
 * Other elements are unplanned allocations in at least one occurrence. */
static size_t fill_gaps(struct range a, struct range b, const struct pair *pairs, size_t count,
                        struct pair *out)
{
    size_t filled = 0, i = 0, k = 0;
    for (size_t p = 0; p <= count; p++) {
        struct pair end = p < count ? pairs[p] : (struct pair){(uint32_t)a.count, (uint32_t)b.count};
        while (i < end.first && k < end.second && same(&a.seen[i], &b.seen[k]))
            out[filled++] = (struct pair){(uint32_t)i++, (uint32_t)k++};
        size_t back = 0;
        while (i + back < end.first && k + back < end.second &&
               same(&a.seen[end.first - 1 - back], &b.seen[end.second - 1 - back]))
            back++;
        for (; back > 0; back--)
            out[filled++] = (struct pair){end.first - (uint32_t)back, end.second - (uint32_t)back};
        if (p < count)
            out[filled++] = end;
        i = end.first + 1;
        k = end.second + 1;
    }
    return filled;
}

/* The work on one sequence. */
struct sequence_work {
    const struct zr_seen_sequence *sequence;
    const _Atomic bool *cancelled; /* of the helper */
    struct pair *pairs;
    size_t count;                   /* steps */
    uint32_t *in_first, *in_second; /* by position in an occurrence: the number of steps before it */
    uint32_t *upper; /* by step: the step before which the block is freed, above `count` in the next period;
                        0: dynamic */
    size_t repeats;  /* periods in the plan */
    size_t cut;      /* the first step of the plan, before which the fewest bytes are live */
    uint64_t crossing_bytes; /* live before the first step */
};

/* Aligns by requests and lifetimes, so that an unplanned allocation among equal sizes does not shift the
 * others. If the lifetimes differ too much, aligns by requests only. The first occurrence begins at record
 * `lead`. */
static size_t align_from(const struct sequence_work *work, size_t lead, struct split *split, struct pair *out,
                         struct pair *pairs)
{
    const struct zr_seen_sequence *sequence = work->sequence;
    size_t middle = sequence->lead_count + sequence->first_count;
    struct range a = {sequence->seen + lead, middle - lead, lead, sequence->count, true, work->cancelled};
    struct range b = {sequence->seen + middle, sequence->count - middle, middle, sequence->count, true,
                      work->cancelled};
    size_t count = align_exactly(a, b, split, pairs);
    if (count != SIZE_MAX) {
        b.count = split->second_count;
        return fill_gaps(a, b, pairs, count, out);
    }
    a.by_lifetime = false;
    count = align_exactly(a, b, split, out);
    return count != SIZE_MAX ? count : 0;
}

/* Aligns the two occurrences, and removes the allocations before them from the sequence. */
static size_t align(struct sequence_work *work, struct zr_seen_sequence *sequence, struct split *split)
{
    struct zr_scratch scratch = {0};
    struct pair *out = work->pairs;
    size_t lead = sequence->lead_count, count = 0;
    struct pair *pairs = zr_scratch_take(&scratch, lead + sequence->first_count, sizeof *pairs);
    if (pairs)
        count = align_from(work, lead, split, out, pairs);
    zr_scratch_end(&scratch);
    sequence->seen += lead;
    sequence->position += (uint32_t)lead;
    sequence->count -= lead;
    sequence->first_count += sequence->lead_count - lead;
    sequence->second_count = split->second_count;
    sequence->lead_count = 0;
    for (size_t i = 0; i < sequence->count; i++)
        if (sequence->seen[i].upper != ZR_SEEN_LIVE)
            sequence->seen[i].upper -= (uint32_t)lead;
    return count;
}

/* ---- Lifetimes ----------------------------------------------------------------------------------------- */

static void count_steps(uint32_t *before, size_t positions, const struct sequence_work *work, bool second)
{
    size_t step = 0;
    for (size_t at = 0; at <= positions; at++) {
        while (step < work->count && (second ? work->pairs[step].second : work->pairs[step].first) < at)
            step++;
        before[at] = (uint32_t)step;
    }
}

/* The free of the block recorded at `at`, in steps from the start of its period. UINT32_MAX: after the known
 * part. */
static uint32_t upper_in_first(const struct sequence_work *work, uint32_t at)
{
    uint32_t upper = work->sequence->seen[at].upper;
    if (upper <= work->sequence->first_count)
        return work->in_first[upper];
    upper -= (uint32_t)work->sequence->first_count;
    if (work->sequence->seen[at].upper == ZR_SEEN_LIVE || upper > work->sequence->second_count)
        return UINT32_MAX;
    return (uint32_t)work->count + work->in_second[upper];
}

static uint32_t upper_in_second(const struct sequence_work *work, uint32_t at)
{
    const struct zr_seen *seen = &work->sequence->seen[work->sequence->first_count + at];
    if (seen->upper == ZR_SEEN_LIVE)
        return 0; /* not known yet */
    uint32_t upper = seen->upper - (uint32_t)work->sequence->first_count;
    if (upper <= work->sequence->second_count)
        return work->in_second[upper];
    /* The third occurrence has just begun; nearly all of its allocations are steps. */
    upper -= (uint32_t)work->sequence->second_count;
    return (uint32_t)work->count + (upper < work->count ? upper : (uint32_t)work->count);
}

static void find_lifetimes(struct zr_candidate *candidate, struct sequence_work *work)
{
    uint64_t longer_bytes = 0; /* of blocks that live for one to two periods */
    for (size_t step = 0; step < work->count; step++) {
        const struct zr_seen *seen = &work->sequence->seen[work->pairs[step].first];
        uint32_t upper = upper_in_first(work, work->pairs[step].first);
        uint32_t other = upper_in_second(work, work->pairs[step].second);
        upper = upper != UINT32_MAX && other > upper ? other : upper;
        candidate->step_bytes += seen->bytes;
        bool outlives = upper == UINT32_MAX || upper - step > work->count;
        candidate->outlive_bytes += outlives ? seen->bytes : 0;
        work->upper[step] = upper == UINT32_MAX || upper - step > 2 * work->count ? 0 : upper;
        longer_bytes += outlives && work->upper[step] ? seen->bytes : 0;
    }
    work->repeats = longer_bytes >= candidate->granule_bytes ? 2 : 1;
    for (size_t step = 0; step < work->count; step++)
        if (work->upper[step] > step + work->repeats * work->count)
            work->upper[step] = 0;
}

static zr_result find_cut(struct sequence_work *work, struct zr_scratch *scratch)
{
    size_t count = work->count * work->repeats;
    struct zr_lifetimes lifetimes = {.count = count, .period = count};
    struct zr_lifetimes_sweep sweep;
    lifetimes.buffers = zr_scratch_take(scratch, count, sizeof *lifetimes.buffers);
    for (size_t i = 0; lifetimes.buffers && i < count; i++) {
        size_t step = i % work->count;
        lifetimes.buffers[i] =
            (struct zr_buffer){.lower = i,
                               .upper = work->upper[step] ? i - step + work->upper[step] : i,
                               .bytes = work->sequence->seen[work->pairs[step].first].bytes};
    }
    zr_result result = zr_lifetimes_sweep(&sweep, &lifetimes, scratch);
    work->cut = result == ZR_OK && sweep.count > 0 ? sweep.ends[sweep.least_at].key % work->count : 0;
    work->crossing_bytes = sweep.crossing_bytes;
    return result;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static zr_result make_sequence(struct zr_candidate *candidate, struct sequence_work *work,
                               struct zr_plan_sequence *out, struct zr_lifetimes *lifetimes)
{
    size_t cut = work->cut, count = work->count * work->repeats, placed = 0;
    struct zr_plan_step *steps = candidate->steps + candidate->plan.steps_count;
    struct zr_buffer *buffers = zr_scratch_take(&candidate->scratch, count, sizeof *buffers);
    if (!buffers)
        return candidate->scratch.result;
    for (size_t i = 0; i < count; i++) {
        size_t step = (cut + i) % work->count;
        const struct zr_seen *seen = &work->sequence->seen[work->pairs[step].first];
        steps[i] = (struct zr_plan_step){.request = {.bytes = seen->bytes,
                                                     .alignment = seen->alignment,
                                                     .tag = (zr_tag)seen->tag,
                                                     .stream = seen->stream},
                                         .thread = seen->thread,
                                         .offset_bytes = ZR_PLAN_NOWHERE};
        if (work->upper[step] == 0)
            continue;
        steps[i].alive_count = (uint32_t)(work->upper[step] - step);
        buffers[placed++] =
            (struct zr_buffer){.id = i, .bytes = seen->bytes, .lower = i, .upper = i + steps[i].alive_count};
    }
    /* A part of the third occurrence has passed already. */
    size_t passed = work->sequence->count - work->sequence->first_count - work->sequence->second_count;
    *out = (struct zr_plan_sequence){.first = candidate->plan.steps_count,
                                     .count = count,
                                     .cursor = (count - cut + passed) % count,
                                     .any = work->sequence->any,
                                     .any_thread = work->sequence->any_thread,
                                     .any_stream = work->sequence->any_stream,
                                     .thread = work->sequence->thread,
                                     .stream = work->sequence->stream};
    *lifetimes = (struct zr_lifetimes){.buffers = buffers, .count = placed, .period = count};
    if (work->sequence->rest_bytes > work->crossing_bytes)
        candidate->rest_bytes += work->sequence->rest_bytes - work->crossing_bytes;
    candidate->seen_count += work->sequence->second_count * work->repeats;
    size_t longer = work->sequence->first_count > work->sequence->second_count ? work->sequence->first_count
                                                                               : work->sequence->second_count;
    candidate->plan.unplanned_count += (longer - work->count) * work->repeats;
    candidate->plan.steps_count += count;
    return ZR_OK;
}

/* Makes the steps of an aligned sequence. */
static zr_result add_steps(struct zr_candidate *candidate, struct sequence_work *work,
                           struct zr_scratch *scratch)
{
    const struct zr_seen_sequence *sequence = work->sequence;
    size_t number = candidate->plan.sequences_count;
    work->in_first = zr_scratch_take(scratch, sequence->first_count + 1, sizeof *work->in_first);
    work->in_second = zr_scratch_take(scratch, sequence->second_count + 1, sizeof *work->in_second);
    work->upper = zr_scratch_take(scratch, work->count, sizeof *work->upper);
    if (scratch->result != ZR_OK)
        return scratch->result;
    count_steps(work->in_first, sequence->first_count, work, false);
    count_steps(work->in_second, sequence->second_count, work, true);
    find_lifetimes(candidate, work);
    zr_result result = find_cut(work, scratch);
    if (result == ZR_OK)
        result = make_sequence(candidate, work, &candidate->sequences[number], &candidate->lifetimes[number]);
    candidate->plan.sequences_count += result == ZR_OK;
    return result;
}

static zr_result add_sequence(struct zr_candidate *candidate, const struct zr_seen_sequence *seen)
{
    struct zr_scratch scratch = {0};
    struct zr_seen_sequence sequence = *seen;
    struct sequence_work work = {.sequence = &sequence, .cancelled = candidate->here.cancelled};
    work.pairs = zr_scratch_take(&scratch, sequence.lead_count + sequence.first_count, sizeof *work.pairs);
    zr_result result = scratch.result;
    if (result == ZR_OK) {
        struct split split = {.second_count = sequence.second_count};
        work.count = align(&work, &sequence, &split);
        size_t longer =
            sequence.first_count > sequence.second_count ? sequence.first_count : sequence.second_count;
        if (split.left_count > 0) {
            result = zr_fail(ZR_ERR_UNAVAILABLE, "%zu of %zu allocations have not recurred yet",
                             split.left_count, sequence.first_count);
        } else if (work.count == 0 || work.count * 5 < longer * COMMON_PART) {
            result = zr_fail(ZR_ERR_UNAVAILABLE,
                             "two occurrences of %zu and %zu allocations have only %zu in common",
                             sequence.first_count, sequence.second_count, work.count);
        }
    }
    if (result == ZR_OK)
        result = add_steps(candidate, &work, &scratch);
    zr_scratch_end(&scratch);
    return result;
}

zr_result zr_candidate_make(struct zr_candidate *out, const struct zr_seen_sequence *sequences,
                            size_t sequences_count, size_t granule_bytes, struct zr_pack_here here)
{
    size_t steps_max = 0;
    *out = (struct zr_candidate){.here = here, .granule_bytes = granule_bytes};
    for (size_t i = 0; i < sequences_count; i++)
        steps_max += 2 * (sequences[i].lead_count + sequences[i].first_count);
    out->steps = zr_scratch_take(&out->scratch, steps_max, sizeof *out->steps);
    zr_result result = out->scratch.result;
    for (size_t i = 0; i < sequences_count && result == ZR_OK; i++)
        result = add_sequence(out, &sequences[i]);
    out->plan.steps = out->steps;
    out->plan.sequences = out->sequences;
    return result;
}

void zr_candidate_end(struct zr_candidate *candidate)
{
    zr_scratch_end(&candidate->scratch);
    *candidate = (struct zr_candidate){0};
}
