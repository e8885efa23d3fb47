/* status.h: a file with the state of the run as one line of JSON, for other programs. A new file replaces it
 * atomically, so that a reader always sees a whole line. Used by rank 0 only. */
#ifndef ZR_TRAIN_STATUS_H
#define ZR_TRAIN_STATUS_H

#include "zero/train/report/log.h"

struct zr_status {
    const char *path; /* borrowed; "" or NULL: none, and calls have no effect */
    uint64_t first_step, steps, started_ns, written_ns;
    struct zr_step_line line; /* the last one, with the last known validation loss */
};

/* The run does steps first_step + 1 to steps. */
zr_result zr_status_start(struct zr_status *out, const char *path, uint64_t first_step, uint64_t steps);
/* Writes the state "training" with a step, at most ten times a second. */
zr_result zr_status_step(struct zr_status *status, const struct zr_step_line *line);
/* Writes the final state: "done", "ended by SIGTERM", "failed". */
zr_result zr_status_end(struct zr_status *status, const char *state);

#endif
