/* together.h: checks that settings are consistent with each other. Private to settings/; nothing
 * allocates. */
#ifndef ZR_TRAIN_TOGETHER_H
#define ZR_TRAIN_TOGETHER_H

#include "zero/train/settings/args.h"
#include "zero/train/settings/config.h"

/* Message about an option that contradicts --find-max; NULL: none. */
const char *zr_args_beside_find_max(const struct zr_train_config *config, const struct zr_config_rest *rest);
/* Checks resolved settings. Returns -1, or an exit code after printing a message. */
int zr_args_together(const struct zr_train_config *config);
/* Checks --bucket-bytes and rounds it down to whole lines. Returns -1, or an exit code after printing a
 * message. */
int zr_args_check_bucket(struct zr_train_config *config);

#endif
