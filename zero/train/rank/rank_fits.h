/* rank_fits.h: whether what a rank is going to take is there: refused before step 1, with the limit that it
 * meets and what helps.
 *
 * Nothing is taken and nothing changed. The thread that opens the rank. */
#ifndef ZR_TRAIN_RANK_FITS_H
#define ZR_TRAIN_RANK_FITS_H

#include "zero/train/rank/rank.h"

/* The rank has its plan, and its card where it runs on one. ZR_ERR_MEMORY: beyond --host-limit,
 * --memory-limit, the card, the cgroup, or what the machine has. */
zr_result zr_rank_check_plan_fits(const struct zr_rank *rank);

/* The matrix library and the C library map memory of their own, and oneDNN does not survive a refusal: under
 * `ulimit -v` what they need must be left when our own reservations stand. ZR_ERR_ADDRESSES: it is not. */
zr_result zr_rank_check_addresses_left(const struct zr_rank *rank);

#endif
