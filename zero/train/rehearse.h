/* rehearse.h: plans of all ranks without any rank, for --dry-run and for limits. Both functions print and
 * return an exit code. The process must be single-threaded, before any rank exists. */
#ifndef ZR_TRAIN_REHEARSE_H
#define ZR_TRAIN_REHEARSE_H

#include "zero/train/settings/args.h"

/* --dry-run and --find-max, in this process: prints the byte plan, the timeline, and, if the plan exceeds a
 * limit, variations that fit. */
int zr_rehearse_run(const struct zr_train_config *config);

/* Checks --memory-limit, --host-limit and --nvme-limit in a child process. Returns -1 if the plan fits or
 * there is no limit; else prints the limit that is exceeded and variations that fit. */
int zr_rehearse_check_limit(const struct zr_train_config *config);

#endif
