/* memory.h: a model of memory: live blocks and mapped ranges, updated record by record. Private to defrag/.
 *
 * Holds live blocks and mapped ranges only. Its figures are exact after every record:
 *   live_bytes        blocks with rounding, without pending ones
 *   requested_bytes   requested bytes of these blocks
 *   internal_bytes    live minus requested
 *   pending_bytes     freed blocks that a stream may still use
 *   reserved_bytes    mapped: segments, granules
 *   releasable_bytes  mapped, without blocks: whole granules, or whole segments if they are released at once
 *   stranded_bytes    reserved, and not live, pending or releasable
 * Without maps (RMM, MiniMalloc) the last three are unknown, and 0. */
#ifndef ZR_MEMORY_H
#define ZR_MEMORY_H

#include "defrag/report/extents.h"
#include "defrag/trace/recording.h"

struct zr_memory_figures {
    uint64_t live_bytes, requested_bytes, internal_bytes, pending_bytes;
    uint64_t reserved_bytes, stranded_bytes, releasable_bytes;
    uint64_t blocks_count, segments_count;
    uint64_t live_by_tag_bytes[ZR_TAG_COUNT];
};

struct zr_memory {
    const struct zr_recording *recording; /* borrowed: the kind of allocator, for messages */
    struct zr_extents blocks, mapped;     /* read-only: in address order */
    struct zr_extent_slabs slabs;
    uint64_t records_count, allocations_count;
    uint64_t live_bytes, requested_bytes, pending_bytes, reserved_bytes, releasable_bytes;
    uint64_t live_by_tag_bytes[ZR_TAG_COUNT];
};

void zr_memory_init(struct zr_memory *memory, const struct zr_recording *recording, zr_arena *arena);
void zr_memory_end(struct zr_memory *memory);
/* ZR_ERR_FORMAT: blocks overlap, a freed block is not live, or sums exceed 62 bits. */
zr_result zr_memory_apply(struct zr_memory *memory, const struct zr_record *record);
/* Removes a block without a record. */
void zr_memory_remove(struct zr_memory *memory, struct zr_range_record *block);
void zr_memory_get_figures(const struct zr_memory *memory, struct zr_memory_figures *out);

/* Walks through mapped ranges in address order: free extents and blocks. Without maps: the blocks, and the
 * gaps between them as free. */
struct zr_memory_piece {
    uint64_t address, bytes;
    const struct zr_range_record *block;  /* NULL: free */
    const struct zr_range_record *mapped; /* its range; NULL: no maps, or a block outside them */
};
struct zr_memory_walk {
    const struct zr_memory *memory;
    const struct zr_range_record *mapped, *block;
    uint64_t address;
    bool begun;
};
static inline struct zr_memory_walk zr_memory_walk_of(const struct zr_memory *memory)
{
    return (struct zr_memory_walk){.memory = memory};
}
bool zr_memory_next(struct zr_memory_walk *walk, struct zr_memory_piece *out);

#endif
