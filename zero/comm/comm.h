/* comm.h: what a communicator is inside. Private to zero/comm/.
 *
 * comm.c is the front that callers see: it checks arguments, counts, and queues operations for the
 * communicator's thread. An implementation (null.c, local.c) embeds struct zr_comm as its first member and
 * fills the table. */
#ifndef ZR_COMM_INTERNAL_H
#define ZR_COMM_INTERNAL_H

#include "alloc/os.h"
#include "zero/comm/zr_comm.h"

enum { ZR_COMM_QUEUE_COUNT = 64, ZR_COMM_WORDS_BYTES = 256 };

enum zr_comm_kind { ZR_COMM_REDUCE_SCATTER = 1, ZR_COMM_ALL_GATHER, ZR_COMM_ALL_REDUCE, ZR_COMM_EXCHANGE };

/* One operation on its way through the queue. */
struct zr_comm_item {
    enum zr_comm_kind kind;
    union {
        struct zr_reduce_scatter reduce_scatter;
        struct zr_all_gather all_gather; /* of EXCHANGE too */
        struct zr_all_reduce all_reduce;
    };
};

/* What an implementation does. `run` carries out one checked operation and returns when this rank is done
 * with it; it is called by one thread at a time. `close` gives back all that the implementation made; no
 * operation is running or waiting then, and the memory of the communicator itself is freed by the front. */
struct zr_comm_table {
    zr_result (*run)(struct zr_comm *comm, const struct zr_comm_item *item);
    void (*close)(struct zr_comm *comm);
};

struct zr_comm {
    const struct zr_comm_table *table;
    struct zr_comm_options options;
    struct zr_local_world *local; /* NULL: no launcher behind this rank */
    unsigned rank, world;
    bool threaded;           /* false: operations run inside the call that submits them */
    struct zr_thread thread; /* valid when threaded */

    pthread_mutex_t lock;
    pthread_cond_t work;     /* the queue has an operation, or stopping was set */
    pthread_cond_t progress; /* an operation has ended */
    /* All below: lock. */
    struct zr_comm_item queue[ZR_COMM_QUEUE_COUNT]; /* ticket n lives in slot n modulo the count */
    zr_ticket submitted, completed;                 /* tickets given out, and ended; in order */
    bool stopping;
    zr_result failure; /* the first failure stays: after it the ranks are out of step */
    char failure_words[ZR_COMM_WORDS_BYTES];
    uint64_t sent_bytes;
    struct zr_comm_counters counters; /* sent_elements is derived from sent_bytes */
};

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
