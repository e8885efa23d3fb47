/* runs.c: see runs.h. Uses ledger.c. */
#include "alloc/service/server/runs.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"

enum { MEMBERS_MAX = 4096, WORDS_ROOM = 160 };
#define BYTES_MAX (UINT64_C(1) << 50) /* of a plan: those of all clients have a sum */
#define ANSWER_NS UINT64_C(500000000) /* a waiting holder is answered within this time */

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* What runs hold, and what they need so that the largest step can still be had. */
struct sums {
    uint64_t floor_bytes, step_bytes; /* what stays whatever comes, and the most that one adds in its turn */
    uint64_t held_bytes;
};

static uint64_t more_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* What the run may take now. */
static uint64_t committed_to(const struct zr_run *run)
{
    return run->in_turn       ? run->claim_bytes
           : !run->begun      ? 0
           : run->spill_bytes ? run->held_bytes
                              : run->base_bytes;
}

/* What it holds while it rests and has spilled. */
static uint64_t floor_of(const struct zr_run *run)
{
    return run->base_bytes - run->spill_bytes;
}

/* `also`: a run that is not let in yet. */
static struct sums sum_runs(const struct zr_ledger *ledger, const struct zr_run *also)
{
    struct sums sums = {0};
    for (const struct zr_run *run = ledger->runs; run; run = run->next) {
        if (!run->admitted && run != also)
            continue;
        sums.floor_bytes += floor_of(run);
        sums.step_bytes = more_of(sums.step_bytes, run->peak_bytes - floor_of(run));
        sums.held_bytes += run->held_bytes;
    }
    return sums;
}

/* Its turn ends with its step: it is one of those that compute beside one another. */
static bool ends_with_step(const struct zr_run *run)
{
    return run->in_turn && run->threads > 0 && run->yields;
}

/* What the run holds when the one with this turn holds its most: one before that has ended its step, one that
 * follows has what it has now. */
static uint64_t held_beside(const struct zr_run *run, uint64_t turn)
{
    if (ends_with_step(run) && run->turn < turn)
        return run->base_bytes;
    bool follows = ends_with_step(run) && run->turn > turn;
    return more_of(follows ? run->base_bytes : committed_to(run), run->held_bytes);
}

static uint64_t held_in_turn(const struct zr_ledger *ledger, uint64_t turn)
{
    uint64_t bytes = 0;
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        bytes += run->admitted ? held_beside(run, turn) : 0;
    return bytes;
}

/* The most of that, over the turns of all runs, or of those before `turn`. */
static uint64_t most_held(const struct zr_ledger *ledger, uint64_t turn)
{
    uint64_t most = 0;
    bool any = false;
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->admitted && run->in_turn && run->turn < turn) {
            most = more_of(most, held_in_turn(ledger, run->turn));
            any = true;
        }
    return any ? most : held_in_turn(ledger, 0);
}

uint64_t zr_run_allows(const struct zr_holder *holder)
{
    const struct zr_run *run = holder->run;
    if (!run || !run->begun)
        return 0;
    return !run->in_turn  ? holder->plan_base_bytes
           : run->threads ? run->claim_bytes
                          : holder->plan_peak_bytes;
}

bool zr_run_follows(const struct zr_ledger *ledger, const struct zr_holder *holder)
{
    if (!holder->run || !holder->run->in_turn || !holder->run->threads)
        return false;
    const struct zr_run *run = ledger->runs;
    while (run && !(run->in_turn && run->turn < holder->run->turn))
        run = run->next;
    return run || ledger->settling; /* those that come back may have come before it */
}

uint64_t zr_run_free(const struct zr_ledger *ledger, const struct zr_holder *holder, uint64_t free_bytes)
{
    if (!zr_run_follows(ledger, holder))
        return free_bytes;
    const struct zr_run *run = holder->run;
    uint64_t own = held_beside(run, 0) - run->held_bytes; /* in `most` */
    uint64_t all = free_bytes + sum_runs(ledger, NULL).held_bytes + own, most = most_held(ledger, run->turn);
    uint64_t free = ledger->settling || most > all ? 0 : all - most;
    return free < free_bytes ? free : free_bytes;
}

bool zr_runs_beside(const struct zr_ledger *ledger)
{
    const struct zr_run *run = ledger->runs;
    while (run && !ends_with_step(run))
        run = run->next;
    return run != NULL;
}

