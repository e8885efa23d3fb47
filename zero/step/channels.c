/* channels.c: see channels.h. */
#include "zero/step/channels.h"

#include <stdio.h>
#include <string.h>

#include "zero/comm/calls.h"
#include "zero/comm/mesh.h"
#include "zero/comm/take.h"

enum { SLOT_BYTES = 256 << 10, SENDER = 0, RECEIVER = 1, WAYS = 4 };

/* Creates a communicator of two ranks, the sender first. */
static zr_result open_channel(struct zr_channel *out, const struct zr_pipeline *pipeline, unsigned from,
                              unsigned to)
{
    const unsigned ranks[] = {from, to};
    char name[32];
    zr_result result = zr_comm_group(&out->comm, pipeline->comm, ranks, 2,
                                     pipeline->bucket_bytes > 0 ? pipeline->bucket_bytes : SLOT_BYTES);
    snprintf(name, sizeof name, "stage %u to %u", from, to);
    if (result == ZR_OK)
        zr_calls_name(out->comm, name);
    return result;
}

/* Opens the channels of all stage boundaries. All ranks visit the boundaries in the same order, which avoids
 * deadlock. */
static zr_result open_channels(struct zr_channels *channels, const struct zr_cut *cut,
                               const struct zr_pipeline *pipeline)
{
    zr_result result = ZR_OK;
    for (unsigned stage = 0; stage + 1 < cut->stages_count && result == ZR_OK; stage++) {
        unsigned from = zr_pipeline_rank_of(pipeline, cut->ranks, stage),
                 to = zr_pipeline_rank_of(pipeline, cut->ranks, stage + 1);
        for (unsigned i = 0; i < cut->parts_count && from != to && result == ZR_OK; i++) {
            struct zr_part_channels *part = &channels->parts[i];
            bool sends = cut->parts[i].stage == stage, receives = cut->parts[i].stage == stage + 1;
            if (sends || receives)
                result = open_channel(sends ? &part->output : &part->input, pipeline, from, to);
            if (result == ZR_OK && (sends || receives))
                result =
                    open_channel(sends ? &part->output_gradient : &part->input_gradient, pipeline, to, from);
        }
    }
    return result;
}

zr_result zr_channels_open(struct zr_channels *out, const struct zr_cut *cut,
                           const struct zr_pipeline *pipeline, const struct zr_engine_options *engine)
{
    memset(out, 0, sizeof *out);
    out->arena = engine->arena;
    out->kernels = engine->kernels;
    out->context = engine->context;
    out->parts_count = cut->parts_count;
    zr_result result = open_channels(out, cut, pipeline);
    if (result == ZR_OK && cut->shares)
        result = zr_comm_group(&out->sharing, pipeline->comm, cut->sharing, cut->sharing_count,
                               pipeline->bucket_bytes > 0 ? pipeline->bucket_bytes : SLOT_BYTES);
    zr_calls_name(out->sharing, "embedding");
    if (result != ZR_OK)
        zr_channels_close(out);
    return result;
}

static void channels_of(struct zr_channels *channels, unsigned part, struct zr_channel *out[WAYS])
{
    struct zr_part_channels *p = &channels->parts[part];
    out[0] = &p->input;
    out[1] = &p->input_gradient;
    out[2] = &p->output;
    out[3] = &p->output_gradient;
}

void zr_channels_close(struct zr_channels *channels)
{
    struct zr_channel *ways[WAYS];
    if (channels->arena)
        zr_channels_drain(channels);
    zr_comm_destroy(channels->sharing);
    for (unsigned i = channels->parts_count; i-- > 0;) {
        channels_of(channels, i, ways);
        for (unsigned w = WAYS; w-- > 0;)
            zr_comm_destroy(ways[w]->comm);
    }
    memset(channels, 0, sizeof *channels);
}

/* Waits for the last send and frees its block. */
static zr_result end_send(struct zr_channels *channels, struct zr_channel *channel)
{
    if (!channel->sent)
        return ZR_OK;
    zr_result result = zr_comm_wait(channel->comm, channel->ticket);
    zr_drop(channels->arena, &channel->sent);
    return result;
}

