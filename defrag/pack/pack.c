/* pack.c: zr_pack(): placements from both ends, fast placements in several orders, improved orders, then the
 * search, until the target is met or the budget is spent.
 *
 * Work is divided into rounds of independent jobs, which are distributed over the threads. The results of a
 * round are evaluated in the order of the jobs, so the answer does not depend on thread timing. */
#include <stdatomic.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "defrag/trace/lifetimes.h"
#include "defrag/pack/pack_internal.h"

#define MAX_THREADS 16
#define DEFAULT_NS  UINT64_C(10000000000)
/* work of an improving round: about this many placements of single items per chain */
#define ROUND_PLACEMENTS 150000

/* The starts of the chains, the most promising first. */
static const struct zr_improve_start starts[] = {
    {ZR_FIT_BY_HEAT, true, false},     {ZR_FIT_BY_HEAT_THEN_SIZE, false, true},
    {ZR_FIT_BY_HEAT, false, false},    {ZR_FIT_BY_SIZE, false, true},
    {ZR_FIT_BY_DURATION, true, false}, {ZR_FIT_BY_SIZE_THEN_DURATION, false, false},
    {ZR_FIT_BY_AREA, false, false},
};
#define COMPARED       8 /* pairs of items per unit of work, when items are placed one after the other */
#define STARTS_COUNT   (sizeof starts / sizeof *starts)
#define CHAINS_COUNT   3 /* chains that continue after their first placement */
#define LEADER_SHARE   3 /* factor for the trials of the leading chain */
#define SEARCHES_COUNT 4 /* per round, for any number of threads */
#define JOBS_MAX       STARTS_COUNT

struct packer {
    struct zr_pack_problem problem;
    struct zr_scratch scratch;
    struct zr_pack_budget budget, budgets[JOBS_MAX]; /* of all jobs; of each job of the current round */
    unsigned threads;
    size_t stack_bytes; /* the caller's stack, if no thread is needed; 0: the packer starts threads */
    bool can_search;    /* searches are allowed, and the problem is small enough */
    uint64_t start_ns;

    struct zr_pack_best best;

    struct zr_improve chains[STARTS_COUNT];
    unsigned chain_trials; /* per round */
    uint64_t target;       /* of the current round */

    struct zr_search *searches[SEARCHES_COUNT];
    struct zr_search_task tasks[SEARCHES_COUNT];
    enum zr_search_verdict verdicts[SEARCHES_COUNT];
    _Atomic unsigned decided; /* the first of the round's searches with a verdict */
    uint64_t attempt;
};

/* ---- Rounds -------------------------------------------------------------------------------------------- */

/* A round calls `run` once for each job in [next, count). */
struct round {
    struct packer *packer;
    void (*run)(struct packer *packer, unsigned job);
    _Atomic unsigned next;
    unsigned count;
    size_t stack_bytes;
};

static void *work(void *argument)
{
    struct round *round = argument;
    unsigned job;
    while ((job = atomic_fetch_add(&round->next, 1)) < round->count)
        round->run(round->packer, job);
    return NULL;
}

/* Gives each job the whole remaining budget, so that a job does not depend on the others or on thread timing.
 * charge_work() subtracts the work of all jobs afterwards. */
static void assign_budgets(struct packer *packer, unsigned count)
{
    zr_assert(count <= JOBS_MAX);
    for (unsigned j = 0; j < count; j++)
        packer->budgets[j] = packer->budget;
}

static void charge_work(struct packer *packer, unsigned count)
{
    uint64_t before = packer->budget.work_left;
    for (unsigned j = 0; j < count; j++)
        zr_pack_spend(&packer->budget, before - packer->budgets[j].work_left);
}

/* Runs the jobs in new threads, unless the caller's stack is long enough. If a thread cannot be started, the
 * others do its jobs. */
