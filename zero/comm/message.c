/* message.c: a communicator over a transport of messages between two ranks (transport.h): its waits, its
 * birth and its end. The operations are in message_run.c.
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
#define POLL_NS 100000000ull /* between looks whether the peers live */

enum { LAST_LOOKS = 64 }; /* for what one that has ended said before: it takes a few to come through */

/* ---- Waiting ------------------------------------------------------------------------------------------- */

zr_result zr_message_send(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct zr_transport_message *message)
{
    struct zr_message_operation *operation = &under_way->operations[under_way->count];
    *operation = (struct zr_message_operation){.bytes = message->bytes, .peer = message->peer};
    if (self->transport->send(self->transport, message, &operation->request) != 0)
        return zr_fail(ZR_ERR_PEER, "sending to rank %u failed: %s", message->peer, self->transport->why);
    under_way->count++;
    return ZR_OK;
}

zr_result zr_message_receive(struct message_comm *self, struct zr_message_operations *under_way,
                             const struct zr_transport_message *message)
{
    struct zr_message_operation *operation = &under_way->operations[under_way->count];
    *operation =
        (struct zr_message_operation){.bytes = message->bytes, .peer = message->peer, .receives = true};
    if (self->transport->receive(self->transport, message, &operation->request) != 0)
        return zr_fail(ZR_ERR_PEER, "receiving from rank %u failed: %s", message->peer, self->transport->why);
    under_way->count++;
    return ZR_OK;
}

/* Tests one message; *moved if it has arrived. */
static zr_result look_at(struct message_comm *self, struct zr_message_operation *operation, bool *moved)
{
    size_t bytes = 0;
    if (operation->done)
        return ZR_OK;
    int failed = self->transport->test(self->transport, &operation->request, &operation->done, &bytes);
    *moved |= operation->done;
    if (failed)
        return zr_fail(ZR_ERR_PEER, "%s rank %u failed: %s",
                       operation->receives ? "receiving from" : "sending to", operation->peer,
                       self->transport->why);
    if (operation->done && operation->receives && bytes != operation->bytes)
        return zr_fail(ZR_ERR_PEER,
                       "the ranks are out of step: rank %u sent %zu bytes where rank %u expects %zu",
                       operation->peer, bytes, self->base.rank, operation->bytes);
    if (operation->done && operation->receives)
        self->base.received_bytes += bytes;
    return ZR_OK;
}

static struct zr_rank_set awaited(const struct zr_message_operations *under_way)
{
    struct zr_rank_set set = {0};
    for (unsigned i = 0; i < under_way->count; i++)
        if (!under_way->operations[i].done)
            zr_rank_set_add(&set, under_way->operations[i].peer);
    return set;
}

/* What another rank has found out already. */
static zr_result as_told(const struct message_comm *self)
{
    return self->roll.lost == ZR_OK ? ZR_OK : zr_fail(self->roll.lost, "%s", self->roll.text);
}

/* Whether those that are waited for still live. One that has ended because of another says so before. */
static zr_result look_for_dead(struct message_comm *self, const struct zr_rank_set *waits_for)
{
    for (unsigned p = 0; p < self->base.world && self->introduced; p++) {
        if (!zr_rank_set_has(waits_for, p) || zr_process_lives(&self->processes[p]))
            continue;
        for (unsigned i = 0; i < LAST_LOOKS && self->roll.lost == ZR_OK; i++)
            zr_roll_listen(&self->roll, waits_for);
        if (self->roll.lost != ZR_OK)
            return as_told(self);
        return zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has ended while others still wait for it", p,
                       (int)self->processes[p].pid);
    }
    return ZR_OK;
}

