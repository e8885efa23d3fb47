/* ledger.c: see ledger.h. Uses ledger_words.c, runs.c and slab.c. */
#include "alloc/service/server/ledger.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "alloc/service/server/runs.h"

enum { GROUPS_MAX = 4096 };
#define PUT_OFF_NS                                                                                           \
    UINT64_C(500000000) /* a request that waits for another run's step is answered within this time */
/* What a client may say that it holds: those of all clients have a sum. */
#define HELD_MAX  (UINT64_C(1) << 50)
#define ASK_BYTES (UINT64_C(64) << 20)
#define AGAIN_NS                                                                                             \
    UINT64_C(20000000) /* until clients that had nothing idle are asked again for a planned lease            \
                        */

/* ---- Groups -------------------------------------------------------------------------------------------- */

void zr_ledger_start(struct zr_ledger *ledger)
{
    ledger->due_ns = UINT64_MAX;
    zr_slab_init(&ledger->group_records, sizeof(struct zr_group), ZR_POOL_FAULTS);
    zr_slab_init(&ledger->run_records, sizeof(struct zr_run), ZR_POOL_FAULTS);
}

void zr_ledger_end(struct zr_ledger *ledger)
{
    zr_slab_end(&ledger->group_records);
    zr_slab_end(&ledger->run_records);
    ledger->groups = NULL;
    ledger->runs = NULL;
}

static struct zr_group *find_group(const struct zr_ledger *ledger, const char *name)
{
    struct zr_group *group = ledger->groups;
    while (group && strcmp(group->name, name) != 0)
        group = group->next;
    return group;
}

static zr_result have_group(struct zr_ledger *ledger, const char *text, struct zr_group **out)
{
    char name[sizeof(*out)->name];
    zr_group_name(name, sizeof name, text);
    *out = find_group(ledger, name);
    if (*out)
        return ZR_OK;
    if (ledger->groups_count >= GROUPS_MAX || !zr_slab_reserve(&ledger->group_records, 1))
        return zr_fail(ZR_ERR_HOST_MEMORY, "zrd cannot serve another group");
    *out = zr_slab_take(&ledger->group_records);
    **out = (struct zr_group){.next = ledger->groups, .shares = 1};
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    ledger->groups = *out;
    ledger->groups_count++;
    return ZR_OK;
}

static void leave_group(struct zr_ledger *ledger, struct zr_group *group)
{
    struct zr_group **link = &ledger->groups;
    if (group->holders_count > 0 || group->kept)
        return;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    ledger->groups_count--;
    zr_slab_give(&ledger->group_records, group);
}

void zr_ledger_unlimit(struct zr_ledger *ledger)
{
    while (ledger->groups) {
        ledger->groups->kept = false;
        leave_group(ledger, ledger->groups);
    }
}

uint64_t zr_ledger_soft_bytes(const struct zr_ledger *ledger, const struct zr_group *group)
{
    uint64_t shares = 0;
    if (group->soft_bytes)
        return group->soft_bytes;
    for (const struct zr_group *other = ledger->groups; other; other = other->next)
        shares += other->holders_count > 0 || other == group ? other->shares : 0;
    return (uint64_t)((double)ledger->capacity_bytes * group->shares / (double)(shares ? shares : 1));
}

/* How much of it, with so much more, is beyond a soft quota. */
static uint64_t beyond_soft(const struct zr_ledger *ledger, const struct zr_holder *holder, uint64_t more)
{
    uint64_t held = holder->held_bytes + more, group_held = holder->group->held_bytes + more;
    uint64_t soft = zr_ledger_soft_bytes(ledger, holder->group);
    uint64_t beyond = group_held > soft ? group_held - soft : 0;
    if (beyond > held)
        beyond = held;
    if (holder->soft_bytes && held > holder->soft_bytes && held - holder->soft_bytes > beyond)
        beyond = held - holder->soft_bytes;
    return beyond;
}

static uint64_t free_bytes(const struct zr_ledger *ledger)
{
    return ledger->held_bytes < ledger->capacity_bytes ? ledger->capacity_bytes - ledger->held_bytes : 0;
}

/* What the holder's plan has that it does not hold yet. */
static uint64_t plan_left(const struct zr_holder *holder)
{
    uint64_t allowed = zr_run_allows(holder);
    return allowed > holder->held_bytes ? allowed - holder->held_bytes : 0;
}

