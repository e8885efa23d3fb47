/* rank_plan.h: the byte plan of one rank, from the settings of a run.
 *
 * No rank need exist: the settings and a rank's number are enough. Records of the rehearsal come from
 * host_arena, which stays the caller's, and all are given back before a call returns; a plan owns nothing.
 * Any thread may call, each with an arena of its own. Errors are those of zr_plan_make(), and
 * ZR_ERR_UNAVAILABLE where ZR_CONF asks for an instruction set that the processor lacks. */
#ifndef ZR_TRAIN_RANK_PLAN_H
#define ZR_TRAIN_RANK_PLAN_H

#include "zero/plan/plan.h"
#include "zero/train/report/report.h"
#include "zero/train/settings/args.h"

/* The instruction set that ZR_CONF=isa:... asks for, else the best there is. */
zr_result zr_rank_choose_isa(enum zr_isa *out);
/* Those of --backend; of this machine's for a set of instructions. */
const struct zr_kernels *zr_rank_kernels(const struct zr_train_config *config, enum zr_isa isa);

/* What zr_plan_make() is asked; the caller may add to it. */
zr_result zr_rank_request(struct zr_plan_request *out, const struct zr_train_config *config, unsigned rank,
                          zr_arena *host_arena);

/* The byte plan of one rank of such a run. */
zr_result zr_rank_plan(struct zr_byte_plan *out, const struct zr_train_config *config, unsigned rank,
                       zr_arena *host_arena);

/* The most that is live on a rank at the requested stage: a lower bound of its plan for a fraction of the
 * work, in granules as large as the caller likes. */
zr_result zr_rank_live_bytes(size_t *out_bytes, const struct zr_train_config *config, unsigned rank,
                             size_t granule_bytes, zr_arena *host_arena);

/* Copies what is planned to a rank's report. */
void zr_rank_note_plan(struct zr_rank_report *report, const struct zr_byte_plan *plan, unsigned rank);

#endif
