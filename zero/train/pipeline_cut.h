/* pipeline_cut.h: how --pipeline-cut cuts the layers into the stages of a pipeline. */
#ifndef ZR_TRAIN_PIPELINE_CUT_H
#define ZR_TRAIN_PIPELINE_CUT_H

#include "zero/train/settings/args.h"

/* Sets config->stages.layers. By memory: layer by layer to the rank whose peak is the lowest, by the byte
 * plans of each rank with one layer per stage and with two; the first and the last stage, which have the
 * embedding and the head, may have none. Records of the rehearsals come from host_arena. */
zr_result zr_train_cut_stages(struct zr_train_config *config, zr_arena *host_arena);

#endif
