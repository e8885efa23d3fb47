/* calls.c: see calls.h. Uses the control block. */
#include "zero/comm/calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

/* ---- Recording ----------------------------------------------------------------------------------------- */

static __thread char own_thread
    __attribute__((tls_model("initial-exec"))); /* its address identifies the thread */

static struct zr_local_record *record_of(const struct zr_comm *comm)
{
    return &comm->local->ranks[comm->run_rank].record;
}

void zr_calls_open(struct zr_comm *comm, uint64_t key, const unsigned *ranks)
{
    unsigned i = 0;
    if (!comm->local)
        return;
    struct zr_local_record *record = record_of(comm);
    while (i < ZR_LOCAL_RINGS && atomic_load(&record->calls[i].key) != 0)
        i++;
    if (i == ZR_LOCAL_RINGS)
        return;
    struct zr_local_calls *calls = &record->calls[i];
    atomic_store(&calls->submitted, 0);
    for (unsigned c = 0; c < ZR_LOCAL_CHANNELS; c++) {
        atomic_store(&calls->channels[c].begun, 0);
        atomic_store(&calls->channels[c].ended, 0);
    }
    memset(calls->members, 0, sizeof calls->members);
    for (unsigned p = 0; p < comm->world; p++)
        calls->members[ranks[p] / 64] |= UINT64_C(1) << ranks[p] % 64;
    calls->group[0] = '\0';
    comm->calls = calls;
    atomic_store(&calls->key, key);
}

void zr_calls_close(struct zr_comm *comm)
{
    if (comm->calls)
        atomic_store(&comm->calls->key, 0);
    comm->calls = NULL;
}

void zr_calls_name(struct zr_comm *comm, const char *group)
{
    if (comm && comm->calls)
        snprintf(comm->calls->group, sizeof comm->calls->group, "%s", group);
}

static bool is_transfer(uint32_t kind)
{
    return kind == ZR_COMM_SEND || kind == ZR_COMM_RECEIVE || kind == ZR_COMM_SEND_RECEIVE;
}

/* Whether an operation is recorded. Transfers within a larger group are not, because the other ranks do not
 * know their numbers. */
static bool is_followed(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    return comm->calls && (comm->world == 2 || !is_transfer(item->kind));
}

static bool meets(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    if (comm->table->meets)
        return true;
    if (is_transfer(item->kind))
        return item->transfer.receive_bytes > 0;
    return item->kind != ZR_COMM_BROADCAST && item->kind != ZR_COMM_REDUCE;
}

/* Records the submitting thread. A waiting thread blocks the rank only if no other thread submits. */
static void note_thread(struct zr_local_record *record)
{
    uint64_t own = (uintptr_t)&own_thread,
             known = atomic_load_explicit(&record->thread, memory_order_relaxed);
    if (known == 0)
        atomic_store_explicit(&record->thread, own, memory_order_relaxed);
    else if (known != own)
        atomic_store_explicit(&record->several, 1, memory_order_release);
}

void zr_calls_submit(struct zr_comm *comm, const struct zr_comm_item *item)
{
    if (!is_followed(comm, item))
        return;
    note_thread(record_of(comm));
    uint64_t submitted = atomic_load_explicit(&comm->calls->submitted, memory_order_relaxed);
    atomic_store_explicit(&comm->calls->submitted, submitted + 1, memory_order_release);
}

void zr_calls_begin(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket)
{
    if (!is_followed(comm, item))
        return;
    bool host = item->kind == ZR_COMM_HOST;
    struct zr_local_call *call = &comm->calls->channels[host ? ZR_LOCAL_HOST : ZR_LOCAL_DATA];
    uint64_t number = atomic_load_explicit(&call->begun, memory_order_relaxed) + 1;
    uint32_t kind = (uint32_t)item->kind | (meets(comm, item) ? (uint32_t)ZR_LOCAL_MEETS : 0);
    size_t bytes = !is_transfer(item->kind)        ? item->bytes
                   : item->kind == ZR_COMM_RECEIVE ? item->transfer.receive_bytes
                                                   : item->transfer.send_bytes;
    atomic_store_explicit(&call->bytes[number & 1], bytes, memory_order_relaxed);
    atomic_store_explicit(&call->kind[number & 1], kind, memory_order_relaxed);
    atomic_store_explicit(&call->ticket, ticket, memory_order_relaxed);
    atomic_store_explicit(&call->begun, number, memory_order_release);
}

