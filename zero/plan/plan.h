/* plan.h: the byte plan: the memory of each tag on a rank, found by running the engine and the model on
 * the sim backend with null kernels and the null communicator. */
#ifndef ZR_BYTE_PLAN_H
#define ZR_BYTE_PLAN_H

#include "defrag/zr_defrag.h"
#include "zero/engine/outer.h"
#include "zero/model/transformer.h"
#include "zero/plan/reservations.h"

struct zr_plan_request {
    struct zr_shape shape;
    unsigned stage, threads;
    unsigned rank, world;  /* of the whole run; shape.tensor ranks form one data rank */
    unsigned groups;       /* 0: 1 */
    struct zr_outer outer; /* its communicator is the plan's */
    struct zr_stages stages;
    unsigned micro_batches; /* per step; 0: 1 */
    enum zr_reduce_when reduce;
    struct zr_compression compression;
    bool measures_squares;  /* see struct zr_engine_options */
    bool served;            /* parameter servers keep the state: zr_engine_options.servers */
    bool differs;           /* see struct zr_trainer_state_options */
    bool keeps_state;       /* state outlives the process: zr_engine_options.kept */
    bool snapshots;         /* saves are written by a thread: zr_engine_options.snapshots */
    bool backs_up;          /* with copies on other ranks: zr_engine_options.backup */
    bool shares_parameters; /* see struct zr_engine_options */
    bool root_owns;         /* likewise */
    enum zr_precision precision;
    struct zr_optimizer_options optimizer;
    size_t bucket_bytes;                     /* maximum size of a bucket */
    struct zr_checkpoint_policy checkpoints; /* the policy's arena is not used */
    bool offloads_checkpoints; /* checkpoints are offloaded to an arena of the plan; likewise for the
                                  following fields */
    bool offloads_optimizer, offloads_parameters, delays_update;
    /* Files of optimizer state and of parameters: only alignment matters; folder NULL: none. */
    struct zr_offload_file offload_file, parameters_file;
    double resident_share;    /* see struct zr_offload */
    size_t speculative_bytes; /* see struct zr_offload */
    size_t granule_bytes;
    enum zr_isa isa;
    const struct zr_kernels *kernels; /* kernels of the run, which determine workspaces; NULL: the
                                       * processor's */
    zr_arena *host_arena;             /* for records, freed before the call returns */
    struct zr_timeline *timeline;     /* filled by zr_plan_make() after zr_timeline_start(); NULL: none */
    const char *trace;                /* file for the arena's events; NULL: none */
    bool live_only;                   /* only live bytes are needed, so no placement plan is made */
    bool walks_all; /* rehearse every micro-batch instead of the first, the last and one for all others */
    /* Receives the placement plan that the reserved bytes assume, owned by the caller; NULL in it: none.
     * NULL: not needed. */
    zr_rehearsal **places;
    /* Receives the reservations if there is a placement plan; owned by the caller, who has set its arena.
     * NULL: not needed. */
    struct zr_plan_reservations *reservations;
};

struct zr_byte_plan {
    uint64_t elements;                      /* parameters, without padding */
    size_t peak_by_tag_bytes[ZR_TAG_COUNT]; /* at the first time of the peak; other is 0 */
    size_t peak_bytes;
    size_t persistent_by_tag_bytes[ZR_TAG_COUNT]; /* between steps */
    size_t peak_reserved_bytes;
    /* Elements that the stage would shard but keeps whole, because sharding would take more memory than it
     * saves. */
    uint64_t whole_parameters, whole_gradients;
    uint64_t sent_elements_per_step, sent_bytes_per_step;
    uint64_t full_sent_bytes;     /* of a step in full precision with ZR_METHOD_ZERONE; else 0 */
    struct zr_outer_report outer; /* exchanges of groups, which are not in sent_bytes_per_step */
    uint64_t snapshot_bytes;      /* of the copy of the state that a thread saves; part of the peak */
    uint64_t backup_bytes;     /* of a copy of this rank's state, sent per step; not in sent_bytes_per_step */
    uint64_t check_sent_bytes; /* at most, by a rank in a check of compression; not in sent_bytes_per_step */
    /* Values of the host tier. */
    size_t host_peak_by_tag_bytes[ZR_TAG_COUNT], host_bytes;
    size_t host_persistent_by_tag_bytes[ZR_TAG_COUNT];
    size_t host_reserved_bytes;
    uint64_t host_moved_bytes_per_step;             /* copied to and from the tier */
    uint64_t nvme_bytes, nvme_moved_bytes_per_step; /* sum over all offload files */
    uint64_t nvme_parameter_bytes;                  /* part of nvme_bytes for parameters */
    /* Maximum of each tag and of their sum at any time; the limits of a run with this plan. */
    struct zr_tag_limits tag_limits, host_tag_limits;
};

zr_result zr_plan_make(struct zr_byte_plan *out, const struct zr_plan_request *request);
/* Whether to use a placement plan: it may exceed best fit by two granules or half a percent. */
bool zr_plan_prefers_places(size_t placed_bytes, size_t plain_bytes, size_t granule_bytes);

/* ---- Another allocator (policy.c) ---------------------------------------------------------------------- */

/* Memory of a run under another allocator: replays the trace of a rehearsal under a model of that allocator
 * (defrag/replay). */

struct zr_policy_use {
    uint64_t live_bytes;     /* maximum live bytes */
    uint64_t reserved_bytes; /* maximum reserved by the policy until it failed or the run ended */
    bool fits;               /* false: the policy found no memory within the capacity */
};

/* Replays two steps and an evaluation of the rank in `request`. A contiguous pool counts as one block.
 * `capacity_bytes` 0: unlimited. ZR_ERR_IO: cannot create the temporary trace file in `folder`. */
zr_result zr_policy_weigh(struct zr_policy_use *out, const struct zr_plan_request *request,
                          enum zr_policy policy, uint64_t capacity_bytes, const char *folder);

#endif
