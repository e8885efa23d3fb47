/* strategy_search.h: --zero-r auto: the fastest of all meshes, stages, recomputations and places of
 * checkpoints whose byte plan fits under --memory-limit, by the step timeline. */
#ifndef ZR_TRAIN_STRATEGY_SEARCH_H
#define ZR_TRAIN_STRATEGY_SEARCH_H

#include "zero/train/settings/args.h"

/* Speeds of the timeline where --flops and --bandwidth are not given. */
#define ZR_STRATEGY_FLOPS     1e12
#define ZR_STRATEGY_BANDWIDTH 1e10

enum { ZR_STRATEGIES_SHOWN = 5 };

/* What is picked: settings of a configuration. */
struct zr_strategy {
    unsigned tensor, pipeline, stage, recompute, micro_batches;
    bool partition, offload;
    unsigned cut;          /* enum zr_pipeline_cut; equal wherever that fits, which is faster */
    size_t reserved_bytes; /* by the plan of the rank that needs most */
    double step_seconds;
};

struct zr_strategies {
    struct zr_strategy best[ZR_STRATEGIES_SHOWN]; /* [count]: the fastest first */
    unsigned count;
    unsigned planned, timed; /* configurations whose plans, and whose timelines were made */
};

/* Goes through everything that the options given leave open; a step has as many tokens in each. Records come
 * from host_arena. ZR_ERR_MEMORY: nothing fits. */
zr_result zr_strategy_search(struct zr_strategies *out, const struct zr_train_config *config,
                             zr_arena *host_arena);
/* Takes over what was picked; the layers are still to be cut. */
void zr_strategy_apply(struct zr_train_config *config, const struct zr_strategy *strategy);

/* For --offload-ratio auto: the least part of the optimizer that has to be offloaded for the plan to fit
 * under
 * --memory-limit, within a 4096th; 1 where none fits. By halving: what stays grows with what may. Records
 * come from host_arena. */
zr_result zr_offload_ratio_search(double *out, const struct zr_train_config *config, zr_arena *host_arena);

#endif
