/* card.h: the GPU of a rank, with --backend cuda; otherwise these functions have no effect. */
#ifndef ZR_TRAIN_CARD_H
#define ZR_TRAIN_CARD_H

#include "zero/train/rank/rank.h"

/* Sets rank->device and, with offload, rank->pinned, and makes the device current in the calling thread.
 * ZR_ERR_UNAVAILABLE, ZR_ERR_INVALID: no driver, or no such GPU. Call it in the process that trains, since
 * a driver does not survive fork(). */
zr_result zr_card_open(struct zr_rank *rank);
/* Sets the driver's environment variables; called before the ranks are started. */
void zr_card_prepare(const struct zr_train_config *config);
/* Prints on stderr which kind of host memory the driver grants for offload. */
void zr_card_say_memory(const struct zr_rank *rank);
/* Releases device and pinned memory in the same thread; accepts a rank whose GPU failed to open. */
void zr_card_close(struct zr_rank *rank);
/* Whether each rank has its own GPU / the rank's device number. */
bool zr_card_is_own(const struct zr_rank *rank);
unsigned zr_card_device(const struct zr_rank *rank);
/* ZR_ERR_MEMORY: the plans of all ranks on this GPU exceed its memory. */
zr_result zr_card_check_plan(const struct zr_rank *rank);
/* For --comm nccl: sets rank->comm in place of zr_comm_create(). Collective. */
zr_result zr_card_comm_create(struct zr_rank *rank, const struct zr_comm_options *options);

#endif
