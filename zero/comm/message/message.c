/* message.c: a communicator over a message transport (transport.h): waits, creation and destruction.
 * message_run.c has the operations.
 *
 * A transport cannot access GPU memory: GPU tensors are copied to host memory before sending and back
 * after receiving, in the engine's stream, for which the host waits.
 *
 * No call blocks inside the transport: a wait tests its messages, yields, and checks from time to time
 * whether its peers are alive and how long they have been silent. */
#include "zero/comm/message/message.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/base/option.h"
#include "zero/comm/calls.h"
#include "alloc/base/system/os.h"
#include "zero/comm/take.h"

/* Duration of tests without a pause: a message of a bucket's size takes this long. */
#define SPIN_NS 2000000ull
#define NAP_NS  50000ull     /* pause between later tests, which leaves the core to compute threads */
#define POLL_NS 100000000ull /* time between checks that the peers are alive */

/* Maximum message of a GPU tensor, so that host memory does not grow with buckets. */
#define STAGED_BYTES ((size_t)1 << 20)

enum { LAST_POLLS = 64 }; /* polls for a report of a rank that has exited */

/* Tags of a context. Group creation and liveness checks use those of the first context for the whole run. */
enum { TAG_DATA = 0, TAG_HOST, TAG_CREATION, TAG_LIVENESS, TAGS_OF_CONTEXT };

/* A wait that has lasted for a while, visible to other waits of the process. */
struct zr_message_wait {
    struct zr_rank_set waits_for;
    struct zr_message_wait *next;
    uint64_t asked_ns; /* time of the first request to the other ranks; 0: none yet */
    unsigned asked_count;
    bool known; /* the wait is in the list */
};

void zr_message_world_open(struct zr_message_world *world, struct zr_transport *transport)
{
    world->waits = NULL;
    world->introduced = false;
    world->contexts = 0;
    world->host_ranks = world->settled = 0;
    world->transport = transport;
    pthread_mutex_init(&world->lock, NULL);
    zr_liveness_open(&world->liveness, transport, TAG_LIVENESS);
}

void zr_message_world_close(struct zr_message_world *world)
{
    zr_liveness_close(&world->liveness);
    pthread_mutex_destroy(&world->lock);
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

/* Sets a message's host buffer, if its tensor is in GPU memory. */
static zr_result stage(struct message_comm *self, struct zr_message_operations *under_way,
                       struct zr_transport_message *message, bool receives)
{
    struct zr_message_operation *operation = &under_way->operations[under_way->count];
    void *tensor = message->data;
    message->data = under_way->staging + under_way->count * self->most_bytes;
    if (receives) {
        operation->tensor = tensor;
        operation->staged = message->data;
        return ZR_OK;
    }
    zr_result result = zr_comm_copy(&self->base, message->data, tensor, message->bytes);
    return result == ZR_OK ? zr_comm_end_copies(&self->base) : result;
}

/* Copies received messages to their tensors. */
static zr_result unstage(struct message_comm *self, struct zr_message_operations *under_way)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < under_way->count && result == ZR_OK; i++) {
        const struct zr_message_operation *operation = &under_way->operations[i];
        if (operation->tensor)
            result = zr_comm_copy(&self->base, operation->tensor, operation->staged, operation->bytes);
    }
    return result == ZR_OK && under_way->count > 0 ? zr_comm_end_copies(&self->base) : result;
}

/* The failure that another rank has reported. */
static zr_result as_reported(const struct zr_liveness *liveness)
{
    return liveness->lost == ZR_OK ? ZR_OK : zr_fail(liveness->lost, "%s", liveness->text);
}

/* Answers the liveness requests of other ranks, on behalf of all waits of this process. */
static void listen(struct zr_message_world *run)
{
    struct zr_rank_set all = {0};
    for (const struct zr_message_wait *wait = run->waits; wait; wait = wait->next)
        for (unsigned w = 0; w < ZR_LIVENESS_WORDS; w++)
            all.words[w] |= wait->waits_for.words[w];
    zr_liveness_listen(&run->liveness, &all);
}

