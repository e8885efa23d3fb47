/* checkpoints.h: activation checkpoints, from the moment that a module writes one to that when backward has
 * read it, under a policy. A checkpoint is written whole, may then be stored (a part of it, on the host), is
 * fetched ahead of its use, and is whole again when it is awaited.
 *
 * What stays lies in a contiguous pool, in the order of the modules; whole ones of a policy that stores pass
 * through a ring of buffers of constant size. */
#ifndef ZR_MODEL_CHECKPOINTS_H
#define ZR_MODEL_CHECKPOINTS_H

#include "zero/zr_zero.h"

struct zr_checkpoints_options {
    struct zr_checkpoint_policy policy;
    zr_arena *arena, *host_arena; /* tensors; records */
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    enum zr_precision precision;
    zr_comm *tensor; /* over which checkpoints are divided; NULL: each rank has its own */
    size_t count;    /* indices: modules of the model, for each frame one after the other */
    unsigned frames; /* micro-batches under way at a time, see struct zr_activations; at least 1 */
    size_t elements; /* of the largest checkpoint */
};

enum zr_checkpoint_phase {
    ZR_CHECKPOINT_NONE = 0,
    ZR_CHECKPOINT_WHOLE,
    ZR_CHECKPOINT_STORING,   /* to the host: the whole is still read */
    ZR_CHECKPOINT_STORED,    /* no whole one */
    ZR_CHECKPOINT_COPYING,   /* from the host */
    ZR_CHECKPOINT_GATHERING, /* from the other ranks */
};

struct zr_kept_checkpoint {
    enum zr_checkpoint_phase phase;
    size_t elements;
    void *whole;      /* or where it is to be */
    zr_entry entry;   /* of the pool: the whole one, or what is stored */
    void *part;       /* what is stored */
    zr_ticket ticket; /* of the phase */
    uint64_t turn;    /* its buffer's place in the row of all that were taken */
};

struct zr_checkpoints {
    struct zr_checkpoints_options options;
    unsigned ranks; /* that have parts; 1: each keeps all */
    bool stores;    /* parts, or on the host */
    /* [frames]: what a micro-batch keeps comes and goes as a stack, so a pool has no holes. NULL: blocks */
    zr_contiguous **pools;
    zr_ring *ring;          /* NULL: blocks */
    unsigned buffers_count; /* at most at a time, of whole ones of a policy that stores */
    unsigned buffers_used;
    uint64_t turn;                   /* buffers taken so far */
    zr_comm *copies;                 /* NULL: nothing goes to the host */
    struct zr_kept_checkpoint *kept; /* [count] */
    size_t storing[4];               /* indices whose copies are under way, oldest first */
    unsigned storing_count;
};

/* Takes pool and ring. ZR_ERR_INVALID: the ranks do not divide a checkpoint. */
zr_result zr_checkpoints_open(struct zr_checkpoints *out, const struct zr_checkpoints_options *options);
void zr_checkpoints_close(struct zr_checkpoints *checkpoints);

/* Memory for a whole checkpoint that is about to be written. */
zr_result zr_checkpoints_take(struct zr_checkpoints *checkpoints, size_t index, size_t elements,
                              void **whole);
/* It will not be read before it is fetched: keeps what the policy says. */
zr_result zr_checkpoints_store(struct zr_checkpoints *checkpoints, size_t index);
/* It is read soon: starts what makes it whole again. Of one that is whole, or on its way, it does nothing. */
zr_result zr_checkpoints_fetch(struct zr_checkpoints *checkpoints, size_t index);
/* Waits until it is whole, and goes on with the one before it, where that was fetched. */
zr_result zr_checkpoints_await(struct zr_checkpoints *checkpoints, size_t index, void **whole);
/* Frees all of it; waits for what is under way. */
void zr_checkpoints_drop(struct zr_checkpoints *checkpoints, size_t index);

/* Bytes copied to the host and back so far. */
uint64_t zr_checkpoints_moved_bytes(const struct zr_checkpoints *checkpoints);
/* Modules ahead of backward whose checkpoints are fetched: 0: none has to be. */
unsigned zr_checkpoints_distance(const struct zr_checkpoints *checkpoints);

#endif
