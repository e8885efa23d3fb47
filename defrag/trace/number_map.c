/* number_map.c: a hash table from numbers to numbers. Uses the arena and the clock. */
#include "defrag/trace/number_map.h"

#include <string.h>

#include "alloc/base/system/os.h"

enum { ROOM_FIRST = 256 };

void zr_number_map_init(struct zr_number_map *map, zr_arena *arena)
{
    *map = (struct zr_number_map){.arena = arena, .seed = zr_os_now_ns() | 1};
}

void zr_number_map_end(struct zr_number_map *map)
{
    if (map->entries)
        zr_arena_free(map->arena, map->entries);
    map->entries = NULL;
    map->count = map->room_count = 0;
}

/* The entry of the key, or the free one for it. */
static struct zr_number_entry *find(const struct zr_number_map *map, uint64_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 32 ^ map->seed >> 7) * UINT64_C(0xd6e8feb86659fd93);
    size_t mask = map->room_count - 1, at = (size_t)(hash >> 32) & mask;
    while (map->entries[at].used && map->entries[at].key != key)
        at = (at + 1) & mask;
    return &map->entries[at];
}

static zr_result grow(struct zr_number_map *map)
{
    struct zr_number_map larger = *map;
    void *entries;
    larger.room_count = map->room_count ? map->room_count * 2 : ROOM_FIRST;
    zr_result result = zr_arena_alloc(
        map->arena,
        &(struct zr_request){.bytes = larger.room_count * sizeof *map->entries, .tag = ZR_TAG_OTHER},
        &entries);
    if (result != ZR_OK)
        return result;
    larger.entries = memset(entries, 0, larger.room_count * sizeof *map->entries);
    for (size_t i = 0; i < map->room_count; i++)
        if (map->entries[i].used)
            *find(&larger, map->entries[i].key) = map->entries[i];
    zr_number_map_end(map);
    *map = larger;
    return ZR_OK;
}

uint32_t *zr_number_map_get(const struct zr_number_map *map, uint64_t key)
{
    if (map->count == 0)
        return NULL;
    struct zr_number_entry *entry = find(map, key);
    return entry->used ? &entry->value : NULL;
}

zr_result zr_number_map_put(struct zr_number_map *map, uint64_t key, uint32_t value)
{
    if (map->count * 2 >= map->room_count) {
        zr_result result = grow(map);
        if (result != ZR_OK)
            return result;
    }
    struct zr_number_entry *entry = find(map, key);
    map->count += !entry->used;
    *entry = (struct zr_number_entry){.key = key, .value = value, .used = true};
    return ZR_OK;
}