/* The transport has failed a message. A rank that exits because of a lost rank reports the lost rank first,
 * so its report is read before it is blamed. Caller holds the lock of the run. */
static zr_result blame(struct zr_message_world *run, const struct zr_message_operation *operation)
{
    char text[ZR_LIVENESS_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s rank %u failed: %.200s",
             operation->receives ? "receiving from" : "sending to", operation->peer, run->transport->why);
    for (unsigned i = 0; i < LAST_POLLS && run->liveness.lost == ZR_OK; i++)
        listen(run);
    if (run->liveness.lost != ZR_OK)
        return as_reported(&run->liveness);
    zr_liveness_report(&run->liveness, ZR_ERR_PEER, text);
    return zr_fail(ZR_ERR_PEER, "%s", text);
}

/* Passes one message to the transport. */
static zr_result start(struct message_comm *self, struct zr_message_operations *under_way,
                       const struct zr_transport_message *message, bool receives)
{
    struct zr_message_world *run = self->run;
    struct zr_message_operation *operation = &under_way->operations[under_way->count];
    struct zr_transport_message own = *message;
    zr_result result = ZR_OK;
    own.peer = self->ranks[message->peer];
    own.tag = under_way->tag;
    *operation =
        (struct zr_message_operation){.bytes = message->bytes, .peer = own.peer, .receives = receives};
    if (under_way->staging)
        result = stage(self, under_way, &own, receives);
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&run->lock);
    if ((receives ? run->transport->receive : run->transport->send)(run->transport, &own,
                                                                    &operation->request) == 0)
        under_way->count++;
    else
        result = blame(run, operation);
    pthread_mutex_unlock(&run->lock);
    return result;
}

zr_result zr_message_send(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct zr_transport_message *message)
{
    return start(self, under_way, message, false);
}

zr_result zr_message_receive(struct message_comm *self, struct zr_message_operations *under_way,
                             const struct zr_transport_message *message)
{
    return start(self, under_way, message, true);
}

/* Tests one message; *moved: it has arrived. */
static zr_result test(struct message_comm *self, struct zr_message_operations *under_way, unsigned i,
                      bool *moved)
{
    struct zr_message_operation *operation = &under_way->operations[i];
    struct zr_transport *transport = self->run->transport;
    size_t bytes = 0;
    if (operation->done)
        return ZR_OK;
    int failed = transport->test(transport, &operation->request, &operation->done, &bytes);
    *moved |= operation->done;
    if (failed)
        return blame(self->run, operation);
    if (operation->done && operation->receives && bytes != operation->bytes)
        return zr_fail(ZR_ERR_PEER,
                       "the ranks are out of step: rank %u sent %zu bytes where rank %u expects %zu",
                       operation->peer, bytes, self->base.run_rank, operation->bytes);
    if (operation->done && operation->receives)
        *under_way->received_bytes += bytes;
    return ZR_OK;
}

/* Checks that the awaited ranks are alive. A rank that exits because of a lost rank reports the lost rank
 * first, so its messages are read before it is blamed. */
static zr_result check_dead(struct zr_message_world *run, const struct zr_message_wait *wait)
{
    for (unsigned p = 0; p < run->transport->world && run->introduced; p++) {
        if (!zr_rank_set_has(&wait->waits_for, p) || zr_process_lives(&run->processes[p]))
            continue;
        for (unsigned i = 0; i < LAST_POLLS && run->liveness.lost == ZR_OK; i++)
            listen(run);
        if (run->liveness.lost != ZR_OK)
            return as_reported(&run->liveness);
        return zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has exited while others still wait for it", p,
                       (int)run->processes[p].pid);
    }
    return ZR_OK;
}

/* Sends requests to all ranks when a quarter of the timeout is left, and once more later; at the timeout
 * names the silent rank. */
