/* rank_fits.h: checks before step 1 that the memory of a rank is available; messages name the limit and
 * the fix. Allocates and changes nothing. Used by the thread that opens the rank. */
#ifndef ZR_TRAIN_RANK_FITS_H
#define ZR_TRAIN_RANK_FITS_H

#include "zero/train/rank/rank.h"

/* Requires the plan, and the GPU if there is one. ZR_ERR_MEMORY: the plan exceeds --host-limit,
 * --memory-limit, the GPU, the cgroup, or the machine. */
zr_result zr_rank_check_plan_fits(const struct zr_rank *rank);

/* Checks the addresses that libraries need: the matrix library and the C library map their own memory, and
 * oneDNN crashes if mmap fails. Under `ulimit -v` these mappings must fit beside the reserved ranges.
 * ZR_ERR_ADDRESSES: they do not fit. */
zr_result zr_rank_check_addresses_left(const struct zr_rank *rank);

#endif
