/* pack_test.c: lifetimes and their reader, the packer on cases worked out by hand, on cut rectangles whose
 * optimum is known, against brute force on tiny ones, with periods, and on degenerate input; the checker
 * against one that compares every pair. Perfect packings are perfect_test.c's, hostile files fuzz_test.c's.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/sort.h"
#include "defrag/zr_defrag.h"
#include "tests/support/cut_rectangles.h"
#include "tests/support/records.h"
#include "tests/support/tap.h"

#define SECOND UINT64_C(1000000000)

static char scratch[64] = "/tmp/zr-pack-test-XXXXXX";

/* ---- Sets made by hand --------------------------------------------------------------------------------- */

#define ROOM 4096
static struct zr_buffer buffers[ROOM];

static struct zr_lifetimes set_of(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        buffers[i].id = i;
        buffers[i].offset_bytes = UINT64_MAX / 2; /* the packer must write every one */
    }
    return (struct zr_lifetimes){.buffers = buffers, .count = count, .host_arena = host_arena};
}

static struct zr_buffer life(uint64_t lower, uint64_t upper, uint64_t bytes)
{
    return (struct zr_buffer){.lower = lower, .upper = upper, .bytes = bytes};
}

/* Fitting in order stops at a limit: the height itself is within it, a unit less is not. */
static void test_limit(void)
{
    struct zr_lifetimes set = set_of(3);
    struct zr_scratch own = {.arena = host_arena};
    struct zr_pack_problem problem;
    struct zr_fit fit;
    struct zr_pack_budget budget = {.until_ns = UINT64_MAX, .work_left = UINT64_MAX};
    buffers[0] = life(0, 4, 5), buffers[1] = life(1, 3, 3), buffers[2] = life(2, 4, 2);
    bool made =
        zr_pack_problem_make(&problem, &set, 1, &own) == ZR_OK && zr_fit_make(&fit, &problem, &own) == ZR_OK;
    if (!tap_ok(made, "a problem of height 10"))
        return zr_scratch_end(&own);
    zr_fit_order(&fit, ZR_FIT_BY_SIZE);
    uint64_t height = zr_fit_run(&fit, 0, ZR_FIT_FAILED - 1, &budget);
    tap_is(height, problem.bound_units, "placed at the lower bound");
    tap_is(zr_fit_run(&fit, 0, height, &budget), height, "within a limit of that height");
    tap_is(zr_fit_run(&fit, 0, height - 1, &budget), ZR_FIT_FAILED, "and not within a unit less");
    zr_scratch_end(&own);
}

/* Whether two are alive at one time, be it in a later period of one of them. Nothing meets what is empty. */
static bool meet(const struct zr_lifetimes *set, const struct zr_buffer *a, const struct zr_buffer *b)
{
    return a->bytes > 0 && b->bytes > 0 && a->lower < a->upper && b->lower < b->upper &&
           ((a->lower < b->upper && b->lower < a->upper) ||
            (set->period > 0 && (a->lower + set->period < b->upper || b->lower + set->period < a->upper)));
}

/* No two that are alive at one time overlap: every pair is looked at. */
static bool holds(const struct zr_lifetimes *set, uint64_t height_bytes)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct zr_buffer *a = &set->buffers[i];
        if (a->offset_bytes > height_bytes || a->bytes > height_bytes - a->offset_bytes)
            return false;
        for (size_t j = 0; j < i; j++) {
            const struct zr_buffer *b = &set->buffers[j];
            if (a->offset_bytes < b->offset_bytes + b->bytes &&
                b->offset_bytes < a->offset_bytes + a->bytes && meet(set, a, b))
                return false;
        }
    }
    return true;
}

static struct zr_pack_report pack(struct zr_lifetimes *set, struct zr_pack_options options)
{
    struct zr_pack_report report = {.height_bytes = UINT64_MAX};
    if (!options.time_ns)
        options.time_ns = (options.capacity_bytes ? 20 : 2) * SECOND;
    zr_result result = zr_pack(set, &options, &report);
    bool met = report.verdict == ZR_PACK_FOUND;
    bool low =
        report.height_bytes <= (options.capacity_bytes ? options.capacity_bytes : report.lower_bound_bytes);
    if (result || !holds(set, report.height_bytes) || zr_pack_check(set, report.height_bytes) ||
        (options.capacity_bytes ? met != low : low && !met)) {
        tap_ok(false, "a placement that holds, and a verdict to match: %s", zr_last_error());
        report.height_bytes = UINT64_MAX;
    }
    return report;
}