static bool is_packed(const struct zr_channel_block *block)
{
    return block->packing != ZR_PACKING_ONEBIT;
}

static size_t bytes_of(const struct zr_channel_block *block)
{
    return is_packed(block) ? zr_pack_bytes(block->packing, block->elements)
                            : block->elements * zr_precision_bytes(block->precision);
}

zr_result zr_channel_send(struct zr_channels *channels, struct zr_channel *channel,
                          const struct zr_channel_block *block)
{
    zr_result result = end_send(channels, channel);
    channel->sent = block->block;
    channel->ticket = 0;
    if (result == ZR_OK && is_packed(block)) {
        void *plain = block->block;
        channel->sent = NULL;
        result = zr_take(channels->arena, ZR_TAG_COMM, bytes_of(block), 1, &channel->sent);
        if (result == ZR_OK)
            result = channels->kernels->pack(channels->context,
                                             &(struct zr_pack){.packing = block->packing,
                                                               .n = block->elements,
                                                               .from = {plain, block->precision},
                                                               .to = channel->sent});
        zr_drop(channels->arena, &plain);
    }
    if (result != ZR_OK)
        return result;
    return zr_comm_send(channel->comm,
                        &(struct zr_transfer){.send = channel->sent,
                                              .send_bytes = bytes_of(block),
                                              .to = RECEIVER,
                                              .type = (enum zr_comm_type)block->precision,
                                              .packed_elements = is_packed(block) ? block->elements : 0},
                        &channel->ticket);
}

zr_result zr_channel_receive(struct zr_channels *channels, struct zr_channel *channel,
                             const struct zr_channel_block *block, struct zr_channel_message *message)
{
    *message = (struct zr_channel_message){.to = *block};
    zr_result result = is_packed(block)
                           ? zr_take(channels->arena, ZR_TAG_COMM, bytes_of(block), 1, &message->packed)
                           : ZR_OK;
    if (result != ZR_OK)
        return result;
    return zr_comm_receive(channel->comm,
                           &(struct zr_transfer){.receive = message->packed ? message->packed : block->block,
                                                 .receive_bytes = bytes_of(block),
                                                 .from = SENDER,
                                                 .type = (enum zr_comm_type)block->precision},
                           &message->ticket);
}

zr_result zr_channel_await(struct zr_channels *channels, struct zr_channel *channel,
                           struct zr_channel_message *message)
{
    const struct zr_channel_block *to = &message->to;
    const void *from = message->packed;
    zr_result result = zr_comm_wait(channel->comm, message->ticket);
    if (result != ZR_OK || !from)
        return result;
    result =
        channels->kernels->unpack(channels->context, &(struct zr_unpack){.packing = to->packing,
                                                                         .n = to->elements,
                                                                         .from = &from,
                                                                         .count = 1,
                                                                         .scale = 1,
                                                                         .to = {to->block, to->precision}});
    zr_drop(channels->arena, &message->packed);
    return result;
}

zr_result zr_channels_drain(struct zr_channels *channels)
{
    struct zr_channel *ways[WAYS];
    zr_result first = ZR_OK;
    for (unsigned i = 0; i < channels->parts_count; i++) {
        channels_of(channels, i, ways);
        for (unsigned w = 0; w < WAYS; w++) {
            zr_result result = end_send(channels, ways[w]);
            first = first == ZR_OK ? result : first;
        }
    }
    return first;
}

void zr_channels_count(const struct zr_channels *channels, struct zr_comm_counters *sum)
{
    for (unsigned i = 0; i < channels->parts_count; i++) {
        zr_comm_counters_add(channels->parts[i].input.comm, sum);
        zr_comm_counters_add(channels->parts[i].input_gradient.comm, sum);
        zr_comm_counters_add(channels->parts[i].output.comm, sum);
        zr_comm_counters_add(channels->parts[i].output_gradient.comm, sum);
    }
    zr_comm_counters_add(channels->sharing, sum);
}
