/* schedule.h: the learning rate of each step: a linear warm-up, then cosine or linear decay to the minimum
 * rate, or a constant. A pure function of the step, so a resumed run needs no state. */
#ifndef ZR_TRAIN_SCHEDULE_H
#define ZR_TRAIN_SCHEDULE_H

#include "zero/train/settings/args.h"

/* The rate of `step`, from 1 to config->steps. It rises over steps 1 to warmup and reaches config->rate at
 * step `warmup`; the last step has config->min_rate (cosine, linear). */
float zr_schedule_rate(const struct zr_train_config *config, uint64_t step);

#endif
