/* resolve_options.h: settings that the command line leaves open, and measurements on which settings depend. A
 * child process (rehearse.h) finds each of them before any rank exists.
 *
 * Each function sets fields of *config and returns -1, or an exit code after logging the reason. The process
 * must be single-threaded. */
#ifndef ZR_TRAIN_RESOLVE_OPTIONS_H
#define ZR_TRAIN_RESOLVE_OPTIONS_H

#include "zero/train/strategy_search.h"
#include "zero/train/settings/args.h"

/* --stage auto: sets config->stage to the stage whose plan takes the fewest bytes on rank 0; of equal stages
 * the lowest. */
struct zr_stage_choice {
    unsigned stage;
    size_t reserved_bytes;
};
int zr_resolve_stage(struct zr_train_config *config, struct zr_stage_choice *out);
/* --zero-r auto: applies the fastest strategy of zr_strategy_search(). */
int zr_resolve_strategy(struct zr_train_config *config, struct zr_strategies *out);
/* --offload-ratio auto: sets config->offload_ratio; see zr_offload_ratio_search(). */
int zr_resolve_offload_ratio(struct zr_train_config *config);
/* --speculative-update auto: sets config->speculative_bytes to SIZE_MAX if the state fits twice under the
 * limits and, except in a dry run, in half of the disk's free space. */
int zr_resolve_speculative_update(struct zr_train_config *config);

/* With --memory-limit on a GPU: sets config->logits_bytes to the largest power of two whose plan fits,
 * among those that differ for the model; see zr_limit_logits(). */
int zr_resolve_logits_bytes(struct zr_train_config *config);

/* Sets config->policy_use for rank 0; no effect for the policy zr. */
int zr_resolve_policy(struct zr_train_config *config);
/* Measures the tiers into config->found; see settings/offload.h. */
int zr_measure_tiers(struct zr_train_config *config);
/* Divides the layers into pipeline stages: sets config->stages.layers. */
int zr_resolve_pipeline_cut(struct zr_train_config *config);

#endif