/* ---- The checker --------------------------------------------------------------------------------------- */

static void test_checker(void)
{
    enum { ROUNDS = 4000, PILE = 200 };
    unsigned wrong = 0, good = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t space = 4 + draw(60), height = space - draw(3);
        struct zr_lifetimes set = set_of(1 + draw(12));
        set.period = round % 2 * 12;
        for (size_t i = 0; i < set.count; i++) {
            uint64_t lower = draw(12);
            buffers[i] = (struct zr_buffer){lower, lower + draw(5), draw(6), draw(space), i};
        }
        bool want = holds(&set, height);
        wrong += zr_pack_check(&set, height) != (want ? ZR_OK : ZR_ERR_CORRUPT);
        good += want;
    }
    tap_is(wrong, 0, "the checker says of 4000 random placements what comparing every pair says");
    tap_ok(good > 400 && good < 3600, "of which %u hold", good);

    /* A pile of many buffers, most of which end; then one comes, somewhere among those that are left. */
    for (unsigned round = 0; round < 300; round++) {
        struct zr_lifetimes set = set_of(PILE + 1);
        for (size_t i = 0; i < PILE; i++)
            buffers[i] = (struct zr_buffer){0, draw(8) ? 5 : 9, 2, 2 * i, i};
        buffers[PILE] = (struct zr_buffer){7, 8, 1 + draw(8), draw(2 * PILE), PILE};
        wrong += zr_pack_check(&set, 3 * PILE) != (holds(&set, 3 * PILE) ? ZR_OK : ZR_ERR_CORRUPT);
    }
    tap_is(wrong, 0, "and of piles of %d", PILE);

    buffers[0] = (struct zr_buffer){0, 5, 8, 0, 70};
    buffers[1] = (struct zr_buffer){5, 9, 8, 0, 71};
    buffers[2] = (struct zr_buffer){4, 6, 8, 7, 72};
    struct zr_lifetimes set = {.buffers = buffers, .count = 2, .host_arena = host_arena};
    tap_result(zr_pack_check(&set, 8), ZR_OK, "lifetimes are half open");
    set.count = 3;
    tap_result(zr_pack_check(&set, 15), ZR_ERR_CORRUPT, "a byte that two share is found");
    tap_ok(strstr(zr_last_error(), "70") && strstr(zr_last_error(), "72"), "and both are named: %s",
           zr_last_error());
    buffers[2].offset_bytes = UINT64_MAX - 3;
    tap_result(zr_pack_check(&set, UINT64_MAX), ZR_ERR_CORRUPT,
               "an offset whose end has more than 64 bits too");
}

/* ---- Known answers ------------------------------------------------------------------------------------- */

/* Packs the first buffers; returns the lower bound. */
static uint64_t pack_is(size_t count, struct zr_pack_options options, uint64_t height_bytes,
                        const char *words)
{
    struct zr_lifetimes set = set_of(count);
    struct zr_pack_report report = pack(&set, options);
    tap_is(report.height_bytes, height_bytes, "%s", words);
    return report.lower_bound_bytes;
}

