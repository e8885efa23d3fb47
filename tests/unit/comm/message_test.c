/* message_test.c: what goes over a message transport at rare moments, on a transport of the test's own in
 * which a message ends when the test says so. What ranks do over MPI is in tests/system/mpi.t. */
#include <stddef.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "tests/support/tap.h"
#include "zero/comm/message/message.h"

enum { RANKS = 5, MESSAGES = 64, NEVER = 1000 };
#define MIB ((size_t)1 << 20)

static struct message {
    size_t bytes;
    unsigned looks, asked; /* it ends at that look, once so many liveness messages were sent; NEVER */
    bool ended;
    struct zr_liveness_message said; /* of a liveness message */
} messages[MESSAGES];
static unsigned messages_count, said_count;
static unsigned looks, asked; /* of the next message of data */
static struct zr_message_world world;

static int post(const struct zr_transport_message *message, struct zr_transport_request *request, bool sends)
{
    bool data = message->tag != world.liveness.tag;
    memcpy(request->room, &messages_count, sizeof messages_count);
    struct message *own = &messages[messages_count++];
    *own = (struct message){.bytes = message->bytes, .looks = sends ? 1 : NEVER};
    if (data) {
        own->looks = looks;
        own->asked = asked;
    } else if (sends) {
        said_count++;
        memcpy(&own->said, message->data, offsetof(struct zr_liveness_message, record));
    }
    return messages_count < MESSAGES ? 0 : -1;
}

static int fake_send(struct zr_transport *transport, const struct zr_transport_message *message,
                     struct zr_transport_request *request)
{
    (void)transport;
    return post(message, request, true);
}

static int fake_receive(struct zr_transport *transport, const struct zr_transport_message *message,
                        struct zr_transport_request *request)
{
    (void)transport;
    return post(message, request, false);
}

/* Who has sent a message of data has answered by then. */
static int fake_test(struct zr_transport *transport, struct zr_transport_request *request, bool *done,
                     size_t *bytes)
{
    unsigned number;
    memcpy(&number, request->room, sizeof number);
    struct message *own = &messages[number];
    *done = own->looks < NEVER && said_count >= own->asked && --own->looks == 0;
    *bytes = own->bytes;
    own->ended = *done;
    for (unsigned p = 1; p < transport->world && *done && own->asked > 0; p++)
        world.liveness.answered_ns[p] = zr_os_now_ns();
    return 0;
}

static void fake_cancel(struct zr_transport *transport, struct zr_transport_request *request)
{
    (void)transport, (void)request;
}

static struct zr_transport transport = {.version = ZR_TRANSPORT_VERSION,
                                        .world = RANKS,
                                        .most_bytes = MIB,
                                        .tags_count = 32768,
                                        .send = fake_send,
                                        .receive = fake_receive,
                                        .test = fake_test,
                                        .cancel = fake_cancel};
static struct zr_message_operation operations[2][2 * RANKS];
static unsigned ranks[RANKS] = {0, 1, 2, 3, 4};
static struct message_comm comm;

static void begin(unsigned data_looks, unsigned data_asked)
{
    messages_count = said_count = 0;
    looks = data_looks;
    asked = data_asked;
    zr_message_world_open(&world, &transport);
    comm = (struct message_comm){.base = {.world = RANKS, .options = {.timeout_ns = UINT64_C(8000000000)}},
                                 .run = &world,
                                 .slot_bytes = MIB,
                                 .most_bytes = MIB,
                                 .ranks = ranks};
    for (unsigned i = 0; i < 2; i++) {
        comm.under_way[i].operations = operations[i];
        comm.under_way[i].received_bytes = &comm.base.received_bytes;
    }
}

/* A rank that ends says why, to each peer behind what is under way to it. */
static void test_last_report(void)
{
    begin(1, 0);
    zr_liveness_ask(&world.liveness);
    for (unsigned p = 1; p < RANKS; p++) { /* as if the questions had not gone yet */
        world.liveness.outbox[p].under_way = true;
        messages[p].looks = 2 + p;
    }
    zr_liveness_report(&world.liveness, ZR_ERR_PEER, "rank 7 is lost");
    unsigned reports = 0;
    for (unsigned i = 0; i < messages_count; i++)
        reports += messages[i].said.result == ZR_ERR_PEER &&
                   strcmp(messages[i].said.text, "rank 7 is lost") == 0 && messages[i].ended;
    tap_is(reports, RANKS - 1, "a rank's last words go to all, behind what is under way");
    zr_message_world_close(&world);
}

/* 50 ms pass with each look. */
static uint64_t ticking_clock(void)
{
    static uint64_t now_ns = 1;
    return now_ns += 50000000;
}

/* All are asked twice, and answer; then one message comes, and the sender of the other falls silent. */
static void test_silent_later(void)
{
    static char data[2][16];
    zr_os_clock_set(ticking_clock);
    begin(1, 2 * (RANKS - 1));
    for (unsigned i = 0; i < 2; i++) {
        zr_message_receive(
            &comm, &comm.under_way[0],
            &(struct zr_transport_message){.peer = 1 + i, .data = data[i], .bytes = sizeof data[i]});
        looks = NEVER;
    }
    tap_result(zr_message_wait(&comm, &comm.under_way[0]), ZR_ERR_TIMEOUT,
               "a rank that falls silent is lost");
    tap_ok(strstr(zr_last_error(), "rank 2 has not answered") && said_count == 5 * (RANKS - 1),
           "it was asked anew, and is named: %s", zr_last_error());
    zr_os_clock_set(NULL);
    zr_message_world_close(&world);
}

/* What is sent may change as soon as the operation has ended. */
static void test_broadcast(void)
{
    static char data[3 * MIB];
    const struct zr_comm_item item = {.kind = ZR_COMM_BROADCAST,
                                      .broadcast = {.buffer = data, .bytes = sizeof data}};
    for (size_t pieces = 1; pieces <= 3; pieces++) {
        struct zr_comm_item some = item;
        unsigned left = 0;
        begin(9, 0);
        some.broadcast.bytes = pieces * MIB;
        zr_result result = zr_message_run(&comm.base, &some);
        for (unsigned i = 1; i < messages_count; i++)
            left += !messages[i].ended;
        tap_ok(result == ZR_OK && messages_count == 1 + pieces && left == 0,
               "a broadcast of %zu pieces ends when they have gone", pieces);
        zr_message_world_close(&world);
    }
}

int main(void)
{
    test_last_report();
    test_silent_later();
    test_broadcast();
    return tap_done();
}