uint64_t zr_runs_need(const struct zr_ledger *ledger)
{
    struct sums sums = sum_runs(ledger, NULL);
    uint64_t need = sums.floor_bytes + sums.step_bytes;
    return zr_runs_beside(ledger) ? more_of(need, most_held(ledger, UINT64_MAX)) : need;
}

uint64_t zr_runs_spare(const struct zr_ledger *ledger)
{
    struct sums sums = sum_runs(ledger, NULL);
    uint64_t need = sums.floor_bytes + sums.step_bytes + ledger->held_bytes - sums.held_bytes;
    return need < ledger->capacity_bytes ? ledger->capacity_bytes - need : 0;
}

uint64_t zr_runs_unreserved(const struct zr_ledger *ledger, uint64_t free_bytes)
{
    if (!ledger->runs)
        return free_bytes;
    struct sums sums = sum_runs(ledger, NULL);
    uint64_t most = more_of(most_held(ledger, UINT64_MAX), sums.floor_bytes + sums.step_bytes);
    uint64_t free = free_bytes + sums.held_bytes > most ? free_bytes + sums.held_bytes - most : 0;
    return free < free_bytes ? free : free_bytes;
}

/* ---- Members ------------------------------------------------------------------------------------------- */

static zr_result have_run(struct zr_ledger *ledger, const struct zr_run_plan *plan, struct zr_run **out)
{
    struct zr_run **link = &ledger->runs;
    for (; *link; link = &(*link)->next)
        if (plan->count > 1 && (*link)->key == plan->key && (*link)->expected_count == plan->count &&
            (*link)->members_count < plan->count) {
            *out = *link;
            return ZR_OK;
        }
    if (!zr_slab_reserve(&ledger->run_records, 1))
        return zr_fail(ZR_ERR_HOST_MEMORY, "zrd cannot serve another run");
    *out = *link = zr_slab_take(&ledger->run_records);
    **out = (struct zr_run){.key = plan->count > 1 ? plan->key : 0, .expected_count = plan->count};
    return ZR_OK;
}

void zr_run_leave(struct zr_ledger *ledger, struct zr_holder *holder)
{
    struct zr_run *run = holder->run, **link = &ledger->runs;
    if (!run)
        return;
    run->members_count--;
    run->expected_count--;
    run->resting_count -= holder->rests;
    run->base_bytes -= holder->plan_base_bytes;
    run->spill_bytes -= holder->plan_spill_bytes;
    run->peak_bytes -= holder->plan_peak_bytes;
    run->claim_bytes = run->claim_bytes < run->peak_bytes ? run->claim_bytes : run->peak_bytes;
    run->held_bytes -= holder->held_bytes;
    holder->run = NULL;
    holder->plan_base_bytes = holder->plan_peak_bytes = holder->plan_spill_bytes = 0;
    holder->rests = holder->turn_untold = holder->spills_no_more = false;
    holder->awaits = ZR_AWAITS_NOTHING;
    if (run->members_count > 0)
        return;
    while (*link != run)
        link = &(*link)->next;
    *link = run->next;
    zr_slab_give(&ledger->run_records, run);
}

/* The hard quotas: those of a group count the peaks of all that have one. */
static zr_result check_quotas(const struct zr_ledger *ledger, const struct zr_holder *joining, uint64_t peak)
{
    char planned[ZR_LEDGER_NUMBER_ROOM], quota[ZR_LEDGER_NUMBER_ROOM], others[ZR_LEDGER_NUMBER_ROOM];
    uint64_t hard = joining->hard_bytes ? joining->hard_bytes : ledger->process_hard_bytes, sum = 0;
    const struct zr_group *group = joining->group;
    if (hard && peak > hard)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s and the hard quota of pid %d is %s: `zr service limit%s --pid %d --hard "
            "BYTES` raises it",
            zr_size_print(planned, peak), (int)joining->pid, zr_size_print_in(quota, hard, peak),
            ledger->device_option, (int)joining->pid);
    for (const struct zr_holder *holder = ledger->holders; holder && group->hard_bytes; holder = holder->next)
        if (holder->group == group && holder != joining)
            sum += more_of(holder->plan_peak_bytes, holder->held_bytes);
    if (group->hard_bytes && (peak > group->hard_bytes || sum > group->hard_bytes - peak))
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s and others of group %s hold or plan %s of its hard quota of %s: `zr "
            "service limit --group %s --hard BYTES` raises it",
            zr_size_print_in(planned, peak, group->hard_bytes), group->name,
            zr_size_print_in(others, sum, group->hard_bytes), zr_size_print(quota, group->hard_bytes),
            group->name);
    return ZR_OK;
}

