/* batch.c: see batch.h. A context rank reads whole windows and keeps its part of them. */
#include "zero/train/batch.h"

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"

static int32_t *input(const struct zr_batch *batch, unsigned number)
{
    return zr_trainer_input(batch->trainer, number);
}

void zr_batch_put(const struct zr_batch *batch, const int32_t *tokens, const int32_t *targets, size_t count)
{
    const struct zr_shape *shape = batch->shape;
    if (tokens != input(batch, ZR_INPUT_TOKENS))
        zr_shape_share_tokens(shape, tokens, count, input(batch, ZR_INPUT_TOKENS));
    if (targets && targets != input(batch, ZR_INPUT_TARGETS))
        zr_shape_share_tokens(shape, targets, count, input(batch, ZR_INPUT_TARGETS));
    if (zr_shape_has_positions(shape))
        zr_shape_share_positions(shape, tokens, count, input(batch, ZR_INPUT_POSITIONS));
}

/* `count`: of validation; NULL: training, whose batches are full. */
static zr_result read_windows(const struct zr_batch *batch, const struct zr_data_place *place, size_t *count)
{
    const struct zr_shape *shape = batch->shape;
    size_t elements = shape->batch * shape->sequence;
    bool divided = shape->context > 1;
    int32_t *whole = divided ? zr_heap_alloc(2 * elements * sizeof *whole) : NULL;
    int32_t *tokens = divided ? whole : input(batch, ZR_INPUT_TOKENS),
            *targets = divided ? whole + elements : input(batch, ZR_INPUT_TARGETS);
    if (divided && !whole)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no memory for the windows of %zu sequences", shape->batch);
    zr_result result = count ? zr_data_validation(batch->data, place, tokens, targets, count)
                             : zr_data_train(batch->data, place, tokens, targets);
    if (result == ZR_OK)
        zr_batch_put(batch, tokens, targets, count ? *count : shape->batch);
    zr_heap_free(whole);
    return result;
}

zr_result zr_batch_train(const struct zr_batch *batch, const struct zr_data_place *place)
{
    return read_windows(batch, place, NULL);
}

zr_result zr_batch_validation(const struct zr_batch *batch, const struct zr_data_place *place, size_t *count)
{
    return read_windows(batch, place, count);
}

size_t zr_batch_row(const struct zr_batch *batch, size_t token)
{
    struct zr_context_part part = zr_shape_part(batch->shape);
    size_t row = zr_context_before(part, token);
    return zr_context_before(part, token + 1) > row ? row : ZR_ROW_ELSEWHERE;
}
