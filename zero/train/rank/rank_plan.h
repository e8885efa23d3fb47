/* rank_plan.h: the byte plan of one rank, computed from the settings and the rank's number. No rank needs
 * to exist. Records of the rehearsal come from host_arena and are freed before a call returns; a plan owns
 * nothing. Any thread may call, with its own arena. Errors: those of zr_plan_make(), and
 * ZR_ERR_UNAVAILABLE if ZR_CONF requests an instruction set that the processor lacks. */
#ifndef ZR_TRAIN_RANK_PLAN_H
#define ZR_TRAIN_RANK_PLAN_H

#include "zero/plan/plan.h"
#include "zero/plan/timeline.h"
#include "zero/train/report/report.h"
#include "zero/train/settings/args.h"

/* The instruction set of ZR_CONF=isa:..., else the best available. */
zr_result zr_rank_choose_isa(enum zr_isa *out);
/* Kernels of --backend; on the host those for an instruction set. */
const struct zr_kernels *zr_rank_kernels(const struct zr_train_config *config, enum zr_isa isa);

/* Builds the argument of zr_plan_make(); the caller may add to it. */
zr_result zr_rank_request(struct zr_plan_request *out, const struct zr_train_config *config, unsigned rank,
                          zr_arena *host_arena);

/* The byte plan of a rank. */
zr_result zr_rank_plan(struct zr_byte_plan *out, const struct zr_train_config *config, unsigned rank,
                       zr_arena *host_arena);

/* Maximum live bytes of a rank: a lower bound of its plan that takes a fraction of the time. Granules may
 * have any size. */
zr_result zr_rank_live_bytes(size_t *out_bytes, const struct zr_train_config *config, unsigned rank,
                             size_t granule_bytes, zr_arena *host_arena);

/* Copies a plan into a rank's report. */
void zr_rank_note_plan(struct zr_rank_report *report, const struct zr_byte_plan *plan, unsigned rank);

/* ---- The duration of a step ---------------------------------------------------------------------------- */

/* By the timeline of a plan, at the speeds in the settings. Simulated: nothing is measured or trained.
 * Records come from host_arena. */

/* Seconds of a step at config's speeds. */
zr_result zr_rank_step_seconds(double *out, const struct zr_train_config *config, zr_arena *host_arena);

/* With --flops and --bandwidth, rehearses the plan on the simulated clock and prints the timeline of rank
 * 0; otherwise no effect. All ranks call it concurrently. The caller ends *out with zr_timeline_end(),
 * also on failure. */
zr_result zr_rank_time_plan(struct zr_timeline *out, const struct zr_train_config *config,
                            zr_arena *host_arena);

#endif
