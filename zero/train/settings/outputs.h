/* outputs.h: checks before a run starts that its outputs can be written, so that a typo does not cost an
 * hour. */
#ifndef ZR_TRAIN_OUTPUTS_H
#define ZR_TRAIN_OUTPUTS_H

#include "zero/train/settings/args.h"

/* Checks the outputs. Creates and changes nothing; called by the launcher. ZR_ERR_IO: the message names the
 * option. */
zr_result zr_outputs_check(const struct zr_train_config *config);
/* ZR_ERR_INVALID: two of the run's files or folders are the same, whether they exist yet or not, so one
 * would overwrite the other. */
zr_result zr_outputs_apart(const struct zr_train_config *config);

#endif
