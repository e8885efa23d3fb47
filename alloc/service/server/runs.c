/* runs.c: see runs.h. Uses ledger.c. */
#include "alloc/service/server/runs.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"

enum { MEMBERS_MAX = 4096, WORDS_ROOM = 160 };
#define BYTES_MAX (UINT64_C(1) << 50) /* of a plan; the sum over all clients does not overflow */
#define ANSWER_NS UINT64_C(500000000) /* a waiting client is answered within this time */

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* The bytes that runs hold, and the bytes that they need so that the largest step fits. */
struct sums {
    /* floor: while all runs are paused and swapped out; step: the max that one run adds in its time slice */
    uint64_t floor_bytes, step_bytes;
    uint64_t held_bytes;
};

static uint64_t max_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* The bytes that zrd reserves for the run now. */
static uint64_t reserved_bytes_of(const struct zr_run *run)
{
    return run->in_slice      ? run->reservation_bytes
           : !run->begun      ? 0
           : run->spill_bytes ? run->held_bytes
                              : run->base_bytes;
}

/* The bytes that the run holds while it is paused and swapped out. */
static uint64_t floor_of(const struct zr_run *run)
{
    return run->base_bytes - run->spill_bytes;
}

/* `also`: a run that is counted though it is not admitted yet. */
static struct sums sum_runs(const struct zr_ledger *ledger, const struct zr_run *also)
{
    struct sums sums = {0};
    for (const struct zr_run *run = ledger->runs; run; run = run->next) {
        if (!run->admitted && run != also)
            continue;
        sums.floor_bytes += floor_of(run);
        sums.step_bytes = max_of(sums.step_bytes, run->peak_bytes - floor_of(run));
        sums.held_bytes += run->held_bytes;
    }
    return sums;
}

/* Whether the run's time slice ends with its step, because the run computes beside others. */
static bool ends_with_step(const struct zr_run *run)
{
    return run->in_slice && run->threads > 0 && run->yields;
}

/* The bytes that the run holds when the run with time slice `slice` holds its peak. A run with an earlier
 * slice has finished its step by then; a run with a later slice holds as much as now. */
static uint64_t held_beside(const struct zr_run *run, uint64_t slice)
{
    if (ends_with_step(run) && run->slice < slice)
        return run->base_bytes;
    bool follows = ends_with_step(run) && run->slice > slice;
    return max_of(follows ? run->base_bytes : reserved_bytes_of(run), run->held_bytes);
}

static uint64_t held_in_slice(const struct zr_ledger *ledger, uint64_t slice)
{
    uint64_t bytes = 0;
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        bytes += run->admitted ? held_beside(run, slice) : 0;
    return bytes;
}

/* The maximum of held_in_slice() over all time slices before `slice`. */
static uint64_t max_held_bytes(const struct zr_ledger *ledger, uint64_t slice)
{
    uint64_t max_bytes = 0;
    bool any_in_slice = false;
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->admitted && run->in_slice && run->slice < slice) {
            max_bytes = max_of(max_bytes, held_in_slice(ledger, run->slice));
            any_in_slice = true;
        }
    return any_in_slice ? max_bytes : held_in_slice(ledger, 0);
}

uint64_t zr_run_allows(const struct zr_client *client)
{
    const struct zr_run *run = client->run;
    if (!run || !run->begun)
        return 0;
    return !run->in_slice ? client->plan_base_bytes
           : run->threads ? run->reservation_bytes
                          : client->plan_peak_bytes;
}

bool zr_run_follows(const struct zr_ledger *ledger, const struct zr_client *client)
{
    if (!client->run || !client->run->in_slice || !client->run->threads)
        return false;
    const struct zr_run *run = ledger->runs;
    while (run && !(run->in_slice && run->slice < client->run->slice))
        run = run->next;
    return run || ledger->settling; /* a reconnecting run may have an earlier slice */
}

