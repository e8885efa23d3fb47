/* policy_expandable.c: a model of PyTorch's allocator with expandable_segments:True. Uses model_blocks.c.
 *
 * Rules and their source (PyTorch, c10/cuda/CUDACachingAllocator.cpp): one segment per stream and pool, with
 * addresses for 9/8 of the device's memory, which grows by handles of 2 MiB (small pool) or 20 MiB (large
 * pool) (Note [Expandable Segments], ExpandableSegment::map); sizes and max_split_size in torch_rules.h; the
 * place of growth in find_expandable_block and try_allocate_expandable_block; best fit counts a free block at
 * the growing end with the addresses after it (get_free_block); splitting down to 512 bytes (should_split);
 * if the driver has no more memory, whole handles under free blocks are unmapped, segments without handles
 * are released, and the request is retried (release_blocks, unmap_block, release_expandable_segment).
 *
 * Driver calls: reserve and release of a segment's addresses; create and map per handle and one set access
 * per growth; unmap and release per handle. A new segment lies above the others; the driver may decide
 * otherwise. */
#include "alloc/base/error.h"
#include "defrag/replay/torch_rules.h"

/* Without a capacity: larger than any request, and 100,000 segments fit in 64 bits. */
#define SEGMENT_BYTES (UINT64_C(1) << 47)

struct pool {
    struct zr_block_set free;     /* mapped blocks by (stream, bytes, address) */
    struct zr_block_set unmapped; /* by (stream, address) */
    uint64_t handle_bytes;
};

struct expandable {
    struct zr_policy_model model; /* first */
    struct pool small, large;
    uint64_t next_address; /* of the next segment */
};

static struct pool *pool_of(struct expandable *own, const struct zr_model_block *block)
{
    return block->small ? &own->small : &own->large;
}

static zr_result expandable_begin(struct zr_policy_model *model)
{
    struct expandable *own = (struct expandable *)model;
    own->small.unmapped.by_address = own->large.unmapped.by_address = true;
    own->small.handle_bytes = zr_model_round(ZR_TORCH_SMALL_BUFFER, model->options.granule_bytes);
    own->large.handle_bytes = zr_model_round(ZR_TORCH_LARGE_BUFFER, model->options.granule_bytes);
    own->next_address = SEGMENT_BYTES;
    return ZR_OK;
}

/* ---- Merging ------------------------------------------------------------------------------------------- */

/* Merges a block, in no set, with a neighbour if both are free and have the same mapping state. */
static void try_join(struct expandable *own, struct zr_model_block *block, struct zr_model_block *neighbour)
{
    struct pool *pool = pool_of(own, block);
    if (!neighbour || neighbour->allocated || neighbour->mapped != block->mapped)
        return;
    zr_block_set_remove(neighbour->mapped ? &pool->free : &pool->unmapped, neighbour);
    zr_block_join(block, neighbour);
    zr_block_give(&own->model.records, neighbour);
}

/* ---- Growing ------------------------------------------------------------------------------------------- */

/* Takes handles for `bytes` from the driver, all or none: after a refusal, returns those already created. */
static bool create_and_map(struct expandable *own, uint64_t bytes, uint64_t handle_bytes)
{
    uint64_t count = bytes / handle_bytes;
    if (!zr_model_take(&own->model, bytes)) {
        uint64_t created = (own->model.options.capacity_bytes - own->model.reserved_bytes) / handle_bytes;
        own->model.driver_calls += created + 1 + created;
        return false;
    }
    own->model.driver_calls += count + count + 1;
    return true;
}

/* Maps at least the first `bytes` of an unmapped block. *out is the free block that contains them, merged
 * with its neighbours. */
static zr_result map_block(struct expandable *own, struct zr_model_block *block, uint64_t bytes,
                           struct zr_model_block **out)
{
    struct pool *pool = pool_of(own, block);
    struct zr_model_block *front;
    zr_result result = zr_block_take(&own->model.records, &front);
    if (result != ZR_OK)
        return result;
    bytes = zr_model_round(bytes, pool->handle_bytes);
    if (!create_and_map(own, bytes, pool->handle_bytes)) {
        zr_block_give(&own->model.records, front);
        return zr_fail(ZR_ERR_MEMORY, "a segment cannot grow by %llu bytes", (unsigned long long)bytes);
    }
    zr_block_set_remove(&pool->unmapped, block);
    if (bytes < block->bytes) {
        zr_block_split(block, front, bytes);
        zr_block_set_insert(&pool->unmapped, block);
        block = front;
    } else {
        zr_block_give(&own->model.records, front);
    }
    block->mapped = true;
    try_join(own, block, block->previous);
    try_join(own, block, block->next);
    zr_block_set_insert(&pool->free, block);
    *out = block;
    return ZR_OK;
}

