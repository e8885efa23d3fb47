/* comm.h: what a communicator is inside. Private to zero/comm/.
 *
 * operations.c and comm.c are the front that callers see: they check arguments, count, and queue operations
 * for the communicator's thread. An implementation (null.c, local.c, message.c) embeds struct zr_comm as its
 * first member and fills the table. */
#ifndef ZR_COMM_INTERNAL_H
#define ZR_COMM_INTERNAL_H

#include "alloc/base/system/os.h"
#include "zero/comm/zr_comm.h"
#include "zero/launch/timeout.h"

enum { ZR_COMM_QUEUE_COUNT = 64, ZR_COMM_MESSAGE_BYTES = 256 };

/* One operation on its way through the queue. */
struct zr_comm_item {
    enum zr_comm_kind kind;
    union {
        struct zr_reduce_scatter reduce_scatter;
        struct zr_all_gather all_gather; /* of EXCHANGE too */
        struct zr_all_reduce all_reduce;
        struct zr_broadcast broadcast;
        struct zr_transfer transfer; /* of SEND, RECEIVE and SEND_RECEIVE */
    };
};

/* The ranks of a group, by their numbers in its parent. */
struct zr_comm_members {
    const unsigned *ranks;                 /* [count]: borrowed */
    unsigned count, rank;                  /* this rank is ranks[rank] */
    const struct zr_comm_options *options; /* of the group: borrowed */
    bool everyone;                         /* every rank of the parent makes one of the groups now */
};

/* Of a graph that operations are recorded for. ZR_COMM_DROPS: what was recorded is not done, and what follows
 * is as if it had never been handed in. */
enum zr_comm_recording { ZR_COMM_BEGINS, ZR_COMM_ENDS, ZR_COMM_DROPS };

/* What an implementation does. `run` carries out one checked operation and returns when this rank is done
 * with it; it is called by one thread at a time. `close` gives back all that the implementation made; no
 * operation is running or waiting then, and the memory of the communicator itself is freed by the front. */
struct zr_comm_table {
    const char *name;
    bool meets; /* no operation ends on a rank before all others have begun it */
    /* What this rank sends to others for it; NULL: what it takes straight from each to each. */
    uint64_t (*sent_bytes)(const struct zr_comm *comm, const struct zr_comm_item *item);
    zr_result (*run)(struct zr_comm *comm, const struct zr_comm_item *item);
    /* A host all-gather or, of no bytes, a barrier: in the caller's thread, while `run` may be under way in
     * the communicator's. */
    zr_result (*host)(struct zr_comm *comm, const struct zr_all_gather *op);
    /* Makes *out, a communicator of several of these ranks, `members` by their numbers here.*/
    zr_result (*group)(struct zr_comm **out, struct zr_comm *parent, const struct zr_comm_members *members);
    /* Optional: an operation is handed in as `ticket`; the caller waits for it. lock held. */
    void (*submitted)(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket);
    void (*waited)(struct zr_comm *comm, zr_ticket ticket);
    /* Optional: waits until no peer reads what a gather whose source stays has offered. lock held, nothing in
     * the queue. */
    zr_result (*synchronize)(struct zr_comm *comm);
    /* Optional: whether the peers live, after such a wait for the card. Any thread. */
    zr_result (*look)(struct zr_comm *comm, uint64_t waited_ns);
    /* Optional, where operations run by stream: those that are handed in between the two are recorded, to be
     * done again by a graph / all ranks are about to do so; returns when they may. Without these nothing is
     * recorded. */
    void (*record)(struct zr_comm *comm, enum zr_comm_recording what);
    zr_result (*again)(struct zr_comm *comm);
    /* Optional: ends all waits of the run, here and elsewhere. */
    void (*abandon)(struct zr_comm *comm, const char *why);
    void (*close)(struct zr_comm *comm);
};

struct zr_comm {
    const struct zr_comm_table *table;
    struct zr_comm_options options;
    struct zr_local_world *local; /* NULL: no launcher behind this rank */
    unsigned rank, world;
    unsigned run_rank;            /* this rank's number in the run */
    struct zr_local_calls *calls; /* what is noted of its operations; NULL: nothing. See calls.h */
    bool threaded;                /* false: operations run inside the call that submits them */
    struct zr_thread thread;      /* valid when threaded */
    /* Taken from other ranks so far; counted by `run` at each copy, sum or arrival, and looked at by whoever
     * calls it. Likewise by `host`. */
    uint64_t received_bytes, host_received_bytes;
    /* Of kernels whose tensors the host does not see: made by the first sum or copy. See device.c. */
    struct zr_kernel_context context;
    bool context_open;
    /* On a card with streams: where the caller's work was when an operation was handed in, and the ends of
     * operations, by ticket modulo the count. The submitting thread's. */
    void *begun, *ended[ZR_COMM_QUEUE_COUNT];
    struct zr_timeout timeout; /* of waits for the card, since an operation was handed in */

