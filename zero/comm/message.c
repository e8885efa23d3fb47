/* message.c: a communicator over a transport of messages between two ranks (transport.h): its waits, its birth
 * and its end. The operations are in message_run.c.
 *
 * Nothing here blocks inside the transport: a wait tests what is under way, lets others run, and looks from
 * time to time whether the peers that it waits for still live and how long they have been silent. */
#include "zero/comm/message.h"

#include <sched.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/struct_bytes.h"
#include "zero/launch/timeout.h"
#include "zero/comm/take.h"

#define SPIN_NS                                                                                              \
    2000000ull               /* looks as often as it can: a message of a bucket's size is on its way as long \
                              */
#define NAP_NS  50000ull     /* then between looks; the compute threads want the core */
#define LOOK_NS 100000000ull /* between looks whether the peers live */

enum { LAST_LOOKS = 64 }; /* for what one that has ended said before: it takes a few to come through */

/* ---- Waiting ------------------------------------------------------------------------------------------- */

zr_result zr_fabric_send(struct fabric *fabric, struct zr_batch *batch,
                         const struct zr_transport_message *message)
{
    struct zr_flight *flight = &batch->flights[batch->count];
    *flight = (struct zr_flight){.bytes = message->bytes, .peer = message->peer};
    if (fabric->transport->send(fabric->transport, message, &flight->request) != 0)
        return zr_fail(ZR_ERR_PEER, "sending to rank %u failed: %s", message->peer, fabric->transport->why);
    batch->count++;
    return ZR_OK;
}

zr_result zr_fabric_receive(struct fabric *fabric, struct zr_batch *batch,
                            const struct zr_transport_message *message)
{
    struct zr_flight *flight = &batch->flights[batch->count];
    *flight = (struct zr_flight){.bytes = message->bytes, .peer = message->peer, .receives = true};
    if (fabric->transport->receive(fabric->transport, message, &flight->request) != 0)
        return zr_fail(ZR_ERR_PEER, "receiving from rank %u failed: %s", message->peer,
                       fabric->transport->why);
    batch->count++;
    return ZR_OK;
}

/* Tests one message; *moved if it has arrived. */
static zr_result look_at(struct fabric *fabric, struct zr_flight *flight, bool *moved)
{
    size_t bytes = 0;
    if (flight->done)
        return ZR_OK;
    int failed = fabric->transport->test(fabric->transport, &flight->request, &flight->done, &bytes);
    *moved |= flight->done;
    if (failed)
        return zr_fail(ZR_ERR_PEER, "%s rank %u failed: %s",
                       flight->receives ? "receiving from" : "sending to", flight->peer,
                       fabric->transport->why);
    if (flight->done && flight->receives && bytes != flight->bytes)
        return zr_fail(ZR_ERR_PEER,
                       "the ranks are out of step: rank %u sent %zu bytes where rank %u expects %zu",
                       flight->peer, bytes, fabric->base.rank, flight->bytes);
    if (flight->done && flight->receives)
        fabric->base.received_bytes += bytes;
    return ZR_OK;
}

static struct zr_rank_set awaited(const struct zr_batch *batch)
{
    struct zr_rank_set set = {0};
    for (unsigned i = 0; i < batch->count; i++)
        if (!batch->flights[i].done)
            zr_rank_set_add(&set, batch->flights[i].peer);
    return set;
}

/* What another rank has found out already. */
static zr_result as_told(const struct fabric *fabric)
{
    return fabric->roll.lost == ZR_OK ? ZR_OK : zr_fail(fabric->roll.lost, "%s", fabric->roll.text);
}

/* Whether those that are waited for still live. One that has ended because of another says so before. */
static zr_result look_for_dead(struct fabric *fabric, const struct zr_rank_set *waits_for)
{
    for (unsigned p = 0; p < fabric->base.world && fabric->acquainted; p++) {
        if (!zr_rank_set_has(waits_for, p) || zr_process_lives(&fabric->people[p]))
            continue;
        for (unsigned i = 0; i < LAST_LOOKS && fabric->roll.lost == ZR_OK; i++)
            zr_roll_listen(&fabric->roll, waits_for);
        if (fabric->roll.lost != ZR_OK)
            return as_told(fabric);
        return zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has ended while others still wait for it", p,
                       (int)fabric->people[p].pid);
    }
    return ZR_OK;
}

