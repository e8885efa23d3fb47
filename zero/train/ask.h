/* ask.h: settings that a command line leaves open, and measures that it depends on, found out before any rank
 * exists, each by a process of its own (child.h).
 *
 * Each sets what it says in *config, and returns -1, or an exit code when the reason has been logged. One
 * thread, the only one of its process. */
#ifndef ZR_TRAIN_ASK_H
#define ZR_TRAIN_ASK_H

#include "zero/train/pick.h"
#include "zero/train/settings/args.h"

/* For --stage auto: the stage whose plan takes the fewest bytes on rank 0, of equal ones the lowest. Sets
 * config->stage. */
struct zr_stage_pick {
    unsigned stage;
    size_t reserved_bytes;
};
int zr_ask_stage(struct zr_train_config *config, struct zr_stage_pick *out);
/* For --zero-r auto: see pick.h. Applies the best to config. */
int zr_ask_all(struct zr_train_config *config, struct zr_picks *out);
/* For --offload-ratio auto: sets config->offload_ratio; see zr_pick_ratio(). */
int zr_ask_ratio(struct zr_train_config *config);
/* For --speculative-update auto: sets config->speculative_bytes to SIZE_MAX where the limits have room for
 * all of the state twice and, but in a dry run, half of what is free on the disk. */
int zr_ask_speculation(struct zr_train_config *config);

/* Under --memory-limit on a card: sets config->logits_bytes to the largest power of two whose plan fits, of
 * those that differ for the model; see zr_limit_logits(). */
int zr_ask_logits(struct zr_train_config *config);

/* Sets config->policy_use, of rank 0; does nothing of the policy zr. */
int zr_ask_policy(struct zr_train_config *config);
/* What the tiers of a run offer, to config->found; see settings/offload.h. */
int zr_ask_tiers(struct zr_train_config *config);
/* Cuts the layers into pipeline stages, of which config->stages gets the layers. */
int zr_ask_cut(struct zr_train_config *config);

#endif
