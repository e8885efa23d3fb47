/* outputs.h: a look at where a run is to write, before it starts: a mistyped folder should not cost an hour.
 */
#ifndef ZR_TRAIN_OUTPUTS_H
#define ZR_TRAIN_OUTPUTS_H

#include "zero/train/settings/args.h"

/* Makes and changes nothing; for the launcher. ZR_ERR_IO with words that name the option. */
zr_result zr_outputs_check(const struct zr_train_config *config);
/* ZR_ERR_INVALID where what is written would be the end of a file that is read, or of another that is
 * written, whether they are there already or not. */
zr_result zr_outputs_apart(const struct zr_train_config *config);

#endif
