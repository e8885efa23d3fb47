/* history.h: results of a run's steps: losses, seconds, traffic and waits.
 *
 * A step is measured between zr_history_step_begin() and zr_history_step_end(); its seconds run from the
 * end of the previous step. zero/train/report prints the results of all ranks. Used by the thread that
 * drives the engine. */
#ifndef ZR_TRAIN_HISTORY_H
#define ZR_TRAIN_HISTORY_H

#include "zero/train/rank/rank.h"
#include "zero/train/report/log.h"

/* Seconds of steps, and the waits for each tier within them. */
struct zr_history_waits {
    double seconds;
    uint64_t host_ns, nvme_ns;
};

/* Counters at the start of a step. */
struct zr_history_step {
    bool first; /* this step's traffic represents every step's, so the engine must be synchronized at its
                 * end */
    bool fills; /* an asynchronous pipeline, which its steps leave filled until one drains it: the traffic of
                 * all of them together is known */
    struct zr_comm_counters comm;
    struct zr_state_file_report file;
    uint64_t driver_calls, moved_bytes, waited_ns, speculative_updates, rolled_back_updates,
        merges; /* by zr_outer_state */
};

struct zr_history {
    const struct zr_rank *rank; /* must outlive this */
    size_t count;               /* steps of this process */
    double *loss, *seconds;     /* [steps of zr_history_open()], on the heap or in kept memory */
    bool kept;                  /* in kept memory */
    bool validated;
    double validation_loss;
    uint64_t speculative_updates, rolled_back_updates;
    unsigned measured;           /* steps without skip, until `counted` */
    bool counted;                /* the traffic of a usual step is known */
    struct zr_history_step fill; /* the last step that filled a pipeline */
    size_t fill_count;           /* steps before it */
    uint64_t sent_bytes;         /* in all steps */
    uint64_t sent_elements_per_step, sent_bytes_per_step, received_bytes_per_step, driver_calls_last_step,
        host_waits_last_step;
    uint64_t host_moved_bytes_per_step, nvme_moved_bytes_per_step; /* of one step */
    /* `usual` excludes the first two steps, which touch the memory, and a step in which its own delayed
     * update ends, such as the last. */
    struct zr_history_waits all, usual;
    struct zr_comm_counters comm_before; /* at the start of the first step */
    uint64_t started_ns;                 /* start of the process */
    uint64_t since_ns; /* start of the current step's seconds, which is the end of the previous step's */
};

/* Allocates space for this many steps, in kept memory if the rank has some, which then has the results of
 * `count` steps of an earlier process. ZR_ERR_HOST_MEMORY. Close it after a failure too; a zeroed struct
 * may be closed. */
zr_result zr_history_open(struct zr_history *history, struct zr_rank *rank, size_t steps, size_t count);
/* Copies the results of rank `from` to all ranks, after a restart that has lost those of a rank. Collective.
 */
zr_result zr_history_share(struct zr_history *history, unsigned from);
void zr_history_close(struct zr_history *history);

/* Starts the first step's seconds. */
void zr_history_start(struct zr_history *history);
/* Starts the next step's seconds now instead of at the end of the previous step. */
void zr_history_skip(struct zr_history *history);

/* May wait for the previous step's update. */
zr_result zr_history_step_begin(const struct zr_history *history, struct zr_history_step *out);
/* `line` has the step's loss and whether it was skipped; receives seconds and bytes. */
void zr_history_step_end(struct zr_history *history, const struct zr_history_step *step,
                         struct zr_step_line *line);

/* Tokens per second without the first two steps, which touch the memory; 0 if there are no other steps. */
double zr_history_tokens_per_second(const struct zr_history *history);
/* Adds the measurements to this rank's report. */
void zr_history_measure(const struct zr_history *history, struct zr_rank_report *report);

#endif
