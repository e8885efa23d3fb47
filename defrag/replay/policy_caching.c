/* policy_caching.c: a model of PyTorch's caching allocator. Uses model_blocks.c.
 *
 * Rules and their source (PyTorch, c10/cuda/CUDACachingAllocator.cpp): sizes and pools in torch_rules.h; best
 * fit by (stream, size, address) in BlockComparatorSize and get_free_block; splitting in should_split;
 * merging in try_merge_blocks; if the driver has no more memory, malloc retries after
 * release_available_cached_blocks, then after release_cached_blocks, which frees every segment that is one
 * free block; garbage_collection_threshold in garbage_collect_cached_blocks, of the capacity, as if the
 * program had called set_per_process_memory_fraction.
 *
 * The simulated driver returns increasing addresses and never reuses one. cudaMalloc and cudaFree are one
 * call each. */
#include "alloc/base/error.h"
#include "defrag/replay/torch_rules.h"

#define FIRST_ADDRESS (UINT64_C(1) << 32)

struct caching {
    struct zr_policy_model model;     /* first */
    struct zr_block_set small, large; /* free blocks */
    uint64_t next_address;
    uint64_t searches_count; /* for large blocks: the clock of their ages */
};

static struct zr_block_set *set_of(struct caching *caching, bool small)
{
    return small ? &caching->small : &caching->large;
}

