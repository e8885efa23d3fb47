/* memory.c: a model of memory, updated record by record. Uses extents.c. */
#include "defrag/report/memory.h"

#include <string.h>

#include "alloc/base/error.h"

#define MAX_BYTES (UINT64_C(1) << 62)

void zr_memory_init(struct zr_memory *memory, const struct zr_recording *recording, zr_arena *arena)
{
    *memory = (struct zr_memory){.recording = recording};
    zr_extent_slabs_init(&memory->slabs, arena);
}

void zr_memory_end(struct zr_memory *memory)
{
    zr_extent_slabs_end(&memory->slabs);
    memory->blocks = memory->mapped = (struct zr_extents){0};
}

static zr_result contradiction(const struct zr_memory *memory, const struct zr_record *record,
                               const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s': event %llu %s (0x%llx): the trace has a gap, or is not a trace",
                   memory->recording->path, (unsigned long long)memory->records_count, what,
                   (unsigned long long)record->address);
}

/* ---- Releasable granules and segments ------------------------------------------------------------------ */

struct bounds {
    uint64_t low, high;
};

/* The part of a mapped range that could be released if [low, high) were free and nothing else. */
static uint64_t whole(const struct zr_range_record *mapped, struct bounds part)
{
    uint64_t begin = mapped->address, end = zr_range_end(mapped), unit = mapped->unit_bytes;
    if (unit == 0)
        return part.low <= begin && part.high >= end ? mapped->bytes : 0;
    uint64_t low = part.low > begin ? part.low - begin : 0;
    uint64_t high = (part.high < end ? part.high : end) - begin;
    if (part.high <= begin || low > UINT64_MAX - unit)
        return 0;
    low = (low + unit - 1) / unit * unit;
    high = high / unit * unit;
    return high > low ? high - low : 0;
}

/* The same, summed over all free extents in a part of it. */
static uint64_t whole_free(const struct zr_memory *memory, const struct zr_range_record *mapped,
                           struct bounds part)
{
    const struct zr_range_record *block = zr_extents_floor(&memory->blocks, part.low);
    uint64_t low = part.low, bytes = 0;
    if (block && zr_range_end(block) > low)
        low = zr_range_end(block);
    block = part.low == UINT64_MAX ? NULL : zr_extents_ceiling(&memory->blocks, part.low + 1);
    for (; block && block->address < part.high; block = zr_extents_next(&memory->blocks, block)) {
        if (block->address > low)
            bytes += whole(mapped, (struct bounds){low, block->address});
        if (zr_range_end(block) > low)
            low = zr_range_end(block);
    }
    return part.high > low ? bytes + whole(mapped, (struct bounds){low, part.high}) : bytes;
}