    pthread_mutex_t lock;
    pthread_cond_t work;     /* the queue has an operation, or stopping was set */
    pthread_cond_t progress; /* an operation has ended */
    /* All below: lock. */
    struct zr_comm_item queue[ZR_COMM_QUEUE_COUNT]; /* ticket n lives in slot n modulo the count */
    zr_ticket submitted, completed;                 /* tickets given out, and ended; in order */
    bool stopping;
    zr_result failure; /* the first failure stays: after it the ranks are out of step */
    char failure_message[ZR_COMM_MESSAGE_BYTES];
    struct zr_comm_counters counters;
};

/* comm.c: hands an operation in, to run in the communicator's thread / carries out a host message. */
zr_result zr_comm_submit(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket *ticket);
zr_result zr_comm_run_host(struct zr_comm *comm, const struct zr_all_gather *op);
/* Bytes that go from this rank to others when each takes from each directly, exchanges included. */
uint64_t zr_comm_direct_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);
enum zr_comm_type zr_comm_item_type(const struct zr_comm_item *item);
/* Before which it does not start by a clock. */
static inline double zr_comm_ready_seconds(const struct zr_comm_item *item)
{
    bool waits = item->kind == ZR_COMM_ALL_GATHER && item->all_gather.before;
    return waits ? item->all_gather.before->ready_seconds : 0;
}
/* Bytes of a shard, or of what there is only one of; of a transfer, 0. */
size_t zr_comm_item_bytes(const struct zr_comm_item *item);

/* sum.c: to[count] = base + scale * (from[0] + from[1] + ..), in this order for each element. `to` may be one
 * of the sources. */
struct zr_comm_sum {
    size_t count;
    const void *const *from; /* [ranks] */
    unsigned ranks;
    enum zr_comm_type type; /* of the sources, the base and, unless `wide` (fp32), the destination */
    bool wide, accumulate;  /* accumulate: `to` is the base */
    float scale;
    void *to;
    const void *base; /* or NULL; not with accumulate */
};
zr_result zr_comm_sum(struct zr_comm *comm, const struct zr_comm_sum *sum);

/* What this rank is to add for an operation, shard by shard: all but `from`, and count. */
struct zr_comm_sum zr_comm_sum_of(const struct zr_comm *comm, const struct zr_comm_item *item);
/* A part of every shard, in bytes of the sources. */
struct zr_comm_part {
    size_t first, bytes;
};
/* The part of a sum; `from` points to where it begins in each source. */
zr_result zr_comm_sum_part(struct zr_comm *comm, const struct zr_comm_sum *whole, struct zr_comm_part part);

/* device.c: bytes within what tensors are made of, in the order of the kernels' stream, or at once where the
 * host sees them / all copies and sums have ended / the context for sums, NULL where they need none. */
zr_result zr_comm_copy(struct zr_comm *comm, void *to, const void *from, size_t bytes);
zr_result zr_comm_end_copies(struct zr_comm *comm);
zr_result zr_comm_context(struct zr_comm *comm, struct zr_kernel_context **out);
/* Whether operations run in a stream of their own, and events order them with the caller's. */
static inline bool zr_comm_by_stream(const struct zr_comm *comm)
{
    return comm->options.beside && comm->options.kernels->streams;
}
/* Then: before an operation is queued / after it, as `ticket` / the caller's stream waits for it / the host
 * does, for all. lock held, but for the last. Else they do nothing. */
zr_result zr_comm_stream_begin(struct zr_comm *comm);
zr_result zr_comm_stream_end(struct zr_comm *comm, zr_ticket ticket);
zr_result zr_comm_stream_wait(struct zr_comm *comm, zr_ticket ticket);
zr_result zr_comm_drain(struct zr_comm *comm);
/* Of a graph of the caller's stream, with no operation under way: they are recorded from here on, or to here
 * / the ranks are about to launch it, all of them. */
void zr_comm_record(struct zr_comm *comm, enum zr_comm_recording what);
zr_result zr_comm_again(struct zr_comm *comm);
void zr_comm_context_close(struct zr_comm *comm);

/* Clears and fills the common part of a communicator, without a thread. */
void zr_comm_open(struct zr_comm *comm, const struct zr_comm_table *table,
                  const struct zr_comm_options *options);
/* Starts the thread that runs the queue / ends it after the operations that were submitted. */
zr_result zr_comm_thread_start(struct zr_comm *comm);
void zr_comm_thread_stop(struct zr_comm *comm);
/* Checks options and rank numbers, in words for people. */
zr_result zr_comm_options_check(const struct zr_comm_options *options, unsigned rank, unsigned world);
/* One slot of the ring: bucket_bytes, rounded so that every other rank gets a line of its own in it. */
size_t zr_comm_slot_bytes(unsigned world, size_t bucket_bytes);

#endif
