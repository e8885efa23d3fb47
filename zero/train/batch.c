/* batch.c: see batch.h. */
#include "zero/train/batch.h"

#include <string.h>

static int32_t *input(const struct zr_batch *batch, unsigned number)
{
    return zr_trainer_input(batch->trainer, number);
}

/* Positions of `count` sequences of tokens. */
static void give_positions(const struct zr_batch *batch, const int32_t *tokens, size_t count)
{
    if (batch->shape->documents)
        zr_shape_find_positions(batch->shape, tokens, count, input(batch, ZR_INPUT_POSITIONS));
}

zr_result zr_batch_train(const struct zr_batch *batch, const struct zr_data_place *place)
{
    int32_t *tokens = input(batch, ZR_INPUT_TOKENS);
    zr_result result = zr_data_train(batch->data, place, tokens, input(batch, ZR_INPUT_TARGETS));
    if (result == ZR_OK)
        give_positions(batch, tokens, batch->shape->batch);
    return result;
}

zr_result zr_batch_validation(const struct zr_batch *batch, const struct zr_data_place *place, size_t *count)
{
    int32_t *tokens = input(batch, ZR_INPUT_TOKENS);
    zr_result result = zr_data_validation(batch->data, place, tokens, input(batch, ZR_INPUT_TARGETS), count);
    if (result == ZR_OK)
        give_positions(batch, tokens, *count);
    return result;
}

void zr_batch_give(const struct zr_batch *batch, const int32_t *tokens)
{
    memcpy(input(batch, ZR_INPUT_TOKENS), tokens, batch->shape->sequence * sizeof *tokens);
    give_positions(batch, tokens, 1);
}