static zr_result check_silent(struct message_comm *self, struct zr_message_wait *wait, uint64_t waited_ns)
{
    struct zr_liveness *liveness = &self->run->liveness;
    uint64_t limit_ns = self->base.options.timeout_ns;
    unsigned long long seconds = waited_ns / 1000000000u;
    unsigned lost;
    if (waited_ns > limit_ns / 8 * (6 + wait->asked_count) && wait->asked_count < 2) {
        if (wait->asked_count++ == 0)
            wait->asked_ns = zr_os_now_ns();
        zr_liveness_ask(liveness);
    }
    if (waited_ns <= limit_ns)
        return ZR_OK;
    if (zr_liveness_find(liveness, &wait->waits_for, wait->asked_ns, &lost))
        return zr_fail(ZR_ERR_TIMEOUT, "rank %u has not answered for %llu s", lost, seconds);
    return zr_fail(ZR_ERR_TIMEOUT,
                   "the ranks are out of step: rank %u has sent nothing for %llu s and is waiting itself",
                   lost, seconds);
}

/* Whether a wait can still succeed. A failure that no rank has reported is reported to the other ranks.
 * Caller holds the lock of the run. */
static zr_result check_wait(struct message_comm *self, const struct zr_message_operations *under_way,
                            struct zr_message_wait *wait, uint64_t waited_ns)
{
    struct zr_message_world *run = self->run;
    wait->waits_for = (struct zr_rank_set){0};
    for (unsigned i = 0; i < under_way->count; i++)
        if (!under_way->operations[i].done)
            zr_rank_set_add(&wait->waits_for, under_way->operations[i].peer);
    if (!wait->known) {
        wait->known = true;
        wait->next = run->waits;
        run->waits = wait;
    }
    listen(run);
    zr_result result = as_reported(&run->liveness);
    if (result == ZR_OK)
        result = check_dead(run, wait);
    if (result == ZR_OK && waited_ns >= ZR_CALLS_PATIENCE_NS)
        result = zr_liveness_look(&run->liveness);
    if (result == ZR_OK)
        result = check_silent(self, wait, waited_ns);
    if (result != ZR_OK && run->liveness.lost == ZR_OK)
        zr_liveness_report(&run->liveness, result, zr_last_error());
    return result;
}

static void give_up(struct message_comm *self, struct zr_message_operations *under_way)
{
    for (unsigned i = 0; i < under_way->count; i++)
        if (!under_way->operations[i].done)
            self->run->transport->cancel(self->run->transport, &under_way->operations[i].request);
    under_way->count = 0;
}

static void end_wait(struct zr_message_world *run, struct zr_message_wait *wait)
{
    struct zr_message_wait **at = &run->waits;
    if (!wait->known)
        return;
    pthread_mutex_lock(&run->lock);
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    pthread_mutex_unlock(&run->lock);
}

zr_result zr_message_wait(struct message_comm *self, struct zr_message_operations *under_way)
{
    _Atomic uint32_t unused = 0;
    uint64_t moved_ns = zr_os_now_ns(), polled_ns = moved_ns;
    struct zr_timeout timeout = zr_timeout_begin();
    struct zr_message_wait wait = {0};
    zr_result result = ZR_OK;
    for (unsigned left = under_way->count; left > 0 && result == ZR_OK;) {
        bool moved = false;
        uint64_t now_ns = zr_os_now_ns();
        left = 0;
        pthread_mutex_lock(&self->run->lock);
        for (unsigned i = 0; i < under_way->count && result == ZR_OK; i++) {
            result = test(self, under_way, i, &moved);
            left += !under_way->operations[i].done;
        }
        if (moved) {
            moved_ns = now_ns;
            timeout = zr_timeout_begin();
            wait.asked_count = 0;
        }
        if (left > 0 && result == ZR_OK && now_ns - polled_ns > POLL_NS) {
            polled_ns = now_ns;
            result = check_wait(self, under_way, &wait, zr_timeout_waited_ns(&timeout));
        }
        pthread_mutex_unlock(&self->run->lock);
        if (left > 0 && now_ns - moved_ns < SPIN_NS)
            sched_yield();
        else if (left > 0)
            zr_word_wait(&unused, 0, NAP_NS);
    }
    end_wait(self->run, &wait);
    if (result == ZR_OK && under_way->staging)
        result = unstage(self, under_way);
    if (result == ZR_OK)
        under_way->count = 0;
    return result;
}