/* A later operation's beginning shows the end of the earlier ones, so a queue calls this once it is empty. */
void zr_calls_end(struct zr_comm *comm, bool host)
{
    if (!comm->calls)
        return;
    struct zr_local_call *call = &comm->calls->channels[host ? ZR_LOCAL_HOST : ZR_LOCAL_DATA];
    atomic_store_explicit(&call->ended, atomic_load_explicit(&call->begun, memory_order_relaxed),
                          memory_order_release);
}

/* Counts waits, so that two waits for the same operation differ. */
static void note_wait(struct zr_local_record *record, uint64_t what)
{
    uint64_t times = atomic_load_explicit(&record->waits, memory_order_relaxed) >> 8;
    atomic_store_explicit(&record->waits, (times + 1) << 8 | what, memory_order_release);
}

void zr_calls_wait(struct zr_comm *comm, zr_ticket ticket)
{
    if (!comm->calls)
        return;
    struct zr_local_record *record = record_of(comm);
    unsigned channel = ticket > 0 ? ZR_LOCAL_DATA : ZR_LOCAL_HOST;
    note_thread(record);
    atomic_store_explicit(&record->ticket, ticket, memory_order_relaxed);
    note_wait(record, 1 + 2 * (uint64_t)(comm->calls - record->calls) + channel);
}

void zr_calls_go_on(struct zr_comm *comm)
{
    if (comm->calls)
        note_wait(record_of(comm), 0);
}

/* Copies word by word, because the rank may write the record concurrently. */
void zr_calls_copy(struct zr_local_record *to, const struct zr_local_record *from)
{
    for (unsigned i = 0; i < ZR_LOCAL_RINGS; i++) {
        const struct zr_local_calls *have = &from->calls[i];
        struct zr_local_calls *out = &to->calls[i];
        uint64_t key = atomic_load(&have->key);
        atomic_store(&out->key, key);
        if (key == 0)
            continue;
        atomic_store(&out->submitted, atomic_load(&have->submitted));
        for (unsigned c = 0; c < ZR_LOCAL_CHANNELS; c++) {
            const struct zr_local_call *call = &have->channels[c];
            atomic_store(&out->channels[c].begun, atomic_load(&call->begun));
            atomic_store(&out->channels[c].ended, atomic_load(&call->ended));
            atomic_store(&out->channels[c].ticket, atomic_load(&call->ticket));
            for (unsigned place = 0; place < 2; place++) {
                atomic_store(&out->channels[c].bytes[place], atomic_load(&call->bytes[place]));
                atomic_store(&out->channels[c].kind[place], atomic_load(&call->kind[place]));
            }
        }
        memcpy(out->members, have->members, sizeof out->members);
        memcpy(out->group, have->group, sizeof out->group);
    }
    atomic_store(&to->waits, atomic_load(&from->waits));
    atomic_store(&to->ticket, atomic_load(&from->ticket));
    atomic_store(&to->several, atomic_load(&from->several));
}

/* ---- Checking ------------------------------------------------------------------------------------------ */

/* A node of the wait graph: a rank's operation on one of its communicators, or its caller. */
struct node {
    uint16_t rank, place; /* index in calls, or CALLER */
};
enum { CALLER = ZR_LOCAL_RINGS, PLACES = ZR_LOCAL_RINGS + 1, NODES = ZR_MAX_WORLD * PLACES };
enum { NOWHERE = UINT16_MAX, CYCLE_MAX = 64, FACTS_MAX = 12 * CYCLE_MAX };

/* The words that prove a cycle. */
struct facts {
    uint64_t words[FACTS_MAX];
    unsigned count;
};

