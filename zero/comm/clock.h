/* clock.h: the time of a rehearsal. The caller computes at so many operations a second; what it hands to a
 * null communicator is done one after the other, each in the time that its bytes take, while the caller goes
 * on; and where the caller waits for a ticket, it waits on this clock. A communicator and its groups share
 * the clock, and work beside one another. Private to zero/. */
#ifndef ZR_COMM_CLOCK_H
#define ZR_COMM_CLOCK_H

#include "zero/comm/comm.h"

/* The offload files of an engine, which share a disk. */
enum zr_clock_file { ZR_CLOCK_STATE, ZR_CLOCK_PARAMETERS };

struct zr_comm_clock {
    double flops_per_second, bytes_per_second;
    double host_bytes_per_second; /* of copies to and from host memory; 0: they take no time */
    double nvme_bytes_per_second; /* of an offload file, read and written at once; 0: they take no time */
    double updates_per_second;    /* elements that an update's own thread updates; likewise */
    double host_waited_seconds, nvme_waited_seconds; /* of waited_seconds, those for the two */
    double flops;          /* that the caller has done; zr_kernel_context.flops points here */
    double waited_seconds; /* by the caller */
    /* The communicators'. */
    uint64_t sent_bytes;
    double busy_seconds;
    double begin_seconds, end_seconds; /* of the last operation */
    double idle_seconds;               /* from here on all are idle */
    double disk_idle_seconds[2];       /* likewise the disk, for each enum zr_clock_file */
    double update_idle_seconds;        /* likewise an update's own thread */
    /* Called for each operation that takes time, when begin_seconds and end_seconds are its own; `label` is
     * that of its caller. NULL: nobody listens. */
    void (*submitted)(void *state, unsigned label);
    void *state;
};

/* What one communicator has under way by the clock. Zero at first. */
struct zr_comm_clock_queue {
    double end_seconds;                       /* of the last operation */
    double ends_seconds[ZR_COMM_QUEUE_COUNT]; /* of ticket n in slot n modulo the count */
};

/* An operation is handed in. */
struct zr_comm_clock_operation {
    zr_ticket ticket;
    uint64_t bytes;
    double bytes_per_second;
    double ready_seconds; /* it does not begin before; 0: at once */
    unsigned label;
};
void zr_comm_clock_submit(struct zr_comm_clock *clock, struct zr_comm_clock_queue *queue,
                          const struct zr_comm_clock_operation *operation);
/* The caller waits for a ticket; `submitted` is the last one. */
void zr_comm_clock_wait(struct zr_comm_clock *clock, const struct zr_comm_clock_queue *queue,
                        zr_ticket ticket, zr_ticket submitted);

/* Bytes are handed to the disk, which is one for both directions: they begin when those before them of the
 * same file have ended, and as long as the other file has something under way each gets half of the rate.
 * When they end; 0 where the clock, which may be NULL, knows no disk. */
double zr_comm_clock_disk(struct zr_comm_clock *clock, enum zr_clock_file file, uint64_t bytes);
/* When both files are idle. */
static inline double zr_comm_clock_disk_idle(const struct zr_comm_clock *clock)
{
    const double *idle = clock->disk_idle_seconds;
    return idle[0] > idle[1] ? idle[0] : idle[1];
}
/* The caller waits until then. For how long; 0 without a clock. */
double zr_comm_clock_wait_until(struct zr_comm_clock *clock, double end_seconds);
/* Likewise for the disk. */
void zr_comm_clock_wait_disk(struct zr_comm_clock *clock, double end_seconds);

/* The caller, which is the thread of a delayed update, updates so many elements. NULL does nothing. */
void zr_comm_clock_update(struct zr_comm_clock *clock, size_t elements);

/* The thread of a speculative update updates so many, which are in memory at `ready_seconds`, behind those
 * before them. When it has. */
double zr_comm_clock_update_ahead(struct zr_comm_clock *clock, double ready_seconds, size_t elements);

/* The caller's time. */
static inline double zr_comm_clock_now(const struct zr_comm_clock *clock)
{
    return clock->flops / clock->flops_per_second + clock->waited_seconds;
}

/* Lets a null communicator go by a clock, which is the caller's and outlives it. Exchanges and barriers,
 * small talk, wait for what was handed in before and take no time of their own. ZR_ERR_INVALID: it is no null
 * communicator. */
zr_result zr_comm_null_set_clock(zr_comm *comm, struct zr_comm_clock *clock);

#endif