static zr_result run_round(struct round *round)
{
    struct packer *packer = round->packer;
    struct zr_thread threads[MAX_THREADS] = {{0}};
    unsigned wanted = round->count < packer->threads ? round->count : packer->threads, started = 0;
    zr_result result = ZR_OK;

    assign_budgets(packer, round->count);
    if (round->stack_bytes <= packer->stack_bytes) {
        work(round);
        started = 1;
        wanted = 0;
    }
    while (started < wanted && !result) {
        result = zr_thread_start(&threads[started], packer->scratch.arena, round->stack_bytes, work, round);
        started += !result;
    }
    for (unsigned t = 0; t < started; t++)
        zr_thread_join(&threads[t]); /* does nothing if the caller ran the jobs */
    charge_work(packer, round->count);
    return started ? ZR_OK : result;
}

static void take_best(struct packer *packer, const uint64_t *offset, uint64_t height)
{
    if (height >= packer->best.height)
        return;
    memcpy(packer->best.offset, offset, packer->problem.count * sizeof *offset);
    packer->best.height = height;
}

/* ---- Fast placements and improved orders --------------------------------------------------------------- */

static void begin_chain(struct packer *packer, unsigned job)
{
    zr_improve_begin(&packer->chains[job], &starts[job], &packer->budgets[job]);
}

static void improve_chain(struct packer *packer, unsigned job)
{
    struct zr_improve *chain = &packer->chains[job];
    bool leads = chain->best_height == packer->best.height;
    zr_improve_run(chain, packer->chain_trials * (leads ? LEADER_SHARE : 1), packer->target,
                   &packer->budgets[job]);
}

/* Runs the chains [first, count). */
static zr_result run_chains(struct packer *packer, void (*run)(struct packer *, unsigned), unsigned first,
                            unsigned count)
{
    struct round round = {
        .packer = packer, .run = run, .next = first, .count = count, .stack_bytes = ZR_PACK_STACK_BYTES};
    zr_result result = run_round(&round);
    for (unsigned c = first; c < count && !result; c++)
        if (packer->chains[c].best_height != ZR_FIT_FAILED)
            take_best(packer, packer->chains[c].best_offset, packer->chains[c].best_height);
    return result;
}

/* The first stage. It is fast for any number of items, and it is the result if the budget allows no more. A
 * chain compares every item with every other one; if the remaining work is not enough for that, packing ends
 * here. */
static zr_result place_from_ends(struct packer *packer)
{
    uint64_t count = packer->problem.count, compared = count * count / COMPARED;
    zr_result result = zr_pack_from_ends(&packer->problem, packer->target, &packer->budget, &packer->best,
                                         packer->scratch.arena);
    if (compared > packer->budget.work_left)
        packer->budget.work_left = 0;
    return result;
}

/* Starts the chains [first, count), unless the target is met. */
static zr_result begin_chains(struct packer *packer, unsigned first, unsigned count)
{
    zr_result result = ZR_OK;
    if (packer->best.height <= packer->target || zr_pack_time_up(&packer->budget))
        return ZR_OK;
    for (unsigned c = first; c < count && !result; c++)
        result = zr_improve_make(&packer->chains[c], &packer->problem, &packer->scratch);
    packer->chain_trials = 1 + ROUND_PLACEMENTS / packer->problem.count;
    return result ? result : run_chains(packer, begin_chain, first, count);
}

/* Placements from both ends, then the most promising order, then the others. */
static zr_result place_quickly(struct packer *packer)
{
    zr_result result = place_from_ends(packer);
    if (!result)
        result = begin_chains(packer, 0, 1);
    return result ? result : begin_chains(packer, 1, STARTS_COUNT);
}

/* ---- Searching ----------------------------------------------------------------------------------------- */

static uint64_t luby(uint64_t i)
{
    for (;;) {
        unsigned bits = 63 - (unsigned)__builtin_clzll(i + 1);
        if (i + 1 == UINT64_C(1) << bits)
            return UINT64_C(1) << (bits - 1);
        i -= (UINT64_C(1) << bits) - 1;
    }
}

/* Most attempts are short, with longer ones in between (the Luby sequence), because some orders of choices
 * find the answer directly. The length of every sixteenth attempt doubles, so that one finally enumerates all
 * placements. */