static void await(struct zr_ledger *ledger, struct zr_holder *holder, enum zr_awaited what, uint64_t now_ns)
{
    holder->awaits = what;
    holder->awaits_until_ns = now_ns + ANSWER_NS;
    zr_ledger_due(ledger, holder->awaits_until_ns);
}

static void reply(struct zr_ledger *ledger, struct zr_holder *holder, enum zr_service_kind kind,
                  const char *words)
{
    holder->awaits = ZR_AWAITS_NOTHING;
    ledger->calls->reply(ledger, holder, kind, words);
}

static bool is_turn(const struct zr_ledger *ledger, uint64_t turn)
{
    const struct zr_run *run = ledger->runs;
    while (run && !(run->in_turn && run->turn == turn))
        run = run->next;
    return run != NULL;
}

static void enter(struct zr_ledger *ledger, struct zr_run *run, struct zr_holder *holder,
                  const struct zr_run_plan *plan)
{
    holder->run = run;
    holder->plan_base_bytes = plan->base_bytes;
    holder->plan_peak_bytes = plan->peak_bytes;
    holder->plan_spill_bytes = plan->spill_bytes;
    run->members_count++;
    run->spill_bytes += plan->spill_bytes;
    run->base_bytes += plan->base_bytes;
    run->peak_bytes += plan->peak_bytes;
    run->held_bytes += holder->held_bytes;
    run->waits = run->waits || plan->waits;
    run->admitted = run->begun = run->admitted || plan->admitted;
    run->in_turn = run->in_turn || plan->in_turn;
    run->threads = plan->count == 1 ? plan->threads : 0;
    if (plan->turn > run->turn && !is_turn(ledger, plan->turn)) /* a rank that was away says an older one */
        run->turn = plan->turn;
    run->claim_bytes = run->threads && plan->claim_bytes < run->peak_bytes
                           ? more_of(plan->claim_bytes, run->base_bytes)
                           : run->peak_bytes;
    ledger->turn_number = more_of(ledger->turn_number, plan->turn);
}

zr_result zr_run_join(struct zr_ledger *ledger, struct zr_holder *holder, const struct zr_run_plan *plan,
                      uint64_t now_ns)
{
    struct zr_run *run = NULL;
    if (plan->peak_bytes == 0 || plan->base_bytes > plan->peak_bytes || plan->peak_bytes > BYTES_MAX ||
        plan->spill_bytes > plan->base_bytes || plan->count == 0 || plan->count > MEMBERS_MAX ||
        holder->awaits != ZR_AWAITS_NOTHING)
        return zr_fail(ZR_ERR_INVALID, "an invalid plan");
    if (holder->run && holder->run->admitted) { /* it was to ask again */
        reply(ledger, holder, ZR_SERVICE_GRANTED, "");
        return ZR_OK;
    }
    if (!holder->run) {
        zr_result result = plan->admitted ? ZR_OK : check_quotas(ledger, holder, plan->peak_bytes);
        if (result == ZR_OK)
            result = have_run(ledger, plan, &run);
        if (result != ZR_OK && !plan->admitted)
            reply(ledger, holder, ZR_SERVICE_REFUSED, "");
        if (result != ZR_OK)
            return ZR_OK;
        enter(ledger, run, holder, plan);
        run->turn_since_ns = now_ns;
    }
    ledger->round++; /* what others have idle may be more than when it asked last */
    if (!plan->admitted)
        await(ledger, holder, ZR_AWAITS_ADMISSION, now_ns);
    return ZR_OK;
}

zr_result zr_run_turn(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns)
{
    struct zr_run *run = holder->run;
    if (!run || !run->admitted || holder->awaits != ZR_AWAITS_NOTHING)
        return zr_fail(ZR_ERR_INVALID, "a request for a time slice without an admitted plan");
    if (holder->turn_untold) { /* it came while the holder was to ask again */
        holder->turn_untold = false;
        reply(ledger, holder, ZR_SERVICE_GRANTED, "");
        return ZR_OK;
    }
    await(ledger, holder, ZR_AWAITS_TURN, now_ns);
    run->resting_count += !holder->rests;
    holder->spills_no_more = holder->rests && holder->spills_no_more;
    holder->rests = true;
    return ZR_OK;
}

