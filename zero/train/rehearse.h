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

/* ---- Work before the ranks (child.c) ------------------------------------------------------------------- */

/* Runs work that precedes the ranks, usually in a child process, so that the caller allocates no arena memory
 * before it forks the ranks. The process must be single-threaded. Failures of the child process are logged
 * here; only the process that leads the run logs failures of the work. */

/* Records come from `host_arena` and are freed. */
typedef zr_result zr_child_work(const struct zr_train_config *config, zr_arena *host_arena);

/* Runs the work in this process. Returns the exit code. */
int zr_child_here(const struct zr_train_config *config, zr_child_work *work);
/* Runs the work in a child. Returns its exit code; -1: fork failed. */
int zr_child_run(const struct zr_train_config *config, zr_child_work *work);

/* Resolves an option in a child: the work ends with zr_child_answer() of `bytes` bytes, which arrive in
 * *out. Returns -1, or an exit code. */
int zr_child_ask(const struct zr_train_config *config, const char *option, zr_child_work *work, void *out,
                 size_t bytes);
/* Called by the work of zr_child_ask(). ZR_ERR_IO: the parent is gone. */
zr_result zr_child_answer(const void *answer, size_t bytes);

#endif
