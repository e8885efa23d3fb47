/* checkpoints.h: activation checkpoints, from a module's forward to its backward, under a policy. A
 * checkpoint is written whole, then optionally stored (this rank's part, or on the host), fetched before its
 * use, and whole again when zr_checkpoints_await() returns.
 *
 * Kept data is in a contiguous pool, in the order of the modules. With a policy that stores, whole
 * checkpoints pass through a ring of equal buffers. */
#ifndef ZR_MODEL_CHECKPOINTS_H
#define ZR_MODEL_CHECKPOINTS_H

#include "zero/zr_zero.h"

struct zr_checkpoints_options {
    struct zr_checkpoint_policy policy;
    zr_arena *arena, *host_arena; /* for tensors and for records */
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    enum zr_precision precision;
    zr_comm *tensor; /* ranks that divide each checkpoint; NULL: each rank has its own */
    size_t count;    /* number of indices: frames * modules_count */
    unsigned frames; /* micro-batches in progress at a time, see struct zr_activations; at least 1 */
    size_t elements; /* size of the largest checkpoint */
};

enum zr_checkpoint_phase {
    ZR_CHECKPOINT_NONE = 0,
    ZR_CHECKPOINT_WHOLE,
    ZR_CHECKPOINT_STORING,   /* being copied to the host; the whole is still read */
    ZR_CHECKPOINT_STORED,    /* only the stored part exists */
    ZR_CHECKPOINT_COPYING,   /* being copied from the host */
    ZR_CHECKPOINT_GATHERING, /* being gathered from the other ranks */
};

struct zr_kept_checkpoint {
    enum zr_checkpoint_phase phase;
    size_t elements;
    void *whole;      /* memory of the whole checkpoint, filled or not yet */
    zr_entry entry;   /* pool entry of the whole or of the stored part */
    void *part;       /* the stored part */
    zr_ticket ticket; /* the operation of the phase */
    uint64_t turn;    /* sequence number of its ring buffer */
};

struct zr_checkpoints {
    struct zr_checkpoints_options options;
    unsigned ranks; /* number of ranks that divide a checkpoint; 1: not divided */
    bool stores;    /* the policy divides checkpoints or moves them to the host */
    /* [frames]. A micro-batch frees in reverse order, so one pool per frame has no holes. NULL: arena blocks.
     */
    zr_contiguous **pools;
    zr_ring *ring;          /* NULL: arena blocks */
    unsigned buffers_count; /* maximum of whole checkpoints at a time, if the policy stores */
    unsigned buffers_used;
    uint64_t turn;                   /* number of buffers taken so far */
    zr_comm *copies;                 /* NULL: no copies to the host */
    struct zr_kept_checkpoint *kept; /* [count] */
    size_t storing[4];               /* indices being copied to the host, oldest first */
    unsigned storing_count;
};

/* Creates pools and ring. ZR_ERR_INVALID: the ranks do not divide a checkpoint. */
zr_result zr_checkpoints_open(struct zr_checkpoints *out, const struct zr_checkpoints_options *options);
void zr_checkpoints_close(struct zr_checkpoints *checkpoints);

/* Allocates a whole checkpoint, which the caller then writes. */
zr_result zr_checkpoints_take(struct zr_checkpoints *checkpoints, size_t index, size_t elements,
                              void **whole);
/* The checkpoint is not read again before zr_checkpoints_fetch(): applies the policy. */
zr_result zr_checkpoints_store(struct zr_checkpoints *checkpoints, size_t index);
/* Starts to make the checkpoint whole again; does nothing if it is whole or started. */
zr_result zr_checkpoints_fetch(struct zr_checkpoints *checkpoints, size_t index);
/* Waits until the checkpoint is whole, and advances the checkpoint before it if that was fetched. */
zr_result zr_checkpoints_await(struct zr_checkpoints *checkpoints, size_t index, void **whole);
/* Waits for its operations and frees the checkpoint. */
void zr_checkpoints_drop(struct zr_checkpoints *checkpoints, size_t index);

/* Bytes copied to the host and back so far. */
uint64_t zr_checkpoints_moved_bytes(const struct zr_checkpoints *checkpoints);
/* Number of modules ahead of backward for which checkpoints are fetched; 0: the policy needs no fetch. */
unsigned zr_checkpoints_distance(const struct zr_checkpoints *checkpoints);

#endif