/* Asks everybody when a quarter of the patience is left, once more later, and blames at its end. */
static zr_result look_for_silent(struct fabric *fabric, const struct zr_rank_set *waits_for,
                                 uint64_t waited_ns, unsigned *asked_count)
{
    uint64_t limit_ns = fabric->base.options.timeout_ns;
    unsigned long long seconds = waited_ns / 1000000000u;
    unsigned lost;
    if (waited_ns > limit_ns / 8 * (6 + *asked_count) && *asked_count < 2) {
        (*asked_count)++;
        zr_roll_ask(&fabric->roll);
    }
    if (waited_ns <= limit_ns)
        return ZR_OK;
    if (zr_roll_find(&fabric->roll, waits_for, &lost))
        return zr_fail(ZR_ERR_TIMEOUT, "rank %u has not answered for %llu s", lost, seconds);
    return zr_fail(ZR_ERR_TIMEOUT,
                   "the ranks are out of step: rank %u has sent nothing for %llu s, and waits itself", lost,
                   seconds);
}

/* Whether the wait for a batch can still end well. The first rank to see that it cannot tells the others. */
static zr_result look_around(struct fabric *fabric, const struct zr_batch *batch, uint64_t waited_ns,
                             unsigned *asked_count)
{
    struct zr_rank_set waits_for = awaited(batch);
    zr_roll_listen(&fabric->roll, &waits_for);
    zr_result result = as_told(fabric);
    if (result == ZR_OK)
        result = look_for_dead(fabric, &waits_for);
    if (result == ZR_OK)
        result = look_for_silent(fabric, &waits_for, waited_ns, asked_count);
    if (result != ZR_OK && fabric->roll.lost == ZR_OK)
        zr_roll_tell(&fabric->roll, result, zr_last_error());
    return result;
}

static void give_up(struct fabric *fabric, struct zr_batch *batch)
{
    for (unsigned i = 0; i < batch->count; i++)
        if (!batch->flights[i].done)
            fabric->transport->cancel(fabric->transport, &batch->flights[i].request);
    batch->count = 0;
}

zr_result zr_fabric_wait(struct fabric *fabric, struct zr_batch *batch)
{
    _Atomic uint32_t nobody = 0;
    uint64_t moved_ns = zr_os_now_ns(), looked_ns = moved_ns;
    struct zr_patience patience = zr_patience_begin();
    zr_result result = ZR_OK;
    unsigned left = batch->count, asked_count = 0;
    zr_roll_forget(&fabric->roll);
    while (left > 0 && result == ZR_OK) {
        bool moved = false;
        left = 0;
        for (unsigned i = 0; i < batch->count && result == ZR_OK; i++) {
            result = look_at(fabric, &batch->flights[i], &moved);
            left += !batch->flights[i].done;
        }
        if (left == 0 || result != ZR_OK)
            break;
        uint64_t now_ns = zr_os_now_ns();
        if (moved) {
            moved_ns = now_ns;
            patience = zr_patience_begin();
            asked_count = 0;
            zr_roll_forget(&fabric->roll);
        }
        if (now_ns - looked_ns > LOOK_NS) {
            looked_ns = now_ns;
            result = look_around(fabric, batch, zr_patience_look(&patience), &asked_count);
        }
        if (now_ns - moved_ns < SPIN_NS)
            sched_yield();
        else
            zr_word_wait(&nobody, 0, NAP_NS);
    }
    if (result == ZR_OK)
        batch->count = 0;
    return result;
}

/* ---- Birth and end ------------------------------------------------------------------------------------- */

/* What is under way after a failure would be written into memory that is given back. */
static void fabric_close(struct zr_comm *comm)
{
    struct fabric *self = (struct fabric *)comm;
    for (unsigned i = 0; i < 2; i++)
        give_up(self, &self->batch[i]);
    zr_roll_close(&self->roll);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
}

#define RECORD_BYTES ((sizeof(struct fabric) + 63) / 64 * 64)

