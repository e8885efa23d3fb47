/* comm.c: the front of every communicator: counters, the queue and the thread that runs it. operations.c
 * submits; null.c, local.c, message.c and nccl.c implement the table of comm.h. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/calls.h"
#include "zero/comm/comm.h"
#include "zero/comm/local/local.h"

void zr_comm_heartbeat(struct zr_comm *comm)
{
    if (comm->local)
        atomic_fetch_add_explicit(&comm->local->ranks[comm->run_rank].heartbeats, 1, memory_order_relaxed);
}

/* ---- The thread and the queue -------------------------------------------------------------------------- */

/* Copies the message of the failing thread for the thread that waits. */
static void remember_failure(struct zr_comm *comm, zr_result result)
{
    if (result == ZR_OK || comm->failure != ZR_OK)
        return;
    comm->failure = result;
    snprintf(comm->failure_message, sizeof(comm->failure_message), "%s", zr_last_error());
}

/* Sets the communicator's failure as this thread's error. Caller holds lock. */
static zr_result repeat_failure(struct zr_comm *comm)
{
    return comm->failure == ZR_OK ? ZR_OK : zr_fail(comm->failure, "%s", comm->failure_message);
}

uint64_t zr_comm_direct_bytes(const struct zr_comm *comm, const struct zr_comm_item *item)
{
    uint64_t peers = comm->world - 1, bytes = item->bytes;
    switch (item->kind) {
    case ZR_COMM_ALL_REDUCE:
        return 2 * peers * bytes;
    case ZR_COMM_REDUCE_SCATTER:
    case ZR_COMM_ALL_GATHER:
    case ZR_COMM_ALL_TO_ALL:
    case ZR_COMM_HOST:
        return peers * bytes;
    case ZR_COMM_BROADCAST:
        return comm->rank == item->broadcast.root ? peers * bytes : 0;
    case ZR_COMM_REDUCE:
        return comm->rank == item->reduction.root ? 0 : bytes;
    case ZR_COMM_SEND:
    case ZR_COMM_SEND_RECEIVE:
        return item->transfer.send_bytes;
    case ZR_COMM_RECEIVE:
    case ZR_COMM_KIND_COUNT:
        break;
    }
    return 0;
}

/* Adds an operation to the counters. Caller holds lock. `received_bytes`: bytes received by the operation. */
static void count_item(struct zr_comm *comm, const struct zr_comm_item *item, uint64_t received_bytes)
{
    struct zr_comm_volume *volume = &comm->counters.by_kind[item->kind];
    uint64_t bytes =
        comm->table->sent_bytes ? comm->table->sent_bytes(comm, item) : zr_comm_direct_bytes(comm, item);
    volume->calls_count++;
    volume->sent_bytes += bytes;
    volume->received_bytes += received_bytes;
    if (item->kind == ZR_COMM_HOST || item->label == ZR_COMM_LABEL_MESSAGE) /* not part of a step's traffic */
        return;
    comm->counters.operations_count++;
    comm->counters.received_bytes += received_bytes;
    comm->counters.sent_bytes += bytes;
    comm->counters.sent_elements += item->packed_elements > 0 ? bytes / item->bytes * item->packed_elements
                                                              : bytes / ZR_COMM_TYPE_BYTES(item->type);
}

/* Runs work within an operation; NULL: none. */
static zr_result run_work(struct zr_comm *comm, const struct zr_comm_work *work)
{
    struct zr_kernel_context *context;
    zr_result result = work ? zr_comm_context(comm, &context) : ZR_OK;
    return work && result == ZR_OK ? work->run(work->state, context) : result;
}

