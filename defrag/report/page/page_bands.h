/* page_bands.h: the addresses that a recording uses, merged into a few bands that lie one after the other on
 * the address axis of a page. Private to defrag/report/. */
#ifndef ZR_PAGE_BANDS_H
#define ZR_PAGE_BANDS_H

#include "defrag/trace/vector.h"

enum { ZR_BANDS_MAX = 4096 };

struct zr_band {
    uint64_t begin, end; /* addresses */
    uint64_t place;      /* of `begin` on the axis: valid after zr_bands_settle() */
};

struct zr_bands {
    struct zr_vector items;  /* struct zr_band, in rising order, disjoint */
    uint64_t distance_bytes; /* bands within this distance are merged */
    uint64_t bytes;          /* sum of all bands: valid after zr_bands_settle() */
};

void zr_bands_init(struct zr_bands *bands, zr_arena *arena, uint64_t distance_bytes);
void zr_bands_end(struct zr_bands *bands);
/* Adds [begin, end). If there are too many bands, merges the closest ones. */
zr_result zr_bands_add(struct zr_bands *bands, uint64_t begin, uint64_t end);
/* Assigns each band its place, after the last band was added. */
void zr_bands_settle(struct zr_bands *bands);

/* The part of [begin, end) that lies in the first band from `begin` on: its place, its bytes, and the address
 * to continue at. False: no band overlaps the range. */
struct zr_band_part {
    uint64_t place, bytes, next;
};
bool zr_bands_part(const struct zr_bands *bands, uint64_t begin, uint64_t end, struct zr_band_part *out);

#endif