uint64_t zr_run_free(const struct zr_ledger *ledger, const struct zr_client *client, uint64_t free_bytes)
{
    if (!zr_run_follows(ledger, client))
        return free_bytes;
    const struct zr_run *run = client->run;
    uint64_t own = held_beside(run, 0) - run->held_bytes; /* counted in `max_bytes` */
    uint64_t all = free_bytes + sum_runs(ledger, NULL).held_bytes + own,
             max_bytes = max_held_bytes(ledger, run->slice);
    uint64_t free = ledger->settling || max_bytes > all ? 0 : all - max_bytes;
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
    return zr_runs_beside(ledger) ? max_of(need, max_held_bytes(ledger, UINT64_MAX)) : need;
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
    uint64_t max_bytes = max_of(max_held_bytes(ledger, UINT64_MAX), sums.floor_bytes + sums.step_bytes);
    uint64_t free = free_bytes + sums.held_bytes > max_bytes ? free_bytes + sums.held_bytes - max_bytes : 0;
    return free < free_bytes ? free : free_bytes;
}

/* ---- Members ------------------------------------------------------------------------------------------- */

static zr_result find_or_create_run(struct zr_ledger *ledger, const struct zr_run_plan *plan,
                                    struct zr_run **out)
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

void zr_run_leave(struct zr_ledger *ledger, struct zr_client *client)
{
    struct zr_run *run = client->run, **link = &ledger->runs;
    if (!run)
        return;
    run->members_count--;
    run->expected_count--;
    run->paused_count -= client->paused;
    run->base_bytes -= client->plan_base_bytes;
    run->spill_bytes -= client->plan_spill_bytes;
    run->peak_bytes -= client->plan_peak_bytes;
    run->reservation_bytes =
        run->reservation_bytes < run->peak_bytes ? run->reservation_bytes : run->peak_bytes;
    run->held_bytes -= client->held_bytes;
    client->run = NULL;
    client->plan_base_bytes = client->plan_peak_bytes = client->plan_spill_bytes = 0;
    client->paused = client->slice_unreported = client->spill_exhausted = false;
    client->awaits = ZR_AWAITS_NOTHING;
    if (run->members_count > 0)
        return;
    while (*link != run)
        link = &(*link)->next;
    *link = run->next;
    zr_slab_give(&ledger->run_records, run);
}

/* Checks the hard quotas. A group's quota counts the peaks of all members' plans. */
static zr_result check_quotas(const struct zr_ledger *ledger, const struct zr_client *joining, uint64_t peak)
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
    for (const struct zr_client *client = ledger->clients; client && group->hard_bytes; client = client->next)
        if (client->group == group && client != joining)
            sum += max_of(client->plan_peak_bytes, client->held_bytes);
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

static void start_awaiting(struct zr_ledger *ledger, struct zr_client *client, enum zr_awaited what,
                           uint64_t now_ns)
{
    client->awaits = what;
    client->awaits_until_ns = now_ns + ANSWER_NS;
    zr_ledger_due(ledger, client->awaits_until_ns);
}

static void reply(struct zr_ledger *ledger, struct zr_client *client, enum zr_service_kind kind,
                  const char *words)
{
    client->awaits = ZR_AWAITS_NOTHING;
    ledger->calls->reply(ledger, client, kind, words);
}

static bool is_slice_taken(const struct zr_ledger *ledger, uint64_t slice)
{
    const struct zr_run *run = ledger->runs;
    while (run && !(run->in_slice && run->slice == slice))
        run = run->next;
    return run != NULL;
}

