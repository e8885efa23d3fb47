/* agree.h: whether all ranks were started with the same settings. Ranks that somebody else starts have a
 * command line each. */
#ifndef ZR_TRAIN_AGREE_H
#define ZR_TRAIN_AGREE_H

#include "zero/train/settings/args.h"

/* The first words between the ranks. Collective. ZR_ERR_INVALID on all of them, with the first option that
 * differs: settings that must be alike are not. Those that are a rank's own (where it reads and writes, its
 * threads, its limits) may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

#endif
