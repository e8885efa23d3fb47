/* blocks.h: what the tests of one arena share: the arena that is under test, its backend and its statistics,
 * and blocks of it. */
#ifndef ZR_TEST_BLOCKS_H
#define ZR_TEST_BLOCKS_H

#include "alloc/zr.h"

static zr_backend *backend;
static zr_arena *arena;

/* Where there is no memory: NULL. */
static inline char *take_as(zr_arena *from, size_t bytes, zr_tag tag, uint64_t stream)
{
    void *block = NULL;
    zr_arena_alloc(from, &(struct zr_request){.bytes = bytes, .tag = tag, .stream = stream}, &block);
    return block;
}

static inline char *take(size_t bytes)
{
    return take_as(arena, bytes, ZR_TAG_GRAD, 0);
}

static inline char *take_on(size_t bytes, uint64_t stream)
{
    return take_as(arena, bytes, ZR_TAG_GRAD, stream);
}

static inline struct zr_arena_stats stats(void)
{
    struct zr_arena_stats now = {0};
    zr_arena_get_stats(arena, &now);
    return now;
}

#endif
