/* extents.c: an ordered set of address ranges. Uses the arena. */
#include "defrag/report/extents.h"

#include <string.h>

#include "alloc/base/error.h"

enum { SLAB_RECORDS = 512 };

struct zr_extent_slab {
    struct zr_extent_slab *next;
    struct zr_range_record records[SLAB_RECORDS];
};

void zr_extent_slabs_init(struct zr_extent_slabs *slabs, zr_arena *arena)
{
    *slabs = (struct zr_extent_slabs){.arena = arena, .random = UINT64_C(0x9e3779b97f4a7c15)};
}

void zr_extent_slabs_end(struct zr_extent_slabs *slabs)
{
    while (slabs->slabs) {
        struct zr_extent_slab *slab = slabs->slabs;
        slabs->slabs = slab->next;
        zr_arena_free(slabs->arena, slab);
    }
    slabs->unused = NULL;
}

static zr_result take(struct zr_extent_slabs *slabs, struct zr_range_record **out)
{
    if (!slabs->unused) {
        void *room;
        zr_result result = zr_arena_alloc(
            slabs->arena, &(struct zr_request){.bytes = sizeof(struct zr_extent_slab), .tag = ZR_TAG_OTHER},
            &room);
        if (result != ZR_OK)
            return result;
        struct zr_extent_slab *slab = room;
        slab->next = slabs->slabs;
        slabs->slabs = slab;
        for (unsigned i = 0; i < SLAB_RECORDS; i++) {
            slab->records[i].children[0] = slabs->unused;
            slabs->unused = &slab->records[i];
        }
    }
    *out = slabs->unused;
    slabs->unused = (*out)->children[0];
    return ZR_OK;
}

/* Random priorities: no file can make the tree deep. */
static uint32_t draw(struct zr_extent_slabs *slabs)
{
    slabs->random ^= slabs->random << 13;
    slabs->random ^= slabs->random >> 7;
    slabs->random ^= slabs->random << 17;
    return (uint32_t)(slabs->random >> 32);
}

zr_result zr_extents_add(struct zr_extents *set, struct zr_extent_slabs *slabs,
                         const struct zr_range_record *values, struct zr_range_record **out)
{
    struct zr_range_record *record, **link = &set->root;
    zr_result result = take(slabs, &record);
    if (result != ZR_OK)
        return result;
    *record = *values;
    record->priority = draw(slabs);
    while (*link && (*link)->priority > record->priority)
        link = &(*link)->children[(*link)->address < record->address];
    struct zr_range_record *rest = *link, **sides[2] = {&record->children[0], &record->children[1]};
    *link = record;
    /* Split the subtree into the ranges before and after the record. */
    while (rest) {
        bool smaller = rest->address < record->address;
        *sides[!smaller] = rest;
        sides[!smaller] = &rest->children[smaller];
        rest = rest->children[smaller];
    }
    *sides[0] = *sides[1] = NULL;
    set->count++;
    if (out)
        *out = record;
    return ZR_OK;
}

void zr_extents_remove(struct zr_extents *set, struct zr_extent_slabs *slabs, struct zr_range_record *record)
{
    struct zr_range_record **link = &set->root;
    while (*link != record) {
        zr_assert(*link != NULL);
        link = &(*link)->children[(*link)->address < record->address];
    }
    struct zr_range_record *smaller = record->children[0], *larger = record->children[1];
    while (smaller && larger) {
        bool take_smaller = smaller->priority > larger->priority;
        struct zr_range_record **from = take_smaller ? &smaller : &larger;
        *link = *from;
        link = &(*from)->children[take_smaller];
        *from = *link;
    }
    *link = smaller ? smaller : larger;
    set->count--;
    record->children[0] = slabs->unused;
    slabs->unused = record;
}

struct zr_range_record *zr_extents_floor(const struct zr_extents *set, uint64_t address)
{
    struct zr_range_record *node = set->root, *found = NULL;
    while (node) {
        bool there = node->address <= address;
        if (there)
            found = node;
        node = node->children[there];
    }
    return found;
}

struct zr_range_record *zr_extents_ceiling(const struct zr_extents *set, uint64_t address)
{
    struct zr_range_record *node = set->root, *found = NULL;
    while (node) {
        bool before = node->address < address;
        if (!before)
            found = node;
        node = node->children[before];
    }
    return found;
}