static uint64_t fact(struct facts *facts, const _Atomic uint64_t *word)
{
    uint64_t value = atomic_load_explicit(word, memory_order_acquire);
    if (facts && facts->count < FACTS_MAX)
        facts->words[facts->count++] = value;
    return value;
}

/* The current operation of a node, and its channel; NULL: none, as for a caller that waits for a ticket. */
static const struct zr_local_call *operation_of(const struct zr_calls_view *view, struct node node,
                                                const struct zr_local_calls **calls)
{
    const struct zr_local_record *record = view->records[node.rank];
    if (node.place != CALLER) {
        *calls = &record->calls[node.place];
        return &(*calls)->channels[ZR_LOCAL_DATA];
    }
    uint64_t waits = atomic_load_explicit(&record->waits, memory_order_acquire) & 255;
    if (waits == 0 || (waits - 1) % 2 != ZR_LOCAL_HOST)
        return NULL;
    *calls = &record->calls[(waits - 1) / 2];
    return &(*calls)->channels[ZR_LOCAL_HOST];
}

static bool has_member(const struct zr_local_calls *calls, unsigned rank)
{
    return calls->members[rank / 64] >> rank % 64 & 1;
}

/* Another rank's record of the same communicator; NULL: none, or unknown. */
static const struct zr_local_calls *of_rank(const struct zr_calls_view *view, unsigned rank, uint64_t key)
{
    const struct zr_local_record *record = view->records[rank];
    for (unsigned i = 0; record && key != 0 && i < ZR_LOCAL_RINGS; i++)
        if (atomic_load_explicit(&record->calls[i].key, memory_order_acquire) == key)
            return &record->calls[i];
    return NULL;
}

/* Whether a caller waits for a ticket at or after the current operation. */
static bool waits_for_own(const struct zr_local_record *record, struct node to, struct facts *facts)
{
    const struct zr_local_call *call = &record->calls[to.place].channels[ZR_LOCAL_DATA];
    uint64_t begun = fact(facts, &call->begun), ended = fact(facts, &call->ended);
    return begun > ended && fact(facts, &call->ticket) <= fact(facts, &record->ticket);
}

/* Whether `from` cannot continue before `to`; adds the words of the records that prove this. */
static bool is_blocked_by(const struct zr_calls_view *view, struct node from, struct node to,
                          struct facts *facts)
{
    const struct zr_local_record *record = view->records[from.rank];
    const struct zr_local_calls *calls;
    if (from.place == CALLER) {
        uint64_t waits = fact(facts, &record->waits) & 255;
        if (waits == 0 || fact(facts, &record->several) != 0)
            return false;
        if ((waits - 1) % 2 == ZR_LOCAL_DATA)
            return to.rank == from.rank && to.place == (waits - 1) / 2 && waits_for_own(record, to, facts);
    }
    const struct zr_local_call *call = operation_of(view, from, &calls);
    if (!call || to.rank == from.rank)
        return false;
    uint64_t key = fact(facts, &calls->key), begun = fact(facts, &call->begun);
    bool host = call == &calls->channels[ZR_LOCAL_HOST];
    if (begun <= fact(facts, &call->ended) || !(atomic_load(&call->kind[begun & 1]) & ZR_LOCAL_MEETS) ||
        !has_member(calls, to.rank))
        return false;
    const struct zr_local_calls *theirs = of_rank(view, to.rank, key);
    if (!theirs)
        return false;
    const struct zr_local_call *their_call = &theirs->channels[host ? ZR_LOCAL_HOST : ZR_LOCAL_DATA];
    uint64_t their_begun = fact(facts, &their_call->begun);
    if (their_begun >= begun)
        return false;
    if (to.place != CALLER)
        return !host && theirs == &view->records[to.rank]->calls[to.place] &&
               their_begun > fact(facts, &their_call->ended);
    return host || fact(facts, &theirs->submitted) < begun;
}

