/* batch.h: windows of tokens as the inputs of a trainer of a bundled model. A window is a row of tokens and
 * targets; context ranks divide it, and with documents its tokens have positions. */
#ifndef ZR_TRAIN_BATCH_H
#define ZR_TRAIN_BATCH_H

#include "zero/model/transformer.h"
#include "zero/train/data.h"

/* Everything is borrowed. */
struct zr_batch {
    struct zr_data *data; /* NULL: only zr_batch_put() is called */
    zr_trainer *trainer;
    const struct zr_shape *shape; /* the trainer's */
};

/* zr_data_train() into the inputs of the trainer, with positions in documents. A context rank reads whole
 * windows and keeps the tokens of its two chunks, so all ranks of a ring read the same files. Errors: those
 * of zero/train/data.h; ZR_ERR_HOST_MEMORY: no memory for whole windows. */
zr_result zr_batch_train(const struct zr_batch *batch, const struct zr_data_place *place);

/* The same of zr_data_validation(); *count: sequences, of which a context rank has its part. */
zr_result zr_batch_validation(const struct zr_batch *batch, const struct zr_data_place *place, size_t *count);

/* Gives the trainer this rank's part of `count` whole sequences, which may be in its inputs already.
 * `targets` NULL: targets keep what they have. */
void zr_batch_put(const struct zr_batch *batch, const int32_t *tokens, const int32_t *targets, size_t count);

/* The row of token `token` of a sequence, counted from the sequence's first one; ZR_ROW_ELSEWHERE: another
 * context rank has it. */
size_t zr_batch_row(const struct zr_batch *batch, size_t token);

#endif
