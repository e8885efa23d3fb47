/* spill.h: what a run keeps between steps goes to a file while it waits for its turn, as far as others need
 * its memory, and comes back, at the same addresses, before the turn begins (--spill nvme:DIR).
 *
 * What a step needs last goes first: optimizer state, masters, gradients, parameters. The file is an offload
 * file (zero/engine/nvme): no name, its space reserved before step 1, gone with the process. Where a write
 * fails, what was to go stays, and nothing goes from then on; where a read fails, the run ends. */
#ifndef ZR_TRAIN_SPILL_H
#define ZR_TRAIN_SPILL_H

#include "zero/train/rank/rank.h"

struct zr_spill;

/* What may go of the plan's bytes between steps: as much as zrd may count on / as the file has room for. 0
 * without --spill. */
uint64_t zr_spill_sure_bytes(const struct zr_rank *rank, size_t granule_bytes);
uint64_t zr_spill_most_bytes(const struct zr_rank *rank, size_t granule_bytes);

/* Blocks of a tag, so many bytes in all, may share a handle with others at both ends: these two. */
uint64_t zr_spill_ends_bytes(uint64_t of_tag_bytes, size_t granule_bytes);

/* Between plan and turns, once the arenas stand; nothing without --spill. ZR_ERR_IO: the folder, or its room.
 */
zr_result zr_spill_open(struct zr_rank *rank);
void zr_spill_close(struct zr_rank *rank); /* without one: nothing */

/* Around the wait for a turn: from here on zrd's helper thread may take memory / no more, and all of it is
 * back. ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: it could not be had; ZR_ERR_IO: the disk. */
void zr_spill_rest(struct zr_rank *rank);
zr_result zr_spill_resume(struct zr_rank *rank);

void zr_spill_get_report(const struct zr_rank *rank, struct zr_spill_report *out);

#endif
