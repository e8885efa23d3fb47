/* spread.h: files in memory of several launchers get the same contents. Used by moved.c. */
#ifndef ZR_TRAIN_SPREAD_H
#define ZR_TRAIN_SPREAD_H

#include "alloc/base/system/file.h"
#include "zero/train/rank/rank.h"

/* Each rank has written parts of a file of its own, which was empty: afterwards each file has the parts of
 * all. Parts of two ranks that overlap are equal there. Takes 128 KiB of the heap, and 16 bytes per 64 KiB
 * that this rank has written. Collective, with the same
 * result on all ranks. ZR_ERR_IO: no memory is left for the file. ZR_ERR_HOST_MEMORY, and errors of
 * zr_comm_wait(). */
zr_result zr_spread(const struct zr_rank *rank, const struct zr_file *file);

#endif