/* Asks everybody when a quarter of the timeout is left, once more later, and blames at its end. */
static zr_result look_for_silent(struct message_comm *self, const struct zr_rank_set *waits_for,
                                 uint64_t waited_ns, unsigned *asked_count)
{
    uint64_t limit_ns = self->base.options.timeout_ns;
    unsigned long long seconds = waited_ns / 1000000000u;
    unsigned lost;
    if (waited_ns > limit_ns / 8 * (6 + *asked_count) && *asked_count < 2) {
        (*asked_count)++;
        zr_roll_ask(&self->roll);
    }
    if (waited_ns <= limit_ns)
        return ZR_OK;
    if (zr_roll_find(&self->roll, waits_for, &lost))
        return zr_fail(ZR_ERR_TIMEOUT, "rank %u has not answered for %llu s", lost, seconds);
    return zr_fail(ZR_ERR_TIMEOUT,
                   "the ranks are out of step: rank %u has sent nothing for %llu s, and waits itself", lost,
                   seconds);
}

/* Whether the wait for a under_way can still end well. The first rank to see that it cannot tells the others.
 */
static zr_result look_around(struct message_comm *self, const struct zr_message_operations *under_way,
                             uint64_t waited_ns, unsigned *asked_count)
{
    struct zr_rank_set waits_for = awaited(under_way);
    zr_roll_listen(&self->roll, &waits_for);
    zr_result result = as_told(self);
    if (result == ZR_OK)
        result = look_for_dead(self, &waits_for);
    if (result == ZR_OK)
        result = look_for_silent(self, &waits_for, waited_ns, asked_count);
    if (result != ZR_OK && self->roll.lost == ZR_OK)
        zr_roll_tell(&self->roll, result, zr_last_error());
    return result;
}

static void give_up(struct message_comm *self, struct zr_message_operations *under_way)
{
    for (unsigned i = 0; i < under_way->count; i++)
        if (!under_way->operations[i].done)
            self->transport->cancel(self->transport, &under_way->operations[i].request);
    under_way->count = 0;
}

zr_result zr_message_wait(struct message_comm *self, struct zr_message_operations *under_way)
{
    _Atomic uint32_t nobody = 0;
    uint64_t moved_ns = zr_os_now_ns(), polled_ns = moved_ns;
    struct zr_timeout timeout = zr_timeout_begin();
    zr_result result = ZR_OK;
    unsigned left = under_way->count, asked_count = 0;
    zr_roll_forget(&self->roll);
    while (left > 0 && result == ZR_OK) {
        bool moved = false;
        left = 0;
        for (unsigned i = 0; i < under_way->count && result == ZR_OK; i++) {
            result = look_at(self, &under_way->operations[i], &moved);
            left += !under_way->operations[i].done;
        }
        if (left == 0 || result != ZR_OK)
            break;
        uint64_t now_ns = zr_os_now_ns();
        if (moved) {
            moved_ns = now_ns;
            timeout = zr_timeout_begin();
            asked_count = 0;
            zr_roll_forget(&self->roll);
        }
        if (now_ns - polled_ns > POLL_NS) {
            polled_ns = now_ns;
            result = look_around(self, under_way, zr_timeout_waited_ns(&timeout), &asked_count);
        }
        if (now_ns - moved_ns < SPIN_NS)
            sched_yield();
        else
            zr_word_wait(&nobody, 0, NAP_NS);
    }
    if (result == ZR_OK)
        under_way->count = 0;
    return result;
}

/* ---- Birth and end ------------------------------------------------------------------------------------- */

/* What is under way after a failure would be written into memory that is given back. */
static void message_close(struct zr_comm *comm)
{
    struct message_comm *self = (struct message_comm *)comm;
    for (unsigned i = 0; i < 2; i++)
        give_up(self, &self->under_way[i]);
    zr_roll_close(&self->roll);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
}

#define RECORD_BYTES ((sizeof(struct message_comm) + 63) / 64 * 64)

/* Fills in the records behind *self, which are one block. */
static void lay_out(struct message_comm *self, unsigned world)
{
    char *at = (char *)self + RECORD_BYTES;
    for (unsigned i = 0; i < 2; i++, at += 2 * world * sizeof(struct zr_message_operation))
        self->under_way[i].operations = (struct zr_message_operation *)at;
    self->processes = (struct zr_process *)at;
    at += world * sizeof(struct zr_process);
    self->from = (const void **)at;
    at += world * sizeof(void *);
    self->roll.awaited = (struct zr_rank_set *)at;
    at += world * sizeof(struct zr_rank_set);
    self->roll.outbox = (struct zr_roll_letter *)(((uintptr_t)at + 63) / 64 * 64);
}

