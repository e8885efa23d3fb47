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

/* One direction. */
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
    zr_arena *arena; /* owns the blocks that are sent */
    struct zr_part_channels parts[ZR_PIPELINE_PARTS_MAX];
    unsigned parts_count;
    zr_comm *sharing; /* communicator of the ranks that share units with this rank; NULL: none */
};

/* Collective over the pipeline's ranks. */
zr_result zr_channels_open(struct zr_channels *out, const struct zr_cut *cut,
                           const struct zr_pipeline *pipeline, zr_arena *arena);
void zr_channels_close(struct zr_channels *channels);

/* Sends a block; the channel owns the block from then on. */
struct zr_channel_block {
    void *block;
    size_t bytes;
    enum zr_comm_type type;
};
zr_result zr_channel_send(struct zr_channels *channels, struct zr_channel *channel,
                          const struct zr_channel_block *block);
zr_result zr_channel_receive(struct zr_channel *channel, const struct zr_channel_block *block,
                             zr_ticket *ticket);
/* Waits for all sends and frees their blocks. */
zr_result zr_channels_drain(struct zr_channels *channels);

/* Adds the counters of all channels to *sum. */
struct zr_comm_counters;
void zr_channels_count(const struct zr_channels *channels, struct zr_comm_counters *sum);

#endif
