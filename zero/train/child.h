/* child.h: what is found out before any rank exists, in memory for records alone, and as a rule in a process
 * of its own, so that the caller stays without memory of the arena's and can fork ranks.
 *
 * One thread, the only one of its process. Failures are logged here, those of the work by the process that
 * leads the run. */
#ifndef ZR_TRAIN_CHILD_H
#define ZR_TRAIN_CHILD_H

#include "zero/train/settings/args.h"

/* Records come from `host_arena` and go back. */
typedef zr_result zr_child_work(const struct zr_train_config *config, zr_arena *host_arena);

/* Does the work in this process. Returns the exit code. */
int zr_child_here(const struct zr_train_config *config, zr_child_work *work);
/* Does it in a child. Returns the exit code; -1: there is no child. */
int zr_child_run(const struct zr_train_config *config, zr_child_work *work);

/* Has a child find out what an option comes to: the work ends with zr_child_answer() of as many bytes, which
 * arrive in *out. -1, or an exit code. */
int zr_child_ask(const struct zr_train_config *config, const char *option, zr_child_work *work, void *out,
                 size_t bytes);
/* In the work of zr_child_ask(). ZR_ERR_IO: the asker is not there any more. */
zr_result zr_child_answer(const void *words, size_t bytes);

#endif
