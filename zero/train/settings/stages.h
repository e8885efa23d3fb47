/* stages.h: the stages of a pipeline: whether the settings can have them, and which ranks they are. */
#ifndef ZR_TRAIN_STAGES_H
#define ZR_TRAIN_STAGES_H

#include "zero/train/settings/args.h"

/* The rank of the run that is the first one of a pipeline rank: all others of it take the same bytes. */
unsigned zr_train_first_rank(const struct zr_train_config *config, unsigned pipeline_rank);
/* Pipeline ranks; 1 without a pipeline. */
static inline unsigned zr_train_pipeline(const struct zr_train_config *config)
{
    return zr_train_mesh(config).pipeline;
}

/* ZR_ERR_INVALID: more stages than layers can fill, or micro-batches that the schedule does not take; the
 * words name the nearest that fit. */
zr_result zr_train_check_stages(const struct zr_train_config *config);
#endif
