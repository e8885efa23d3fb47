/* number_map.h: a hash table from 64-bit numbers to 32-bit numbers: addresses to blocks, thread ids to
 * threads. Private to defrag/.
 *
 * Uses open addressing in a host arena. The hash has a key taken from the clock, so no file can force
 * collisions. */
#ifndef ZR_NUMBER_MAP_H
#define ZR_NUMBER_MAP_H

#include "alloc/zr.h"

struct zr_number_entry {
    uint64_t key;
    uint32_t value;
    bool used;
};

struct zr_number_map {
    zr_arena *arena;                 /* borrowed */
    struct zr_number_entry *entries; /* room_count entries, a power of two; NULL: none yet */
    size_t count, room_count;
    uint64_t seed;
};

/* Allocates nothing, so it cannot fail. */
void zr_number_map_init(struct zr_number_map *map, zr_arena *arena);
void zr_number_map_end(struct zr_number_map *map);
/* The value of a key, valid for reading and writing until the next put; NULL: absent. */
uint32_t *zr_number_map_get(const struct zr_number_map *map, uint64_t key);
/* Sets the value of an old or new key. Returns the arena's error if there is no memory. */
zr_result zr_number_map_put(struct zr_number_map *map, uint64_t key, uint32_t value);

#endif
