/* log.h: the JSONL log, one line per step, each appended by one write, so that a reader never sees a
 * partial line, even after a crash. Used by rank 0 only. */
#ifndef ZR_TRAIN_LOG_H
#define ZR_TRAIN_LOG_H

#include "alloc/base/system/file.h"

/* Results of a step, for the log and the progress line. */
struct zr_step_line {
    uint64_t step;        /* from 1 */
    double loss;          /* nats per token, mean over ranks */
    double gradient_norm; /* before clipping */
    double rate;
    double loss_scale;        /* of the gradients; 0: not fp16 */
    bool skipped;             /* the gradients overflowed and nothing was updated */
    double tokens_per_second; /* of this step, all ranks */
    double step_seconds;
    size_t live_bytes, reserved_bytes; /* of rank 0's arena */
    bool validated;                    /* validation_loss is valid */
    double validation_loss;
};

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

#endif
