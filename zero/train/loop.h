/* loop.h: the training loop of one rank. */
#ifndef ZR_TRAIN_LOOP_H
#define ZR_TRAIN_LOOP_H

#include "zero/train/rank/rank.h"

/* Runs a rank; `argument` is the struct zr_train_config. Returns the rank's exit code. */
int zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);

#endif
