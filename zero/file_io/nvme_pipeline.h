/* nvme_pipeline.h: a pass over units in an offload file with limited memory: while the caller computes on one
 * unit, earlier units are written and later ones are read. Private to zero/.
 *
 * Memory is divided into at least three slots of the size of the largest unit. Units get consecutive places
 * that do not cross slots, so each slot holds one or several units. A unit without a free place is read when
 * the units in its place have been given back.
 *
 * A pass is begin, take and give for each unit in order, then end. begin() may precede the first take() by a
 * long time, for example while backward runs. The last writes of a pass may overlap with the next pass. One
 * thread at a time uses a pipeline. The caller owns the struct. */
#ifndef ZR_NVME_PIPELINE_H
#define ZR_NVME_PIPELINE_H

#include "zero/file_io/nvme_io.h"

enum {
    ZR_NVME_BUFFERS_MIN = 3,
    ZR_NVME_BUFFERS_MAX = 16,
    ZR_NVME_PLACES = 24 /* maximum of units in memory at a time */
};

/* Extent of a unit in the file; extents do not overlap. */
struct zr_nvme_unit {
    uint64_t offset_bytes;
    size_t bytes;
};

/* Place of the current or the last unit in memory. */
struct zr_nvme_place {
    size_t at_bytes, bytes;
    uint64_t written_bytes; /* offset in the file of `write` */
    zr_nvme_event read, write;
};

struct zr_nvme_pipeline {
    /* Set by the caller before begin(); must outlive the pass. */
    zr_nvme_io *io; /* NULL: no transfers, but `starts` is called */
    const struct zr_nvme_unit *units;
    const uint64_t
        *targets; /* [units_count]: file offsets of the writes, in bytes; NULL: the offsets of the reads */
    unsigned units_count;
    unsigned buffers_count; /* number of slots */
    size_t buffer_bytes;    /* size of a slot, at least that of the largest unit */
    void *buffers;          /* consecutive slots */
    /* Called before the read of a unit starts; may be NULL. */
    void (*starts)(void *state, unsigned unit);
    void *state;
    /* Private to the pipeline; zeros before the first pass. */
    bool running, taken; /* running: begun, and not all units are given */
    unsigned unit;       /* current or next unit of take() */
    unsigned next;       /* first unit without a place */
    uint64_t turn;      /* sequence number of `next` over all passes; it gets places[turn % ZR_NVME_PLACES] */
    size_t free_bytes;  /* offset after the last place */
    zr_nvme_event last; /* last write; writes are ordered */
    zr_nvme_event earlier; /* last write of a place that is no longer in `places` */
    struct zr_nvme_place places[ZR_NVME_PLACES];
};

/* Starts to read the first units, each after the pending writes of its place. ZR_ERR_INVALID: a pass is
 * running. All calls also return failures of the file. */
zr_result zr_nvme_pipeline_begin(struct zr_nvme_pipeline *pipeline);
/* Waits for the next unit; *out is valid until give(). ZR_ERR_INVALID: the previous unit was not given back,
 * or no unit is left. */
zr_result zr_nvme_pipeline_take(struct zr_nvme_pipeline *pipeline, void **out);
/* Gives the unit back: starts to write it if `changed`, and to read units that have a free place now. */
zr_result zr_nvme_pipeline_give(struct zr_nvme_pipeline *pipeline, bool changed);
/* Waits for all transfers, also after a failure or within a pass. The memory is unused afterwards, and units
 * that were not given back are unchanged in the file. */
zr_result zr_nvme_pipeline_end(struct zr_nvme_pipeline *pipeline);

#endif
