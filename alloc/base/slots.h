/* slots.h: which mapping lies at a granule of a reservation. Private to alloc/backend/backend.c and
 * alloc/base/slots.c.
 *
 * Two levels. A chunk of slots that one mapping covers whole is a single tagged pointer, so that a run of
 * terabytes takes words, not megabytes. The owner's lock covers every call. */
#ifndef ZR_SLOTS_H
#define ZR_SLOTS_H

#include "alloc/base/slab.h"

struct zr_mapping;

enum { ZR_SLOTS_PER_CHUNK = 512 };

struct zr_slot_chunk {
    size_t used_count; /* slots that are not NULL */
    struct zr_mapping *slot[ZR_SLOTS_PER_CHUNK];
};

struct zr_slots {
    uintptr_t *top; /* per chunk: 0, a chunk, or a mapping with bit 0 set */
    size_t chunks_count;
    struct zr_slab *pool; /* of chunks, borrowed */
};

struct zr_slot_run {
    size_t first, count; /* granules, from the start of the reservation */
};

/* The pool's records are chunks. */
zr_result zr_slots_init(struct zr_slots *slots, struct zr_slab *pool, size_t slots_count);
/* Every slot must be empty. */
void zr_slots_end(struct zr_slots *slots);
/* Makes sure that the next zr_slots_set() of at most `runs` runs succeeds; false with words. */
bool zr_slots_reserve(struct zr_slots *slots, size_t runs);
/* Fills empty slots, or (mapping NULL) empties the slots that one mapping fills. */
void zr_slots_set(struct zr_slots *slots, struct zr_slot_run run, struct zr_mapping *mapping);
/* Where to look on after a slot that is empty: behind all slots of its chunk, if they all are. */
static inline size_t zr_slots_skip(const struct zr_slots *slots, size_t slot)
{
    return slots->top[slot / ZR_SLOTS_PER_CHUNK] ? slot + 1 : (slot | (ZR_SLOTS_PER_CHUNK - 1)) + 1;
}
/* NULL: nothing mapped there. */
static inline struct zr_mapping *zr_slots_get(const struct zr_slots *slots, size_t slot)
{
    uintptr_t entry = slots->top[slot / ZR_SLOTS_PER_CHUNK];
    if (entry & 1)
        return (struct zr_mapping *)(entry - 1);
    return entry ? ((const struct zr_slot_chunk *)entry)->slot[slot % ZR_SLOTS_PER_CHUNK] : NULL;
}

#endif