/* Compares both readings of a cycle: path[i] waits for path[i + 1], the last one for path[0]. */
static bool is_certain(const struct zr_calls_look *look, const struct node *path, unsigned count)
{
    struct facts first = {.count = 0}, second = {.count = 0};
    for (unsigned i = 0; i < count; i++)
        if (!is_blocked_by(look->first, path[i], path[(i + 1) % count], &first))
            return false;
    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned i = 0; i < count; i++)
        if (!is_blocked_by(look->second, path[i], path[(i + 1) % count], &second))
            return false;
    return first.count == second.count &&
           memcmp(first.words, second.words, first.count * sizeof *first.words) == 0;
}

/* Finds the shortest path from a node back to the node; returns the path's length, 0: none. */
static unsigned find_cycle(const struct zr_calls_look *look, struct node start, struct node path[CYCLE_MAX])
{
    struct node queue[NODES];
    uint16_t before[NODES]; /* predecessor of each node; NOWHERE: none */
    unsigned begin = 0, end = 0, start_at = start.rank * PLACES + start.place;
    memset(before, 0xff, sizeof before);
    queue[end++] = start;
    while (begin < end) {
        struct node from = queue[begin++];
        unsigned from_at = from.rank * PLACES + from.place;
        const struct zr_local_calls *calls = NULL;
        bool in_operation = operation_of(look->second, from, &calls);
        for (unsigned at = 0; at < look->world * PLACES; at++) {
            struct node to = {(uint16_t)(at / PLACES), (uint16_t)(at % PLACES)};
            bool may = in_operation ? has_member(calls, to.rank) : to.rank == from.rank;
            if (!may || !look->first->records[to.rank] || !look->second->records[to.rank]) {
                at += PLACES - 1;
                continue;
            }
            if (before[at] != NOWHERE || !is_blocked_by(look->second, from, to, NULL))
                continue;
            before[at] = (uint16_t)from_at;
            if (at != start_at) {
                queue[end++] = to;
                continue;
            }
            unsigned count = 1;
            for (unsigned back = from_at; back != start_at && count < CYCLE_MAX; back = before[back])
                count++;
            path[0] = start;
            for (unsigned i = count - 1, back = from_at; i > 0; i--, back = before[back])
                path[i] = (struct node){(uint16_t)(back / PLACES), (uint16_t)(back % PLACES)};
            return count < CYCLE_MAX ? count : 0;
        }
    }
    return 0;
}

/* ---- Messages ------------------------------------------------------------------------------------------ */