static void test_by_hand(void)
{
    static const struct {
        struct zr_pack_options options;
        uint64_t height_bytes;
        const char *words;
    } forty[] = {
        {{.alignment_bytes = 0}, 40 * 5, "forty of a kind are stacked"},
        {{.alignment_bytes = 4}, 39 * 8 + 5, "at multiples of 4: the last one's padding is not counted"},
        {{.alignment_bytes = 4, .capacity_bytes = 39 * 8 + 5}, 39 * 8 + 5, "a capacity may end within it"},
        {{.alignment_bytes = 4, .capacity_bytes = 39 * 8 + 4}, 39 * 8 + 5, "but not before"},
    };
    static const unsigned tight[][3] = {{0, 2, 1}, {0, 1, 2}, {1, 3, 2}, {2, 4, 1},
                                        {3, 5, 2}, {4, 5, 1}, {5, 6, 3}};
    pack_is(0, (struct zr_pack_options){0}, 0, "nothing needs nothing");
    buffers[0] = life(3, 3, 100);
    buffers[1] = life(0, UINT64_MAX, 0);
    tap_is(pack_is(2, (struct zr_pack_options){0}, 100, "an empty lifetime lies within the height"), 0,
           "but shares its place with anything");
    for (unsigned i = 0; i < 40; i++)
        buffers[i] = life(7, 8, 5);
    for (unsigned i = 0; i < 4; i++)
        pack_is(40, forty[i].options, forty[i].height_bytes, forty[i].words);

    for (unsigned i = 0; i < 7; i++)
        buffers[i] = life(tight[i][0], tight[i][1], tight[i][2]);
    tap_is(pack_is(7, (struct zr_pack_options){0}, 3, "a puzzle with one answer is solved"), 3,
           "at its lower bound");
    for (unsigned turn = 1; turn < 6; turn++) {
        struct zr_lifetimes set = set_of(7);
        set.period = 6;
        for (unsigned i = 0; i < 7; i++) {
            buffers[i].lower = (tight[i][0] + turn) % 6;
            buffers[i].upper = buffers[i].lower + tight[i][1] - tight[i][0];
        }
        tap_is(pack(&set, (struct zr_pack_options){0}).height_bytes, 3,
               "and with a period that begins %u later", turn);
    }
}

/* Cuts [0, end) x [0, height) into pieces: packs perfectly. */
static void cut_rectangle(size_t count, uint64_t end, uint64_t height)
{
    cut(STRAIGHT, count, end, height);
    for (size_t i = 0; i < count; i++)
        buffers[i] = life(pieces[i].side[0][0], pieces[i].side[0][1], length_of(&pieces[i], 1));
    shuffle(buffers, count);
}

/* ---- Periods ------------------------------------------------------------------------------------------- */

/* The most that is alive at a time, moment by moment. */
static uint64_t live_max(const struct zr_lifetimes *set)
{
    uint64_t most = 0;
    for (uint64_t at = 0; at < set->period; at++) {
        const struct zr_buffer now = {at, at + 1, 1, 0, 0};
        uint64_t live = 0;
        for (size_t i = 0; i < set->count; i++)
            live += meet(set, &now, &set->buffers[i]) ? set->buffers[i].bytes : 0;
        most = live > most ? live : most;
    }
    return most;
}

/* Of each kind many sets: one buffer in four lives for longer. */
static const struct {
    const char *name;
    uint64_t count_max, period_max, longest, bits, work;
    unsigned sets;
    double ratio_max; /* of what is live */
} kinds[] = {
    {"few buffers", 8, 6, 3, 4, 1 << 16, 400, 1.5},
    {"short lifetimes, from both ends alone", 700, 700, 24, 12, 1, 60, 2},
    {"short lifetimes", 300, 300, 24, 12, 1 << 20, 60, 1.3},
    {"long lifetimes", 60, 1000, 1000, 12, 1 << 20, 60, 1.3},
    {"a period of one moment", 20, 1, 1, 6, 1 << 16, 20, 1},
};

static void test_periods(void)
{
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        unsigned wrong = 0;
        double worst = 1;
        for (unsigned n = 0; n < kinds[k].sets; n++) {
            uint64_t period = 1 + draw(kinds[k].period_max), height = 0;
            struct zr_lifetimes set = set_of(1 + draw(kinds[k].count_max));
            set.period = period;
            for (size_t i = 0; i < set.count; i++) {
                uint64_t most = draw(4) && kinds[k].longest < period ? kinds[k].longest : period;
                buffers[i].lower = draw(period);
                buffers[i].upper = buffers[i].lower + 1 + draw(most);
                buffers[i].bytes = 256 * (1 + draw(UINT64_C(1) << draw(kinds[k].bits)));
            }
            struct zr_pack_report report = pack(&set, (struct zr_pack_options){.work = kinds[k].work});
            wrong += report.lower_bound_bytes != live_max(&set);
            double ratio = (double)report.height_bytes / (double)report.lower_bound_bytes;
            worst = ratio > worst ? ratio : worst;
            wrong += zr_pack_round(&set, 768, &height) || !holds(&set, height);
        }
        tap_is(wrong, 0, "%s: what is live is counted right, and a rounded placement holds", kinds[k].name);
        tap_ok(worst >= 1 && worst <= kinds[k].ratio_max, "%s: at most %.3f times what is live",
               kinds[k].name, worst);
    }
}

