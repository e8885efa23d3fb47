/* channels.h: what the stages of a pipeline hand one another: outputs to the stage behind, their gradients to
 * the stage before. Each way between two stages on different ranks has a communicator of the two ranks, whose
 * operations are all of one kind: so whatever the schedules' order, nobody waits for a message that stands
 * behind another. What is sent goes in pieces, through the communicator's slots of constant size.
 *
 * A block that is sent stays until the next one is sent the same way, or until the end of the pass: so places
 * do not depend on how fast the other side is. */
#ifndef ZR_STEP_CHANNELS_H
#define ZR_STEP_CHANNELS_H

#include "zero/model/cut.h"

/* One way. */
struct zr_channel {
    zr_comm *comm;    /* of sender and receiver, in this order; NULL: there is none */
    void *sent;       /* a block that is being sent */
    zr_ticket ticket; /* of it */
};

/* Of one part of this rank's. */
struct zr_part_channels {
    struct zr_channel input, input_gradient;   /* receives from the stage before; sends to it */
    struct zr_channel output, output_gradient; /* sends to the stage behind; receives from it */
};

struct zr_channels {
    zr_arena *arena; /* of the blocks that are sent */
    struct zr_part_channels parts[ZR_PIPELINE_PARTS_MOST];
    unsigned parts_count;
    zr_comm *sharing; /* of the ranks that share units with this one; NULL: none */
};

/* Collective over the pipeline's ranks. */
zr_result zr_channels_open(struct zr_channels *out, const struct zr_cut *cut,
                           const struct zr_pipeline *pipeline, zr_arena *arena);
void zr_channels_close(struct zr_channels *channels);

/* Sends a block, which is the channel's from here on. */
struct zr_channel_block {
    void *block;
    size_t bytes;
    enum zr_comm_type type;
};
zr_result zr_channel_send(struct zr_channels *channels, struct zr_channel *channel,
                          const struct zr_channel_block *block);
zr_result zr_channel_receive(struct zr_channel *channel, const struct zr_channel_block *block,
                             zr_ticket *ticket);
/* Waits until everything is sent, and frees the blocks. */
zr_result zr_channels_drain(struct zr_channels *channels);

/* Adds what has been sent so far to *sum. */
struct zr_comm_counters;
void zr_channels_count(const struct zr_channels *channels, struct zr_comm_counters *sum);

#endif
