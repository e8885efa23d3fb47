/* number_map.h: 64-bit numbers to small ones: addresses to blocks, thread ids to threads. Private to defrag/.
 *
 * Open addressing in a host arena. The hash is keyed by the clock, so that no file can be made to collide. */
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
    struct zr_number_entry *entries; /* room_count of them, a power of two; NULL: none yet */
    size_t count, room_count;
    uint64_t seed;
};

/* Takes no memory yet, so it cannot fail. */
void zr_number_map_init(struct zr_number_map *map, zr_arena *arena);
void zr_number_map_end(struct zr_number_map *map);
/* The value of a key, to be read or written until the next put; NULL: not there. */
uint32_t *zr_number_map_get(const struct zr_number_map *map, uint64_t key);
/* Sets the value of a key, which may be new. The arena's failure if there is no room. */
zr_result zr_number_map_put(struct zr_number_map *map, uint64_t key, uint32_t value);

#endif