static void add_member(struct zr_ledger *ledger, struct zr_run *run, struct zr_client *client,
                       const struct zr_run_plan *plan)
{
    client->run = run;
    client->plan_base_bytes = plan->base_bytes;
    client->plan_peak_bytes = plan->peak_bytes;
    client->plan_spill_bytes = plan->spill_bytes;
    run->members_count++;
    run->spill_bytes += plan->spill_bytes;
    run->base_bytes += plan->base_bytes;
    run->peak_bytes += plan->peak_bytes;
    run->held_bytes += client->held_bytes;
    run->waits = run->waits || plan->waits;
    run->admitted = run->begun = run->admitted || plan->admitted;
    run->in_slice = run->in_slice || plan->in_slice;
    run->threads = plan->count == 1 ? plan->threads : 0;
    if (plan->slice > run->slice &&
        !is_slice_taken(ledger, plan->slice)) /* a reconnecting rank may report an older slice */
        run->slice = plan->slice;
    run->reservation_bytes = run->threads && plan->reservation_bytes < run->peak_bytes
                                 ? max_of(plan->reservation_bytes, run->base_bytes)
                                 : run->peak_bytes;
    ledger->slice_number = max_of(ledger->slice_number, plan->slice);
}

zr_result zr_run_join(struct zr_ledger *ledger, struct zr_client *client, const struct zr_run_plan *plan,
                      uint64_t now_ns)
{
    struct zr_run *run = NULL;
    if (plan->peak_bytes == 0 || plan->base_bytes > plan->peak_bytes || plan->peak_bytes > BYTES_MAX ||
        plan->spill_bytes > plan->base_bytes || plan->count == 0 || plan->count > MEMBERS_MAX ||
        client->awaits != ZR_AWAITS_NOTHING)
        return zr_fail(ZR_ERR_INVALID, "an invalid plan");
    if (client->run && client->run->admitted) { /* admitted after LATER was sent */
        reply(ledger, client, ZR_SERVICE_GRANTED, "");
        return ZR_OK;
    }
    if (!client->run) {
        zr_result result = plan->admitted ? ZR_OK : check_quotas(ledger, client, plan->peak_bytes);
        if (result == ZR_OK)
            result = find_or_create_run(ledger, plan, &run);
        if (result != ZR_OK && !plan->admitted)
            reply(ledger, client, ZR_SERVICE_REFUSED, "");
        if (result != ZR_OK)
            return ZR_OK;
        add_member(ledger, run, client, plan);
        run->slice_since_ns = now_ns;
    }
    ledger->round++; /* clients may have more idle memory than at the last request */
    if (!plan->admitted)
        start_awaiting(ledger, client, ZR_AWAITS_ADMISSION, now_ns);
    return ZR_OK;
}

zr_result zr_run_slice(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns)
{
    struct zr_run *run = client->run;
    if (!run || !run->admitted || client->awaits != ZR_AWAITS_NOTHING)
        return zr_fail(ZR_ERR_INVALID, "a request for a time slice without an admitted plan");
    if (client->slice_unreported) { /* the slice began after LATER was sent */
        client->slice_unreported = false;
        reply(ledger, client, ZR_SERVICE_GRANTED, "");
        return ZR_OK;
    }
    start_awaiting(ledger, client, ZR_AWAITS_SLICE, now_ns);
    run->paused_count += !client->paused;
    client->spill_exhausted = client->paused && client->spill_exhausted;
    client->paused = true;
    return ZR_OK;
}

zr_result zr_run_reserve(struct zr_client *client, uint64_t bytes)
{
    struct zr_run *run = client->run;
    if (!run || !run->threads || !run->in_slice)
        return zr_fail(ZR_ERR_INVALID, "a reservation without a time slice, or of a run that makes none");
    bytes = max_of(bytes, run->base_bytes); /* the run holds its base after the step */
    if (bytes < run->reservation_bytes)
        run->reservation_bytes = bytes;
    return ZR_OK;
}

/* ---- Admission ----------------------------------------------------------------------------------------- */

static void reply_all(struct zr_ledger *ledger, const struct zr_run *run, enum zr_awaited what,
                      enum zr_service_kind kind, const char *words)
{
    for (struct zr_client *client = ledger->clients; client; client = client->next)
        if (client->run == run && client->awaits == what)
            reply(ledger, client, kind, words);
}

