/* memory.h: a model of memory: what is live and what is mapped, kept up to date record by record. Private to
 * defrag/.
 *
 * Takes memory for live blocks and mapped stretches, and none for what is over. What it counts is exact after
 * every record:
 *   live_bytes        blocks, with rounding, but for pending ones
 *   requested_bytes   the same as requested
 *   internal_bytes    live less requested
 *   pending_bytes     blocks that are freed, and a stream may still use them
 *   reserved_bytes    mapped: segments, granules
 *   releasable_bytes  mapped, and in no block: whole granules, or whole segments where these go at once
 *   stranded_bytes    reserved, and none of live, pending and releasable
 * Without maps (RMM, MiniMalloc) the last three are not known, and 0. */
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
    const struct zr_recording *recording; /* borrowed: which kind, for words */
    struct zr_extents blocks, mapped;     /* for reading: in address order */
    struct zr_extent_slabs slabs;
    uint64_t records_count, allocations_count;
    uint64_t live_bytes, requested_bytes, pending_bytes, reserved_bytes, releasable_bytes;
    uint64_t live_by_tag_bytes[ZR_TAG_COUNT];
};

void zr_memory_init(struct zr_memory *memory, const struct zr_recording *recording, zr_arena *arena);
void zr_memory_end(struct zr_memory *memory);
/* ZR_ERR_FORMAT: blocks overlap, what is freed is not live, or sums leave 62 bits. */
zr_result zr_memory_apply(struct zr_memory *memory, const struct zr_record *record);
/* A block goes, whatever the records say. */
void zr_memory_remove(struct zr_memory *memory, struct zr_stretch_record *block);
void zr_memory_get_figures(const struct zr_memory *memory, struct zr_memory_figures *out);

/* A walk through mapped stretches and what is in them, in address order: free extents and blocks. Without
 * maps: the blocks, and what is between two of them as free. */
struct zr_memory_piece {
    uint64_t address, bytes;
    const struct zr_stretch_record *block; /* NULL: free */
    const struct zr_stretch_record
        *mapped; /* the stretch; NULL: the file has no maps, or the block is beside them */
};
struct zr_memory_walk {
    const struct zr_memory *memory;
    const struct zr_stretch_record *mapped, *block;
    uint64_t address;
    bool begun;
};
static inline struct zr_memory_walk zr_memory_walk_of(const struct zr_memory *memory)
{
    return (struct zr_memory_walk){.memory = memory};
}
bool zr_memory_next(struct zr_memory_walk *walk, struct zr_memory_piece *out);

#endif
