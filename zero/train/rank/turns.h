/* turns.h: a run's part in the allocator service: it is let in by its byte plan, and takes turns with others.
 *
 * Without ZR_CONF=service, and where no zrd serves, all of it does nothing. */
#ifndef ZR_TRAIN_TURNS_H
#define ZR_TRAIN_TURNS_H

#include "zero/train/rank/rank.h"

/* Whether the run can compute beside another with which it shares memory: the plan is to have claims. Before
 * the plan is made. */
bool zr_turns_can_overlap(const struct zr_rank *rank);
/* From here on steps say their claims while another run needs memory. After the trainer is there. */
void zr_turns_claim(struct zr_rank *rank);
/* Before the rank takes what its plan has: tells zrd the plan, and waits for the run's first turn. All ranks
 * of a machine, without a communicator. ZR_ERR_MEMORY, said with the table of holders by the first rank of
 * the machine: the plan does not fit beside what others hold and plan. */
zr_result zr_turns_begin(struct zr_rank *rank);
/* Whether another run waits for this one's turn. */
bool zr_turns_wanted(const struct zr_rank *rank);
/* Between two steps, once the ranks have agreed: gives idle memory back and waits for the next turn. */
zr_result zr_turns_next(struct zr_rank *rank);

#endif
