/* pipeline_cut.h: --pipeline-cut: divides the layers into pipeline stages. */
#ifndef ZR_TRAIN_PIPELINE_CUT_H
#define ZR_TRAIN_PIPELINE_CUT_H

#include "zero/train/settings/args.h"

/* Sets config->stages.layers. With `memory`, each layer goes to the rank with the lowest peak, estimated
 * from byte plans with one and with two layers per stage; the first and the last stage, which have
 * embedding and head, may get none. Records come from host_arena. */
zr_result zr_train_cut_stages(struct zr_train_config *config, zr_arena *host_arena);

#endif
