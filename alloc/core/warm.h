/* warm.h: freed blocks that are kept for the next request of their size, since programs ask again and again
 * for what they have just given back. Private to allocate.c, which keeps them and lets them go; the arena's
 * lock covers every call. */
#ifndef ZR_WARM_H
#define ZR_WARM_H

#include "alloc/core/arena_internal.h"

static inline bool zr_warm_is(const struct zr_span *span)
{
    return span && span->kind == ZR_SPAN_WARM;
}

/* One of 64 bits for a size. */
static inline unsigned zr_warm_size_bit(size_t bytes)
{
    return (uint32_t)(bytes >> ZR_UNIT_SHIFT) * UINT32_C(0x9e3779b9) >> 26;
}

/* False: there is no warm block of the size. */
static inline bool zr_warm_may_have(const struct zr_arena *arena, size_t bytes)
{
    return arena->warm_sizes >> zr_warm_size_bit(bytes) & 1;
}

static inline struct zr_span *zr_warm_leave(struct zr_arena *arena, unsigned place)
{
    struct zr_span *block = arena->warm[place];
    arena->warm[place] = NULL;
    arena->warm_bytes[place] = 0;
    if (--arena->warm_count == 0)
        arena->warm_sizes = 0;
    return block;
}

/* Once a bit was set in vain. */
static inline void zr_warm_note_sizes(struct zr_arena *arena)
{
    arena->warm_sizes = 0;
    for (unsigned i = 0; i < ZR_WARM_BLOCKS; i++)
        if (arena->warm[i])
            arena->warm_sizes |= UINT64_C(1) << zr_warm_size_bit(arena->warm_bytes[i]);
}

/* Keeps the freed block, which no gap is beside, in a place that is empty. */
static inline void zr_warm_keep_in(struct zr_arena *arena, struct zr_span *block, unsigned place)
{
    block->kind = ZR_SPAN_WARM;
    arena->warm[place] = block;
    arena->warm_bytes[place] = block->bytes;
    arena->warm_sizes |= UINT64_C(1) << zr_warm_size_bit(block->bytes);
    arena->warm_count++;
    arena->warm_next = (place + 1) % ZR_WARM_BLOCKS;
}

/* Bit i: warm block i has at least `least` bytes and fewer than `most`. */
static inline unsigned zr_warm_between(const struct zr_arena *arena, size_t least, size_t most)
{
    unsigned bits = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < ZR_WARM_BLOCKS; i++)
        bits |= (unsigned)(arena->warm_bytes[i] - least < most - least)
                << i; /* what is smaller wraps round */
    return bits;
}

/* The place of the last freed of the warm blocks of exactly the size that the stream may use;
 * ZR_WARM_BLOCKS: there is none. */
static inline unsigned zr_warm_find(const struct zr_arena *arena, const struct zr_request *request,
                                    struct zr_need need)
{
    for (unsigned age = 1; age <= ZR_WARM_BLOCKS; age++) {
        unsigned place = (arena->warm_next - age) % ZR_WARM_BLOCKS;
        const struct zr_span *block = arena->warm[place];
        if (arena->warm_bytes[place] == need.bytes && (block->offset_bytes & (need.alignment - 1)) == 0 &&
            (!block->owner || block->stream == request->stream))
            return place;
    }
    return ZR_WARM_BLOCKS;
}

#endif
