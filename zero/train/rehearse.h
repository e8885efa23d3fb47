/* rehearse.h: the plans of all ranks without any of them: for --dry-run, and for a limit before the run.
 *
 * Both print, and return an exit code. One thread, the only one of its process, before any rank exists. */
#ifndef ZR_TRAIN_REHEARSE_H
#define ZR_TRAIN_REHEARSE_H

#include "zero/train/settings/args.h"

/* --dry-run, with --find-max too: the byte plan, the step's time by the timeline, and where the plan does not
 * fit under a limit what would. In this process. */
int zr_rehearse_run(const struct zr_train_config *config);

/* Whether the plan fits under --memory-limit, --host-limit and --nvme-limit, found out by a process of its
 * own. -1: it does, or there is no limit; else the table of what does not fit and what would has been
 * printed. */
int zr_rehearse_check_limit(const struct zr_train_config *config);

#endif
