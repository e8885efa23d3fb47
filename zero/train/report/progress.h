/* progress.h: progress on stderr: one live line on a terminal, updated at most ten times a second, else
 * about twenty plain lines. Used by rank 0 only. */
#ifndef ZR_TRAIN_PROGRESS_H
#define ZR_TRAIN_PROGRESS_H

#include "zero/train/report/log.h"
#include "zero/train/report/terminal.h"

struct zr_progress {
    struct zr_terminal terminal;
    uint64_t first_step, steps; /* the run does steps first_step + 1 to steps */
    uint64_t started_ns, shown_ns;
    uint64_t shown_step;
    double smoothed_tokens_per_second;
    double validation_loss; /* last known; negative: none */
    bool unshown;           /* not yet printed on a plain line */
    uint64_t save_step;     /* the next save is after this step or earlier; 0: none */
    uint64_t save_ns;       /* or from this time on; 0: none */
    bool open;              /* a live line is on the terminal */
};

void zr_progress_start(struct zr_progress *out, uint64_t first_step, uint64_t steps);
void zr_progress_step(struct zr_progress *progress, const struct zr_step_line *line);
/* Ends the live line before other output; the next step starts a new one. */
void zr_progress_break(struct zr_progress *progress);

#endif
