/* model_blocks.c: slabs of records, and treaps. A hash of the address is a node's priority, so the shape is
 * deterministic. Uses the arena. */
#include "defrag/replay/model_blocks.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/tree.h"

/* ---- Records ------------------------------------------------------------------------------------------- */

enum { SLAB_BLOCKS = 500 };

struct zr_block_slab {
    struct zr_block_slab *next;
    struct zr_model_block blocks[SLAB_BLOCKS];
};

void zr_block_pool_init(struct zr_block_pool *pool, zr_arena *arena)
{
    *pool = (struct zr_block_pool){.arena = arena};
}

void zr_block_pool_end(struct zr_block_pool *pool)
{
    while (pool->slabs) {
        struct zr_block_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        zr_arena_free(pool->arena, slab);
    }
    pool->free = NULL;
}

static zr_result add_slab(struct zr_block_pool *pool)
{
    void *room;
    zr_result result = zr_arena_alloc(
        pool->arena, &(struct zr_request){.bytes = sizeof(struct zr_block_slab), .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK) /* ZR_ERR_MEMORY would mean that the modelled memory is exhausted */
        return result == ZR_ERR_MEMORY ? ZR_ERR_HOST_MEMORY : result;
    struct zr_block_slab *slab = room;
    slab->next = pool->slabs;
    pool->slabs = slab;
    for (unsigned i = SLAB_BLOCKS; i-- > 0;)
        zr_block_give(pool, &slab->blocks[i]);
    return ZR_OK;
}

zr_result zr_block_take(struct zr_block_pool *pool, struct zr_model_block **out)
{
    zr_result result = pool->free ? ZR_OK : add_slab(pool);
    if (result != ZR_OK)
        return result;
    *out = pool->free;
    pool->free = pool->free->children[0];
    **out = (struct zr_model_block){0};
    return ZR_OK;
}

void zr_block_give(struct zr_block_pool *pool, struct zr_model_block *block)
{
    block->children[0] = pool->free;
    pool->free = block;
}

/* ---- Sets ---------------------------------------------------------------------------------------------- */

static uint64_t priority(const void *record)
{
    const struct zr_model_block *block = record;
    uint64_t hash = block->address * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

static bool lower(const void *one, const void *other)
{
    const struct zr_model_block *a = one, *b = other;
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
}

static bool smaller(const void *one, const void *other)
{
    const struct zr_model_block *a = one, *b = other;
    if (a->stream != b->stream)
        return a->stream < b->stream;
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

static const struct zr_tree_order by_address = {offsetof(struct zr_model_block, children), lower, priority},
                                  by_size = {offsetof(struct zr_model_block, children), smaller, priority};

void zr_block_set_insert(struct zr_block_set *set, struct zr_model_block *block)
{
    if (set->by_address)
        zr_tree_insert(by_address, &set->root, block);
    else
        zr_tree_insert(by_size, &set->root, block);
}

void zr_block_set_remove(struct zr_block_set *set, struct zr_model_block *block)
{
    if (set->by_address)
        zr_tree_remove(by_address, &set->root, block);
    else
        zr_tree_remove(by_size, &set->root, block);
}

/* The first block at or after `key`. */
static struct zr_model_block *not_before(const struct zr_block_set *set, const struct zr_model_block *key)
{
    return set->by_address ? zr_tree_ceiling(by_address, set->root, key)
                           : zr_tree_ceiling(by_size, set->root, key);
}

struct zr_model_block *zr_block_set_find(const struct zr_block_set *set, uint64_t stream, uint64_t bytes)
{
    struct zr_model_block key = {.stream = stream, .bytes = bytes, .address = set->by_address ? bytes : 0};
    struct zr_model_block *found = not_before(set, &key);
    return found && found->stream == stream ? found : NULL;
}

struct zr_model_block *zr_block_set_next(const struct zr_block_set *set, const struct zr_model_block *block)
{
    struct zr_model_block key = {0};
    if (block) {
        key = *block;
        key.address++;
    }
    return not_before(set, &key);
}

/* ---- Splitting and merging ----------------------------------------------------------------------------- */

void zr_block_split(struct zr_model_block *block, struct zr_model_block *front, uint64_t bytes)
{
    *front = *block;
    front->bytes = bytes;
    front->next = block;
    if (front->previous)
        front->previous->next = front;
    block->previous = front;
    block->address += bytes;
    block->bytes -= bytes;
}

void zr_block_join(struct zr_model_block *block, const struct zr_model_block *neighbour)
{
    block->bytes += neighbour->bytes;
    if (neighbour == block->previous) {
        block->address = neighbour->address;
        block->previous = neighbour->previous;
        if (block->previous)
            block->previous->next = block;
    } else {
        zr_assert(neighbour == block->next);
        block->next = neighbour->next;
        if (block->next)
            block->next->previous = block;
    }
}
