/* ledger.c: see ledger.h. Uses ledger_words.c, runs.c and slab.c. */
#include "alloc/service/server/ledger.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "alloc/service/server/runs.h"

enum { GROUPS_MAX = 4096 };
#define DEFERRED_NS UINT64_C(500000000) /* a deferred lease is answered within this time */
/* Limit of the bytes that a client reports; the sum over all clients does not overflow. */
#define HELD_MAX      (UINT64_C(1) << 50)
#define ASK_MIN_BYTES (UINT64_C(64) << 20)
#define AGAIN_NS      UINT64_C(20000000) /* clients without idle memory are asked again after this time */

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

static zr_result find_or_create_group(struct zr_ledger *ledger, const char *text, struct zr_group **out)
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
    if (group->clients_count > 0 || group->kept)
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
        shares += other->clients_count > 0 || other == group ? other->shares : 0;
    return (uint64_t)((double)ledger->capacity_bytes * group->shares / (double)(shares ? shares : 1));
}

/* The client's bytes beyond a soft quota if it held `more` bytes more. */
static uint64_t beyond_soft(const struct zr_ledger *ledger, const struct zr_client *client, uint64_t more)
{
    uint64_t held = client->held_bytes + more, group_held = client->group->held_bytes + more;
    uint64_t soft = zr_ledger_soft_bytes(ledger, client->group);
    uint64_t beyond = group_held > soft ? group_held - soft : 0;
    if (beyond > held)
        beyond = held;
    if (client->soft_bytes && held > client->soft_bytes && held - client->soft_bytes > beyond)
        beyond = held - client->soft_bytes;
    return beyond;
}

static uint64_t free_bytes(const struct zr_ledger *ledger)
{
    return ledger->held_bytes < ledger->capacity_bytes ? ledger->capacity_bytes - ledger->held_bytes : 0;
}

/* The bytes that the client's plan allows and that it does not hold yet. */
static uint64_t plan_left(const struct zr_client *client)
{
    uint64_t allowed = zr_run_allows(client);
    return allowed > client->held_bytes ? allowed - client->held_bytes : 0;
}

/* The bytes free for the client's request; bytes reserved for a plan are free only for that plan. */
static uint64_t free_for(const struct zr_ledger *ledger, const struct zr_client *client)
{
    uint64_t free = free_bytes(ledger), left = plan_left(client);
    if (client->wanted_bytes <= left)
        return zr_run_free(ledger, client, free);
    uint64_t more = zr_runs_unreserved(ledger, free) + left, max_bytes = zr_run_free(ledger, client, free);
    return more < max_bytes ? more : max_bytes;
}

/* ---- Pending requests ---------------------------------------------------------------------------------- */

static void stop_waiting(struct zr_ledger *ledger, struct zr_client *client)
{
    struct zr_client **link = &ledger->first_waiting;
    while (*link && *link != client)
        link = &(*link)->next_waiting;
    if (*link)
        *link = client->next_waiting;
    client->next_waiting = NULL;
}

static void count(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes)
{
    client->held_bytes += bytes;
    client->group->held_bytes += bytes;
    ledger->held_bytes += bytes;
    if (client->run)
        client->run->held_bytes += bytes;
    if (client->held_bytes > client->peak_bytes)
        client->peak_bytes = client->held_bytes;
}

static void uncount(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes)
{
    client->held_bytes -= bytes;
    client->group->held_bytes -= bytes;
    ledger->held_bytes -= bytes;
    if (client->run)
        client->run->held_bytes -= bytes;
}

/* False: allocating the memory failed, and the request remains pending. */
static bool grant(struct zr_ledger *ledger, struct zr_client *client)
{
    client->unmet = !ledger->calls->answer(ledger, client, ZR_OK);
    if (client->unmet) {
        snprintf(ledger->unmet_words, sizeof ledger->unmet_words, "%s", zr_last_error());
        return false;
    }
    stop_waiting(ledger, client);
    count(ledger, client, client->wanted_bytes);
    client->wanted_bytes = 0;
    return true;
}

