/* trainer_state.h: what a rank that trains a bundled model holds, built in one order everywhere: scratch for
 * the kernels, the model, the trainer. The byte plan builds it on sim, the run on real memory; so both take
 * the same bytes. */
#ifndef ZR_STEP_TRAINER_STATE_H
#define ZR_STEP_TRAINER_STATE_H

#include "zero/comm/clock.h"
#include "zero/comm/mesh.h"
#include "zero/model/transformer.h"
#include "zero/step/trainer.h"

struct zr_trainer_state_options {
    zr_arena *arena, *host_arena;
    const struct zr_kernels *kernels;
    void *stream;                          /* of the kernels, on a card; NULL: the default one */
    const struct zr_kernels *host_kernels; /* as of struct zr_engine_options */
    enum zr_isa isa;
    struct zr_parallel parallel;
    const struct zr_mesh *mesh;     /* borrowed; made before, so that its rings come first */
    struct zr_shape shape;          /* its tensor ranks are the mesh's */
    const struct zr_stages *stages; /* of its pipeline ranks; NULL: none */
    unsigned stage;
    unsigned micro_batches;
    enum zr_reduce_when reduce;
    enum zr_precision precision;
    struct zr_loss_scaling loss_scaling; /* fp16 */
    uint64_t seed;
    struct zr_optimizer_options optimizer;
    struct zr_checkpoint_policy checkpoints;
    struct zr_offload offload;
    struct zr_comm_clock *clock; /* of a rehearsal; NULL: none */
};

struct zr_trainer_state {
    struct zr_trainer_state_options options;
    struct zr_kernel_context context, host_context; /* the engine points here: do not move the struct */
    bool context_open, host_context_open;
    struct zr_transformer transformer;
    zr_trainer *trainer;
    zr_engine *engine; /* the trainer's */
};

/* Builds in place. On failure everything is released and *out may be forgotten. Collective. */
zr_result zr_trainer_state_open(struct zr_trainer_state *out, const struct zr_trainer_state_options *options);
/* What this rank has sent over all communicators of the mesh and the pipeline. */
void zr_trainer_state_counters_get(const struct zr_trainer_state *state, struct zr_comm_counters *out);
/* What was copied to the host tier and back, and how long this rank waited for copies. */
uint64_t zr_trainer_state_moved_bytes(const struct zr_trainer_state *state);
uint64_t zr_trainer_state_copies_exposed_ns(const struct zr_trainer_state *state);
/* Releases; a zeroed struct is fine. */
void zr_trainer_state_close(struct zr_trainer_state *state);

struct zr_bucket_request {
    const struct zr_shape *shape;
    enum zr_precision precision;
    unsigned data; /* ranks */
    size_t cap_bytes;
};
/* The communicator's bucket: the cap, or less where no unit of the model fills it. The records of the
 * calculation come from `host_arena` and go back. */
zr_result zr_trainer_state_bucket_bytes(const struct zr_bucket_request *request, zr_arena *host_arena,
                                        size_t *out);

#endif
