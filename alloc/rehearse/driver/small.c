/* small.c: cuMemAlloc of less than half a granule: parts of a granule that is one context's, on boundaries of
 * 512 bytes. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 512 };

struct granule {
    struct granule *next;
    struct emu_block *block;
    struct zr_cu_context_st *context;
    size_t units, free_units;
    unsigned char taken[]; /* per unit */
};

static struct granule *granules;

static bool take_in(struct granule *granule, size_t units, zr_cu_address *address)
{
    size_t run = 0;
    for (size_t i = 0; i < granule->units && units <= granule->free_units; i++) {
        run = granule->taken[i] ? 0 : run + 1;
        if (run == units) {
            memset(&granule->taken[i + 1 - units], 1, units);
            granule->free_units -= units;
            *address = granule->block->address + (i + 1 - units) * UNIT_BYTES;
            return true;
        }
    }
    return false;
}

struct emu_block *emu_small_take(struct zr_cu_context_st *context, size_t bytes, zr_cu_address *address)
{
    size_t units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES, whole = emu.granularity_bytes / UNIT_BYTES;
    for (struct granule *each = granules; each; each = each->next)
        if (each->context == context && take_in(each, units, address))
            return each->block;
    struct emu_block *block = emu_block_create(context->device, emu.granularity_bytes);
    if (!block)
        return NULL;
    struct granule *made = emu_must(calloc(1, sizeof *made + whole));
    made->next = granules;
    made->block = block;
    made->context = context;
    made->units = made->free_units = whole;
    granules = made;
    take_in(made, units, address);
    return block;
}

bool emu_small_give(struct emu_block *block, zr_cu_address address, size_t bytes)
{
    size_t units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    struct granule **link = &granules;
    while (*link && (*link)->block != block)
        link = &(*link)->next;
    struct granule *found = *link;
    if (!found)
        return false;
    memset(&found->taken[(address - block->address) / UNIT_BYTES], 0, units);
    found->free_units += units;
    if (found->free_units == found->units) {
        *link = found->next;
        emu_block_destroy(block);
        free(found);
    }
    return true;
}