/* Whether the client's plan covers its request, and another run's step has precedence. */
static bool follows_in_plan(const struct zr_ledger *ledger, const struct zr_client *client)
{
    return client->wanted_bytes <= plan_left(client) && zr_run_follows(ledger, client);
}

/* Refuses the request, or defers it if another run's step has precedence: that step's end frees memory. */
static void refuse(struct zr_ledger *ledger, struct zr_client *client)
{
    char wanted[ZR_LEDGER_NUMBER_ROOM], left[ZR_LEDGER_NUMBER_ROOM], all[ZR_LEDGER_NUMBER_ROOM];
    char clients[224];
    zr_ledger_describe(ledger, clients, sizeof clients);
    stop_waiting(ledger, client);
    if (!ledger->draining && (client->deferred || follows_in_plan(ledger, client))) {
        client->wanted_bytes = 0;
        ledger->calls->reply(ledger, client, ZR_SERVICE_LATER, "another run's step has precedence");
        return;
    }
    if (client->unmet)
        zr_fail(ZR_ERR_MEMORY, "zrd may lend %s more, but cannot allocate them: %s",
                zr_ledger_bytes(left, free_for(ledger, client)), ledger->unmet_words);
    else
        zr_fail(ZR_ERR_MEMORY, "zrd has %s of %s left%s, %s wanted, none idle; held by %s",
                zr_size_print_in(left, free_for(ledger, client), ledger->capacity_bytes),
                zr_size_print(all, ledger->capacity_bytes),
                free_for(ledger, client) < free_bytes(ledger) ? " beside what runs have planned" : "",
                zr_size_print_in(wanted, client->wanted_bytes, ledger->capacity_bytes), clients);
    ledger->calls->answer(ledger, client, ZR_ERR_MEMORY);
    client->wanted_bytes = 0;
}

/* The bytes that the client can be asked for: bytes within its plan are needed again soon. */
static uint64_t askable_bytes(const struct zr_client *client)
{
    uint64_t allowed = zr_run_allows(client);
    return client->held_bytes > allowed ? client->held_bytes - allowed : 0;
}

/* Whether the client can be asked for bytes in this round. */
static bool may_ask(const struct zr_ledger *ledger, const struct zr_client *client)
{
    return askable_bytes(client) > 0 && client->listens && !client->left && client->reclaim_bytes == 0 &&
           client->reclaim_round != ledger->round;
}

/* The client to ask next for memory that `wanting` needs; NULL: none. */
static struct zr_client *choose(const struct zr_ledger *ledger, const struct zr_client *wanting,
                                bool unplanned)
{
    struct zr_client *best = NULL;
    uint64_t best_beyond = 0;
    for (struct zr_client *client = ledger->clients; client; client = client->next) {
        if (client == wanting || !may_ask(ledger, client) || (unplanned && client->run))
            continue;
        uint64_t beyond = beyond_soft(ledger, client, 0);
        if (!best || beyond > best_beyond ||
            (beyond == best_beyond &&
             client->held_bytes / client->group->shares > best->held_bytes / best->group->shares)) {
            best = client;
            best_beyond = beyond;
        }
    }
    return best;
}

static void request_reclaim(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, bool spill,
                            uint64_t now_ns)
{
    client->reclaim_bytes = bytes;
    client->reclaim_spills = spill;
    client->reclaim_sent_ns = now_ns;
    client->returned_bytes = 0;
    client->reclaim_serial = ++ledger->serial;
    client->reclaim_until_ns = now_ns + ledger->within_ns;
    zr_ledger_due(ledger, client->reclaim_until_ns);
    ledger->calls->ask(ledger, client);
}

/* Asks for more than a granule: a client that needs more asks again soon, and each request wakes two
 * processes. */
static void ask(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, uint64_t now_ns)
{
    uint64_t max_bytes = askable_bytes(client);
    uint64_t min_bytes = client->held_bytes / 8 < ASK_MIN_BYTES ? client->held_bytes / 8 : ASK_MIN_BYTES;
    bytes = bytes > min_bytes ? bytes : min_bytes;
    client->reclaim_round = ledger->round;
    request_reclaim(ledger, client, bytes < max_bytes ? bytes : max_bytes, false, now_ns);
}