/* What is free for the holder's request: what plans reserve is free for them alone. */
static uint64_t free_for(const struct zr_ledger *ledger, const struct zr_holder *holder)
{
    uint64_t free = free_bytes(ledger), left = plan_left(holder);
    if (holder->wanted_bytes <= left)
        return zr_run_free(ledger, holder, free);
    uint64_t more = zr_runs_unreserved(ledger, free) + left, most = zr_run_free(ledger, holder, free);
    return more < most ? more : most;
}

/* ---- Pressure ------------------------------------------------------------------------------------------ */

static void stop_waiting(struct zr_ledger *ledger, struct zr_holder *holder)
{
    struct zr_holder **link = &ledger->first_waiting;
    while (*link && *link != holder)
        link = &(*link)->next_waiting;
    if (*link)
        *link = holder->next_waiting;
    holder->next_waiting = NULL;
}

static void count(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes)
{
    holder->held_bytes += bytes;
    holder->group->held_bytes += bytes;
    ledger->held_bytes += bytes;
    if (holder->run)
        holder->run->held_bytes += bytes;
    if (holder->held_bytes > holder->peak_bytes)
        holder->peak_bytes = holder->held_bytes;
}

static void uncount(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes)
{
    holder->held_bytes -= bytes;
    holder->group->held_bytes -= bytes;
    ledger->held_bytes -= bytes;
    if (holder->run)
        holder->run->held_bytes -= bytes;
}

/* False: it waits on. */
static bool grant(struct zr_ledger *ledger, struct zr_holder *holder)
{
    holder->unmet = !ledger->calls->answer(ledger, holder, ZR_OK);
    if (holder->unmet) {
        snprintf(ledger->unmet_words, sizeof ledger->unmet_words, "%s", zr_last_error());
        return false;
    }
    stop_waiting(ledger, holder);
    count(ledger, holder, holder->wanted_bytes);
    holder->wanted_bytes = 0;
    return true;
}

/* What it wants is its plan's, and another run's step comes first. */
static bool follows_in_plan(const struct zr_ledger *ledger, const struct zr_holder *holder)
{
    return holder->wanted_bytes <= plan_left(holder) && zr_run_follows(ledger, holder);
}

/* Or puts it off: what a run lacks because another's step comes first is there when that ends. */
static void refuse(struct zr_ledger *ledger, struct zr_holder *holder)
{
    char wanted[ZR_LEDGER_NUMBER_ROOM], left[ZR_LEDGER_NUMBER_ROOM], all[ZR_LEDGER_NUMBER_ROOM];
    char holders[224];
    zr_ledger_describe(ledger, holders, sizeof holders);
    stop_waiting(ledger, holder);
    if (!ledger->draining && (holder->put_off || follows_in_plan(ledger, holder))) {
        holder->wanted_bytes = 0;
        ledger->calls->reply(ledger, holder, ZR_SERVICE_LATER, "another run's step has precedence");
        return;
    }
    if (holder->unmet)
        zr_fail(ZR_ERR_MEMORY, "zrd may lend %s more, but cannot allocate them: %s",
                zr_ledger_bytes(left, free_for(ledger, holder)), ledger->unmet_words);
    else
        zr_fail(ZR_ERR_MEMORY, "zrd has %s of %s left%s, %s wanted, none idle; held by %s",
                zr_size_print_in(left, free_for(ledger, holder), ledger->capacity_bytes),
                zr_size_print(all, ledger->capacity_bytes),
                free_for(ledger, holder) < free_bytes(ledger) ? " beside what runs have planned" : "",
                zr_size_print_in(wanted, holder->wanted_bytes, ledger->capacity_bytes), holders);
    ledger->calls->answer(ledger, holder, ZR_ERR_MEMORY);
    holder->wanted_bytes = 0;
}

/* What it may be asked for: what its plan has it needs again in a moment. */
static uint64_t askable_bytes(const struct zr_holder *holder)
{
    uint64_t allowed = zr_run_allows(holder);
    return holder->held_bytes > allowed ? holder->held_bytes - allowed : 0;
}

/* Whether some of its bytes might still be asked for in this round. */
static bool may_ask(const struct zr_ledger *ledger, const struct zr_holder *holder)
{
    return askable_bytes(holder) > 0 && holder->listens && !holder->left && holder->asked_bytes == 0 &&
           holder->asked_round != ledger->round;
}

