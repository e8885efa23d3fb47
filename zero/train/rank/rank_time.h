/* rank_time.h: how long a step takes, by the timeline of a run's plan at the speeds that its settings give.
 *
 * A rehearsal by the clock of zero/plan: nothing is measured and nothing trained. Records come from
 * host_arena, which stays the caller's. Any thread may call, each with an arena of its own. Errors are those
 * of zr_rank_plan(). */
#ifndef ZR_TRAIN_RANK_TIME_H
#define ZR_TRAIN_RANK_TIME_H

#include "zero/plan/timeline.h"
#include "zero/train/settings/args.h"

/* How long a step takes by the timeline of such a run, at config's speeds. */
zr_result zr_rank_step_seconds(double *out, const struct zr_train_config *config, zr_arena *host_arena);

/* With --flops and --bandwidth: rehearses the plan once more, by the clock, and prints what it shows; without
 * them nothing. All ranks do the same at the same time; it is rank 0 that this speaks of. *out is the
 * caller's to end with zr_timeline_end(), on failure too. */
zr_result zr_rank_time_plan(struct zr_timeline *out, const struct zr_train_config *config,
                            zr_arena *host_arena);

#endif
