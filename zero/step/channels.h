/* channels.h: point-to-point transfers between pipeline stages: outputs to the next stage, gradients to the
 * previous one. Each direction between two stages on different ranks has its own two-rank communicator, so
 * messages of different kinds never block each other, whatever the schedule. Messages are sent in pieces
 * through the communicator's slots.
 *
 * A sent block is freed when the next block is sent in the same direction, or at the end of the pass.
 * Placement of blocks therefore does not depend on the speed of the receiver. */
#ifndef ZR_STEP_CHANNELS_H
#define ZR_STEP_CHANNELS_H

#include "zero/model/cut.h"

/* One direction. Numbers may be packed before they are sent, in the trainer's thread. */
struct zr_channel {
    zr_comm *comm;    /* rank 0 is the sender, rank 1 the receiver; NULL: unused */
    void *sent;       /* block being sent */
    zr_ticket ticket; /* operation that sends the block */
};

/* Channels of one of this rank's parts. */
struct zr_part_channels {
    struct zr_channel input, input_gradient;   /* received from / sent to the previous stage */
    struct zr_channel output, output_gradient; /* sent to / received from the next stage */
};

struct zr_channels {
    zr_arena *arena;                  /* owns the blocks that are sent */
    const struct zr_kernels *kernels; /* they pack; borrowed, with an open context */
    struct zr_kernel_context *context;
    struct zr_part_channels parts[ZR_PIPELINE_PARTS_MAX];
    unsigned parts_count;
    zr_comm *sharing; /* communicator of the ranks that share units with this rank; NULL: none */
};

/* Collective over the pipeline's ranks. */
zr_result zr_channels_open(struct zr_channels *out, const struct zr_cut *cut,
                           const struct zr_pipeline *pipeline, const struct zr_engine_options *engine);
void zr_channels_close(struct zr_channels *channels);

struct zr_channel_block {
    void *block;
    size_t elements;
    enum zr_precision precision;
    enum zr_packing packing; /* ZR_PACKING_ONEBIT: sent as they are */
};
/* A block that is being received. Zeros: none. */
struct zr_channel_message {
    zr_ticket ticket;
    void *packed; /* NULL: received without packing, or unpacked */
    struct zr_channel_block to;
};

/* Sends a block; the channel owns the block from then on, and frees it now if it is packed. */
zr_result zr_channel_send(struct zr_channels *channels, struct zr_channel *channel,
                          const struct zr_channel_block *block);
/* Starts to receive. The packed numbers have a block of tag comm until the message has been awaited or, after
 * a failure, until the caller frees it. */
zr_result zr_channel_receive(struct zr_channels *channels, struct zr_channel *channel,
                             const struct zr_channel_block *block, struct zr_channel_message *message);
/* Waits for a message, and unpacks it the first time. */
zr_result zr_channel_await(struct zr_channels *channels, struct zr_channel *channel,
                           struct zr_channel_message *message);
/* Waits for all sends and frees their blocks. */
zr_result zr_channels_drain(struct zr_channels *channels);

/* Adds the counters of all channels to *sum. */
struct zr_comm_counters;
void zr_channels_count(const struct zr_channels *channels, struct zr_comm_counters *sum);

#endif
