/* agree.h: checks that all ranks were started with the same settings. Ranks of another launcher each parse
 * a command line. */
#ifndef ZR_TRAIN_AGREE_H
#define ZR_TRAIN_AGREE_H

#include "zero/train/settings/args.h"

/* The first exchange between the ranks. Collective. ZR_ERR_INVALID on all ranks: a setting that must be
 * equal differs; the message names the first one. Paths, threads and limits may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

#endif