/* Fills in the records behind *fabric, which are one block. */
static void lay_out(struct fabric *fabric, unsigned world)
{
    char *at = (char *)fabric + RECORD_BYTES;
    for (unsigned i = 0; i < 2; i++, at += 2 * world * sizeof(struct zr_flight))
        fabric->batch[i].flights = (struct zr_flight *)at;
    fabric->people = (struct zr_process *)at;
    at += world * sizeof(struct zr_process);
    fabric->from = (const void **)at;
    at += world * sizeof(void *);
    fabric->roll.awaited = (struct zr_rank_set *)at;
    at += world * sizeof(struct zr_rank_set);
    fabric->roll.outbox = (struct zr_roll_letter *)(((uintptr_t)at + 63) / 64 * 64);
}

static zr_result prepare(struct fabric **out, const struct zr_comm_options *options,
                         struct zr_transport *transport, const struct zr_comm_table *table)
{
    void *block;
    unsigned world = transport->world;
    size_t each = 4 * sizeof(struct zr_flight) + sizeof(struct zr_process) + sizeof(void *) +
                  sizeof(struct zr_rank_set) + sizeof(struct zr_roll_letter);
    size_t bytes = RECORD_BYTES + world * each + 64;
    zr_result result = zr_comm_options_check(options, transport->rank, world);
    if (result == ZR_OK)
        result = zr_arena_alloc(options->host_arena,
                                &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    struct fabric *fabric = memset(block, 0, bytes);
    zr_comm_open(&fabric->base, table, options);
    fabric->base.rank = transport->rank;
    fabric->base.world = world;
    fabric->transport = transport;
    lay_out(fabric, world);
    fabric->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    fabric->each_bytes = fabric->slot_bytes / (world - 1) / 64 * 64;
    fabric->most_bytes = transport->most_bytes / 64 * 64;
    if (fabric->each_bytes > fabric->most_bytes)
        fabric->each_bytes = fabric->most_bytes;
    zr_roll_open(&fabric->roll, transport);
    result = zr_take(options->arena, ZR_TAG_COMM, zr_comm_ring_bytes(world, options->bucket_bytes), 1,
                     (void **)&fabric->ring);
    if (result == ZR_OK)
        result = zr_comm_thread_start(&fabric->base);
    if (result == ZR_OK)
        *out = fabric;
    else
        zr_comm_destroy(&fabric->base);
    return result;
}

/* What the ranks tell each other first: whether they have a communicator, and who they are. */
struct greeting {
    struct zr_process process;
    uint64_t slot_bytes; /* 0: failed */
};

static zr_result greet(struct fabric *fabric, struct greeting *mine, struct greeting *theirs)
{
    unsigned world = fabric->base.world;
    zr_process_self(&mine->process);
    mine->slot_bytes = fabric->slot_bytes;
    zr_result result = zr_comm_exchange(&fabric->base, mine, sizeof(*mine), theirs);
    for (unsigned p = 0; p < world && result == ZR_OK; p++) {
        fabric->people[p] = theirs[p].process;
        if (theirs[p].slot_bytes == 0)
            result = zr_fail(ZR_ERR_PEER, "rank %u has no room for its buckets", p);
        else if (theirs[p].slot_bytes != theirs[0].slot_bytes)
            result = zr_fail(ZR_ERR_INVALID,
                             "rank %u has buckets of %llu bytes, and rank 0 of %llu; give all ranks the same "
                             "--bucket-bytes and the same model",
                             p, (unsigned long long)theirs[p].slot_bytes,
                             (unsigned long long)theirs[0].slot_bytes);
    }
    fabric->acquainted = result == ZR_OK;
    memset(&fabric->base.counters, 0, sizeof(fabric->base.counters)); /* nobody has asked for anything yet */
    return result;
}

zr_result zr_fabric_create(zr_comm **out, const struct zr_comm_options *options,
                           struct zr_transport *transport)
{
    static const struct zr_comm_table table = {
        .name = "mpi", .sent_bytes = zr_fabric_sent_bytes, .run = zr_fabric_run, .close = fabric_close};
    struct zr_comm_options own;
    struct fabric *fabric = NULL;
    struct greeting mine, theirs[ZR_MAX_WORLD];
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own, options);
    if (result == ZR_OK)
        result = prepare(&fabric, &own, transport, &table);
    if (result == ZR_OK)
        result = greet(fabric, &mine, theirs);
    if (result == ZR_OK) {
        *out = &fabric->base;
        return ZR_OK;
    }
    if (fabric)
        zr_comm_destroy(&fabric->base);
    return result;
}