void zr_ledger_ask_spill(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, uint64_t now_ns)
{
    request_reclaim(ledger, client, bytes, true, now_ns);
}

uint64_t zr_ledger_reclaim_bytes(const struct zr_ledger *ledger)
{
    uint64_t bytes = 0;
    for (const struct zr_client *client = ledger->clients; client; client = client->next)
        bytes += client->reclaim_bytes;
    return bytes;
}

bool zr_ledger_reclaim(struct zr_ledger *ledger, const struct zr_client *wanting, uint64_t missing_bytes,
                       bool unplanned, uint64_t now_ns)
{
    uint64_t coming = zr_ledger_reclaim_bytes(ledger);
    struct zr_client *other;
    while (missing_bytes > coming && (other = choose(ledger, wanting, unplanned))) {
        ask(ledger, other, missing_bytes - coming, now_ns);
        coming += other->reclaim_bytes;
    }
    return coming > 0;
}

/* Whether the client's request fits once runs that compute beside others have finished their steps. */
static bool comes_back(const struct zr_ledger *ledger, const struct zr_client *client)
{
    return zr_runs_beside(ledger) && !(client->run && client->run->in_slice) &&
           client->wanted_bytes <= zr_runs_spare(ledger);
}

/* A run that follows another is served last and delays no other: it waits for that run's step anyway. */
static void grant_in_order(struct zr_ledger *ledger)
{
    bool waits = false; /* another client waits for memory that following runs would take */
    for (struct zr_client *client = ledger->first_waiting, *next; client && !waits; client = next) {
        next = client->next_waiting;
        waits = !zr_run_follows(ledger, client) &&
                !(client->wanted_bytes <= free_for(ledger, client) && grant(ledger, client));
    }
    for (struct zr_client *client = ledger->first_waiting; client && waits; client = client->next_waiting)
        if (!zr_run_follows(ledger, client) && comes_back(ledger, client))
            return;
    for (struct zr_client *client = ledger->first_waiting, *next; client; client = next) {
        next = client->next_waiting;
        if (zr_run_follows(ledger, client) && client->wanted_bytes <= free_for(ledger, client))
            grant(ledger, client);
    }
}

/* Grants requests that fit, in order; asks clients for missing memory; refuses requests that no client can
 * help with. A planned request is not refused: clients that had nothing idle are asked again. */
void zr_ledger_serve(struct zr_ledger *ledger, uint64_t now_ns)
{
    zr_runs_serve(ledger, now_ns);
    grant_in_order(ledger);
    uint64_t earlier_bytes = 0;
    bool asked = false; /* YIELD was sent: reservations may be smaller now */
    for (struct zr_client *client = ledger->first_waiting, *next; client; client = next) {
        next = client->next_waiting;
        uint64_t wanted = earlier_bytes + client->wanted_bytes,
                 free = client->unmet ? 0 : free_for(ledger, client);
        bool follows = zr_run_follows(ledger, client);
        earlier_bytes = follows ? earlier_bytes : wanted;
        if (follows && wanted > free && !ledger->settling)
            asked = zr_run_ask_before(ledger, client) || asked;
        if (wanted <= free || zr_ledger_reclaim(ledger, client, wanted - free, false, now_ns))
            continue;
        bool waits = client->wanted_priority == 0 || client->unmet || comes_back(ledger, client);
        if (waits && now_ns < client->wanted_until_ns) {
            if (!ledger->again_ns && !client->deferred) /* a deferred client repeats its request */
                ledger->again_ns = now_ns + AGAIN_NS;
            if (ledger->again_ns)
                zr_ledger_due(ledger, ledger->again_ns);
        } else {
            earlier_bytes -= earlier_bytes == wanted ? client->wanted_bytes : 0;
            refuse(ledger, client);
        }
    }
    if (asked)
        grant_in_order(ledger);
}

/* ---- Requests of clients ------------------------------------------------------------------------------- */

