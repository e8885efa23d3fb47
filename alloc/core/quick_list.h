/* quick_list.h: freed blocks that are kept for the next request of their size, since programs ask again and
 * again for what they have just given back. Private to allocate.c, which keeps them and lets them go; the
 * arena's lock covers every call. */
#ifndef ZR_QUICK_LIST_H
#define ZR_QUICK_LIST_H

#include "alloc/core/arena_internal.h"

static inline bool zr_quick_is(const struct zr_extent *extent)
{
    return extent && extent->kind == ZR_EXTENT_QUICK;
}

/* One of 64 bits for a size. */
static inline unsigned zr_quick_size_bit(size_t bytes)
{
    return (uint32_t)(bytes >> ZR_UNIT_SHIFT) * UINT32_C(0x9e3779b9) >> 26;
}

/* False: there is no quick block of the size. */
static inline bool zr_quick_may_have(const struct zr_arena *arena, size_t bytes)
{
    return arena->quick_sizes >> zr_quick_size_bit(bytes) & 1;
}

static inline struct zr_extent *zr_quick_leave(struct zr_arena *arena, unsigned place)
{
    struct zr_extent *block = arena->quick[place];
    arena->quick[place] = NULL;
    arena->quick_bytes[place] = 0;
    if (--arena->quick_count == 0)
        arena->quick_sizes = 0;
    return block;
}

/* Once a bit was set in vain. */
static inline void zr_quick_note_sizes(struct zr_arena *arena)
{
    arena->quick_sizes = 0;
    for (unsigned i = 0; i < ZR_QUICK_BLOCKS; i++)
        if (arena->quick[i])
            arena->quick_sizes |= UINT64_C(1) << zr_quick_size_bit(arena->quick_bytes[i]);
}

/* Keeps the freed block, which no free extent is beside, in a place that is empty. */
static inline void zr_quick_keep_in(struct zr_arena *arena, struct zr_extent *block, unsigned place)
{
    block->kind = ZR_EXTENT_QUICK;
    arena->quick[place] = block;
    arena->quick_bytes[place] = block->bytes;
    arena->quick_sizes |= UINT64_C(1) << zr_quick_size_bit(block->bytes);
    arena->quick_count++;
    arena->quick_next = (place + 1) % ZR_QUICK_BLOCKS;
}

/* Bit i: quick block i has at least `least` bytes and fewer than `most`. */
static inline unsigned zr_quick_between(const struct zr_arena *arena, size_t least, size_t most)
{
    unsigned bits = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < ZR_QUICK_BLOCKS; i++)
        bits |= (unsigned)(arena->quick_bytes[i] - least < most - least)
                << i; /* what is smaller wraps round */
    return bits;
}

/* The place of the last freed of the quick blocks of exactly the size that the stream may use;
 * ZR_QUICK_BLOCKS: there is none. */
static inline unsigned zr_quick_find(const struct zr_arena *arena, const struct zr_request *request,
                                     struct zr_need need)
{
    for (unsigned age = 1; age <= ZR_QUICK_BLOCKS; age++) {
        unsigned place = (arena->quick_next - age) % ZR_QUICK_BLOCKS;
        const struct zr_extent *block = arena->quick[place];
        if (arena->quick_bytes[place] == need.bytes && (block->offset_bytes & (need.alignment - 1)) == 0 &&
            (!block->owner || block->stream == request->stream))
            return place;
    }
    return ZR_QUICK_BLOCKS;
}

#endif