/* A network of so many layers: each keeps some blocks until its backward comes, with passing ones in between,
 * of which some are still there when the next layer begins, and the last when the next pass does. From both
 * ends: there is no work for more. */
static void test_deep(size_t layers)
{
    enum { KEPT = 4, LAYER = KEPT + 2, BACK = 3 };
    size_t forward = layers * LAYER, count = forward + layers * BACK;
    struct zr_lifetimes set = set_of(count);
    set.period = count;
    for (size_t i = 0; i < count; i++) {
        size_t in = i % LAYER, back = (i - forward) % BACK, moments = LAYER + in;
        size_t grains = 50 * in + i / LAYER % 3;
        if (i >= forward) {
            moments = BACK + 2 * back;
            grains = 90 + 11 * back;
        } else if (in < KEPT) {
            moments = forward + (layers - i / LAYER) * BACK - i;
            grains = 7 + 3 * in;
        }
        buffers[i] = (struct zr_buffer){i, i + moments, 256 * grains, 0, i};
    }
    struct zr_pack_report report = pack(&set, (struct zr_pack_options){.work = 1});
    tap_ok(report.height_bytes < report.lower_bound_bytes * 102 / 100,
           "a pass of %zu allocations takes %zu bytes where %zu are live", count, (size_t)report.height_bytes,
           (size_t)report.lower_bound_bytes);
}

/* ---- Against brute force ------------------------------------------------------------------------------- */

/* Eight buffers of load 4 throughout that no placement of height 4 holds. Two halves, p and q, fall to a and
 * c, and to b and d, one after the other; then a and b make room for one buffer of 2, so they meet in the
 * middle, and c and d, now at the ends, for another one, which fits nowhere. Sizes and times are stretched,
 * and time may run backwards. Returns the count. */
static size_t make_puzzle(void)
{
    static const uint8_t puzzle[8][3] = {{0, 1, 2}, {0, 2, 2}, {1, 3, 1}, {1, 4, 1},
                                         {2, 3, 1}, {2, 4, 1}, {3, 5, 2}, {4, 5, 2}};
    uint64_t times[6] = {draw(5)}, scale = 1 + draw(4);
    bool backwards = draw(2);
    for (unsigned t = 1; t < 6; t++)
        times[t] = times[t - 1] + 1 + draw(4);
    for (unsigned i = 0; i < 8; i++) {
        unsigned lower = backwards ? 5u - puzzle[i][1] : puzzle[i][0];
        unsigned upper = backwards ? 5u - puzzle[i][0] : puzzle[i][1];
        buffers[i] = life(times[lower], times[upper], scale * puzzle[i][2]);
    }
    shuffle(buffers, 8);
    return 8;
}

/* A set for brute force: now and then a puzzle, else at random. */
static size_t make_small(unsigned round)
{
    size_t count = 3 + draw(6);
    if (round % 8 == 0)
        return make_puzzle();
    for (size_t i = 0; i < count; i++) {
        uint64_t lower = draw(7);
        buffers[i] = life(lower, lower + 1 + draw(4), 1 + draw(round % 2 ? 4 : 9));
    }
    return count;
}

/* The lowest height there is: every order, each buffer as low as those before it allow. Some order of a
 * lowest placement, from the bottom up, gives it. */