/* The holder to ask next for memory that `wanting` needs; NULL: none. */
static struct zr_holder *choose(const struct zr_ledger *ledger, const struct zr_holder *wanting,
                                bool unplanned)
{
    struct zr_holder *best = NULL;
    uint64_t best_beyond = 0;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next) {
        if (holder == wanting || !may_ask(ledger, holder) || (unplanned && holder->run))
            continue;
        uint64_t beyond = beyond_soft(ledger, holder, 0);
        if (!best || beyond > best_beyond ||
            (beyond == best_beyond &&
             holder->held_bytes / holder->group->shares > best->held_bytes / best->group->shares)) {
            best = holder;
            best_beyond = beyond;
        }
    }
    return best;
}

static void ask_for(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, bool spill,
                    uint64_t now_ns)
{
    holder->asked_bytes = bytes;
    holder->asked_spill = spill;
    holder->asked_ns = now_ns;
    holder->returned_bytes = 0;
    holder->asked_serial = ++ledger->serial;
    holder->asked_until_ns = now_ns + ledger->within_ns;
    zr_ledger_due(ledger, holder->asked_until_ns);
    ledger->calls->ask(ledger, holder);
}

/* Asks for more than a granule: a client that needs more asks again soon, and each request wakes two
 * processes. */
static void ask(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, uint64_t now_ns)
{
    uint64_t most = askable_bytes(holder);
    uint64_t least = holder->held_bytes / 8 < ASK_BYTES ? holder->held_bytes / 8 : ASK_BYTES;
    bytes = bytes > least ? bytes : least;
    holder->asked_round = ledger->round;
    ask_for(ledger, holder, bytes < most ? bytes : most, false, now_ns);
}

void zr_ledger_ask_spill(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, uint64_t now_ns)
{
    ask_for(ledger, holder, bytes, true, now_ns);
}

uint64_t zr_ledger_asked_bytes(const struct zr_ledger *ledger)
{
    uint64_t bytes = 0;
    for (const struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
        bytes += holder->asked_bytes;
    return bytes;
}

bool zr_ledger_press(struct zr_ledger *ledger, const struct zr_holder *wanting, uint64_t missing_bytes,
                     bool unplanned, uint64_t now_ns)
{
    uint64_t coming = zr_ledger_asked_bytes(ledger);
    struct zr_holder *other;
    while (missing_bytes > coming && (other = choose(ledger, wanting, unplanned))) {
        ask(ledger, other, missing_bytes - coming, now_ns);
        coming += other->asked_bytes;
    }
    return coming > 0;
}

/* Whether what the holder waits for is there once runs that compute beside others have ended their steps. */
static bool comes_back(const struct zr_ledger *ledger, const struct zr_holder *holder)
{
    return zr_runs_beside(ledger) && !(holder->run && holder->run->in_turn) &&
           holder->wanted_bytes <= zr_runs_spare(ledger);
}

/* A run that follows another is served last and delays no other: it waits for that run's step anyway. */
static void grant_in_order(struct zr_ledger *ledger)
{
    bool waits = false; /* another holder waits for memory that following runs would take */
    for (struct zr_holder *holder = ledger->first_waiting, *next; holder && !waits; holder = next) {
        next = holder->next_waiting;
        waits = !zr_run_follows(ledger, holder) &&
                !(holder->wanted_bytes <= free_for(ledger, holder) && grant(ledger, holder));
    }
    for (struct zr_holder *holder = ledger->first_waiting; holder && waits; holder = holder->next_waiting)
        if (!zr_run_follows(ledger, holder) && comes_back(ledger, holder))
            return;
    for (struct zr_holder *holder = ledger->first_waiting, *next; holder; holder = next) {
        next = holder->next_waiting;
        if (zr_run_follows(ledger, holder) && holder->wanted_bytes <= free_for(ledger, holder))
            grant(ledger, holder);
    }
}

/* Grants requests that fit, in order; asks clients for missing memory; refuses requests that no client can
 * help with. A planned request is not refused: clients that had nothing idle are asked again. */
void zr_ledger_serve(struct zr_ledger *ledger, uint64_t now_ns)
{
    zr_runs_serve(ledger, now_ns);
    grant_in_order(ledger);
    uint64_t before = 0;
    bool asked = false; /* for turns: claims may count less now */
    for (struct zr_holder *holder = ledger->first_waiting, *next; holder; holder = next) {
        next = holder->next_waiting;
        uint64_t wanted = before + holder->wanted_bytes, free = holder->unmet ? 0 : free_for(ledger, holder);
        bool follows = zr_run_follows(ledger, holder);
        before = follows ? before : wanted;
        if (follows && wanted > free && !ledger->settling)
            asked = zr_run_ask_before(ledger, holder) || asked;
        if (wanted <= free || zr_ledger_press(ledger, holder, wanted - free, false, now_ns))
            continue;
        bool waits = holder->wants_rank == 0 || holder->unmet || comes_back(ledger, holder);
        if (waits && now_ns < holder->wanted_until_ns) {
            if (!ledger->again_ns && !holder->put_off) /* a deferred holder repeats its request */
                ledger->again_ns = now_ns + AGAIN_NS;
            if (ledger->again_ns)
                zr_ledger_due(ledger, ledger->again_ns);
        } else {
            before -= before == wanted ? holder->wanted_bytes : 0;
            refuse(ledger, holder);
        }
    }
    if (asked)
        grant_in_order(ledger);
}

/* ---- What comes in ------------------------------------------------------------------------------------- */

zr_result zr_ledger_add(struct zr_ledger *ledger, struct zr_holder *holder, const char *group)
{
    if (ledger->draining && holder->held_bytes == 0)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "zrd is draining and lends no memory: `zr service drain --end%s` makes it lend again",
                       ledger->device_option);
    if (holder->held_bytes > HELD_MAX)
        return zr_fail(ZR_ERR_INVALID, "%llu bytes exceed any process",
                       (unsigned long long)holder->held_bytes);
    zr_result result = have_group(ledger, group, &holder->group);
    if (result != ZR_OK)
        return result;
    uint64_t held = holder->held_bytes;
    struct zr_holder **link = &ledger->holders;
    while (*link)
        link = &(*link)->next;
    holder->next = NULL;
    holder->number = ++ledger->number;
    holder->held_bytes = 0;
    holder->group->holders_count++;
    *link = holder;
    ledger->holders_count++;
    count(ledger, holder, held);
    return ZR_OK;
}

