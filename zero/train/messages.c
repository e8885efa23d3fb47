/* messages.c: see messages.h. */
#include "zero/train/messages.h"

#include "alloc/heap/heap.h"
#include "zero/comm/mesh.h"
#include "zero/step/pipeline.h"

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

zr_result zr_messages_send(struct zr_messages *messages, const struct zr_message *mine)
{
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
    return messages->sent - messages->taken > (ends ? 0 : messages->lag);
}

zr_result zr_messages_take(struct zr_messages *messages, struct zr_message *out)
{
    const struct zr_train_config *config = messages->config;
    struct zr_message *slot = slot_of(messages, messages->taken), *all = slot + 1;
    zr_result result =
        messages->lag > 0
            ? zr_comm_wait(messages->comm, messages->tickets[messages->taken % (messages->lag + 1)])
            : zr_comm_host_all_gather(messages->comm, slot, sizeof *slot, all);
    if (result != ZR_OK)
        return result;
    messages->taken++;
    *out = (struct zr_message){0};
    struct zr_mesh_shape mesh = zr_train_mesh(config);
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
    return ZR_OK;
}

zr_result zr_messages_exchange(struct zr_messages *messages, const struct zr_message *mine,
                               struct zr_message *out)
{
    zr_result result = zr_messages_send(messages, mine);
    return result == ZR_OK ? zr_messages_take(messages, out) : result;
}
