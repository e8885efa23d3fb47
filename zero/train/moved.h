/* moved.h: what a run hands over in the launcher's memory when its number of data replicas changes (--resize,
 * --elastic): the engine's state by the model's tensors, as in a checkpoint, and the course of the run. The
 * memory needs the state's bytes until the next ranks have read it. Launchers that meet at a rendezvous have
 * memory of their own, and each gets the whole. */
#ifndef ZR_TRAIN_MOVED_H
#define ZR_TRAIN_MOVED_H

#include "zero/train/history.h"
#include "zero/train/rank/kept.h"
#include "zero/train/saves.h"

struct zr_moved {
    uint64_t step; /* after which the size changes */
    struct zr_kept_course course;
    uint64_t saved_step, clock_step, started_ns;
    uint64_t speculative_updates, rolled_back_updates;
    uint64_t validated;
    double validation_loss;
    struct zr_sizes sizes;
};

/* Notes that the run has this many replicas from the end of `step` on, in place of a note of the same step.
 */
void zr_sizes_add(struct zr_sizes *sizes, uint64_t step, unsigned replicas);

/* Before the change: writes the engine's state and, on rank 0, the course: `moved` and the losses of the
 * history. Collective, with the same result on all ranks; between steps. ZR_ERR_IO: no memory is left for it.
 */
zr_result zr_moved_write(struct zr_saves *saves, const struct zr_history *history, struct zr_moved *moved);
/* *moves: the state of the last change is in the launchers' memory, as long as kept memory may have none.
 * After a restart over a rendezvous, launchers that were not there for the change get it from another one.
 * Collective, with the same result on all ranks. Errors of zr_spread(). */
zr_result zr_moved_find(const struct zr_rank *rank, bool *moves);
/* The course of the last change of this run; without one *out is unchanged. Collective. */
zr_result zr_moved_read_course(struct zr_moved *out, const struct zr_rank *rank);
/* Over a rendezvous events reach single launchers: the ranks agree on the replicas that leave. *changes: some
 * do. Without a rendezvous it is true. Collective. */
zr_result zr_moved_agree(const struct zr_rank *rank, bool *changes);
/* After the change: reads the engine's state and the losses. Collective, with the same result on all ranks.
 * `history` is open, with as many steps as `moved` has. Errors of zr_engine_load(). */
zr_result zr_moved_read(struct zr_saves *saves, struct zr_history *history, const struct zr_moved *moved);
/* Rank 0: the course of the last change gets the sizes of `moved`. */
zr_result zr_moved_note(const struct zr_rank *rank, const struct zr_moved *moved);
/* A rank of each launcher: gives the memory of the state back, after which a restart continues from kept
 * memory or a save. Kept memory is valid when all ranks have ended a step. */
zr_result zr_moved_end(const struct zr_rank *rank);

/* spread.c: files in memory of several launchers get the same contents.
 *
 * Ranks that give have written parts of a file of their own: afterwards each file of the ranks that take,
 * which was empty but for their own parts, has the parts of all. Parts of two ranks that overlap are equal
 * there. Takes 128 KiB of the heap, and 16 bytes per 64 KiB
 * that this rank has written. Collective, with the same result on all ranks. ZR_ERR_IO: no memory is left for
 * the file. ZR_ERR_HOST_MEMORY, and errors of zr_comm_wait(). */
struct zr_spread_part {
    bool gives, takes;
};
zr_result zr_spread(const struct zr_rank *rank, const struct zr_file *file, struct zr_spread_part part);

#endif
