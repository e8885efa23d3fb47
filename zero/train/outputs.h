/* outputs.h: a look at where a run is to write, before it starts: a mistyped folder should not cost an hour.
 */
#ifndef ZR_TRAIN_OUTPUTS_H
#define ZR_TRAIN_OUTPUTS_H

#include "zero/train/args.h"

/* Makes and changes nothing; for the launcher. ZR_ERR_IO with words that name the option. */
zr_result zr_outputs_check(const struct zr_train_config *config);

#endif
