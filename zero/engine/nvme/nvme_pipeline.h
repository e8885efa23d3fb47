/* nvme_pipeline.h: an update over units that lie in an offload file, with memory for some of them: while the
 * caller computes on one unit, those before are written and the next are read. Private to zero/.
 *
 * Memory is some slots, three of which will do, each as long as the largest unit. Units get places in it in
 * order, one behind the other, none of which goes beyond its slot; one that has no free place is read when
 * those that are in the way have been given back. So there are at least as many units in memory as slots, and
 * more of small ones.
 *
 * A pass is begin, then take and give for each unit in order, then end. begin() may come long before the
 * first take(), as when backward still runs; the last writes of a pass may go on when it is all given, behind
 * another pass through the same memory. One thread at a time uses a pipeline. The struct is the caller's. */
#ifndef ZR_NVME_PIPELINE_H
#define ZR_NVME_PIPELINE_H

#include "zero/engine/nvme/nvme_io.h"

enum {
    ZR_NVME_BUFFERS_LEAST = 3,
    ZR_NVME_BUFFERS_MOST = 16,
    ZR_NVME_PLACES = 24 /* units in memory at a time, at most */
};

/* Where a unit lies in the file. No two overlap. */
struct zr_nvme_unit {
    uint64_t offset_bytes;
    size_t bytes;
};

/* Where a unit lies in memory, or the last one that did. */
struct zr_nvme_place {
    size_t at_bytes, bytes;
    uint64_t written_bytes; /* the offset in the file that `write` is of */
    zr_nvme_event read, write;
};

struct zr_nvme_pipeline {
    /* The caller's, set before begin(): all outlive the pass. */
    zr_nvme_io *io; /* NULL: nothing is moved, but `starts` is called */
    const struct zr_nvme_unit *units;
    const uint64_t
        *targets; /* [units_count]: where units are written, in bytes; NULL: where they were read */
    unsigned units_count;
    unsigned buffers_count; /* slots */
    size_t buffer_bytes;    /* of a slot: no unit is longer */
    void *buffers;          /* all slots, in a row */
    /* Before the read of a unit starts, in the thread that calls; NULL: nobody asks. */
    void (*starts)(void *state, unsigned unit);
    void *state;
    /* The pipeline's own; all zeros before the first pass. */
    bool running, taken; /* running: begun, and not all given */
    unsigned unit;       /* that is taken, or will be next */
    unsigned next;       /* that has no place yet */
    uint64_t turn;       /* of `next` among the units of all passes: it gets places[turn % ZR_NVME_PLACES] */
    size_t free_bytes;   /* behind the last place */
    zr_nvme_event last;  /* write; each comes after the one before */
    zr_nvme_event earlier; /* the last write of a place that is not in `places` any more */
    struct zr_nvme_place places[ZR_NVME_PLACES];
};

/* Starts to read the first units, each after the writes of what its place still has. ZR_ERR_INVALID: a pass
 * is running. Results of the file, as in all calls. */
zr_result zr_nvme_pipeline_begin(struct zr_nvme_pipeline *pipeline);
/* Waits for the next unit. *out is the caller's until give().
 * ZR_ERR_INVALID: the unit before was not given back, or there is none left. */
zr_result zr_nvme_pipeline_take(struct zr_nvme_pipeline *pipeline, void **out);
/* Starts to write the unit that was taken, or with `changed` false leaves the file's contents; and to read
 * those that have room now. */
zr_result zr_nvme_pipeline_give(struct zr_nvme_pipeline *pipeline, bool changed);
/* Waits for all that was started, also after a failure or in the middle of a pass: the memory is free then,
 * and what was not given back is as it was. */
zr_result zr_nvme_pipeline_end(struct zr_nvme_pipeline *pipeline);

#endif
