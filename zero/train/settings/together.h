/* together.h: whether settings have a meaning together, and the way out where they have not. Private to
 * settings/; nothing allocates. */
#ifndef ZR_TRAIN_TOGETHER_H
#define ZR_TRAIN_TOGETHER_H

#include "zero/train/settings/args.h"
#include "zero/train/settings/config.h"

/* Words for what --find-max leaves no meaning to; NULL: nothing. */
const char *zr_args_beside_find_max(const struct zr_train_config *config, const struct zr_config_rest *rest);
/* All of them, resolved. -1: they fit; else an exit code, and the words are said. */
int zr_args_together(const struct zr_train_config *config);
/* Likewise of the bucket, which is rounded to whole elements here. */
int zr_args_check_bucket(struct zr_train_config *config);

#endif
