/* log.h: the results of steps: the JSONL log, the event file, the status file and the progress line. Used by
 * rank 0 only.
 *
 * Each line of the log is appended by one write, so that a reader never sees a partial line, even after a
 * crash. */
#ifndef ZR_TRAIN_LOG_H
#define ZR_TRAIN_LOG_H

#include "alloc/base/system/file.h"
#include "zero/train/report/terminal.h"
#include "zero/zr_zero.h"

/* Results of a step, for the log and the progress line. */
struct zr_step_line {
    uint64_t step;        /* from 1 */
    double loss;          /* nats per token, mean over ranks; NaN: this rank does not know it */
    double gradient_norm; /* before clipping */
    double rate;
    double loss_scale;        /* of the gradients; 0: not fp16 */
    bool skipped;             /* the gradients overflowed and nothing was updated */
    double tokens_per_second; /* of this step, all ranks */
    double step_seconds;
    size_t live_bytes, reserved_bytes;         /* of rank 0's arena */
    bool measures_noise;                       /* the next three are valid; NaN: not known */
    double noise_scale;                        /* tokens */
    double gradient_square, gradient_variance; /* see struct zr_noise; of a token */
    bool checks_compression;                   /* the step has measured the next one */
    struct zr_compression_check compression;
    bool validated; /* validation_loss is valid */
    double validation_loss;
};

/* Prints the results as a JSON object without its closing brace. */
void zr_step_line_print(struct zr_text *text, const struct zr_step_line *line);

struct zr_log {
    struct zr_file file; /* fd -1: no log, and calls have no effect */
    char buffer[1024];
};

/* Opens the log; path "": no log. resumed_step 0 truncates it. Otherwise it continues after that step:
 * lines of later steps (the earlier run continued after its last save) and a partial last line are
 * removed. */
zr_result zr_log_open(struct zr_log *out, const char *path, uint64_t resumed_step);
zr_result zr_log_step(struct zr_log *log, const struct zr_step_line *line);
zr_result zr_log_close(struct zr_log *log);

/* ---- The event file (events.c) ------------------------------------------------------------------------- */

/* The scalars of steps for TensorBoard. The format is public: records of TFRecord (length, checksum of the
 * length, data, checksum of the data; the checksums are CRC-32C of RFC 3720, masked), each an Event of
 * tensorflow/core/util/event.proto in protobuf's wire format. */

struct zr_events {
    struct zr_file file; /* fd -1: none, and calls have no effect */
};

/* Creates an event file in a folder, which is created too; "": none. Each run has a file of its own.
 * TensorBoard drops what earlier files have of steps after `resumed_step`. ZR_ERR_IO. */
zr_result zr_events_open(struct zr_events *out, const char *folder, uint64_t resumed_step);
/* Appends a step by one write. */
zr_result zr_events_step(struct zr_events *events, const struct zr_step_line *line);
zr_result zr_events_close(struct zr_events *events);

/* ---- The status file (status.c) ------------------------------------------------------------------------ */

/* The state of the run as one line of JSON, for other programs. A new file replaces it atomically, so that a
 * reader always sees a whole line. */

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

/* ---- The progress line (progress.c) -------------------------------------------------------------------- */

/* Progress on stderr: one live line on a terminal, updated at most ten times a second, else about twenty
 * plain lines. */

struct zr_progress {
    struct zr_terminal terminal;
    uint64_t first_step, steps; /* the run does steps first_step + 1 to steps */
    uint64_t started_ns, shown_ns;
    uint64_t shown_step;
    double smoothed_tokens_per_second;
    double validation_loss;  /* last known; negative: none */
    bool unshown;            /* not yet printed on a plain line */
    uint64_t save_step;      /* the next save is after this step or earlier; 0: none */
    uint64_t save_ns;        /* or from this time on; 0: none */
    uint64_t exchange_steps; /* between exchanges of groups; 0: none */
    bool open;               /* a live line is on the terminal */
    const char *noun;        /* of plain lines, before the number: "step" */
};

void zr_progress_start(struct zr_progress *out, uint64_t first_step, uint64_t steps);
void zr_progress_step(struct zr_progress *progress, const struct zr_step_line *line);
/* Ends the live line before other output; the next step starts a new one. */
void zr_progress_break(struct zr_progress *progress);

#endif
