/* policy_bestfit.c: textbook best fit in one growing range, whose memory is never returned. Uses
 * model_blocks.c.
 *
 * Sizes are rounded to 512 bytes. A request takes the smallest free range that is large enough, the lowest
 * among equals; else the range grows at its end by whole granules, including a free range at the end. Streams
 * are ignored: every free takes effect at once. Growth costs three driver calls: create, map, set access. */
#include "alloc/base/error.h"
#include "defrag/replay/model.h"

enum { ROUND_BYTES = 512, CALLS_TO_GROW = 3 };

struct bestfit {
    struct zr_policy_model model; /* first */
    struct zr_block_set free;
    struct zr_model_block *last; /* highest in the range; NULL: nothing yet */
    uint64_t end_address;
};

/* Extends the range so that it ends in a free block of at least `bytes`, in no set. */
static zr_result grow(struct bestfit *bestfit, uint64_t bytes, struct zr_model_block **out)
{
    struct zr_model_block *last = bestfit->last, *block;
    uint64_t there = last && !last->allocated ? last->bytes : 0;
    uint64_t more = zr_model_round(bytes - there, bestfit->model.options.granule_bytes);
    zr_result result = zr_block_take(&bestfit->model.records, &block);
    if (result != ZR_OK)
        return result;
    bestfit->model.driver_calls += CALLS_TO_GROW;
    if (!zr_model_take(&bestfit->model, more)) {
        zr_block_give(&bestfit->model.records, block);
        return zr_fail(ZR_ERR_MEMORY, "the range cannot grow by %llu bytes", (unsigned long long)more);
    }
    if (there) {
        zr_block_give(&bestfit->model.records, block);
        zr_block_set_remove(&bestfit->free, last);
        last->bytes += more;
        block = last;
    } else {
        *block = (struct zr_model_block){.previous = last, .address = bestfit->end_address, .bytes = more};
        if (last)
            last->next = block;
    }
    bestfit->last = block;
    bestfit->end_address += more;
    *out = block;
    return ZR_OK;
}

static zr_result bestfit_alloc(struct zr_policy_model *model, const struct zr_event *event, void **out)
{
    struct bestfit *bestfit = (struct bestfit *)model;
    uint64_t bytes = zr_model_round(event->bytes, ROUND_BYTES);
    struct zr_model_block *front, *block;
    zr_result result = zr_block_take(&bestfit->model.records, &front);
    if (result != ZR_OK)
        return result;
    block = zr_block_set_find(&bestfit->free, 0, bytes);
    if (block) {
        zr_block_set_remove(&bestfit->free, block);
    } else {
        result = grow(bestfit, bytes, &block);
        if (result != ZR_OK) {
            zr_block_give(&bestfit->model.records, front);
            return result;
        }
    }
    zr_model_use(model, &bestfit->free, block, front, bytes, block->bytes > bytes, out);
    return ZR_OK;
}

static void join_free(struct bestfit *bestfit, struct zr_model_block *block, struct zr_model_block *neighbour)
{
    if (!neighbour || neighbour->allocated)
        return;
    zr_block_set_remove(&bestfit->free, neighbour);
    if (bestfit->last == neighbour)
        bestfit->last = block;
    zr_block_join(block, neighbour);
    zr_block_give(&bestfit->model.records, neighbour);
}

static zr_result bestfit_free(struct zr_policy_model *model, void *handle)
{
    struct bestfit *bestfit = (struct bestfit *)model;
    struct zr_model_block *block = handle;
    block->allocated = false;
    join_free(bestfit, block, block->previous);
    join_free(bestfit, block, block->next);
    zr_block_set_insert(&bestfit->free, block);
    return ZR_OK;
}

const struct zr_model_ops zr_model_bestfit = {
    .bytes = sizeof(struct bestfit), .alloc = bestfit_alloc, .free = bestfit_free};