zr_result zr_ledger_add(struct zr_ledger *ledger, struct zr_client *client, const char *group)
{
    if (ledger->draining && client->held_bytes == 0)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "zrd is draining and lends no memory: `zr service drain --end%s` makes it lend again",
                       ledger->device_option);
    if (client->held_bytes > HELD_MAX)
        return zr_fail(ZR_ERR_INVALID, "%llu bytes exceed any process",
                       (unsigned long long)client->held_bytes);
    zr_result result = find_or_create_group(ledger, group, &client->group);
    if (result != ZR_OK)
        return result;
    uint64_t held = client->held_bytes;
    struct zr_client **link = &ledger->clients;
    while (*link)
        link = &(*link)->next;
    client->next = NULL;
    client->number = ++ledger->number;
    client->held_bytes = 0;
    client->group->clients_count++;
    *link = client;
    ledger->clients_count++;
    count(ledger, client, held);
    return ZR_OK;
}

void zr_ledger_remove(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns)
{
    struct zr_client **link = &ledger->clients;
    while (*link != client)
        link = &(*link)->next;
    *link = client->next;
    stop_waiting(ledger, client);
    zr_run_leave(ledger, client);
    uncount(ledger, client, client->held_bytes);
    ledger->clients_count--;
    client->group->clients_count--;
    leave_group(ledger, client->group);
    client->group = NULL;
    zr_ledger_serve(ledger, now_ns);
}

void zr_ledger_leave(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns)
{
    stop_waiting(ledger, client);
    zr_run_leave(ledger, client);
    client->left = true;
    client->wanted_bytes = client->reclaim_bytes = 0;
    zr_ledger_serve(ledger, now_ns);
}

/* The number of the client whose process's quota counts the client's bytes. */
static uint64_t owner_of(const struct zr_client *client)
{
    return client->owner ? client->owner : client->number;
}

/* The bytes of the client's process, with its kept memory, and the process's hard quota. */
static uint64_t held_by_process(const struct zr_ledger *ledger, const struct zr_client *client,
                                uint64_t *hard_bytes)
{
    uint64_t held = 0;
    *hard_bytes = client->hard_bytes;
    for (const struct zr_client *other = ledger->clients; other; other = other->next)
        if (owner_of(other) == owner_of(client)) {
            held += other->held_bytes;
            if (other->number == owner_of(client))
                *hard_bytes = other->hard_bytes;
        }
    return held;
}

static zr_result check_hard(const struct zr_ledger *ledger, const struct zr_client *client, uint64_t bytes)
{
    char held[ZR_LEDGER_NUMBER_ROOM], quota[ZR_LEDGER_NUMBER_ROOM], more[ZR_LEDGER_NUMBER_ROOM];
    const struct zr_group *group = client->group;
    uint64_t hard, process_held = held_by_process(ledger, client, &hard);
    hard = hard ? hard : ledger->process_hard_bytes;
    if (hard && (bytes > hard || process_held > hard - bytes))
        return zr_fail(ZR_ERR_MEMORY,
                       "pid %d holds %s of its hard quota of %s, and wants %s more: `zr service limit%s "
                       "--pid %d --hard BYTES` raises it",
                       (int)client->pid, zr_size_print_in(held, process_held, hard),
                       zr_size_print(quota, hard), zr_size_print_in(more, bytes, hard), ledger->device_option,
                       (int)client->pid);
    if (group->hard_bytes && (bytes > group->hard_bytes || group->held_bytes > group->hard_bytes - bytes))
        return zr_fail(ZR_ERR_MEMORY,
                       "group %s holds %s of its hard quota of %s, and pid %d wants %s more: `zr service "
                       "limit%s --group %s --hard BYTES` raises it",
                       group->name, zr_size_print_in(held, group->held_bytes, group->hard_bytes),
                       zr_size_print(quota, group->hard_bytes), (int)client->pid,
                       zr_size_print_in(more, bytes, group->hard_bytes), ledger->device_option, group->name);
    if (bytes > ledger->capacity_bytes)
        return zr_fail(ZR_ERR_MEMORY, "zrd lends %s in all, and %s are wanted",
                       zr_size_print(quota, ledger->capacity_bytes),
                       zr_size_print_in(more, bytes, ledger->capacity_bytes));
    return ZR_OK;
}

