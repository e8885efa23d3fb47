/* page_bands.h: which addresses a recording uses at all, as a few bands, one after the other: places on the
 * address axis of a page. Private to defrag/report/. */
#ifndef ZR_PAGE_BANDS_H
#define ZR_PAGE_BANDS_H

#include "defrag/trace/vector.h"

enum { ZR_BANDS_MOST = 4096 };

struct zr_band {
    uint64_t begin, end; /* addresses */
    uint64_t place;      /* of `begin` on the axis: once settled */
};

struct zr_bands {
    struct zr_vector items;  /* struct zr_band, in rising order, apart from one another */
    uint64_t distance_bytes; /* bands that are no farther from one another become one */
    uint64_t bytes;          /* of all of them: once settled */
};

void zr_bands_init(struct zr_bands *bands, zr_arena *arena, uint64_t distance_bytes);
void zr_bands_end(struct zr_bands *bands);
/* Takes in [begin, end). Where there are too many bands, the closest become one. */
zr_result zr_bands_add(struct zr_bands *bands, uint64_t begin, uint64_t end);
/* After the last of them: gives each band its place. */
void zr_bands_settle(struct zr_bands *bands);

/* The part of [begin, end) that lies in the first band from `begin` on: its place, its bytes, and where to go
 * on. False: none does. */
struct zr_band_part {
    uint64_t place, bytes, next;
};
bool zr_bands_part(const struct zr_bands *bands, uint64_t begin, uint64_t end, struct zr_band_part *out);

#endif
