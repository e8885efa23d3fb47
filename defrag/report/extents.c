/* extents.c: an ordered set of address ranges. Uses the arena and tree.h. */
#include "defrag/report/extents.h"

#include "alloc/base/tree.h"

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

static bool before(const void *one, const void *other)
{
    return ((const struct zr_range_record *)one)->address < ((const struct zr_range_record *)other)->address;
}

static uint64_t priority(const void *record)
{
    return ((const struct zr_range_record *)record)->priority;
}

static const struct zr_tree_order by_address = {offsetof(struct zr_range_record, children), before, priority};

zr_result zr_extents_add(struct zr_extents *set, struct zr_extent_slabs *slabs,
                         const struct zr_range_record *values, struct zr_range_record **out)
{
    struct zr_range_record *record;
    zr_result result = take(slabs, &record);
    if (result != ZR_OK)
        return result;
    *record = *values;
    record->priority = draw(slabs);
    zr_tree_insert(by_address, &set->root, record);
    set->count++;
    if (out)
        *out = record;
    return ZR_OK;
}

void zr_extents_remove(struct zr_extents *set, struct zr_extent_slabs *slabs, struct zr_range_record *record)
{
    zr_tree_remove(by_address, &set->root, record);
    set->count--;
    record->children[0] = slabs->unused;
    slabs->unused = record;
}

struct zr_range_record *zr_extents_floor(const struct zr_extents *set, uint64_t address)
{
    return zr_tree_floor(by_address, set->root, &(struct zr_range_record){.address = address});
}

struct zr_range_record *zr_extents_ceiling(const struct zr_extents *set, uint64_t address)
{
    return zr_tree_ceiling(by_address, set->root, &(struct zr_range_record){.address = address});
}