static uint64_t nodes_of(const struct packer *packer, uint64_t attempt)
{
    uint64_t base = 2 * (uint64_t)packer->problem.count + 100;
    if (attempt % 16 == 15)
        return base << (attempt / 16 + 2 < 40 ? attempt / 16 + 2 : 40);
    return base * luby(attempt / 6 + 1);
}

static void search_once(struct packer *packer, unsigned job)
{
    unsigned decided = atomic_load(&packer->decided);
    /* An earlier job has a verdict, so the verdict of this job is not needed. If results depend on work only,
     * the job still runs, because later rounds use the states that it marks as failed. */
    if (job > decided && packer->budget.until_ns != UINT64_MAX)
        return;
    packer->verdicts[job] = zr_search_run(packer->searches[job], &packer->tasks[job], &packer->budgets[job]);
    while (job < decided && packer->verdicts[job] &&
           !atomic_compare_exchange_weak(&packer->decided, &decided, job))
        ;
}

/* Each search takes megabytes, which some machines allocate slowly, so the loop stops when the budget is
 * spent. */
static zr_result make_searches(struct packer *packer)
{
    zr_result result = ZR_OK;
    for (unsigned t = 0;
         t < SEARCHES_COUNT && !packer->searches[t] && !result && !zr_pack_time_up(&packer->budget); t++)
        result = zr_search_make(&packer->searches[t], &packer->problem, &packer->scratch);
    return result;
}

/* Searches within `capacity` for `rounds` rounds; 0: until a verdict or the end of the budget. */
static zr_result search_within(struct packer *packer, uint64_t capacity, uint64_t rounds,
                               enum zr_search_verdict *verdict)
{
    zr_result result = make_searches(packer);
    *verdict = ZR_SEARCH_UNDECIDED;
    for (uint64_t r = 0; (!rounds || r < rounds) && !result && !*verdict && !zr_pack_time_up(&packer->budget);
         r++) {
        struct round round = {.packer = packer,
                              .run = search_once,
                              .count = SEARCHES_COUNT,
                              .stack_bytes = zr_search_stack_bytes(&packer->problem)};
        for (unsigned t = 0; t < SEARCHES_COUNT; t++, packer->attempt++)
            packer->tasks[t] =
                (struct zr_search_task){capacity, nodes_of(packer, packer->attempt), packer->attempt};
        memset(packer->verdicts, 0, sizeof packer->verdicts);
        atomic_store(&packer->decided, SEARCHES_COUNT);
        result = run_round(&round);
        for (unsigned t = 0; t < SEARCHES_COUNT && !result && !*verdict; t++) {
            *verdict = packer->verdicts[t];
            if (*verdict == ZR_SEARCH_FOUND) {
                const uint64_t *offset = zr_search_offsets(packer->searches[t]);
                uint64_t height = 0;
                for (uint32_t i = 0; i < packer->problem.count; i++)
                    if (offset[i] + packer->problem.units[i] > height)
                        height = offset[i] + packer->problem.units[i];
                take_best(packer, offset, height);
            }
        }
    }
    return result;
}

/* ---- Control ------------------------------------------------------------------------------------------- */

/* Improves until the target is met, `rounds` rounds have passed (0: no limit), or the budget is spent. */
static zr_result improve(struct packer *packer, uint64_t rounds)
{
    zr_result result = ZR_OK;
    for (uint64_t r = 0; (!rounds || r < rounds) && !result && packer->best.height > packer->target &&
                         !zr_pack_time_up(&packer->budget);
         r++)
        result = run_chains(packer, improve_chain, 0, CHAINS_COUNT);
    return result;
}

/* Searches for the lowest height: at the bound first, then half way between the highest impossible and the
 * lowest known height, with twice the effort in each pass. */