zr_result zr_run_claim(struct zr_holder *holder, uint64_t bytes)
{
    struct zr_run *run = holder->run;
    if (!run || !run->threads || !run->in_turn)
        return zr_fail(ZR_ERR_INVALID, "a reservation without a time slice, or of a run that makes none");
    bytes = more_of(bytes, run->base_bytes); /* which it has after its step */
    if (bytes < run->claim_bytes)
        run->claim_bytes = bytes;
    return ZR_OK;
}

/* ---- Admission ----------------------------------------------------------------------------------------- */

static void reply_all(struct zr_ledger *ledger, const struct zr_run *run, enum zr_awaited what,
                      enum zr_service_kind kind, const char *words)
{
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
        if (holder->run == run && holder->awaits == what)
            reply(ledger, holder, kind, words);
}

static void refuse(struct zr_ledger *ledger, struct zr_run *run, const struct sums *with, uint64_t unplanned)
{
    char number[5][ZR_SIZE_ROOM];
    uint64_t most = more_of(run->peak_bytes, ledger->capacity_bytes);
    zr_fail(ZR_ERR_MEMORY,
            "the plan takes %s in a step and %s between steps, and zrd lends %s, of which other runs keep %s "
            "and %s are held without a plan",
            zr_size_print_in(number[0], run->peak_bytes, most),
            zr_size_print_in(number[1], floor_of(run), most),
            zr_size_print_in(number[2], ledger->capacity_bytes, most),
            zr_size_print_in(number[3], with->floor_bytes - floor_of(run), most),
            zr_size_print_in(number[4], unplanned, most));
    reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_REFUSED, "");
    unsigned left = run->members_count;
    for (struct zr_holder *holder = ledger->holders; holder && left > 0; holder = holder->next)
        if (holder->run == run) {
            zr_run_leave(ledger, holder); /* the last one takes the run with it */
            left--;
        }
}

/* To be let in. */
static const char *why_waits(const struct zr_run *run, char *words, size_t room_bytes)
{
    char peak[ZR_LEDGER_NUMBER_ROOM], base[ZR_LEDGER_NUMBER_ROOM];
    /* NOLINTNEXTLINE(clang-analyzer-*): both callers have a run */
    if (run->waits && run->members_count == run->expected_count)
        snprintf(words, room_bytes,
                 "waits for admission: its %s in a step and %s between steps do not fit beside others",
                 zr_size_print(peak, run->peak_bytes),
                 zr_size_print_in(base, floor_of(run), run->peak_bytes));
    else
        snprintf(words, room_bytes, "waits for admission");
    return words;
}

static void decide(struct zr_ledger *ledger, struct zr_run *run, uint64_t now_ns)
{
    char words[WORDS_ROOM];
    struct sums with = sum_runs(ledger, run);
    uint64_t unplanned = ledger->held_bytes - with.held_bytes;
    uint64_t need = with.floor_bytes + with.step_bytes + unplanned;
    struct zr_holder *first = ledger->holders;
    while (first && first->run != run)
        first = first->next;
    if (need > ledger->capacity_bytes &&
        zr_ledger_press(ledger, first, need - ledger->capacity_bytes, true, now_ns))
        return; /* what is idle without a plan comes back first */
    if (need > ledger->capacity_bytes && run->waits && run->peak_bytes <= ledger->capacity_bytes) {
        if (!run->told) /* at once; from then on now and then */
            reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_LATER,
                      why_waits(run, words, sizeof words));
        run->told = true;
        return;
    }
    if (need > ledger->capacity_bytes) {
        refuse(ledger, run, &with, unplanned);
        return;
    }
    run->admitted = true;
    reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_GRANTED, "");
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

static struct zr_run *first_queued(const struct zr_ledger *ledger)
{
    struct zr_run *first = NULL;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->queued && (!first || run->queued < first->queued))
            first = run;
    return first;
}

