/* liveness.c: see liveness.h. Used by message.c. Messages have a separate tag. */
#include "zero/comm/liveness.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/comm/calls.h"

enum { ASK = 0x7a720001, HERE, LOST, ASK_CALLS, CALLS };
enum { MESSAGES_A_POLL = 4 * ZR_MAX_WORLD };
#define REPORT_NS 250000000ull /* time for a report to be sent: peers poll every 100 ms */
#define NAP_NS    1000000ull

/* ---- Messages ------------------------------------------------------------------------------------------ */

/* Whether a message has arrived or was sent. A failed message never arrives. */
static bool arrived(struct zr_liveness *liveness, struct zr_liveness_operation *operation)
{
    bool done = false;
    size_t bytes = 0;
    if (!operation->under_way)
        return false;
    int failed = liveness->transport->test(liveness->transport, &operation->request, &done, &bytes);
    if (failed || done)
        operation->under_way = false;
    return done && !failed;
}

static void listen(struct zr_liveness *liveness)
{
    struct zr_liveness_operation *inbox = &liveness->inbox;
    inbox->under_way =
        liveness->transport->receive(
            liveness->transport,
            &(struct zr_transport_message){
                .data = &inbox->message, .bytes = sizeof(inbox->message), .tag = liveness->tag, .any = true},
            &inbox->request) == 0;
}

/* Sends a message. Does nothing if an earlier message to the peer is pending, because then the peer does not
 * receive. */
static void post(struct zr_liveness *liveness, unsigned peer, const struct zr_liveness_message *message)
{
    struct zr_liveness_operation *operation = &liveness->outbox[peer];
    arrived(liveness, operation);
    if (operation->under_way)
        return;
    size_t bytes = message->kind == CALLS ? sizeof(*message) : offsetof(struct zr_liveness_message, record);
    memcpy(&operation->message, message, offsetof(struct zr_liveness_message, record));
    if (message->kind == CALLS)
        zr_calls_copy(&operation->message.record, &liveness->local->ranks[liveness->transport->rank].record);
    operation->message.from = liveness->transport->rank;
    operation->under_way =
        liveness->transport->send(
            liveness->transport,
            &(struct zr_transport_message){
                .peer = peer, .data = &operation->message, .bytes = bytes, .tag = liveness->tag},
            &operation->request) == 0;
    arrived(liveness, operation);
}

static void post_all(struct zr_liveness *liveness, const struct zr_liveness_message *message)
{
    for (unsigned p = 0; p < liveness->transport->world; p++)
        if (p != liveness->transport->rank)
            post(liveness, p, message);
}

/* Sends the last message of a rank that is about to exit: waits up to REPORT_NS until the message is sent,
 * after earlier messages that a slow peer has not received. */
static void post_last(struct zr_liveness *liveness, const struct zr_liveness_message *message)
{
    _Atomic uint32_t unused = 0;
    uint64_t until_ns = zr_os_now_ns() + REPORT_NS;
    bool posted[ZR_MAX_WORLD] = {false}, under_way = true;
    while (under_way && zr_os_now_ns() < until_ns) {
        under_way = false;
        for (unsigned p = 0; p < liveness->transport->world; p++) {
            if (p == liveness->transport->rank)
                continue;
            arrived(liveness, &liveness->outbox[p]);
            if (!posted[p] && !liveness->outbox[p].under_way) {
                post(liveness, p, message);
                posted[p] = true;
            }
            under_way |= liveness->outbox[p].under_way;
        }
        if (under_way)
            zr_word_wait(&unused, 0, NAP_NS);
    }
}

static void give_up(struct zr_liveness *liveness, struct zr_liveness_operation *operation)
{
    if (operation->under_way)
        liveness->transport->cancel(liveness->transport, &operation->request);
    operation->under_way = false;
}

/* ---- The check ----------------------------------------------------------------------------------------- */

void zr_liveness_open(struct zr_liveness *liveness, struct zr_transport *transport, uint32_t tag)
{
    memset(liveness, 0, offsetof(struct zr_liveness, outbox));
    for (unsigned p = 0; p < transport->world; p++)
        liveness->outbox[p].under_way = false;
    liveness->transport = transport;
    liveness->tag = tag;
    listen(liveness);
}

void zr_liveness_close(struct zr_liveness *liveness)
{
    give_up(liveness, &liveness->inbox);
    for (unsigned p = 0; p < liveness->transport->world; p++)
        give_up(liveness, &liveness->outbox[p]);
}

