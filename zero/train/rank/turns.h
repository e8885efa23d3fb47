/* turns.h: a run under the allocator service: zrd admits it by its byte plan and gives it time slices. No
 * effect without ZR_CONF=service or a running zrd. */
#ifndef ZR_TRAIN_TURNS_H
#define ZR_TRAIN_TURNS_H

#include "zero/train/rank/rank.h"

/* Whether the run may compute while another run with which it shares memory computes, so that its plan needs
 * reservations. Called before the plan is made. */
bool zr_turns_can_overlap(const struct zr_rank *rank);
/* Makes steps report their reservations while another run needs memory. Called after the trainer exists. */
void zr_turns_claim(struct zr_rank *rank);
/* Sends the plan to zrd and waits for the first time slice, before the rank allocates. Called by all ranks of
 * a machine, without a communicator. ZR_ERR_MEMORY: the plan does not fit beside other clients and
 * reservations; the machine's first rank prints them. */
zr_result zr_turns_begin(struct zr_rank *rank);
/* Whether another run waits for this run's time slice. */
bool zr_turns_wanted(const struct zr_rank *rank);
/* Between two steps, after the ranks have agreed: trims idle memory and waits for the next time slice. */
zr_result zr_turns_next(struct zr_rank *rank);

#endif