static uint64_t brute_force(const struct zr_buffer *set, size_t count, uint32_t placed, uint64_t *offsets,
                            uint64_t height, uint64_t best)
{
    if (placed + 1 == UINT32_C(1) << count)
        return height < best ? height : best;
    for (size_t i = 0; i < count && height < best; i++) {
        uint64_t top = 0, end;
        if (placed >> i & 1)
            continue;
        /* On top of all of its neighbours so far: the order from the bottom up never needs a gap below. */
        for (size_t j = 0; j < count; j++)
            if (placed >> j & 1 && set[i].lower < set[j].upper && set[j].lower < set[i].upper &&
                offsets[j] + set[j].bytes > top)
                top = offsets[j] + set[j].bytes;
        offsets[i] = top;
        end = top + set[i].bytes;
        best = brute_force(set, count, placed | UINT32_C(1) << i, offsets, end > height ? end : height, best);
    }
    return best;
}

/* The search alone, at each height around the lowest: how often it decides otherwise. */
static unsigned search_errors(struct zr_lifetimes *set, uint64_t best)
{
    unsigned wrong = 0;
    struct zr_scratch memory = {.arena = host_arena};
    struct zr_pack_budget watch = {.until_ns = UINT64_MAX, .work_left = UINT64_MAX};
    struct zr_pack_problem problem;
    struct zr_search *search;
    if (zr_pack_problem_make(&problem, set, 1, &memory) || zr_search_make(&search, &problem, &memory))
        return 1;
    best /= problem.unit_bytes;
    for (uint64_t capacity = problem.bound_units; capacity <= best + 1; capacity++)
        for (uint64_t attempt = 0; attempt < 12; attempt += 5) {
            struct zr_search_task task = {capacity, UINT64_MAX, attempt};
            enum zr_search_verdict verdict = zr_search_run(search, &task, &watch);
            wrong += verdict != (capacity < best ? ZR_SEARCH_IMPOSSIBLE : ZR_SEARCH_FOUND);
            for (uint32_t i = 0; verdict == ZR_SEARCH_FOUND && i < problem.count; i++)
                buffers[problem.buffer[i]].offset_bytes = zr_search_offsets(search)[i] * problem.unit_bytes;
            wrong += verdict == ZR_SEARCH_FOUND && !holds(set, capacity * problem.unit_bytes);
        }
    zr_scratch_end(&memory);
    return wrong;
}

static void test_brute_force(void)
{
    enum { ROUNDS = 600, PACKED = 240 };
    unsigned lowest = 0, decided = 0, above_bound = 0, wrong = 0;
    uint64_t offsets[9];
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct zr_lifetimes set = set_of(make_small(round));
        uint64_t best = brute_force(buffers, set.count, 0, offsets, 0, UINT64_MAX);
        wrong += search_errors(&set, best);
        if (round >= PACKED)
            continue;
        struct zr_pack_report report = pack(&set, (struct zr_pack_options){.threads = 1 + round % 2});
        lowest += report.height_bytes == best;
        above_bound += best > report.lower_bound_bytes;
        decided += best == 1 || pack(&set, (struct zr_pack_options){.capacity_bytes = best - 1}).verdict ==
                                    ZR_PACK_IMPOSSIBLE;
    }
    tap_is(lowest, PACKED, "the lowest height of %u random sets, as found by trying every order", PACKED);
    tap_is(decided, PACKED, "one byte less is proved impossible");
    tap_ok(above_bound > 10, "%u of them have no placement at the lower bound", above_bound);
    tap_is(wrong, 0, "the search alone decides as trying every order does, around the lowest height");
}

/* ---- Rules of the call --------------------------------------------------------------------------------- */

static void test_capacity(void)
{
    cut_rectangle(300, 400, 100000);
    struct zr_lifetimes set = set_of(300);
    struct zr_pack_report report =
        pack(&set, (struct zr_pack_options){.capacity_bytes = 99999, .time_ns = 9 * SECOND});
    tap_ok(report.verdict == ZR_PACK_IMPOSSIBLE && report.spent_ns < 5 * SECOND,
           "less than the lower bound is impossible, and at once (%" PRIu64 " us)", report.spent_ns / 1000);
    tap_ok(report.height_bytes >= 100000, "a placement is given all the same");
    report = pack(&set, (struct zr_pack_options){.capacity_bytes = 200000});
    tap_ok(report.verdict == ZR_PACK_FOUND && report.height_bytes <= 200000, "ample room is found at once");
    report = pack(&set, (struct zr_pack_options){.capacity_bytes = UINT64_MAX});
    tap_ok(report.verdict == ZR_PACK_FOUND, "and in all there is");
    report = pack(&set, (struct zr_pack_options){.time_ns = 1});
    tap_ok(report.height_bytes < UINT64_MAX, "a nanosecond gives a placement that holds");
}

