/* clock.h: simulated time of a rehearsal. The caller computes at a fixed number of operations per second.
 * A null communicator runs its operations one after the other, each for the time that its bytes take,
 * while the caller continues; waiting for a ticket advances the caller's time. A communicator and its
 * groups share a clock and run concurrently. Private to zero/. */
#ifndef ZR_COMM_CLOCK_H
#define ZR_COMM_CLOCK_H

#include "zero/comm/comm.h"

/* The offload files of an engine; they share a disk. */
enum zr_clock_file { ZR_CLOCK_STATE, ZR_CLOCK_PARAMETERS };

struct zr_comm_clock {
    double flops_per_second, bytes_per_second;
    double host_bytes_per_second; /* of host copies; 0: copies take no time */
    double nvme_bytes_per_second; /* of an offload file, simultaneous reads and writes; 0: they take no
                                   * time */
    double updates_per_second;    /* elements per second of an update thread; 0: updates take no time */
    double host_waited_seconds, nvme_waited_seconds; /* parts of waited_seconds for these tiers */
    double flops;          /* operations of the caller so far; zr_kernel_context.flops points here */
    double waited_seconds; /* time that the caller waited */
    /* Totals of the communicators. */
    uint64_t sent_bytes;
    double busy_seconds;
    double begin_seconds, end_seconds; /* of the last operation */
    double idle_seconds;               /* when the last communicator becomes idle */
    double disk_idle_seconds[2];       /* when the disk becomes idle, for each enum zr_clock_file */
    double update_idle_seconds;        /* when the update thread becomes idle */
    /* Optional: called for each operation that takes time, after begin_seconds and end_seconds are set;
     * `label` is the caller's label. */
    void (*submitted)(void *state, unsigned label);
    void *state;
};

/* The operations of one communicator on the clock. Initially zero. */
struct zr_comm_clock_queue {
    double end_seconds;                       /* of the last operation */
    double ends_seconds[ZR_COMM_QUEUE_COUNT]; /* end of ticket n in slot n modulo the count */
};

/* Submits an operation. */
struct zr_comm_clock_operation {
    zr_ticket ticket;
    uint64_t bytes;          /* sent */
    uint64_t received_bytes; /* if these are more, they determine the time */
    double bytes_per_second;
    double ready_seconds; /* earliest start; 0: now */
    unsigned label;
};
void zr_comm_clock_submit(struct zr_comm_clock *clock, struct zr_comm_clock_queue *queue,
                          const struct zr_comm_clock_operation *operation);
/* The caller waits for a ticket; `submitted` is the last ticket. */
void zr_comm_clock_wait(struct zr_comm_clock *clock, const struct zr_comm_clock_queue *queue,
                        zr_ticket ticket, zr_ticket submitted);

/* Submits a transfer to the disk. Transfers of one file run one after the other; two files share the rate
 * while both are active. Returns the end of the transfer; 0 if `clock` is NULL or has no disk. */
double zr_comm_clock_disk(struct zr_comm_clock *clock, enum zr_clock_file file, uint64_t bytes);
/* Time from which both files are idle. */
static inline double zr_comm_clock_disk_idle(const struct zr_comm_clock *clock)
{
    const double *idle = clock->disk_idle_seconds;
    return idle[0] > idle[1] ? idle[0] : idle[1];
}
/* Makes the caller wait until `end_seconds`. Returns the seconds waited; 0 without a clock. */
double zr_comm_clock_wait_until(struct zr_comm_clock *clock, double end_seconds);
/* The same for the disk: counts the time as a wait for the disk. */
double zr_comm_clock_wait_disk(struct zr_comm_clock *clock, double end_seconds);

/* The caller, which is the thread of a delayed update, updates this many elements. NULL: no effect. */
void zr_comm_clock_update(struct zr_comm_clock *clock, size_t elements);

/* The thread of a speculative update updates elements that are in memory at `ready_seconds`, after its
 * earlier updates. Returns the end of the update. */
double zr_comm_clock_update_ahead(struct zr_comm_clock *clock, double ready_seconds, size_t elements);

/* The caller's time. */
static inline double zr_comm_clock_now(const struct zr_comm_clock *clock)
{
    return clock->flops / clock->flops_per_second + clock->waited_seconds;
}

/* Makes a null communicator use a clock, which must outlive it. Host messages wait for submitted
 * operations and take no time. ZR_ERR_INVALID: not a null communicator. */
zr_result zr_comm_null_set_clock(zr_comm *comm, struct zr_comm_clock *clock);

#endif
