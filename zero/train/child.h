/* child.h: runs work that precedes the ranks, usually in a child process, so that the caller allocates no
 * arena memory before it forks the ranks.
 *
 * The process must be single-threaded. Failures of the child process are logged here; only the process that
 * leads the run logs failures of the work. */
#ifndef ZR_TRAIN_CHILD_H
#define ZR_TRAIN_CHILD_H

#include "zero/train/settings/args.h"

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
