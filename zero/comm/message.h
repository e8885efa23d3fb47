/* message.h: a communicator over a transport, and its messages under way. Private to message.c, message_run.c
 * and mpi_start.c. */
#ifndef ZR_MESSAGE_H
#define ZR_MESSAGE_H

#include "alloc/base/process.h"
#include "zero/comm/comm.h"
#include "zero/comm/liveness.h"
#include "zero/comm/transport.h"

/* One message under way. */
struct zr_message_operation {
    struct zr_transport_request request;
    size_t bytes;
    unsigned peer;
    bool receives, done;
};

/* Messages that are waited for together. */
struct zr_message_operations {
    struct zr_message_operation *operations; /* [2 * world] */
    unsigned count;
};

struct message_comm {
    struct zr_comm base;
    struct zr_transport *transport; /* borrowed */
    char *ring;                     /* two slots, a block of options.arena */
    size_t slot_bytes;
    size_t each_bytes;                         /* for one peer in a slot */
    size_t most_bytes;                         /* of one message */
    struct zr_message_operations under_way[2]; /* the thread that runs operations */
    struct zr_process *processes;              /* [world]; complete after the first exchange */
    const void **from;                         /* [world]: scratch for the sum */
    bool introduced;                           /* processes is complete */
    struct zr_roll roll;                       /* the thread that runs operations */
};

/* message.c: adds a message to a under_way with room for it; waits until all of a under_way have arrived, and
 * empties it. A failure names the rank. */
zr_result zr_message_send(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct zr_transport_message *message);
zr_result zr_message_receive(struct message_comm *self, struct zr_message_operations *under_way,
                             const struct zr_transport_message *message);
zr_result zr_message_wait(struct message_comm *self, struct zr_message_operations *under_way);

/* message_run.c: carries out one operation, and counts; struct zr_comm_table has the contracts. */
zr_result zr_message_run(struct zr_comm *comm, const struct zr_comm_item *item);
uint64_t zr_message_sent_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);

/* A communicator over a transport whose ranks are all there, two at least. Collective. */
zr_result zr_message_create(zr_comm **out, const struct zr_comm_options *options,
                            struct zr_transport *transport);

#endif