/* Updates the releasable bytes for a block that appears or disappears; `gap` is free without the block. */
static void count_block(struct zr_memory *memory, const struct zr_range_record *block, struct bounds gap,
                        bool comes)
{
    const struct zr_range_record *mapped = zr_extents_floor(&memory->mapped, block->address);
    uint64_t end = zr_range_end(block);
    if (!mapped || zr_range_end(mapped) <= block->address)
        mapped = zr_extents_ceiling(&memory->mapped, block->address);
    for (; mapped && mapped->address < end; mapped = zr_extents_next(&memory->mapped, mapped)) {
        uint64_t without = whole(mapped, gap), with = 0;
        if (gap.low < block->address)
            with += whole(mapped, (struct bounds){gap.low, block->address});
        if (end < gap.high)
            with += whole(mapped, (struct bounds){end, gap.high});
        memory->releasable_bytes += comes ? with - without : without - with; /* modulo 2^64 */
    }
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static struct bounds gap_around(const struct zr_range_record *before, const struct zr_range_record *after)
{
    return (struct bounds){before ? zr_range_end(before) : 0, after ? after->address : UINT64_MAX};
}

static zr_result add_block(struct zr_memory *memory, const struct zr_record *record)
{
    bool placed = memory->recording->has_addresses;
    uint64_t bytes = record->reserved_bytes > record->bytes ? record->reserved_bytes : record->bytes;
    struct zr_range_record *before = zr_extents_floor(&memory->blocks, record->address), *after, *block;
    if (record->address == UINT64_MAX || (placed && bytes > UINT64_MAX - record->address))
        return contradiction(memory, record, "allocates a range beyond the address space");
    if (bytes > MAX_BYTES - memory->live_bytes - memory->pending_bytes ||
        memory->allocations_count >= UINT32_MAX)
        return contradiction(memory, record, "allocates more than a machine can hold");
    after = zr_extents_ceiling(&memory->blocks, record->address + 1);
    if (before && (before->address == record->address || (placed && zr_range_end(before) > record->address)))
        return contradiction(memory, record, "allocates an address that is live");
    if (placed && after && after->address - record->address < bytes)
        return contradiction(memory, record, "allocates a range that overlaps a live block");
    zr_result result = zr_extents_add(&memory->blocks, &memory->slabs,
                                      &(struct zr_range_record){.address = record->address,
                                                                .bytes = bytes,
                                                                .requested_bytes = record->bytes,
                                                                .stream = record->stream,
                                                                .time_ns = record->time_ns,
                                                                .stack = record->stack,
                                                                .number = (uint32_t)memory->allocations_count,
                                                                .tag = record->tag},
                                      &block);
    if (result != ZR_OK)
        return result;
    memory->allocations_count++;
    memory->live_bytes += bytes;
    memory->requested_bytes += record->bytes;
    memory->live_by_tag_bytes[record->tag] += bytes;
    if (memory->recording->has_maps)
        count_block(memory, block, gap_around(before, after), true);
    return ZR_OK;
}

static void leave_live(struct zr_memory *memory, const struct zr_range_record *block)
{
    memory->live_bytes -= block->bytes;
    memory->requested_bytes -= block->requested_bytes;
    memory->live_by_tag_bytes[block->tag] -= block->bytes;
}

void zr_memory_remove(struct zr_memory *memory, struct zr_range_record *block)
{
    if (block->pending)
        memory->pending_bytes -= block->bytes;
    else
        leave_live(memory, block);
    if (memory->recording->has_maps)
        count_block(memory, block,
                    gap_around(block->address ? zr_extents_floor(&memory->blocks, block->address - 1) : NULL,
                               zr_extents_next(&memory->blocks, block)),
                    false);
    zr_extents_remove(&memory->blocks, &memory->slabs, block);
}

static zr_result free_block(struct zr_memory *memory, const struct zr_record *record)
{
    struct zr_range_record *block = zr_extents_floor(&memory->blocks, record->address);
    if (!block || block->address != record->address)
        return contradiction(memory, record, "frees an address that is not live");
    if (record->kind == ZR_RECORD_FREE) {
        zr_memory_remove(memory, block);
        return ZR_OK;
    }
    if (block->pending)
        return contradiction(memory, record, "frees an address that was freed already");
    leave_live(memory, block);
    memory->pending_bytes += block->bytes;
    block->pending = true;
    return ZR_OK;
}

/* ---- Maps ---------------------------------------------------------------------------------------------- */

static zr_result add_mapped(struct zr_memory *memory, const struct zr_range_record *values)
{
    zr_result result = zr_extents_add(&memory->mapped, &memory->slabs, values, NULL);
    if (result == ZR_OK) {
        memory->reserved_bytes += values->bytes;
        memory->releasable_bytes +=
            whole_free(memory, values, (struct bounds){values->address, zr_range_end(values)});
    }
    return result;
}

/* Cuts [low, high) out of a mapped range. If the cuts are at units, the figures of the rest do not change. */
static zr_result cut(struct zr_memory *memory, struct zr_range_record *mapped, struct bounds part)
{
    struct zr_range_record front = *mapped, behind = *mapped;
    uint64_t end = zr_range_end(mapped), unit = mapped->unit_bytes;
    bool at_units = unit && (part.low <= mapped->address || (part.low - mapped->address) % unit == 0) &&
                    (part.high >= end || (part.high - mapped->address) % unit == 0);
    if (part.low < mapped->address)
        part.low = mapped->address;
    if (part.high > end)
        part.high = end;
    struct bounds all = {mapped->address, end};
    memory->releasable_bytes -= whole_free(memory, mapped, at_units ? part : all);
    memory->reserved_bytes -= at_units ? part.high - part.low : mapped->bytes;
    front.bytes = part.low - mapped->address;
    behind.address = part.high;
    behind.bytes = end - part.high;
    zr_extents_remove(&memory->mapped, &memory->slabs, mapped);
    zr_result result = ZR_OK;
    if (at_units) {
        if (front.bytes > 0)
            result = zr_extents_add(&memory->mapped, &memory->slabs, &front, NULL);
        if (result == ZR_OK && behind.bytes > 0)
            result = zr_extents_add(&memory->mapped, &memory->slabs, &behind, NULL);
        return result;
    }
    if (front.bytes > 0)
        result = add_mapped(memory, &front);
    return result == ZR_OK && behind.bytes > 0 ? add_mapped(memory, &behind) : result;
}

static zr_result unmap(struct zr_memory *memory, struct bounds part)
{
    zr_result result = ZR_OK;
    struct zr_range_record *mapped = zr_extents_floor(&memory->mapped, part.low);
    if (!mapped || zr_range_end(mapped) <= part.low)
        mapped = zr_extents_ceiling(&memory->mapped, part.low);
    while (mapped && mapped->address < part.high && result == ZR_OK) {
        result = cut(memory, mapped, part);
        mapped = zr_extents_ceiling(&memory->mapped, part.low);
        if (mapped && mapped->address >= part.high)
            break;
    }
    return result;
}

static bool joins(const struct zr_range_record *left, const struct zr_range_record *right)
{
    return left && right && left->unit_bytes > 0 && left->unit_bytes == right->unit_bytes &&
           left->stream == right->stream && left->pool == right->pool &&
           zr_range_end(left) == right->address && left->bytes % left->unit_bytes == 0;
}

/* Merges neighbours that are unmapped in equal units. At a boundary of units the figures do not change. */
static void join(struct zr_memory *memory, uint64_t address)
{
    struct zr_range_record *own = zr_extents_floor(&memory->mapped, address);
    struct zr_range_record *left = address ? zr_extents_floor(&memory->mapped, address - 1) : NULL;
    struct zr_range_record *right = zr_extents_next(&memory->mapped, own);
    if (joins(own, right)) {
        own->bytes += right->bytes;
        zr_extents_remove(&memory->mapped, &memory->slabs, right);
    }
    if (joins(left, own)) {
        left->bytes += own->bytes;
        zr_extents_remove(&memory->mapped, &memory->slabs, own);
    }
}

static zr_result change_map(struct zr_memory *memory, const struct zr_record *record)
{
    if (record->bytes == 0 || record->bytes > MAX_BYTES || record->address > UINT64_MAX - record->bytes)
        return contradiction(memory, record, "maps or unmaps an invalid range of addresses");
    zr_result result = unmap(memory, (struct bounds){record->address, record->address + record->bytes});
    if (result != ZR_OK || record->kind == ZR_RECORD_UNMAP)
        return result;
    result = add_mapped(memory, &(struct zr_range_record){.address = record->address,
                                                          .bytes = record->bytes,
                                                          .stream = record->stream,
                                                          .pool = record->pool,
                                                          .stack = record->stack,
                                                          .time_ns = record->time_ns,
                                                          .unit_bytes = record->unit_bytes});
    if (result == ZR_OK && record->unit_bytes > 0)
        join(memory, record->address);
    return result;
}

/* ---- Records ------------------------------------------------------------------------------------------- */

zr_result zr_memory_apply(struct zr_memory *memory, const struct zr_record *record)
{
    zr_result result = ZR_OK;
    switch (record->kind) {
    case ZR_RECORD_ALLOC:
        result = add_block(memory, record);
        break;
    case ZR_RECORD_FREE_ASKED:
    case ZR_RECORD_FREE:
        result = free_block(memory, record);
        break;
    case ZR_RECORD_MAP:
    case ZR_RECORD_UNMAP:
        result = change_map(memory, record);
        break;
    default:
        break;
    }
    memory->records_count += result == ZR_OK;
    return result;
}

void zr_memory_get_figures(const struct zr_memory *memory, struct zr_memory_figures *out)
{
    uint64_t used = memory->live_bytes + memory->pending_bytes + memory->releasable_bytes;
    *out = (struct zr_memory_figures){.live_bytes = memory->live_bytes,
                                      .requested_bytes = memory->requested_bytes,
                                      .internal_bytes = memory->live_bytes - memory->requested_bytes,
                                      .pending_bytes = memory->pending_bytes,
                                      .reserved_bytes = memory->reserved_bytes,
                                      .releasable_bytes = memory->releasable_bytes,
                                      .stranded_bytes =
                                          memory->reserved_bytes > used ? memory->reserved_bytes - used : 0,
                                      .blocks_count = memory->blocks.count,
                                      .segments_count = memory->mapped.count};
    memcpy(out->live_by_tag_bytes, memory->live_by_tag_bytes, sizeof out->live_by_tag_bytes);
}

/* ---- Walking ------------------------------------------------------------------------------------------- */

/* The next mapped range, or a block outside all maps before it. */
bool zr_memory_next(struct zr_memory_walk *walk, struct zr_memory_piece *out)
{
    const struct zr_memory *memory = walk->memory;
    if (!walk->begun) {
        walk->mapped = zr_extents_ceiling(&memory->mapped, 0);
        walk->block = zr_extents_ceiling(&memory->blocks, 0);
        walk->address = walk->block ? walk->block->address : 0;
        if (walk->mapped && (!walk->block || walk->mapped->address < walk->address))
            walk->address = walk->mapped->address;
        walk->begun = true;
    }
    const struct zr_range_record *block = walk->block, *mapped = walk->mapped;
    while (mapped && zr_range_end(mapped) <= walk->address)
        mapped = zr_extents_next(&memory->mapped, mapped);
    walk->mapped = mapped;
    if (!block && !mapped)
        return false;
    uint64_t at = walk->address;
    bool inside = mapped && mapped->address <= at;
    if (!inside && mapped && (!block || (block->address > at && block->address >= mapped->address))) {
        at = mapped->address;
        inside = true;
    } else if (!inside && memory->recording->has_maps && block->address > at) {
        at = block->address;
    }
    *out = (struct zr_memory_piece){.address = at, .mapped = inside ? mapped : NULL};
    if (block && block->address <= at) {
        out->address = block->address;
        out->bytes = block->bytes;
        out->block = block;
        walk->address = memory->recording->has_addresses ? zr_range_end(block) : block->address + 1;
        walk->block = zr_extents_next(&memory->blocks, block);
        return true;
    }
    uint64_t end = inside ? zr_range_end(mapped) : block->address;
    if (block && block->address < end)
        end = block->address;
    out->bytes = end - at;
    walk->address = end;
    return true;
}
