/* message.h: a communicator over a message transport, and its operations under way. Private to message.c,
 * message_run.c and mpi_start.c. */
#ifndef ZR_MESSAGE_H
#define ZR_MESSAGE_H

#include "alloc/base/system/process.h"
#include "zero/comm/comm.h"
#include "zero/comm/liveness.h"
#include "zero/comm/message/transport.h"

/* One process's part in a run over a transport: what its communicators share. */
struct zr_message_world {
    struct zr_transport *transport; /* borrowed */
    pthread_mutex_t lock;           /* every call on the transport, and all below */
    struct zr_liveness liveness;
    struct zr_message_wait *waits; /* that have lasted for a while */
    struct zr_process processes[ZR_MAX_WORLD];
    bool introduced;   /* processes is complete */
    uint32_t contexts; /* given out to communicators so far: each has tags of its own */
};
void zr_message_world_open(struct zr_message_world *world, struct zr_transport *transport);
void zr_message_world_close(struct zr_message_world *world);

/* One message under way. */
struct zr_message_operation {
    struct zr_transport_request request;
    size_t bytes;
    unsigned peer; /* in the run */
    bool receives, done;
    void *tensor, *staged; /* a received tensor on a card, and where its message arrives; NULL: no such one */
};

/* Messages of one tag that are waited for together. */
struct zr_message_operations {
    struct zr_message_operation *operations; /* [2 * world] */
    unsigned count;
    uint32_t tag;
    uint64_t *received_bytes;
    char *staging; /* [2 * (world - 1)][most_bytes] of messages of tensors on a card; NULL: of others */
};

struct message_comm {
    _Alignas(struct zr_message_operation) struct zr_comm base; /* such records follow */
    struct zr_message_world *run;                              /* borrowed */
    char *ring;                                                /* two slots, a block of options.arena */
    char *staging; /* of under_way, a block of options.host_arena; NULL: none */
    size_t slot_bytes;
    size_t each_bytes;                         /* for one peer in a slot */
    size_t most_bytes;                         /* of one message */
    struct zr_message_operations under_way[2]; /* the thread that runs operations */
    struct zr_message_operations host;         /* the caller's thread */
    unsigned *ranks;                           /* [world]: in the run */
    const void **from;                         /* [world]: scratch for the sum */
};

/* message.c: adds a message to a set with room for it, its peer a rank of the communicator; waits until all
 * of a set have arrived, and empties it. A failure names the rank. */
zr_result zr_message_send(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct zr_transport_message *message);
zr_result zr_message_receive(struct message_comm *self, struct zr_message_operations *under_way,
                             const struct zr_transport_message *message);
zr_result zr_message_wait(struct message_comm *self, struct zr_message_operations *under_way);

/* message_run.c: carries out one operation, and counts; struct zr_comm_table has the contracts. */
zr_result zr_message_run(struct zr_comm *comm, const struct zr_comm_item *item);
zr_result zr_message_host(struct zr_comm *comm, const struct zr_all_gather *op);
uint64_t zr_message_sent_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);

/* A communicator over a transport whose ranks are all there, two at least. Collective; one at a time, and its
 * groups. */
zr_result zr_message_create(zr_comm **out, const struct zr_comm_options *options,
                            struct zr_message_world *world);

#endif