/* ---- Creation and destruction -------------------------------------------------------------------------- */

/* Cancels pending messages after a failure: they would be written into freed memory. */
static void message_close(struct zr_comm *comm)
{
    struct message_comm *self = (struct message_comm *)comm;
    pthread_mutex_lock(&self->run->lock);
    for (unsigned i = 0; i < 2; i++)
        give_up(self, &self->under_way[i]);
    give_up(self, &self->host);
    pthread_mutex_unlock(&self->run->lock);
    if (self->staging)
        zr_arena_free(comm->options.host_arena, self->staging);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
}

static zr_result message_group(struct zr_comm **out, struct zr_comm *parent,
                               const struct zr_comm_members *members);

static void abandon(struct zr_comm *comm, const char *why)
{
    struct zr_message_world *run = ((struct message_comm *)comm)->run;
    pthread_mutex_lock(&run->lock);
    if (run->liveness.lost == ZR_OK) {
        zr_liveness_report(&run->liveness, ZR_ERR_PEER, why);
        run->liveness.lost = ZR_ERR_PEER;
        snprintf(run->liveness.text, sizeof run->liveness.text, "%s", why);
    }
    pthread_mutex_unlock(&run->lock);
}

/* The names of the transports are the only difference. */
#define TABLE(transport)                                                                                     \
    {                                                                                                        \
        .name = (transport), .sent_bytes = zr_message_sent_bytes, .run = zr_message_run,                     \
        .host = zr_message_host, .group = message_group, .abandon = abandon, .close = message_close          \
    }
static const struct zr_comm_table tables[] = {TABLE("mpi"), TABLE("tcp")};

static const struct zr_comm_table *table_of(const struct zr_transport *transport)
{
    return &tables[strcmp(transport->name, tables[1].name) == 0];
}

/* Lays out the records of a communicator in one block. */
static void lay_out(struct message_comm *self, unsigned world)
{
    struct zr_message_operations *sets[] = {&self->under_way[0], &self->under_way[1], &self->host};
    struct zr_message_operation *operations = (struct zr_message_operation *)(self + 1);
    for (unsigned i = 0; i < 3; i++) {
        sets[i]->operations = operations + (size_t)i * 2 * world;
        sets[i]->received_bytes = &self->base.received_bytes;
    }
    self->host.received_bytes = &self->base.host_received_bytes;
    self->from = (const void **)(operations + (size_t)6 * world);
    self->ranks = (unsigned *)(self->from + world);
}

_Static_assert(sizeof(struct message_comm) % _Alignof(struct zr_message_operation) == 0, "records follow");

/* Operations on GPU tensors run in the submitting call, in the engine's stream, and move data in messages of
 * the size of a ring's part. */
static zr_result prepare_staging(struct message_comm *self)
{
    self->each_bytes = self->each_bytes < STAGED_BYTES ? self->each_bytes : STAGED_BYTES;
    self->most_bytes = self->each_bytes;
    size_t bytes = 2 * (size_t)(self->base.world - 1) * self->each_bytes;
    self->base.options.beside = NULL;
    zr_result result =
        zr_take(self->base.options.host_arena, ZR_TAG_OTHER, 2 * bytes, 1, (void **)&self->staging);
    for (unsigned i = 0; i < 2 && result == ZR_OK; i++)
        self->under_way[i].staging = self->staging + i * bytes;
    return result;
}

