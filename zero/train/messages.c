/* messages.c: see messages.h. */
#include "zero/train/messages.h"

#include "alloc/heap/heap.h"
#include "zero/comm/mesh.h"
#include "zero/comm/posted.h"
#include "zero/step/pipeline.h"
#include "zero/train/servers/servers.h"

/* Steps that the last stage is ahead of the first one at most. */
static unsigned lag_of(const struct zr_train_config *config)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    unsigned ahead = config->stages.ranks > 1 ? config->stages.ranks - 1 : 0;
    return zr_pipeline_is_asynchronous(&pipeline)
               ? (ahead + config->micro_batches - 1) / config->micro_batches
               : 0;
}

zr_result zr_messages_open(struct zr_messages *out, const struct zr_train_config *config, zr_comm *comm,
                           bool deferred)
{
    *out = (struct zr_messages){
        .config = config, .comm = comm, .rank = zr_comm_rank(comm), .lag = deferred ? lag_of(config) : 0};
    if (zr_train_is_free(config) || zr_train_repeats(config)) {
        out->free = zr_train_is_free(config);
        out->repeats = zr_train_repeats(config);
        out->board = &config->served->board;
        out->board_at = zr_served_messages_at(config->served);
    }
    out->slots = zr_heap_alloc((out->lag + 1) * (1 + (size_t)config->world) * sizeof *out->slots);
    out->tickets = zr_heap_alloc((out->lag + 1) * sizeof *out->tickets);
    if (out->slots && out->tickets)
        return ZR_OK;
    zr_messages_close(out);
    return ZR_ERR_HOST_MEMORY;
}

/* After a failure the communicator may still write to the slots. */
void zr_messages_close(struct zr_messages *messages)
{
    for (; messages->lag > 0 && messages->taken < messages->sent; messages->taken++)
        zr_comm_wait(messages->comm, messages->tickets[messages->taken % (messages->lag + 1)]);
    if (messages->slots)
        zr_heap_free(messages->slots);
    if (messages->tickets)
        zr_heap_free(messages->tickets);
    *messages = (struct zr_messages){0};
}

static struct zr_message *slot_of(const struct zr_messages *messages, uint64_t number)
{
    return messages->slots + number % (messages->lag + 1) * (1 + (size_t)messages->config->world);
}

/* ---- The board ----------------------------------------------------------------------------------------- */

/* A worker's message of a step; `number`, from 1, is written after the message. */
struct posted {
    struct zr_message message;
    uint64_t number;
};

static uint64_t place_of(const struct zr_messages *messages, uint64_t index, unsigned rank)
{
    return messages->board_at + (index * messages->config->world + rank) * sizeof(struct posted);
}

/* Reads a worker's part of a message; false: it is not there yet. */
static bool is_posted(const struct zr_messages *messages, uint64_t index, unsigned rank,
                      struct zr_message *out)
{
    struct posted posted = {.number = 0};
    if (zr_read_all(messages->board->fd, (int64_t)place_of(messages, index, rank), &posted, sizeof posted) !=
            (ssize_t)sizeof posted ||
        posted.number != index + 1)
        return false;
    *out = posted.message;
    return true;
}

static zr_result post(struct zr_messages *messages, struct zr_message *mine)
{
    const uint64_t at = place_of(messages, messages->sent, messages->rank), number = messages->sent + 1;
    mine->sender = messages->rank;
    if (messages->repeats && is_posted(messages, messages->sent, messages->rank, mine)) {
        messages->sent++;
        return ZR_OK;
    }
    mine->gathers = messages->repeats ? zr_comm_posted_number(messages->comm) : 0;
    zr_result result = zr_file_write_at(messages->board, at, mine, sizeof *mine);
    if (result == ZR_OK)
        result =
            zr_file_write_at(messages->board, at + offsetof(struct posted, number), &number, sizeof number);
    messages->sent += result == ZR_OK;
    if (messages->repeats)
        zr_comm_posted_wake(messages->comm);
    return result;
}

/* A worker's part of the next message. */
struct part {
    const struct zr_messages *messages;
    unsigned rank;
};

/* Of a worker that has left, which posts nothing more, there is its place without a sender. */
static bool is_settled(const void *state)
{
    const struct part *part = state;
    const struct zr_messages *messages = part->messages;
    struct zr_message *slot = &messages->slots[1 + part->rank];
    const bool left =
        messages->repeats && zr_comm_posted_has_left(&messages->config->served->posts, part->rank);
    if (is_posted(messages, messages->taken, part->rank, slot))
        return true;
    if (left)
        *slot = (struct zr_message){.sender = ZR_MAX_WORLD};
    return left;
}

static bool all_posted(const struct zr_messages *messages)
{
    bool all = messages->taken < messages->sent;
    for (unsigned r = 0; r < messages->config->world && all; r++)
        all = is_settled(&(struct part){messages, r});
    return all;
}