static bool is_free(const struct zr_model_block *block)
{
    return block && !block->allocated;
}

/* Whether the free blocks from here on, mapped or not, are large enough. */
static bool has_room(const struct zr_model_block *block, uint64_t bytes)
{
    uint64_t found = 0;
    for (; found < bytes && is_free(block); block = block->next)
        found += block->bytes;
    return found >= bytes;
}

static zr_result add_segment(struct expandable *own, struct pool *pool, uint64_t stream,
                             struct zr_model_block **out)
{
    uint64_t capacity = own->model.options.capacity_bytes;
    zr_result result = zr_block_take(&own->model.records, out);
    if (result != ZR_OK)
        return result;
    **out = (struct zr_model_block){
        .address = own->next_address,
        .segment = own->next_address,
        .bytes = capacity ? zr_model_round(capacity + capacity / 8, pool->handle_bytes)
                          : SEGMENT_BYTES / pool->handle_bytes * pool->handle_bytes,
        .stream = stream,
        .small = pool == &own->small,
    };
    own->next_address += zr_model_round((*out)->bytes, SEGMENT_BYTES);
    own->model.driver_calls++;
    zr_block_set_insert(&pool->unmapped, *out);
    return ZR_OK;
}

/* Finds the place to grow: the lowest unmapped block, or a free block before it, with enough room after it.
 */
static zr_result find_place(struct expandable *own, uint64_t bytes, uint64_t stream,
                            struct zr_model_block **out)
{
    struct pool *pool = zr_torch_is_small(bytes) ? &own->small : &own->large;
    struct zr_model_block *block = zr_block_set_find(&pool->unmapped, stream, 0);
    for (; block && block->stream == stream; block = zr_block_set_next(&pool->unmapped, block)) {
        *out = is_free(block->previous) ? block->previous : block;
        if (has_room(*out, bytes))
            return ZR_OK;
    }
    zr_result result = add_segment(own, pool, stream, out);
    if (result == ZR_OK && (*out)->bytes < bytes)
        result = zr_fail(ZR_ERR_MEMORY, "a segment has no %llu addresses", (unsigned long long)bytes);
    return result;
}

/* A free mapped block of at least `bytes`, in no set, after mapping the missing part. */
static zr_result grow(struct expandable *own, uint64_t bytes, uint64_t stream, struct zr_model_block **out)
{
    struct zr_model_block *block;
    zr_result result = find_place(own, bytes, stream, &block);
    if (result != ZR_OK)
        return result;
    struct pool *pool = pool_of(own, block);
    while (!block->mapped || block->bytes < bytes) {
        struct zr_model_block *next = block->mapped ? block->next : block;
        uint64_t missing = block->mapped ? bytes - block->bytes : bytes;
        result = map_block(own, next, missing < next->bytes ? missing : next->bytes, &block);
        if (result != ZR_OK)
            return result;
    }
    zr_block_set_remove(&pool->free, block);
    *out = block;
    return ZR_OK;
}

/* ---- Releasing ----------------------------------------------------------------------------------------- */