static void begin_turn(struct zr_ledger *ledger, struct zr_run *run, uint64_t now_ns)
{
    run->in_turn = run->begun = true;
    run->queued = run->resting_count = 0;
    run->turn_since_ns = now_ns;
    run->turn = ++ledger->turn_number;
    run->claim_bytes = run->peak_bytes;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
        if (holder->run == run) {
            holder->rests = holder->spills_no_more = false;
            holder->turn_untold = holder->awaits != ZR_AWAITS_TURN;
        }
    reply_all(ledger, run, ZR_AWAITS_TURN, ZR_SERVICE_GRANTED, "");
}

static void ask_turn(struct zr_ledger *ledger, struct zr_run *run, uint64_t lacks)
{
    run->yields = true;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
        if (holder->run == run)
            ledger->calls->yield(ledger, holder, lacks);
}

static uint64_t lacked_by(const struct zr_run *run)
{
    return run->peak_bytes > run->held_bytes ? run->peak_bytes - run->held_bytes : 0;
}

/* Turns whose time is over are asked for, the oldest first, until they are enough. */
static void ask_turns(struct zr_ledger *ledger, const struct zr_run *waits, uint64_t missing, uint64_t now_ns)
{
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->in_turn && run->yields)
            missing -=
                missing < run->peak_bytes - run->base_bytes ? missing : run->peak_bytes - run->base_bytes;
    while (missing > 0) {
        struct zr_run *oldest = NULL;
        for (struct zr_run *run = ledger->runs; run; run = run->next)
            if (run->admitted && run->in_turn && !run->yields && run->peak_bytes > floor_of(run) &&
                (!oldest || run->turn_since_ns < oldest->turn_since_ns))
                oldest = run;
        if (oldest && now_ns < oldest->turn_since_ns + ledger->turn_ns)
            zr_ledger_due(ledger, oldest->turn_since_ns + ledger->turn_ns);
        if (!oldest || now_ns < oldest->turn_since_ns + ledger->turn_ns)
            return;
        ask_turn(ledger, oldest, lacked_by(waits));
        uint64_t step = oldest->peak_bytes - oldest->base_bytes;
        missing -= missing < step ? missing : step;
    }
}

/* Whether the run, which does not fit beside those in their turns, can compute beside them all the same. What
 * spills has no part in it: what rests of it is not sure to come back while others compute. */
static bool can_follow(const struct zr_ledger *ledger, const struct zr_run *run)
{
    bool can = run->threads > 0;
    uint64_t threads = run->threads;
    for (const struct zr_run *other = ledger->runs; other; other = other->next) {
        can = can && (other->spill_bytes == 0 || !other->admitted) && (other->threads > 0 || !other->in_turn);
        threads += other->in_turn ? other->threads : 0;
    }
    return can && threads <= ledger->processors;
}

/* All that compute at once end their turns with their steps, and say their claims. */
static void begin_beside(struct zr_ledger *ledger, struct zr_run *run, uint64_t now_ns)
{
    uint64_t lacks = lacked_by(run);
    begin_turn(ledger, run, now_ns);
    for (struct zr_run *other = ledger->runs; other; other = other->next)
        if (other->in_turn && !other->yields)
            ask_turn(ledger, other, lacks ? lacks : 1);
}

bool zr_run_ask_before(struct zr_ledger *ledger, const struct zr_holder *holder)
{
    bool asked = false;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->in_turn && !run->yields && run->turn <= holder->run->turn) {
            ask_turn(ledger, run, lacked_by(holder->run) + 1);
            asked = true;
        }
    return asked;
}

/* What must be had for the run's turn beside what others keep, beyond the capacity; *alone: no other has its
 * turn. */
static uint64_t missing_for(const struct zr_ledger *ledger, const struct zr_run *run, bool *alone)
{
    struct sums sums = sum_runs(ledger, NULL);
    uint64_t need = ledger->held_bytes - sums.held_bytes + run->peak_bytes;
    *alone = true;
    for (const struct zr_run *other = ledger->runs; other; other = other->next)
        if (other != run && other->admitted) {
            need += more_of(committed_to(other), other->begun ? 0 : other->held_bytes);
            *alone = *alone && !other->in_turn;
        }
    return need > ledger->capacity_bytes ? need - ledger->capacity_bytes : 0;
}

/* What the holder can be asked for now. */
static uint64_t spillable_bytes(const struct zr_holder *holder)
{
    uint64_t floor = holder->plan_base_bytes - holder->plan_spill_bytes;
    bool can = holder->plan_spill_bytes > 0 && holder->rests && !holder->spills_no_more && holder->listens &&
               holder->asked_bytes == 0;
    return can && holder->held_bytes > floor ? holder->held_bytes - floor : 0;
}

