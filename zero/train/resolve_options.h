/* resolve_options.h: settings that a command line leaves open, and measures that it depends on, found out
 * before any rank exists, each by a process of its own (child.h).
 *
 * Each sets what it says in *config, and returns -1, or an exit code when the reason has been logged. One
 * thread, the only one of its process. */
#ifndef ZR_TRAIN_RESOLVE_OPTIONS_H
#define ZR_TRAIN_RESOLVE_OPTIONS_H

#include "zero/train/strategy_search.h"
#include "zero/train/settings/args.h"

/* For --stage auto: the stage whose plan takes the fewest bytes on rank 0, of equal ones the lowest. Sets
 * config->stage. */
struct zr_stage_choice {
    unsigned stage;
    size_t reserved_bytes;
};
int zr_resolve_stage(struct zr_train_config *config, struct zr_stage_choice *out);
/* For --zero-r auto: see strategy_search.h. Applies the best to config. */
int zr_resolve_strategy(struct zr_train_config *config, struct zr_strategies *out);
/* For --offload-ratio auto: sets config->offload_ratio; see zr_offload_ratio_search(). */
int zr_resolve_offload_ratio(struct zr_train_config *config);
/* For --speculative-update auto: sets config->speculative_bytes to SIZE_MAX where the limits have room for
 * all of the state twice and, but in a dry run, half of what is free on the disk. */
int zr_resolve_speculative_update(struct zr_train_config *config);

/* Under --memory-limit on a card: sets config->logits_bytes to the largest power of two whose plan fits, of
 * those that differ for the model; see zr_limit_logits(). */
int zr_resolve_logits_bytes(struct zr_train_config *config);

/* Sets config->policy_use, of rank 0; does nothing of the policy zr. */
int zr_resolve_policy(struct zr_train_config *config);
/* What the tiers of a run offer, to config->found; see settings/offload.h. */
int zr_measure_tiers(struct zr_train_config *config);
/* Cuts the layers into pipeline stages, of which config->stages gets the layers. */
int zr_resolve_pipeline_cut(struct zr_train_config *config);

#endif
