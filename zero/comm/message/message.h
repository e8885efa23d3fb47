/* message.h: a communicator over a message transport and its pending messages. Private to message.c,
 * message_run.c, joined.c and the files that start ranks. */
#ifndef ZR_MESSAGE_H
#define ZR_MESSAGE_H

#include "alloc/base/system/process.h"
#include "zero/comm/comm.h"
#include "zero/comm/liveness.h"
#include "zero/comm/message/transport.h"

/* A process in a run over a transport; shared by its communicators. */
struct zr_message_world {
    struct zr_transport *transport; /* borrowed */
    pthread_mutex_t lock;           /* covers the transport and the fields below */
    struct zr_liveness liveness;
    struct zr_message_wait *waits; /* waits that have lasted for a while */
    struct zr_process processes[ZR_MAX_WORLD];
    bool introduced;     /* processes is complete */
    unsigned host_ranks; /* of each host; 0: hosts do not have equal numbers of consecutive ranks */
    unsigned settled; /* 1 + host_ranks of an earlier connection of these ranks, which counts: copies of state
                       * are where it says; 0: there was none */
    uint32_t contexts; /* number of communicators created so far; each has its own tags */
};
void zr_message_world_open(struct zr_message_world *world, struct zr_transport *transport);
void zr_message_world_close(struct zr_message_world *world);

/* joined.c: makes this process a rank of the run over an open transport, which it borrows / and no longer. */
void zr_message_join(struct zr_transport *transport);
void zr_message_leave(void);

/* A pending message. */
struct zr_message_operation {
    struct zr_transport_request request;
    size_t bytes;
    unsigned peer; /* rank in the run */
    bool receives, done;
    void *tensor, *staged; /* GPU tensor to receive, and the host buffer where its message arrives; NULL:
                            * none */
};

/* Messages of one tag with a common wait. */
struct zr_message_operations {
    struct zr_message_operation *operations; /* [2 * world] */
    unsigned count;
    uint32_t tag;
    uint64_t *received_bytes;
    char *staging; /* [2 * (world - 1)][most_bytes], for GPU tensors; NULL: none */
};

struct message_comm {
    _Alignas(struct zr_message_operation) struct zr_comm base; /* aligned for the message operations that
                                                                * follow the struct */
    struct zr_message_world *run;                              /* borrowed */
    char *ring;                                                /* two slots, a block of options.arena */
    char *staging; /* of under_way, a block of options.host_arena; NULL: none */
    size_t slot_bytes;
    size_t each_bytes;                         /* bytes per peer in a slot */
    size_t most_bytes;                         /* maximum bytes of one message */
    struct zr_message_operations under_way[2]; /* used by the thread that runs operations */
    struct zr_message_operations host;         /* used by the caller's thread */
    unsigned *ranks;                           /* [world]: ranks in the run */
    const void **from;                         /* [world]: operands of a sum */
};

/* message.c: adds a message to a set with a free element; its peer is a rank of the communicator / waits
 * until all messages of a set have arrived, and empties it. Errors name the rank. */
zr_result zr_message_send(struct message_comm *self, struct zr_message_operations *under_way,
                          const struct zr_transport_message *message);
zr_result zr_message_receive(struct message_comm *self, struct zr_message_operations *under_way,
                             const struct zr_transport_message *message);
zr_result zr_message_wait(struct message_comm *self, struct zr_message_operations *under_way);

/* message_run.c: entries of struct zr_comm_table. */
zr_result zr_message_run(struct zr_comm *comm, const struct zr_comm_item *item);
zr_result zr_message_host(struct zr_comm *comm, const struct zr_all_gather *op);
uint64_t zr_message_sent_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);

/* Creates a communicator over a transport with at least two ranks. Collective; one at a time, plus its
 * groups. */
zr_result zr_message_create(zr_comm **out, const struct zr_comm_options *options,
                            struct zr_message_world *world);

#endif