zr_result zr_ledger_lease(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, uint64_t serial,
                          uint64_t now_ns)
{
    struct zr_client **link = &ledger->first_waiting;
    if (bytes == 0 || bytes > ZR_LEDGER_BYTES_MAX || client->wanted_bytes > 0)
        return zr_fail(ZR_ERR_INVALID, "a lease of %llu bytes%s", (unsigned long long)bytes,
                       client->wanted_bytes > 0 ? " while another lease is pending" : "");
    client->wanted_serial = serial;
    client->unmet = false;
    /* The quotas have counted the whole plan, so a quota that is lowered later costs no run its swapped-out
     * memory. */
    zr_result result = bytes <= plan_left(client) ? ZR_OK : check_hard(ledger, client, bytes);
    if (result == ZR_OK && ledger->draining)
        result =
            zr_fail(ZR_ERR_MEMORY,
                    "zrd is draining and lends no memory: `zr service drain --end%s` makes it lend again",
                    ledger->device_option);
    if (result != ZR_OK) {
        ledger->calls->answer(ledger, client, result);
        return ZR_OK;
    }
    client->wanted_bytes = bytes;
    client->deferred = result == ZR_OK && follows_in_plan(ledger, client);
    client->wanted_until_ns = now_ns + (client->deferred ? DEFERRED_NS : ledger->within_ns);
    zr_ledger_due(ledger, client->wanted_until_ns);
    client->wanted_priority = bytes <= plan_left(client) ? 0 : beyond_soft(ledger, client, bytes) > 0 ? 2 : 1;
    while (*link && (*link)->wanted_priority <= client->wanted_priority)
        link = &(*link)->next_waiting;
    client->next_waiting = *link;
    *link = client;
    ledger->round++;
    zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

zr_result zr_ledger_return(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes,
                           uint64_t now_ns)
{
    if (bytes > client->held_bytes)
        return zr_fail(ZR_ERR_INVALID, "%llu bytes are returned of %llu that are held",
                       (unsigned long long)bytes, (unsigned long long)client->held_bytes);
    uncount(ledger, client, bytes);
    client->returned_bytes += bytes;
    if (ledger->first_waiting || ledger->runs)
        zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

zr_result zr_ledger_given(struct zr_ledger *ledger, struct zr_client *client, uint64_t serial,
                          uint64_t now_ns)
{
    if (client->reclaim_bytes == 0 || serial != client->reclaim_serial)
        return zr_fail(ZR_ERR_INVALID, "an answer without a request");
    client->reclaim_bytes = 0;
    client->spill_exhausted = client->reclaim_spills && client->returned_bytes == 0;
    if (client->returned_bytes > 0 && !client->reclaim_spills) {
        client->given_bytes += client->returned_bytes;
        client->given_ns += now_ns - client->reclaim_sent_ns;
    }
    zr_ledger_serve(ledger, now_ns);
    return ZR_OK;
}

/* The first client whose RECLAIM deadline has passed; NULL: none. */
static struct zr_client *first_overdue(const struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_client *client = ledger->clients;
    while (client && !(client->reclaim_bytes > 0 && now_ns >= client->reclaim_until_ns))
        client = client->next;
    return client;
}

uint64_t zr_ledger_tick(struct zr_ledger *ledger, uint64_t now_ns)
{
    struct zr_client *client;
    char words[160], asked[ZR_LEDGER_NUMBER_ROOM];
    bool ended = false;
    if (now_ns < ledger->due_ns)
        return ledger->due_ns;
    ledger->due_ns = UINT64_MAX;
    while ((client = first_overdue(ledger, now_ns))) {
        snprintf(words, sizeof words,
                 "pid %d did not answer zrd's request for %s within %llu ms: its leases end",
                 (int)client->pid, zr_ledger_bytes(asked, client->reclaim_bytes),
                 (unsigned long long)(ledger->within_ns / 1000000));
        client->reclaim_bytes = 0;
        ledger->calls->end(ledger, client, words);
        ended = true;
    }
    if (ended) /* grant its memory to pending requests first */
        return ledger->due_ns = now_ns;
    for (struct zr_client *next = ledger->first_waiting; (client = next);) {
        next = client->next_waiting;
        if (now_ns >= client->wanted_until_ns)
            refuse(ledger, client);
    }
    for (client = ledger->clients; client; client = client->next) {
        if (client->reclaim_bytes > 0)
            zr_ledger_due(ledger, client->reclaim_until_ns);
        if (client->wanted_bytes > 0)
            zr_ledger_due(ledger, client->wanted_until_ns);
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
    char owner[ZR_SERVICE_GROUP_BYTES + 8];
};

static zr_result quotas_of(struct zr_ledger *ledger, const struct zr_service_message *message,
                           struct quotas *out)
{
    struct zr_group *group = NULL;
    if (message->pid) {
        struct zr_client *client = ledger->clients;
        while (client && (client->pid != message->pid || client->is_segment))
            client = client->next;
        if (!client)
            return zr_fail(ZR_ERR_INVALID,
                           "process %d has no lease; `zr service status%s` shows the processes with leases",
                           (int)message->pid, ledger->device_option);
        *out = (struct quotas){&client->hard_bytes, &client->soft_bytes, NULL, client->held_bytes, ""};
        snprintf(out->owner, sizeof out->owner, "pid %d", (int)client->pid);
        return ZR_OK;
    }
    zr_result result = find_or_create_group(ledger, message->group, &group);
    if (result != ZR_OK)
        return result;
    group->kept = true;
    *out = (struct quotas){&group->hard_bytes, &group->soft_bytes, &group->shares, group->held_bytes, ""};
    snprintf(out->owner, sizeof out->owner, "group %s", group->name);
    return ZR_OK;
}

zr_result zr_ledger_check_capacity(const struct zr_ledger *ledger, uint64_t bytes)
{
    char wanted[ZR_LEDGER_NUMBER_ROOM], limit[ZR_LEDGER_NUMBER_ROOM];
    zr_ledger_bytes(wanted, bytes);
    if (bytes < ledger->least_bytes)
        return zr_fail(ZR_ERR_INVALID, "a capacity of %s is too small: the minimum is a granule, %s", wanted,
                       zr_ledger_bytes(limit, ledger->least_bytes));
    if (ledger->most_bytes > 0 && bytes > ledger->most_bytes)
        return zr_fail(ZR_ERR_INVALID, "a capacity of %s exceeds the memory of the %s, %s", wanted,
                       ledger->device_option[0] ? "device" : "machine",
                       zr_ledger_bytes(limit, ledger->most_bytes));
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

/* Asks for bytes held beyond a new quota; only a client that does not answer is disconnected. */
static void reclaim_excess(struct zr_ledger *ledger, uint64_t now_ns)
{
    ledger->round++;
    for (struct zr_client *client = ledger->clients; client; client = client->next) {
        uint64_t hard = client->hard_bytes, group_hard = client->group->hard_bytes, excess_bytes = 0;
        if (hard && client->held_bytes > hard)
            excess_bytes = client->held_bytes - hard;
        if (group_hard && client->group->held_bytes > group_hard &&
            client->group->held_bytes - group_hard > excess_bytes)
            excess_bytes = client->group->held_bytes - group_hard;
        if (ledger->held_bytes > ledger->capacity_bytes &&
            ledger->held_bytes - ledger->capacity_bytes > excess_bytes)
            excess_bytes = ledger->held_bytes - ledger->capacity_bytes;
        if (excess_bytes > 0 && may_ask(ledger, client))
            ask(ledger, client, excess_bytes, now_ns);
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
        *quotas.shares = message->shares;
    uint64_t limit_bytes = quotas.hard_bytes ? *quotas.hard_bytes : ledger->capacity_bytes;
    uint64_t now = quotas.hard_bytes ? quotas.held_bytes : ledger->held_bytes;
    if (limit_bytes && now > limit_bytes)
        snprintf(
            words, room_bytes,
            "%s holds %s, more than the %s: it keeps the memory in use, returns idle memory, and gets no lease until it is below",
            quotas.hard_bytes ? quotas.owner : "all together", zr_ledger_bytes(held, now),
            zr_ledger_bytes(quota, limit_bytes));
    reclaim_excess(ledger, now_ns);
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
    for (struct zr_client *client = ledger->clients; client; client = client->next)
        if (may_ask(ledger, client))
            ask(ledger, client, client->held_bytes, now_ns);
}
