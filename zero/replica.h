/* replica.h: one rank's copy of the trainer's inside, built in one order everywhere: scratch for the kernels,
 * the engine, the model. The plan builds it on sim, the run on real memory; so both take the same bytes. */
#ifndef ZR_REPLICA_H
#define ZR_REPLICA_H

#include "zero/gpt.h"

struct zr_replica_options {
    zr_arena *arena, *host_arena;
    const struct zr_kernels *kernels;
    enum zr_isa isa;
    struct zr_parallel parallel;
    zr_comm *comm; /* made before, so that its ring comes first */
    struct zr_gpt_shape shape;
    unsigned stage;
    unsigned micro_batches;
    enum zr_reduce_when reduce;
    enum zr_precision precision;
    struct zr_loss_scaling loss_scaling; /* fp16 */
    uint64_t seed;
    struct zr_optimizer_options optimizer;
    struct zr_timeline *timeline; /* of a rehearsal, or NULL */
};

struct zr_replica {
    struct zr_replica_options options;
    struct zr_kernel_context context; /* the engine and the model point here: do not move the struct */
    bool context_open;
    zr_engine *engine;
    zr_gpt *model;
};

/* Builds in place. On failure everything is released and *out may be forgotten. Collective. */
zr_result zr_replica_open(struct zr_replica *out, const struct zr_replica_options *options);
struct zr_bucket_request {
    const struct zr_gpt_shape *shape;
    enum zr_precision precision;
    unsigned world;
    size_t cap_bytes;
};
/* The communicator's bucket: the cap, or less where no unit of the model fills it. The records of the
 * calculation come from `host_arena` and go back. */
zr_result zr_replica_bucket_bytes(const struct zr_bucket_request *request, zr_arena *host_arena, size_t *out);
/* Releases; a zeroed struct is fine. */
void zr_replica_close(struct zr_replica *replica);

#endif
