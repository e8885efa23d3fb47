/* nvme_pipeline.h: an update over units that lie in an offload file, with some buffers, three of
 * which will do: while the caller
 * computes on one unit, the one before is written, the next is read, and the one after that follows into the
 * buffer of what was written. Private to zero/.
 *
 * A pass is begin, then take and give for each unit in order, then end. begin() may come long before the
 * first take(), as when backward still runs; the last writes of a pass may go on when it is all given, behind
 * another pass through the same buffers. One thread at a time uses a pipeline. The struct is the caller's. */
#ifndef ZR_NVME_PIPELINE_H
#define ZR_NVME_PIPELINE_H

#include "zero/engine/nvme/nvme_io.h"

enum { ZR_NVME_BUFFERS_LEAST = 3, ZR_NVME_BUFFERS_MOST = 16 };

/* Where a unit lies in the file. No two overlap. */
struct zr_nvme_unit {
    uint64_t offset_bytes;
    size_t bytes;
};

struct zr_nvme_pipeline {
    /* The caller's, set before begin(): all outlive the pass. */
    zr_nvme_io *io;
    const struct zr_nvme_unit *units;
    const uint64_t
        *targets; /* [units_count]: where units are written, in bytes; NULL: where they were read */
    unsigned units_count;
    unsigned buffers_count;
    void *buffers[ZR_NVME_BUFFERS_MOST]; /* each holds the largest unit */
    /* The pipeline's own; all zeros before the first pass. */
    bool running, taken; /* running: begun, and not all given */
    unsigned unit;       /* that is taken, or will be next */
    zr_nvme_event reads[ZR_NVME_BUFFERS_MOST], writes[ZR_NVME_BUFFERS_MOST];
};

/* Starts to read the first units, one for each buffer, which comes after the write of what it still has. The
 * last pass has ended, or had the same units in the same order, or others. ZR_ERR_INVALID: one is running.
 * Results of the file, as in all calls. */
zr_result zr_nvme_pipeline_begin(struct zr_nvme_pipeline *pipeline);
/* Waits for the next unit. *out is the caller's until give().
 * ZR_ERR_INVALID: the unit before was not given back, or there is none left. */
zr_result zr_nvme_pipeline_take(struct zr_nvme_pipeline *pipeline, void **out);
/* Starts to write the unit that was taken, or with `changed` false leaves the file's contents; and to read
 * the one that has the buffer next. */
zr_result zr_nvme_pipeline_give(struct zr_nvme_pipeline *pipeline, bool changed);
/* Waits for all that was started, also after a failure or in the middle of a pass: the buffers are free then,
 * and what was not given back is as it was. */
zr_result zr_nvme_pipeline_end(struct zr_nvme_pipeline *pipeline);

#endif
