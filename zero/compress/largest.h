/* largest.h: sums of gradients of which each rank sends the numbers of largest magnitude (Deep Gradient
 * Compression, https://arxiv.org/abs/1712.01887). Private to zero/.
 *
 * A rank adds its gradients to its errors and sends `count` errors of each shard, with their indices, and
 * sets them to zero. So its errors and what it has sent add up to its gradients. The numbers go to the owner
 * of the shard, or all of them to all ranks, and are added in rank order: a rank sends (N - 1) x
 * zr_largest_bytes(count) bytes, or N times as many to all ranks. Work runs in the communicator's thread, as
 * in compressor.h. */
#ifndef ZR_LARGEST_H
#define ZR_LARGEST_H

#include "zero/comm/zr_comm.h"

struct zr_largest_options {
    zr_comm *comm;                           /* borrowed */
    zr_arena *arena;                         /* of the staging block, tag comm */
    const struct zr_kernels *kernels;        /* the host can access their tensors */
    const struct zr_kernel_context *context; /* open; isa and precision are copied */
    size_t staging_bytes;                    /* the most that an operation needs */
};
struct zr_largest {
    struct zr_largest_options options;
    struct zr_kernel_context context; /* of the communicator's thread */
    unsigned rank, world;
    char *staging;
};

/* Bytes of `count` numbers with their indices / staging bytes of a sum to the owners, or to all ranks.
 * SIZE_MAX: overflow. */
size_t zr_largest_bytes(size_t count);
size_t zr_largest_staging_bytes(size_t shard_elements, size_t count, unsigned world, bool to_all);

/* ZR_ERR_INVALID: kernels whose tensors the host cannot access. On success zr_largest_fini() releases the
 * memory, after all operations have been waited for; it accepts a zeroed struct. It must not move in between.
 */
zr_result zr_largest_init(struct zr_largest *out, const struct zr_largest_options *options);
void zr_largest_fini(struct zr_largest *largest);

/* An operation, which the caller keeps until its ticket has been waited for. */
struct zr_largest_sum {
    size_t shard_elements;  /* below 2^32 */
    size_t count;           /* numbers of each shard that are sent, at most shard_elements */
    struct zr_numbers from; /* whole gradients, fp32 or of the context's precision */
    float *error;           /* [world * shard_elements], in and out */
    /* Momentum correction: velocity = momentum * velocity + gradients is added to the errors instead of the
     * gradients, and becomes zero where errors are sent. NULL: none. */
    float *velocity;
    float momentum;
    double clip;          /* gradients of a larger norm are first scaled to it; 0: none */
    struct zr_numbers to; /* this rank's shard, or the whole sum; may overlap `from` */
    bool to_all;
    float scale;     /* of the sum */
    bool accumulate; /* adds to `to`, which is fp32 */
    unsigned label;  /* see struct zr_reduce_scatter */
    /* Set by the call. */
    struct zr_largest *by;
    struct zr_comm_before before;
    struct zr_comm_after after;
};
/* Errors as of zr_comm_reduce_scatter(). */
zr_result zr_largest_begin(struct zr_largest *by, struct zr_largest_sum *operation, zr_ticket *ticket);

#endif