/* Asks runs that rest, but for this one, to spill what is missing. False: nothing comes. Those that wait
 * longest for their turn come last: they need it back soonest. */
static bool ask_spills(struct zr_ledger *ledger, const struct zr_run *waits, uint64_t missing,
                       uint64_t now_ns)
{
    uint64_t coming = zr_ledger_asked_bytes(ledger); /* of what is idle, too */
    while (coming < missing) {
        struct zr_holder *best = NULL;
        for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
            if (spillable_bytes(holder) > 0 && holder->run != waits &&
                (!best || holder->run->queued > best->run->queued))
                best = holder;
        if (!best)
            break;
        uint64_t most = spillable_bytes(best);
        zr_ledger_ask_spill(ledger, best, missing - coming < most ? missing - coming : most, now_ns);
        coming += best->asked_bytes;
    }
    return coming > 0;
}

/* The first in the queue that fits now; NULL: none. */
static struct zr_run *first_that_fits(const struct zr_ledger *ledger)
{
    struct zr_run *first = NULL;
    bool alone;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->queued && (!first || run->queued < first->queued) && missing_for(ledger, run, &alone) == 0)
            first = run;
    return first;
}

static void give_turns(struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_run *run;
    if (now_ns < ledger->settled_ns) {
        if (first_queued(ledger))
            zr_ledger_due(ledger, ledger->settled_ns);
        return;
    }
    while ((run = first_queued(ledger))) {
        bool alone;
        uint64_t missing = missing_for(ledger, run, &alone);
        if (missing > 0 && !alone && can_follow(ledger, run)) {
            begin_beside(ledger, run, now_ns);
            continue;
        }
        if (missing > 0 && !alone) {
            ask_turns(ledger, run, missing, now_ns);
            return;
        }
        if (missing > 0 && ask_spills(ledger, run, missing, now_ns))
            return;
        /* A run whose disk has failed keeps its memory and continues, and the other waits until it exits. If
         * no run fits, waiting longer does not help. */
        struct zr_run *other = missing > 0 ? first_that_fits(ledger) : NULL;
        begin_turn(ledger, other ? other : run, now_ns);
    }
}

void zr_runs_serve(struct zr_ledger *ledger, uint64_t now_ns)
{
    ledger->settling = now_ns < ledger->settled_ns;
    if (ledger->settling && ledger->first_waiting)
        zr_ledger_due(ledger, ledger->settled_ns);
    for (struct zr_run *run = ledger->runs; run && !ledger->settling; run = run->next)
        if (run->in_turn && run->turn == 0) /* which no zrd gave it: it comes last */
            run->turn = ++ledger->turn_number;
    for (struct zr_run *run = ledger->runs, *next; run; run = next) {
        next = run->next;
        if (!run->admitted && run->members_count == run->expected_count) {
            decide(ledger, run, now_ns);
        } else if (run->admitted && !run->queued && run->resting_count == run->expected_count &&
                   run->members_count == run->expected_count) {
            run->in_turn = run->yields = false;
            run->queued = ++ledger->queue_number;
        }
    }
    if (ledger->runs)
        give_turns(ledger, now_ns);
}

void zr_runs_tick(struct zr_ledger *ledger, uint64_t now_ns)
{
    char words[WORDS_ROOM];
    if (!ledger->runs)
        return;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next) {
        const struct zr_holder *other = ledger->holders;
        if (holder->awaits == ZR_AWAITS_NOTHING)
            continue;
        if (now_ns < holder->awaits_until_ns) {
            zr_ledger_due(ledger, holder->awaits_until_ns);
            continue;
        }
        while (other && !(other->run && other->run->in_turn))
            other = other->next;
        if (holder->awaits == ZR_AWAITS_TURN && other)
            snprintf(words, sizeof words, "waits for its time slice: pid %d (%s) has the current time slice",
                     (int)other->pid, other->program);
        else if (holder->awaits == ZR_AWAITS_TURN)
            snprintf(words, sizeof words, "waits for its time slice");
        else
            why_waits(holder->run, words, sizeof words);
        reply(ledger, holder, ZR_SERVICE_LATER, words);
    }
}
