/* comm.h: internals of a communicator. Private to zero/comm/.
 *
 * operations.c and comm.c are the common front: they check arguments, count, and queue operations for the
 * communicator's thread. An implementation (null.c, local.c, message.c, nccl.c) embeds struct zr_comm as
 * its first member and fills the table. */
#ifndef ZR_COMM_INTERNAL_H
#define ZR_COMM_INTERNAL_H

#include "alloc/base/system/os.h"
#include "zero/comm/zr_comm.h"

enum { ZR_COMM_QUEUE_COUNT = 64, ZR_COMM_MESSAGE_BYTES = 256 };

/* A sum over the ranks: a reduce, a reduce-scatter, or the first half of an all-reduce. `sum` is the sum of
 * this rank's shard, without `from`; the shard of a reduce's root is all, and the other ranks have none. The
 * part of the shard at byte `first` of the addends has its own n, and is stored first * widens bytes behind
 * `to`. */
struct zr_comm_reduction {
    /* This rank's addends, [world * bytes], of a reduce [bytes]; of an all-reduce, the buffer. */
    const char *source;
    struct zr_sum sum;
    unsigned widens; /* 2: sums of two-byte elements are stored in fp32; else 1 */
    unsigned root;   /* of a reduce */
};

/* An operation in the queue. */
struct zr_comm_item {
    enum zr_comm_kind kind;
    enum zr_comm_type type;
    size_t bytes;           /* of a shard or of the whole buffer; 0 for a transfer */
    size_t packed_elements; /* see struct zr_all_gather */
    unsigned label;
    size_t host_bytes;
    const struct zr_comm_before *before;     /* NULL: none */
    const struct zr_comm_work *first, *last; /* NULL: none */
    union {
        struct zr_comm_reduction reduction; /* for REDUCE, REDUCE_SCATTER and ALL_REDUCE */
        struct zr_all_gather all_gather;    /* for ALL_GATHER, ALL_TO_ALL and HOST */
        struct zr_broadcast broadcast;
        struct zr_transfer transfer; /* for SEND, RECEIVE and SEND_RECEIVE */
    };
};

/* Whether rank p sums / this rank's addends for rank p. */
static inline bool zr_comm_sums(const struct zr_comm_item *item, unsigned p)
{
    return item->kind != ZR_COMM_REDUCE || p == item->reduction.root;
}
static inline const char *zr_comm_addends(const struct zr_comm_item *item, unsigned p)
{
    return item->reduction.source + (item->kind == ZR_COMM_REDUCE ? 0 : p * item->bytes);
}

/* The ranks of a group, as ranks of its parent. */
struct zr_comm_members {
    const unsigned *ranks;                 /* [count], borrowed */
    unsigned count, rank;                  /* this rank is ranks[rank] */
    const struct zr_comm_options *options; /* options of the group, borrowed */
    bool everyone;                         /* zr_comm_split(): every rank of the parent creates one of the
                                            * groups */
};

/* Recording of operations into a graph. ZR_COMM_DROPS discards the recording as if its operations had
 * never been submitted. */
enum zr_comm_recording { ZR_COMM_BEGINS, ZR_COMM_ENDS, ZR_COMM_DROPS };

/* Functions of an implementation. `run` carries out one checked operation and returns when this rank is
 * done with it; one thread at a time calls it. `close` releases everything except the communicator's own
 * memory, which the front frees; no operation is in progress then. */
struct zr_comm_table {
    const char *name;
    bool meets; /* an operation ends on no rank before all ranks have begun it */
    bool talks; /* host messages have a transport of their own and do not wait for the stream */
    /* Bytes that this rank sends for an operation; NULL: as many as direct transfers between all pairs. */
    uint64_t (*sent_bytes)(const struct zr_comm *comm, const struct zr_comm_item *item);
    zr_result (*run)(struct zr_comm *comm, const struct zr_comm_item *item);
    /* A host all-gather or, with 0 bytes, a barrier. Runs in the caller's thread, possibly concurrently
     * with `run`. */
    zr_result (*host)(struct zr_comm *comm, const struct zr_all_gather *op);
    /* Creates a group; `members` are ranks of the parent. */
    zr_result (*group)(struct zr_comm **out, struct zr_comm *parent, const struct zr_comm_members *members);
    /* Optional: the operation was submitted as `ticket` / the caller waits for it. Caller holds lock. */
    void (*submitted)(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket ticket);
    void (*waited)(struct zr_comm *comm, zr_ticket ticket);
    /* Optional: waits until no peer reads the source of a gather with source_stays. Caller holds lock, and
     * the queue is empty. */
    zr_result (*synchronize)(struct zr_comm *comm);
    /* Optional: checks the peers after a wait of this length for the GPU. Any thread. */
    zr_result (*look)(struct zr_comm *comm, uint64_t waited_ns);
    /* Optional, for operations in a stream: begins or ends the recording of operations into a graph /
     * waits until all ranks are about to launch the graph. Without these, operations cannot be recorded. */
    void (*record)(struct zr_comm *comm, enum zr_comm_recording what);
    zr_result (*again)(struct zr_comm *comm);
    /* Optional: ends all waits of the run on all ranks. */
    void (*abandon)(struct zr_comm *comm, const char *why);
    void (*close)(struct zr_comm *comm);
};

