/* compressor.h: collectives of packed numbers (zr_packing): an all-gather of parameters and a reduce-scatter
 * of gradients that send fewer bytes. Private to zero/.
 *
 * An all-gather packs this rank's shard, gathers bytes and unpacks all shards, its own too, so all ranks
 * compute with the same numbers. A reduce-scatter packs the shard of each rank, exchanges bytes by an
 * all-to-all and adds the unpacked shards in rank order. Packing and unpacking run in the communicator's
 * thread, on a GPU in its stream, next to the transfer, so they overlap with the caller's work as the
 * transfer does. A communicator runs one operation at a time, so all operations share one staging block (tag
 * comm).
 *
 * An operation sends (N - 1) x zr_pack_bytes(packing, shard) bytes. If shards are multiples of
 * ZR_PACK_BLOCK, the gathered packed shards are the packed whole, whatever the number of ranks. */
#ifndef ZR_COMPRESSOR_H
#define ZR_COMPRESSOR_H

#include "zero/comm/zr_comm.h"

struct zr_compressor_options {
    zr_comm *comm;                           /* borrowed */
    zr_arena *arena, *host_arena;            /* of the staging block / of records, tag other */
    const struct zr_kernels *kernels;        /* have pack() and unpack() */
    const struct zr_kernel_context *context; /* open; isa and precision are copied */
    size_t staging_bytes; /* the most that an operation needs, see zr_compressed_gather_bytes() */
};

struct zr_compressor {
    struct zr_compressor_options options;
    struct zr_kernel_context context; /* of the communicator's thread */
    unsigned rank, world;
    char *staging;
    const void **from; /* [world] */
};

/* ZR_ERR_INVALID: kernels without packing. On success zr_compressor_fini() releases the memory, after all
 * operations have been waited for; it accepts a zeroed compressor. The struct must not move in between. */
zr_result zr_compressor_init(struct zr_compressor *out, const struct zr_compressor_options *options);
void zr_compressor_fini(struct zr_compressor *compressor);

/* What an operation loses of this rank's shard. A gather with a check fills all of it in. */
struct zr_compressed_check {
    float *truth;                       /* [shard_elements], before packing */
    double true_squares, error_squares; /* sums of `truth` / of what arrived minus `truth` */
};
/* Sets the squares: in doubles, in the order of the elements. The host can access the numbers. */
struct zr_arrived {
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    struct zr_numbers numbers;
    size_t count;
};
zr_result zr_compressed_compare(struct zr_compressed_check *check, const struct zr_arrived *arrived);

/* An operation, which the caller keeps until its ticket has been waited for. */
struct zr_compressed {
    enum zr_packing packing;
    size_t shard_elements;
    /* Sums: a shard consists of so many pieces, and piece m of rank p's shard is the source's piece
     * m x world + p; 0: 1. */
    unsigned pieces;
    struct zr_numbers from;  /* gather: this rank's shard; sum: the shards of all ranks */
    struct zr_numbers minus; /* subtracted from `from` before packing; `at` NULL: none */
    struct zr_numbers to;    /* gather: the shards of all ranks; sum: this rank's shard; may overlap `from` */
    float *error;            /* what was not sent so far, as long as `from`, in and out; NULL: none */
    size_t *nonfinite;       /* see struct zr_pack */
    float scale;             /* of the unpacked sum, or of unpacked shards */
    bool accumulate;         /* adds to `to` */
    struct zr_compressed_check *check; /* of a gather; NULL: not checked */
    unsigned label;                    /* see struct zr_reduce_scatter; likewise host_bytes */
    size_t host_bytes;
    const struct zr_comm_before *before; /* see struct zr_all_gather */
    const struct zr_comm_work *last;     /* work after unpacking; NULL: none */
    /* Set by the call. */
    struct zr_compressor *by;
    struct zr_comm_work packs, unpacks;
};

/* to[p * shard ...] = scale * unpacked shard of rank p, for all ranks p. Errors as of zr_comm_all_gather().
 */
zr_result zr_compressed_gather(struct zr_compressor *by, struct zr_compressed *operation, zr_ticket *ticket);
/* to[shard] (+)= scale * sum over ranks p, in order, of p's unpacked shard for this rank. Errors as of
 * zr_comm_reduce_scatter(). */
zr_result zr_compressed_sum(struct zr_compressor *by, struct zr_compressed *operation, zr_ticket *ticket);

/* Staging bytes of a gather / of a sum. SIZE_MAX: overflow. */
size_t zr_compressed_gather_bytes(enum zr_packing packing, size_t shard_elements, unsigned world);
size_t zr_compressed_sum_bytes(enum zr_packing packing, size_t shard_elements, unsigned pieces,
                               unsigned world);

#endif