static zr_result search_lowest(struct packer *packer)
{
    uint64_t proved = packer->problem.bound_units; /* no placement is lower */
    zr_result result = ZR_OK;
    for (uint64_t rounds = 3; packer->best.height > proved && !zr_pack_time_up(&packer->budget);
         rounds *= 2) {
        uint64_t low = proved, target = proved;
        result = improve(packer, rounds / 3);
        while (low < packer->best.height && !result && !zr_pack_time_up(&packer->budget)) {
            enum zr_search_verdict verdict;
            result = search_within(packer, target, rounds, &verdict);
            if (verdict != ZR_SEARCH_FOUND)
                low = target + 1;
            if (verdict == ZR_SEARCH_IMPOSSIBLE)
                proved = target + 1;
            target = low + (packer->best.height - low) / 2;
        }
        if (result)
            return result;
    }
    return result;
}

/* Packs within the capacity in units, or proves that no placement exists. */
static zr_result meet_capacity(struct packer *packer, uint64_t capacity, enum zr_search_verdict *verdict)
{
    zr_result result = ZR_OK;
    packer->target = capacity;
    *verdict = packer->best.height <= capacity ? ZR_SEARCH_FOUND : ZR_SEARCH_UNDECIDED;
    while (!result && !*verdict && !zr_pack_time_up(&packer->budget)) {
        result = improve(packer, packer->can_search ? 1 : 0);
        if (packer->best.height <= capacity)
            *verdict = ZR_SEARCH_FOUND;
        else if (!result && packer->can_search)
            result = search_within(packer, capacity, 16, verdict);
    }
    return result;
}

static zr_result pack_lowest(struct packer *packer)
{
    return packer->can_search ? search_lowest(packer) : improve(packer, 0);
}

/* Adopts an existing placement as the best one. */
static void adopt_placement(struct packer *packer, const struct zr_lifetimes *lifetimes)
{
    packer->best.height = 0;
    for (uint32_t i = 0; i < packer->problem.count; i++) {
        packer->best.offset[i] =
            lifetimes->buffers[packer->problem.buffer[i]].offset_bytes / packer->problem.unit_bytes;
        uint64_t end = packer->best.offset[i] + packer->problem.units[i];
        packer->best.height = end > packer->best.height ? end : packer->best.height;
    }
}

/* Writes the best offsets in bytes; returns the height. */
static uint64_t write_back(const struct packer *packer, struct zr_lifetimes *lifetimes)
{
    uint64_t height_bytes = 0;
    for (size_t i = 0; i < lifetimes->count; i++)
        lifetimes->buffers[i].offset_bytes = 0;
    for (uint32_t i = 0; i < packer->problem.count; i++)
        lifetimes->buffers[packer->problem.buffer[i]].offset_bytes =
            packer->best.offset[i] * packer->problem.unit_bytes;
    for (size_t i = 0; i < lifetimes->count; i++) {
        uint64_t end = lifetimes->buffers[i].offset_bytes + lifetimes->buffers[i].bytes;
        height_bytes = end > height_bytes ? end : height_bytes;
    }
    return height_bytes;
}

/* Sizes are rounded up to units and a capacity may end within a unit, so there are two capacities. A
 * placement within the lower one fits; if no placement exists within the higher one, none fits. The two are
 * equal if all sizes are whole units. */
static uint64_t capacity_low_of(const struct packer *packer, const struct zr_pack_options *options)
{
    return options->capacity_bytes / packer->problem.unit_bytes;
}

static zr_result pack_within(struct packer *packer, struct zr_lifetimes *lifetimes,
                             const struct zr_pack_options *options, enum zr_pack_verdict *out)
{
    uint64_t alignment = options->alignment_bytes ? options->alignment_bytes : 1;
    uint64_t divisor = packer->problem.unit_bytes / alignment,
             capacity_low = capacity_low_of(packer, options);
    uint64_t capacity_high =
        (options->capacity_bytes / alignment + (options->capacity_bytes % alignment != 0)) / divisor;
    enum zr_search_verdict verdict = ZR_SEARCH_IMPOSSIBLE;
    zr_result result = ZR_OK;

    *out = ZR_PACK_IMPOSSIBLE;
    if (lifetimes->lower_bound_bytes > options->capacity_bytes || packer->problem.bound_units > capacity_high)
        return ZR_OK;
    if (capacity_low >= packer->problem.bound_units)
        result = meet_capacity(packer, capacity_low, &verdict);
    if (!result && capacity_high > capacity_low && verdict == ZR_SEARCH_IMPOSSIBLE)
        result = meet_capacity(packer, capacity_high, &verdict);
    if (verdict != ZR_SEARCH_IMPOSSIBLE)
        *out = write_back(packer, lifetimes) <= options->capacity_bytes ? ZR_PACK_FOUND : ZR_PACK_OUT_OF_TIME;
    return result;
}