/* The offsets of two runs, with a budget of work the second on more threads; returns the height. */
static uint64_t packs_alike(size_t count, struct zr_pack_options options, const char *words)
{
    struct zr_lifetimes set = set_of(count);
    uint64_t first[300], differ = 0;
    struct zr_pack_options alone = options;
    alone.threads = options.work ? 1 : options.threads;
    pack(&set, alone);
    for (size_t i = 0; i < count; i++)
        first[i] = buffers[i].offset_bytes;
    set = set_of(count);
    uint64_t height_bytes = pack(&set, options).height_bytes;
    for (size_t i = 0; i < count; i++)
        differ += first[i] != buffers[i].offset_bytes;
    tap_is(differ, 0, "%s", words);
    return height_bytes;
}

/* A budget of work ends both runs before they are done. */
static void test_same_again(void)
{
    struct zr_pack_options few = {.time_ns = 1, .work = 1, .threads = 4},
                           more = {.time_ns = 1, .work = 1000000, .threads = 3},
                           most = {.time_ns = 1, .work = 30000000, .threads = 2};
    cut_rectangle(300, 400, 100000);
    uint64_t high = packs_alike(300, few, "one step of work: the same on one thread and on four"),
             middle = packs_alike(300, more, "a million: the same on one thread and on three"),
             low = packs_alike(300, most, "thirty million: the same on one thread and on two");
    tap_ok(high < UINT64_MAX && low <= middle && middle <= high && low < high,
           "more work gives a lower placement: %" PRIu64 ", %" PRIu64 ", %" PRIu64, high, middle, low);
    cut_rectangle(60, 100, 5000);
    for (unsigned i = 0; i < 60; i++) /* leave some room, so that there are many answers */
        buffers[i].bytes -= buffers[i].bytes > 20 ? buffers[i].bytes / 20 : 0;
    packs_alike(60, (struct zr_pack_options){.capacity_bytes = 5000, .threads = 2},
                "within a capacity, twice on two threads: the same");
}

static void test_refusals(void)
{
    struct zr_pack_report report;
    struct zr_pack_options options = {.time_ns = SECOND};
    static const unsigned lives[][2] = {{5, 6}, {0, 6}, {4, 10}};
    struct zr_lifetimes set = set_of(2);
    buffers[0] = life(0, 9, UINT64_C(1) << 62);
    buffers[1] = life(3, 5, 1);
    tap_result(zr_pack(&set, &options, &report), ZR_ERR_INVALID,
               "sizes whose sum could overflow are refused");
    set.count = 1;
    tap_result(zr_pack(&set, &options, &report), ZR_OK, "2^62 bytes are not");
    buffers[0] = (struct zr_buffer){.lower = 4, .upper = 3, .bytes = 1, .id = 4711};
    tap_result(zr_pack(&set, &options, &report), ZR_ERR_INVALID, "a lifetime that ends before it begins");
    tap_ok(strstr(zr_last_error(), "4711"), "is named: %s", zr_last_error());
    set.period = 5;
    for (unsigned i = 0; i < 3; i++) {
        buffers[0] = life(lives[i][0], lives[i][1], 1);
        tap_ok(zr_pack(&set, &options, &report) == ZR_ERR_INVALID && zr_pack_check(&set, 1) == ZR_ERR_INVALID,
               "alive from %u to %u in a period of 5", lives[i][0], lives[i][1]);
    }
    buffers[0] = life(4, 5, 1);
    options.alignment_bytes = UINT64_MAX;
    tap_result(zr_pack(&set, &options, &report), ZR_ERR_INVALID, "an alignment beyond all bounds");
}

