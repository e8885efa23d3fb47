/* keep.h: blocks that an arena's owner keeps after the program has freed them, for its next request. Private
 * to alloc/.
 *
 * A kept block is freed for everyone who looks: it is not live in statistics, a trace and the recorder have
 * its free, and no search finds it. Only its memory stays. All ways to record thereby see what the program
 * asked for, and not what its allocator did below.
 *
 * For arenas of one stripe on host memory, without canaries and plans. lock: arena->lock, unless a
 * declaration says otherwise */
#ifndef ZR_FRONT_KEEP_H
#define ZR_FRONT_KEEP_H

#include "alloc/core/arena.h"

/* zr_arena_alloc() of a block with room for `room_bytes`, of which request->bytes count as requested. The
 * caller holds no lock. */
zr_result zr_arena_alloc_sized(struct zr_arena *arena, const struct zr_request *request, size_t room_bytes,
                               void **out);
/* The block, live or kept, that starts at the address; NULL: none. */
struct zr_extent *zr_block_at(struct zr_arena *arena, const void *address);

/* The program has freed the live block, which its owner keeps. */
void zr_block_keep(struct zr_arena *arena, struct zr_extent *block);
/* The kept block is allocated again, for `bytes` from 1 to the block's size. Takes the caller's call stack if
 * stacks are on, and releases the lock meanwhile; the block must be in no list then. */
void zr_block_reuse(struct zr_arena *arena, struct zr_extent *block, size_t bytes);
/* The kept block's addresses become free. */
void zr_block_release(struct zr_arena *arena, struct zr_extent *block);

#endif