/* Creates a rank's own part, without tags. `members` NULL: all ranks of the run; else ranks of the parent. */
static zr_result prepare(struct message_comm **out, const struct zr_comm_options *options,
                         struct zr_message_world *run, const struct zr_comm_members *members,
                         const struct message_comm *parent)
{
    void *block;
    unsigned world = members ? members->count : run->transport->world;
    unsigned rank = members ? members->rank : run->transport->rank;
    size_t bytes = sizeof(struct message_comm) +
                   world * (6 * sizeof(struct zr_message_operation) + sizeof(void *) + sizeof(unsigned));
    zr_result result = zr_comm_options_check(options, rank, world);
    if (result == ZR_OK)
        result = zr_arena_alloc(options->host_arena,
                                &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    struct message_comm *self = memset(block, 0, bytes);
    zr_comm_open(&self->base, table_of(run->transport), options);
    self->base.rank = rank;
    self->base.world = world;
    self->base.run_rank = run->transport->rank;
    self->run = run;
    lay_out(self, world);
    for (unsigned p = 0; p < world; p++)
        self->ranks[p] = members ? parent->ranks[members->ranks[p]] : p;
    self->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    self->each_bytes = self->slot_bytes / (world - 1) / 64 * 64;
    self->most_bytes = run->transport->most_bytes / 64 * 64;
    if (self->each_bytes > self->most_bytes)
        self->each_bytes = self->most_bytes;
    result = zr_take(options->arena, ZR_TAG_COMM, zr_comm_ring_bytes(world, options->bucket_bytes), 1,
                     (void **)&self->ring);
    if (result == ZR_OK)
        result = options->kernels->host_visible ? zr_comm_thread_start(&self->base) : prepare_staging(self);
    if (result == ZR_OK)
        *out = self;
    else
        zr_comm_destroy(&self->base);
    return result;
}

static void set_context(struct message_comm *self, uint32_t context)
{
    self->under_way[0].tag = self->under_way[1].tag = context * TAGS_OF_CONTEXT + TAG_DATA;
    self->host.tag = context * TAGS_OF_CONTEXT + TAG_HOST;
    self->run->contexts = context + 1;
}

/* Message of the first exchange: whether a rank has created its part, and the rank's process. */
struct greeting {
    struct zr_process process;
    uint64_t slot_bytes; /* 0: failed */
    unsigned host_first, host_ranks, settled;
};

/* Ranks of each host, or 0; see struct zr_message_world. */
static unsigned equal_hosts(const struct greeting *all, unsigned world)
{
    unsigned each = all[0].host_ranks;
    for (unsigned p = 0; p < world; p++)
        if (all[p].settled > 0)
            return all[p].settled - 1;
    for (unsigned p = 0; p < world && each > 0; p++)
        if (all[p].host_ranks != each || all[p].host_first != p - p % each)
            each = 0;
    return each;
}

static zr_result greet(struct message_comm *self, struct greeting *mine, struct greeting *theirs)
{
    unsigned world = self->base.world;
    zr_process_self(&mine->process);
    mine->slot_bytes = self->slot_bytes;
    mine->host_first = self->run->transport->host_first;
    mine->host_ranks = self->run->transport->host_ranks;
    mine->settled = self->run->settled;
    zr_result result = zr_comm_host_all_gather(&self->base, mine, sizeof(*mine), theirs);
    for (unsigned p = 0; p < world && result == ZR_OK; p++) {
        self->run->processes[p] = theirs[p].process;
        if (theirs[p].slot_bytes == 0)
            result = zr_fail(ZR_ERR_PEER, "rank %u has no memory for its buckets", p);
        else if (theirs[p].slot_bytes != theirs[0].slot_bytes)
            result = zr_fail(ZR_ERR_INVALID,
                             "rank %u has buckets of %llu bytes, but rank 0 of %llu; give all ranks the same "
                             "--bucket-bytes and the same model",
                             p, (unsigned long long)theirs[p].slot_bytes,
                             (unsigned long long)theirs[0].slot_bytes);
    }
    self->run->introduced = result == ZR_OK;
    self->run->host_ranks = result == ZR_OK ? equal_hosts(theirs, world) : 0;
    memset(&self->base.counters, 0, sizeof(self->base.counters)); /* do not count this exchange */
    return result;
}

zr_result zr_message_create(zr_comm **out, const struct zr_comm_options *options,
                            struct zr_message_world *world)
{
    struct zr_comm_options own;
    struct message_comm *self = NULL;
    struct greeting mine, theirs[ZR_MAX_WORLD];
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own, options);
    if (result == ZR_OK)
        result = prepare(&self, &own, world, NULL, NULL);
    if (result == ZR_OK) {
        set_context(self, 0);
        result = greet(self, &mine, theirs);
    }
    if (result == ZR_OK) {
        *out = &self->base;
        return ZR_OK;
    }
    if (self)
        zr_comm_destroy(&self->base);
    return result;
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Message between a group's members: whether a member has created its part, and its first free context. */
struct creation {
    uint64_t key;
    uint32_t result, context;
};

/* Uses the maximum of the contexts, which is free on all members. Ranks in two groups create them in the
 * same order, so messages of two creations match. */
static zr_result meet(struct message_comm *parent, const struct zr_comm_members *members,
                      struct creation *mine)
{
    struct zr_message_operations *under_way = &parent->host;
    struct creation theirs[ZR_MAX_WORLD], own = *mine;
    uint32_t tag = under_way->tag;
    zr_result result = ZR_OK;
    under_way->tag = TAG_CREATION;
    for (unsigned p = 0; p < members->count && result == ZR_OK; p++) {
        struct zr_transport_message message = {.peer = members->ranks[p], .bytes = sizeof(own)};
        if (p == members->rank)
            continue;
        message.data = &theirs[p];
        result = zr_message_receive(parent, under_way, &message);
        message.data = &own;
        if (result == ZR_OK)
            result = zr_message_send(parent, under_way, &message);
    }
    if (result == ZR_OK)
        result = zr_message_wait(parent, under_way);
    under_way->tag = tag;
    for (unsigned p = 0; p < members->count && result == ZR_OK; p++) {
        unsigned rank = parent->ranks[members->ranks[p]];
        if (p == members->rank)
            continue;
        if (theirs[p].key != own.key)
            result = zr_fail(ZR_ERR_PEER, "the ranks are out of step: rank %u creates another group", rank);
        else if (theirs[p].result != ZR_OK)
            result = zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of a group: %s", rank,
                             zr_result_name((zr_result)theirs[p].result));
        if (theirs[p].context > mine->context)
            mine->context = theirs[p].context;
    }
    return result;
}