struct zr_comm {
    const struct zr_comm_table *table;
    struct zr_comm_options options;
    struct zr_local_world *local; /* NULL: the rank has no launcher */
    unsigned rank, world;
    unsigned run_rank;            /* this rank in the run */
    struct zr_local_calls *calls; /* record of its operations, see calls.h; NULL: none */
    bool threaded;                /* false: operations run inside the submitting call */
    struct zr_thread thread;      /* valid if threaded */
    /* Bytes received so far. `run` and `host` count at each copy, sum or arrival; their callers read the
     * counters. */
    uint64_t received_bytes, host_received_bytes;
    uint64_t waited_ns; /* waits of `run` for peers, which only local ranks count */
    /* Context of kernels whose tensors the host cannot read, opened by the first sum or copy. See
     * device.c. */
    struct zr_kernel_context context;
    bool context_open;
    /* Kernels with streams: the event of the caller's stream at submission, and the end events of
     * operations by ticket modulo the count. Used by the submitting thread. */
    void *begun, *ended[ZR_COMM_QUEUE_COUNT];
    _Atomic zr_ticket queued;  /* the last operation with an end event */
    struct zr_timeout timeout; /* of waits for the GPU since the last submission */

    pthread_mutex_t lock;
    pthread_cond_t work;     /* signals a queued operation, or stopping */
    pthread_cond_t progress; /* signals the end of an operation */
    /* Guarded by lock from here on. */
    struct zr_comm_item queue[ZR_COMM_QUEUE_COUNT]; /* ticket n is in slot n modulo the count */
    zr_ticket submitted, completed;                 /* last ticket submitted and completed */
    bool stopping;
    zr_result failure; /* the first failure is kept: the ranks are out of step after it */
    char failure_message[ZR_COMM_MESSAGE_BYTES];
    struct zr_comm_counters counters;
};

/* comm.c: queues an operation / carries out a host message. */
zr_result zr_comm_submit(struct zr_comm *comm, const struct zr_comm_item *item, zr_ticket *ticket);
zr_result zr_comm_run_host(struct zr_comm *comm, const struct zr_all_gather *op);
/* Bytes that this rank sends to others with direct transfers, host messages included. */
uint64_t zr_comm_direct_bytes(const struct zr_comm *comm, const struct zr_comm_item *item);
#define ZR_COMM_TYPE_BYTES(type) ((type) == ZR_COMM_FP32 ? sizeof(float) : sizeof(uint16_t))
/* Records progress, for a launcher with a deadline. */
void zr_comm_heartbeat(struct zr_comm *comm);
/* Earliest start on a clock. */
static inline double zr_comm_ready_seconds(const struct zr_comm_item *item)
{
    return item->before ? item->before->ready_seconds : 0;
}

/* A range of every shard, in bytes of the sources. */
struct zr_comm_part {
    size_t first, bytes;
};

/* device.c: copies bytes within tensor memory, in the kernels' stream or at once if the host can read
 * tensors / waits for all copies and sums / the context for sums, NULL if none is needed. */
zr_result zr_comm_copy(struct zr_comm *comm, void *to, const void *from, size_t bytes);
zr_result zr_comm_end_copies(struct zr_comm *comm);
zr_result zr_comm_context(struct zr_comm *comm, struct zr_kernel_context **out);
/* Whether operations run in their own stream, ordered with the caller's stream by events. */
static inline bool zr_comm_by_stream(const struct zr_comm *comm)
{
    return comm->options.beside && comm->options.kernels->streams;
}
/* For zr_comm_by_stream(); no effect otherwise. Called before an operation is queued / after an operation was
 * queued as `ticket` / to make the caller's stream wait for an operation / to make the host wait for all
 * operations. Caller holds lock, except for zr_comm_drain(). */
zr_result zr_comm_stream_begin(struct zr_comm *comm);
zr_result zr_comm_stream_end(struct zr_comm *comm, zr_ticket ticket);
zr_result zr_comm_stream_wait(struct zr_comm *comm, zr_ticket ticket);
zr_result zr_comm_drain(struct zr_comm *comm);
/* Makes work of `leader`'s operations the caller of `comm`: operations of `comm` begin after the work that is
 * queued in the leader's stream, which waits for them. Does nothing without streams. */
void zr_comm_follow(struct zr_comm *comm, const struct zr_comm *leader);
/* With no operation in progress: begins or ends recording operations into a graph of the caller's stream /
 * called by all ranks before they launch the graph. */
void zr_comm_record(struct zr_comm *comm, enum zr_comm_recording what);
zr_result zr_comm_again(struct zr_comm *comm);
void zr_comm_context_close(struct zr_comm *comm);

/* Initializes the common part of a communicator, without a thread. */
void zr_comm_open(struct zr_comm *comm, const struct zr_comm_table *table,
                  const struct zr_comm_options *options);
/* Starts the thread that runs the queue. */
zr_result zr_comm_thread_start(struct zr_comm *comm);
/* Checks options and ranks; sets an error message. */
zr_result zr_comm_options_check(const struct zr_comm_options *options, unsigned rank, unsigned world);
/* Bytes of a ring slot: bucket_bytes rounded up to one line per other rank. */
size_t zr_comm_slot_bytes(unsigned world, size_t bucket_bytes);

#endif
