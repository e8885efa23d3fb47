/* card.h: the card of a rank, with --backend cuda; without, these do nothing. */
#ifndef ZR_TRAIN_CARD_H
#define ZR_TRAIN_CARD_H

#include "zero/train/rank/rank.h"

/* Sets rank->device and, of a run that offloads, rank->pinned, and makes the device the calling thread's.
 * ZR_ERR_UNAVAILABLE, ZR_ERR_INVALID with words: there is no driver, or no such card. In the process that
 * trains: a driver does not survive fork(). */
zr_result zr_card_open(struct zr_rank *rank);
/* For the process that starts the ranks, before it does: what their driver reads from the environment. */
void zr_card_prepare(const struct zr_train_config *config);
/* Which kind of host memory the driver grants a run that offloads, on standard error. */
void zr_card_say_memory(const struct zr_rank *rank);
/* Gives them back, in the same thread; what did not open may be closed. */
void zr_card_close(struct zr_rank *rank);
/* Whether the rank has a card of its own, beside others that have theirs; and which it has. */
bool zr_card_is_own(const struct zr_rank *rank);
unsigned zr_card_device(const struct zr_rank *rank);
/* ZR_ERR_MEMORY: the plans of all ranks of this machine are more than the card has. */
zr_result zr_card_check_plan(const struct zr_rank *rank);
/* For --comm nccl: sets rank->comm, as zr_comm_create() does otherwise. Collective. */
zr_result zr_card_comm_create(struct zr_rank *rank, const struct zr_comm_options *options);

#endif