/* 4096 as "4,096". */
static void group_digits(uint64_t number, char out[32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, number), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* "all-gather #17 of group data (4,096 bytes)" */
static void describe(const struct zr_local_calls *calls, const struct zr_local_call *call, char out[96])
{
    uint64_t number = atomic_load(&call->begun), bytes = atomic_load(&call->bytes[number & 1]);
    enum zr_comm_kind kind = (enum zr_comm_kind)(atomic_load(&call->kind[number & 1]) & 255);
    char size[32], group[32] = "a group";
    group_digits(bytes, size);
    if (calls->group[0])
        snprintf(group, sizeof group, "group %.*s", (int)sizeof calls->group - 1, calls->group);
    if (kind == ZR_COMM_HOST && bytes == 0)
        snprintf(out, 96, "barrier #%" PRIu64 " of %s", number, group);
    else
        snprintf(out, 96, "%s #%" PRIu64 " of %s (%s bytes)", zr_comm_kind_name(kind), number, group, size);
}

static zr_result out_of_step(unsigned rank, const char *own, const char *other)
{
    return zr_fail(ZR_ERR_PEER, "the ranks are out of step: rank %u waits in %s; %s", rank, own, other);
}

/* Describes the first other rank of a cycle that is in an operation. */
static zr_result report_cycle(const struct zr_calls_look *look, const struct node *path, unsigned count)
{
    char own[96], theirs[96], other[128] = "";
    const struct zr_local_calls *calls = NULL;
    const struct zr_local_call *call = operation_of(look->second, path[0], &calls);
    describe(calls, call, own);
    for (unsigned i = 1; i < count && !other[0]; i++) {
        call = path[i].rank == look->rank ? NULL : operation_of(look->second, path[i], &calls);
        if (!call)
            continue;
        describe(calls, call, theirs);
        snprintf(other, sizeof other, "rank %u is in %s", path[i].rank, theirs);
    }
    return out_of_step(look->rank, own, other);
}

/* Whether two ranks are in different operations of the same number. */
static bool differs(const struct zr_local_call *one, const struct zr_local_call *other, uint64_t number)
{
    uint32_t kind = atomic_load(&one->kind[number & 1]) & 255,
             their_kind = atomic_load(&other->kind[number & 1]) & 255;
    uint64_t bytes = atomic_load(&one->bytes[number & 1]),
             their_bytes = atomic_load(&other->bytes[number & 1]);
    atomic_thread_fence(memory_order_acquire); /* an element is reused two numbers later */
    if (atomic_load(&one->begun) != number || atomic_load(&other->begun) != number)
        return false;
    if (is_transfer(kind) && is_transfer(their_kind))
        return false; /* the receiver compares their sizes */
    return kind != their_kind || bytes != their_bytes;
}

/* Looks for a member that is in a different operation of the same number, or has exited before this operation
 * started. */
static zr_result check_members(const struct zr_calls_look *look, struct node own)
{
    const struct zr_local_calls *calls;
    const struct zr_local_call *call = operation_of(look->second, own, &calls);
    uint64_t number = call ? atomic_load_explicit(&call->begun, memory_order_acquire) : 0;
    if (number == 0 || number <= atomic_load(&call->ended))
        return ZR_OK;
    bool host = call == &calls->channels[ZR_LOCAL_HOST],
         follows = atomic_load(&call->kind[number & 1]) & ZR_LOCAL_MEETS;
    for (unsigned p = 0; p < look->world; p++) {
        char words[96], their_text[96], other[128];
        bool ended = look->ended(look->state, p); /* read before the record, which is then final */
        const struct zr_local_calls *theirs = p != look->rank && has_member(calls, p)
                                                  ? of_rank(look->second, p, atomic_load(&calls->key))
                                                  : NULL;
        if (!theirs)
            continue;
        const struct zr_local_call *their_call = &theirs->channels[host ? ZR_LOCAL_HOST : ZR_LOCAL_DATA];
        uint64_t begun = atomic_load_explicit(&their_call->begun, memory_order_acquire);
        describe(calls, call, words);
        if (begun == number && differs(call, their_call, number)) {
            describe(theirs, their_call, their_text);
            snprintf(other, sizeof other, "rank %u is in %s", p, their_text);
            return out_of_step(look->rank, words, other);
        }
        if (begun < number && ended && follows) {
            snprintf(other, sizeof other, "rank %u has exited", p);
            return out_of_step(look->rank, words, other);
        }
    }
    return ZR_OK;
}

zr_result zr_calls_check(const struct zr_calls_look *look)
{
    struct node path[CYCLE_MAX];
    zr_result result = ZR_OK;
    for (uint16_t place = 0; place < PLACES && result == ZR_OK; place++) {
        struct node own = {(uint16_t)look->rank, place};
        const struct zr_local_calls *calls;
        if (!operation_of(look->second, own, &calls) || atomic_load(&calls->key) == 0)
            continue;
        result = check_members(look, own);
        unsigned count = result == ZR_OK ? find_cycle(look, own, path) : 0;
        if (count > 0 && is_certain(look, path, count))
            result = report_cycle(look, path, count);
    }
    return result;
}

static bool has_ended(const void *state, unsigned rank)
{
    const struct zr_local_world *local = state;
    return atomic_load(&local->ranks[rank].ended);
}

zr_result zr_calls_check_local(const struct zr_local_world *local, unsigned rank)
{
    struct zr_calls_view view;
    for (unsigned p = 0; p < local->world; p++)
        view.records[p] = &local->ranks[p].record;
    return zr_calls_check(&(struct zr_calls_look){.first = &view,
                                                  .second = &view,
                                                  .world = local->world,
                                                  .rank = rank,
                                                  .ended = has_ended,
                                                  .state = local});
}