/* Every allocation and thread refused in turn, until a run passes. */
static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_METADATA, ZR_FAULT_THREAD, ZR_FAULT_MAP,
                                               ZR_FAULT_CREATE};
    random_state = 4711; /* a rectangle that is not found from both ends at once */
    cut_rectangle(60, 100, 5000);
    for (unsigned s = 0; s < 4; s++) {
        unsigned failed = 0, leaked = 0, nth = 1;
        for (; nth < 4000; nth += 1 + nth / 8) {
            struct zr_pack_report report;
            struct zr_lifetimes set = set_of(60);
            zr_backend *other_backend;
            zr_arena *other = NULL;
            size_t left = 0;
            if (zr_backend_host_create(&other_backend, &(struct zr_host_options){.granule_bytes = 65536}) ||
                zr_arena_create(&other, &(struct zr_arena_options){.backend = other_backend}))
                break;
            set.host_arena = other;
            zr_fault_set(sites[s], nth);
            zr_result result =
                zr_pack(&set, &(struct zr_pack_options){.capacity_bytes = 5000, .threads = 2}, &report);
            uint64_t passes = zr_fault_set(sites[s], 0);
            failed += result != ZR_OK;
            zr_arena_destroy(other, &left);
            leaked += left != 0;
            zr_backend_destroy(other_backend);
            if (passes < nth)
                break;
        }
        /* A round of which one thread is started is done by that. */
        bool goes_on = sites[s] != ZR_FAULT_THREAD || failed < nth - 1;
        tap_ok(nth > 1 && nth < 4000 && goes_on, "site %s fails at passes up to %u: %u errors",
               zr_fault_site_name(sites[s]), nth, failed);
        tap_is(leaked, 0, "and nothing was left behind");
    }
}

/* ---- Lifetimes ----------------------------------------------------------------------------------------- */