void zr_ledger_remove(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns)
{
    struct zr_holder **link = &ledger->holders;
    while (*link != holder)
        link = &(*link)->next;
    *link = holder->next;
    stop_waiting(ledger, holder);
    zr_run_leave(ledger, holder);
    uncount(ledger, holder, holder->held_bytes);
    ledger->holders_count--;
    holder->group->holders_count--;
    leave_group(ledger, holder->group);
    holder->group = NULL;
    zr_ledger_serve(ledger, now_ns);
}

void zr_ledger_leave(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns)
{
    stop_waiting(ledger, holder);
    zr_run_leave(ledger, holder);
    holder->left = true;
    holder->wanted_bytes = holder->asked_bytes = 0;
    zr_ledger_serve(ledger, now_ns);
}

static zr_result check_hard(const struct zr_ledger *ledger, const struct zr_holder *holder, uint64_t bytes)
{
    char held[ZR_LEDGER_NUMBER_ROOM], quota[ZR_LEDGER_NUMBER_ROOM], more[ZR_LEDGER_NUMBER_ROOM];
    const struct zr_group *group = holder->group;
    uint64_t hard = holder->hard_bytes ? holder->hard_bytes : ledger->process_hard_bytes;
    if (hard && (bytes > hard || holder->held_bytes > hard - bytes))
        return zr_fail(ZR_ERR_MEMORY,
                       "pid %d holds %s of its hard quota of %s, and wants %s more: `zr service limit%s "
                       "--pid %d --hard BYTES` raises it",
                       (int)holder->pid, zr_size_print_in(held, holder->held_bytes, hard),
                       zr_size_print(quota, hard), zr_size_print_in(more, bytes, hard), ledger->device_option,
                       (int)holder->pid);
    if (group->hard_bytes && (bytes > group->hard_bytes || group->held_bytes > group->hard_bytes - bytes))
        return zr_fail(ZR_ERR_MEMORY,
                       "group %s holds %s of its hard quota of %s, and pid %d wants %s more: `zr service "
                       "limit%s --group %s --hard BYTES` raises it",
                       group->name, zr_size_print_in(held, group->held_bytes, group->hard_bytes),
                       zr_size_print(quota, group->hard_bytes), (int)holder->pid,
                       zr_size_print_in(more, bytes, group->hard_bytes), ledger->device_option, group->name);
    if (bytes > ledger->capacity_bytes)
        return zr_fail(ZR_ERR_MEMORY, "zrd lends %s in all, and %s are wanted",
                       zr_size_print(quota, ledger->capacity_bytes),
                       zr_size_print_in(more, bytes, ledger->capacity_bytes));
    return ZR_OK;
}