static zr_result caching_begin(struct zr_policy_model *model)
{
    ((struct caching *)model)->next_address = FIRST_ADDRESS;
    return ZR_OK;
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

/* Makes a new segment as one free block, in no set. */
static zr_result add_segment(struct caching *caching, uint64_t bytes, uint64_t stream,
                             struct zr_model_block **out)
{
    zr_result result = zr_block_take(&caching->model.records, out);
    if (result != ZR_OK)
        return result;
    caching->model.driver_calls++;
    if (!zr_model_take(&caching->model, bytes)) {
        zr_block_give(&caching->model.records, *out);
        return zr_fail(ZR_ERR_MEMORY, "no segment of %llu bytes within the capacity",
                       (unsigned long long)bytes);
    }
    **out = (struct zr_model_block){
        .address = caching->next_address, .bytes = bytes, .stream = stream, .mapped = true};
    caching->next_address += zr_model_round(bytes, caching->model.options.granule_bytes);
    return ZR_OK;
}

/* Whether a free block is a segment of its own. */
static bool is_whole(const struct zr_model_block *block)
{
    return !block->previous && !block->next;
}

/* Returns a free segment to the driver. */
static void release(struct caching *caching, struct zr_block_set *set, struct zr_model_block *block)
{
    zr_block_set_remove(set, block);
    zr_model_give(&caching->model, block->bytes);
    caching->model.driver_calls++;
    zr_block_give(&caching->model.records, block);
}

/* Returns every segment that is one free block to the driver. */
static void release_cached(struct caching *caching, bool small)
{
    struct zr_block_set *set = set_of(caching, small);
    struct zr_model_block *block = zr_block_set_next(set, NULL), *next;
    for (; block; block = next) {
        next = zr_block_set_next(set, block);
        if (is_whole(block))
            release(caching, set, block);
    }
}

/* With max_split_size: returns the smallest free segment of at least that size and the request's, or else the
 * largest ones of at least that size. True if they are as large as the request. */
static bool release_oversize(struct caching *caching, struct zr_block_set *set, uint64_t bytes,
                             uint64_t stream)
{
    uint64_t oversize = zr_torch_max_split(&caching->model.options), released_bytes = 0;
    bytes = bytes > oversize ? bytes : oversize;
    struct zr_model_block *block = zr_block_set_find(set, stream, bytes), *next;
    while (released_bytes < bytes) {
        for (next = block ? NULL : zr_block_set_find(set, stream, oversize); next && next->stream == stream;
             next = zr_block_set_next(set, next))
            block = next;
        if (!block || !is_whole(block))
            return false;
        released_bytes += block->bytes;
        release(caching, set, block);
        block = NULL;
    }
    return true;
}

/* Beyond the threshold: returns large free segments of at least the average age, until reserved memory is
 * below it. A block's age is the number of searches since it became free. */
static void collect_garbage(struct caching *caching)
{
    const struct zr_model_options *options = &caching->model.options;
    uint64_t threshold_bytes =
        (uint64_t)(options->garbage_collection_threshold * (double)options->capacity_bytes);
    struct zr_model_block *block, *next;
    if (threshold_bytes == 0)
        return;
    for (bool found = true; found && caching->model.reserved_bytes > threshold_bytes;) {
        double ages = 0, count = 0;
        for (block = zr_block_set_next(&caching->large, NULL); block;
             block = zr_block_set_next(&caching->large, block)) {
            ages += is_whole(block) ? (double)(caching->searches_count - block->since) : 0;
            count += is_whole(block);
        }
        found = false;
        for (block = zr_block_set_next(&caching->large, NULL); block; block = next) {
            next = zr_block_set_next(&caching->large, block);
            if (is_whole(block) && (double)(caching->searches_count - block->since) * count >= ages) {
                release(caching, &caching->large, block);
                found = true;
            }
        }
    }
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static bool should_split(const struct caching *caching, const struct zr_model_block *block, uint64_t bytes)
{
    uint64_t remaining = block->bytes - bytes;
    return block->small
               ? remaining >= ZR_TORCH_MIN_BLOCK
               : bytes < zr_torch_max_split(&caching->model.options) && remaining > ZR_TORCH_SMALL_SIZE;
}

/* A free block of at least `bytes`, in no set: from the cache, from the driver, or from the driver after
 * parts of the cache or all of it were released. */
static zr_result find_block(struct caching *caching, uint64_t bytes, uint64_t stream,
                            struct zr_model_block **out)
{
    bool small = zr_torch_is_small(bytes);
    caching->searches_count += !small;
    *out = zr_block_set_find(set_of(caching, small), stream, bytes);
    if (*out && zr_torch_may_serve(&caching->model.options, (*out)->bytes, bytes)) {
        zr_block_set_remove(set_of(caching, small), *out);
        return ZR_OK;
    }
    collect_garbage(caching);
    zr_result result = add_segment(caching, zr_torch_segment(bytes), stream, out);
    if (result == ZR_ERR_MEMORY && release_oversize(caching, set_of(caching, small), bytes, stream))
        result = add_segment(caching, zr_torch_segment(bytes), stream, out);
    if (result == ZR_ERR_MEMORY) {
        release_cached(caching, false);
        release_cached(caching, true);
        result = add_segment(caching, zr_torch_segment(bytes), stream, out);
    }
    if (result == ZR_OK)
        (*out)->small = small;
    return result;
}

static zr_result caching_alloc(struct zr_policy_model *model, const struct zr_event *event, void **out)
{
    struct caching *caching = (struct caching *)model;
    uint64_t bytes = zr_torch_rounded(&model->options, event->bytes);
    struct zr_model_block *block, *front;
    zr_result result = zr_block_take(&caching->model.records, &front);
    if (result != ZR_OK)
        return result;
    result = find_block(caching, bytes, event->stream, &block);
    if (result != ZR_OK) {
        zr_block_give(&caching->model.records, front);
        return result;
    }
    block->since = caching->searches_count; /* of the rest, if it is split */
    zr_model_use(model, set_of(caching, block->small), block, front, bytes,
                 should_split(caching, block, bytes), out);
    return ZR_OK;
}

static void join_free(struct caching *caching, struct zr_model_block *block, struct zr_model_block *neighbour)
{
    if (!neighbour || neighbour->allocated)
        return;
    zr_block_set_remove(set_of(caching, block->small), neighbour);
    zr_block_join(block, neighbour);
    zr_block_give(&caching->model.records, neighbour);
}

static zr_result caching_free(struct zr_policy_model *model, void *handle)
{
    struct caching *caching = (struct caching *)model;
    struct zr_model_block *block = handle;
    block->allocated = false;
    join_free(caching, block, block->previous);
    join_free(caching, block, block->next);
    block->since = caching->searches_count;
    zr_block_set_insert(set_of(caching, block->small), block);
    return ZR_OK;
}

const struct zr_model_ops zr_model_caching = {
    .bytes = sizeof(struct caching), .begin = caching_begin, .alloc = caching_alloc, .free = caching_free};
