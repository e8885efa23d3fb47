/* spill.h: --spill nvme:DIR: while a run waits for its time slice, state that the run keeps between steps is
 * swapped out to a file, as far as other runs need the memory. The state returns to the same addresses before
 * the time slice begins.
 *
 * State that a step needs last is swapped out first: optimizer state, masters, gradients, parameters. The
 * file is an offload file (zero/file_io): unlinked, with its space reserved before step 1. If a write
 * fails, the remaining state stays in memory and no more is swapped out; if a read fails, the run ends. */
#ifndef ZR_TRAIN_SPILL_H
#define ZR_TRAIN_SPILL_H

#include "zero/train/rank/rank.h"

struct zr_spill;

/* Bytes of the plan that can be swapped out between steps: the guaranteed minimum for zrd. 0 without
 * --spill. */
uint64_t zr_spill_sure_bytes(const struct zr_rank *rank, size_t granule_bytes);

/* Bytes at the two ends of a tag's range that may share a handle with another tag. */
uint64_t zr_spill_ends_bytes(uint64_t of_tag_bytes, size_t granule_bytes);

/* Opens the file, after the arenas exist and before the first time slice; no effect without --spill.
 * ZR_ERR_IO: the folder, or its space. */
zr_result zr_spill_open(struct zr_rank *rank);
void zr_spill_close(struct zr_rank *rank); /* no effect without --spill */

/* Begin and end the wait for a time slice. Between the two calls zrd's helper thread may swap out memory;
 * zr_spill_resume() swaps all of it in. ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: memory could not be remapped;
 * ZR_ERR_IO: the disk failed. */
void zr_spill_rest(struct zr_rank *rank);
zr_result zr_spill_resume(struct zr_rank *rank);

void zr_spill_get_report(const struct zr_rank *rank, struct zr_spill_report *out);

#endif