static zr_result message_group(struct zr_comm **out, struct zr_comm *base,
                               const struct zr_comm_members *members)
{
    struct message_comm *self = NULL, *parent = (struct message_comm *)base;
    char text[ZR_COMM_MESSAGE_BYTES];
    struct creation creation = {.key = ZR_HASH_START, .context = parent->run->contexts};
    for (unsigned p = 0; p < members->count; p++)
        creation.key = zr_hash_next(creation.key, parent->ranks[members->ranks[p]]);
    zr_result result = prepare(&self, members->options, parent->run, members, parent);
    if (result == ZR_OK &&
        creation.context >= (parent->run->transport->tags_count - TAGS_OF_CONTEXT) / TAGS_OF_CONTEXT)
        result = zr_fail(ZR_ERR_INVALID, "no tags are left after %u communicators", creation.context);
    creation.result = (uint32_t)result;
    snprintf(text, sizeof(text), "%s", zr_last_error());
    zr_result met = meet(parent, members, &creation);
    if (result == ZR_OK && met != ZR_OK)
        snprintf(text, sizeof(text), "%s", zr_last_error());
    result = result == ZR_OK ? met : result;
    if (result == ZR_OK) {
        self->base.local = base->local;
        set_context(self, creation.context);
        zr_calls_open(&self->base, (zr_hash_next(creation.key, 0) ^ creation.context) | 1, self->ranks);
        *out = &self->base;
        return ZR_OK;
    }
    if (self)
        zr_comm_destroy(&self->base);
    return zr_fail(result, "%s", text);
}