static void refuse(struct zr_ledger *ledger, struct zr_run *run, const struct sums *with, uint64_t unplanned)
{
    char number[5][ZR_SIZE_ROOM];
    uint64_t max_bytes = max_of(run->peak_bytes, ledger->capacity_bytes);
    zr_fail(ZR_ERR_MEMORY,
            "the plan takes %s in a step and %s between steps, and zrd lends %s, of which other runs keep %s "
            "and %s are held without a plan",
            zr_size_print_in(number[0], run->peak_bytes, max_bytes),
            zr_size_print_in(number[1], floor_of(run), max_bytes),
            zr_size_print_in(number[2], ledger->capacity_bytes, max_bytes),
            zr_size_print_in(number[3], with->floor_bytes - floor_of(run), max_bytes),
            zr_size_print_in(number[4], unplanned, max_bytes));
    reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_REFUSED, "");
    unsigned left = run->members_count;
    for (struct zr_client *client = ledger->clients; client && left > 0; client = client->next)
        if (client->run == run) {
            zr_run_leave(ledger, client); /* frees the run after its last member */
            left--;
        }
}

/* Describes a wait for admission. */
static const char *describe_wait(const struct zr_run *run, char *words, size_t room_bytes)
{
    char peak[ZR_LEDGER_NUMBER_ROOM], base[ZR_LEDGER_NUMBER_ROOM];
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
    struct zr_client *first = ledger->clients;
    while (first && first->run != run)
        first = first->next;
    if (need > ledger->capacity_bytes &&
        zr_ledger_reclaim(ledger, first, need - ledger->capacity_bytes, true, now_ns))
        return; /* wait for idle memory of clients without a plan */
    if (need > ledger->capacity_bytes && run->waits && run->peak_bytes <= ledger->capacity_bytes) {
        if (!run->reported) /* at once; zr_runs_tick() repeats it */
            reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_LATER,
                      describe_wait(run, words, sizeof words));
        run->reported = true;
        return;
    }
    if (need > ledger->capacity_bytes) {
        refuse(ledger, run, &with, unplanned);
        return;
    }
    run->admitted = true;
    reply_all(ledger, run, ZR_AWAITS_ADMISSION, ZR_SERVICE_GRANTED, "");
}

/* ---- Time slices --------------------------------------------------------------------------------------- */

static struct zr_run *first_queued(const struct zr_ledger *ledger)
{
    struct zr_run *first = NULL;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->queued && (!first || run->queued < first->queued))
            first = run;
    return first;
}

static void begin_slice(struct zr_ledger *ledger, struct zr_run *run, uint64_t now_ns)
{
    run->in_slice = run->begun = true;
    run->queued = run->paused_count = 0;
    run->slice_since_ns = now_ns;
    run->slice = ++ledger->slice_number;
    run->reservation_bytes = run->peak_bytes;
    for (struct zr_client *client = ledger->clients; client; client = client->next)
        if (client->run == run) {
            client->paused = client->spill_exhausted = false;
            client->slice_unreported = client->awaits != ZR_AWAITS_SLICE;
        }
    reply_all(ledger, run, ZR_AWAITS_SLICE, ZR_SERVICE_GRANTED, "");
}

static void send_yield(struct zr_ledger *ledger, struct zr_run *run, uint64_t lacks)
{
    run->yields = true;
    for (struct zr_client *client = ledger->clients; client; client = client->next)
        if (client->run == run)
            ledger->calls->yield(ledger, client, lacks);
}

static uint64_t lacking_bytes(const struct zr_run *run)
{
    return run->peak_bytes > run->held_bytes ? run->peak_bytes - run->held_bytes : 0;
}

