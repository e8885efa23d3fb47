/* log.h: the JSONL log, one line per step, each appended by one write, so that a reader (or a crash) never
 * sees half a line. Rank 0 alone logs. */
#ifndef ZR_TRAIN_LOG_H
#define ZR_TRAIN_LOG_H

#include "alloc/base/system/file.h"

/* What is known about a step when it is over. Shared by log and progress. */
struct zr_step_line {
    uint64_t step;        /* counted from 1 */
    double loss;          /* nats per token, mean over ranks */
    double gradient_norm; /* before clipping */
    double rate;
    double loss_scale;        /* that the gradients had; 0: none, this is not fp16 */
    bool skipped;             /* the gradients overflowed, and nothing was updated */
    double tokens_per_second; /* of this step, all ranks */
    double step_seconds;
    size_t live_bytes, reserved_bytes; /* of rank 0's arena */
    bool validated;                    /* validation_loss is there */
    double validation_loss;
};

struct zr_log {
    struct zr_file file; /* fd -1: no log; every call does nothing then */
    char buffer[1024];
};

/* Opens the log; path "" is no log. resumed_step 0 starts it anew; else it goes on after that step: lines of
 * later steps (the earlier run went on after its last save) and a broken last line are cut off. */
zr_result zr_log_open(struct zr_log *out, const char *path, uint64_t resumed_step);
zr_result zr_log_step(struct zr_log *log, const struct zr_step_line *line);
zr_result zr_log_close(struct zr_log *log);

#endif
