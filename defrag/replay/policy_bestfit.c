/* policy_bestfit.c: best fit in one growing range, the textbook's allocator with memory beneath that never
 * goes back. Stands on model_blocks.c.
 *
 * Sizes are rounded to 512 bytes. The smallest free stretch that is large enough is used, the lowest of
 * equals; else the range grows at its end by whole granules, a free stretch there included. Streams are
 * ignored, as if every free were complete at once. Growing is three driver calls: create, map, set access. */
#include "alloc/base/error.h"
#include "defrag/replay/model.h"
#include "defrag/replay/model_blocks.h"

enum { ROUND_BYTES = 512, CALLS_TO_GROW = 3 };

struct bestfit {
    struct zr_model model; /* first */
    struct zr_block_pool records;
    struct zr_block_set holes;
    struct zr_model_block *last; /* highest in the range; NULL: nothing yet */
    uint64_t end_address;
};

static zr_result bestfit_create(struct zr_model **out, const struct zr_model_options *options)
{
    void *room;
    zr_result result =
        zr_arena_alloc(options->host_arena,
                       &(struct zr_request){.bytes = sizeof(struct bestfit), .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    struct bestfit *bestfit = room;
    *bestfit = (struct bestfit){.model = {.ops = &zr_model_bestfit, .options = *options}};
    zr_block_pool_init(&bestfit->records, options->host_arena);
    *out = &bestfit->model;
    return ZR_OK;
}

static void bestfit_destroy(struct zr_model *model)
{
    struct bestfit *bestfit = (struct bestfit *)model;
    zr_block_pool_end(&bestfit->records);
    zr_arena_free(model->options.host_arena, bestfit);
}

/* Makes the range end in a hole of at least `bytes`, in no set. */
static zr_result grow(struct bestfit *bestfit, uint64_t bytes, struct zr_model_block **out)
{
    struct zr_model_block *last = bestfit->last, *hole;
    uint64_t there = last && !last->allocated ? last->bytes : 0;
    uint64_t more = zr_model_round(bytes - there, bestfit->model.options.granule_bytes);
    zr_result result = zr_block_take(&bestfit->records, &hole);
    if (result != ZR_OK)
        return result;
    bestfit->model.driver_calls += CALLS_TO_GROW;
    if (!zr_model_take(&bestfit->model, more)) {
        zr_block_give(&bestfit->records, hole);
        return zr_fail(ZR_ERR_MEMORY, "the range cannot grow by %llu bytes", (unsigned long long)more);
    }
    if (there) {
        zr_block_give(&bestfit->records, hole);
        zr_block_set_remove(&bestfit->holes, last);
        last->bytes += more;
        hole = last;
    } else {
        *hole = (struct zr_model_block){.previous = last, .address = bestfit->end_address, .bytes = more};
        if (last)
            last->next = hole;
    }
    bestfit->last = hole;
    bestfit->end_address += more;
    *out = hole;
    return ZR_OK;
}

static zr_result bestfit_alloc(struct zr_model *model, const struct zr_event *event, void **out)
{
    struct bestfit *bestfit = (struct bestfit *)model;
    uint64_t bytes = zr_model_round(event->bytes, ROUND_BYTES);
    struct zr_model_block *front, *hole;
    zr_result result = zr_block_take(&bestfit->records, &front);
    if (result != ZR_OK)
        return result;
    hole = zr_block_set_find(&bestfit->holes, 0, bytes);
    if (hole) {
        zr_block_set_remove(&bestfit->holes, hole);
    } else {
        result = grow(bestfit, bytes, &hole);
        if (result != ZR_OK) {
            zr_block_give(&bestfit->records, front);
            return result;
        }
    }
    if (hole->bytes > bytes) {
        zr_block_split(hole, front, bytes);
        zr_block_set_insert(&bestfit->holes, hole);
        hole = front;
    } else {
        zr_block_give(&bestfit->records, front);
    }
    hole->allocated = true;
    *out = hole;
    return ZR_OK;
}

static void join_free(struct bestfit *bestfit, struct zr_model_block *block, struct zr_model_block *neighbour)
{
    if (!neighbour || neighbour->allocated)
        return;
    zr_block_set_remove(&bestfit->holes, neighbour);
    if (bestfit->last == neighbour)
        bestfit->last = block;
    zr_block_join(block, neighbour);
    zr_block_give(&bestfit->records, neighbour);
}

static zr_result bestfit_free(struct zr_model *model, void *handle)
{
    struct bestfit *bestfit = (struct bestfit *)model;
    struct zr_model_block *block = handle;
    block->allocated = false;
    join_free(bestfit, block, block->previous);
    join_free(bestfit, block, block->next);
    zr_block_set_insert(&bestfit->holes, block);
    return ZR_OK;
}

const struct zr_model_ops zr_model_bestfit = {.create = bestfit_create,
                                              .destroy = bestfit_destroy,
                                              .alloc = bestfit_alloc,
                                              .free = bestfit_free,
                                              .reset_peak = zr_model_reset_peak,
                                              .measure = zr_model_measure};
