/* strategy_search.h: --zero-r auto: the strategy (mesh, stage, recomputation, placement of checkpoints)
 * with the shortest step in the timeline, among those whose byte plan fits under --memory-limit. */
#ifndef ZR_TRAIN_STRATEGY_SEARCH_H
#define ZR_TRAIN_STRATEGY_SEARCH_H

#include "zero/train/settings/args.h"

/* Default speeds of the timeline. */
#define ZR_STRATEGY_FLOPS     1e12
#define ZR_STRATEGY_BANDWIDTH 1e10

enum { ZR_STRATEGIES_SHOWN = 5 };

/* A strategy: settings of a configuration. */
struct zr_strategy {
    unsigned tensor, pipeline, stage, recompute, micro_batches;
    bool partition, offload;
    unsigned cut;          /* enum zr_pipeline_cut; equal, which is faster, if it fits */
    size_t reserved_bytes; /* of the plan of the largest rank */
    double step_seconds;
};

struct zr_strategies {
    struct zr_strategy best[ZR_STRATEGIES_SHOWN]; /* [count], fastest first */
    unsigned count;
    unsigned planned, timed; /* number of configurations planned / timed */
};

/* Searches all settings that the given options leave open, with a constant number of tokens per step. Records
 * come from host_arena. ZR_ERR_MEMORY: no strategy fits. */
zr_result zr_strategy_search(struct zr_strategies *out, const struct zr_train_config *config,
                             zr_arena *host_arena);
/* Copies a strategy into the settings; the layers remain to be divided. */
void zr_strategy_apply(struct zr_train_config *config, const struct zr_strategy *strategy);

/* --offload-ratio auto: the smallest ratio whose plan fits under --memory-limit, to within 1/4096; 1 if none
 * fits. The search is a bisection, because device-resident bytes decrease with the ratio. Records come from
 * host_arena. */
zr_result zr_offload_ratio_search(double *out, const struct zr_train_config *config, zr_arena *host_arena);

#endif
