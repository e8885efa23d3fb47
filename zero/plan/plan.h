/* plan.h: the byte plan: what each category of memory will take on a rank, found by running the very same
 * engine and model on the sim backend with the null kernels and the null communicator. */
#ifndef ZR_BYTE_PLAN_H
#define ZR_BYTE_PLAN_H

#include "defrag/zr_defrag.h"
#include "zero/model/transformer.h"
#include "zero/plan/claims.h"

struct zr_plan_request {
    struct zr_shape shape;
    unsigned stage, threads;
    unsigned rank, world; /* of the whole run: shape.tensor of them make one data rank of a stage */
    struct zr_stages stages;
    unsigned micro_batches; /* per step; 0: 1 */
    enum zr_reduce_when reduce;
    enum zr_precision precision;
    struct zr_optimizer_options optimizer;
    size_t bucket_bytes;                     /* the cap of a bucket */
    struct zr_checkpoint_policy checkpoints; /* but for its arena: */
    bool offloads_checkpoints;               /* to an arena of the plan's own, as what follows */
    bool offloads_optimizer, offloads_parameters, delays_update;
    /* Of the optimizer, and of parameters: their alignment counts; folder NULL: none. */
    struct zr_offload_file offload_file, parameters_file;
    double stays;             /* as of struct zr_offload */
    size_t speculative_bytes; /* likewise */
    size_t granule_bytes;
    enum zr_isa isa;
    const struct zr_kernels *kernels; /* of the run: the plan is of what these take; NULL: the processor's */
    zr_arena *host_arena;             /* records of the run, freed before the call returns */
    struct zr_timeline *timeline;     /* zr_plan_make() fills it; started by the caller. NULL: none */
    const char *trace;                /* file for the events of its arena; NULL: none */
    bool live_only; /* what is live is wanted, not what is reserved: no places are looked for */
    bool walks_all; /* every micro-batch is rehearsed, not the first, the last and one for all others */
    /* Gets the places that the plan's reserved bytes count on, of the caller; NULL if there are none. NULL:
     * not wanted. */
    zr_rehearsal **places;
    /* Gets what the step takes at most from each of its last micro-batch's actions on, where there are
     * places; of the caller, who has set its arena. None where there is no plan. NULL: not wanted. */
    struct zr_plan_claims *claims;
};

struct zr_byte_plan {
    uint64_t elements;                      /* parameters, without padding */
    size_t peak_by_tag_bytes[ZR_TAG_COUNT]; /* at the first moment of the peak; other is 0 */
    size_t peak_bytes;
    size_t persistent_by_tag_bytes[ZR_TAG_COUNT]; /* between steps */
    size_t peak_reserved_bytes;
    /* Elements that the stage would shard and keeps whole, since sharding takes more than it saves. */
    uint64_t whole_parameters, whole_gradients;
    uint64_t sent_elements_per_step;
    /* Of the host tier, likewise. */
    size_t host_peak_by_tag_bytes[ZR_TAG_COUNT], host_bytes;
    size_t host_persistent_by_tag_bytes[ZR_TAG_COUNT];
    size_t host_reserved_bytes;
    uint64_t host_moved_bytes_per_step;             /* to it and from it */
    uint64_t nvme_bytes, nvme_moved_bytes_per_step; /* of all offload files together */
    uint64_t nvme_parameter_bytes;                  /* of nvme_bytes, that of parameters */
    /* The most of each tag at whatever moment, and of all together: what a run of this plan is held to. */
    struct zr_tag_limits tag_limits, host_tag_limits;
};

zr_result zr_plan_make(struct zr_byte_plan *out, const struct zr_plan_request *request);
/* Whether a step is to have places: they may take two granules more than best fit does, or half a percent. */
bool zr_plan_prefers_places(size_t placed_bytes, size_t plain_bytes, size_t granule_bytes);

#endif
