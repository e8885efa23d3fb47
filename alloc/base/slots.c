/* slots.c: the two-level table from granules to mappings. Uses slab.c. */
#include "alloc/base/slots.h"

#include <string.h>

#include "alloc/base/error.h"

zr_result zr_slots_init(struct zr_slots *slots, struct zr_slab *pool, size_t slots_count)
{
    size_t chunks_count = (slots_count + ZR_SLOTS_PER_CHUNK - 1) / ZR_SLOTS_PER_CHUNK;
    uintptr_t *top = zr_pages_take(chunks_count * sizeof *top);
    if (!top)
        return ZR_ERR_HOST_MEMORY;
    *slots = (struct zr_slots){.top = top, .chunks_count = chunks_count, .pool = pool};
    return ZR_OK;
}

void zr_slots_end(struct zr_slots *slots)
{
    zr_pages_give(slots->top, slots->chunks_count * sizeof *slots->top);
    slots->top = NULL;
}

bool zr_slots_reserve(struct zr_slots *slots, size_t runs)
{
    /* A run needs new chunks at its two ends only: what lies between is whole. */
    return zr_slab_reserve(slots->pool, 2 * runs);
}

static struct zr_slot_chunk *chunk_at(struct zr_slots *slots, size_t index)
{
    if (!slots->top[index]) {
        struct zr_slot_chunk *chunk = zr_slab_take(slots->pool);
        memset(chunk, 0, sizeof *chunk);
        slots->top[index] = (uintptr_t)chunk;
    }
    zr_assert((slots->top[index] & 1) == 0);
    return (struct zr_slot_chunk *)slots->top[index];
}

static void set_part(struct zr_slots *slots, size_t index, struct zr_slot_run part,
                     struct zr_mapping *mapping)
{
    struct zr_slot_chunk *chunk = chunk_at(slots, index);
    for (size_t i = 0; i < part.count; i++) {
        zr_assert((chunk->slot[part.first + i] == NULL) == (mapping != NULL));
        chunk->slot[part.first + i] = mapping;
    }
    chunk->used_count += mapping ? part.count : -part.count;
    if (chunk->used_count == 0) {
        slots->top[index] = 0;
        zr_slab_give(slots->pool, chunk);
    }
}

void zr_slots_set(struct zr_slots *slots, struct zr_slot_run run, struct zr_mapping *mapping)
{
    while (run.count > 0) {
        size_t index = run.first / ZR_SLOTS_PER_CHUNK;
        struct zr_slot_run part = {run.first % ZR_SLOTS_PER_CHUNK, run.count};
        if (part.count > ZR_SLOTS_PER_CHUNK - part.first)
            part.count = ZR_SLOTS_PER_CHUNK - part.first;
        if (part.count == ZR_SLOTS_PER_CHUNK) {
            zr_assert((slots->top[index] == 0) == (mapping != NULL));
            slots->top[index] = mapping ? (uintptr_t)mapping | 1 : 0;
        } else {
            set_part(slots, index, part, mapping);
        }
        run.first += part.count;
        run.count -= part.count;
    }
}
