/* progress.h: how far the run is, on stderr: one live line on a terminal (at most ten times a second), about
 * twenty plain lines otherwise. Rank 0 alone shows it. */
#ifndef ZR_TRAIN_PROGRESS_H
#define ZR_TRAIN_PROGRESS_H

#include "zero/train/report/log.h"
#include "zero/train/report/terminal.h"

struct zr_progress {
    struct zr_terminal terminal;
    uint64_t first_step, steps; /* the run does steps first_step + 1 .. steps */
    uint64_t started_ns, shown_ns;
    uint64_t shown_step;
    double smoothed_tokens_per_second;
    double validation_loss; /* last one known, below 0: none */
    bool unshown;           /* and no plain line has had it */
    uint64_t save_step;     /* the next save is after this one at the latest; 0: there is none */
    uint64_t save_ns;       /* or from this time on; 0: no time is set */
    bool open;              /* a live line stands on the terminal */
};

void zr_progress_start(struct zr_progress *out, uint64_t first_step, uint64_t steps);
void zr_progress_step(struct zr_progress *progress, const struct zr_step_line *line);
/* Ends the live line, so that other words may be printed; the next step starts a new one. */
void zr_progress_break(struct zr_progress *progress);

#endif
