/* history.h: what a run remembers of its steps: losses, seconds, and what a step moved and waited for.
 *
 * A step is measured between zr_history_step_begin() and zr_history_step_end(); its seconds run from the end
 * of the one before it. What all ranks' steps came to goes to the report of zero/train/report.
 *
 * One thread, the one that drives the engine. */
#ifndef ZR_TRAIN_HISTORY_H
#define ZR_TRAIN_HISTORY_H

#include "zero/train/rank/rank.h"
#include "zero/train/report/log.h"

/* What steps took, and waited of that for each tier. */
struct zr_history_waits {
    double seconds;
    uint64_t host_ns, nvme_ns;
};

struct zr_history {
    const struct zr_rank *rank; /* outlives this */
    size_t count;               /* steps done by this process */
    double *loss, *seconds;     /* [steps of zr_history_open()]; from the heap */
    bool validated;
    double validation_loss;
    uint64_t speculative_updates, rolled_back_updates;
    unsigned measured; /* steps that were not skipped, until `counted` */
    bool counted;      /* what a usual step sends and receives is known */
    uint64_t sent_elements_per_step, received_bytes_per_step, driver_calls_last_step, host_waits_last_step;
    uint64_t host_moved_bytes_per_step, nvme_moved_bytes_per_step; /* of one step */
    /* `usual`: of steps that begin and end as most do. Not the first two, which touch the memory, nor one
     * whose own delayed update ends within it, as the last step's does. */
    struct zr_history_waits all, usual;
    struct zr_comm_counters comm_before; /* when the first step began */
    uint64_t started_ns;                 /* of the process */
    uint64_t since_ns; /* where the seconds of the step under way begin: where those of the last one ended */
};

/* Room for so many steps. ZR_ERR_HOST_MEMORY: there is none. Closed after a failure too; what is zeroed may
 * be closed. */
zr_result zr_history_open(struct zr_history *history, size_t steps);
void zr_history_close(struct zr_history *history);

/* The first step begins now. */
void zr_history_start(struct zr_history *history);
/* The next step's seconds begin now, and not where those of the last one ended. */
void zr_history_skip(struct zr_history *history);

/* The counters when a step begins. */
struct zr_history_step {
    bool first; /* its traffic stands for that of every step; whoever ends it has the engine synchronized */
    struct zr_comm_counters comm;
    struct zr_state_file_report file;
    uint64_t driver_calls, moved_bytes, waited_ns, speculative_updates, rolled_back_updates;
};
/* May wait for the update of the step before. */
zr_result zr_history_step_begin(const struct zr_history *history, struct zr_history_step *out);
/* `line` has the step's loss and whether it was skipped; gets its seconds and bytes. */
void zr_history_step_end(struct zr_history *history, const struct zr_history_step *step,
                         struct zr_step_line *line);

/* Of all steps but the first two, which touch the memory; 0 where there are none. */
double zr_history_tokens_per_second(const struct zr_history *history);
/* Adds what was measured to this rank's report. */
void zr_history_measure(const struct zr_history *history, struct zr_rank_report *report);

#endif
