/* equal_stacks.h: one number for all stacks of a snapshot that have the same frames. Private to
 * defrag/trace/.
 *
 * A pickle names a list of frames by its identity, and PyTorch writes one list for each recorded call, so
 * two blocks of one line of code have different lists. Frames are equal if their name, file and line are. */
#ifndef ZR_EQUAL_STACKS_H
#define ZR_EQUAL_STACKS_H

#include "defrag/trace/formats/pickle.h"

struct zr_equal_stacks {
    struct zr_number_map numbers;  /* of a list or a frame: the number of the first equal one */
    struct zr_number_map contents; /* of a hash of content: the first number */
};

/* Allocates nothing, so it cannot fail. */
void zr_equal_stacks_init(struct zr_equal_stacks *out, zr_arena *arena);
void zr_equal_stacks_end(struct zr_equal_stacks *stacks);
/* *out: the number of the first stack that was asked for and has equal frames, plus 1; 0: no frames. Numbers
 * are those of one reading of the pickle. Returns the arena's error. */
zr_result zr_equal_stacks_find(struct zr_equal_stacks *stacks, struct zr_pickle *pickle,
                               struct zr_pickle_value frames, uint32_t *out);

#endif