static zr_result prepare(struct message_comm **out, const struct zr_comm_options *options,
                         struct zr_transport *transport, const struct zr_comm_table *table)
{
    void *block;
    unsigned world = transport->world;
    size_t each = 4 * sizeof(struct zr_message_operation) + sizeof(struct zr_process) + sizeof(void *) +
                  sizeof(struct zr_rank_set) + sizeof(struct zr_roll_letter);
    size_t bytes = RECORD_BYTES + world * each + 64;
    zr_result result = zr_comm_options_check(options, transport->rank, world);
    if (result == ZR_OK)
        result = zr_arena_alloc(options->host_arena,
                                &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    struct message_comm *self = memset(block, 0, bytes);
    zr_comm_open(&self->base, table, options);
    self->base.rank = transport->rank;
    self->base.world = world;
    self->transport = transport;
    lay_out(self, world);
    self->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    self->each_bytes = self->slot_bytes / (world - 1) / 64 * 64;
    self->most_bytes = transport->most_bytes / 64 * 64;
    if (self->each_bytes > self->most_bytes)
        self->each_bytes = self->most_bytes;
    zr_roll_open(&self->roll, transport);
    result = zr_take(options->arena, ZR_TAG_COMM, zr_comm_ring_bytes(world, options->bucket_bytes), 1,
                     (void **)&self->ring);
    if (result == ZR_OK)
        result = zr_comm_thread_start(&self->base);
    if (result == ZR_OK)
        *out = self;
    else
        zr_comm_destroy(&self->base);
    return result;
}

/* What the ranks tell each other first: whether they have a communicator, and who they are. */
struct greeting {
    struct zr_process process;
    uint64_t slot_bytes; /* 0: failed */
};

static zr_result greet(struct message_comm *self, struct greeting *mine, struct greeting *theirs)
{
    unsigned world = self->base.world;
    zr_process_self(&mine->process);
    mine->slot_bytes = self->slot_bytes;
    zr_result result = zr_comm_host_all_gather(&self->base, mine, sizeof(*mine), theirs);
    for (unsigned p = 0; p < world && result == ZR_OK; p++) {
        self->processes[p] = theirs[p].process;
        if (theirs[p].slot_bytes == 0)
            result = zr_fail(ZR_ERR_PEER, "rank %u has no room for its buckets", p);
        else if (theirs[p].slot_bytes != theirs[0].slot_bytes)
            result = zr_fail(ZR_ERR_INVALID,
                             "rank %u has buckets of %llu bytes, and rank 0 of %llu; give all ranks the same "
                             "--bucket-bytes and the same model",
                             p, (unsigned long long)theirs[p].slot_bytes,
                             (unsigned long long)theirs[0].slot_bytes);
    }
    self->introduced = result == ZR_OK;
    memset(&self->base.counters, 0, sizeof(self->base.counters)); /* nobody has asked for anything yet */
    return result;
}

zr_result zr_message_create(zr_comm **out, const struct zr_comm_options *options,
                            struct zr_transport *transport)
{
    static const struct zr_comm_table table = {
        .name = "mpi", .sent_bytes = zr_message_sent_bytes, .run = zr_message_run, .close = message_close};
    struct zr_comm_options own;
    struct message_comm *self = NULL;
    struct greeting mine, theirs[ZR_MAX_WORLD];
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own, options);
    if (result == ZR_OK)
        result = prepare(&self, &own, transport, &table);
    if (result == ZR_OK)
        result = greet(self, &mine, theirs);
    if (result == ZR_OK) {
        *out = &self->base;
        return ZR_OK;
    }
    if (self)
        zr_comm_destroy(&self->base);
    return result;
}
