/* liveness.c: see liveness.h. Below message.c; messages of a kind of their own, which meet no data. */
#include "zero/comm/liveness.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/os.h"

enum { ASK = 0x7a720001, HERE, LOST };
enum { LETTERS_A_LOOK = 4 * ZR_MAX_WORLD };
#define TELL_NS 20000000ull /* for what was told to be on its way */
#define NAP_NS  1000000ull

/* ---- Letters ------------------------------------------------------------------------------------------- */

/* True when it has come, or gone. A letter that fails is one that never comes. */
static bool arrived(struct zr_roll *roll, struct zr_roll_letter *letter)
{
    bool done = false;
    size_t bytes = 0;
    if (!letter->under_way)
        return false;
    int failed = roll->transport->test(roll->transport, &letter->request, &done, &bytes);
    if (failed || done)
        letter->under_way = false;
    return done && !failed;
}

static void listen(struct zr_roll *roll)
{
    roll->inbox.under_way =
        roll->transport->receive(roll->transport,
                                 &(struct zr_transport_message){.data = &roll->inbox.note,
                                                                .bytes = sizeof(roll->inbox.note),
                                                                .note = true},
                                 &roll->inbox.request) == 0;
}

/* One that has a letter under way still gets no other: it does not take them. */
static void post(struct zr_roll *roll, unsigned peer, const struct zr_roll_note *note)
{
    struct zr_roll_letter *letter = &roll->outbox[peer];
    arrived(roll, letter);
    if (letter->under_way)
        return;
    letter->note = *note;
    letter->note.from = roll->transport->rank;
    letter->under_way = roll->transport->send(roll->transport,
                                              &(struct zr_transport_message){.peer = peer,
                                                                             .data = &letter->note,
                                                                             .bytes = sizeof(letter->note),
                                                                             .note = true},
                                              &letter->request) == 0;
    arrived(roll, letter);
}

static void post_all(struct zr_roll *roll, const struct zr_roll_note *note)
{
    for (unsigned p = 0; p < roll->transport->world; p++)
        if (p != roll->transport->rank)
            post(roll, p, note);
}

static void give_up(struct zr_roll *roll, struct zr_roll_letter *letter)
{
    if (letter->under_way)
        roll->transport->cancel(roll->transport, &letter->request);
    letter->under_way = false;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

void zr_roll_open(struct zr_roll *roll, struct zr_transport *transport)
{
    roll->transport = transport;
    /* So that no answer to a communicator before this one, over the same transport, counts. */
    roll->number = zr_os_now_ns();
    listen(roll);
}

void zr_roll_close(struct zr_roll *roll)
{
    if (!roll->transport)
        return;
    give_up(roll, &roll->inbox);
    for (unsigned p = 0; p < roll->transport->world; p++)
        give_up(roll, &roll->outbox[p]);
}

static void take_in(struct zr_roll *roll, const struct zr_roll_note *note,
                    const struct zr_rank_set *waits_for)
{
    if (note->from >= roll->transport->world || note->from == roll->transport->rank)
        return;
    if (note->kind == ASK)
        post(roll, note->from,
             &(struct zr_roll_note){.kind = HERE, .number = note->number, .awaited = *waits_for});
    if (note->kind == HERE && roll->asked && note->number == roll->number) {
        zr_rank_set_add(&roll->answered, note->from);
        roll->awaited[note->from] = note->awaited;
    }
    if (note->kind == LOST && roll->lost == ZR_OK) {
        roll->lost = (zr_result)note->result;
        snprintf(roll->text, sizeof(roll->text), "%.*s", (int)sizeof(note->text) - 1, note->text);
    }
}

void zr_roll_listen(struct zr_roll *roll, const struct zr_rank_set *waits_for)
{
    for (unsigned i = 0; i < LETTERS_A_LOOK && arrived(roll, &roll->inbox); i++) {
        struct zr_roll_note note = roll->inbox.note;
        listen(roll);
        take_in(roll, &note, waits_for);
    }
}

void zr_roll_forget(struct zr_roll *roll)
{
    roll->asked = false;
}

void zr_roll_ask(struct zr_roll *roll)
{
    if (!roll->asked) {
        roll->asked = true;
        roll->number++;
        memset(&roll->answered, 0, sizeof(roll->answered));
    }
    post_all(roll, &(struct zr_roll_note){.kind = ASK, .number = roll->number});
}

bool zr_roll_find(const struct zr_roll *roll, const struct zr_rank_set *waits_for, unsigned *out)
{
    unsigned world = roll->transport->world;
    struct zr_rank_set reached = *waits_for;
    bool grown = true;
    *out = 0;
    while (*out + 1 < world && !zr_rank_set_has(waits_for, *out))
        (*out)++;
    while (grown) {
        grown = false;
        for (unsigned p = 0; p < world; p++) {
            if (!zr_rank_set_has(&reached, p) || p == roll->transport->rank)
                continue;
            if (!zr_rank_set_has(&roll->answered, p)) {
                *out = p;
                return true;
            }
            for (unsigned w = 0; w < ZR_ROLL_WORDS; w++) {
                uint64_t more = roll->awaited[p].words[w] & ~reached.words[w];
                grown |= more != 0;
                reached.words[w] |= more;
            }
        }
    }
    return false;
}

void zr_roll_tell(struct zr_roll *roll, zr_result result, const char *text)
{
    struct zr_roll_note note = {.kind = LOST, .result = (uint32_t)result};
    _Atomic uint32_t nobody = 0;
    uint64_t until_ns = zr_os_now_ns() + TELL_NS;
    bool under_way = true;
    snprintf(note.text, sizeof(note.text), "%s", text);
    post_all(roll, &note);
    while (under_way && zr_os_now_ns() < until_ns) {
        under_way = false;
        for (unsigned p = 0; p < roll->transport->world; p++) {
            arrived(roll, &roll->outbox[p]);
            under_way |= roll->outbox[p].under_way;
        }
        if (under_way)
            zr_word_wait(&nobody, 0, NAP_NS);
    }
}