/* Sends YIELD to runs whose time slices lasted turn_ns, oldest first, until their steps free `missing`. */
static void yield_expired_slices(struct zr_ledger *ledger, const struct zr_run *waits, uint64_t missing,
                                 uint64_t now_ns)
{
    for (const struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->in_slice && run->yields)
            missing -=
                missing < run->peak_bytes - run->base_bytes ? missing : run->peak_bytes - run->base_bytes;
    while (missing > 0) {
        struct zr_run *oldest = NULL;
        for (struct zr_run *run = ledger->runs; run; run = run->next)
            if (run->admitted && run->in_slice && !run->yields && run->peak_bytes > floor_of(run) &&
                (!oldest || run->slice_since_ns < oldest->slice_since_ns))
                oldest = run;
        if (oldest && now_ns < oldest->slice_since_ns + ledger->slice_ns)
            zr_ledger_due(ledger, oldest->slice_since_ns + ledger->slice_ns);
        if (!oldest || now_ns < oldest->slice_since_ns + ledger->slice_ns)
            return;
        send_yield(ledger, oldest, lacking_bytes(waits));
        uint64_t step = oldest->peak_bytes - oldest->base_bytes;
        missing -= missing < step ? missing : step;
    }
}

/* Whether the run, whose peak does not fit now, can still compute beside the runs in their time slices. No
 * run can while an admitted run may swap out: swapped-out memory may not fit again while others compute. */
static bool can_follow(const struct zr_ledger *ledger, const struct zr_run *run)
{
    bool possible = run->threads > 0;
    uint64_t threads = run->threads;
    for (const struct zr_run *other = ledger->runs; other; other = other->next) {
        possible = possible && (other->spill_bytes == 0 || !other->admitted) &&
                   (other->threads > 0 || !other->in_slice);
        threads += other->in_slice ? other->threads : 0;
    }
    return possible && threads <= ledger->processors;
}

/* Begins a time slice beside others and sends YIELD to all runs in a slice: their slices now end with their
 * steps, and they send RESERVE. */
static void begin_beside(struct zr_ledger *ledger, struct zr_run *run, uint64_t now_ns)
{
    uint64_t lacks = lacking_bytes(run);
    begin_slice(ledger, run, now_ns);
    for (struct zr_run *other = ledger->runs; other; other = other->next)
        if (other->in_slice && !other->yields)
            send_yield(ledger, other, lacks ? lacks : 1);
}

bool zr_run_ask_before(struct zr_ledger *ledger, const struct zr_client *client)
{
    bool asked = false;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->in_slice && !run->yields && run->slice <= client->run->slice) {
            send_yield(ledger, run, lacking_bytes(client->run) + 1);
            asked = true;
        }
    return asked;
}

/* The bytes beyond the capacity that the run's time slice needs beside the reservations of other runs.
 * *no_other_in_turn: no other run is in a time slice. */
static uint64_t missing_for(const struct zr_ledger *ledger, const struct zr_run *run, bool *no_other_in_slice)
{
    struct sums sums = sum_runs(ledger, NULL);
    uint64_t need = ledger->held_bytes - sums.held_bytes + run->peak_bytes;
    *no_other_in_slice = true;
    for (const struct zr_run *other = ledger->runs; other; other = other->next)
        if (other != run && other->admitted) {
            need += max_of(reserved_bytes_of(other), other->begun ? 0 : other->held_bytes);
            *no_other_in_slice = *no_other_in_slice && !other->in_slice;
        }
    return need > ledger->capacity_bytes ? need - ledger->capacity_bytes : 0;
}

/* The bytes that the client can be asked to swap out now. */
static uint64_t spillable_bytes(const struct zr_client *client)
{
    uint64_t floor = client->plan_base_bytes - client->plan_spill_bytes;
    bool possible = client->plan_spill_bytes > 0 && client->paused && !client->spill_exhausted &&
                    client->listens && client->reclaim_bytes == 0;
    return possible && client->held_bytes > floor ? client->held_bytes - floor : 0;
}

/* Asks paused runs other than `waits` to swap out the missing bytes. False: no bytes are pending. The run
 * that waits longest for its time slice is asked last: it needs its memory soonest. */