/* Unmaps the whole handles under a free block. */
static zr_result unmap_block(struct expandable *own, struct zr_model_block *block)
{
    struct pool *pool = pool_of(own, block);
    uint64_t handle = pool->handle_bytes, from = block->address - block->segment, end = from + block->bytes;
    uint64_t first = zr_model_round(from, handle), last = end / handle * handle;
    struct zr_model_block *front, *back;
    if (first >= last)
        return ZR_OK;
    zr_result result = zr_block_take(&own->model.records, &front);
    if (result != ZR_OK)
        return result;
    result = zr_block_take(&own->model.records, &back);
    if (result != ZR_OK) {
        zr_block_give(&own->model.records, front);
        return result;
    }
    zr_block_set_remove(&pool->free, block);
    if (first > from) {
        zr_block_split(block, front, first - from);
        zr_block_set_insert(&pool->free, front);
    } else {
        zr_block_give(&own->model.records, front);
    }
    if (end > last) {
        *back = *block;
        back->address = block->segment + last;
        back->bytes = end - last;
        back->previous = block;
        if (back->next)
            back->next->previous = back;
        block->next = back;
        block->bytes = last - first;
        zr_block_set_insert(&pool->free, back);
    } else {
        zr_block_give(&own->model.records, back);
    }
    zr_model_give(&own->model, block->bytes);
    own->model.driver_calls += 2 * (block->bytes / handle);
    block->mapped = false;
    try_join(own, block, block->previous);
    try_join(own, block, block->next);
    zr_block_set_insert(&pool->unmapped, block);
    return ZR_OK;
}

static zr_result release_cached(struct expandable *own, struct pool *pool)
{
    struct zr_model_block *block = zr_block_set_next(&pool->free, NULL), *next;
    for (; block; block = next) {
        /* The rest of an unmapped block is shorter and sorts before it, so the walk meets no block twice. */
        next = zr_block_set_next(&pool->free, block);
        zr_result result = unmap_block(own, block);
        if (result != ZR_OK)
            return result;
        if (!block->mapped && !block->previous && !block->next) {
            zr_block_set_remove(&pool->unmapped, block);
            zr_block_give(&own->model.records, block);
            own->model.driver_calls++;
        }
    }
    return ZR_OK;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* The size of a free block for best fit, including the addresses that it can grow into. */
static uint64_t expandable_bytes(const struct zr_model_block *block)
{
    return block->bytes + (block->next && !block->next->mapped ? block->next->bytes : 0);
}

/* Takes the cached block for a size out of its set; NULL: none. */
static struct zr_model_block *find_cached(struct expandable *own, uint64_t bytes, uint64_t stream)
{
    struct pool *pool = zr_torch_is_small(bytes) ? &own->small : &own->large;
    struct zr_model_block *block = zr_block_set_find(&pool->free, stream, bytes), *next;
    if (!block)
        return NULL;
    while ((next = zr_block_set_next(&pool->free, block)) && next->stream == stream &&
           expandable_bytes(next) < expandable_bytes(block))
        block = next;
    if (!zr_torch_may_serve(&own->model.options, block->bytes, bytes))
        return NULL;
    zr_block_set_remove(&pool->free, block);
    return block;
}

static zr_result find_block(struct expandable *own, uint64_t bytes, uint64_t stream,
                            struct zr_model_block **out)
{
    *out = find_cached(own, bytes, stream);
    if (*out)
        return ZR_OK;
    zr_result result = grow(own, bytes, stream, out);
    if (result == ZR_ERR_MEMORY) {
        result = release_cached(own, &own->large);
        if (result == ZR_OK)
            result = release_cached(own, &own->small);
        if (result == ZR_OK)
            result = grow(own, bytes, stream, out);
    }
    return result;
}

static zr_result expandable_alloc(struct zr_policy_model *model, const struct zr_event *event, void **out)
{
    struct expandable *own = (struct expandable *)model;
    uint64_t bytes = zr_torch_rounded(&model->options, event->bytes);
    struct zr_model_block *block, *front;
    zr_result result = zr_block_take(&own->model.records, &front);
    if (result != ZR_OK)
        return result;
    result = find_block(own, bytes, event->stream, &block);
    if (result != ZR_OK) {
        zr_block_give(&own->model.records, front);
        return result;
    }
    zr_model_use(model, &pool_of(own, block)->free, block, front, bytes,
                 block->bytes - bytes >= ZR_TORCH_MIN_BLOCK, out);
    return ZR_OK;
}

static zr_result expandable_free(struct zr_policy_model *model, void *handle)
{
    struct expandable *own = (struct expandable *)model;
    struct zr_model_block *block = handle;
    block->allocated = false;
    try_join(own, block, block->previous);
    try_join(own, block, block->next);
    zr_block_set_insert(&pool_of(own, block)->free, block);
    return ZR_OK;
}

const struct zr_model_ops zr_model_expandable = {.bytes = sizeof(struct expandable),
                                                 .begin = expandable_begin,
                                                 .alloc = expandable_alloc,
                                                 .free = expandable_free};