zr_result zr_pack_check_alignment(const struct zr_lifetimes *lifetimes, uint64_t alignment_bytes)
{
    uint64_t padded;
    if (alignment_bytes > ZR_LIFETIMES_MAX_BYTES ||
        __builtin_mul_overflow(alignment_bytes, lifetimes->count, &padded) || padded > ZR_LIFETIMES_MAX_BYTES)
        return zr_fail(ZR_ERR_INVALID, "%zu buffers aligned to %llu bytes may exceed 2^62 bytes",
                       lifetimes->count, (unsigned long long)alignment_bytes);
    return ZR_OK;
}

zr_result zr_pack(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                  struct zr_pack_report *report)
{
    struct zr_pack_options own;
    zr_result result = ZR_STRUCT_COPY(zr_pack_options, work, &own, options);
    return result == ZR_OK ? zr_pack_in(lifetimes, &own, &(struct zr_pack_here){0}, report) : result;
}

zr_result zr_pack_in(struct zr_lifetimes *lifetimes, const struct zr_pack_options *options,
                     const struct zr_pack_here *here, struct zr_pack_report *report)
{
    struct packer packer = {.scratch.arena = lifetimes->host_arena,
                            .best.height = UINT64_MAX,
                            .stack_bytes = here->stack_bytes,
                            .start_ns = zr_os_now_ns()};
    enum zr_pack_verdict verdict = ZR_PACK_FOUND;

    *report = (struct zr_pack_report){0};
    packer.budget =
        (struct zr_pack_budget){UINT64_MAX, options->work ? options->work : UINT64_MAX, here->cancelled};
    if (!options->work &&
        __builtin_add_overflow(packer.start_ns, options->time_ns ? options->time_ns : DEFAULT_NS,
                               &packer.budget.until_ns))
        packer.budget.until_ns = UINT64_MAX;
    packer.threads = options->threads < 1             ? 1
                     : options->threads > MAX_THREADS ? MAX_THREADS
                                                      : options->threads;
    zr_result result = zr_pack_check_alignment(lifetimes, options->alignment_bytes);
    if (!result)
        result = zr_lifetimes_measure(lifetimes);
    if (result)
        return result;
    result = zr_pack_problem_make(&packer.problem, lifetimes,
                                  options->alignment_bytes ? options->alignment_bytes : 1, &packer.scratch);
    packer.best.offset = zr_scratch_take(&packer.scratch, packer.problem.count, sizeof *packer.best.offset);
    result = result ? result : packer.scratch.result;
    if (!result && packer.problem.count > 0) {
        packer.target =
            options->capacity_bytes ? capacity_low_of(&packer, options) : packer.problem.bound_units;
        packer.can_search = !here->no_search && zr_search_able(&packer.problem);
        if (here->placed)
            adopt_placement(&packer, lifetimes);
        result = place_quickly(&packer);
        if (!result && options->capacity_bytes)
            result = pack_within(&packer, lifetimes, options, &verdict);
        else if (!result)
            result = pack_lowest(&packer);
    }
    if (!result) {
        report->height_bytes = write_back(&packer, lifetimes);
        report->lower_bound_bytes = lifetimes->lower_bound_bytes;
        report->verdict = verdict;
        report->spent_ns = zr_os_now_ns() - packer.start_ns;
    }
    zr_scratch_end(&packer.scratch);
    return result;
}