static bool request_swap_outs(struct zr_ledger *ledger, const struct zr_run *waits, uint64_t missing,
                              uint64_t now_ns)
{
    uint64_t coming = zr_ledger_reclaim_bytes(ledger); /* includes requests for idle memory */
    while (coming < missing) {
        struct zr_client *best = NULL;
        for (struct zr_client *client = ledger->clients; client; client = client->next)
            if (spillable_bytes(client) > 0 && client->run != waits &&
                (!best || client->run->queued > best->run->queued))
                best = client;
        if (!best)
            break;
        uint64_t max_bytes = spillable_bytes(best);
        zr_ledger_ask_spill(ledger, best, missing - coming < max_bytes ? missing - coming : max_bytes,
                            now_ns);
        coming += best->reclaim_bytes;
    }
    return coming > 0;
}

/* The first queued run that fits now; NULL: none. */
static struct zr_run *first_that_fits(const struct zr_ledger *ledger)
{
    struct zr_run *first = NULL;
    bool no_other_in_slice;
    for (struct zr_run *run = ledger->runs; run; run = run->next)
        if (run->queued && (!first || run->queued < first->queued) &&
            missing_for(ledger, run, &no_other_in_slice) == 0)
            first = run;
    return first;
}

static void begin_slices(struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_run *run;
    if (now_ns < ledger->settled_ns) {
        if (first_queued(ledger))
            zr_ledger_due(ledger, ledger->settled_ns);
        return;
    }
    while ((run = first_queued(ledger))) {
        bool no_other_in_slice;
        uint64_t missing = missing_for(ledger, run, &no_other_in_slice);
        if (missing > 0 && !no_other_in_slice && can_follow(ledger, run)) {
            begin_beside(ledger, run, now_ns);
            continue;
        }
        if (missing > 0 && !no_other_in_slice) {
            yield_expired_slices(ledger, run, missing, now_ns);
            return;
        }
        if (missing > 0 && request_swap_outs(ledger, run, missing, now_ns))
            return;
        /* A run whose disk has failed keeps its memory and continues, and the other waits until it exits. If
         * no run fits, waiting longer does not help. */
        struct zr_run *other = missing > 0 ? first_that_fits(ledger) : NULL;
        begin_slice(ledger, other ? other : run, now_ns);
    }
}

void zr_runs_serve(struct zr_ledger *ledger, uint64_t now_ns)
{
    ledger->settling = now_ns < ledger->settled_ns;
    if (ledger->settling && ledger->first_waiting)
        zr_ledger_due(ledger, ledger->settled_ns);
    for (struct zr_run *run = ledger->runs; run && !ledger->settling; run = run->next)
        if (run->in_slice && run->slice == 0) /* no zrd granted the slice: the run comes last */
            run->slice = ++ledger->slice_number;
    for (struct zr_run *run = ledger->runs, *next; run; run = next) {
        next = run->next;
        if (!run->admitted && run->members_count == run->expected_count) {
            decide(ledger, run, now_ns);
        } else if (run->admitted && !run->queued && run->paused_count == run->expected_count &&
                   run->members_count == run->expected_count) {
            run->in_slice = run->yields = false;
            run->queued = ++ledger->queue_number;
        }
    }
    if (ledger->runs)
        begin_slices(ledger, now_ns);
}

void zr_runs_tick(struct zr_ledger *ledger, uint64_t now_ns)
{
    char words[WORDS_ROOM];
    if (!ledger->runs)
        return;
    for (struct zr_client *client = ledger->clients; client; client = client->next) {
        const struct zr_client *other = ledger->clients;
        if (client->awaits == ZR_AWAITS_NOTHING)
            continue;
        if (now_ns < client->awaits_until_ns) {
            zr_ledger_due(ledger, client->awaits_until_ns);
            continue;
        }
        while (other && !(other->run && other->run->in_slice))
            other = other->next;
        if (client->awaits == ZR_AWAITS_SLICE && other)
            snprintf(words, sizeof words, "waits for its time slice: pid %d (%s) has the current time slice",
                     (int)other->pid, other->program);
        else if (client->awaits == ZR_AWAITS_SLICE)
            snprintf(words, sizeof words, "waits for its time slice");
        else
            describe_wait(client->run, words, sizeof words);
        reply(ledger, client, ZR_SERVICE_LATER, words);
    }
}
