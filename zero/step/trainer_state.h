/* trainer_state.h: workspace, model and trainer of a rank that trains a bundled model. The byte plan builds
 * it on the sim backend and the run on real memory, in the same order, so both allocate the same blocks. */
#ifndef ZR_STEP_TRAINER_STATE_H
#define ZR_STEP_TRAINER_STATE_H

#include "zero/comm/clock.h"
#include "zero/comm/mesh.h"
#include "zero/model/transformer.h"
#include "zero/step/trainer.h"

struct zr_trainer_state_options {
    zr_arena *arena, *host_arena;
    const struct zr_kernels *kernels;
    void *stream;                          /* the kernels' CUstream; NULL: the default stream */
    const struct zr_kernels *host_kernels; /* see struct zr_engine_options */
    enum zr_isa isa;
    struct zr_parallel parallel;
    const struct zr_mesh *mesh;     /* borrowed; created first, so that its rings are allocated first */
    struct zr_shape shape;          /* its tensor ranks are those of the mesh */
    const struct zr_stages *stages; /* of the mesh's pipeline ranks; NULL: no pipeline */
    unsigned stage;
    unsigned micro_batches;
    enum zr_reduce_when reduce;
    struct zr_compression compression;
    bool measures_squares;             /* see struct zr_engine_options */
    const struct zr_kept_memory *kept; /* likewise */
    bool snapshots;                    /* likewise */
    bool shares_parameters;            /* likewise */
    bool root_owns;                    /* likewise */
    struct zr_outer outer;             /* its communicator is the mesh's */
    struct zr_servers servers;
    bool differs; /* keep `old` and `difference` of the state */
    enum zr_precision precision;
    struct zr_loss_scaling loss_scaling; /* fp16 */
    uint64_t seed;
    struct zr_optimizer_options optimizer;
    struct zr_checkpoint_policy checkpoints;
    struct zr_offload offload;
    struct zr_comm_clock *clock; /* simulated clock of a timeline; NULL: none */
};

struct zr_trainer_state {
    struct zr_trainer_state_options options;
    struct zr_kernel_context context, host_context; /* the engine points to them: the struct must not move */
    bool context_open, host_context_open;
    struct zr_transformer transformer;
    zr_trainer *trainer;
    zr_engine *engine; /* owned by the trainer */
    /* Of a worker that pushes differences of parameters: the parameters that the servers know, a float of
     * each element that the engine updates, by layout.units[].pool_offset (tag optimizer) / a buffer for the
     * largest unit (tag comm). NULL: none. */
    float *old, *difference;
};

/* Builds in place; on failure everything is released. Collective. */
zr_result zr_trainer_state_open(struct zr_trainer_state *out, const struct zr_trainer_state_options *options);
/* Counters of all communicators of the mesh and the pipeline. */
void zr_trainer_state_counters_get(const struct zr_trainer_state *state, struct zr_comm_counters *out);
/* Bytes copied to the host tier and back / time that this rank waited for the copies. */
uint64_t zr_trainer_state_moved_bytes(const struct zr_trainer_state *state);
uint64_t zr_trainer_state_copies_exposed_ns(const struct zr_trainer_state *state);
/* Allowed for a zeroed struct. */
void zr_trainer_state_close(struct zr_trainer_state *state);

struct zr_bucket_request {
    const struct zr_shape *shape;
    enum zr_precision precision;
    unsigned data; /* ranks */
    size_t cap_bytes;
    enum zr_optimizer_kind optimizer;
};
/* Size of the communicator's bucket: the cap, or the largest unit if smaller. Temporary records come from
 * `host_arena`. */
zr_result zr_trainer_state_bucket_bytes(const struct zr_bucket_request *request, zr_arena *host_arena,
                                        size_t *out);

#endif
