/* stages.h: the pipeline stages of a run: their ranks, and whether the settings allow them. */
#ifndef ZR_TRAIN_STAGES_H
#define ZR_TRAIN_STAGES_H

#include "zero/train/settings/args.h"

/* The first rank of the run with this pipeline rank; other ranks of the pipeline rank take the same bytes. */
unsigned zr_train_first_rank(const struct zr_train_config *config, unsigned pipeline_rank);
/* Number of pipeline ranks; 1 without a pipeline. */
static inline unsigned zr_train_pipeline(const struct zr_train_config *config)
{
    return zr_train_mesh(config).pipeline;
}

/* ZR_ERR_INVALID: too many stages for the layers, or a number of micro-batches that the schedule rejects;
 * the message names values that fit. */
zr_result zr_train_check_stages(const struct zr_train_config *config);

/* Sets config->stages.layers. With `memory`, each layer goes to the rank with the lowest peak, estimated
 * from byte plans with one and with two layers per stage; the first and the last stage, which have
 * embedding and head, may get none. Records come from host_arena. */
zr_result zr_train_cut_stages(struct zr_train_config *config, zr_arena *host_arena);

#endif
