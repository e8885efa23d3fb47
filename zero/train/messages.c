/* messages.c: see messages.h. */
#include "zero/train/messages.h"

#include "alloc/heap/heap.h"
#include "zero/comm/mesh.h"
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
    *out = (struct zr_messages){.config = config, .comm = comm, .lag = deferred ? lag_of(config) : 0};
    if (zr_train_is_free(config)) {
        out->rank = zr_comm_rank(comm);
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

static zr_result post(struct zr_messages *messages, const struct zr_message *mine)
{
    const uint64_t at = place_of(messages, messages->sent, messages->rank), number = messages->sent + 1;
    zr_result result = zr_file_write_at(messages->board, at, mine, sizeof *mine);
    if (result == ZR_OK)
        result =
            zr_file_write_at(messages->board, at + offsetof(struct posted, number), &number, sizeof number);
    messages->sent += result == ZR_OK;
    return result;
}

/* Reads a worker's part of the next message; false: it is not there yet. */
static bool is_posted(const struct zr_messages *messages, unsigned rank, struct zr_message *out)
{
    struct posted posted = {.number = 0};
    const int fd = messages->board->fd;
    if (zr_read_all(fd, (int64_t)place_of(messages, messages->taken, rank), &posted, sizeof posted) !=
            (ssize_t)sizeof posted ||
        posted.number != messages->taken + 1)
        return false;
    *out = posted.message;
    return true;
}

static bool all_posted(const struct zr_messages *messages)
{
    bool all = messages->taken < messages->sent;
    for (unsigned r = 0; r < messages->config->world && all; r++)
        all = is_posted(messages, r, &messages->slots[1 + r]);
    return all;
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

zr_result zr_messages_send(struct zr_messages *messages, const struct zr_message *mine)
{
    if (messages->board)
        return post(messages, mine);
    struct zr_message *slot = slot_of(messages, messages->sent);
    zr_ticket *ticket = &messages->tickets[messages->sent % (messages->lag + 1)];
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
    return messages->board ? all_posted(messages)
                           : messages->sent - messages->taken > (ends ? 0 : messages->lag);
}

/* Combines the messages of all ranks. */
static void combine(const struct zr_train_config *config, const struct zr_message *all,
                    struct zr_message *out)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    *out = (struct zr_message){0};
    for (unsigned r = 0; r < config->world; r++) {
        if (zr_mesh_place_of(mesh, r).tensor == 0) /* ranks of one tensor group have the same loss; other
                                                    * pipeline ranks have 0 */
            out->loss += all[r].loss;              /* of as many tokens on each */
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
    out->loss /= zr_mesh_shards(mesh) * zr_mesh_groups(mesh);
}

zr_result zr_messages_take(struct zr_messages *messages, struct zr_message *out)
{
    struct zr_message *slot = slot_of(messages, messages->taken), *all = slot + 1;
    zr_result result =
        messages->board ? ZR_OK /* zr_messages_is_due() has read it */
        : messages->lag > 0
            ? zr_comm_wait(messages->comm, messages->tickets[messages->taken % (messages->lag + 1)])
            : zr_comm_host_all_gather(messages->comm, slot, sizeof *slot, all);
    if (result != ZR_OK)
        return result;
    messages->taken++;
    combine(messages->config, all, out);
    return ZR_OK;
}

zr_result zr_messages_exchange(struct zr_messages *messages, const struct zr_message *mine,
                               struct zr_message *out)
{
    zr_result result;
    if (messages->board) {
        result = zr_comm_host_all_gather(messages->comm, mine, sizeof *mine, messages->slots + 1);
        if (result == ZR_OK)
            combine(messages->config, messages->slots + 1, out);
        return result;
    }
    result = zr_messages_send(messages, mine);
    return result == ZR_OK ? zr_messages_take(messages, out) : result;
}