static void take_in(struct zr_liveness *liveness, const struct zr_liveness_message *message,
                    const struct zr_rank_set *waits_for)
{
    unsigned from = message->from;
    if (from >= liveness->transport->world || from == liveness->transport->rank)
        return;
    if (message->kind == ASK)
        post(liveness, from, &(struct zr_liveness_message){.kind = HERE, .awaited = *waits_for});
    if (message->kind == HERE) {
        liveness->answered_ns[from] = zr_os_now_ns();
        liveness->awaited[from] = message->awaited;
    }
    if (message->kind == ASK_CALLS && liveness->local)
        post(liveness, from, &(struct zr_liveness_message){.kind = CALLS, .round = message->round});
    if (message->kind == CALLS && liveness->local && message->round == liveness->round) {
        zr_calls_copy(&liveness->local->ranks[from].answers[message->round % 2], &message->record);
        liveness->answered[from][message->round % 2] = message->round;
    }
    if (message->kind == LOST && liveness->lost == ZR_OK) {
        liveness->lost = (zr_result)message->result;
        snprintf(liveness->text, sizeof(liveness->text), "%.*s", (int)sizeof(message->text) - 1,
                 message->text);
    }
}

void zr_liveness_listen(struct zr_liveness *liveness, const struct zr_rank_set *waits_for)
{
    for (unsigned i = 0; i < MESSAGES_A_POLL && arrived(liveness, &liveness->inbox); i++) {
        struct zr_liveness_message message = liveness->inbox.message;
        listen(liveness);
        take_in(liveness, &message, waits_for);
    }
}

void zr_liveness_ask(struct zr_liveness *liveness)
{
    post_all(liveness, &(struct zr_liveness_message){.kind = ASK});
}

bool zr_liveness_find(const struct zr_liveness *liveness, const struct zr_rank_set *waits_for,
                      uint64_t asked_ns, unsigned *out)
{
    unsigned world = liveness->transport->world;
    struct zr_rank_set reached = *waits_for;
    bool grown = true;
    *out = 0;
    while (*out + 1 < world && !zr_rank_set_has(waits_for, *out))
        (*out)++;
    while (grown) {
        grown = false;
        for (unsigned p = 0; p < world; p++) {
            if (!zr_rank_set_has(&reached, p) || p == liveness->transport->rank)
                continue;
            if (liveness->answered_ns[p] < asked_ns) {
                *out = p;
                return true;
            }
            for (unsigned w = 0; w < ZR_LIVENESS_WORDS; w++) {
                uint64_t more = liveness->awaited[p].words[w] & ~reached.words[w];
                grown |= more != 0;
                reached.words[w] |= more;
            }
        }
    }
    return false;
}

/* Stands in for the check for exited ranks, because exited MPI ranks are found by their processes. */
static bool none_has_ended(const void *state, unsigned rank)
{
    (void)state;
    (void)rank;
    return false;
}

/* Makes a view of the answers to one request. */
static void view_round(const struct zr_liveness *liveness, uint32_t round, struct zr_calls_view *out)
{
    for (unsigned p = 0; p < liveness->transport->world; p++)
        out->records[p] =
            liveness->answered[p][round % 2] == round ? &liveness->local->ranks[p].answers[round % 2] : NULL;
}

/* Ignores answers that arrive after the next request: all answers to one request must be read before the
 * first answer to the next is given. */
zr_result zr_liveness_look(struct zr_liveness *liveness)
{
    unsigned rank = liveness->transport->rank, world = liveness->transport->world;
    struct zr_calls_view first, second;
    uint64_t now_ns = zr_os_now_ns();
    zr_result result = ZR_OK;
    if (!liveness->local || now_ns - liveness->asked_ns < ZR_CALLS_PATIENCE_NS)
        return ZR_OK;
    struct zr_local_rank *own = &liveness->local->ranks[rank];
    if (liveness->round > 1) {
        view_round(liveness, liveness->round - 1, &first);
        view_round(liveness, liveness->round, &second);
        second.records[rank] = &own->record;
        result = zr_calls_check(&(struct zr_calls_look){
            .first = &first, .second = &second, .world = world, .rank = rank, .ended = none_has_ended});
    }
    liveness->asked_ns = now_ns;
    liveness->round++;
    zr_calls_copy(&own->answers[liveness->round % 2], &own->record);
    liveness->answered[rank][liveness->round % 2] = liveness->round;
    post_all(liveness, &(struct zr_liveness_message){.kind = ASK_CALLS, .round = liveness->round});
    return result;
}

void zr_liveness_report(struct zr_liveness *liveness, zr_result result, const char *text)
{
    struct zr_liveness_message message = {.kind = LOST, .result = (uint32_t)result};
    snprintf(message.text, sizeof(message.text), "%s", text);
    post_last(liveness, &message);
}