static void test_sequence(void)
{
    struct zr_event events[] = {
        {ZR_EVENT_ALLOC, ZR_TAG_OTHER, 0, 0, 100, 0}, {ZR_EVENT_MARK, ZR_TAG_OTHER, 0, 0, 0, 0},
        {ZR_EVENT_ALLOC, ZR_TAG_OTHER, 0, 1, 50, 0},  {ZR_EVENT_FREE, ZR_TAG_OTHER, 0, 0, 100, 0},
        {ZR_EVENT_ALLOC, ZR_TAG_OTHER, 0, 2, 70, 0},
    };
    struct zr_sequence sequence = {
        .events = events, .events_count = 5, .blocks_count = 3, .host_arena = host_arena};
    struct zr_lifetimes lifetimes;
    tap_result(zr_lifetimes_of(&lifetimes, &sequence, host_arena), ZR_OK, "lifetimes of a sequence");
    const struct zr_buffer *b = lifetimes.buffers;
    tap_ok(lifetimes.count == 3 && b[0].lower == 0 && b[0].upper == 3 && b[0].bytes == 100 &&
               b[1].lower == 2 && b[1].upper == 5 && b[2].lower == 4 && b[2].upper == 5 && b[2].id == 2,
           "time is the event's index; what is never freed lives to the end");
    tap_is(lifetimes.lower_bound_bytes, 150, "and their lower bound");
    zr_lifetimes_end(&lifetimes);
    zr_lifetimes_end(&lifetimes); /* a second time does no harm */
    const struct {
        const char *words;
        struct zr_event last;
    } wrong[] = {
        {"a block freed twice", events[3]},
        {"a block allocated twice", events[2]},
        {"a block freed before it is allocated", {ZR_EVENT_FREE, ZR_TAG_OTHER, 0, 2, 70, 0}},
        {"a block that is not there", {ZR_EVENT_FREE, ZR_TAG_OTHER, 0, 3, 70, 0}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        events[4] = wrong[i].last;
        tap_result(zr_lifetimes_of(&lifetimes, &sequence, host_arena), ZR_ERR_INVALID, "%s", wrong[i].words);
    }
}

static zr_result read_text(struct zr_lifetimes *out, const char *text, size_t bytes)
{
    char path[128];
    struct zr_file file;
    snprintf(path, sizeof path, "%s/input.csv", scratch);
    zr_result result = zr_file_create(&file, path, ZR_CREATE_REPLACE);
    if (!result)
        result = zr_file_write(&file, text, bytes);
    zr_file_close(&file);
    return result ? result : zr_lifetimes_read(out, path, host_arena);
}

static void test_csv(void)
{
    static const struct {
        const char *text, *words;
        zr_result want;
    } cases[] = {
        {"size,offset,upper,id,lower\n8,99,5,0,1\n\n4,0,9,1,2\r\n",
         "columns in any order, an offset, empty lines", ZR_OK},
        {"id,lower,upper,size\n0,1,5,8\n1,2,9,4", "no end of the last line", ZR_OK},
        {"id,lower,upper,size\n", "no rows", ZR_OK},
        {"id,lower,upper\n0,1,2\n", "no sizes", ZR_ERR_FORMAT},
        {"id,lower,upper,size,size\n0,1,2,3,4\n", "two columns of sizes", ZR_ERR_FORMAT},
        {"id,lower,upper,size\n0,1,2\n", "a short row", ZR_ERR_FORMAT},
        {"id,lower,upper,size\n0,1,2,-3\n", "a negative size", ZR_ERR_FORMAT},
        {"id,lower,upper,size\n0,1,2,18446744073709551616\n", "a size of 2^64", ZR_ERR_FORMAT},
        {"id,lower,upper,size\n0,1,2,36893488147419103240\n", "a size of 2^65 and 8", ZR_ERR_FORMAT},
        {"id,lower,upper,size,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n0,1,2,3\n", "forty columns",
         ZR_ERR_FORMAT},
        {"id,lower,upper,size\n0,1,x,3\n", "a letter", ZR_ERR_FORMAT},
    };
    struct zr_lifetimes lifetimes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tap_result(read_text(&lifetimes, cases[i].text, strlen(cases[i].text)), cases[i].want, "CSV: %s",
                   cases[i].words);
        if (i < 2)
            tap_ok(lifetimes.count == 2 && lifetimes.buffers[0].bytes == 8 &&
                       lifetimes.buffers[0].lower == 1 && lifetimes.buffers[1].upper == 9 &&
                       lifetimes.lower_bound_bytes == 12,
                   "and its rows are right");
        zr_lifetimes_end(&lifetimes);
    }
    enum { ROWS = 5000 };
    static char many[32 * ROWS];
    size_t bytes = (size_t)sprintf(many, "id,lower,upper,size\n");
    for (unsigned i = 0; i < ROWS; i++)
        bytes += (size_t)sprintf(many + bytes, "%u,%u,%u,%u\n", i, i, i + 1, i);
    tap_result(read_text(&lifetimes, many, bytes), ZR_OK, "CSV: more than is read at once");
    size_t right = 0;
    for (size_t i = 0; i < lifetimes.count; i++)
        right += lifetimes.buffers[i].id == i && lifetimes.buffers[i].bytes == i;
    tap_is(right, ROWS, "and every row is right");
    zr_lifetimes_end(&lifetimes);
    tap_result(zr_lifetimes_read(&lifetimes, scratch, host_arena), ZR_ERR_IO, "a folder");
}

static void test_sort(void)
{
    static struct zr_sort_pair pairs[5000], spare[5000];
    unsigned wrong = 0;
    for (unsigned bits = 1; bits <= 64; bits += 9) {
        for (uint32_t i = 0; i < 5000; i++)
            pairs[i] = (struct zr_sort_pair){zr_pack_random(&random_state) >> (64 - bits), i};
        zr_sort_pairs(pairs, spare, 5000);
        for (unsigned i = 1; i < 5000; i++)
            wrong += pairs[i - 1].key > pairs[i].key ||
                     (pairs[i - 1].key == pairs[i].key && pairs[i - 1].value > pairs[i].value);
    }
    tap_is(wrong, 0, "the sort orders keys of 1 to 64 bits and keeps the order of equal ones");
}

int main(void)
{
    if (!tap_ok(records_begin() == ZR_OK && mkdtemp(scratch), "an arena and a folder: %s", zr_last_error()))
        return tap_done();
    test_limit();
    test_sort();
    test_checker();
    test_by_hand();
    test_periods();
    test_deep(40);
    test_deep(450);
    test_brute_force();
    test_capacity();
    test_same_again();
    test_refusals();
    test_faults();
    test_sequence();
    test_csv();
    zr_path_remove_folder(scratch);
    tap_is(records_end(), 0, "the arena ends empty");
    return tap_done();
}