zr_result zr_ledger_lease(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, uint64_t serial,
                          uint64_t now_ns)
{
    struct zr_holder **link = &ledger->first_waiting;
    if (bytes == 0 || bytes > ZR_LEDGER_BYTES_MAX || holder->wanted_bytes > 0)
        return zr_fail(ZR_ERR_INVALID, "a lease of %llu bytes%s", (unsigned long long)bytes,
                       holder->wanted_bytes > 0 ? " while another lease is pending" : "");
    holder->wanted_serial = serial;
    holder->unmet = false;
    /* The quotas have counted the whole plan, so a quota that is lowered later costs no run its swapped-out
     * memory. */
    zr_result result = bytes <= plan_left(holder) ? ZR_OK : check_hard(ledger, holder, bytes);
    if (result == ZR_OK && ledger->draining)
        result =
            zr_fail(ZR_ERR_MEMORY,
                    "zrd is draining and lends no memory: `zr service drain --end%s` makes it lend again",
                    ledger->device_option);
    if (result != ZR_OK) {
        ledger->calls->answer(ledger, holder, result);
        return ZR_OK;
    }
    holder->wanted_bytes = bytes;
    holder->put_off = result == ZR_OK && follows_in_plan(ledger, holder);
    holder->wanted_until_ns = now_ns + (holder->put_off ? PUT_OFF_NS : ledger->within_ns);
    zr_ledger_due(ledger, holder->wanted_until_ns);
    holder->wants_rank = bytes <= plan_left(holder) ? 0 : beyond_soft(ledger, holder, bytes) > 0 ? 2 : 1;
    while (*link && (*link)->wants_rank <= holder->wants_rank)
        link = &(*link)->next_waiting;
    holder->next_waiting = *link;
    *link = holder;
    ledger->round++;
    zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

zr_result zr_ledger_return(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes,
                           uint64_t now_ns)
{
    if (bytes > holder->held_bytes)
        return zr_fail(ZR_ERR_INVALID, "%llu bytes are returned of %llu that are held",
                       (unsigned long long)bytes, (unsigned long long)holder->held_bytes);
    uncount(ledger, holder, bytes);
    holder->returned_bytes += bytes;
    if (ledger->first_waiting || ledger->runs)
        zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

zr_result zr_ledger_given(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t serial,
                          uint64_t now_ns)
{
    if (holder->asked_bytes == 0 || serial != holder->asked_serial)
        return zr_fail(ZR_ERR_INVALID, "an answer without a request");
    holder->asked_bytes = 0;
    holder->spills_no_more = holder->asked_spill && holder->returned_bytes == 0;
    if (holder->returned_bytes > 0 && !holder->asked_spill) {
        holder->given_bytes += holder->returned_bytes;
        holder->given_ns += now_ns - holder->asked_ns;
    }
    zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

/* The first that has had its time; NULL: none. */
static struct zr_holder *late(const struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_holder *holder = ledger->holders;
    while (holder && !(holder->asked_bytes > 0 && now_ns >= holder->asked_until_ns))
        holder = holder->next;
    return holder;
}

uint64_t zr_ledger_tick(struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_holder *holder;
    char words[160], asked[ZR_LEDGER_NUMBER_ROOM];
    bool ended = false;
    if (now_ns < ledger->due_ns)
        return ledger->due_ns;
    ledger->due_ns = UINT64_MAX;
    while ((holder = late(ledger, now_ns))) {
        snprintf(words, sizeof words,
                 "pid %d did not answer zrd's request for %s within %llu ms: its leases end",
                 (int)holder->pid, zr_ledger_bytes(asked, holder->asked_bytes),
                 (unsigned long long)(ledger->within_ns / 1000000));
        holder->asked_bytes = 0;
        ledger->calls->end(ledger, holder, words);
        ended = true;
    }
    if (ended) /* grant its memory to pending requests first */
        return ledger->due_ns = now_ns;
    for (struct zr_holder *next = ledger->first_waiting; (holder = next);) {
        next = holder->next_waiting;
        if (now_ns >= holder->wanted_until_ns)
            refuse(ledger, holder);
    }
    for (holder = ledger->holders; holder; holder = holder->next) {
        if (holder->asked_bytes > 0)
            zr_ledger_due(ledger, holder->asked_until_ns);
        if (holder->wanted_bytes > 0)
            zr_ledger_due(ledger, holder->wanted_until_ns);
    }
    bool again = ledger->again_ns && now_ns >= ledger->again_ns;
    if (again) {
        ledger->again_ns = 0;
        ledger->round++;
    }
    zr_runs_tick(ledger, now_ns);
    if (ledger->runs || again)
        zr_ledger_serve(ledger, now_ns);
    return ledger->due_ns;
}

/* ---- Quotas -------------------------------------------------------------------------------------------- */

struct quotas {
    uint64_t *hard_bytes, *soft_bytes;
    uint32_t *shares;
    uint64_t held_bytes;
    char who[ZR_SERVICE_GROUP_BYTES + 8];
};

static zr_result quotas_of(struct zr_ledger *ledger, const struct zr_service_message *message,
                           struct quotas *out)
{
    struct zr_group *group = NULL;
    if (message->pid) {
        struct zr_holder *holder = ledger->holders;
        while (holder && holder->pid != message->pid)
            holder = holder->next;
        if (!holder)
            return zr_fail(ZR_ERR_INVALID,
                           "process %d has no lease; `zr service status%s` shows the processes with leases",
                           (int)message->pid, ledger->device_option);
        *out = (struct quotas){&holder->hard_bytes, &holder->soft_bytes, NULL, holder->held_bytes, ""};
        snprintf(out->who, sizeof out->who, "pid %d", (int)holder->pid);
        return ZR_OK;
    }
    zr_result result = have_group(ledger, message->group, &group);
    if (result != ZR_OK)
        return result;
    group->kept = true;
    *out = (struct quotas){&group->hard_bytes, &group->soft_bytes, &group->shares, group->held_bytes, ""};
    snprintf(out->who, sizeof out->who, "group %s", group->name);
    return ZR_OK;
}

zr_result zr_ledger_check_capacity(const struct zr_ledger *ledger, uint64_t bytes)
{
    char wanted[ZR_LEDGER_NUMBER_ROOM], most[ZR_LEDGER_NUMBER_ROOM];
    zr_ledger_bytes(wanted, bytes);
    if (bytes < ledger->least_bytes)
        return zr_fail(ZR_ERR_INVALID, "a capacity of %s is too small: the minimum is a granule, %s", wanted,
                       zr_ledger_bytes(most, ledger->least_bytes));
    if (ledger->most_bytes > 0 && bytes > ledger->most_bytes)
        return zr_fail(ZR_ERR_INVALID, "a capacity of %s exceeds the memory of the %s, %s", wanted,
                       ledger->device_option[0] ? "device" : "machine",
                       zr_ledger_bytes(most, ledger->most_bytes));
    return ZR_OK;
}

static zr_result check_limit(const struct zr_ledger *ledger, const struct zr_service_message *message)
{
    char wanted[ZR_LEDGER_NUMBER_ROOM], planned[ZR_LEDGER_NUMBER_ROOM];
    bool capacity = message->flags & ZR_SERVICE_SET_CAPACITY;
    bool quotas = message->flags & (ZR_SERVICE_SET_HARD | ZR_SERVICE_SET_SOFT | ZR_SERVICE_SET_SHARES);
    if (!capacity && !quotas)
        return zr_fail(ZR_ERR_INVALID, "the limit sets no value");
    if (quotas && !message->pid == !message->group[0])
        return zr_fail(ZR_ERR_INVALID, "a quota applies to a process or to a group");
    if (message->pid && message->flags & ZR_SERVICE_SET_SHARES)
        return zr_fail(ZR_ERR_INVALID, "shares apply to a group, not to a process");
    if (message->flags & ZR_SERVICE_SET_SHARES && (message->shares == 0 || message->shares > 1000000))
        return zr_fail(ZR_ERR_INVALID, "shares are between 1 and 1000000");
    if (message->bytes > ZR_LEDGER_BYTES_MAX || message->hard_bytes > ZR_LEDGER_BYTES_MAX ||
        message->soft_bytes > ZR_LEDGER_BYTES_MAX)
        return zr_fail(ZR_ERR_INVALID, "the value exceeds any machine's memory");
    if (capacity && message->bytes == 0)
        return zr_fail(ZR_ERR_INVALID, "a capacity of 0: use `zr service drain%s` to lend nothing",
                       ledger->device_option);
    if (capacity && message->bytes < zr_runs_need(ledger))
        return zr_fail(
            ZR_ERR_INVALID,
            "admitted runs need %s in their largest step, more than %s: end a run first; `zr service status%s` shows them",
            zr_ledger_bytes(planned, zr_runs_need(ledger)), zr_ledger_bytes(wanted, message->bytes),
            ledger->device_option);
    return capacity ? zr_ledger_check_capacity(ledger, message->bytes) : ZR_OK;
}

/* Asks for bytes held beyond a new quota; only a holder that does not answer is disconnected. */
static void ask_back(struct zr_ledger *ledger, uint64_t now_ns)
{
    ledger->round++;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next) {
        uint64_t hard = holder->hard_bytes, group_hard = holder->group->hard_bytes, most = 0;
        if (hard && holder->held_bytes > hard)
            most = holder->held_bytes - hard;
        if (group_hard && holder->group->held_bytes > group_hard &&
            holder->group->held_bytes - group_hard > most)
            most = holder->group->held_bytes - group_hard;
        if (ledger->held_bytes > ledger->capacity_bytes && ledger->held_bytes - ledger->capacity_bytes > most)
            most = ledger->held_bytes - ledger->capacity_bytes;
        if (most > 0 && may_ask(ledger, holder))
            ask(ledger, holder, most, now_ns);
    }
}

zr_result zr_ledger_limit(struct zr_ledger *ledger, const struct zr_service_message *message, char *words,
                          size_t room_bytes, uint64_t now_ns)
{
    char held[ZR_LEDGER_NUMBER_ROOM], quota[ZR_LEDGER_NUMBER_ROOM];
    struct quotas quotas = {0};
    zr_result result = check_limit(ledger, message);
    words[0] = '\0';
    if (result == ZR_OK && (message->pid || message->group[0]))
        result = quotas_of(ledger, message, &quotas);
    if (result != ZR_OK)
        return result;
    if (message->flags & ZR_SERVICE_SET_CAPACITY)
        ledger->capacity_bytes = message->bytes;
    if (quotas.hard_bytes) {
        uint64_t hard = message->flags & ZR_SERVICE_SET_HARD ? message->hard_bytes : *quotas.hard_bytes;
        uint64_t soft = message->flags & ZR_SERVICE_SET_SOFT ? message->soft_bytes : *quotas.soft_bytes;
        if (hard && soft > hard)
            return zr_fail(ZR_ERR_INVALID, "a soft quota of %s exceeds the hard quota of %s",
                           zr_ledger_bytes(held, soft), zr_ledger_bytes(quota, hard));
        *quotas.hard_bytes = hard;
        *quotas.soft_bytes = soft;
    }
    if (message->flags & ZR_SERVICE_SET_SHARES)
        /* NOLINTNEXTLINE(clang-analyzer-*): check_limit() refuses shares without a group */
        *quotas.shares = message->shares;
    uint64_t most = quotas.hard_bytes ? *quotas.hard_bytes : ledger->capacity_bytes;
    uint64_t now = quotas.hard_bytes ? quotas.held_bytes : ledger->held_bytes;
    if (most && now > most)
        snprintf(
            words, room_bytes,
            "%s holds %s, more than the %s: it keeps the memory in use, returns idle memory, and gets no lease until it is below",
            quotas.hard_bytes ? quotas.who : "all together", zr_ledger_bytes(held, now),
            zr_ledger_bytes(quota, most));
    ask_back(ledger, now_ns);
    zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

void zr_ledger_drain(struct zr_ledger *ledger, bool draining, uint64_t now_ns)
{
    ledger->draining = draining;
    if (!draining)
        return;
    while (ledger->first_waiting)
        refuse(ledger, ledger->first_waiting);
    ledger->round++;
    for (struct zr_holder *holder = ledger->holders; holder; holder = holder->next)
        if (may_ask(ledger, holder))
            ask(ledger, holder, holder->held_bytes, now_ns);
}
