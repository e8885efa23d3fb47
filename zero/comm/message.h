/* message.h: a communicator over a transport, and its messages under way. Private to message.c, message_run.c
 * and mpi_start.c. */
#ifndef ZR_FABRIC_H
#define ZR_FABRIC_H

#include "alloc/base/process.h"
#include "zero/comm/comm.h"
#include "zero/comm/liveness.h"
#include "zero/comm/transport.h"

/* One message under way. */
struct zr_flight {
    struct zr_transport_request request;
    size_t bytes;
    unsigned peer;
    bool receives, done;
};

/* Messages that are waited for together. */
struct zr_batch {
    struct zr_flight *flights; /* [2 * world] */
    unsigned count;
};

struct fabric {
    struct zr_comm base;
    struct zr_transport *transport; /* borrowed */
    char *ring;                     /* two slots, a block of options.arena */
    size_t slot_bytes;
    size_t each_bytes;         /* for one peer in a slot */
    size_t most_bytes;         /* of one message */
    struct zr_batch batch[2];  /* the thread that runs operations */
    struct zr_process *people; /* [world]; complete after the first exchange */
    const void **from;         /* [world]: scratch for the sum */
    bool acquainted;           /* people is complete */
    struct zr_roll roll;       /* the thread that runs operations */
};

/* message.c: adds a message to a batch with room for it; waits until all of a batch have arrived, and empties
 * it. A failure names the rank. */
zr_result zr_fabric_send(struct fabric *fabric, struct zr_batch *batch,
                         const struct zr_transport_message *message);
zr_result zr_fabric_receive(struct fabric *fabric, struct zr_batch *batch,
                            const struct zr_transport_message *message);
zr_result zr_fabric_wait(struct fabric *fabric, struct zr_batch *batch);

/* message_run.c: carries out one operation, and counts; struct zr_comm_table has the contracts. */
zr_result zr_fabric_run(struct zr_comm *comm, const struct zr_comm_item *item);
uint64_t zr_fabric_sent_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);

/* A communicator over a transport whose ranks are all there, two at least. Collective. */
zr_result zr_fabric_create(zr_comm **out, const struct zr_comm_options *options,
                           struct zr_transport *transport);

#endif