/* Runs one operation with lock released; with a stream of operations, queues it there. */
static void run_item(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket)
{
    zr_result result = comm->failure;
    uint64_t before_bytes = comm->received_bytes, start_ns = zr_os_now_ns() - comm->waited_ns;
    pthread_mutex_unlock(&comm->lock);
    if (result == ZR_OK && item->before)
        result = item->before->run(item->before->state);
    if (result == ZR_OK && comm->options.beside)
        result = zr_comm_stream_begin(comm);
    if (result == ZR_OK)
        result = run_work(comm, item->first);
    if (result == ZR_OK) {
        zr_calls_begin(comm, item, ticket);
        result = comm->table->run(comm, item);
    }
    if (result == ZR_OK)
        result = run_work(comm, item->last);
    if (result == ZR_OK && comm->options.beside)
        result = zr_comm_stream_end(comm, ticket);
    pthread_mutex_lock(&comm->lock);
    comm->counters.by_kind[item->kind].busy_ns += zr_os_now_ns() - comm->waited_ns - start_ns;
    if (result == ZR_OK)
        count_item(comm, item, comm->received_bytes - before_bytes);
    remember_failure(comm, result);
}

static void *empty_queue(void *argument)
{
    struct zr_comm *comm = argument;
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (comm->completed == comm->submitted && !comm->stopping)
            pthread_cond_wait(&comm->work, &comm->lock);
        if (comm->completed == comm->submitted)
            break;
        uint64_t start_ns = zr_os_now_ns();
        while (comm->completed < comm->submitted) {
            zr_ticket ticket = comm->completed + 1;
            run_item(comm, &comm->queue[ticket % ZR_COMM_QUEUE_COUNT], ticket);
            comm->completed = ticket;
            pthread_cond_broadcast(&comm->progress);
        }
        zr_calls_end(comm, false);
        comm->counters.busy_ns += zr_os_now_ns() - start_ns;
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

zr_result zr_comm_thread_start(struct zr_comm *comm)
{
    if (!comm->options.kernels->host_visible)
        return ZR_OK; /* see device.c */
    zr_result result = zr_thread_start(&comm->thread, comm->options.host_arena, 0, empty_queue, comm);
    comm->threaded = result == ZR_OK;
    return result;
}

/* Stops the thread that runs the queue after the submitted operations. */
static void stop_thread(struct zr_comm *comm)
{
    if (!comm->threaded)
        return;
    pthread_mutex_lock(&comm->lock);
    comm->stopping = true;
    pthread_cond_signal(&comm->work);
    pthread_mutex_unlock(&comm->lock);
    zr_thread_join(&comm->thread);
    comm->threaded = false;
}

/* Waits until `ticket` has ended; counts the time as exposed. Caller holds lock. */
static void wait_locked(struct zr_comm *comm, zr_ticket ticket)
{
    if (comm->completed >= ticket)
        return;
    uint64_t start_ns = zr_os_now_ns();
    zr_calls_wait(comm, ticket);
    while (comm->completed < ticket)
        pthread_cond_wait(&comm->progress, &comm->lock);
    zr_calls_go_on(comm);
    comm->counters.exposed_ns += zr_os_now_ns() - start_ns;
}

/* Runs an operation in the calling thread; earlier ones have ended, so the ring is free. Caller holds
 * lock. */
static void run_here(struct zr_comm *comm, const struct zr_comm_item *item)
{
    uint64_t start_ns = zr_os_now_ns();
    zr_calls_wait(comm, comm->submitted + 1);
    run_item(comm, item, comm->submitted + 1);
    zr_calls_end(comm, false);
    zr_calls_go_on(comm);
    uint64_t took_ns = zr_os_now_ns() - start_ns;
    comm->counters.busy_ns += took_ns;
    comm->counters.exposed_ns += took_ns;
}

zr_result zr_comm_submit(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket *ticket)
{
    zr_result result;
    zr_comm_heartbeat(comm);
    pthread_mutex_lock(&comm->lock);
    if (comm->submitted >= ZR_COMM_QUEUE_COUNT)
        wait_locked(comm,
                    comm->submitted - ZR_COMM_QUEUE_COUNT + 1); /* the queue is full: wait for the oldest */
    result = repeat_failure(comm);
    if (result == ZR_OK)
        zr_calls_submit(comm, item);
    if (result == ZR_OK && comm->threaded) {
        comm->queue[++comm->submitted % ZR_COMM_QUEUE_COUNT] = *item;
        pthread_cond_signal(&comm->work);
    } else if (result == ZR_OK) {
        if (comm->table->submitted)
            comm->table->submitted(comm, item, comm->submitted + 1);
        run_here(comm, item);
        comm->completed = ++comm->submitted;
        result = repeat_failure(comm);
    }
    if (ticket)
        *ticket = result == ZR_OK ? comm->submitted : 0;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* Runs a host message. Its time is not counted, because a host message never overlaps with work. */
zr_result zr_comm_run_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    zr_comm_heartbeat(comm);
    pthread_mutex_lock(&comm->lock);
    zr_result result = repeat_failure(comm);
    pthread_mutex_unlock(&comm->lock);
    if (result != ZR_OK)
        return result;
    uint64_t before_bytes = comm->host_received_bytes;
    const struct zr_comm_item item = {
        .kind = ZR_COMM_HOST, .type = op->type, .bytes = op->shard_bytes, .all_gather = *op};
    result = comm->table->talks ? ZR_OK : zr_comm_drain(comm);
    if (result == ZR_OK) {
        zr_calls_begin(comm, &item, 0);
        zr_calls_wait(comm, 0);
        result = comm->table->host(comm, op);
        zr_calls_end(comm, true);
        zr_calls_go_on(comm);
    }
    pthread_mutex_lock(&comm->lock);
    if (result == ZR_OK)
        count_item(comm, &item, comm->host_received_bytes - before_bytes);
    remember_failure(comm, result);
    result = result == ZR_OK ? ZR_OK : repeat_failure(comm);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

zr_result zr_comm_wait(zr_comm *comm, zr_ticket ticket)
{
    if (!comm)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_wait() requires a communicator");
    zr_result result;
    zr_comm_heartbeat(comm);
    pthread_mutex_lock(&comm->lock);
    if (ticket > comm->submitted) {
        result = zr_fail(ZR_ERR_INVALID, "ticket %llu was never issued", (unsigned long long)ticket);
    } else {
        wait_locked(comm, ticket);
        if (comm->table->waited)
            comm->table->waited(comm, ticket);
        result = ticket == 0 ? ZR_OK : repeat_failure(comm);
        if (result == ZR_OK && comm->options.beside)
            result = zr_comm_stream_wait(comm, ticket);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

zr_result zr_comm_synchronize(zr_comm *comm)
{
    if (!comm)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_synchronize() requires a communicator");
    pthread_mutex_lock(&comm->lock);
    wait_locked(comm, comm->submitted);
    zr_result result = repeat_failure(comm);
    if (result == ZR_OK && zr_comm_by_stream(comm)) /* peers read the ring, not the source */
        result = zr_comm_stream_wait(comm, comm->submitted);
    else if (result == ZR_OK && comm->table->synchronize)
        result = comm->table->synchronize(comm);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

void zr_comm_abandon(zr_comm *comm, const char *why)
{
    if (comm && comm->table->abandon)
        comm->table->abandon(comm, why);
}

/* ---- Creation and destruction -------------------------------------------------------------------------- */

unsigned zr_comm_rank(const zr_comm *comm)
{
    return comm->rank;
}

unsigned zr_comm_world(const zr_comm *comm)
{
    return comm->world;
}

const char *zr_comm_name(const zr_comm *comm)
{
    return comm->table->name;
}

void zr_comm_counters_get(zr_comm *comm, struct zr_comm_counters *out)
{
    pthread_mutex_lock(&comm->lock);
    *out = comm->counters;
    pthread_mutex_unlock(&comm->lock);
}

size_t zr_comm_slot_bytes(unsigned world, size_t bucket_bytes)
{
    const size_t line_bytes = ZR_COMM_LINE_BYTES;
    size_t least_bytes = (world > 1 ? world - 1 : 1) * line_bytes;
    size_t bytes = bucket_bytes > least_bytes ? bucket_bytes : least_bytes;
    return (bytes + line_bytes - 1) / line_bytes * line_bytes;
}

size_t zr_comm_ring_bytes(unsigned world, size_t bucket_bytes)
{
    return world <= 1 ? 0 : 2 * zr_comm_slot_bytes(world, bucket_bytes);
}

zr_result zr_comm_options_check(const struct zr_comm_options *options, unsigned rank, unsigned world)
{
    if (!options || !options->arena || !options->host_arena || !options->kernels)
        return zr_fail(ZR_ERR_INVALID, "a communicator requires arenas and kernels");
    if (world == 0 || rank >= world)
        return zr_fail(ZR_ERR_INVALID, "rank %u is not below the world size of %u", rank, world);
    if (options->bucket_bytes == 0 || options->bucket_bytes > PTRDIFF_MAX / 4)
        return zr_fail(ZR_ERR_INVALID, "bucket_bytes %zu is out of range", options->bucket_bytes);
    return ZR_OK;
}

void zr_comm_open(struct zr_comm *comm, const struct zr_comm_table *table,
                  const struct zr_comm_options *options)
{
    memset(comm, 0, sizeof(*comm));
    comm->table = table;
    comm->options = *options;
    if (comm->options.timeout_ns == 0)
        comm->options.timeout_ns = ZR_COMM_TIMEOUT_NS;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->work, NULL);
    pthread_cond_init(&comm->progress, NULL);
}

/* Checks that ranks are valid and unique and finds this rank among them. */
static zr_result find_member(const zr_comm *parent, struct zr_comm_members *members)
{
    unsigned max_rank = 0; /* an ascending list has no duplicates */
    members->rank = members->count;
    for (unsigned i = 0; i < members->count; i++) {
        if (members->ranks[i] >= parent->world)
            return zr_fail(ZR_ERR_INVALID, "group rank %u is not below the parent's size of %u",
                           members->ranks[i], parent->world);
        for (unsigned j = 0; j < i && members->ranks[i] <= max_rank; j++)
            if (members->ranks[i] == members->ranks[j])
                return zr_fail(ZR_ERR_INVALID, "group rank %u is listed twice", members->ranks[i]);
        max_rank = members->ranks[i] > max_rank ? members->ranks[i] : max_rank;
        if (members->ranks[i] == parent->rank)
            members->rank = i;
    }
    if (members->rank == members->count)
        return zr_fail(ZR_ERR_INVALID, "the group does not include this rank, %u", parent->rank);
    return ZR_OK;
}

static zr_result make_group(zr_comm **out, zr_comm *parent, struct zr_comm_members members,
                            size_t bucket_bytes)
{
    struct zr_comm_options options;
    const unsigned *ranks = members.ranks;
    unsigned count = members.count;
    members.options = &options;
    if (!out || !parent || !ranks)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_group() requires out, a parent and ranks");
    *out = NULL;
    options = parent->options;
    options.bucket_bytes = bucket_bytes > 0 ? bucket_bytes : options.bucket_bytes;
    zr_result result = find_member(parent, &members);
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&parent->lock);
    result = repeat_failure(parent);
    pthread_mutex_unlock(&parent->lock);
    if (result == ZR_OK && count > 1)
        return parent->table->group(out, parent, &members);
    if (result == ZR_OK)
        result = zr_comm_null_create(out, &options, 0, 1);
    if (result == ZR_OK) {
        (*out)->local = parent->local;
        (*out)->run_rank = parent->run_rank;
    }
    return result;
}

zr_result zr_comm_group(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                        size_t bucket_bytes)
{
    return make_group(out, parent, (struct zr_comm_members){.ranks = ranks, .count = count}, bucket_bytes);
}

zr_result zr_comm_split(zr_comm **out, zr_comm *parent, const unsigned *ranks, unsigned count,
                        size_t bucket_bytes)
{
    return make_group(out, parent, (struct zr_comm_members){.ranks = ranks, .count = count, .everyone = true},
                      bucket_bytes);
}

zr_result zr_comm_destroy(zr_comm *comm)
{
    if (!comm)
        return ZR_OK;
    stop_thread(comm); /* after the last submitted operation has ended or failed */
    zr_calls_close(comm);
    comm->table->close(comm);
    zr_comm_context_close(comm);
    pthread_cond_destroy(&comm->progress);
    pthread_cond_destroy(&comm->work);
    pthread_mutex_destroy(&comm->lock);
    return zr_arena_free(comm->options.host_arena, comm);
}
