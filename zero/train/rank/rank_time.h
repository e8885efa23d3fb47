/* rank_time.h: the duration of a step by the timeline of a plan, at the speeds in the settings. Simulated:
 * nothing is measured or trained. Records come from host_arena. Any thread may call, with its own arena.
 * Errors: those of zr_rank_plan(). */
#ifndef ZR_TRAIN_RANK_TIME_H
#define ZR_TRAIN_RANK_TIME_H

#include "zero/plan/timeline.h"
#include "zero/train/settings/args.h"

/* Seconds of a step at config's speeds. */
zr_result zr_rank_step_seconds(double *out, const struct zr_train_config *config, zr_arena *host_arena);

/* With --flops and --bandwidth, rehearses the plan on the simulated clock and prints the timeline of rank
 * 0; otherwise no effect. All ranks call it concurrently. The caller ends *out with zr_timeline_end(),
 * also on failure. */
zr_result zr_rank_time_plan(struct zr_timeline *out, const struct zr_train_config *config,
                            zr_arena *host_arena);

#endif
