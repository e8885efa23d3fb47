/* extents.h: ordered sets of address ranges: live blocks, and mapped ranges. Private to defrag/report/. A
 * treap over records from slabs of a host arena; no recursion. */
#ifndef ZR_EXTENTS_H
#define ZR_EXTENTS_H

#include "alloc/zr.h"

struct zr_range_record {
    struct zr_range_record *children[2];
    uint32_t priority;
    uint32_t stack, pool, number; /* number: of a block, from 0 in order of allocation */
    uint64_t address, bytes;
    uint64_t requested_bytes, stream, time_ns;
    uint64_t unit_bytes; /* mapped: the unit that can be unmapped; 0: only the whole */
    uint8_t tag;
    bool pending; /* a freed block that a stream may still use */
};

/* An ordered set. One thread at a time. */
struct zr_extents {
    struct zr_range_record *root;
    size_t count;
};

/* The source of records for several sets. */
struct zr_extent_slabs {
    zr_arena *arena; /* borrowed */
    struct zr_range_record *unused;
    struct zr_extent_slab *slabs;
    uint64_t random;
};

void zr_extent_slabs_init(struct zr_extent_slabs *slabs, zr_arena *arena);
/* Frees all records. */
void zr_extent_slabs_end(struct zr_extent_slabs *slabs);

/* Adds a record; its address must not be in the set. Returns the arena's error if there is no memory. */
zr_result zr_extents_add(struct zr_extents *set, struct zr_extent_slabs *slabs,
                         const struct zr_range_record *values, struct zr_range_record **out);
/* Removes and frees the record. */
void zr_extents_remove(struct zr_extents *set, struct zr_extent_slabs *slabs, struct zr_range_record *record);
/* The last record that begins at or before the address; NULL: none. */
struct zr_range_record *zr_extents_floor(const struct zr_extents *set, uint64_t address);
/* The first record that begins at or after the address; NULL: none. */
struct zr_range_record *zr_extents_ceiling(const struct zr_extents *set, uint64_t address);

static inline uint64_t zr_range_end(const struct zr_range_record *record)
{
    return record->address + record->bytes;
}

/* The record after this one; NULL at the end. */
static inline struct zr_range_record *zr_extents_next(const struct zr_extents *set,
                                                      const struct zr_range_record *record)
{
    return record->address == UINT64_MAX ? NULL : zr_extents_ceiling(set, record->address + 1);
}

#endif