static zr_result await_posts(struct zr_messages *messages)
{
    zr_result result = ZR_OK;
    for (unsigned r = 0; r < messages->config->world && result == ZR_OK; r++) {
        const struct part part = {messages, r};
        result = zr_comm_posted_await(messages->comm, &(struct zr_comm_posted_wait){is_settled, &part, r});
    }
    return result;
}

zr_result zr_messages_succeed(struct zr_messages *messages, uint64_t clock, struct zr_messages_left *out)
{
    struct zr_message message;
    uint64_t sent = 0;
    *out = (struct zr_messages_left){.some = false};
    while (messages->repeats && is_posted(messages, sent, messages->rank, &out->last))
        sent++;
    if (sent == 0)
        return ZR_OK;
    message = out->last;
    out->some = true;
    out->steps = sent;
    for (; out->steps > 0; out->steps--) {
        struct zr_message before;
        if (!is_posted(messages, out->steps - 1, messages->rank, &before) || before.clock != clock)
            break;
        message = before;
    }
    out->ends = out->steps == sent;
    messages->sent = out->steps;
    zr_comm_posted_continue(messages->comm, message.gathers);
    return ZR_OK;
}

zr_result zr_messages_own_losses(const struct zr_messages *messages, size_t count, double *out)
{
    struct posted posted;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        result =
            zr_file_read_at(messages->board, place_of(messages, i, messages->rank), &posted, sizeof posted);
        out[i] = posted.message.loss;
    }
    return result;
}

/* ---- A message ----------------------------------------------------------------------------------------- */

zr_result zr_messages_send(struct zr_messages *messages, struct zr_message *mine)
{
    if (messages->board)
        return post(messages, mine);
    struct zr_message *slot = slot_of(messages, messages->sent);
    zr_ticket *ticket = &messages->tickets[messages->sent % (messages->lag + 1)];
    mine->sender = messages->rank;
    slot[0] = *mine;
    *ticket = 0;
    zr_result result = messages->lag > 0
                           ? zr_comm_all_gather(messages->comm,
                                                &(struct zr_all_gather){.source = &slot[0],
                                                                        .destination = &slot[1],
                                                                        .shard_bytes = sizeof *slot,
                                                                        .label = ZR_COMM_LABEL_MESSAGE},
                                                ticket)
                           : ZR_OK;
    messages->sent += result == ZR_OK;
    return result;
}

bool zr_messages_is_due(const struct zr_messages *messages, bool ends)
{
    return messages->free ? all_posted(messages)
                          : messages->sent - messages->taken > (ends ? 0 : messages->lag);
}

/* Combines the messages of all ranks. */
static void combine(const struct zr_train_config *config, const struct zr_message *all,
                    struct zr_message *out)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    *out = (struct zr_message){0};
    for (unsigned r = 0; r < config->world; r++) {
        if (all[r].sender != r) {
            out->left++;
            continue;
        }
        if (zr_mesh_place_of(mesh, r).tensor == 0) /* ranks of one tensor group have the same loss; other
                                                    * pipeline ranks have 0 */
            out->loss += all[r].loss;              /* of as many tokens on each */
        out->windows += all[r].windows;
        if (all[r].request > out->request)
            out->request = all[r].request;
        if (out->end_signal == 0)
            out->end_signal = all[r].end_signal;
        out->yields = out->yields || all[r].yields;
        out->resizes = out->resizes || all[r].resizes;
        if (out->refusals.count == 0) {
            out->rank = r;
            out->refusals = all[r].refusals;
        }
    }
    out->loss /= zr_mesh_shards(mesh) * zr_mesh_groups(mesh) - out->left;
}

zr_result zr_messages_take(struct zr_messages *messages, struct zr_message *out)
{
    struct zr_message *slot = slot_of(messages, messages->taken), *all = slot + 1;
    zr_result result =
        messages->free    ? ZR_OK /* zr_messages_is_due() has read it */
        : messages->board ? await_posts(messages)
        : messages->lag > 0
            ? zr_comm_wait(messages->comm, messages->tickets[messages->taken % (messages->lag + 1)])
            : zr_comm_host_all_gather(messages->comm, slot, sizeof *slot, all);
    if (result != ZR_OK)
        return result;
    messages->taken++;
    combine(messages->config, all, out);
    return ZR_OK;
}

zr_result zr_messages_exchange(struct zr_messages *messages, struct zr_message *mine, struct zr_message *out)
{
    zr_result result;
    mine->sender = messages->rank;
    if (messages->board) {
        result = zr_comm_host_all_gather(messages->comm, mine, sizeof *mine, messages->slots + 1);
        if (result == ZR_OK)
            combine(messages->config, messages->slots + 1, out);
        return result;
    }
    result = zr_messages_send(messages, mine);
    return result == ZR_OK ? zr_messages_take(messages, out) : result;
}
