/* kept.h: memory of a rank that outlives its process, with --max-restarts: the engine's pools
 * (zr_kept_memory) and the run's history, in one segment of kept memory (alloc/keep) that the launcher holds.
 * A successor opens the segment of the rank that it replaces. Used by the thread that opens the rank. */
#ifndef ZR_TRAIN_KEPT_H
#define ZR_TRAIN_KEPT_H

#include "zero/train/rank/rank.h"

/* What the run needs beside the engine to continue. */
struct zr_kept_course {
    uint64_t resumed_step;                      /* the step that the run began after */
    uint64_t data_order, data_steps, data_rows; /* see zr_data_set_order() and zr_data_resume() */
};

/* The setting with which a run restarts from its saves only; "": no rank is replaced; NULL: there is kept
 * memory. */
const char *zr_rank_kept_words(const struct zr_train_config *config);
/* Opens the rank's segment, or creates it; rank->kept is then memory for zr_engine_options.kept. Opens those
 * of the other ranks for reading. Collective. No effect without kept memory. Errors as for zr_keep_open() and
 * zr_keep_create(). */
zr_result zr_rank_kept_open(struct zr_rank *rank);
/* Before the communicator is created: rank->windows, which zr_rank_kept_open() fills. */
zr_result zr_rank_kept_begin(struct zr_rank *rank);
/* Unmaps the segments. The launcher keeps the rank's own for a successor. */
void zr_rank_kept_close(struct zr_rank *rank);
/* *out: memory of this name with the contents of the earlier process, or zeros; NULL without kept memory. It
 * belongs to the segment. ZR_ERR_CORRUPT: the earlier process had another size. ZR_ERR_MEMORY: the segment is
 * full. */
zr_result zr_rank_kept_take(struct zr_rank *rank, const char *name, size_t bytes, void **out);
/* The function of a struct zr_kept_memory whose state is a segment that the caller writes. */
zr_result zr_rank_kept_tensor(void *keep, const struct zr_kept_request *request, void **out);
/* Adds the segment's memory, which the byte plan contains, to the bytes of the rank's arena. No effect
 * without kept memory. */
void zr_rank_kept_add(const struct zr_rank *rank, struct zr_arena_stats *stats);

#endif
